"""Evaluation in one process, the same under every strategy."""

import contextlib
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from dtrain import errors
from dtrain.experiment import Experiment
from dtrain.input import feed
from dtrain.input.form import rows
from dtrain.input.reading import Reading
from dtrain.strategies import failures
from dtrain.strategies.base import call
from dtrain.strategies.objective import Objective, unpack


class Evaluation:
    """Every evaluation example exactly once, in this process.

    The weights are read once, so that a pass sees one state of the model however
    far away its variables are.

    Args:
        experiment: whose `eval_data`.
        model: built; of its variables only the values are used.
        objective: loss and metrics.
        batch_size: examples in a batch of arrays.
    """

    def __init__(
        self,
        experiment: Experiment,
        model: keras.Model,
        objective: Objective,
        batch_size: int,
    ):
        self._model = model
        self._objective = objective
        self._data = None
        if experiment.eval_data is not None:
            self._data, self._source = feed.open_evaluation(
                experiment.eval_data, batch_size
            )

    def run(self, is_over: Callable[[], bool]) -> dict[str, float] | None:
        """Returns loss, metrics and "examples"; `None` if there is no data.

        Args:
            is_over: asked between batches, which Python sees one by one so that a
                signal is heard; true ends the pass, without a result.

        Raises:
            TrainingFailed: the data has no example, or the pipeline raised.
        """
        if self._data is None:
            return None
        weights = [
            tf.constant(v.value.numpy()) for v in self._model.trainable_variables
        ]
        state = [
            tf.constant(v.value.numpy()) for v in self._model.non_trainable_variables
        ]
        loss_sum, weight_sum = tf.zeros([], tf.float64), tf.zeros([], tf.float64)
        examples = tf.zeros([], tf.int64)
        metrics = self._objective.initial_states()
        with self._explained(), contextlib.closing(Reading(self._data)) as reading:
            for batch in reading.iterator:
                if is_over():
                    return None
                loss, weight, count, metrics = self._add(batch, weights, state, metrics)
                loss_sum, weight_sum = loss_sum + loss * weight, weight_sum + weight
                examples += count
        count = int(examples)
        if not count:
            raise errors.TrainingFailed("eval_data has no example.")
        totals = self._objective.pack(loss_sum, metrics).numpy()
        results = self._objective.results(totals, float(weight_sum) or 1.0)
        return {**results, "examples": count}

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns TensorFlow's errors into dtrain's; the user's own code comes first."""
        try:
            yield
        except tf.errors.OpError as error:
            failure = self._source and self._source.failure
            if failure is None:
                raise failures.explain(error) from error
            text = errors.describe_with_traceback(failure)
            raise errors.TrainingFailed(f"eval_data failed: {text}") from error

    # The last batch is smaller: with free sizes it is not traced anew.
    @tf.function(autograph=False, reduce_retracing=True)
    def _add(self, batch, weights, state, metrics):
        x, y, sample_weight = unpack(batch)
        y_pred, _, added = call(self._model, weights, state, x, training=False)
        loss = self._objective.loss(y, y_pred, sample_weight, added)
        count = rows(x)
        weight = self._objective.weight(y, y_pred, sample_weight, count)
        loss, weight = tf.cast(loss, tf.float64), tf.cast(weight, tf.float64)
        return loss, weight, count, self._objective.update(metrics, y, y_pred)
