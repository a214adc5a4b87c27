"""What a Trainer does the same way wherever its variables are."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.config import RunConfig
from dtrain.experiment import Experiment
from dtrain.input.feed import Outline
from dtrain.input.share import START, Place
from dtrain.runtime import profiling
from dtrain.strategies import base, packing, parts, pipelines
from dtrain.strategies import tally as tally_lib
from dtrain.strategies.evaluation import Evaluation
from dtrain.strategies.loop_size import CALL_SECONDS, LoopSize
from dtrain.strategies.messages import Packed
from dtrain.strategies.staleness import Staleness
from dtrain.strategies.totals import Totals


class CommonTrainer:
    """The part of the Trainer protocol that does not depend on the strategy.

    Args:
        experiment: what to train.
        config: without gaps.
        outline: of the training data.
        num_pipelines: how many read it together.
        model: with its variables where the strategy wants them.
        optimizer: built on the model's trainable variables.
        counter: the global step, an int64 scalar.
        num_calls: how many packed calls run at a time.
        call_seconds: how long one is to take.
        replica: which of the replicas of a global batch the model is.
        staleness: counts how stale updates are, where workers are asynchronous.
        messages: between a step and its variables, if they are not on one device.
    """

    def __init__(
        self,
        experiment: Experiment,
        config: RunConfig,
        outline: Outline,
        num_pipelines: int,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        counter: tf.Variable,
        num_calls: int = 1,
        call_seconds: float = CALL_SECONDS,
        replica: int = 0,
        staleness: Staleness | None = None,
        messages: Packed | None = None,
    ):
        self.global_step = 0
        self.is_over = False
        self.batch_size = pipelines.batch_size(outline.spec, config.batch_size)
        sharing = self.replicas if self.is_synchronous else 1
        self._batches_per_step = sharing * config.accumulate_steps
        self.examples_per_step = self.batch_size * self._batches_per_step
        self._outline = outline
        self._num_pipelines = num_pipelines
        self._may_end = config.epochs is not None
        self._epochs = config.epochs
        self._place = START  # in the data
        self._begun = 0  # by each pipeline, or by all together
        with tf.device(counter.device):
            self._place_variable = tf.Variable(START, dtype=tf.int64, name="data")
            self.loss_scale = parts.make_loss_scale(config)
        self.checkpoint = parts.make_checkpoint(
            model, optimizer, counter, self._place_variable, self.loss_scale
        )
        self._experiment = experiment
        self._precision = config.mixed_precision
        self.optimizer = optimizer
        self._counter = counter
        self._loop_size = LoopSize(config.steps_per_loop, num_calls, call_seconds)
        self._objective = parts.make_objective(experiment, model, outline.spec)
        self._objective.check_mean(self._batches_per_step)
        self.staleness = staleness
        self.totals = Totals(self._objective, num_pipelines)
        self._accumulate_steps = config.accumulate_steps
        self._step = base.Step(
            model,
            optimizer,
            self._objective,
            counter,
            config.accumulate_steps,
            replica,
            config.seed,
            self.loss_scale,
            staleness,
            messages,
        )
        self._weights = [v for v in model.variables if v.value.dtype.is_floating]
        self._evaluation = Evaluation(
            experiment, model, self._objective, config.batch_size
        )

    @property
    def steps_per_loop(self) -> int:
        """Steps that are worth a call."""
        return self._loop_size.steps

    def choose_loop(self, remaining: int) -> int:
        return min(self.steps_per_loop, remaining)

    @property
    def passes(self) -> int | None:
        if not self._outline.has_passes:
            return None
        begun = max(self._place.begun, 1)
        return begun if self._epochs is None else min(begun, self._epochs)

    @property
    def num_steps(self) -> int | None:
        if self._outline.num_batches is None:
            return None
        return -(-self._outline.num_batches // self._batches_per_step)

    def evaluate(self, is_over: Callable[[], bool]) -> dict[str, float] | None:
        return self._evaluation.run(is_over)

    def learning_rate(self, step: int | None = None) -> float:
        step = self.global_step if step is None else step
        return parts.rate_at(self.optimizer, step)

    @property
    def batch_spec(self) -> Any:
        """Of the batches that the model is trained on."""
        return self._outline.spec

    @property
    def metric_names(self) -> list[str]:
        """Names of what is measured beside the loss."""
        return self._objective.metric_names

    def copy_model(self) -> keras.Model:
        self.before_save()  # where replicas agree on what each has for itself
        model = parts.build_model(self._experiment, self._outline.spec, self._precision)
        trained = self.checkpoint.model.variables
        for new, old in zip(model.variables, trained, strict=True):
            new.assign(old.numpy())
        return model

    def start_profiling(self) -> None:
        profiling.start()

    def stop_profiling(self) -> dict[str, bytes]:
        return {"chief:0": profiling.stop()}

    def find_bad_weight(self) -> str | None:
        checks = zip(self._weights, self._check_weights().numpy(), strict=True)
        return next((weight.path for weight, is_good in checks if not is_good), None)

    @tf.function(autograph=False)
    def _check_weights(self) -> tf.Tensor:
        """Looks at each of them where it is, so that none of them travels."""
        checks = []
        for weight in self._weights:
            with tf.device(weight.value.device):
                checks.append(tf.reduce_all(tf.math.is_finite(weight.value)))
        return tf.stack(checks)

    def before_save(self) -> None:
        self.optimizer.iterations.assign(self.global_step)
        if self.is_over:
            self._place = self._place._replace(complete=self._epochs)
        self._place_variable.assign(self._place)

    def after_restore(self) -> None:
        self.global_step = int(self._counter.numpy())
        self._set_place(self._place_variable.numpy())

    def _set_place(self, values: Sequence) -> None:
        """Goes on from a place in the data."""
        place = Place(*map(int, values))
        if self._outline.starts_again:
            place = place._replace(begun=place.complete)
        self._place = place
        self._begun = place.begun * self._counters()

    def _pack(self, within: Callable = lambda step: step()) -> Callable:
        """Returns `(iterator, num_steps) -> totals`: many steps, to be traced.

        Args:
            within: calls a step as the strategy wants it called.
        """

        def step(iterator, tally):
            return self._step.run(iterator, tally, self._may_end, within)

        unroll = max(1, packing.UNROLL // self._accumulate_steps)
        packed = packing.pack(step, self._start_tally, unroll)
        return lambda *args: self._objective.pack(*packed(*args))

    def _start_tally(self) -> list[tf.Tensor]:
        return tally_lib.start(self._objective.initial_states())

    def _note(
        self,
        totals: np.ndarray,
        updates: int,
        batches: int,
        begun: int,
        waits: Sequence[tuple[int, float, float]],
        bad_step: int | None,
    ) -> None:
        """Takes in a packed call that is done.

        Args:
            totals: as `Objective.pack` makes them.
            updates: that it made.
            batches: that it took.
            begun: passes over the data that its batches began.
            waits: (pipeline, seconds that steps waited for it, seconds of the call).
            bad_step: its first step whose loss was no number; `None` if all were.
        """
        self.totals.add(totals, updates, waits, bad_step)
        self.global_step += updates
        self._begun += begun
        passes = -(-self._begun // self._counters())
        self._place = Place(
            self._place.batches + batches,
            passes,
            max(passes - 1, 0),
        )

    def _counters(self) -> int:
        """Returns how often a pass is counted."""
        return 1 if self._outline.counts_passes else self._num_pipelines
