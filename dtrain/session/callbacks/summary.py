"""Writes event files for TensorBoard: heir of `SummarySaverHook`."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.session import events
from dtrain.session.callbacks.base import Callback, crosses, next_multiple
from dtrain.session.events import Events
from dtrain.session.speedometer import Speedometer

_STALENESS = (
    "How many other updates landed between an update's read of the weights and its "
    "write. The last bin holds all that are more."
)


class SummaryWriter(Callback):
    """Writes what a run is, and how it goes, below `train/` and `eval/`.

    Args:
        model_dir: where they go.
        every: steps between training summaries; 0 for none.
        cluster: lines that describe it.
        has_evaluation: there will be one, at least at the end.
        now: the clock, in seconds.
    """

    def __init__(
        self,
        model_dir: str,
        every: int,
        cluster: Sequence[str] = (),
        has_evaluation: bool = False,
        now: Callable[[], float] = time.monotonic,
    ):
        self._name = os.path.basename(model_dir)
        self._every = every
        self._cluster = cluster
        self._has_evaluation = has_evaluation
        self._now = now
        self._train = Events(model_dir, "train")
        self._eval = Events(model_dir, "eval")

    def on_start(self, session):
        self._step = session.step
        self._restarts = 0  # that were told of
        self._speedometer = Speedometer(session.step, self._now)
        self._window = session.window()
        self._worker_steps = list(session.trainer.worker_steps)
        self._stale: np.ndarray | int = 0  # of this run's updates
        if self._every:
            self._tell_what_is_run(session)

    def next_stop(self, session):
        # Where a stop costs nothing, what is told is of the very step.
        is_free = session.trainer.is_synchronous
        return next_multiple(session.step, self._every) if is_free else None

    def on_loop(self, session):
        step = session.step
        if self._every:
            self._tell_of_restarts(session)
        self._speedometer.note(step)
        if not crosses(self._step, step, self._every):
            return
        self._step = step
        window = self._window.take().items()
        values = {f"train/{name}": value for name, value in window}
        values["learning_rate"] = session.trainer.learning_rate()
        if session.trainer.loss_scale is not None:
            values["loss_scale"] = float(session.trainer.loss_scale.read())
        speed = self._speedometer.read(step)
        if speed is not None:
            values["speed/steps_per_second"] = speed
            examples = speed * session.trainer.examples_per_step
            values["speed/examples_per_second"] = examples
        for index, share in self._window.waits.items():
            values[f"speed/input_wait/{index}"] = share
        self._train.scalars(step, values | self._describe_workers(session))
        if session.trainer.staleness is not None:
            before, self._stale = self._stale, session.trainer.staleness.read()
            counts = self._stale - before
            self._train.histogram(step, "workers/staleness", counts, _STALENESS)

    def on_evaluation(self, session, results):
        self._eval.scalars(session.step, events.evaluation(results))
        self._eval.flush()

    def on_end(self, session):
        if self._every:
            self._compared().end_of_hparams()
        self._close()

    def on_error(self, session, error):
        # No operation that is new to TensorFlow: it would be sent to every task, and
        # one of them may be lost.
        self._train.flush()
        self._eval.flush()

    def _tell_of_restarts(self, session) -> None:
        restarts = session.history.restarts
        if len(restarts) == self._restarts:
            return
        self._restarts = len(restarts)
        self._train.scalars(session.step, {"restarts": len(restarts)})
        rows = [f"| {r['task']} | {r['cause']} | {_when(r)} |" for r in restarts]
        table = "\n".join(
            ["| task | lost because it | at (UTC) |", "|---|---|---|", *rows]
        )
        self._train.texts(session.step, {"run/restarts": table})

    def _tell_what_is_run(self, session) -> None:
        config = session.config
        texts = {"run/flags": events.flags_text(config)}
        if self._cluster:
            texts["run/cluster"] = "\n".join(f"- {line}" for line in self._cluster)
        self._train.texts(session.step, texts)
        self._train.flush()
        names = ["loss", *session.trainer.metric_names]
        group = "eval" if self._has_evaluation else "train"
        rate = session.trainer.learning_rate(config.warmup_steps)
        optimizer = type(session.trainer.optimizer).__name__
        values = events.hparams_of(config, rate, optimizer)
        tags = [f"{group}/{name}" for name in names]
        self._compared().hparams(values, tags, self._name)

    def _compared(self) -> Events:
        """Returns the run by whose metrics the HParams page compares.

        It finds them in the run that has told what is run, or below it.
        """
        return self._eval if self._has_evaluation else self._train

    def _describe_workers(self, session) -> dict[str, float]:
        """Returns steps of each worker, and its share of those since the last time."""
        before, now = self._worker_steps, list(session.trainer.worker_steps)
        self._worker_steps = now
        values = {f"workers/{i}/steps": steps for i, steps in enumerate(now)}
        whole = sum(now) - sum(before)
        for i, steps in enumerate(now if whole else []):
            values[f"workers/{i}/share"] = (steps - before[i]) / whole
        return values

    def _close(self) -> None:
        self._train.close()
        self._eval.close()


def _when(record: Mapping[str, Any]) -> str:
    when = datetime.datetime.fromtimestamp(record["time"], datetime.timezone.utc)
    return f"{when:%Y-%m-%d %H:%M:%S}"
