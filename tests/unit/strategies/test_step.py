"""One step of training: what a hand-written Keras loop does, to the last digit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.strategies import gradients as gradients_lib
from dtrain.strategies import tally
from dtrain.strategies.base import Step
from dtrain.strategies.objective import Objective

STEPS = 6


class Run:
    """Steps of dtrain's on a model, eagerly: what is traced elsewhere is the same."""

    def __init__(self, problem, model, optimizer, start=0, options=(), **fields):
        self.model, self.optimizer = model, optimizer
        self.counter = tf.Variable(start, dtype=tf.int64)
        optimizer.build(model.trainable_variables)
        experiment = problem.experiment(**fields)
        x, y = problem.batches(1)[0]
        self.objective = Objective(experiment, [], y, model(x))
        self.step = Step(
            model, optimizer, self.objective, self.counter, **dict(options)
        )

    def __call__(self, batches, micro=1):
        """Makes steps of `micro` batches each; returns their losses."""
        batches = list(batches)
        following = map(as_element, batches)
        return [
            float(self.step.run(following, tally.start([]))[0])
            for _ in range(len(batches) // micro)
        ]


def as_element(batch):
    """What the input layer gives, where no pass begins."""
    return tf.constant(0, tf.int64), batch


def slots_of(optimizer):
    return [v for v in optimizer.variables if v is not optimizer.iterations]


def assert_same_variables(ours, theirs, rtol=1e-5, atol=1e-6):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(
            a.numpy(), b.numpy(), rtol=rtol, atol=atol, err_msg=a.path
        )


def test_every_optimizer_does_what_it_does_in_keras(
    make_optimizer, problem, keras_loop
):
    batches = problem.batches(STEPS)
    theirs, reference = problem.model(), make_optimizer()
    losses = keras_loop(theirs, reference, keras.losses.MeanSquaredError(), batches)
    run = Run(problem, problem.model(), make_optimizer())
    assert run(batches) == pytest.approx(losses, rel=1e-5)
    assert_same_variables(run.model.variables, theirs.variables)
    assert_same_variables(slots_of(run.optimizer), slots_of(reference))
    assert int(run.counter) == STEPS


def test_schedules_follow_the_counter_and_not_the_optimizers_own(problem):
    """As on a worker, whose optimizer's count says nothing."""
    decay = keras.optimizers.schedules.PiecewiseConstantDecay([9], [0.0, 0.1])
    run = Run(problem, problem.model(), keras.optimizers.SGD(decay), start=8)
    batches = problem.batches(3)
    moved = []
    for batch in batches:
        before = run.model.variables[0].numpy()
        run([batch])
        moved.append(bool(np.any(run.model.variables[0].numpy() != before)))
    # Steps 8 and 9 use schedule(8) and schedule(9): the boundary is still below.
    assert moved == [False, False, True]
    assert int(run.optimizer.iterations) == 0
    assert int(run.counter) == 11


def test_regularizers_and_what_the_model_adds_are_trained_on(problem, keras_loop):
    class Penalty(keras.layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
            return x

    def model():
        init = keras.initializers.GlorotUniform(seed=1)
        return keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(6, kernel_initializer=init, kernel_regularizer="l2"),
                Penalty(),
                keras.layers.Dense(
                    1, kernel_initializer=init, activity_regularizer="l1"
                ),
            ]
        )

    batches = problem.batches(STEPS)
    theirs = model()
    losses = keras_loop(
        theirs, keras.optimizers.SGD(0.05), keras.losses.MeanSquaredError(), batches
    )
    run = Run(problem, model(), keras.optimizers.SGD(0.05))
    assert run(batches) == pytest.approx(losses, rel=1e-5)
    assert_same_variables(run.model.variables, theirs.variables)


def test_constraints_are_applied(problem, keras_loop):
    def model():
        init = keras.initializers.GlorotUniform(seed=1)
        limit = keras.constraints.UnitNorm()
        return keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(6, kernel_initializer=init, kernel_constraint=limit),
                keras.layers.Dense(1, kernel_initializer=init),
            ]
        )

    batches = problem.batches(STEPS)
    theirs = model()
    keras_loop(
        theirs, keras.optimizers.SGD(0.05), keras.losses.MeanSquaredError(), batches
    )
    run = Run(problem, model(), keras.optimizers.SGD(0.05))
    run(batches)
    assert_same_variables(run.model.variables, theirs.variables)
    norms = np.linalg.norm(run.model.layers[0].kernel.numpy(), axis=0)
    np.testing.assert_allclose(norms, 1, rtol=1e-5)


