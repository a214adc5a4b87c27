"""How fast training goes, for people: without tracing, and without jitter."""

from collections.abc import Callable

# Calls of several workers end in bursts: shorter spans would show those.
_LEAST_SECONDS = 1.0
_TOO_SHORT_SECONDS = 0.1


class Speedometer:
    """Steps per second since the last reading, or a little longer.

    The clock starts with the first progress, because tracing comes before. Saving
    and evaluating count: this is what a person waits.

    Args:
        step: the global step at the start.
        now: the clock, in seconds.
    """

    def __init__(self, step: int, now: Callable[[], float]):
        self._start = step
        self._now = now
        self._mark: tuple[int, float] | None = None
        self._speed: float | None = None

    def note(self, step: int) -> None:
        """Takes in how far training is; to be called after each loop."""
        if self._mark is None and step > self._start:
            self._mark = step, self._now()

    def read(self, step: int) -> float | None:
        """Returns the speed; `None` if there is none to tell yet."""
        if self._mark is None:
            return None
        now = self._now()
        seconds = now - self._mark[1]
        if seconds >= _TOO_SHORT_SECONDS and step > self._mark[0]:
            self._speed = (step - self._mark[0]) / seconds
        if seconds >= _LEAST_SECONDS:
            self._mark = step, now
        return self._speed
