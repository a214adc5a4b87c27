"""Tells of tasks that were lost and started again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dtrain.session.callbacks.base import Callback


class RestartNoter(Callback):
    """Notes restarts in the run's history, and says so.

    Args:
        find: returns what is known of restarts so far (`launch/life.py`).
        is_quiet: somebody else has told of them on this terminal already.
    """

    def __init__(self, find: Callable[[], Iterable[Mapping[str, Any]]], is_quiet: bool):
        self._find = find
        self._is_quiet = is_quiet

    def on_start(self, session):
        self._note(session)

    def on_loop(self, session):
        self._note(session)

    def on_end(self, session):
        self._note(session)

    def _note(self, session) -> None:
        for record in session.history.note(self._find()):
            text = f"{record['task']} {record['cause']}, and was started again."
            (session.console.log if self._is_quiet else session.console.line)(text)