def test_moving_averages_of_batch_norm_are_keras_own(problem, keras_loop):
    def model():
        init = keras.initializers.GlorotUniform(seed=1)
        return keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(6, kernel_initializer=init),
                keras.layers.BatchNormalization(momentum=0.8),
                keras.layers.Dense(1, kernel_initializer=init),
            ]
        )

    batches = problem.batches(STEPS)
    theirs = model()
    keras_loop(
        theirs, keras.optimizers.SGD(0.05), keras.losses.MeanSquaredError(), batches
    )
    run = Run(problem, model(), keras.optimizers.SGD(0.05))
    run(batches)
    assert_same_variables(run.model.variables, theirs.variables)
    average = run.model.layers[1].moving_mean.numpy()
    assert np.all(average != 0)


def test_an_integer_that_the_model_counts_is_kept(problem):
    class Counter(keras.layers.Layer):
        def build(self, shape):
            self.calls = self.add_weight(dtype="int32", trainable=False, name="calls")
            self.seen = self.add_weight(dtype="bool", trainable=False, name="seen")

        def call(self, x):
            self.calls.assign_add(1)
            self.seen.assign(True)
            return x

    model = keras.Sequential([keras.Input((4,)), Counter(), keras.layers.Dense(1)])
    run = Run(problem, model, keras.optimizers.SGD(0.05))
    before = int(model.layers[0].calls)
    model.layers[0].seen.assign(False)
    run(problem.batches(3))
    assert int(model.layers[0].calls) == before + 3
    assert model.layers[0].seen.numpy()


class Masks(keras.layers.Layer):
    """Two dropouts of the same rate, whose masks it gives out as the output."""

    def __init__(self, same_layer=False):
        super().__init__()
        self.first = keras.layers.Dropout(0.5, seed=1)
        self.second = self.first if same_layer else keras.layers.Dropout(0.5, seed=2)
        self.masks = []

    def build(self, shape):
        self.weight = self.add_weight(shape=(), initializer="ones")

    def call(self, x, training=False):
        ones = keras.ops.ones((8, 16))
        masks = [layer(ones, training=training) for layer in (self.first, self.second)]
        if training:
            self.masks.append([np.asarray(mask) for mask in masks])
        return x[:, :1] * self.weight


@pytest.mark.parametrize("same_layer", [False, True], ids=["two layers", "one layer"])
def test_dropout_masks_differ_from_step_to_step_and_from_call_to_call(
    same_layer, problem
):
    layer = Masks(same_layer)
    model = keras.Sequential([keras.Input((4,)), layer])
    layer.masks.clear()
    Run(problem, model, keras.optimizers.SGD(0.05))(problem.batches(4))
    masks = [mask for pair in layer.masks for mask in pair]
    assert len(masks) == 8
    assert len({mask.tobytes() for mask in masks}) == 8
    assert {0.0, 2.0} == set(np.unique(masks))


def test_a_resumed_run_goes_on_with_the_same_masks(problem):
    def masks(start, count):
        layer = Masks()
        model = keras.Sequential([keras.Input((4,)), layer])
        run = Run(problem, model, keras.optimizers.SGD(0.05), start=start)
        layer.masks.clear()
        run(problem.batches(count))
        return layer.masks

    np.testing.assert_array_equal(masks(0, 4)[2:], masks(2, 2))


def masks_of(problem, steps=2, **options):
    """The masks of a run's first steps, by step and micro-batch."""
    layer = Masks()
    model = keras.Sequential([keras.Input((4,)), layer])
    run = Run(problem, model, keras.optimizers.SGD(0.05), options=options)
    layer.masks.clear()
    micro = options.get("accumulate_steps", 1)
    run(problem.batches(steps * micro), micro)
    assert len(layer.masks) == steps * micro
    return layer.masks


def test_dropout_masks_differ_between_replicas(problem):
    by_replica = [masks_of(problem, replica=k) for k in range(5)]
    masks = [m for steps in by_replica for pair in steps for m in pair]
    assert len({mask.tobytes() for mask in masks}) == 5 * 2 * 2
    np.testing.assert_array_equal(by_replica[0], masks_of(problem))
    np.testing.assert_array_equal(by_replica[3], masks_of(problem, replica=3))


def test_dropout_masks_differ_between_micro_batches(problem):
    masks = [m for pair in masks_of(problem, 3, accumulate_steps=4) for m in pair]
    assert len({mask.tobytes() for mask in masks}) == 3 * 4 * 2


@pytest.mark.parametrize("steps", [1, 2], ids=["whole", "accumulated"])
def test_a_loss_scale_changes_nothing(steps, problem):
    def train(**options):
        optimizer = keras.optimizers.SGD(0.05, clipnorm=0.5, **options)
        accumulate = {"accumulate_steps": steps}
        run = Run(problem, problem.model(), optimizer, options=accumulate)
        return run(problem.batches(STEPS), steps), run.model

    (losses, model), (expected, plain) = train(loss_scale_factor=1024.0), train()
    assert losses == pytest.approx(expected, rel=1e-6)
    assert_same_variables(model.variables, plain.variables)


