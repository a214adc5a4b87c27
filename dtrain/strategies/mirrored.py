"""Synchronous training on the devices of one machine.

Heir of the towers of multi-GPU scripts: each device computes the gradient of its own
part of a batch, and all apply the mean. `MirroredStrategy` finds the devices and sums
between them, over NCCL where they are GPUs.
"""

import itertools

import tensorflow as tf

from dtrain import errors
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.experiment import Experiment
from dtrain.runtime.collectives import Group
from dtrain.strategies.replicas import ReplicatedTrainer

# TensorFlow takes more batches from an iterator, in one trace, for a mistake.
_MOST_DEVICES = 32


class _Mirrored(tf.distribute.MirroredStrategy):
    """One whose collectives have names of their own.

    All strategies of a process start at the same number, and a second one with other
    devices would join the first one's group. TensorFlow's tests do the same.
    """

    _runs = itertools.count()

    def __init__(self, devices: list[str]):
        self._collective_key_base = 100_000 * next(self._runs)
        super().__init__(devices)


class MirroredTrainer(ReplicatedTrainer):
    """A Trainer in one process, with a replica a device.

    Args:
        experiment: what to train.
        config: without gaps.
        console: for warnings.

    Raises:
        UsageError: the machine has not as many devices as asked for.
    """

    def __init__(self, experiment: Experiment, config: RunConfig, console: Console):
        devices = find_devices(config.devices_per_task)
        self.description = [f"a replica each on {', '.join(devices)}"]
        group = Group(_Mirrored(devices))
        super().__init__(experiment, config, group, console)


def find_devices(count: int | None) -> list[str]:
    """Returns the GPUs, all or so many; without any, logical devices of the CPU."""
    if (count or 1) > _MOST_DEVICES:
        raise errors.UsageError(
            f"--devices_per_task={count} is more than one process drives. Give at most "
            f"{_MOST_DEVICES}."
        )
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return [f"CPU:{index}" for index in range(_divide_cpu(count or 1))]
    count = count or len(gpus)
    if count > len(gpus):
        raise errors.UsageError(
            f"--devices_per_task={count}, but this process sees {len(gpus)} "
            f"GPU{'s' * (len(gpus) != 1)}. Give at most {len(gpus)}, or hide them with "
            "CUDA_VISIBLE_DEVICES=-1 to train on parts of the CPU."
        )
    return [f"GPU:{index}" for index in range(count)]


def _divide_cpu(count: int) -> int:
    """Divides the CPU into so many logical devices; returns the number.

    Raises:
        UsageError: TensorFlow has been used in this process and cannot any more.
    """
    (cpu,) = tf.config.list_physical_devices("CPU")
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError as error:
        there = len(tf.config.list_logical_devices("CPU"))
        if there < count:
            raise errors.UsageError(
                f"--devices_per_task={count}, but TensorFlow was used in this process "
                f"before, with {there} CPU device{'s' * (there != 1)}. Let training be "
                "the first that uses it: make no tensor or model where a module is "
                "imported."
            ) from error
    return count
