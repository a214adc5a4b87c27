"""A process that is started again when it is lost.

Which ends are a loss: death by a signal, exit status 3 (another task was missing), and
any status that dtrain does not know. A usage error, a training that failed, an
interruption, and the end of the run are none.
"""

import dataclasses
import time
from collections.abc import Callable

from dtrain.console import Console
from dtrain.launch import life as life_lib
from dtrain.launch.child import STATUSES, Child
from dtrain.launch.life import Life

_SHORT_LIFE_SECONDS = 20.0
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0


class Supervised:
    """A task of this machine, through all its lives.

    Args:
        name: of the task, for messages.
        start: starts its process.
        life: what the first process is told.
        max_restarts: how often it is started again at most.
        console: where each restart is told, with its cause.
        now: the clock, in seconds.

    Attributes:
        child: its process, the last one so far.
        restarts: what a supervisor has noted of each restart.
        is_stopping: from here on it ends because it is made to.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[Life], Child],
        life: Life,
        max_restarts: int,
        console: Console,
        now: Callable[[], float] = time.monotonic,
    ):
        self.name = name
        self.is_stopping = False
        self._start = start
        self._life = life
        self._max_restarts = max_restarts
        self._console = console
        self._now = now
        self._short_lives = 0
        self._due: float | None = None  # when to start it again
        self._begin()

    def _begin(self) -> None:
        self._due = None
        self._since = self._now()
        self.child = self._start(self._life)

    @property
    def restarts(self) -> list:
        return list(self._life.restarts)

    @property
    def is_pausing(self) -> bool:
        """Whether it is lost, and about to be started again."""
        return self._due is not None

    @property
    def has_ended(self) -> bool:
        """Whether its last process has ended, and there will be no other."""
        is_gone = self._due is None and self.child.poll() is not None
        return is_gone and not self._can_be_replaced()

    def look(self) -> None:
        """Notices a loss, and starts the task again when it is time."""
        if self._due is not None:
            if self._now() >= self._due and not self.is_stopping:
                self._begin()
            return
        if self.child.poll() is None or not self._can_be_replaced():
            return
        lived = self._now() - self._since
        self._short_lives = self._short_lives + 1 if lived < _SHORT_LIFE_SECONDS else 0
        pause = 0.0
        if self._short_lives:
            pause = _FIRST_PAUSE_SECONDS * 2 ** (self._short_lives - 1)
        pause = min(pause, _LONGEST_PAUSE_SECONDS)
        cause = self.child.describe_cause()
        record = life_lib.restart(self.name, cause, time.time())
        self._life = dataclasses.replace(
            self._life, restarts=(*self._life.restarts, record)
        )
        self._due = self._now() + pause
        wait = f" in {pause:g} s" if pause else ""
        self._console.error(
            f"{self.name} (pid {self.child.process.pid}) {cause}. It is started again"
            f"{wait}: restart {len(self._life.restarts)} of {self._max_restarts}."
        )

    def _can_be_replaced(self) -> bool:
        status = self.child.status
        is_loss = status == 3 or status not in STATUSES
        return (
            is_loss
            and not self.is_stopping
            and not self.child.is_over
            and len(self._life.restarts) < self._max_restarts
        )

    def stop(self, seconds: float = 0.0) -> None:
        """Ends it for good: first by waiting so long, then by force."""
        self.is_stopping = True
        self._due = None
        self.child.stop(seconds)
