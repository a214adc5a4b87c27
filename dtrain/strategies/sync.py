"""Synchronous training on several machines.

Heir of `SyncReplicasOptimizer`: all replicas compute the gradient of one global batch,
and all apply its mean, so N machines do what one does with the whole batch.
`MultiWorkerMirroredStrategy` connects them and sums in a ring, or over NCCL between
GPUs. There are no ps tasks: each process holds the whole model.

The chief alone runs the outer loop. Before each packed call it tells the others by an
order what comes, and everybody does the same; so decisions that depend on a clock, a
signal or a loss are made once.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.experiment import Experiment
from dtrain.runtime.meeting import LEAVE, Meeting
from dtrain.strategies.replicas import ReplicatedTrainer, Work

# What an experiment may make its model, optimizer or data of.
_ALIKE = (
    "experiment",
    "train_steps",
    "batch_size",
    "optimizer",
    "learning_rate",
    "learning_rate_schedule",
    "warmup_steps",
    "decay_steps",
    "decay_rate",
    "decay_boundaries",
    "clip_norm",
    "weight_decay",
    "mixed_precision",
    "accumulate_steps",
    "gradient_dtype",
    "seed",
    "epochs",
    "data_sharding",
)


class SyncTrainer(ReplicatedTrainer):
    """A Trainer on the chief; on the other tasks, what follows it.

    Args:
        experiment: what to train.
        config: without gaps.
        meeting: all tasks of the run, met.
        console: for warnings.

    Raises:
        UsageError: the tasks were not started alike.
    """

    def __init__(
        self,
        experiment: Experiment,
        config: RunConfig,
        meeting: Meeting,
        console: Console,
    ):
        self._meeting = meeting
        super().__init__(experiment, config, meeting.group, console)
        group = meeting.group
        self.description = [
            f"{group.size} replicas compute each batch together; gradients travel as "
            f"{config.gradient_dtype}"
        ]
        meeting.compare(
            {f"--{name}": getattr(config, name) for name in _ALIKE}
            | {
                "batches of size": self.batch_size,
                "the optimizer": type(self.optimizer).__name__,
                "--devices_per_task": len(group.devices),
                "weights of the shapes": [list(v.shape) for v in self._variables()[0]],
                "TensorFlow": tf.__version__,
            }
        )
        self._traced()  # before anybody waits for anybody

    def stop_profiling(self) -> dict[str, bytes]:
        # Of the chief alone: TensorFlow's profiler crashes the others, which learn in
        # threads of gRPC where a collective's peers are (2.21; docs/design.md).
        (profile,) = super().stop_profiling().values()
        return {str(self._meeting.tasks[0]): profile}

    def follow(self) -> int:
        """Does what the chief orders; returns the status that it leaves with."""
        while True:
            code, number = self._meeting.hear()
            if code == LEAVE:
                return number
            super()._together(Work(code), number)

    def _call(self, function: Callable, *args) -> Any:
        return self._meeting.act(function, *args)

    def _together(self, work: Work, number: int = 0) -> Any:
        self._meeting.order(work, number)
        return super()._together(work, number)
