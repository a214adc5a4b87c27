"""Loss and metrics of a run, and the windows through which callbacks see them."""

from typing import Any

import numpy as np

from dtrain.strategies.objective import Objective


class Totals:
    """Loss and metrics of all steps so far.

    Args:
        objective: which reads packed totals.

    Attributes:
        last_loss: mean loss of the call that finished last.
    """

    def __init__(self, objective: Objective):
        self._objective = objective
        self._sum: np.ndarray | float = 0.0
        self._steps = 0
        self.last_loss = 0.0

    def add(self, totals: np.ndarray, num_steps: int) -> None:
        """Adds what one packed call returned."""
        self._sum = self._sum + totals
        self._steps += num_steps
        self.last_loss = float(totals[0]) / num_steps

    def window(self) -> "Window":
        """Returns a view of the steps from here on."""
        return Window(self)

    def snapshot(self) -> tuple[Any, int]:
        """Returns the packed totals so far, and of how many steps they are."""
        return self._sum, self._steps

    def describe(self, totals: np.ndarray, num_steps: int) -> dict[str, float]:
        """Returns the mean loss and the metrics of packed totals."""
        return self._objective.results(totals, num_steps)


class Window:
    """Loss and metrics of the steps since they were last taken through this window.

    Args:
        totals: of which it shows a part.
    """

    def __init__(self, totals: Totals):
        self._totals = totals
        self._before = totals.snapshot()

    def take(self) -> dict[str, float]:
        """Returns means since the last call; empty if there was no step."""
        before, steps_before = self._before
        now, steps = self._before = self._totals.snapshot()
        if steps == steps_before:
            return {}
        return self._totals.describe(now - before, steps - steps_before)
