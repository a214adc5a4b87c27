"""The one training step that every strategy shares.

It is written against tensors: weights are read, gradients are taken with
`Model.stateless_call`, and only then is anything written. So the same code runs where
the variables are and far from them.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain import errors
from dtrain.input.form import rows
from dtrain.strategies import gradients as gradients_lib
from dtrain.strategies import keras_ways, pipelines
from dtrain.strategies import loss_scale as loss_scale_lib
from dtrain.strategies import tally as tally_lib
from dtrain.strategies.gradients import Sums
from dtrain.strategies.loss_scale import LossScale
from dtrain.strategies.messages import Direct, Packed
from dtrain.strategies.objective import Objective, unpack
from dtrain.strategies.staleness import Staleness
from dtrain.strategies.update import Update

# Draws of random numbers that one seed generator may make for a batch.
_DRAWS_PER_STEP = 4096

# 2**32 over the golden ratio: its multiples, the replicas' seeds, lie far apart.
_GOLDEN = 0x9E3779B1


class Step:
    """One step of training: forward, backward, update.

    Args:
        model: built.
        optimizer: built on the model's trainable variables.
        objective: loss and metrics.
        counter: the global step, an int64 scalar.
        accumulate_steps: micro-batches before one update.
        replica: which of the replicas of a global batch this is.
        seed: for what the model draws without a seed of its own.
        loss_scale: for gradients in float16.
        staleness: counts how stale updates are, where workers are asynchronous.
        messages: how weights come to the step, and gradients to the weights.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        objective: Objective,
        counter: tf.Variable,
        accumulate_steps: int = 1,
        replica: int = 0,
        seed: int = 0,
        loss_scale: LossScale | None = None,
        staleness: Staleness | None = None,
        messages: Direct | Packed | None = None,
    ):
        self.loss_scale = loss_scale
        self._staleness = staleness
        self._messages = messages or Direct()
        self._update = Update(model, optimizer, self._messages)
        self._model = model
        self._optimizer = optimizer
        self._objective = objective
        self._counter = counter
        self._accumulate_steps = accumulate_steps
        # Seeds never change: what does is the step that they are combined with.
        own = np.uint32(replica * _GOLDEN % 2**32)
        self._seed = np.uint32(seed % 2**32) ^ own
        self._seeds = {
            id(v): np.asarray(v.value)[0] ^ own
            for v in model.non_trainable_variables
            if _is_seed(v)
        }
        # Variables that the model's calls write, known once a step is traced.
        self.changed: dict[int, keras.Variable] = {}

    def run(
        self,
        iterator: Any,
        tally: list,
        may_end: bool = False,
        within: Callable[[Callable], Any] = lambda step: step(),
    ) -> tuple:
        """Makes one update, where no other replica takes part in it.

        Args:
            iterator: of elements (begun, batch), as `input.feed` makes them.
            tally: see `tally.py`.
            may_end: the data may end; then nothing is done.
            within: calls a part of a step as the strategy wants it called.

        Returns:
            The loss, a float32 scalar, and the new tally.
        """
        if not may_end:
            return self._run(lambda _: (next(iterator), None), tally, within)
        # Whether there is a batch has to be known before the weights are read. The
        # smallest one is there when the update before this step is done.
        weights = self._model.trainable_variables
        smallest = min(weights, key=lambda v: math.prod(v.shape))
        updated = tf.convert_to_tensor(smallest.value)
        first = iterator.get_next_as_optional()
        has_value = first.has_value()
        waited = tally_lib.seconds_between([updated], has_value)
        tally = tally_lib.add_wait(tally, waited)

        def element(index):
            if self._accumulate_steps == 1:
                return first.get_value(), None
            return tf.cond(
                tf.equal(index, 0),
                lambda: (first.get_value(), tf.constant(True)),
                lambda: pipelines.next_or_zeros(iterator),
            )

        return tf.cond(
            has_value,
            lambda: self._run(element, tally, within),
            lambda: (tf.zeros([]), list(tally)),
        )

    def _run(self, element: Callable, tally: list, within: Callable) -> tuple:
        landed = self._staleness and self._staleness.before_read()
        step, rate, weights = self._fetch(landed)
        loss, gradients, tally = within(
            lambda: self._compute(element, step, tally, weights)
        )
        first_op = len(tf.compat.v1.get_default_graph().get_operations())
        self.apply(gradients, step, within, rate)
        if self._staleness is not None:
            self._staleness.after_write(landed, first_op)
        return loss, tally_lib.with_update(tally, loss, step)

    def _compute(
        self, element: Callable, step: tf.Tensor, tally: list, weights: list
    ) -> tuple[tf.Tensor, list, list]:
        """Returns loss and gradients of one update's batches, and the new tally."""
        if self._accumulate_steps == 1:
            batch, _ = element(0)
            loss, _, gradients, tally = self.differentiate(
                batch, step, tally, weights=weights
            )
            return loss, gradients, tally

        def micro(index, tallies):
            batch, is_own = element(index)
            return [self.sums(batch, step, tallies[0], index, is_own, weights)]

        (sums,) = gradients_lib.accumulate(
            micro, self._accumulate_steps, lambda _: self.zeros(), [tally]
        )
        loss = tf.math.divide_no_nan(sums.loss, sums.weight)
        return loss, gradients_lib.divide(sums.gradients, sums.weight), sums.tally

    def take_ticket(self) -> tf.Tensor:
        """Returns the number of this step, 0-based, and counts it.

        `assign_add` followed by a read is two operations: with several workers two
        of them can read the same number. This one is fetch-and-add, in the kernel.
        """
        return tf.raw_ops.ResourceCountUpTo(
            resource=self._counter.handle, limit=2**62, T=tf.int64
        )

    def peek_ticket(self) -> tf.Tensor:
        """Returns the number of this step, where nobody else counts meanwhile."""
        return tf.convert_to_tensor(self._counter)

    def sums(
        self, element, step, tally, micro=0, is_own=None, weights: list | None = None
    ) -> Sums:
        """Returns what `differentiate` does, times the batch's weight.

        Args:
            is_own: a bool scalar; a batch that is not this replica's own has no weight.
                `None` if all are.
        """
        loss, weight, gradients, new = self.differentiate(
            element, step, tally, micro, is_own, weights
        )
        batches = tf.ones([])
        if is_own is not None:
            batches = tf.cast(is_own, tf.float32)
            weight, loss = (tf.where(is_own, value, 0.0) for value in (weight, loss))
            new = [tf.where(is_own, a, b) for a, b in zip(new, tally, strict=True)]
        gradients = gradients_lib.scale(gradients, weight)
        return Sums(batches, weight, loss * weight, gradients, new)

    # As in Keras' own training: models and losses are called as they are written.
    @tf.autograph.experimental.do_not_convert
    def differentiate(
        self,
        element: Any,
        step: tf.Tensor,
        tally: list,
        micro: tf.Tensor | int = 0,
        is_own: tf.Tensor | None = None,
        weights: list[tf.Tensor] | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, list, list]:
        """Runs one batch forward and backward, and keeps the state it changes.

        Args:
            element: (begun, batch), as `input.feed` makes them.
            step: the number of this step.
            tally: see `tally.py`.
            micro: which micro-batch of the step this is.
            is_own: a bool scalar; a batch that is not changes no state. `None` if
                all are.
            weights: the trainable ones' values; `None` to read them.

        Returns:
            The loss and its weight, float32 scalars; the gradient, one a trainable
            weight; and the new tally.
        """
        begun, batch = element
        x, y, sample_weight = unpack(batch)
        draws = (step * self._accumulate_steps + tf.cast(micro, tf.int64)) * (
            _DRAWS_PER_STEP
        )
        if weights is None:
            weights = [
                tf.convert_to_tensor(v.value) for v in self._model.trainable_variables
            ]
        state = self._read_state(draws)
        waited = tally_lib.seconds_between(weights, batch)
        with (
            keras_ways.unscaled_losses(),
            keras_ways.seeds_of_step(self._seed, draws),
            tf.GradientTape(watch_accessed_variables=False) as tape,
        ):
            tape.watch(weights)
            y_pred, new_state, added = call(
                self._model, weights, state, x, training=True
            )
            loss = self._objective.loss(y, y_pred, sample_weight, added)
            scaled = self._optimizer.scale_loss(loss)  # `apply` takes it back
            if self.loss_scale is not None:
                scale = self.loss_scale.read()
                scaled *= scale
        gradients = tape.gradient(scaled, weights)
        if self.loss_scale is not None:
            gradients = gradients_lib.scale(gradients, 1.0 / scale)
        if all(gradient is None for gradient in gradients):
            raise errors.TrainingFailed(
                "The loss depends on none of the model's trainable weights: no "
                "gradient. See that the loss is computed from the model's outputs."
            )
        self._write_state(state, new_state, is_own)
        weight = self._objective.weight(y, y_pred, sample_weight, rows(x))
        # Some gradients, as of a dense layer over sequences, do not know their shape.
        gradients = [
            g
            if g is None or isinstance(g, tf.IndexedSlices)
            else tf.ensure_shape(g, w.shape)
            for g, w in zip(gradients, weights, strict=True)
        ]
        metrics = self._objective.update(tally_lib.metrics(tally), y, y_pred)
        return loss, weight, gradients, tally_lib.add(tally, metrics, waited, begun)

    def apply(
        self,
        gradients: Sequence,
        step: tf.Tensor,
        within: Callable[[Callable], Any] = lambda update: update(),
        rate: tf.Tensor | None = None,
    ) -> None:
        """Updates the weights as number `step` of the run; see `Update.apply`.

        With a loss scale, an update of which a gradient is no number is left out.
        """
        gradients = [
            gradients_lib.merge_rows(g) if isinstance(g, tf.IndexedSlices) else g
            for g in gradients
        ]

        def update() -> tf.Tensor:
            self._update.apply(gradients, step, within, rate)
            return tf.constant(True)

        if self.loss_scale is None:
            update()
            return
        is_good = loss_scale_lib.are_finite(gradients)
        tf.cond(is_good, update, lambda: tf.constant(False))
        self.loss_scale.note(is_good)

    def zeros(self) -> list[tf.Tensor]:
        """Returns a gradient of nothing: one tensor of zeros a trainable weight."""
        return [tf.zeros(v.shape, v.dtype) for v in self._model.trainable_variables]

    def _fetch(
        self, landed: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor | None, list[tf.Tensor]]:
        """Returns a ticket, the rate that the optimizer keeps, and the weights.

        Args:
            landed: what the weight that is counted is to be read after, if anything.
        """

        def reader(variable: tf.Variable, after: Sequence) -> Callable:
            def read() -> tf.Tensor:
                with tf.control_dependencies(after):
                    return tf.convert_to_tensor(variable)

            return read

        reads = [(self._counter.device, self.take_ticket)]
        rate = self._update.rate_to_fetch()
        if rate is not None:
            reads.append(rate)
        for index, variable in enumerate(self._model.trainable_variables):
            is_counted = landed is not None and index == self._staleness.index
            read = reader(variable.value, [landed] if is_counted else [])
            reads.append((variable.value.device, read))
        step, *values = self._messages.fetch(reads)
        if rate is not None:
            rate, *values = self._update.rate(values[0]), *values[1:]
        return step, rate, values

    def _read_state(self, draws: tf.Tensor) -> list[tf.Tensor]:
        """Returns the other variables' values; a seed's is made from the step instead.

        Keras advances a seed by reading and writing it, which workers that share
        it would do over each other. As a function of the step and the replica,
        dropout masks differ from step to step, from worker to worker and from replica
        to replica, and a resumed run continues them.
        """
        variables = self._model.non_trainable_variables
        kept = [v.value for v in variables if id(v) not in self._seeds]
        reads = [(v.device, lambda v=v: tf.convert_to_tensor(v)) for v in kept]
        values = iter(self._messages.exact().fetch(reads))
        return [
            keras_ways.seed_at(self._seeds[id(v)], draws, v.value.dtype)
            if id(v) in self._seeds
            else next(values)
            for v in variables
        ]

    def _write_state(
        self,
        old: Sequence[tf.Tensor],
        new: Sequence[tf.Tensor],
        is_own: tf.Tensor | None,
    ) -> None:
        """Writes what the model's call changed, such as moving averages.

        As a difference that the variable's own device adds: workers that run at
        the same time then do not overwrite each other.
        """
        writes, values = [], []
        for variable, before, after in zip(
            self._model.non_trainable_variables, old, new, strict=True
        ):
            if after is before or id(variable) in self._seeds:
                continue
            self.changed[id(variable)] = variable
            if is_own is not None:
                after = tf.where(is_own, after, before)
            is_number = after.dtype.is_floating or after.dtype.is_integer
            write = variable.value.assign_add if is_number else variable.value.assign
            writes.append((variable.value.device, write))
            values.append(after - before if is_number else after)
        sent = self._messages.exact().send(values, [device for device, _ in writes])
        for (device, write), value in zip(writes, sent, strict=True):
            with tf.device(device):
                write(value)


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
    keras_ways.forget_losses(model)
    return model.stateless_call(weights, state, x, return_losses=True, **arguments)


def _is_seed(variable: keras.Variable) -> bool:
    return variable.name == "seed_generator_state"
