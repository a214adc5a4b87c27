"""A task's side of the heartbeat: whom it obeys, and for how long it has been alone.

A task that hears nothing of its chief for the heartbeat time-out, less a margin, has to
expect that the chief has given it up. It must not touch the model any more: it leaves,
or starts again with empty hands, before the chief can have gone on without it.
"""

import time
from collections.abc import Callable
from typing import Any

from dtrain.runtime import mailbox
from dtrain.runtime.mailbox import Mailbox

_LEAST_MARGIN_SECONDS = 0.5


class Leash:
    """What a task has heard from its chief.

    Args:
        box: the task's mailbox.
        alone: seconds that the task was alone for, before this life.
        now: the clock, in seconds.

    Attributes:
        chief: whom the task obeys; `None` as long as nobody has come.
    """

    def __init__(
        self,
        box: Mailbox,
        alone: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ):
        self.chief: dict[str, Any] | None = None
        self._box = box
        self._now = now
        self._heard = now() - alone
        self._beats = 0

    @property
    def silence(self) -> float:
        """Seconds since the chief was heard, or since there is nobody to hear."""
        return self._now() - self._heard

    def is_torn(self) -> bool:
        """Returns whether the chief must be taken for lost, or to have gone on."""
        if self.chief is None:
            return False
        timeout = self.chief["timeout"]
        return self.silence > timeout - max(_LEAST_MARGIN_SECONDS, timeout / 10)

    def listen(self, seconds: float) -> list[dict[str, Any]]:
        """Returns what the chief has said but for heartbeats; waits so long for it."""
        heard = []
        for message in self._box.receive(seconds):
            if message["do"] == mailbox.BEAT:
                self._hear(message["chief"])
            else:
                heard.append(message)
        return heard

    def _hear(self, chief: dict[str, Any]) -> None:
        self.chief = self.chief or chief
        if chief["boot"] != self.chief["boot"]:
            return  # a second one, who will have seen that there is a first
        self._heard = self._now()
        self._beats += 1
        self._box.show(chief=self.chief, beats=self._beats)
