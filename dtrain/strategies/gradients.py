"""Gradients of replicas and micro-batches, added up and averaged."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf


class Sums(NamedTuple):
    """What some batches add up to, of which a weighted mean can be made.

    Attributes:
        batches: how many, but for those that are not a replica's own, a float32 scalar.
        weight: of all of them, a float32 scalar (`Objective.weight`).
        loss: the batches' losses, each times its weight.
        gradients: likewise, one a trainable weight; `None` where the loss does not
            depend on it.
        tally: after these batches; see `tally.py`.
    """

    batches: tf.Tensor
    weight: tf.Tensor
    loss: tf.Tensor
    gradients: list
    tally: list[tf.Tensor]


def accumulate(
    micro: Callable[[tf.Tensor, list[list]], list[Sums]],
    times: int,
    zeros: Callable[[int], list[tf.Tensor]],
    tallies: list[list],
) -> list[Sums]:
    """Adds up micro-batches, traced once however many there are.

    Args:
        micro: `(index, tallies) -> sums`, both by local replica.
        times: how often to call it, at least once.
        zeros: returns a local replica's gradient of nothing.
        tallies: before, by local replica.

    Returns:
        Sums by local replica, with dense gradients.
    """
    if times == 1:
        return micro(tf.zeros([], tf.int64), tallies)
    unreached: set[int] = set()  # weights that the loss does not depend on

    def body(index, before):
        after = []
        parts = micro(index, [sums.tally for sums in before])
        for old, new in zip(before, parts, strict=True):
            unreached.update(i for i, g in enumerate(new.gradients) if g is None)
            gradients = [
                a if b is None else a + tf.convert_to_tensor(b)
                for a, b in zip(old.gradients, new.gradients, strict=True)
            ]
            sums = [a + b for a, b in zip(old[:3], new[:3], strict=True)]
            after.append(Sums(*sums, gradients, new.tally))
        return index + 1, after

    start = [
        Sums(*[tf.zeros([])] * 3, zeros(k), list(tally))
        for k, tally in enumerate(tallies)
    ]
    _, result = tf.while_loop(
        lambda index, _: index < times, body, (tf.zeros([], tf.int64), start)
    )
    return [
        sums._replace(
            gradients=[
                None if i in unreached else g for i, g in enumerate(sums.gradients)
            ]
        )
        for sums in result
    ]


def scale(gradients: Sequence, factor: tf.Tensor) -> list:
    """Multiplies gradients, dense or sparse or `None`, by a scalar.

    Times 0 is 0, of what is no number, too.
    """
    return [
        gradient
        if gradient is None
        else tf.IndexedSlices(
            _times(gradient.values, factor),
            gradient.indices,
            gradient.dense_shape,
        )
        if isinstance(gradient, tf.IndexedSlices)
        else _times(gradient, factor)
        for gradient in gradients
    ]


def _times(tensor: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    return tf.math.multiply_no_nan(tensor, tf.cast(factor, tensor.dtype))


def divide(gradients: Sequence, by: tf.Tensor) -> list:
    """Divides gradients by a scalar; by 0, they become 0."""
    return scale(gradients, tf.math.divide_no_nan(1.0, by))


def merge_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns a sparse gradient with each row once.

    Norms and squares of parts are not those of their sum: with a row twice, clipping
    and Adam would depend on how examples are dealt out.
    """
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
