"""What an experiment's factories make, checked: model, optimizer, objective."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from dtrain import errors
from dtrain.config import RunConfig
from dtrain.experiment import Experiment
from dtrain.input import form
from dtrain.strategies import schedules
from dtrain.strategies.loss_scale import LossScale
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
            "which several workers do differently. Give the inner optimizer alone, and "
            "--mixed_precision=float16, which scales the loss for all of them."
        )
    optimizer = _with_rate(optimizer, config)
    if config.clip_norm is not None:
        optimizer.clipnorm = optimizer.clipvalue = None
        optimizer.global_clipnorm = config.clip_norm
    if config.weight_decay is not None:
        optimizer.weight_decay = config.weight_decay
    if optimizer.gradient_accumulation_steps:
        raise errors.UsageError(
            f"The optimizer has gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}, which counts steps in a way "
            "that several workers break. Leave it out, with a larger --batch_size."
        )
    return optimizer


def make_loss_scale(config: RunConfig) -> LossScale | None:
    """Returns what float16 needs; `None` for all other precisions."""
    return LossScale() if config.mixed_precision == "float16" else None


def build_model(
    experiment: Experiment, batch_spec: Any, precision: str | None = None
) -> keras.Model:
    """Returns the experiment's model with its variables made.

    Args:
        batch_spec: of the batches; a model that does not know its input yet is called
            once on symbols of that shape.
        precision: in which layers compute that do not say so themselves, "bfloat16" or
            "float16"; their weights are float32.

    Raises:
        UsageError: the factory returned no model, or one without weights.
    """
    with _policy(precision):
        model = experiment.model()
        if not isinstance(model, keras.Model):
            raise errors.UsageError(
                f"Experiment(model=...) returned a {type(model).__name__}. Return a "
                "keras.Model (Keras 3)."
            )
        if not model.built or not model.variables:
            model(symbols(unpack(batch_spec)[0]))
    layers = model._flatten_layers()  # those in layers, too
    needs_scale = any(layer.compute_dtype == "float16" for layer in layers)
    if needs_scale and precision != "float16":
        raise errors.UsageError(
            "The model computes in float16, which needs a loss scale to train. Add "
            "--mixed_precision=float16, or use mixed_bfloat16, which needs none."
        )
    if not model.trainable_variables:
        raise errors.UsageError("The model has no trainable weights: nothing to train.")
    return model


@contextlib.contextmanager
def _policy(precision: str | None) -> Iterator[None]:
    """Within it, layers are made that compute in this precision."""
    before = keras.config.dtype_policy()
    if precision is not None:
        keras.config.set_dtype_policy(f"mixed_{precision}")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


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


class OptimizerState(tf.Module):
    """What a checkpoint holds of an optimizer: all but the rate.

    The rate, or its schedule, is an option of each run. Keras keeps a constant one
    among the slots, where it would shift them.

    Args:
        optimizer: built.

    Attributes:
        kind: the optimizer's class.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer):
        super().__init__()
        self.kind = type(optimizer).__name__
        self._iterations = optimizer.iterations
        left_out = [id(optimizer.iterations), id(optimizer._learning_rate)]
        self.slots = [v for v in optimizer.variables if id(v) not in left_out]
        known = {*left_out, *map(id, optimizer.variables)}
        # A class of the user's own may have others.
        self.own = {
            name: value
            for name, value in vars(optimizer).items()
            if isinstance(value, keras.Variable) and id(value) not in known
        }


def make_checkpoint(
    model,
    optimizer,
    counter: tf.Variable,
    place: tf.Variable,
    loss_scale: LossScale | None,
) -> tf.train.Checkpoint:
    """Returns the checkpoint of a run: the same layout under every strategy."""
    checkpoint = tf.train.Checkpoint(
        model=model,
        weights=weights_of(model),
        optimizer=OptimizerState(optimizer),
        global_step=counter,
        data=place,
    )
    if loss_scale is not None:
        checkpoint.loss_scale = loss_scale
    return checkpoint


def weights_of(model: keras.Model) -> list[keras.Variable]:
    """Returns what a checkpoint holds of a model.

    In a list of their own, because TensorFlow does not find the variables of layers
    that a model of Keras 3 keeps in lists or dicts. Seeds are made from the step.
    """
    return [v for v in model.variables if v.name != "seed_generator_state"]


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
    optimizer: keras.optimizers.Optimizer, config: RunConfig
) -> keras.optimizers.Optimizer:
    """Returns the optimizer with the rate, or the schedule, that the flags ask for.

    An experiment that builds its schedule from `config.learning_rate` keeps it.
    """
    own = optimizer._learning_rate
    has_schedule = isinstance(own, schedules.Schedule)
    rate = config.learning_rate
    if config.learning_rate_schedule or config.warmup_steps:
        if rate is not None and not (
            config.learning_rate_schedule is None and _starts_at(own, rate)
        ):
            own = rate
        elif not has_schedule:
            own = _read_rate(own)
        return _remake(optimizer, schedules.make(config, own))
    elif rate is not None and not has_schedule:
        optimizer.learning_rate = rate
    elif rate is not None and not _starts_at(own, rate):
        return _remake(optimizer, rate)
    return optimizer


def _remake(
    optimizer: keras.optimizers.Optimizer, rate: float | schedules.Schedule
) -> keras.optimizers.Optimizer:
    """Returns an optimizer like another one, but for its rate.

    One that was made with a schedule takes no constant rate any more, and one that was
    made with a constant cannot be saved once it has a schedule.

    Raises:
        UsageError: its class does not say what it is made of.
    """
    try:
        settings = optimizer.get_config()
        new = type(optimizer).from_config({**settings, "learning_rate": rate})
    except (NotImplementedError, TypeError, ValueError) as error:
        raise errors.UsageError(
            f"The rate of {type(optimizer).__name__} cannot be replaced: "
            f"{errors.describe(error)}. Give the class, and its schedule, a get_config "
            "that Keras can make another one of, or leave the flags of the rate out."
        ) from error
    for name, value in vars(optimizer).items():  # which weights do not decay
        if name.startswith("_exclude_from_weight_decay") and "cache" not in name:
            setattr(new, name, value)
    return new


def _read_rate(rate: Any) -> float:
    try:
        return float(rate)
    except TypeError as error:
        raise errors.UsageError(
            f"The optimizer's learning rate is {rate!r}, from which no schedule can "
            "start. Give a number, or add --learning_rate."
        ) from error


def _starts_at(schedule: Any, rate: float) -> bool:
    return getattr(schedule, "initial_learning_rate", None) == rate
