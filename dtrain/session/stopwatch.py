"""Times the training loop alone: no start-up, no saving, no evaluation."""

import contextlib
from collections.abc import Callable, Iterator


class Stopwatch:
    """Seconds and steps of training.

    The first loop is left out, because it holds tracing and the workers' first
    instantiation of the traced function: of asynchronous workers, the time up to the
    last one's first. Unless nothing remains.

    Args:
        now: the clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]):
        self._now = now
        self._running_since: float | None = None
        self._total = 0.0
        self._start_step: int | None = None
        self._last_step = 0
        # Seconds and steps up to where the first worker had made any, and all had.
        self._first: tuple[float, int] | None = None
        self._all: tuple[float, int] | None = None

    def run(self, step: int) -> None:
        """Lets the clock run, if it does not already."""
        if self._running_since is None:
            self._running_since = self._now()
        if self._start_step is None:
            self._start_step = step

    def note(self, step: int, have_all_begun: bool = True) -> None:
        """Takes in how far training is.

        Args:
            step: the global step.
            have_all_begun: whether each worker has made a step.
        """
        self._last_step = step
        if self._start_step is None or step == self._start_step:
            return
        now = (self._elapsed(), step - self._start_step)
        self._first = self._first or now
        if have_all_begun:
            self._all = self._all or now

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock for something that is not training."""
        self._total = self._elapsed()
        self._running_since = None
        yield

    def seconds(self) -> float:
        """Returns the seconds of training that count."""
        return self._measured()[0]

    def speed(self) -> float | None:
        """Returns steps per second; `None` if there was no step."""
        seconds, steps = self._measured()
        return steps / seconds if steps else None

    def _elapsed(self) -> float:
        if self._running_since is None:
            return self._total
        return self._total + self._now() - self._running_since

    def _measured(self) -> tuple[float, int]:
        if self._start_step is None:
            return 0.0, 0
        seconds, steps = self._elapsed(), self._last_step - self._start_step
        # Of few steps that were under way already, nothing can be told.
        if self._all and steps >= 2 * self._all[1]:
            left_out = self._all
        elif self._first and steps > self._first[1]:
            left_out = self._first
        else:
            left_out = 0.0, 0
        return seconds - left_out[0], steps - left_out[1]
