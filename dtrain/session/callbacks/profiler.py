"""Profiles some steps: heir of `ProfilerHook`."""

from __future__ import annotations

import datetime
import os

from dtrain.runtime import profiling
from dtrain.session.callbacks.base import Callback


class Profiler(Callback):
    """Records what tasks do between two steps, for TensorBoard's profile page.

    Args:
        model_dir: the profiles go below its `train/`.
        first: global step at which it begins.
        last: global step at which it ends.
    """

    def __init__(self, model_dir: str, first: int, last: int):
        self._folder = os.path.join(model_dir, "train", "plugins", "profile")
        self._first = first
        self._last = last
        self._is_running = False
        self._is_done = False

    def on_start(self, session):
        self._is_done = session.step >= self._last
        self._begin_there(session)

    def next_stop(self, session):
        if self._is_done:
            return None
        return self._last if self._is_running else self._first

    def on_loop(self, session):
        if self._is_done or not session.is_quiet:
            return
        if self._is_running and session.step >= self._last:
            self._end(session)
        else:
            self._begin_there(session)

    def on_end(self, session):
        if self._is_running:
            self._end(session)
        elif not self._is_done:
            session.console.line(
                f"There is no profile: step {self._first} was not reached."
            )

    def on_error(self, session, error):
        # Not of all: others may be why it ends.
        profiling.drop()

    def _begin_there(self, session) -> None:
        if not self._is_done and not self._is_running and session.step >= self._first:
            self._is_running = True
            self._started_at = session.step
            session.trainer.start_profiling()

    def _end(self, session) -> None:
        self._is_running, self._is_done = False, True
        profiles = session.trainer.stop_profiling()
        # TensorBoard takes a folder for a run, and its name for the time.
        name = f"{datetime.datetime.now():%Y_%m_%d_%H_%M_%S}"
        folder = os.path.join(self._folder, name)
        os.makedirs(folder, exist_ok=True)
        lost = [task for task, profile in profiles.items() if not profile]
        for task in lost:
            del profiles[task]
        for task, profile in profiles.items():
            path = os.path.join(folder, f"{task.replace(':', '-')}.xplane.pb")
            with open(path, "wb") as file:
                file.write(profile)
        session.console.line(
            f"Profile of steps {self._started_at} to {session.step}, of "
            f"{', '.join(profiles)}: {folder}"
            + (f" ({', '.join(lost)} was lost meanwhile)" if lost else "")
        )
