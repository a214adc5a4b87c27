"""One process, one device: the reference that other strategies are compared with.

Heir of a plain `tf.Session` on one machine.
"""

import keras
import tensorflow as tf

from dtrain.config import RunConfig
from dtrain.experiment import Experiment, InputContext
from dtrain.strategies import parts, pipelines
from dtrain.strategies.common import CommonTrainer
from dtrain.strategies.failures import explained


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

        keras.utils.set_random_seed(config.seed)  # shuffles without a seed, too
        data = pipelines.open_training(experiment.train_data, InputContext())
        self._iterator = iter(data)

        keras.utils.set_random_seed(config.seed)
        model = parts.build_model(experiment, data.element_spec)
        optimizer = parts.make_optimizer(experiment, config)
        optimizer.build(model.trainable_variables)
        with tf.device("CPU:0"):  # where alone fetch-and-add is implemented
            counter = tf.Variable(0, dtype=tf.int64, name="global_step")
        super().__init__(
            experiment, config, data.element_spec, model, optimizer, counter
        )
        self._packed = tf.function(self._pack(), autograph=False)

    def train(self, num_steps: int) -> None:
        with explained(), self._loop_size.timed(num_steps):
            totals = self._packed(self._iterator, tf.constant(num_steps, tf.int64))
        self._note(totals.numpy(), num_steps)

    def wait(self) -> None:
        """Does nothing: no step is ever under way between two calls."""
