"""Loss and metrics of a run, and the windows through which callbacks see them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.strategies.objective import Objective


class Totals:
    """Loss and metrics of all steps so far, and how long they waited for input.

    Args:
        objective: which reads packed totals.
        num_pipelines: how many give them batches.

    Attributes:
        last_loss: mean loss of the call that finished last.
        bad_step: the first step whose loss was no number, 0-based; `None` if there was
            none.
    """

    def __init__(self, objective: Objective, num_pipelines: int = 1):
        self.bad_step: int | None = None
        self._objective = objective
        self._sum: np.ndarray | float = 0.0
        self._steps = 0
        self._seconds = np.zeros((num_pipelines, 2))
        self._begun: set[int] = set()
        self.last_loss = 0.0

    def add(
        self,
        totals: np.ndarray,
        num_steps: int,
        waits: Sequence[tuple[int, float, float]] = (),
        bad_step: int | None = None,
    ) -> None:
        """Adds what one packed call returned.

        Args:
            totals: loss and metrics.
            num_steps: how many steps it made.
            waits: (pipeline, seconds that steps waited for it, seconds of the call).
            bad_step: the first of them whose loss was no number; `None` if all were.
        """
        if bad_step is not None:
            before = bad_step if self.bad_step is None else self.bad_step
            self.bad_step = min(bad_step, before)
        for pipeline, waited, seconds in waits:
            # The first call waits for files to open and buffers to fill.
            if pipeline in self._begun:
                self._seconds[pipeline] += waited, seconds
            self._begun.add(pipeline)
        if num_steps:
            self._sum = self._sum + totals
            self._steps += num_steps
            self.last_loss = float(totals[0]) / num_steps

    def window(self) -> "Window":
        """Returns a view of the steps from here on."""
        return Window(self)

    def snapshot(self) -> tuple[Any, int, np.ndarray]:
        """Returns packed totals so far, the steps that they are of, and seconds."""
        return self._sum, self._steps, self._seconds.copy()

    def describe(self, totals: np.ndarray, num_steps: int) -> dict[str, float]:
        """Returns the mean loss and the metrics of packed totals."""
        return self._objective.results(totals, num_steps)


class Window:
    """Loss and metrics of the steps since they were last taken through this window.

    Args:
        totals: of which it shows a part.

    Attributes:
        waits: by pipeline, the share of their time that these steps waited for input;
            without those that have done none, but for their first call.
    """

    def __init__(self, totals: Totals):
        self._totals = totals
        self._before = totals.snapshot()
        self.waits: dict[int, float] = {}

    def take(self) -> dict[str, float]:
        """Returns means since the last call; empty if there was no step."""
        before, steps_before, seconds_before = self._before
        now, steps, seconds = self._totals.snapshot()
        if steps == steps_before:
            return {}
        self._before = now, steps, seconds
        waited, whole = (seconds - seconds_before).T
        self.waits = {
            int(index): float(waited[index] / whole[index])
            for index in np.flatnonzero(whole)
        }
        return self._totals.describe(now - before, steps - steps_before)
