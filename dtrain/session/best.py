"""Which evaluation was the best so far, and the checkpoint that it was of."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection

from dtrain import errors
from dtrain.config import RunConfig
from dtrain.session import checkpoints

FOLDER = "best"
_FILE = "best.json"
# Parts of the names of metrics: of which less is better; and, of the others, more.
_LESS = re.compile(
    "loss|error|mse|mae|rmse|msle|mape|perplexity|entropy|divergence|poisson|hinge|"
    "logcosh|distance"
)
_MORE = re.compile(
    "acc|auc|precision|recall|f1|fbeta|iou|r2|top|score|mrr|ndcg|hit|dice|sensitivity|"
    "specificity|similarity"
)


class Best:
    """Keeps the best checkpoint of a model directory, and counts what came after it.

    Args:
        model_dir: where `best/` is; what is there already counts.
        metric: "loss" or a metric's name, after "min:" or "max:" where its name does
            not tell what is better.

    Attributes:
        record: "metric", "goal", "value", "global_step", "checkpoint" of the best,
            "results" with all that was measured; empty before the first.
        since: evaluations of this command after the best one.

    Raises:
        UsageError: it is not clear what is better.
    """

    def __init__(self, model_dir: str, metric: str):
        self._folder = os.path.join(model_dir, FOLDER)
        self._path = os.path.join(self._folder, _FILE)
        goal, _, self.metric = metric.rpartition(":")
        self._goal = goal or _goal_of(self.metric)
        self.record: dict = {}
        self.since = 0
        if os.path.exists(self._path):
            with open(self._path) as file:
                known = json.load(file)
            if (known["metric"], known["goal"]) == (self.metric, self._goal):
                self.record = known
        self._last_step = -1  # that was evaluated

    def check(self, names: Collection[str]) -> None:
        """Sees that there is such a metric.

        Args:
            names: of the metrics that evaluations give; some give several numbers.

        Raises:
            UsageError: there is none.
        """
        known = ["loss", *names]
        if not any(self.metric == n or self.metric.startswith(f"{n}_") for n in known):
            raise errors.UsageError(
                f"--best_metric={self.metric} is not measured. There are: "
                f"{', '.join(known)}." + errors.did_you_mean(self.metric, known)
            )

    def is_better(self, results: dict[str, float]) -> bool:
        """Returns whether an evaluation is better than all before it.

        Raises:
            UsageError: it has no such metric.
        """
        if self.metric not in results:
            self.check([name for name in results if name not in ("loss", "examples")])
            raise errors.UsageError(
                f"--best_metric={self.metric} is not measured. There are: "
                f"{', '.join(results)}."
            )
        value = results[self.metric]
        if math.isnan(value) or not self.record:
            return not math.isnan(value)
        before = self.record["value"]
        return value > before if self._goal == "max" else value < before

    def note(self, step: int, results: dict[str, float], checkpoint: str) -> bool:
        """Takes in an evaluation; returns whether it is the best so far.

        Args:
            step: global step.
            results: of the evaluation.
            checkpoint: path of the one that it was of. It is kept if it is the best.
        """
        is_better = self.is_better(results)
        is_new, self._last_step = step > self._last_step, max(step, self._last_step)
        if is_better:
            copied = checkpoints.copy(checkpoint, self._folder)
            self.since = 0
            self.record = {
                "metric": self.metric,
                "goal": self._goal,
                "value": results[self.metric],
                "global_step": step,
                "checkpoint": copied,
                "results": results,
            }
            with open(self._path + ".tmp", "w") as file:
                json.dump(self.record, file, indent=1)
            os.replace(self._path + ".tmp", self._path)
            checkpoints.remove_others(copied)
        elif is_new:
            self.since += 1
        return is_better

    def describe(self) -> str:
        """Returns what the best was, for people."""
        return (
            f"best {self.metric} {self.record['value']:.4f} at step "
            f"{self.record['global_step']}: {self.record['checkpoint']}"
        )

    def why_stop(self, patience: int) -> str | None:
        """Returns why training should stop; `None` if it should not.

        Args:
            patience: evaluations without a better one that are too many; 0: no number
                is.
        """
        if not patience or self.since < patience:
            return None
        return (
            f"{self.metric} has not become better in {self.since} evaluations "
            f"(--early_stop_patience={patience})"
        )


def wanted(config: RunConfig) -> str | None:
    """Returns the metric by which a run keeps its best; `None` if it does not."""
    if config.best_metric is None and config.early_stop_patience:
        return "loss"
    return config.best_metric


def _goal_of(metric: str) -> str:
    if _LESS.search(metric.lower()):
        return "min"
    if _MORE.search(metric.lower()):
        return "max"
    raise errors.UsageError(
        f"--best_metric={metric}: is more better, or less? Write max:{metric} or "
        f"min:{metric}."
    )
