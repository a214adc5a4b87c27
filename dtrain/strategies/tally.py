"""What goes through the steps of a packed call, and is added up on the way.

A list of tensors: the metrics' states; the first step whose loss was no number; the
seconds that steps waited for input; the passes over the data that their batches began;
the batches themselves; and the updates made of them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

_EXTRAS = 5


class Tail(NamedTuple):
    """What a packed call tells beside loss and metrics.

    Attributes:
        bad_step: the first step whose loss was no number, 0-based; `None` if all were.
        waited: seconds that its steps waited for input.
        begun: passes over the data that its batches began.
        batches: that it took.
        updates: that it made.
    """

    bad_step: int | None
    waited: float
    begun: int
    batches: int
    updates: int


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
    """Returns 1 + the first bad step, seconds, passes, batches and updates."""
    return tally[-_EXTRAS:]


def add(tally: list, metrics: list, waited: tf.Tensor, begun: tf.Tensor) -> list:
    """Returns the tally after one more batch.

    Args:
        tally: before.
        metrics: the metrics' new states.
        waited: seconds that the step waited for the batch.
        begun: passes that begin with it.
    """
    bad, seconds, passes, batches, updates = extras(tally)
    passes += tf.cast(begun, tf.float64)
    return [*metrics, bad, seconds + waited, passes, batches + 1.0, updates]


def add_wait(tally: list, waited: tf.Tensor) -> list[tf.Tensor]:
    """Returns the tally after one more wait, of so many seconds."""
    bad, seconds, *others = extras(tally)
    return [*metrics(tally), bad, seconds + waited, *others]


def with_update(
    tally: list,
    loss: tf.Tensor,
    step: tf.Tensor,
    updates: tf.Tensor | float = 1.0,
) -> list[tf.Tensor]:
    """Returns the tally after one more update.

    Args:
        tally: before.
        loss: of the step.
        step: its number, an int64 scalar.
        updates: 0 if there was none after all.
    """
    bad, seconds, passes, batches, before = extras(tally)
    number = tf.cast(step + 1, tf.float64)
    own = tf.where(tf.math.is_finite(loss), tf.zeros_like(number), number)
    bad = tf.where(bad > 0, bad, own)
    return [*metrics(tally), bad, seconds, passes, batches, before + updates]


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
    return tf.unstack(tf.cast(totals[-3:], tf.int64), 3)


def tail(totals: np.ndarray) -> Tail:
    """Returns the numbers at the end of what `Objective.pack` makes of a tally."""
    bad, waited, begun, batches, updates = totals[-_EXTRAS:]
    return Tail(bad_step(bad), float(waited), int(begun), int(batches), int(updates))


def bad_step(bad: float) -> int | None:
    """Returns the step that a tally's number for a bad step means."""
    return int(bad) - 1 if bad else None
