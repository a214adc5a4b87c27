"""The replicas that compute one global batch, and sums over them."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Group:
    """All replicas of a run, seen from one of its processes.

    Args:
        strategy: which replicas this process has, and how to reach the others.
        process: which process this is, 0-based.
        num_processes: how many there are, with equally many replicas each.

    Attributes:
        size: replicas in all.
        devices: of this process's replicas.
        first: number of the first of them.
        process: as given.
        num_processes: as given.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        process: int = 0,
        num_processes: int = 1,
    ):
        self.size = strategy.num_replicas_in_sync
        self.devices = strategy.extended.worker_devices
        self.first = process * len(self.devices)
        self.process = process
        self.num_processes = num_processes
        self._strategy = strategy
        self._local = strategy.experimental_distribute_values_from_function(
            lambda context: context.replica_id_in_sync_group - self.first
        )

    def each(self, function: Callable[[int], Any]) -> list[Any]:
        """Calls a function on each replica of this process, within a `tf.function`.

        Args:
            function: gets the replica's number in this process.

        Returns:
            What it returned, by replica.
        """
        results: list[Any] = [None] * len(self.devices)

        @tf.autograph.experimental.do_not_convert
        def call(index):
            results[index] = function(index)

        self._strategy.run(call, args=(self._local,))
        return results

    def sum_over_processes(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the sum of what every process gives, within a `tf.function`."""
        return self.each(
            lambda k: all_reduce(value if k == 0 else tf.zeros_like(value))
        )[0]

    def host(self) -> str:
        """Returns the CPU beside this process's first replica."""
        spec = tf.DeviceSpec.from_string(self.devices[0])
        return spec.replace(device_type="CPU", device_index=0).to_string()


def all_reduce(value: tf.Tensor | tf.IndexedSlices) -> tf.Tensor | tf.IndexedSlices:
    """Returns the sum over all replicas; to be called on each of them."""
    if not isinstance(value, tf.IndexedSlices):
        value = tf.identity(value)  # made here, so that it has this replica's device
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
