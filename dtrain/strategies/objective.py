"""What is minimised and what is measured: losses and metrics, by output.

Keras metrics keep their sums in variables that they read and write, which
workers that share them would do over each other. Here a metric's state is a list
of tensors that goes through the step; states of several workers are added up.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain import errors
from dtrain.experiment import Experiment


def unpack(batch: Any) -> tuple[Any, Any, Any]:
    """Returns (x, y, sample_weight) of a batch; the last may be `None`.

    Raises:
        UsageError: a batch is no tuple of two or three.
    """
    if not isinstance(batch, tuple) or len(batch) not in (2, 3):
        raise errors.UsageError(
            f"The data gives batches of {_describe(batch)}. Give tuples (x, y) or "
            "(x, y, sample_weight)."
        )
    return (*batch, None)[:3]


class Objective:
    """Losses and metrics of an experiment.

    Args:
        experiment: whose `loss`, `loss_weights` and `metrics`.
        output_names: of the model's outputs, where Keras knows them.
        y: a batch of labels, one example of anything.
        y_pred: what the model makes of it.

    Raises:
        UsageError: losses or metrics do not fit the outputs.
    """

    def __init__(
        self, experiment: Experiment, output_names: Sequence[str], y: Any, y_pred: Any
    ):
        self._names = _names_of(y_pred, output_names)
        self._losses = self._by_output("loss", experiment.loss)
        for loss in self._losses:
            if isinstance(loss, type) or (loss is not None and not callable(loss)):
                raise errors.UsageError(
                    f"Experiment(loss={loss!r}) is no loss. Give a keras.losses.Loss, "
                    "or a function (y_true, y_pred) -> loss per example."
                )
        self._weights = self._by_output("loss_weights", experiment.loss_weights)
        self._metrics = []  # (index of the output, name, metric)
        for index, metrics in enumerate(
            self._by_output("metrics", experiment.metrics())
        ):
            for metric in _as_list(metrics):
                if not isinstance(metric, keras.metrics.Metric):
                    raise errors.UsageError(
                        f"Experiment(metrics=...) has {metric!r}. Give "
                        "keras.metrics.Metric objects, for instance "
                        'keras.metrics.SparseCategoricalAccuracy(name="accuracy").'
                    )
                name = metric.name
                if len(self._names) > 1:
                    name = f"{self._names[index]}_{name}"
                if name in ("loss", "examples", *self.metric_names):
                    raise errors.UsageError(
                        f"A metric is named {name!r}, as another result is. Give it a "
                        "name of its own: name=..."
                    )
                self._metrics.append((index, name, metric))
        self._start = self._build_metrics(y, y_pred)

    def check_mean(self, parts: int) -> None:
        """Checks that the mean over parts of a batch is the loss of the whole.

        Args:
            parts: replicas times micro-batches.

        Raises:
            UsageError: a loss sums over its batch.
        """
        sums = [
            loss for loss in self._losses if getattr(loss, "reduction", "") == "sum"
        ]
        if parts > 1 and sums:
            raise errors.UsageError(
                f"{type(sums[0]).__name__}(reduction='sum') depends on how a global "
                f"batch is divided, here into {parts} parts. Leave reduction out: "
                "dtrain averages over the global batch."
            )

    @property
    def metric_names(self) -> list[str]:
        """Names as they appear in results and TensorBoard."""
        return [name for _, name, _ in self._metrics]

    def loss(
        self, y: Any, y_pred: Any, sample_weight: Any, added: Sequence
    ) -> tf.Tensor:
        """Returns the batch's loss, a float32 scalar.

        Args:
            y: labels, by output.
            y_pred: the model's outputs.
            sample_weight: `None`, one for all outputs, or by output.
            added: losses that the model adds itself (regularizers, `add_loss`).
        """
        total = tf.zeros([], tf.float32)
        rows_of = zip(
            self._losses,
            self._weights,
            self._flatten("labels", y),
            self._flatten("outputs", y_pred),
            self._spread(sample_weight),
            strict=True,
        )
        for loss, weight, label, prediction, example_weight in rows_of:
            if loss is None:
                continue
            value = _mean_loss(loss, label, prediction, example_weight)
            total += tf.cast(value, tf.float32) * (1.0 if weight is None else weight)
        return total + tf.add_n(
            [tf.zeros([]), *(tf.cast(a, tf.float32) for a in added)]
        )

    def weight(self, y: Any, y_pred: Any, sample_weight: Any, examples: Any) -> Any:
        """Returns what a batch's loss weighs in a mean over batches.

        The number of examples; but where the loss is a mean over what a mask leaves,
        or over weights, how much that was, so that the mean over batches is the loss
        of all of them in one. (With several outputs there is no such number.)

        Args:
            y: labels, by output.
            y_pred: the model's outputs.
            sample_weight: as for `loss`.
            examples: how many the batch has.

        Returns:
            A float32 scalar.
        """
        examples = tf.cast(examples, tf.float32)
        if len(self._losses) > 1 or not isinstance(self._losses[0], keras.losses.Loss):
            return examples
        (loss,) = self._losses
        (label,), (prediction,) = (
            self._flatten("labels", y),
            self._flatten("outputs", y_pred),
        )
        has_mask = any(
            getattr(value, "_keras_mask", None) is not None
            for value in (label, prediction)
        )
        if loss.reduction == "mean_with_sample_weight":
            (sample_weight,) = self._spread(sample_weight)
            counts = has_mask or sample_weight is not None
        else:
            sample_weight = None
            counts = has_mask and loss.reduction in ("mean", "sum_over_batch_size")
        if not counts:
            return examples
        ones = _unreduced(loss)
        ones.call = lambda *args: tf.ones_like(loss.call(*args))
        weights = ones(label, prediction, sample_weight=sample_weight)
        return tf.cast(tf.reduce_sum(weights), tf.float32)

    def initial_states(self) -> list[tf.Tensor]:
        """Returns the metrics' states before any batch."""
        return [tf.constant(value) for value in self._start]

    def update(self, states: list[tf.Tensor], y: Any, y_pred: Any) -> list[tf.Tensor]:
        """Returns the metrics' states after one more batch.

        Sample weights do not count, as in Keras' `compile(metrics=)`.
        """
        if not self._metrics:
            return states
        labels = self._flatten("labels", y)
        predictions = self._flatten("outputs", y_pred)
        new, rest = [], list(states)
        for index, _, metric in self._metrics:
            own, rest = _split(rest, len(metric.variables))
            new += metric.stateless_update_state(own, labels[index], predictions[index])
        return new

    def pack(self, loss_sum: tf.Tensor, states: list[tf.Tensor]) -> tf.Tensor:
        """Returns the loss and all states as one float64 vector: one message."""
        flat = [tf.reshape(tf.cast(t, tf.float64), [-1]) for t in (loss_sum, *states)]
        return tf.concat(flat, 0)

    def results(self, totals: np.ndarray, count: float) -> dict[str, float]:
        """Returns loss and metrics from packed totals, of one call or the sum of many.

        Args:
            totals: float64, as `pack` makes it.
            count: what the loss was summed over.
        """
        results = {"loss": float(totals[0]) / count}
        rest = totals[1:]
        for _, name, metric in self._metrics:
            states = []
            for variable in metric.variables:
                part, rest = _split(rest, int(np.prod(variable.shape)))
                states.append(tf.cast(np.reshape(part, variable.shape), variable.dtype))
            value = metric.stateless_result(states)
            for key, item in (
                value.items() if isinstance(value, Mapping) else [(name, value)]
            ):
                numbers = np.ravel(item)
                # One number a class, for instance.
                keys = [f"{key}_{i}" for i in range(numbers.size)]
                keys = [key] if numbers.size == 1 else keys
                results.update(zip(keys, map(float, numbers), strict=True))
        return results

    def _build_metrics(self, y: Any, y_pred: Any) -> list[np.ndarray]:
        """Makes every metric's variables; returns their values before any batch."""
        labels = self._flatten("labels", y)
        predictions = self._flatten("outputs", y_pred)
        start = []
        for index, name, metric in self._metrics:
            try:
                metric.update_state(labels[index], predictions[index])
            except Exception as error:
                raise errors.UsageError(
                    f"Metric {name!r} does not fit the model: {error}"
                ) from error
            metric.reset_state()
            start += [np.asarray(variable.value) for variable in metric.variables]
        # States are added up over workers, so each has to start at nothing.
        if any(np.any(value) for value in start):
            raise errors.UsageError(
                "A metric's state does not start at zero, so the states of several "
                "workers cannot be added up. Use metrics that sum over examples."
            )
        return start

    def _by_output(self, field: str, value: Any) -> list[Any]:
        """Returns one item an output from a single one, a list or a dict of them."""
        count = len(self._names)
        if isinstance(value, Mapping):
            unknown = [key for key in value if key not in self._names]
            if unknown:
                raise errors.UsageError(
                    f"Experiment({field}=...) names the output {unknown[0]!r}. The "
                    f"model's outputs are: {', '.join(self._names)}."
                    + errors.did_you_mean(str(unknown[0]), self._names)
                )
            return [value.get(name) for name in self._names]
        if count == 1:
            single = isinstance(value, (list, tuple)) and field != "metrics"
            if single and len(value) != 1:
                raise errors.UsageError(
                    f"Experiment({field}={value!r}) is a list of {len(value)}, but the "
                    "model has one output. Give a single one."
                )
            return list(value) if single else [value]
        if value is None or (field == "metrics" and not value):
            return [None] * count
        if not isinstance(value, (list, tuple)) or len(value) != count:
            raise errors.UsageError(
                f"Experiment({field}={value!r}) does not fit a model with {count} "
                f"outputs. Give a list of {count}, or a dict by output: "
                f"{', '.join(self._names)}."
            )
        return list(value)

    def _flatten(self, what: str, value: Any) -> list[Any]:
        if isinstance(value, Mapping):
            missing = [name for name in self._names if name not in value]
            if missing:
                raise errors.UsageError(
                    f"The {what} have no {missing[0]!r}; they have "
                    f"{', '.join(map(str, value))}. The model's outputs are: "
                    f"{', '.join(self._names)}."
                )
            return [value[name] for name in self._names]
        if len(self._names) == 1 and not isinstance(value, (list, tuple)):
            return [value]
        if not isinstance(value, (list, tuple)) or len(value) != len(self._names):
            raise errors.UsageError(
                f"The {what} are {_describe(value)}, but the model has "
                f"{len(self._names)} outputs: {', '.join(self._names)}."
            )
        return list(value)

    def _spread(self, sample_weight: Any) -> list[Any]:
        if isinstance(sample_weight, (Mapping, list, tuple)):
            return self._flatten("sample weights", sample_weight)
        return [sample_weight] * len(self._names)


