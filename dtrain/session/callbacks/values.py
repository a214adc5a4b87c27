"""Prints values of the user's own: heir of `LoggingTensorHook`."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping

from dtrain.session.callbacks.base import Periodic

if typing.TYPE_CHECKING:
    from dtrain.session.session import Session


class ValueLogger(Periodic):
    """A line with values every so many steps, and at the end.

    Loss and metrics are shown anyway; this is for what else the model's variables tell.
    No step is under way when a value is taken.

    Args:
        values: name to a function of the session, for instance
            `lambda session: session.model.layers[0].kernel.numpy().std()`.
        every: steps between lines; 0: only at the end.
    """

    def __init__(self, values: Mapping[str, Callable[[Session], float]], every: int):
        super().__init__(every)
        self._values = values

    def on_end(self, session):
        if session.step > self._last_step or self._every == 0:
            self.act(session)

    def act(self, session):
        shown = "  ".join(
            f"{name} {float(value(session)):.6g}"
            for name, value in self._values.items()
        )
        session.console.line(f"step {session.step}  {shown}")
