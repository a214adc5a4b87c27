"""Sums over replicas: few messages, and nothing lost in them."""

import numpy as np
import pytest
import tensorflow as tf

from dtrain.strategies import reduction
from dtrain.strategies.reduction import Reduction


def plus(a, b):
    """What an all-reduce makes of two messages: rows of a sparse one stay apart."""
    if isinstance(a, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([a.values, b.values], 0),
            tf.concat([a.indices, b.indices], 0),
            a.dense_shape,
        )
    assert a.dtype == b.dtype and a.shape == b.shape
    return a + b


def reduce(gradients, counts, dtype="float32"):
    """Sums over replicas without any: first sees what all send, then answers.

    Returns:
        By replica the results, and the messages of replica 0.
    """
    own = Reduction(dtype, len(counts))
    counts = [tf.constant(count, tf.float32) for count in counts]

    def ask(replica, answer):
        return own.sum(gradients[replica], counts[replica], replica, answer)

    sent = []
    for replica in range(len(counts)):
        messages = []

        def send(message, messages=messages):
            messages.append(message)
            return message

        ask(replica, send)
        sent.append(messages)
    sums = sent[0]
    for messages in sent[1:]:
        sums = [plus(a, b) for a, b in zip(sums, messages, strict=True)]
    results = []
    for replica in range(len(counts)):
        answers = iter(sums)
        results.append(ask(replica, lambda _, answers=answers: next(answers)))
        assert next(answers, None) is None
    return results, sent[0]


def random(*shape, seed=0, dtype=np.float32):
    values = np.random.default_rng([seed, *shape]).normal(size=shape)
    return tf.constant(values.astype(dtype))


SHAPES = [(3, 4), (), (5,), (2, 2, 2)]


def by_replica(count, shapes=SHAPES, **options):
    return [[random(*s, seed=k, **options) for s in shapes] for k in range(count)]


def test_gradients_and_counts_are_summed_in_one_message():
    gradients = by_replica(3)
    results, messages = reduce(gradients, [8, 8, 5])
    assert len(messages) == 1
    for sums, total in results:
        assert float(total) == 21
        for i, value in enumerate(sums):
            expected = np.sum([own[i].numpy() for own in gradients], 0)
            np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)
            assert value.shape == SHAPES[i]


def test_all_replicas_get_the_same_bits():
    results, _ = reduce(by_replica(4), [8] * 4, "bfloat16")
    for sums, _ in results[1:]:
        for value, first in zip(sums, results[0][0], strict=True):
            np.testing.assert_array_equal(value, first)


@pytest.mark.parametrize(
    ("limit", "sizes"),
    # Of 12, 1, 5 and 8 numbers, from the last to the first: a row of 16 each. One more
    # carries weights.
    [(10_000, [5]), (4 * 13, [3, 2]), (4 * 8, [2, 2, 1]), (1, [2, 1, 1, 1])],
)
def test_messages_hold_as_much_as_a_bucket_from_the_last_weights_on(
    limit, sizes, monkeypatch
):
    monkeypatch.setattr(reduction, "_BUCKET_BYTES", limit)
    gradients = by_replica(2)
    results, messages = reduce(gradients, [3, 4])
    assert [message.shape.as_list() for message in messages] == [[n, 16] for n in sizes]
    for sums, total in results:
        assert float(total) == 7
        for i, value in enumerate(sums):
            np.testing.assert_allclose(value, gradients[0][i] + gradients[1][i])


def test_many_small_gradients_take_one_message():
    shapes = [(10,)] * 200
    _, messages = reduce(by_replica(2, shapes), [1, 1])
    assert len(messages) == 1


def test_large_gradients_take_a_message_for_32_mib():
    gradients = [tf.zeros([2**20])] * 20  # of 4 MiB each
    messages = []

    def send(message):
        messages.append(message.shape.num_elements())
        return message

    Reduction("float32", 1).sum(gradients, tf.constant(1.0), 0, send)
    assert messages == [8 * 2**20 + 16, 8 * 2**20, 4 * 2**20]


@pytest.mark.parametrize(
    ("dtype", "own", "wire", "tolerance"),
    [
        ("float32", np.float32, tf.float32, 1e-6),
        ("float32", np.float64, tf.float64, 1e-14),
        ("bfloat16", np.float32, tf.bfloat16, 1e-2),
        ("bfloat16", np.float64, tf.bfloat16, 1e-2),
    ],
)
def test_what_travels_has_the_chosen_dtype_and_what_comes_out_its_own(
    dtype, own, wire, tolerance
):
    gradients = by_replica(2, dtype=own)
    results, (message,) = reduce(gradients, [3, 300], dtype)
    assert message.dtype == wire
    for sums, total in results:
        assert float(total) == 303
        for i, value in enumerate(sums):
            assert value.dtype == own
            expected = gradients[0][i] + gradients[1][i]
            np.testing.assert_allclose(value, expected, tolerance, tolerance)


def test_half_precision_of_a_weight_is_kept_in_a_wider_message():
    gradients = [[tf.cast(g, tf.bfloat16) for g in own] for own in by_replica(2)]
    results, (message,) = reduce(gradients, [1, 1])
    assert message.dtype == tf.float32
    assert {value.dtype for value in results[0][0]} == {tf.bfloat16}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "weights",
    [
        [1, 1],
        [255, 1],
        [256, 255],
        [257, 0],
        [70_000, 69_999],
        [0, 0],
        [2**24 - 1, 0],
        [0.1, 0],
    ],
    ids=str,
)
def test_weights_are_exact(weights, dtype):
    results, _ = reduce(by_replica(2), weights, dtype)
    assert [float(total) for _, total in results] == [np.float32(sum(weights))] * 2
    assert results[0][1].dtype == tf.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_of_many_replicas_are_exact(dtype):
    weights = [100 + k for k in range(40)]
    results, _ = reduce(by_replica(40, [(2,)]), weights, dtype)
    assert float(results[0][1]) == sum(weights)


def test_a_weight_without_gradient_stays_without():
    gradients = [[None, *own, None] for own in by_replica(2)]
    results, messages = reduce(gradients, [1, 1])
    assert len(messages) == 1
    sums, _ = results[0]
    assert sums[0] is None and sums[-1] is None
    np.testing.assert_allclose(sums[1], gradients[0][1] + gradients[1][1], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sparse_gradient_has_a_message_of_its_own(dtype):
    def rows(seed, *indices):
        values = random(len(indices), 3, seed=seed)
        return tf.IndexedSlices(values, tf.constant(indices), tf.constant([9, 3]))

    dense = by_replica(2)
    sparse = [rows(0, 1, 4), rows(1, 4, 8, 4)]
    gradients = [
        [own[0], rows, *own[1:]] for own, rows in zip(dense, sparse, strict=True)
    ]
    results, messages = reduce(gradients, [2, 3], dtype)
    assert len(messages) == 2
    expected = sum(tf.convert_to_tensor(rows) for rows in sparse)
    for sums, total in results:
        assert float(total) == 5
        assert isinstance(sums[1], tf.IndexedSlices)
        np.testing.assert_allclose(tf.convert_to_tensor(sums[1]), expected, rtol=1e-6)
        np.testing.assert_allclose(sums[0], dense[0][0] + dense[1][0], 1e-2, 1e-2)


def test_counts_have_a_message_even_if_all_gradients_are_sparse_or_none():
    slices = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([2]), tf.constant([9, 3]))
    results, messages = reduce([[slices, None]] * 2, [7, 8])
    assert len(messages) == 2
    assert [float(total) for _, total in results] == [15, 15]
