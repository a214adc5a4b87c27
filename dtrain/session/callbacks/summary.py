"""Writes event files for TensorBoard: heir of `SummarySaverHook`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import tensorflow as tf

from dtrain.session.callbacks.base import Callback, crosses, next_multiple
from dtrain.session.speedometer import Speedometer


class SummaryWriter(Callback):
    """Writes scalars below `train/` and `eval/` of the model directory.

    Args:
        model_dir: where they go.
        every: steps between training summaries; 0 for none.
        now: the clock, in seconds.
    """

    def __init__(
        self, model_dir: str, every: int, now: Callable[[], float] = time.monotonic
    ):
        self._model_dir = model_dir
        self._every = every
        self._now = now
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def on_start(self, session):
        self._step = session.step
        self._speedometer = Speedometer(session.step, self._now)
        self._window = session.window()

    def next_stop(self, session):
        # Where a stop costs nothing, what is told is of the very step.
        is_free = session.trainer.is_synchronous
        return next_multiple(session.step, self._every) if is_free else None

    def on_loop(self, session):
        step = session.step
        self._speedometer.note(step)
        if not crosses(self._step, step, self._every):
            return
        self._step = step
        window = self._window.take().items()
        values = {f"train/{name}": value for name, value in window}
        values["learning_rate"] = session.trainer.learning_rate()
        speed = self._speedometer.read(step)
        if speed is not None:
            values["speed/steps_per_second"] = speed
            examples = speed * session.trainer.examples_per_step
            values["speed/examples_per_second"] = examples
        for index, share in self._window.waits.items():
            values[f"speed/input_wait/{index}"] = share
        for index, steps in enumerate(session.trainer.worker_steps):
            values[f"workers/{index}/steps"] = steps
        self._write("train", step, values)

    def on_evaluation(self, session, results):
        values = {
            f"eval/{name}": value
            for name, value in results.items()
            if name != "examples"
        }
        self._write("eval", session.step, values)
        self._writers["eval"].flush()

    def on_end(self, session):
        self._close()

    def on_error(self, session, error):
        self._close()

    def _close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()

    def _write(self, run: str, step: int, values: dict[str, float]) -> None:
        if run not in self._writers:
            path = os.path.join(self._model_dir, run)
            self._writers[run] = tf.summary.create_file_writer(path)
        with self._writers[run].as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)
