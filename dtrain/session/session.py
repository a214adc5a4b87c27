"""The outer loop of training, on the chief: restore, train, call back, stop.

Heir of `MonitoredTrainingSession`. It knows a `Trainer`, never a strategy.
"""

import importlib.metadata
import numbers
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from dtrain import errors, experiment, version
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.launch.history import History
from dtrain.launch.signals import Signals
from dtrain.session import weights
from dtrain.session.callbacks.base import Callback
from dtrain.session.checkpoints import Checkpoints
from dtrain.session.stopwatch import Stopwatch
from dtrain.strategies.totals import Window
from dtrain.strategies.trainer import Trainer


class Session:
    """One command's training, as callbacks see it.

    Args:
        trainer: what does the steps.
        config: without gaps; `model_dir` is absolute.
        callbacks: called in this order.
        console: for lines.
        signals: noted ones stop the run after a checkpoint.
        history: of the run; this command's own if not given.
        now: the clock, in seconds.

    Attributes:
        step: global step: updates that are known to be done.
        last_step: the global step to stop at; with `--epochs` where that will be, or
            `None` if nobody knows.
        is_quiet: no step is under way.
        last_loss: mean loss of the packed call that finished last.
        results: the last evaluation's; `None` before the first.
        checkpoint: path of the last checkpoint; `None` before the first.
        stopped: why training has ended before its last step; `None` if it has not.
        extras: what callbacks add to the result file, by key.
        history: what all lives of this run's chief share.
    """

    def __init__(
        self,
        trainer: Trainer,
        config: RunConfig,
        callbacks: Sequence[Callback],
        console: Console,
        signals: Signals,
        history: History | None = None,
        now: Callable[[], float] = time.monotonic,
    ):
        self.trainer = trainer
        self.config = config
        self.console = console
        # With --epochs, the data says when to stop; it is known at most about when.
        self._has_epochs = config.epochs is not None
        self.last_step = trainer.num_steps if self._has_epochs else config.train_steps
        self.is_quiet = True
        self.last_loss = 0.0
        self.results: dict[str, float] | None = None
        self._callbacks = callbacks
        self._signals = signals
        self._stopwatch = Stopwatch(now)
        self.stopped: str | None = None
        self.extras: dict[str, Any] = {}
        self._checkpoints = Checkpoints(
            config.model_dir,
            trainer.checkpoint,
            trainer.checkpoint_options,
            config.keep_checkpoints,
            config.keep_checkpoint_every_hours,
            console,
        )
        self.checkpoint = self._restore()
        self.history = history or History(config.model_dir, uuid.uuid4().hex)
        self.history.begin(self.step)
        self._repeated_before = self.history.repeated_steps
        if not trainer.is_synchronous:  # it may have to be saved without all workers
            trainer.before_save()
            trainer.find_bad_weight()
            self._checkpoints.rehearse()
        # What the trainer was asked for; `step`, what is done, may lag behind.
        self._asked = self.step

    @property
    def step(self) -> int:
        return self.trainer.global_step

    @property
    def model(self) -> keras.Model:
        """The model that is trained; its variables may be far away."""
        return self.trainer.checkpoint.model

    def window(self) -> Window:
        """Returns a view of loss and metrics from here on, for one callback."""
        return self.trainer.totals.window()

    def request_stop(self, reason: str) -> None:
        """Ends training well after this loop: it is saved, evaluated and exported.

        Once the last step is done, there is nothing left to stop.

        Args:
            reason: for people.
        """
        if self._is_going() or not self.is_quiet:
            self.stopped = reason

    def run(self) -> dict:
        """Trains up to the last step; returns what the result file holds.

        Raises:
            Interrupted: a signal asked to stop; a checkpoint is saved.
            TrainingFailed: the loss is no number, or the model or its data raised.
        """
        self._signals.at_once = False
        try:
            try:
                self._call("on_start")
                self._train()
                if self._signals.received:
                    self._interrupt()
                self._call("on_end")
            except errors.TasksLost as error:
                self._asked -= error.undone
                self._save_without_them()
                raise
        except BaseException as error:
            self._tell_of(error)
            raise
        return self._result()

    def _train(self) -> None:
        while self._is_going() and not self._signals.received:
            stop = self._next_stop()
            num_steps = self.trainer.choose_loop(stop - self._asked)
            if num_steps > 0:
                self._stopwatch.run(self.step)
                self.trainer.train(num_steps)
                self.is_quiet = False
                self._asked += num_steps
            if self._asked >= stop:
                self._settle()
            self._end_loop()
        if not self.is_quiet:  # a signal came, or the data ended
            self._settle()
            self._end_loop()

    def _is_going(self) -> bool:
        if self.stopped is not None:
            return False
        if self._has_epochs:
            return not self.trainer.is_over
        return self._asked < self.last_step

    def _end_loop(self) -> None:
        self._stopwatch.note(self.step, all(self.trainer.worker_steps))
        self.last_loss = self.trainer.totals.last_loss
        self._call("on_loop")

    @property
    def is_saved(self) -> bool:
        """Whether there is a checkpoint of this very step."""
        return self.checkpoint is not None and self.checkpoint.endswith(
            f"ckpt-{self.step}"
        )

    def save(self) -> str:
        """Writes a checkpoint once no step is under way; returns its path."""
        self._settle()
        self._call("before_save")
        with self._stopwatch.paused():
            self.trainer.before_save()
            self.checkpoint = self._checkpoints.save(self.step)
            self.history.save(self._repeated_steps())
        self._call("on_save", self.checkpoint)
        return self.checkpoint

    def evaluate(self) -> None:
        """Runs over all evaluation data once no step is under way."""
        self._settle()
        with self._stopwatch.paused():
            results = self.trainer.evaluate(lambda: bool(self._signals.received))
        if results is not None:
            self.results = results
            self._call("on_evaluation", results)
        elif self._signals.received:
            self._interrupt()

    def _next_stop(self) -> int:
        """Returns the first global step at which somebody needs quiet."""
        wanted = [self._ask(callback, "next_stop") for callback in self._callbacks]
        for callback, stop in zip(self._callbacks, wanted, strict=True):
            if not isinstance(stop, numbers.Integral | None):
                raise errors.TrainingFailed(
                    f"{type(callback).__name__}.next_stop returned {stop!r}. Return a "
                    "global step, a whole number, or None."
                )
        # One that is not ahead has been served, if no step is under way.
        ahead = self._asked if self.is_quiet else -1
        stops = [stop for stop in wanted if stop is not None and stop > ahead]
        end = sys.maxsize if self._has_epochs else self.last_step
        return min([*stops, end])

    def _settle(self) -> None:
        if not self.is_quiet:
            self.trainer.wait()
            self.is_quiet = True
            if self._has_epochs:  # who has no batch left makes no step
                self._asked = self.step

    def _interrupt(self) -> None:
        error = errors.Interrupted(self._signals.received[0])
        if not self.is_saved:
            self.save()
        self.console.line(f"Saved {self.checkpoint} before stopping.")
        raise error

    def _save_without_them(self) -> None:
        """Saves what is done, though the steps of lost workers never will be."""
        self.is_quiet = True
        if not self.is_saved:
            self.save()
        self.console.line(f"Saved {self.checkpoint} before going on.")

    def _restore(self) -> str | None:
        """Takes over the newest checkpoint of the model directory, if there is one.

        Raises:
            UsageError: it was made by a different model or optimizer.
        """
        path = self._checkpoints.restore()
        init = self.config.init_checkpoint
        if path is not None:
            self.trainer.after_restore()
            unused = f" --init_checkpoint={init} is not used." if init else ""
            self.console.line(f"Resumed from {path}, global step {self.step}.{unused}")
        elif init is not None:
            weights.take(init, self.model, self.console)
        return path

    def _call(self, name: str, *args) -> None:
        for callback in self._callbacks:
            self._ask(callback, name, *args)

    def _ask(self, callback: Callback, name: str, *args) -> Any:
        """Returns what a callback's method returns; what users' code raises ends it."""
        try:
            return getattr(callback, name)(self, *args)
        except (errors.DtrainError, tf.errors.UnavailableError):
            raise
        except (Exception, SystemExit) as error:
            is_own = type(callback).__module__.startswith("dtrain.")
            if is_own and not errors.passes_users_code(error):
                raise
            raise errors.TrainingFailed(
                f"{type(callback).__name__}.{name} failed: "
                f"{errors.describe_with_traceback(error)}"
            ) from error

    def _tell_of(self, error: BaseException) -> None:
        """Tells every callback of an error, and none of them hides it."""
        for callback in self._callbacks:
            try:
                callback.on_error(self, error)
            except Exception as another:
                name = type(callback).__name__
                self.console.error(f"{name}.on_error: {errors.describe(another)}")

    def _repeated_steps(self) -> int:
        return self._repeated_before + self.step - self._asked

    def _describe_scale(self) -> dict[str, int]:
        scale = self.trainer.loss_scale
        return {} if scale is None else {"skipped_updates": int(scale.skipped)}

    def _result(self) -> dict:
        """Returns the content of the result file (docs/flags.md)."""
        trainer, config = self.trainer, self.config
        steps = self.step - self.history.first_step
        speed = self._stopwatch.speed()
        examples = trainer.examples_per_step
        return {
            "strategy": config.strategy,
            "experiment": experiment.display_name(config.experiment),
            "global_step": self.step,
            "train_steps": None if self._has_epochs else config.train_steps,
            "epochs": config.epochs,
            "batch_size": trainer.batch_size,
            "replicas": trainer.replicas,
            "accumulate_steps": config.accumulate_steps,
            "examples_seen": steps * examples,
            "train_seconds": self._stopwatch.seconds(),
            "steps_per_second": speed,
            "examples_per_second": None if speed is None else speed * examples,
            "restarts": len(self.history.restarts),
            "repeated_steps": self._repeated_steps(),
            "eval": self.results,
            "checkpoint": self.checkpoint,
            "stopped": self.stopped,
            **self._describe_scale(),
            **self.extras,
            "versions": {
                "dtrain": version.__version__,
                "tensorflow": importlib.metadata.version("tensorflow"),
                "keras": importlib.metadata.version("keras"),
            },
        }
