"""Keeps the best checkpoint, and stops when none gets better."""

from __future__ import annotations

from dtrain.session.best import Best
from dtrain.session.callbacks.base import Callback


class BestKeeper(Callback):
    """Watches the chief's own evaluations.

    Args:
        best: so far.
        patience: evaluations without a better one after which training stops; 0: it
            does not.
    """

    def __init__(self, best: Best, patience: int):
        self._best = best
        self._patience = patience

    def on_evaluation(self, session, results):
        if self._best.is_better(results) and not session.is_saved:
            session.save()
        self._best.note(session.step, results, session.checkpoint)
        session.extras["best"] = self._best.record or None
        reason = self._best.why_stop(self._patience)
        if reason is not None and session.stopped is None:
            session.request_stop(reason)