def _mean_loss(loss: Any, y: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
    if isinstance(loss, keras.losses.Loss):
        return tf.reduce_mean(loss(y, y_pred, sample_weight=sample_weight))
    y, y_pred = _align(y, y_pred)
    if y_pred.dtype in (tf.float16, tf.bfloat16):  # as Keras' `compile` does
        y_pred = tf.cast(y_pred, tf.float32)
    values = tf.convert_to_tensor(loss(y, y_pred))
    if sample_weight is not None:
        weight = tf.cast(sample_weight, values.dtype)
        values, weight = _align(values, weight)
        while weight.shape.rank < values.shape.rank:
            weight = weight[..., tf.newaxis]
        values *= weight
    return tf.reduce_mean(values)


def _unreduced(loss: keras.losses.Loss) -> keras.losses.Loss:
    """Returns a loss that gives every weighted value instead of their mean."""
    copied = object.__new__(type(loss))  # copy.copy would go through its config
    copied.__dict__.update(loss.__dict__, reduction=None)
    return copied


def _align(first: Any, second: Any) -> tuple[Any, Any]:
    """Gives two tensors the same rank, if one has a last dimension of 1 too many.

    As Keras' `compile(loss=function)` does; else (n,) against (n, 1) would be (n, n).
    """
    first, second = tf.convert_to_tensor(first), tf.convert_to_tensor(second)
    if first.shape.rank == second.shape.rank + 1 and first.shape[-1] == 1:
        return first, second[..., tf.newaxis]
    if second.shape.rank == first.shape.rank + 1 and second.shape[-1] == 1:
        return first[..., tf.newaxis], second
    return first, second


def _names_of(y_pred: Any, output_names: Sequence[str]) -> list[str]:
    if isinstance(y_pred, Mapping):
        return list(y_pred)
    if isinstance(y_pred, (list, tuple)):
        if len(output_names) == len(y_pred):
            return list(output_names)
        return [f"output_{index + 1}" for index in range(len(y_pred))]
    return list(output_names)[:1] or ["output"]


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _split(items, count: int):
    return items[:count], items[count:]


def _describe(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__
