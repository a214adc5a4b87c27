"""An update of the weights by the optimizer, as one step of many workers.

Keras counts updates in a variable, and makes one as if it had the weights at hand. Here
the count is the step's number, and the weights may be on other devices.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from dtrain.strategies import fused, keras_ways
from dtrain.strategies.messages import Direct, Packed, Read


class Update:
    """Updates the weights from gradients.

    Args:
        model: built.
        optimizer: built on the model's trainable variables.
        messages: how gradients come to the weights.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        messages: Direct | Packed,
    ):
        self._model = model
        self._optimizer = optimizer
        self._messages = messages

    def rate_to_fetch(self) -> Read | None:
        """Returns how to read the rate that the optimizer keeps, to come with weights.

        Returns:
            `None` where it is at hand, or a function of the step.
        """
        kept = self._kept_rate()
        if kept is None or not self._messages.is_remote:
            return None
        return kept.device, lambda: _to_bits(tf.convert_to_tensor(kept))

    def rate(self, fetched: tf.Tensor) -> tf.Tensor:
        """Returns the rate, of what has been fetched."""
        return _from_bits(fetched, self._kept_rate().dtype)

    def apply(
        self,
        gradients: Sequence,
        step: tf.Tensor,
        within: Callable[[Callable], Any],
        rate: tf.Tensor | None,
    ) -> None:
        """Updates the weights as number `step` of the run.

        Keras' `apply` clips, decays and updates, in this order. Whoever averages
        gradients over replicas has done so before.

        Args:
            gradients: dense, sparse or `None`, one a trainable weight.
            step: its number, an int64 scalar.
            within: calls the update as the strategy wants it called.
            rate: what the optimizer keeps as its learning rate, if it has been read.
        """
        # Some strategies call in a thread of their own, in which Keras asks for
        # the rate; what it then merges over replicas it calls in this one.
        with self._counted_as(step, rate):
            within(lambda: self._update(gradients, step, rate))

    def _update(
        self, gradients: Sequence, step: tf.Tensor, rate: tf.Tensor | None
    ) -> None:
        updating = contextlib.nullcontext()
        if self._messages.is_remote:
            updating = keras_ways.updating(
                self._optimizer,
                lambda update, pairs, own: self._send(update, pairs, step, own),
            )
        fused_updates = fused.updates(self._optimizer)
        with self._counted_as(step, rate), updating, fused_updates:
            self._optimizer.apply(gradients, self._model.trainable_variables)

    def _send(
        self, update: Callable, pairs: Sequence[tuple], step: tf.Tensor, rate: Any
    ) -> None:
        """Updates weights where they are, each device's from what is sent there.

        With the gradients go the step's number and the rate, which an update asks for.

        Args:
            update: makes the optimizer's updates: `(pairs, rate)`.
            pairs: (gradient, variable), a `tf.Variable`.
            step: its number, an int64 scalar.
            rate: a float scalar.
        """
        rate = tf.convert_to_tensor(rate)
        numbers = tf.stack([tf.cast(step, tf.int64), _to_bits(rate)])
        devices = [variable.device for _, variable in pairs]
        targets = list(dict.fromkeys(devices))
        sent = self._messages.send(
            [*(gradient for gradient, _ in pairs), *[numbers] * len(targets)],
            [*devices, *targets],
        )
        gradients, numbers = sent[: len(pairs)], sent[len(pairs) :]
        for target, own_numbers in zip(targets, numbers, strict=True):
            own = [
                (gradient, variable)
                for gradient, (_, variable) in zip(gradients, pairs, strict=True)
                if variable.device == target
            ]
            with tf.device(target):
                number, bits = tf.unstack(own_numbers)
                own_rate = _from_bits(bits, rate.dtype)
                with self._counted_as(number, own_rate):
                    update(own, own_rate)

    def _counted_as(
        self, step: tf.Tensor, rate: tf.Tensor | None
    ) -> keras.StatelessScope:
        """Returns a scope, of one thread, in which a step is the optimizer's count.

        Schedules and bias corrections ask `optimizer.iterations`, which Keras counts
        by reading and writing: under asynchrony it falls behind. Within the scope it
        is this step's ticket, and nothing is written to it. A rate that was read with
        the weights is not read again.
        """
        iterations = self._optimizer.iterations
        mapping = [(iterations, tf.cast(step, iterations.dtype))]
        if rate is not None and self._kept_rate() is not None:
            mapping.append((self._optimizer._learning_rate, rate))
        return keras_ways.TicketScope(iterations, mapping)

    def _kept_rate(self) -> tf.Variable | None:
        """Returns the variable that the optimizer keeps its rate in, if it does."""
        kept = self._optimizer._learning_rate
        return kept.value if isinstance(kept, keras.Variable) else None


def _to_bits(number: tf.Tensor) -> tf.Tensor:
    """Returns a floating scalar as an int64, of which nothing is rounded on the way."""
    return tf.bitcast(tf.cast(number, tf.float64), tf.int64)


def _from_bits(bits: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(tf.bitcast(bits, tf.float64), dtype)
