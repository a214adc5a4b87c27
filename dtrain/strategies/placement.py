"""Which ps holds which variable: by size, slots beside what they belong to.

`ParameterServerStrategy` deals variables out in turn, whatever their size, and
overrides `tf.device`. A variable creator that is entered before the strategy's
scope is asked after it, and has the last word.
"""

import contextlib
import math
from collections.abc import Iterator

import tensorflow as tf


class PlacementBySize:
    """Gives each new variable to the ps that holds the fewest bytes so far.

    Args:
        num_ps: how many ps tasks there are.
    """

    def __init__(self, num_ps: int):
        self._variables = [0] * num_ps
        self._bytes = [0] * num_ps

    @contextlib.contextmanager
    def scope(self, strategy: tf.distribute.Strategy) -> Iterator[None]:
        """Enters the strategy's scope with this placement in force."""
        with tf.variable_creator_scope(self._create), strategy.scope():
            yield

    def describe(self) -> list[str]:
        """Returns one line a ps: how many variables and bytes it holds."""
        return [
            f"ps:{index} holds {count} variable{'s' * (count != 1)}, {_size(size)}"
            for index, (count, size) in enumerate(
                zip(self._variables, self._bytes, strict=True)
            )
        ]

    def _create(self, next_creator, **kwargs):
        if kwargs.get("colocate_with") is not None:
            variable = next_creator(**kwargs)
            # The device string names the task: /job:ps/replica:0/task:1/...
            task = tf.DeviceSpec.from_string(variable.device).task
        else:
            task = self._bytes.index(min(self._bytes))
            with tf.device(f"/job:ps/task:{task}/device:CPU:0"):
                variable = next_creator(**kwargs)
        self._variables[task] += 1
        self._bytes[task] += math.prod(variable.shape) * variable.dtype.size
        return variable


def _size(count: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.1f} {unit}" if unit != "bytes" else f"{count} bytes"
        count /= 1024
    return f"{count:.1f} GiB"
