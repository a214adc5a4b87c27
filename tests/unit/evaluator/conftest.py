"""An evaluator, and what it sees of the run beside it."""

import io
import os
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import evaluator
from dtrain.assessment import Assessment
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.experiment import Experiment
from dtrain.launch import record
from dtrain.launch.signals import Signals
from dtrain.session import checkpoints
from dtrain.strategies import parts


def build():
    only = keras.layers.Dense(1, use_bias=False, name="only")
    return keras.Sequential([keras.Input((1,)), only])


def experiment(config):
    """A model that says w for 1, where 0 is right: its loss is the square of w."""
    data = np.ones((10, 1), np.float32), np.zeros((10, 1), np.float32)
    return Experiment(
        model=build,
        optimizer=keras.optimizers.SGD,
        loss=keras.losses.MeanSquaredError(),
        train_data=lambda: data,
        eval_data=lambda: data,
        metrics=lambda: [keras.metrics.MeanAbsoluteError(name="mae")],
    )


class Training:
    """What an evaluator sees of a run: its checkpoints, and how it ended."""

    def __init__(self, folder):
        self.folder = folder
        self.config = RunConfig(
            strategy="local",
            model_dir=str(folder),
            batch_size=4,
            mode="eval",
            job_name="evaluator",
        )
        self._model = build()
        optimizer = keras.optimizers.SGD()
        optimizer.build(self._model.trainable_variables)
        counter = tf.Variable(0, dtype=tf.int64)
        place = tf.Variable([0, 0, 0], dtype=tf.int64)
        checkpoint = parts.make_checkpoint(self._model, optimizer, counter, place, None)
        self._checkpoints = checkpoints.Checkpoints(
            str(folder), checkpoint, None, 100, 0, Console(io.StringIO())
        )
        record.begin(str(folder), self.config)

    def save(self, step, weight):
        self._model.trainable_variables[0].assign([[weight]])
        return self._checkpoints.save(step)

    def delete(self, step):
        for path in self.folder.glob(f"ckpt-{step}.*"):
            os.remove(path)

    def damage(self, step):
        """Leaves a checkpoint half of its index."""
        path = self.folder / f"ckpt-{step}.index"
        path.write_bytes(path.read_bytes()[:20])

    def lose_data(self, step):
        """Leaves a checkpoint its index alone."""
        for path in self.folder.glob(f"ckpt-{step}.data-*"):
            os.remove(path)

    def end(self, status):
        record.end(str(self.folder), status)

    def resume(self):
        record.open_anew(str(self.folder))


@pytest.fixture(autouse=True)
def untraced():
    """Tracing takes longer than ten examples do."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


class Watch:
    """What an evaluator did."""

    def __init__(self, status, lines):
        self.status = status
        self.lines = lines
        shown = [line for line in lines if line.startswith("Evaluation of ")]
        self.steps = [int(line.split(":")[0].rpartition("-")[2]) for line in shown]


@pytest.fixture
def watch(training, clock, monkeypatch):
    """A function that runs an evaluator, and acts whenever it would sleep."""

    def watch(*actions, signals=None, patience=0.0, **options):
        terminal, left = io.StringIO(), list(actions)

        def sleep(seconds):
            assert 0 < seconds < 5
            clock.advance(seconds)
            left.pop(0)()

        time = types.SimpleNamespace(sleep=sleep, monotonic=clock)
        monkeypatch.setattr(evaluator, "time", time)
        status = evaluator.watch(
            experiment,
            training.config.replace(**options),
            Console(terminal),
            signals or Signals(),
            patience,
        )
        assert not left
        return Watch(status, terminal.getvalue().splitlines())

    return watch


@pytest.fixture
def during_evaluation(monkeypatch):
    """A function that lets something happen while a checkpoint is evaluated."""

    def during(action):
        evaluate = Assessment.evaluate

        def act(self, is_over):
            action()
            return evaluate(self, is_over)

        monkeypatch.setattr(Assessment, "evaluate", act)

    return during


@pytest.fixture
def stopped():
    """A function that makes signals, and an action that sends one of them."""

    def stopped():
        signals = Signals()
        return signals, lambda: signals.received.append(15)

    return stopped
