"""What all lives of a run's chief share, kept in its model directory."""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

_FILE = "lives.json"


class History:
    """A run's history, over every restart of its chief.

    Args:
        model_dir: of the run, and there.
        run: names it; another run's history is put aside.

    Attributes:
        restarts: what supervisors have noted of tasks that they have started again
            (`life.restart`), by time.
        first_step: global step that the run began at; `None` until that is known.
        is_new: this is the run's first life.
        repeated_steps: steps up to the newest checkpoint that were done twice.
    """

    def __init__(self, model_dir: str, run: str):
        self._path = os.path.join(model_dir, _FILE)
        self._run = run
        known = self._read()
        self.restarts: list[Mapping[str, Any]] = known.get("restarts", [])
        self.first_step: int | None = known.get("first_step")
        self.repeated_steps: int = known.get("repeated_steps", 0)

    def begin(self, step: int) -> None:
        """Notes where the run begins, if this is its first life."""
        self.is_new = self.first_step is None
        if self.is_new:
            self.first_step = step
            self._write()

    def note(self, restarts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Takes in what is noted of restarts; returns what was not known yet."""
        new = []
        for record in restarts:
            if record not in [*self.restarts, *new]:
                new.append(record)
        if new:
            self.restarts = sorted([*self.restarts, *new], key=lambda r: r["time"])
            self._write()
        return new

    def save(self, repeated_steps: int) -> None:
        """Notes, with a checkpoint, how many of its steps were done twice."""
        if repeated_steps != self.repeated_steps:
            self.repeated_steps = repeated_steps
            self._write()

    def _read(self) -> dict[str, Any]:
        try:
            with open(self._path) as file:
                known = json.load(file)
        except FileNotFoundError:
            return {}
        return known if known["run"] == self._run else {}

    def _write(self) -> None:
        content = {
            "run": self._run,
            "first_step": self.first_step,
            "repeated_steps": self.repeated_steps,
            "restarts": self.restarts,
        }
        with open(self._path + ".tmp", "w") as file:
            json.dump(content, file, indent=1)
        os.replace(self._path + ".tmp", self._path)
