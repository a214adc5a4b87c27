"""One process, one device: the reference that other strategies are compared with.

Heir of a plain `tf.Session` on one machine.
"""

import time
from collections.abc import Callable

import keras
import tensorflow as tf

from dtrain.config import RunConfig
from dtrain.experiment import Experiment
from dtrain.input.reading import Reading
from dtrain.input.share import Share
from dtrain.strategies import aside, parts, pipelines
from dtrain.strategies import tally as tally_lib
from dtrain.strategies.common import CommonTrainer


class LocalTrainer(CommonTrainer):
    """A Trainer in this process.

    Args:
        experiment: what to train.
        config: without gaps.
    """

    def __init__(self, experiment: Experiment, config: RunConfig):
        self.is_synchronous = True
        self.replicas = 1
        self.worker_steps: list[int] = []
        self.description: list[str] = []
        self.checkpoint_options = tf.train.CheckpointOptions()

        share = Share(seed=config.seed, epochs=config.epochs)
        self._inputs = pipelines.OwnInputs(
            experiment.train_data, share, config.batch_size
        )
        self._reading: Reading | None = None

        keras.utils.set_random_seed(config.seed)
        model = parts.build_model(
            experiment, self._inputs.outline.spec, config.mixed_precision
        )
        optimizer = parts.make_optimizer(experiment, config)
        optimizer.build(model.trainable_variables)
        with tf.device("CPU:0"):  # where alone fetch-and-add is implemented
            counter = tf.Variable(0, dtype=tf.int64, name="global_step")
        super().__init__(
            experiment, config, self._inputs.outline, 1, model, optimizer, counter
        )
        self._packed: Callable | None = None

    def train(self, num_steps: int) -> None:
        started = time.monotonic()
        with self._inputs.explained(), self._loop_size.timed(num_steps):
            if self._reading is None:
                self._reading = self._inputs.open(self._place)
            if self._packed is None:  # here: Keras keeps what it needs by thread
                self._packed = pipelines.trace(self._pack(), self._inputs.outline.spec)
            steps = tf.constant(num_steps, tf.int64)
            totals = aside.call(self._packed, self._reading.iterator, steps)
        totals = totals.numpy()
        tail = tally_lib.tail(totals)
        self.is_over = tail.updates < num_steps
        waits = [(0, tail.waited, time.monotonic() - started)]
        self._note(totals, tail.updates, tail.batches, tail.begun, waits, tail.bad_step)

    def wait(self) -> None:
        """Does nothing: no step is ever under way between two calls."""
