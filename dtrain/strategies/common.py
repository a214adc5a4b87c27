"""What a Trainer does the same way wherever its variables are."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from dtrain.config import RunConfig
from dtrain.experiment import Experiment
from dtrain.strategies import base, parts, pipelines
from dtrain.strategies.evaluation import Evaluation
from dtrain.strategies.loop_size import LoopSize
from dtrain.strategies.totals import Totals


class CommonTrainer:
    """The part of the Trainer protocol that does not depend on the strategy.

    Args:
        experiment: what to train.
        config: without gaps.
        element_spec: of the training batches.
        model: with its variables where the strategy wants them.
        optimizer: built on the model's trainable variables.
        counter: the global step, an int64 scalar.
        num_workers: how many packed calls run at a time.
        replica: which of the replicas of a global batch the model is.
    """

    def __init__(
        self,
        experiment: Experiment,
        config: RunConfig,
        element_spec: Any,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        counter: tf.Variable,
        num_workers: int = 1,
        replica: int = 0,
    ):
        self.global_step = 0
        self.batch_size = pipelines.batch_size(element_spec, config.batch_size)
        self.examples_per_step = self.batch_size * config.accumulate_steps
        self.checkpoint = parts.make_checkpoint(model, optimizer, counter)
        self._optimizer = optimizer
        self._counter = counter
        self._keep_rate = parts.rate_keeper(optimizer)
        self._loop_size = LoopSize(config.steps_per_loop, num_workers)
        self._objective = parts.make_objective(experiment, model, element_spec)
        sharing = self.replicas if self.is_synchronous else 1
        self._objective.check_mean(sharing * config.accumulate_steps)
        self.totals = Totals(self._objective)
        self._accumulate_steps = config.accumulate_steps
        self._step = base.Step(
            model,
            optimizer,
            self._objective,
            counter,
            config.accumulate_steps,
            replica,
            config.seed,
        )
        self._evaluation = Evaluation(experiment, model, self._objective)

    @property
    def steps_per_loop(self) -> int:
        return self._loop_size.steps

    def evaluate(self, is_over: Callable[[], bool]) -> dict[str, float] | None:
        return self._evaluation.run(is_over)

    def learning_rate(self) -> float:
        return parts.rate_at(self._optimizer, self.global_step)

    def before_save(self) -> None:
        self._optimizer.iterations.assign(self.global_step)

    def after_restore(self) -> None:
        self._keep_rate()
        self.global_step = int(self._counter.numpy())

    def _pack(self, run: Callable = lambda step: step()) -> Callable:
        """Returns `(iterator, num_steps) -> totals`: many steps, to be traced.

        Args:
            run: calls a step as the strategy wants it called.
        """

        def step(iterator, metrics):
            return run(lambda: self._step.run(lambda: next(iterator), metrics))

        unroll = max(1, base.UNROLL // self._accumulate_steps)
        packed = base.pack(step, self._objective.initial_states, unroll)
        return lambda *args: self._objective.pack(*packed(*args))

    def _note(self, totals: Any, num_steps: int) -> None:
        """Takes in a packed call that is done."""
        self.totals.add(totals, num_steps)
        self.global_step += num_steps
