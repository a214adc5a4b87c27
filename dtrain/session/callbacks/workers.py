"""A line for each worker's own steps, as TF1's examples printed them."""

from __future__ import annotations

from dtrain.session.callbacks.base import Callback, crosses


class WorkerLines(Callback):
    """Shows which worker has come how far.

    Args:
        every: steps of a worker between two of its lines; 0 for none.
    """

    def __init__(self, every: int):
        self._every = every

    def on_start(self, session):
        self._first = session.step
        self._before = self._steps(session)

    def on_loop(self, session):
        steps = self._steps(session)
        for index, (before, now) in enumerate(zip(self._before, steps, strict=True)):
            if crosses(before, now, self._every):
                session.console.line(
                    f"worker:{index}  step {now}  global step {session.step}"
                )
        self._before = steps

    def _steps(self, session) -> list[int]:
        return list(session.trainer.worker_steps) or [session.step - self._first]
