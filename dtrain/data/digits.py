"""Handwritten digits, 8 x 8: 1,437 to train on and 360 to test on."""

import os

import numpy as np
import tensorflow as tf

from dtrain.data import pipeline
from dtrain.input.context import InputContext

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits.csv.gz")
NUM_TRAIN = 1437
NUM_TEST = 360
NUM_PIXELS = 64
NUM_CLASSES = 10

# In file order the train and test writers differ, which costs an MLP four points
# of accuracy. So one fixed shuffle splits the file; this seed is a part of the data.
_SPLIT_SEED = 0


def train_batches(ctx: InputContext, *, batch_size: int, seed: int) -> tf.data.Dataset:
    """Returns endless shuffled batches of the training digits.

    Args:
        ctx: which shard to read.
        batch_size: examples in a batch.
        seed: of the order.

    Returns:
        Batches of `x`, float32 (batch_size, 64) in [0, 1], and `y`, int64
        (batch_size,), the digit.
    """
    return pipeline.train_batches(
        _examples(test=False),
        ctx,
        count=NUM_TRAIN,
        batch_size=batch_size,
        seed=seed,
    )


def eval_batches(ctx: InputContext, *, batch_size: int) -> tf.data.Dataset:
    """Returns batches with every test digit once, the last one smaller.

    Args:
        ctx: which shard to read.
        batch_size: examples in a batch.

    Returns:
        Batches of `x`, float32 (batch_size, 64) in [0, 1], and `y`, int64
        (batch_size,), the digit.
    """
    return pipeline.eval_batches(_examples(test=True), ctx, batch_size=batch_size)


def _examples(test: bool) -> tf.data.Dataset:
    """Returns one part of the file, an `(x, y)` a line, in the file's order."""
    # Which lines, not what is in them: this is all that a graph carries.
    wanted = tf.constant(_is_test() == test)
    lines = tf.data.TextLineDataset(PATH, compression_type="GZIP").enumerate()
    return lines.filter(lambda i, _: wanted[i]).map(lambda _, line: _parse(line))


def _is_test() -> np.ndarray:
    """Returns bool (1797,): which lines of the file are for testing."""
    order = np.random.default_rng(_SPLIT_SEED).permutation(NUM_TRAIN + NUM_TEST)
    is_test = np.zeros(len(order), bool)
    is_test[order[NUM_TRAIN:]] = True
    return is_test


def _parse(line: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    fields = tf.io.decode_csv(line, [[0]] * (NUM_PIXELS + 1))
    pixels = tf.cast(tf.stack(fields[:-1]), tf.float32) / 16.0
    return pixels, tf.cast(fields[-1], tf.int64)
