"""What goes through the steps of a packed call."""

import time

import numpy as np
import pytest
import tensorflow as tf

from dtrain.strategies import tally


def values(tensors):
    return [float(value) for value in tensors if value.shape.rank == 0]


def test_metrics_come_first_and_are_as_they_were():
    states = [tf.constant([1.0, 2.0]), tf.constant(3, tf.int64)]
    start = tally.start(states)
    assert tally.metrics(start) == states
    assert values(tally.extras(start)) == [0, 0, 0, 0, 0]


def test_batches_and_updates_are_added_up():
    own = tally.start([tf.constant(1.0)])
    for number in range(3):
        waited, begun = tf.constant(0.25, tf.float64), tf.constant(number % 2, tf.int64)
        own = tally.add(own, [tf.constant(float(number))], waited, begun)
    loss, step = tf.constant(1.5), tf.constant(6, tf.int64)
    own = tally.with_update(own, loss, step)
    own = tally.with_update(own, loss, step, tf.constant(0.0, tf.float64))
    assert values(tally.metrics(own)) == [2]
    assert values(tally.extras(own)) == [0, 0.75, 1, 3, 1]
    packed = np.array([9.0, 8.0, *values(tally.extras(own))])
    assert tally.tail(packed) == (None, 0.75, 1, 3, 1)
    assert values(tally.counts(tf.constant(packed))) == [1, 3, 1]


def test_a_tally_keeps_its_form():
    """As a loop in a graph needs it."""
    start = tally.start([tf.zeros([2])])
    waited, begun = tf.zeros([], tf.float64), tf.zeros([], tf.int64)
    own = tally.add(start, [tf.ones([2])], waited, begun)
    own = tally.with_update(own, tf.zeros([]), tf.zeros([], tf.int64))
    assert [(t.dtype, t.shape) for t in own] == [(t.dtype, t.shape) for t in start]


def test_the_first_step_without_a_number_for_a_loss_is_kept():
    own = tally.start([])
    for step, loss in enumerate([0.5, np.inf, np.nan, 0.5]):
        own = tally.with_update(own, tf.constant(loss), tf.constant(step, tf.int64))
    packed = np.array(values(tally.extras(own)))
    assert tally.tail(packed).bad_step == 1


def comes_after(seconds):
    """Returns an iterator whose element comes so long after it is asked for."""

    def generate():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.001)
        yield 1.0

    spec = tf.TensorSpec([])
    return iter(tf.data.Dataset.from_generator(generate, output_signature=spec))


@pytest.mark.parametrize(
    ("weights", "batch", "least", "most"),
    [(0, 0.1, 0.05, 10), (0.1, 0, 0, 0.05)],
    ids=["batch late", "weights late"],
)
def test_what_counts_is_how_long_a_batch_comes_after_the_weights(
    weights, batch, least, most
):
    @tf.function(autograph=False)
    def measure(first, second):
        value = next(first)
        return tally.seconds_between([value], ({"x": next(second)}, value))

    seconds = float(measure(comes_after(weights), comes_after(batch)))
    assert least <= seconds <= most


def test_batches_of_any_kind_are_waited_for():
    batch = tf.ragged.constant([[1], [2, 3]]), tf.sparse.from_dense(np.eye(2))
    seconds = tally.seconds_between([], batch)
    assert seconds.dtype == tf.float64
    assert float(seconds) >= 0
