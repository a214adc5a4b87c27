"""Updates in one operation a weight are those of Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain.strategies import fused

SHAPES = (3, 4), (4,)


class Run:
    """Weights that are updated a few times, in a trace."""

    def __init__(self, optimizer, gradients, is_fused, dtype="float32"):
        rng = np.random.default_rng(0)
        self.weights = [
            keras.Variable(rng.normal(size=shape), dtype=dtype) for shape in SHAPES
        ]
        self.optimizer = optimizer
        optimizer.build(self.weights)

        @tf.function(autograph=False)
        def run(number):
            if not is_fused:
                return optimizer.apply(gradients(number), self.weights)
            with fused.updates(optimizer):
                return optimizer.apply(gradients(number), self.weights)

        for number in (1.0, 2.0, -0.5, 0.0):
            run(tf.constant(number))
        graph = run.get_concrete_function(tf.TensorSpec([])).graph
        self.operations = [op.type for op in graph.get_operations()]

    def values(self):
        return [v.numpy() for v in (*self.weights, *self.optimizer.variables)]


def dense(number):
    return [number * tf.reshape(tf.range(12.0), (3, 4)), number * tf.ones([4])]


def sparse(number):
    rows = tf.IndexedSlices(number * tf.ones([1, 4]), tf.constant([2]), [3, 4])
    return [rows, number * tf.ones([4])]


ADAM, KERAS_MOMENTUM = "ResourceApplyAdam", "ResourceApplyKerasMomentum"
optimizers = keras.optimizers


@pytest.mark.parametrize("gradients", [dense, sparse])
@pytest.mark.parametrize(
    ("make", "operation", "is_used"),
    [
        (lambda: optimizers.Adam(0.1), ADAM, True),
        (lambda: optimizers.Adam(0.1, beta_1=0.999, beta_2=0.75), ADAM, True),
        (lambda: optimizers.AdamW(0.1, clipnorm=1.0, use_ema=True), ADAM, True),
        (lambda: optimizers.Adam(0.1, amsgrad=True), ADAM, False),
        (lambda: optimizers.SGD(0.1, momentum=0.9), KERAS_MOMENTUM, True),
        (
            lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
            KERAS_MOMENTUM,
            True,
        ),
        (lambda: optimizers.SGD(0.1), "ResourceApplyGradientDescent", True),
    ],
    ids=["adam", "betas", "adamw", "amsgrad", "momentum", "nesterov", "sgd"],
)
def test_updates_are_those_of_keras(make, operation, is_used, gradients):
    ours, theirs = Run(make(), gradients, True), Run(make(), gradients, False)
    for a, b in zip(ours.values(), theirs.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7)
    num_dense = 2 if gradients is dense else 1
    assert ours.operations.count(operation) == (num_dense if is_used else 0)
    assert "update_step" not in vars(ours.optimizer)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_adam_in_another_precision_is_left_to_keras(dtype):
    run = Run(optimizers.Adam(0.1), dense, True, dtype)
    assert ADAM not in run.operations


class Halved(keras.optimizers.Adam):
    """Has an update of its own."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate * 0.5)


def test_an_update_of_the_users_own_is_left_alone():
    ours = Run(Halved(0.1), dense, is_fused=True)
    theirs = Run(Halved(0.1), dense, is_fused=False)
    assert "ResourceApplyAdam" not in ours.operations
    for a, b in zip(ours.values(), theirs.values(), strict=True):
        np.testing.assert_array_equal(a, b)
