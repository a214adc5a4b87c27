"""Evaluation in one process, the same under every strategy."""

import keras
import tensorflow as tf

from dtrain import errors
from dtrain.experiment import Experiment
from dtrain.strategies import pipelines
from dtrain.strategies.base import call
from dtrain.strategies.failures import explain
from dtrain.strategies.objective import Objective, rows, unpack


class Evaluation:
    """Every evaluation example exactly once, in this process.

    The weights are read once, so that a pass sees one state of the model however
    far away its variables are.
    """

    def __init__(
        self, experiment: Experiment, model: keras.Model, objective: Objective
    ):
        self._model = model
        self._objective = objective
        self._data = None
        if experiment.eval_data is not None:
            self._data = pipelines.open_evaluation(experiment.eval_data)

    def run(self) -> dict[str, float] | None:
        """Returns loss, metrics and "examples"; `None` if there is no data.

        Raises:
            TrainingFailed: the data has no example, or the pipeline raised.
        """
        if self._data is None:
            return None
        weights = [v.value.numpy() for v in self._model.trainable_variables]
        state = [v.value.numpy() for v in self._model.non_trainable_variables]
        try:
            totals, examples = self._pass(iter(self._data), weights, state)
        except tf.errors.OpError as error:
            raise explain(error) from error
        count = int(examples)
        if not count:
            raise errors.TrainingFailed("eval_data has no example.")
        return {**self._objective.results(totals.numpy(), count), "examples": count}

    @tf.function
    def _pass(self, iterator, weights, state):
        loss_sum = tf.zeros([], tf.float64)
        examples = tf.zeros([], tf.int64)
        metrics = self._objective.initial_states()
        for batch in iterator:
            loss, count, metrics = self._measure(batch, weights, state, metrics)
            loss_sum += tf.cast(loss, tf.float64) * tf.cast(count, tf.float64)
            examples += count
        return self._objective.pack(loss_sum, metrics), examples

    @tf.autograph.experimental.do_not_convert
    def _measure(self, batch, weights, state, metrics):
        x, y, sample_weight = unpack(batch)
        y_pred, _, added = call(self._model, weights, state, x, training=False)
        loss = self._objective.loss(y, y_pred, sample_weight, added)
        return loss, rows(x), self._objective.update(metrics, y, y_pred)
