"""Checkpoints looked at without training: evaluated, or given to others."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from dtrain import errors
from dtrain.config import RunConfig
from dtrain.experiment import Experiment
from dtrain.input import feed
from dtrain.session import checkpoints
from dtrain.strategies import parts
from dtrain.strategies.evaluation import Evaluation


class Assessment:
    """An experiment's model in this process, with the weights of any checkpoint.

    Args:
        experiment: what was trained.
        config: without gaps.

    Attributes:
        model: with the weights of the checkpoint that was read last.
        batch_spec: of the evaluation data.
        metric_names: of what is measured beside the loss.

    Raises:
        UsageError: there is no evaluation data, by which inputs are known.
    """

    def __init__(self, experiment: Experiment, config: RunConfig):
        if experiment.eval_data is None:
            raise errors.UsageError(
                f"Experiment {config.experiment} has no eval_data, which this needs. "
                "Add it: eval_data=lambda: ..."
            )
        keras.utils.set_random_seed(config.seed)
        data, _ = feed.open_evaluation(experiment.eval_data, config.batch_size)
        self.batch_spec = data.element_spec
        self.model = parts.build_model(
            experiment, self.batch_spec, config.mixed_precision
        )
        objective = parts.make_objective(experiment, self.model, self.batch_spec)
        self.metric_names = objective.metric_names
        self._evaluation = Evaluation(
            experiment, self.model, objective, config.batch_size
        )

    def read(self, path: str) -> None:
        """Takes over a checkpoint's weights.

        Raises:
            FileNotFoundError: it is not there (any more).
            Damaged: it cannot be read as a whole.
            UsageError: it is a different model's.
        """
        try:
            weights = parts.weights_of(self.model)
            status = tf.train.Checkpoint(weights=weights).read(path)
            status.assert_existing_objects_matched().expect_partial()
        except (AssertionError, ValueError) as error:
            raise errors.UsageError(
                f"{path} does not fit this model: {str(error).splitlines()[0]} Give "
                "the --experiment that made it."
            ) from error
        except Exception as error:
            if not checkpoints.is_damage(error):
                raise
            folder = path.rpartition("/")[0]
            if path not in checkpoints.find(folder):
                raise FileNotFoundError(path) from error
            raise checkpoints.Damaged(
                f"{path} is damaged: {errors.tidy(str(error))}"
            ) from error

    def evaluate(self, is_over: Callable[[], bool]) -> dict[str, float] | None:
        """Returns what an evaluation measures; `None` if it was ended.

        Args:
            is_over: asked between batches; true ends it.
        """
        return self._evaluation.run(is_over)
