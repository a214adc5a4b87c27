"""Replicas that compute one global batch: however divided, training is the same."""

import functools

import keras
import keras.src.losses.loss as keras_loss
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.strategies.mirrored import find_devices
from dtrain.strategies.reduction import Reduction

pytestmark = pytest.mark.usefixtures("no_unrolls")

STEPS = 4

# Replicas and micro-batches that a global batch is divided into.
WAYS = {
    "two replicas": (2, 1),
    "four replicas": (4, 1),
    "two micro-batches": (1, 2),
    "two replicas with two micro-batches": (2, 2),
}


# Models and losses with all that depends on how a batch is divided.


class Penalty(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x


def distance(y, y_pred):
    return tf.reduce_sum(tf.abs(y - y_pred) ** 1.5, -1)


def rich_model():
    inputs = keras.Input((4,))
    x = keras.layers.Dense(
        6, activation="tanh", kernel_regularizer="l2", activity_regularizer="l1"
    )(inputs)
    x = Penalty()(x)
    outputs = {name: keras.layers.Dense(1, name=name)(x) for name in ("u", "v", "w")}
    return keras.Model(inputs, outputs)


def rich(problem, optimizer):
    """Penalties, outputs with losses of several kinds, and weights everywhere."""
    weights = np.linspace(0, 2, 96, dtype=np.float32)

    def experiment(config):
        def data():
            columns = (problem.x, problem.y, weights)
            data = tf.data.Dataset.from_tensor_slices(columns).batch(config.batch_size)
            return data.map(lambda x, y, w: (x, {"u": y, "v": -y, "w": y + 1}, w))

        return problem.experiment(
            model=rich_model,
            optimizer=optimizer,
            loss={
                "u": keras.losses.MeanSquaredError(),
                "v": distance,
                "w": keras.losses.Huber(reduction=None),
            },
            loss_weights={"u": 1.0, "v": 0.3, "w": 2.0},
            metrics=lambda: {"v": keras.metrics.MeanAbsoluteError(name="error")},
            train_data=data,
        )

    return experiment


def embedding(problem, optimizer):
    """Sparse gradients, with the same rows on several replicas."""
    words = np.random.default_rng(1).integers(0, 7, size=(96, 3))

    def model():
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                layers.Embedding(7, 4),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )

    def experiment(config):
        def data():
            columns = (words.astype(np.int32), problem.y)
            return tf.data.Dataset.from_tensor_slices(columns).batch(config.batch_size)

        return problem.experiment(model=model, optimizer=optimizer, train_data=data)

    return experiment


def plain(problem, optimizer):
    """The small problem as it is."""
    return problem.plain(optimizer)


optimizers = keras.optimizers


@pytest.mark.parametrize(
    ("make", "optimizer", "ways"),
    [
        (
            rich,
            lambda: optimizers.AdamW(0.05, weight_decay=0.1, global_clipnorm=0.5),
            ["two replicas with two micro-batches"],
        ),
        (
            embedding,
            lambda: optimizers.Adam(0.05, global_clipnorm=0.5),
            ["two replicas", "two micro-batches"],
        ),
        (
            plain,
            lambda: optimizers.SGD(0.05, momentum=0.9, clipnorm=0.2),
            ["two replicas", "four replicas"],  # one after the other in a process
        ),
    ],
    ids=["clipped as a whole, with decay", "embedding", "clipped one by one"],
)
def test_however_a_batch_is_divided_training_is_the_same(
    make, optimizer, ways, problem, make_trainer, run, assert_same_run
):
    case = make(problem, optimizer)
    whole = run(make_trainer(case), STEPS)
    assert len(set(whole[0])) == STEPS
    for way in ways:
        trainer = make_trainer(case, *WAYS[way])
        assert trainer.examples_per_step == 16
        assert trainer.replicas == WAYS[way][0]
        assert_same_run(run(trainer, STEPS), whole)


