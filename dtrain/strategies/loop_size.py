"""How many steps one packed call holds."""

import contextlib
import time
from collections.abc import Callable, Iterator

from dtrain.strategies import packing

CALL_SECONDS = 0.5
_MOST_STEPS = 100


class LoopSize:
    """How many steps to pack in one call.

    If nobody says, as many as take about half a second, or as long as is asked for:
    long enough that the call itself costs little (docs/design.md has the measurements),
    short enough that progress, checkpoints and Ctrl-C need not wait.

    Args:
        fixed: steps; `None` to choose by measuring.
        num_workers: how many calls run at a time.
        call_seconds: how long one is to take.
        now: the clock, in seconds.

    Attributes:
        steps: the size to use now.
    """

    def __init__(
        self,
        fixed: int | None,
        num_workers: int = 1,
        call_seconds: float = CALL_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ):
        self.steps = fixed or packing.UNROLL
        self._is_fixed = fixed is not None
        self._num_workers = num_workers
        self._now = now
        self._call_seconds = call_seconds
        self._since: float | None = None
        self._done = 0
        self._seconds: float | None = None  # of calls that were timed

    def note(self, num_steps: int) -> None:
        """Takes in that so many steps are done, where calls overlap."""
        if self._since is None:  # what came before is not of training alone
            self._since = self._now()
            return
        self._done += num_steps
        if self._adapt(self._now() - self._since):
            self._since = self._now()

    @contextlib.contextmanager
    def timed(self, num_steps: int) -> Iterator[None]:
        """Times a call of so many steps, where nothing else runs meanwhile."""
        started = self._now()
        yield
        if self._seconds is None:  # the first call holds tracing
            self._seconds = 0.0
            return
        self._done += num_steps
        self._seconds += self._now() - started
        if self._adapt(self._seconds):
            self._seconds = 0.0

    def pause(self) -> None:
        """Leaves out the time up to the next `note`."""
        self._since, self._done = None, 0

    def _adapt(self, seconds: float) -> bool:
        """Chooses anew, if enough has been seen; returns whether it was."""
        if self._is_fixed or seconds < self._call_seconds:
            return False
        steps = self._done / seconds / self._num_workers * self._call_seconds
        steps = min(max(round(steps), 1), _MOST_STEPS)
        # What is not written out runs slower: a few more, or some less.
        more = steps + packing.UNROLL // 5
        self.steps = min(more // packing.UNROLL * packing.UNROLL, _MOST_STEPS) or steps
        self._done = 0
        return True
