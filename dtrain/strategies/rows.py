"""Tensors as rows, which are laid end to end and taken apart again.

TensorFlow splits a tensor without copying it only where each row takes a multiple of so
many bytes as its kernels want operands aligned to. So what travels in one message does
so in such rows, the last of each tensor filled up with zeros.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

_ROW_BYTES = 64


def lay(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor of a known shape as rows, [number, length] of its dtype."""
    flat = tf.reshape(tensor, [-1])
    length = _ROW_BYTES // flat.dtype.size
    missing = -flat.shape.num_elements() % length
    if missing:
        flat = tf.concat([flat, tf.zeros([missing], flat.dtype)], 0)
    return tf.reshape(flat, [-1, length])


def count(num_bytes: int) -> int:
    """Returns how many rows so many bytes take."""
    return -(-num_bytes // _ROW_BYTES)


def take(rows: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Returns the tensor of which these are all rows."""
    size = math.prod(shape)
    if size < rows.shape.num_elements():
        rows = tf.reshape(rows, [-1])[:size]
    return tf.reshape(rows, shape)