class TwoLosses(keras.losses.Loss):
    def call(self, y, y_pred):
        losses = keras.losses
        return losses.MeanSquaredError()(y, y_pred) + losses.Huber()(y, y_pred)


class Autoencoder(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.decode = keras.layers.Dense(4)

    def call(self, x):
        self.add_loss(keras.losses.MeanSquaredError()(x, self.decode(x)))
        return x


def autoencoding_model():
    return keras.Sequential([keras.Input((4,)), Autoencoder(), keras.layers.Dense(1)])


@pytest.mark.parametrize(
    "fields",
    [
        {"loss": lambda y, y_pred: keras.losses.MeanSquaredError()(y, y_pred)},
        {"loss": TwoLosses()},
        {"model": autoencoding_model},
    ],
    ids=["in a function", "in a loss", "in a layer"],
)
def test_a_loss_of_keras_is_the_mean_wherever_it_is_called(
    fields, problem, make_trainer, run, assert_same_run
):
    case = problem.plain(lambda: optimizers.SGD(0.05), **fields)
    whole = run(make_trainer(case), 2)
    assert_same_run(run(make_trainer(case, 2), 2), whole)


def test_batch_norm_over_all_replicas_is_that_of_the_whole_batch(
    problem, monkeypatch, make_trainer, run, assert_same_run
):
    name = "scale_loss_for_distribution"
    monkeypatch.setattr(keras_loss, name, getattr(keras_loss, name))

    def model():
        layers = keras.layers
        norm = layers.BatchNormalization(synchronized=True)
        dense = layers.Dense(1, kernel_initializer="ones")
        return keras.Sequential([keras.Input((4,)), norm, dense])

    case = problem.plain(lambda: optimizers.SGD(0.05), model=model)
    whole = run(make_trainer(case), 2)
    assert_same_run(run(make_trainer(case, 2), 2), whole)


def test_that_comparison_sees_one_lost_gradient(
    problem, monkeypatch, make_trainer, run, assert_same_run
):
    def lossy_sum(self, gradients, examples, replica, all_reduce):
        if replica == 1:
            gradients = [tf.zeros_like(gradient) for gradient in gradients]
        return whole_sum(self, gradients, examples, replica, all_reduce)

    case = problem.plain(lambda: optimizers.Adam(0.05, global_clipnorm=0.5))
    whole = run(make_trainer(case), steps=2)
    whole_sum = Reduction.sum
    monkeypatch.setattr(Reduction, "sum", lossy_sum)
    ours = run(make_trainer(case, 2), steps=2)
    assert ours[0][0] == pytest.approx(whole[0][0], rel=1e-5)  # before any update
    with pytest.raises(AssertionError):
        assert_same_run(ours, whole)


def test_gradients_in_half_precision_train_nearly_the_same(
    problem, make_trainer, run, assert_same_run
):
    case = problem.plain(lambda: optimizers.SGD(0.05))
    whole = run(make_trainer(case), STEPS)
    ours = run(make_trainer(case, 2, gradient_dtype="bfloat16"), STEPS)
    assert ours[0][0] == pytest.approx(whole[0][0], rel=1e-6)  # losses are not rounded
    assert_same_run(ours, whole, rtol=2e-2, atol=5e-3)
    with pytest.raises(AssertionError):
        assert_same_run(ours, whole)


@pytest.mark.parametrize("way", ["two micro-batches", "two replicas"])
def test_gradients_whose_shape_the_graph_does_not_know_are_summed(
    way, problem, make_trainer, run, assert_same_run
):
    """As of a dense layer over sequences, where the batch size is free."""

    def model():
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((4,)),
                layers.Reshape((4, 1)),
                layers.Dense(3, activation="tanh"),
                layers.Dense(2),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )

    case = problem.plain(lambda: optimizers.SGD(0.05), model=model)
    whole = run(make_trainer(case), 2)
    assert_same_run(run(make_trainer(case, *WAYS[way]), 2), whole)