def test_the_sums_of_a_batch_are_its_means_times_its_examples(problem):
    batch = x, y = tuple(column[:5] for column in problem.batches(1)[0])
    run = Run(problem, problem.model(), keras.optimizers.SGD(0.05))
    step = tf.constant(0, tf.int64)
    start = as_element(batch), step, tally.start([])
    loss, _, gradients, _ = run.step.differentiate(*start)
    sums = run.step.sums(*start)
    assert float(sums.weight) == 5
    assert float(sums.loss) == pytest.approx(5 * float(loss))
    assert float(loss) == pytest.approx(float(tf.reduce_mean((run.model(x) - y) ** 2)))
    for total, mean in zip(sums.gradients, gradients, strict=True):
        np.testing.assert_allclose(total, 5 * mean, rtol=1e-6)
    for part, mean in zip(
        gradients_lib.divide(sums.gradients, sums.weight), gradients, strict=True
    ):
        np.testing.assert_allclose(part, mean, rtol=1e-6)


def test_a_batch_that_is_not_the_replica_s_own_counts_as_none(problem):
    batch = problem.batches(1)[0]
    metrics = {"metrics": lambda: [keras.metrics.MeanAbsoluteError(name="error")]}
    run = Run(problem, problem.model(), keras.optimizers.SGD(0.05), **metrics)
    before = tally.start([tf.constant(2.0), tf.constant(3.0)])
    begins, step = tf.constant(1, tf.int64), tf.constant(0, tf.int64)
    element = begins, batch
    sums = run.step.sums(element, step, before, is_own=tf.constant(False))
    assert float(sums.weight) == float(sums.loss) == 0
    assert not any(np.any(gradient) for gradient in sums.gradients)
    numbers = [float(value) for value in sums.tally if value.shape.rank == 0]
    assert numbers == [2, 3, 0, 0, 0, 0, 0]
    own = run.step.sums(element, step, before, is_own=tf.constant(True))
    assert float(own.weight) == 8
    assert float(own.tally[1]) == 3 + 8
    assert float(tally.extras(own.tally)[3]) == 1
    # Nothing over nothing is nothing.
    assert not any(np.any(g) for g in gradients_lib.divide(sums.gradients, sums.weight))


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_weight_that_the_loss_does_not_reach_stays_as_it_is(problem):
    inputs = keras.Input((4,))
    used, unused = keras.layers.Dense(1), keras.layers.Dense(1)
    model = keras.Model(
        inputs, used(inputs) + 0 * keras.ops.stop_gradient(unused(inputs))
    )
    before = unused.kernel.numpy(), used.kernel.numpy()
    Run(problem, model, keras.optimizers.SGD(0.05))(problem.batches(2))
    np.testing.assert_array_equal(unused.kernel.numpy(), before[0])
    assert np.any(used.kernel.numpy() != before[1])


def test_a_loss_that_reaches_no_weight_fails(problem):
    run = Run(
        problem,
        problem.model(),
        keras.optimizers.SGD(0.05),
        loss=lambda y, y_pred: tf.reduce_sum(y, -1),
    )
    with pytest.raises(errors.TrainingFailed, match="none of the model's trainable"):
        run(problem.batches(1))


def test_an_embedding_is_trained_by_rows(problem, keras_loop):
    def model():
        init = keras.initializers.RandomUniform(seed=1)
        return keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Rescaling(0.0, offset=2.0),
                keras.layers.Embedding(5, 3, embeddings_initializer=init),
                keras.layers.Flatten(),
                keras.layers.Dense(1, kernel_initializer=init),
            ]
        )

    batches = problem.batches(STEPS)
    for make in (
        lambda: keras.optimizers.Adagrad(0.1),
        lambda: keras.optimizers.Adam(0.1, global_clipnorm=0.5),
    ):
        theirs = model()
        keras_loop(theirs, make(), keras.losses.MeanSquaredError(), batches)
        run = Run(problem, model(), make())
        run(batches)
        assert_same_variables(run.model.variables, theirs.variables)


def test_half_precision_trains_as_in_keras(problem, keras_loop):
    def model():
        init = keras.initializers.GlorotUniform(seed=1)
        return keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(6, kernel_initializer=init, dtype="mixed_bfloat16"),
                keras.layers.Dense(1, kernel_initializer=init),
            ]
        )

    batches = problem.batches(STEPS)
    theirs = model()
    keras_loop(
        theirs, keras.optimizers.SGD(0.05), keras.losses.MeanSquaredError(), batches
    )
    run = Run(problem, model(), keras.optimizers.SGD(0.05))
    run(batches)
    assert_same_variables(run.model.variables, theirs.variables, rtol=1e-2, atol=1e-3)
    assert {v.dtype for v in run.model.variables} == {"float32"}
