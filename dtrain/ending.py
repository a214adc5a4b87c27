"""How a task's work ends, on the chief and on those who train in step with it.

Whatever happens, the other tasks are told, and the exit status is known. If it is
another task that was lost, this one starts again instead.
"""

from __future__ import annotations

import math
import signal
import typing

from dtrain import errors
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.launch import life, model_dir, record
from dtrain.launch.life import Life
from dtrain.launch.signals import Signals

if typing.TYPE_CHECKING:
    from dtrain.runtime.meeting import Meeting
    from dtrain.runtime.watch import Watch

# For servers that start at the same time as a chief that fails at once.
_APPEAR_SECONDS = 10.0


class Ending:
    """However a task's work ends: the others are told, and its status is known.

    If another task was lost, the work does not end: this process starts again.

    Attributes:
        status: the task's exit status.
        watch: the servers that this task is the chief of; `None` if there are none,
            or as long as it is not sure.
        meeting: the tasks of a synchronous run, once they have met.
        model_dir: of the run that this task is the chief of.
    """

    def __init__(
        self,
        config: RunConfig,
        own: Life,
        console: Console,
        signals: Signals,
        is_chief: bool = True,
    ):
        self._is_chief = is_chief
        self.status = errors.TrainingFailed.exit_status
        self.watch: Watch | None = None
        self.meeting: Meeting | None = None
        self.model_dir: str | None = None
        self._config = config
        self._life = own
        self._console = console
        self._signals = signals

    def __enter__(self) -> Ending:
        return self

    def __exit__(self, kind, error, trace) -> None:
        original, again = error, None
        if self._can_go_on(error):
            try:
                step = model_dir.newest_step(self._config.model_dir)
                spares = self.watch.spares() if self.watch is not None else ()
                again = self._life.next(step, self._most(), error, spares)
            except errors.GivenUp as another:
                error = another
        if isinstance(error, KeyboardInterrupt):
            error = errors.Interrupted((self._signals.received or [signal.SIGINT])[0])
            failure = str(error)
        elif isinstance(error, errors.Interrupted) or error is None:
            failure = None  # all is in order, and a checkpoint is saved
        elif isinstance(error, errors.DtrainError):
            failure = str(error)
        else:
            failure = errors.describe(error)
        if isinstance(error, errors.DtrainError):
            self.status = error.exit_status
        self._signals.at_once = False
        # Who was waited for in vain is not waited for once more.
        patience = 0.0 if isinstance(error, errors.GivenUp) else _APPEAR_SECONDS
        self._tell(failure, again is not None, patience)
        if again is not None and self._signals.received:  # while others were told
            again, error = None, errors.Interrupted(self._signals.received[0])
            self.status = error.exit_status
            if self.watch is not None:
                self.watch.part(self.status, 0.0)
        if again is not None:
            raise life.Again(str(error), again) from error
        if error is not original and kind is not None:
            raise error from (None if kind is KeyboardInterrupt else original)

    def _most(self) -> float:
        """Returns how many losses in a row are borne; the chief decides for all."""
        most = self._config.max_restarts
        return math.inf if most and not self._is_chief else most

    def _can_go_on(self, error: BaseException | None) -> bool:
        """Returns whether all may be well if this process starts again."""
        return (
            isinstance(error, errors.TaskUnavailable)
            and not isinstance(error, errors.GivenUp)
            and not self._signals.received
            and life.can_start_again()
            and (
                self.watch is not None
                or self.meeting is not None
                or isinstance(error, errors.TasksLost)
            )
        )

    def _tell(self, failure: str | None, is_again: bool, patience: float) -> None:
        try:
            if self.model_dir is not None and not is_again:
                record.end(self.model_dir, self.status)
        except OSError as another:  # a full disk must not keep the others waiting
            self._console.log(f"run.json could not be written: {another}.")
        try:
            if self.watch is not None and not is_again:
                patience = 0.0 if self.status > 128 else patience
                for task in self.watch.part(self.status, patience):
                    self._console.log(f"{task} was not told that the run is over.")
            if self.meeting is not None:
                # What is given up is so for all.
                over = life.OVER if patience == 0.0 and failure is not None else 0
                self.meeting.end(self.status + over, failure)
        except Exception as another:  # that must not hide how the run ended
            text = errors.describe(another)
            self._console.log(f"The other tasks could not be told: {text}.")
