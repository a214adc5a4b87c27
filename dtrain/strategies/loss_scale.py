"""The loss scale without which gradients in float16 would vanish.

float16 has no numbers between 0 and 6e-8. So the loss is multiplied by a scale before
gradients are taken, and they are divided by it. Where that is too large, gradients
overflow: the update is left out and the scale halved; after many good updates it
doubles. ("Mixed Precision Training", Micikevicius et al., 2018; the numbers are those
of Keras' `LossScaleOptimizer`.)

Whether an update is good is asked of the gradients that all replicas have summed. So
all answer alike: replicas that each looked at their own would apply different updates,
or wait for each other for ever.
"""

from collections.abc import Sequence

import tensorflow as tf

_INITIAL = 2.0**15
_GROWTH_STEPS = 2000


class LossScale(tf.Module):
    """A scale that follows the gradients.

    Args:
        initial: the first scale.
        growth_steps: good updates in a row after which it doubles.
    """

    def __init__(self, initial: float = _INITIAL, growth_steps: int = _GROWTH_STEPS):
        super().__init__()
        self.scale = tf.Variable(initial, name="scale", trainable=False)
        self.good = tf.Variable(0, dtype=tf.int64, name="good", trainable=False)
        self.skipped = tf.Variable(0, dtype=tf.int64, name="skipped", trainable=False)
        self._growth_steps = growth_steps

    def read(self) -> tf.Tensor:
        """Returns the scale, a float32 scalar."""
        return tf.convert_to_tensor(self.scale)

    def note(self, is_good: tf.Tensor) -> None:
        """Takes in whether an update's gradients were all numbers, a bool scalar."""
        good, scale = tf.identity(self.good) + 1, self.read()
        grows = good >= self._growth_steps
        self.good.assign(tf.where(is_good & ~grows, good, 0))
        larger = tf.where(grows, tf.minimum(scale * 2.0, 2.0**127), scale)
        self.scale.assign(tf.where(is_good, larger, tf.maximum(scale / 2.0, 1.0)))
        self.skipped.assign_add(tf.cast(~is_good, tf.int64))


def are_finite(tensors: Sequence) -> tf.Tensor:
    """Returns whether all numbers of tensors are, a bool scalar; `None` counts as so.

    Args:
        tensors: dense, `IndexedSlices` or `None`.
    """
    values = [t.values if isinstance(t, tf.IndexedSlices) else t for t in tensors]
    checks = [tf.reduce_all(tf.math.is_finite(v)) for v in values if v is not None]
    return tf.reduce_all(tf.stack(checks))
