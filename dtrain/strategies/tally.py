"""What goes through the steps of a packed call, and is added up on the way.

A list of tensors: the metrics' states; and then the seconds that steps waited for
input, the passes over the data that their batches began, the batches themselves, and
the updates made of them.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_EXTRAS = 4


def start(metrics: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the tally of no step.

    Args:
        metrics: the metrics' states before any batch.
    """
    return [*metrics, *(tf.zeros([], tf.float64) for _ in range(_EXTRAS))]


def metrics(tally: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the metrics' states."""
    return list(tally[:-_EXTRAS])


def extras(tally: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns seconds, passes, batches and updates."""
    return tally[-_EXTRAS:]


def add(tally: list, metrics: list, waited: tf.Tensor, begun: tf.Tensor) -> list:
    """Returns the tally after one more batch.

    Args:
        tally: before.
        metrics: the metrics' new states.
        waited: seconds that the step waited for the batch.
        begun: passes that begin with it.
    """
    seconds, passes, batches, updates = extras(tally)
    passes += tf.cast(begun, tf.float64)
    return [*metrics, seconds + waited, passes, batches + 1.0, updates]


def add_wait(tally: list, waited: tf.Tensor) -> list[tf.Tensor]:
    """Returns the tally after one more wait, of so many seconds."""
    seconds, *others = extras(tally)
    return [*metrics(tally), seconds + waited, *others]


def with_update(tally: list, updates: tf.Tensor | float = 1.0) -> list[tf.Tensor]:
    """Returns the tally after one more update."""
    return [*tally[:-1], tally[-1] + updates]


def seconds_between(first: Sequence[tf.Tensor], second: Any) -> tf.Tensor:
    """Returns for how long some tensors had to wait for others, a float64 scalar.

    A step needs its weights and its batch. As long as the batch is there when the
    weights are, nothing waits for it.

    Args:
        first: tensors.
        second: a structure of tensors.
    """
    with tf.control_dependencies(first):
        ready = tf.timestamp()
    with tf.control_dependencies(tf.nest.flatten(second, expand_composites=True)):
        came = tf.timestamp()
    return tf.maximum(came - ready, 0.0)


def counts(totals: tf.Tensor) -> list[tf.Tensor]:
    """Returns passes, batches and updates of packed totals, int64 scalars."""
    return tf.unstack(tf.cast(totals[1 - _EXTRAS :], tf.int64), _EXTRAS - 1)


def tail(totals: Any) -> tuple[float, int, int, int]:
    """Returns `extras` from what `Objective.pack` makes of a tally."""
    seconds, passes, batches, updates = totals[-_EXTRAS:]
    return float(seconds), int(passes), int(batches), int(updates)
