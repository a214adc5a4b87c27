"""Evaluates every so many steps and at the end."""

from __future__ import annotations

from dtrain.session.callbacks.base import Periodic


class Evaluator(Periodic):
    """Runs the session's evaluation when it is due.

    Args:
        every: steps between evaluations; 0: only at the end.
    """

    def act(self, session):
        session.evaluate()

    def on_end(self, session):
        # The results of an earlier command's evaluation are not known here.
        if session.step > self._last_step or session.results is None:
            self.act(session)
