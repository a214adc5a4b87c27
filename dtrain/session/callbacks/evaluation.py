"""Evaluates every so many steps and at the end."""

from __future__ import annotations

from dtrain.session.callbacks.base import Callback, next_multiple


class Evaluator(Callback):
    """Runs the session's evaluation when it is due.

    Args:
        every: steps between evaluations; 0: only at the end.
    """

    def __init__(self, every: int):
        self._every = every

    def on_start(self, session):
        self._last_step = session.step

    def next_stop(self, session):
        return next_multiple(self._last_step, self._every)

    def on_loop(self, session):
        due = self.next_stop(session)
        if session.is_quiet and due is not None and session.step >= due:
            self._last_step = session.step
            session.evaluate()

    def on_end(self, session):
        # The results of an earlier command's evaluation are not known here.
        if session.step > self._last_step or session.results is None:
            session.evaluate()
