"""What an experiment's factories make, checked: model, optimizer, objective."""

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from dtrain import errors
from dtrain.config import RunConfig
from dtrain.experiment import Experiment
from dtrain.input import form
from dtrain.strategies.objective import Objective, unpack


def make_objective(
    experiment: Experiment, model: keras.Model, batch_spec: Any
) -> Objective:
    """Returns losses and metrics that fit the model's outputs for such batches."""
    x, y, _ = unpack(batch_spec)
    outputs = model.compute_output_spec(symbols(x))
    y_pred = keras.tree.map_structure(
        lambda t: tf.zeros([size or 1 for size in t.shape], t.dtype), outputs
    )
    names = getattr(model, "output_names", None) or []
    return Objective(experiment, names, example_of_zeros(y), y_pred)


def make_optimizer(experiment: Experiment, config: RunConfig) -> Any:
    """Returns the experiment's optimizer, or what the flags put in its place.

    Raises:
        UsageError: --optimizer names none, or this one keeps counters of its own
            that asynchronous workers would break.
    """
    # One that is replaced is not even made: its variables would stay on a ps.
    if config.optimizer is None:
        optimizer = experiment.optimizer()
    else:
        optimizer = _optimizer_by_name(config.optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise errors.UsageError(
            f"Experiment(optimizer=...) returned {optimizer!r}. Return a "
            "keras.optimizers.Optimizer."
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise errors.UsageError(
            "LossScaleOptimizer decides from local values whether to skip a step, "
            "which several workers do differently. Use mixed_bfloat16, which needs no "
            "loss scale, with the inner optimizer alone."
        )
    if config.learning_rate is not None:
        optimizer = _with_rate(optimizer, config.learning_rate)
    if optimizer.gradient_accumulation_steps:
        raise errors.UsageError(
            f"The optimizer has gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}, which counts steps in a way "
            "that several workers break. Leave it out, with a larger --batch_size."
        )
    return optimizer


def build_model(experiment: Experiment, batch_spec: Any) -> keras.Model:
    """Returns the experiment's model with its variables made.

    Args:
        batch_spec: of the training batches; a model that does not know its input
            yet is called once on symbols of that shape.

    Raises:
        UsageError: the factory returned no model, or one without weights.
    """
    model = experiment.model()
    if not isinstance(model, keras.Model):
        raise errors.UsageError(
            f"Experiment(model=...) returned a {type(model).__name__}. Return a "
            "keras.Model (Keras 3)."
        )
    if not model.built or not model.variables:
        model(symbols(unpack(batch_spec)[0]))
    if any(layer.compute_dtype == "float16" for layer in model.layers):
        raise errors.UsageError(
            "The model computes in float16, which needs a loss scale to train. Use "
            "mixed_bfloat16, which needs none."
        )
    if not model.trainable_variables:
        raise errors.UsageError("The model has no trainable weights: nothing to train.")
    return model


def symbols(spec: Any) -> Any:
    """Returns symbolic inputs for a structure of TensorSpecs; sizes may be free."""
    return tf.nest.map_structure(
        lambda leaf: keras.KerasTensor(
            leaf.shape.as_list(),
            leaf.dtype.name,
            sparse=isinstance(leaf, tf.SparseTensorSpec),
        ),
        spec,
    )


def example_of_zeros(spec: Any) -> Any:
    """Returns a batch of one example of zeros for a structure of TypeSpecs."""

    def one(leaf: tf.TypeSpec) -> tf.TypeSpec:
        if not isinstance(leaf, tf.TensorSpec):
            return leaf
        return tf.TensorSpec([1, *leaf.shape.as_list()[1:]], leaf.dtype)

    return form.zeros(tf.nest.map_structure(one, spec))


def rate_keeper(optimizer: keras.optimizers.Optimizer) -> Callable[[], None]:
    """Returns a function that sets a constant rate to what it is now.

    A checkpoint holds the rate of the run that made it. But the rate is an option of
    each run: what a resumed run is given has to win.
    """
    if isinstance(optimizer.get_config()["learning_rate"], dict):  # a schedule
        return lambda: None
    rate = float(optimizer.learning_rate)

    def keep() -> None:
        optimizer.learning_rate = rate

    return keep


def make_checkpoint(
    model, optimizer, counter: tf.Variable, place: tf.Variable
) -> tf.train.Checkpoint:
    """Returns the checkpoint of a run: the same layout under every strategy."""
    return tf.train.Checkpoint(
        model=model, optimizer=optimizer, global_step=counter, data=place
    )


def rate_at(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    """Returns the learning rate that step number `step` uses."""
    iterations = optimizer.iterations
    ticket = tf.constant(step, iterations.dtype)
    with keras.StatelessScope(state_mapping=[(iterations, ticket)]):
        return float(optimizer.learning_rate)


def _optimizer_by_name(name: str) -> Any:
    try:
        return keras.optimizers.get(name)
    except (ValueError, TypeError, KeyError) as error:
        known = sorted(
            key.lower()
            for key, value in vars(keras.optimizers).items()
            if isinstance(value, type) and key != "Optimizer" and _needs_nothing(value)
        )
        raise errors.UsageError(
            f"--optimizer={name} is unknown. Keras has: {', '.join(known)}."
            + errors.did_you_mean(name, known)
        ) from error


def _needs_nothing(kind: type) -> bool:
    """Returns whether a class can be made from its name alone."""
    parameters = inspect.signature(kind).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in variadic for p in parameters)


def _with_rate(
    optimizer: keras.optimizers.Optimizer, rate: float
) -> keras.optimizers.Optimizer:
    """Returns the optimizer with a constant rate, or as it is if it uses this one.

    An experiment that builds its schedule from `config.learning_rate` keeps it.
    """
    settings = optimizer.get_config()
    own = settings["learning_rate"]
    if not isinstance(own, dict):
        optimizer.learning_rate = rate
        return optimizer
    if own.get("config", {}).get("initial_learning_rate") == rate:
        return optimizer
    return type(optimizer).from_config({**settings, "learning_rate": rate})
