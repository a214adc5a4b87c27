"""Whether replicas hold the same, how they come to, and how far apart they may be."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dtrain import errors
from dtrain.console import Console
from dtrain.runtime.collectives import Group, all_reduce

# Values of replicas that are farther apart, relatively, differ by more than rounding.
_ROUNDING = 1e-2
_PER_UNIT = 10**12  # a distance, as a whole number


class Agreement:
    """Has all replicas hold the same values.

    All processes call the same methods in the same order.

    Args:
        group: all replicas of the run.
        call: calls a traced function in which all replicas take part.
        variables: what is to be the same on each, by local replica.
        changed: returns what each replica's steps change for itself, in the same way;
            known once they are traced.
        console: for warnings.
    """

    def __init__(
        self,
        group: Group,
        call: Callable[..., Any],
        variables: Sequence[Sequence[tf.Variable]],
        changed: Callable[[], Sequence[Sequence[tf.Variable]]],
        console: Console,
    ):
        self._group = group
        self._call = call
        self._variables = variables
        self._changed = changed
        self._console = console
        self._has_warned = False

    def share(self) -> None:
        """Gives every replica the first one's values."""
        _overwrite(self._variables, self._call(self._share_values))

    def average(self, has_data: np.ndarray) -> None:
        """Averages over the replicas what each changes for itself.

        What is counted in integers is the first replica's.

        Args:
            has_data: bool (local replicas,), false for one that has trained on zeros.
        """
        changed = self._changed()
        if changed[0]:
            mine = tf.constant(has_data, tf.float32)
            _overwrite(changed, self._call(self._average_values, mine))

    def check(self, step: int) -> None:
        """Sees that all replicas hold the same, down to the last bit.

        Machines of different kinds may round differently where an optimizer
        multiplies matrices. Then all go on from the first replica's values.

        Raises:
            TrainingFailed: they differ by more than rounding.
        """
        digests = self.gather([_digest(own) for own in self._variables]).ravel()
        if len(set(digests)) == 1:
            return
        before = [_read(own) for own in self._variables]
        self.share()
        first = _read(self._variables[0])
        parts = self.gather([int(_distance(b, first) * _PER_UNIT) for b in before])
        worst = int(parts.argmax())
        distance = parts.ravel()[worst] / _PER_UNIT
        if not distance < _ROUNDING:
            raise errors.TrainingFailed(
                f"At step {step} replica {worst} of {self._group.size} holds other "
                f"values than replica 0 (relative distance {distance:.1e}). All do the "
                "same arithmetic on the same sums, unless a random or time-dependent "
                "part of the model or optimizer is each replica's own, or machines "
                "differ. Give it a seed, or use machines of one kind."
            )
        if self._group.process == 0 and not self._has_warned:
            self._has_warned = True
            self._console.line(
                f"Warning: at step {step} replica {worst} had rounded differently from "
                f"replica 0 (relative distance {distance:.1e}), as machines of another "
                "kind may. All go on from replica 0's values, now and whenever a "
                "checkpoint or an evaluation comes."
            )

    def gather(self, own: Sequence[int]) -> np.ndarray:
        """Returns what every process has: int64, (processes, len(own))."""
        return self._call(self._gather, tf.constant(own, tf.int64)).numpy()

    @tf.function(autograph=False)
    def _share_values(self) -> list[list[tf.Tensor]]:
        """Returns the first replica's value of every variable, by local replica."""
        return self._group.each(
            lambda k: [self._share_value(k, v) for v in self._variables[k]]
        )

    def _share_value(self, k: int, variable: tf.Variable) -> tf.Tensor:
        value = _as_sent(variable)
        is_first = self._group.first + k == 0
        return all_reduce(value if is_first else tf.zeros_like(value))

    @tf.function(autograph=False)
    def _average_values(self, has_data: tf.Tensor) -> list[list[tf.Tensor]]:
        """Returns the averages, by local replica."""
        changed = self._changed()

        def average(k, variable, count):
            if variable.dtype.is_floating:
                value = _as_sent(variable)
                own = tf.math.multiply_no_nan(value, tf.cast(has_data[k], value.dtype))
                mean = all_reduce(own) / tf.cast(count, value.dtype)
                return tf.where(count > 0, mean, value)
            return self._share_value(k, variable)

        def average_all(k):
            count = all_reduce(has_data[k])
            return [average(k, variable, count) for variable in changed[k]]

        return self._group.each(average_all)

    @tf.function(autograph=False)
    def _gather(self, own: tf.Tensor) -> tf.Tensor:
        group = self._group
        place = tf.one_hot(group.process, group.num_processes, dtype=tf.int64)
        return group.sum_over_processes(place[:, tf.newaxis] * own)


def _as_sent(variable: tf.Variable) -> tf.Tensor:
    """Returns a variable's value in a dtype that can be summed over replicas."""
    value = tf.convert_to_tensor(variable)
    return value if value.dtype.is_floating else tf.cast(value, tf.int64)


def _overwrite(
    variables: Sequence[Sequence[tf.Variable]], values: Sequence[Sequence[tf.Tensor]]
) -> None:
    """Gives variables new values, both by replica."""
    for own, new in zip(variables, values, strict=True):
        for variable, value in zip(own, new, strict=True):
            variable.assign(tf.cast(value, variable.dtype))


def _read(variables: Sequence[tf.Variable]) -> tuple[np.ndarray, list[bytes]]:
    """Returns all that is floating in a row, float64, and the rest as bytes."""
    values = [(v.dtype.is_floating, v.numpy()) for v in variables]
    floating = [np.asarray(v, np.float64).ravel() for is_float, v in values if is_float]
    others = [v.tobytes() for is_float, v in values if not is_float]
    return np.concatenate(floating), others


def _distance(one: tuple, other: tuple) -> float:
    """Returns how far apart values are, relative to their size: 1 at most.

    What is not floating, such as counts, has to be the same: it is not rounded.
    """
    (a, counts), (b, expected) = one, other
    size = np.linalg.norm(b)
    distance = np.linalg.norm(a - b) / size if size else np.inf
    if counts != expected or not np.isfinite(distance):
        return 1.0
    return min(float(distance), 1.0)


def _digest(variables: Sequence[tf.Variable]) -> int:
    """Returns 63 bits that tell different values apart."""
    digest = hashlib.blake2b(digest_size=8)
    for variable in variables:
        digest.update(variable.numpy().tobytes())
    return int.from_bytes(digest.digest(), "little") >> 1
