"""Takes values when training has ended: heir of `FinalOpsHook`."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from dtrain.session.callbacks.base import Callback

if typing.TYPE_CHECKING:
    from dtrain.session.session import Session


class FinalValues(Callback):
    """Puts what a function returns at the end into the result file, as "final".

    Args:
        function: called once with the session, when training has ended well; what it
            returns has to fit into JSON.
    """

    def __init__(self, function: Callable[[Session], Any]):
        self._function = function

    def on_end(self, session):
        session.extras["final"] = self._function(session)
