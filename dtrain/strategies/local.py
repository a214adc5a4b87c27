"""One process, one device: the reference that other strategies are compared with.

Heir of a plain `tf.Session` on one machine.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from dtrain.config import RunConfig
from dtrain.experiment import Experiment, InputContext
from dtrain.strategies import base, evaluation, loop_size, parts, pipelines
from dtrain.strategies.failures import explained
from dtrain.strategies.totals import Totals


class LocalTrainer:
    """A Trainer in this process.

    Args:
        experiment: what to train.
        config: without gaps.
    """

    def __init__(self, experiment: Experiment, config: RunConfig):
        self._loop_size = loop_size.LoopSize(config.steps_per_loop)
        self.replicas = 1
        self.worker_steps: list[int] = []
        self.description: list[str] = []
        self.global_step = 0
        self.checkpoint_options = tf.train.CheckpointOptions()

        keras.utils.set_random_seed(config.seed)  # shuffles without a seed, too
        data = pipelines.open_training(experiment.train_data, InputContext())
        self.examples_per_step = pipelines.batch_size(
            data.element_spec, config.batch_size
        )
        self._iterator = iter(data)
        keras.utils.set_random_seed(config.seed)
        self._model = parts.build_model(experiment, data.element_spec)
        self._optimizer = parts.make_optimizer(experiment, config)
        self._optimizer.build(self._model.trainable_variables)
        self._keep_rate = parts.rate_keeper(self._optimizer)
        with tf.device("CPU:0"):  # where alone fetch-and-add is implemented
            self._counter = tf.Variable(0, dtype=tf.int64, name="global_step")
        self.checkpoint = parts.make_checkpoint(
            self._model, self._optimizer, self._counter
        )
        self._objective = parts.make_objective(
            experiment, self._model, data.element_spec
        )
        step = base.Step(self._model, self._optimizer, self._objective, self._counter)
        self._packed = tf.function(
            base.pack(step.run, self._objective), autograph=False
        )
        self.totals = Totals(self._objective)
        self._evaluation = evaluation.Evaluation(
            experiment, self._model, self._objective
        )

    def train(self, num_steps: int) -> None:
        with explained():
            totals = self._packed(self._iterator, tf.constant(num_steps, tf.int64))
        self.totals.add(totals.numpy(), num_steps)
        self.global_step += num_steps
        self._loop_size.note(num_steps)

    def wait(self) -> None:
        self._loop_size.pause()  # no step is ever under way between two calls

    @property
    def steps_per_loop(self) -> int:
        return self._loop_size.steps

    def evaluate(self, is_over: Callable[[], bool]) -> dict[str, float] | None:
        return self._evaluation.run(is_over)

    def learning_rate(self) -> float:
        return parts.rate_at(self._optimizer, self.global_step)

    def before_save(self) -> None:
        self._optimizer.iterations.assign(self.global_step)

    def after_restore(self) -> None:
        self._keep_rate()
        self.global_step = int(self._counter.numpy())
