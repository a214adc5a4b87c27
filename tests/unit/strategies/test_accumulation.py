"""Several batches in one update, and several updates in one call."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain.strategies import base, packing, tally
from dtrain.strategies import gradients as gradients_lib
from dtrain.strategies.objective import Objective


def make_step(problem, model, **fields):
    optimizer = keras.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)
    experiment = problem.experiment(**fields)
    objective = Objective(experiment, [], problem.y[:1], model(problem.x[:1]))
    counter = tf.Variable(0, dtype=tf.int64)
    return base.Step(model, optimizer, objective, counter), objective


def as_element(batch):
    """What the input layer gives, where no pass begins."""
    return tf.constant(0, tf.int64), batch


def parts_of(problem, sizes):
    """Batches of so many examples each, one after the other."""
    ends = np.cumsum(sizes)
    return [
        as_element((problem.x[end - size : end], problem.y[end - size : end]))
        for size, end in zip(sizes, ends, strict=True)
    ]


@pytest.mark.parametrize("sizes", [[8], [5, 5], [8, 3, 1], [1, 1, 1, 1]], ids=str)
def test_parts_of_any_size_add_up_to_the_whole(sizes, problem):
    metrics = {"metrics": lambda: [keras.metrics.MeanAbsoluteError(name="error")]}
    step, objective = make_step(problem, problem.model(), **metrics)
    parts, zero = parts_of(problem, sizes), tf.constant(0, tf.int64)

    def micro(index, tallies):
        return [step.sums(parts[int(index)], zero, tallies[0], index)]

    start = [tally.start(objective.initial_states())]
    (sums,) = gradients_lib.accumulate(micro, len(sizes), lambda _: step.zeros(), start)
    (element,) = parts_of(problem, [sum(sizes)])
    whole = step.sums(element, zero, start[0])
    assert float(sums.weight) == sum(sizes)
    assert float(sums.loss) == pytest.approx(float(whole.loss), rel=1e-5)
    for ours, theirs in zip(sums.gradients, whole.gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    ours, theirs = map(tally.metrics, (sums.tally, whole.tally))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_replicas_are_accumulated_side_by_side(problem):
    step, _ = make_step(problem, problem.model())
    parts, zero = parts_of(problem, [4, 3, 2, 1]), tf.constant(0, tf.int64)

    def micro(index, tallies):
        pair = parts[2 * int(index) : 2 * int(index) + 2]
        return [
            step.sums(part, zero, own, index)
            for part, own in zip(pair, tallies, strict=True)
        ]

    starts = [tally.start([]), tally.start([])]
    sums = gradients_lib.accumulate(micro, 2, lambda _: step.zeros(), starts)
    assert [float(own.weight) for own in sums] == [4 + 2, 3 + 1]
    for own, indices in zip(sums, ([0, 2], [1, 3]), strict=True):
        losses = [
            float(step.sums(parts[i], zero, tally.start([])).loss) for i in indices
        ]
        assert float(own.loss) == pytest.approx(sum(losses), rel=1e-5)


@pytest.mark.parametrize("times", [1, 3])
def test_a_weight_that_no_part_reaches_has_no_gradient(times, problem):
    inputs = keras.Input((4,))
    used, unused = keras.layers.Dense(1), keras.layers.Dense(1)
    outputs = used(inputs) + 0 * keras.ops.stop_gradient(unused(inputs))
    model = keras.Model(inputs, outputs)
    step, _ = make_step(problem, model)
    batches = map(as_element, problem.batches(times))

    def micro(index, tallies):
        zero = tf.constant(0, tf.int64)
        return [step.sums(next(batches), zero, tallies[0], index)]

    start = [tally.start([])]
    (sums,) = gradients_lib.accumulate(micro, times, lambda _: step.zeros(), start)
    own = {id(weight) for weight in used.weights}
    assert len(model.weights) == 4
    for weight, gradient in zip(model.weights, sums.gradients, strict=True):
        assert (gradient is not None) == (id(weight) in own)


def test_sparse_gradients_are_added_up_as_dense_ones(problem):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Rescaling(0.0, offset=2.0),
            keras.layers.Embedding(5, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    step, _ = make_step(problem, model)
    parts, zero = parts_of(problem, [3, 2]), tf.constant(0, tf.int64)

    def micro(index, tallies):
        return [step.sums(parts[int(index)], zero, tallies[0], index)]

    start = [tally.start([])]
    (sums,) = gradients_lib.accumulate(micro, 2, lambda _: step.zeros(), start)
    whole = step.sums(parts_of(problem, [5])[0], zero, start[0])
    assert isinstance(whole.gradients[0], tf.IndexedSlices)
    expected = tf.convert_to_tensor(whole.gradients[0])
    np.testing.assert_allclose(sums.gradients[0], expected, rtol=1e-4, atol=1e-6)


def test_scaling_keeps_the_kind_of_every_gradient():
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3]), tf.constant([5, 2]))
    half = tf.ones([2], tf.bfloat16)
    dense, sparse, none, narrow = gradients_lib.scale(
        [tf.ones([2]), rows, None, half], tf.constant(3.0)
    )
    assert none is None
    assert narrow.dtype == tf.bfloat16
    assert isinstance(sparse, tf.IndexedSlices) and int(sparse.indices[0]) == 3
    for value in (dense, sparse.values, narrow):
        assert np.all(value.numpy() == 3)


def test_rows_that_are_there_twice_are_merged():
    merged = gradients_lib.merge_rows(
        tf.IndexedSlices(
            tf.constant([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]]),
            tf.constant([3, 0, 3]),
            tf.constant([5, 2]),
        )
    )
    assert list(merged.indices.numpy()) == [3, 0]
    np.testing.assert_array_equal(merged.values, [[101, 202], [10, 20]])


@pytest.mark.parametrize("unroll", [1, 2, 3, 10])
def test_a_packed_call_makes_as_many_steps_as_it_is_asked_for(unroll):
    traces = []

    def step(iterator, metrics):
        traces.append(1)
        number = next(iterator)
        return tf.cast(number, tf.float32), [metrics[0] + number, metrics[1] + 1]

    def start():
        return [tf.zeros([], tf.int64), tf.zeros([], tf.int64)]

    packed = tf.function(packing.pack(step, start, unroll), autograph=False)
    iterator, first = iter(tf.data.Dataset.range(100)), 0
    for num_steps in (1, unroll, 2 * unroll + 1, unroll + 2, 5):
        loss, (total, count) = packed(iterator, tf.constant(num_steps, tf.int64))
        expected = sum(range(first, first + num_steps))
        assert float(loss) == int(total) == expected
        assert int(count) == num_steps
        first += num_steps
    assert len(traces) == unroll + (unroll > 1)
