"""Ends training before its last step."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

from dtrain import errors
from dtrain.session.callbacks.base import Callback

STOP_FILE = "stop.json"
_LOOK_SECONDS = 1.0


class StopAtStep(Callback):
    """Ends training well at a step of its own: heir of `StopAtStepHook`.

    `--train_steps` is the usual way; this is for experiments that know better.

    Args:
        num_steps: of this command, whatever the step that it resumes from.
        last_step: global step.

    Raises:
        UsageError: not exactly one of the two is given.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None):
        if (num_steps is None) == (last_step is None):
            raise errors.UsageError(
                f"StopAtStep(num_steps={num_steps}, last_step={last_step}): give one "
                "of the two."
            )
        self._num_steps = num_steps
        self._last_step = last_step

    def on_start(self, session):
        self._stop = self._last_step
        if self._stop is None:
            self._stop = session.step + self._num_steps
        self._stop_there(session)

    def next_stop(self, session):
        return self._stop

    def on_loop(self, session):
        self._stop_there(session)

    def _stop_there(self, session) -> None:
        if session.step >= self._stop:
            session.request_stop(f"StopAtStep({self._stop})")


class StopFile(Callback):
    """Ends training when an evaluator says so, by a file in the model directory.

    Args:
        model_dir: where the file would be.
        now: the clock, in seconds.
    """

    def __init__(self, model_dir: str, now: Callable[[], float] = time.monotonic):
        self._path = os.path.join(model_dir, STOP_FILE)
        self._now = now

    def on_start(self, session):
        self._looked = self._now()
        # What was there before was meant for an earlier run.
        if session.history.is_new and os.path.exists(self._path):
            os.remove(self._path)

    def on_loop(self, session):
        if session.stopped is not None or self._now() - self._looked < _LOOK_SECONDS:
            return
        self._looked = self._now()
        if os.path.exists(self._path):
            with open(self._path) as file:
                session.request_stop(json.load(file)["reason"])


def write_stop_file(model_dir: str, reason: str) -> bool:
    """Asks the run that trains in a model directory to stop, unless it has been asked.

    Returns:
        Whether this was the first time.
    """
    path = os.path.join(model_dir, STOP_FILE)
    if os.path.exists(path):
        return False
    with open(path + ".tmp", "w") as file:
        json.dump({"reason": reason}, file)
    os.replace(path + ".tmp", path)
    return True
