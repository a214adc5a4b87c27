"""The Trainer protocol: what a strategy is to the session.

The outer loop decides when (checkpoint, evaluate, summarise, stop); a Trainer, what.
"""

from collections.abc import Callable
from typing import Any, Protocol

import keras
import tensorflow as tf

from dtrain.strategies.loss_scale import LossScale
from dtrain.strategies.staleness import Staleness
from dtrain.strategies.totals import Totals


class Trainer(Protocol):
    """What a strategy gives to the outer loop.

    Attributes:
        global_step: updates that are known to be done.
        totals: loss and metrics of all steps that are known to be done.
        is_synchronous: no step is ever under way between two calls of `train`, so
            that a stop costs nothing.
        replicas: replicas that compute the same step of training.
        batch_size: examples in a batch of one replica.
        examples_per_step: examples that one update sees, over all replicas and
            micro-batches.
        optimizer: that of the model which is trained.
        checkpoint: model, optimizer and global step; one layout for all strategies.
        checkpoint_options: how to save and restore it.
        description: lines for the start banner.
        batch_spec: of the batches that the model is trained on.
        metric_names: of what is measured beside the loss.
        worker_steps: steps that each worker has done in this run; empty if there
            is one process.
        is_over: the data has ended, after `--epochs`: no step is left to do.
        staleness: counts how stale updates are; `None` where none can be.
        loss_scale: of what computes in float16; `None` if nothing does.
        passes: how many passes over the data have begun, over all runs; `None` if they
            cannot be counted.
        num_steps: the global step at which `--epochs` will end; `None` if nobody knows.
    """

    global_step: int
    totals: Totals
    is_synchronous: bool
    replicas: int
    batch_size: int
    examples_per_step: int
    optimizer: keras.optimizers.Optimizer
    checkpoint: tf.train.Checkpoint
    checkpoint_options: tf.train.CheckpointOptions
    description: list[str]
    batch_spec: Any
    metric_names: list[str]
    worker_steps: list[int]
    is_over: bool
    staleness: Staleness | None
    loss_scale: LossScale | None
    passes: int | None
    num_steps: int | None

    def choose_loop(self, remaining: int) -> int:
        """Returns how many steps to ask for in one call of `train`.

        Args:
            remaining: steps up to the next one at which nothing may be under way.
        """

    def train(self, num_steps: int) -> None:
        """Advances by exactly `num_steps`, or fewer if the data ends.

        Some of them may still be under way.
        """

    def wait(self) -> None:
        """Returns once every step that was asked for is done."""

    def evaluate(self, is_over: Callable[[], bool]) -> dict[str, float] | None:
        """Runs over every evaluation example exactly once; needs `wait` before.

        Args:
            is_over: asked between batches; true ends the evaluation.

        Returns:
            "loss", every metric, and "examples"; `None` without evaluation data, or
            if it was ended.
        """

    def learning_rate(self, step: int | None = None) -> float:
        """Returns the rate of a step; by default of the next one."""

    def copy_model(self) -> keras.Model:
        """Returns a model in this process with the weights of the one that is trained.

        Needs `wait` before.
        """

    def start_profiling(self) -> None:
        """Begins to record what tasks do; needs `wait` before."""

    def stop_profiling(self) -> dict[str, bytes]:
        """Ends it; returns profiles, `XSpace` messages, by the task that each is of."""

    def find_bad_weight(self) -> str | None:
        """Returns a variable of the model that holds what is no number.

        Needs `wait` before.

        Returns:
            Its name; `None` if there is none.
        """

    def before_save(self) -> None:
        """Brings the variables that only checkpoints hold up to date."""

    def after_restore(self) -> None:
        """Takes over the global step that a checkpoint brought."""