# Parts of different sizes, or with different weights.


def test_a_mean_is_over_examples_and_not_over_uneven_parts(
    problem, keras_loop, make_trainer, run, assert_same_run
):
    """Batches of 7, 7 and 2 examples, whose labels tell them apart."""

    def data():
        y = problem.y[:16] + np.where(np.arange(16) < 14, 0, 10)[:, None]
        return tf.data.Dataset.from_tensor_slices((problem.x[:16], y)).batch(7)

    parts = list(data().repeat().take(4 * STEPS))
    unions = [
        [tf.concat(column, 0) for column in zip(*parts[i : i + 4], strict=True)]
        for i in range(0, len(parts), 4)
    ]
    experiment = problem.experiment(train_data=data)
    ours = run(make_trainer(lambda config: experiment, 2, 2), STEPS)
    model = problem.model()
    losses = keras_loop(
        model, optimizers.SGD(0.05), keras.losses.MeanSquaredError(), unions
    )
    weights = [v.numpy() for v in model.variables]
    assert_same_run(ours, (losses, {"loss": np.mean(losses)}, weights))


def test_a_weighted_loss_of_one_number_is_what_it_is_without_others(
    problem, make_trainer, run, assert_same_run
):
    def experiment(config):
        data = problem.data().map(lambda x, y: (x, abs(y), abs(y)[:, 0]))
        loss = keras.losses.Dice()
        return problem.experiment(train_data=lambda: data.take(1).repeat(), loss=loss)

    # Both replicas have the same batch, so each has the loss of one process.
    whole = run(make_trainer(experiment), 2)
    assert_same_run(run(make_trainer(experiment, 2), 2), whole)


def weighted_mean(problem, config):
    columns = (problem.x, problem.y, np.linspace(0, 2, 96, dtype=np.float32))
    data = tf.data.Dataset.from_tensor_slices(columns).batch(config.batch_size)
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return problem.experiment(train_data=lambda: data, loss=loss)


def masked_mean(problem, config):
    """One loss a step of a sequence, of which the mask leaves more or fewer."""
    words = np.minimum(np.arange(96 * 4).reshape(96, 4) % 11, 7) * (problem.x > 0)
    data = tf.data.Dataset.from_tensor_slices((words, problem.x[..., None])).batch(
        config.batch_size
    )

    def model():
        return keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(9, 3, mask_zero=True),
                keras.layers.SimpleRNN(3, return_sequences=True),
                keras.layers.Dense(1),
            ]
        )

    return problem.experiment(model=model, train_data=lambda: data)


@pytest.mark.parametrize("way", ["two micro-batches", "two replicas"])
@pytest.mark.parametrize("experiment", [weighted_mean, masked_mean])
def test_a_mean_over_what_weighs_is_one_over_the_whole(
    experiment, way, problem, make_trainer, run, assert_same_run
):
    case = functools.partial(experiment, problem)
    whole = run(make_trainer(case), 2)
    assert_same_run(run(make_trainer(case, *WAYS[way]), 2), whole)


# What is refused.


@pytest.mark.parametrize("way", list(WAYS.values())[1:], ids=list(WAYS)[1:])
def test_a_loss_that_sums_over_its_batch_is_refused(way, problem, make_trainer):
    loss = keras.losses.MeanSquaredError(reduction="sum")
    case = problem.plain(lambda: optimizers.SGD(0.05), loss=loss)
    with pytest.raises(errors.UsageError, match="how a global batch is divided"):
        make_trainer(case, *way)
    make_trainer(case)  # one part is as good as any


def test_more_parts_of_a_cpu_than_there_are_is_refused():
    assert find_devices(None) == ["CPU:0"]
    assert find_devices(3) == ["CPU:0", "CPU:1", "CPU:2"]
    with pytest.raises(errors.UsageError, match="with 4 CPU devices"):
        find_devices(5)
