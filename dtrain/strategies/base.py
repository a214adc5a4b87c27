"""The Trainer protocol, and the one training step that every strategy shares.

The outer loop decides when (checkpoint, evaluate, summarise, stop); a Trainer,
what. The step is written against tensors: weights are read, gradients are taken
with `Model.stateless_call`, and only then is anything written. So the same code
runs where the variables are and far from them.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from dtrain import errors
from dtrain.strategies.objective import Objective, unpack
from dtrain.strategies.totals import Totals

# Steps written out one after the other in a packed call; see docs/design.md.
UNROLL = 10

# Draws of random numbers that one seed generator may make in a step.
_DRAWS_PER_STEP = 4096


class Trainer(Protocol):
    """What a strategy gives to the outer loop.

    Attributes:
        global_step: updates that are known to be done.
        totals: loss and metrics of all steps that are known to be done.
        steps_per_loop: steps worth asking for in one call of `train`.
        replicas: replicas that compute the same step of training.
        examples_per_step: examples that one update sees, over all replicas.
        checkpoint: model, optimizer and global step; one layout for all strategies.
        checkpoint_options: how to save and restore it.
        description: lines for the start banner.
        worker_steps: steps that each worker has done in this run; empty if there
            are no workers.
    """

    global_step: int
    totals: Totals
    steps_per_loop: int
    replicas: int
    examples_per_step: int
    checkpoint: tf.train.Checkpoint
    checkpoint_options: tf.train.CheckpointOptions
    description: list[str]
    worker_steps: list[int]

    def train(self, num_steps: int) -> None:
        """Advances by exactly `num_steps`; some of them may still be under way."""

    def wait(self) -> None:
        """Returns once every step that was asked for is done."""

    def evaluate(self, is_over: Callable[[], bool]) -> dict[str, float] | None:
        """Runs over every evaluation example exactly once; needs `wait` before.

        Args:
            is_over: asked between batches; true ends the evaluation.

        Returns:
            "loss", every metric, and "examples"; `None` without evaluation data, or
            if it was ended.
        """

    def learning_rate(self) -> float:
        """Returns the rate that the next step would use."""

    def before_save(self) -> None:
        """Brings the variables that only checkpoints hold up to date."""

    def after_restore(self) -> None:
        """Takes over the global step that a checkpoint brought."""


class Step:
    """One step of training: forward, backward, update.

    Args:
        model: built.
        optimizer: built on the model's trainable variables.
        objective: loss and metrics.
        counter: the global step, an int64 scalar.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        objective: Objective,
        counter: tf.Variable,
    ):
        self._model = model
        self._optimizer = optimizer
        self._objective = objective
        self._counter = counter
        # Seeds never change: what does is the step that they are combined with.
        self._seeds = {
            id(v): np.asarray(v.value)[0]
            for v in model.non_trainable_variables
            if _is_seed(v)
        }

    # As in Keras' own training: models and losses are called as they are written.
    @tf.autograph.experimental.do_not_convert
    def run(self, batch: Any, metrics: list[tf.Tensor]) -> tuple[tf.Tensor, list]:
        """Makes one update from one batch.

        Args:
            batch: (x, y) or (x, y, sample_weight).
            metrics: the metrics' states so far.

        Returns:
            The loss, a float32 scalar, and the metrics' new states.
        """
        x, y, sample_weight = unpack(batch)
        step = self._take_ticket()
        trainable = self._model.trainable_variables
        weights = [tf.convert_to_tensor(v.value) for v in trainable]
        state = [self._read_state(v, step) for v in self._model.non_trainable_variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            y_pred, new_state, added = call(
                self._model, weights, state, x, training=True
            )
            loss = self._objective.loss(y, y_pred, sample_weight, added)
        gradients = tape.gradient(loss, weights)
        self._apply(gradients, step)
        self._write_state(state, new_state)
        return loss, self._objective.update(metrics, y, y_pred)

    def _take_ticket(self) -> tf.Tensor:
        """Returns the number of this step, 0-based, and counts it.

        `assign_add` followed by a read is two operations: with several workers two
        of them can read the same number. This one is fetch-and-add, in the kernel.
        """
        return tf.raw_ops.ResourceCountUpTo(
            resource=self._counter.handle, limit=2**62, T=tf.int64
        )

    def _read_state(self, variable: keras.Variable, step: tf.Tensor) -> tf.Tensor:
        """Returns a variable's value; a seed's is made from the step instead.

        Keras advances a seed by reading and writing it, which workers that share
        it would do over each other. As a function of the step, dropout masks differ
        from step to step and from worker to worker, and a resumed run continues them.
        """
        if id(variable) not in self._seeds:
            return tf.convert_to_tensor(variable.value)
        dtype = variable.value.dtype
        seed = tf.constant(self._seeds[id(variable)], dtype)
        return tf.stack([seed, tf.cast(step * _DRAWS_PER_STEP, dtype)])

    def _apply(self, gradients: Sequence[tf.Tensor], step: tf.Tensor) -> None:
        """Updates the weights as number `step` of the run.

        Schedules and bias corrections ask `optimizer.iterations`, which Keras
        counts by reading and writing: under asynchrony it falls behind. Within the
        scope it is this step's ticket, and nothing is written to it.
        """
        optimizer, trainable = self._optimizer, self._model.trainable_variables
        if all(gradient is None for gradient in gradients):
            raise errors.TrainingFailed(
                "The loss depends on none of the model's trainable weights: no "
                "gradient. See that the loss is computed from the model's outputs."
            )
        iterations = optimizer.iterations
        ticket = tf.cast(step, iterations.dtype)
        with _TicketScope(state_mapping=[(iterations, ticket)]):
            optimizer.apply(gradients, trainable)

    def _write_state(self, old: Sequence[tf.Tensor], new: Sequence[tf.Tensor]) -> None:
        """Writes what the model's call changed, such as moving averages.

        As a difference that the variable's own device adds: workers that run at
        the same time then do not overwrite each other.
        """
        for variable, before, after in zip(
            self._model.non_trainable_variables, old, new, strict=True
        ):
            if after is before or id(variable) in self._seeds:
                continue
            if after.dtype.is_floating or after.dtype.is_integer:
                variable.value.assign_add(after - before)
            else:
                variable.value.assign(after)


class _TicketScope(keras.StatelessScope):
    """Gives the optimizer its count, and lets it write all else as usual."""

    def add_update(self, update):
        variable, value = update
        if self.get_current_value(variable) is None:  # all but the count
            variable.value.assign(value)


def call(
    model: keras.Model, weights: Sequence, state: Sequence, x: Any, training: bool
) -> tuple[Any, list, list]:
    """Calls a model with the values of its variables.

    Args:
        weights: values of the trainable variables.
        state: values of the other variables.
        x: inputs.
        training: passed on if the model's `call` takes it, as Keras' `fit` does.

    Returns:
        Outputs, new values of the other variables, and losses that the model adds.
    """
    parameters = inspect.signature(model.call).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    arguments = {"training": training} if "training" in parameters or takes_any else {}
    return model.stateless_call(weights, state, x, return_losses=True, **arguments)


def pack(
    step: Callable[[Any, list[tf.Tensor]], tuple[tf.Tensor, list]],
    objective: Objective,
) -> Callable[[Any, tf.Tensor], tf.Tensor]:
    """Returns `(iterator, num_steps) -> totals`, many steps in one call.

    Most steps are written out `UNROLL` at a time, which lets the runtime overlap
    one step's updates with the next one's reads; the rest run one by one. So one
    trace serves every `num_steps`, an int64 scalar, and tracing costs the same for
    any of them.

    Args:
        step: `(batch, metrics) -> (loss, metrics)`.
        objective: whose metric states start at zero, and are packed with the loss.
    """

    # Loops by hand, because AutoGraph wraps what the user's code raises in a stack.
    def packed(iterator, num_steps):
        def one(index, loss_sum, metrics):
            loss, metrics = step(next(iterator), metrics)
            return index + 1, loss_sum + loss, metrics

        def many(index, *state):
            for _ in range(UNROLL):
                _, *state = one(index, *state)
            return index + 1, *state

        state = tf.zeros([], tf.float32), objective.initial_states()
        loops = (many, num_steps // UNROLL), (one, num_steps % UNROLL)
        for body, times in loops:
            start = tf.zeros([], tf.int64)
            _, *state = tf.while_loop(
                lambda index, *_, times=times: index < times, body, (start, *state)
            )
        return objective.pack(*state)

    return packed


def _is_seed(variable: keras.Variable) -> bool:
    return variable.name == "seed_generator_state"
