"""Saves checkpoints: heir of `CheckpointSaverHook`."""

from __future__ import annotations

import time
from collections.abc import Callable

from dtrain.session.callbacks.base import Callback, next_multiple


class CheckpointSaver(Callback):
    """Saves every so many steps, at least every so many seconds, and at the end.

    Args:
        every: steps between checkpoints; 0 for none.
        secs: seconds after which one is due in any case; 0 for never.
        now: the clock, in seconds.
    """

    def __init__(
        self, every: int, secs: float, now: Callable[[], float] = time.monotonic
    ):
        self._every = every
        self._secs = secs
        self._now = now

    def on_start(self, session):
        self._last_step = session.step
        self._last_time = self._now()

    def next_stop(self, session):
        if self._is_overdue() and session.step > self._last_step:
            return session.step
        return next_multiple(self._last_step, self._every)

    def on_loop(self, session):
        due = next_multiple(self._last_step, self._every)
        if session.is_quiet and session.step > self._last_step:
            if self._is_overdue() or (due is not None and session.step >= due):
                session.save()

    def on_save(self, session, path):
        self._last_step = session.step
        self._last_time = self._now()

    def on_end(self, session):
        if session.step > self._last_step or session.checkpoint is None:
            session.save()

    def _is_overdue(self) -> bool:
        return self._secs > 0 and self._now() - self._last_time >= self._secs
