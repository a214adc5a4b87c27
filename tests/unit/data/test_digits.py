import gzip

import numpy as np
import tensorflow as tf

from dtrain.data import digits
from dtrain.input.context import InputContext


def file_rows():
    with gzip.open(digits.PATH, "rt") as file:
        return np.loadtxt(file, delimiter=",", dtype=np.int64)


def rows(batches):
    """Returns the examples as they stand in the file, (n, 65)."""
    return np.concatenate(
        [
            np.column_stack([np.rint(x * 16), y]).astype(np.int64)
            for x, y in batches.as_numpy_iterator()
        ]
    )


def in_order(table):
    return table[np.lexsort(table.T)]


def test_train_and_test_part_are_the_whole_file():
    train = rows(
        digits.train_batches(InputContext(), batch_size=digits.NUM_TRAIN, seed=0).take(
            1
        )
    )
    test = rows(digits.eval_batches(InputContext(), batch_size=32))
    assert (len(train), len(test)) == (1437, 360)
    np.testing.assert_array_equal(
        in_order(np.concatenate([train, test])), in_order(file_rows())
    )


def test_the_split_is_always_the_same_and_not_in_file_order():
    first = digits._is_test()
    np.testing.assert_array_equal(first, digits._is_test())
    np.testing.assert_array_equal(
        rows(digits.eval_batches(InputContext(), batch_size=50)), file_rows()[first]
    )
    # About a fifth of every part of the file, not its end.
    assert all(50 < part.sum() < 100 for part in np.array_split(first, 5))


def test_three_workers_read_every_training_digit_once():
    shards = [
        rows(digits.train_batches(InputContext(3, i), batch_size=479, seed=0).take(1))
        for i in range(3)
    ]
    np.testing.assert_array_equal(
        in_order(np.concatenate(shards)), in_order(file_rows()[~digits._is_test()])
    )


def test_replicas_share_the_batches_of_one_process():
    def batches(ctx, size):
        data = digits.train_batches(ctx, batch_size=size, seed=7)
        return list(data.take(60))  # more than an epoch

    whole = batches(InputContext(), 30)
    shards = [batches(InputContext(3, i, 3), 10) for i in range(3)]
    for k, (x, y) in enumerate(whole):
        parts = [shard[k] for shard in shards]
        union = [np.concatenate(column) for column in zip(*parts, strict=True)]
        ours, theirs = np.column_stack(union), np.column_stack([x, y])
        np.testing.assert_array_equal(in_order(ours), in_order(theirs))


def test_shapes_types_and_range():
    train = digits.train_batches(InputContext(), batch_size=32, seed=0)
    assert train.element_spec == (
        tf.TensorSpec((32, 64), tf.float32),
        tf.TensorSpec((32,), tf.int64),
    )
    batches = list(digits.eval_batches(InputContext(), batch_size=32))
    assert [len(y) for _, y in batches] == [32] * 11 + [8]
    pixels = np.concatenate([x for x, _ in batches])
    assert (pixels.min(), pixels.max()) == (0, 1)


def test_no_example_is_in_the_graph_that_a_chief_sends():
    traced = tf.function(
        lambda index: digits.train_batches(
            InputContext(2, index), batch_size=32, seed=0
        ),
        input_signature=[tf.TensorSpec((), tf.int64)],
    ).get_concrete_function()
    assert not traced.captured_inputs
    # The training pixels are 368 kB; the choice of lines is 2 kB.
    assert traced.graph.as_graph_def().ByteSize() < 50_000
