"""How many steps one packed call holds."""

import time
from collections.abc import Callable

from dtrain.strategies import base

_CALL_SECONDS = 0.5
_MOST_STEPS = 100


class LoopSize:
    """How many steps to pack in one call.

    If nobody says, as many as take about half a second: long enough that
    the call itself costs little (docs/design.md has the measurements), short enough
    that progress, checkpoints and Ctrl-C need not wait.

    Args:
        fixed: steps; `None` to choose by measuring.
        num_workers: how many calls run at a time.
        now: the clock, in seconds.

    Attributes:
        steps: the size to use now.
    """

    def __init__(
        self,
        fixed: int | None,
        num_workers: int = 1,
        now: Callable[[], float] = time.monotonic,
    ):
        self.steps = fixed or base.UNROLL
        self._is_fixed = fixed is not None
        self._num_workers = num_workers
        self._now = now
        self._since: float | None = None
        self._done = 0

    def note(self, num_steps: int) -> None:
        """Takes in that so many steps are done."""
        if self._since is None:  # what came before is not of training alone
            self._since = self._now()
            return
        self._done += num_steps
        seconds = self._now() - self._since
        if self._is_fixed or seconds < _CALL_SECONDS:
            return
        steps = self._done / seconds / self._num_workers * _CALL_SECONDS
        steps = min(max(round(steps), 1), _MOST_STEPS)
        self.steps = steps // base.UNROLL * base.UNROLL or steps
        self._since, self._done = self._now(), 0

    def pause(self) -> None:
        """Leaves out the time up to the next `note`."""
        self._since, self._done = None, 0
