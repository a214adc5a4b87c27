"""How stale asynchronous updates are.

A worker reads weights, computes a gradient, and writes an update. Meanwhile others
write theirs. How many, tells how far asynchrony goes: of n workers alike, about n - 1.
"""

import keras
import numpy as np
import tensorflow as tf


class Staleness:
    """Counts the updates that land between a step's read and its write.

    They are counted beside the largest weight, of which reads and writes are ordered
    with the count: it is read before the weight is, and again, before this update is
    counted, when the weight is written. All of it happens on the task that holds the
    weight, so that no message is sent for it. Every update is counted, and one in so
    many asks how many others there were.

    Args:
        weights: the model's trainable ones, where they are.
        num_bins: updates from `num_bins - 1` on share the last bin.
        every: of the steps that are traced one after the other, each which one asks.
    """

    def __init__(self, weights: list[keras.Variable], num_bins: int, every: int):
        sizes = [weight.value.shape.num_elements() for weight in weights]
        self.index = sizes.index(max(sizes))  # of the weight
        self._weight = weights[self.index].value
        self._num_bins = num_bins
        self._every = every
        self._num_traced = 0
        self._device = self._weight.device
        with tf.device(self._device):
            self._landed = tf.Variable(0, dtype=tf.int64, name="landed")
            self._bins = tf.Variable(tf.zeros([num_bins], tf.int64), name="staleness")

    def before_read(self) -> tf.Tensor | None:
        """Returns how many updates have landed; the weight is to be read after it.

        Returns:
            `None` in a step that does not ask.
        """
        self._num_traced += 1
        if self._num_traced % self._every != 1 % self._every:
            return None
        with tf.device(self._device):
            return tf.identity(self._landed)

    def after_write(self, before: tf.Tensor | None, first_op: int) -> None:
        """Counts this step's update, and how many others landed meanwhile.

        Args:
            before: what `before_read` gave.
            first_op: how many operations the graph had before the update's.
        """
        graph = tf.compat.v1.get_default_graph()
        handle = graph.capture(self._weight.handle)
        writes = [
            op
            for op in graph.get_operations()[first_op:]
            if any(value is handle for value in op.inputs)
        ]
        with tf.device(self._device):
            after = writes
            if before is not None:
                with tf.control_dependencies(writes):
                    now = tf.identity(self._landed)
                after = [now]
            with tf.control_dependencies(after):
                self._landed.assign_add(1)
            if before is None:
                return
            place = tf.minimum(now - before, self._num_bins - 1)
            one = tf.IndexedSlices(tf.ones([], tf.int64), place)
            self._bins.scatter_add(one)

    def read(self) -> np.ndarray:
        """Returns how many updates that asked were how stale: (bins,), int64."""
        return self._bins.numpy()
