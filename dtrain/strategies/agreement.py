"""Whether replicas hold the same, and how far apart they are if they do not."""

import hashlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def as_sent(variable: tf.Variable) -> tf.Tensor:
    """Returns a variable's value in a dtype that can be summed over replicas."""
    value = tf.convert_to_tensor(variable)
    return value if value.dtype.is_floating else tf.cast(value, tf.int64)


def overwrite(
    variables: Sequence[Sequence[tf.Variable]], values: Sequence[Sequence[tf.Tensor]]
) -> None:
    """Gives variables new values, both by replica."""
    for own, new in zip(variables, values, strict=True):
        for variable, value in zip(own, new, strict=True):
            variable.assign(tf.cast(value, variable.dtype))


def read(variables: Sequence[tf.Variable]) -> tuple[np.ndarray, list[bytes]]:
    """Returns all that is floating in a row, float64, and the rest as bytes."""
    values = [(v.dtype.is_floating, v.numpy()) for v in variables]
    floating = [np.asarray(v, np.float64).ravel() for is_float, v in values if is_float]
    others = [v.tobytes() for is_float, v in values if not is_float]
    return np.concatenate(floating), others


def distance(one: tuple, other: tuple) -> float:
    """Returns how far apart values are, relative to their size: 1 at most.

    What is not floating, such as counts, has to be the same: it is not rounded.
    """
    (a, counts), (b, expected) = one, other
    size = np.linalg.norm(b)
    distance = np.linalg.norm(a - b) / size if size else np.inf
    if counts != expected or not np.isfinite(distance):
        return 1.0
    return min(float(distance), 1.0)


def digest(variables: Sequence[tf.Variable]) -> int:
    """Returns 63 bits that tell different values apart."""
    digest = hashlib.blake2b(digest_size=8)
    for variable in variables:
        digest.update(variable.numpy().tobytes())
    return int.from_bytes(digest.digest(), "little") >> 1
