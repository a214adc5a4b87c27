"""How stale asynchronous updates are.

A worker reads weights, computes a gradient, and writes an update. Meanwhile others
write theirs. How many, tells how far asynchrony goes: of n workers alike, about n - 1.
"""

import keras
import tensorflow as tf


class Staleness:
    """Counts the updates that land between a step's read and its write.

    They are counted beside the largest weight, of which reads and writes are ordered
    with the count: it is read before the weight is, and again, before this update is
    counted, when the weight is written. No two tasks wait for each other for it.

    Args:
        weights: the model's trainable ones, where they are.
        num_bins: updates from `num_bins - 1` on share the last bin.
    """

    def __init__(self, weights: list[keras.Variable], num_bins: int):
        self.num_bins = num_bins
        largest = max(
            range(len(weights)), key=lambda i: weights[i].value.shape.num_elements()
        )
        self.index = largest  # of the weight
        self._weight = weights[largest].value
        with tf.device(self._weight.device):
            self._landed = tf.Variable(0, dtype=tf.int64, name="landed")

    def before_read(self) -> tf.Tensor:
        """Returns how many updates have landed; the weight is to be read after it."""
        return tf.convert_to_tensor(self._landed)

    def after_write(self, before: tf.Tensor, first_op: int) -> tf.Tensor:
        """Counts this step's update.

        Args:
            before: what `before_read` gave.
            first_op: how many operations the graph had before the update's.

        Returns:
            One bin with a 1, of (bins,), float64.
        """
        graph = tf.compat.v1.get_default_graph()
        handle = graph.capture(self._weight.handle)
        writes = [
            op
            for op in graph.get_operations()[first_op:]
            if any(value is handle for value in op.inputs)
        ]
        with tf.control_dependencies(writes):
            others = tf.convert_to_tensor(self._landed) - before
        with tf.control_dependencies([others]):
            self._landed.assign_add(1)
        place = tf.minimum(others, self.num_bins - 1)
        return tf.one_hot(place, self.num_bins, dtype=tf.float64)
