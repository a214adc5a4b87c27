"""What batches look like, and batches of Python objects as tensors of that form.

A batch is (x, y) or (x, y, sample_weight); each of them an array or a dict or tuple of
arrays. Where Python makes batches, their form is read from the first two.
"""

import numbers
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain import errors

_TEXT = (str, bytes)
_MOST_SHOWN = 300  # characters of a spec in a message


class Form:
    """The form of all batches of a source that Python code makes.

    Args:
        spec: of a batch: a structure of `tf.TypeSpec`.
        field: "train_data" or "eval_data", for messages.
    """

    def __init__(self, spec: Any, field: str):
        check_spec(spec, field)
        self.spec = spec
        self._field = field
        self._parts = tf.nest.flatten(spec, expand_composites=True)

    @classmethod
    def of(cls, examples: Sequence[Any], field: str) -> "Form":
        """Returns the form that some batches have in common.

        The number of examples is free, and so is every size in which they differ.

        Raises:
            UsageError: they are no batches, or have different structures.
        """
        specs = [
            tf.nest.map_structure(tf.type_spec_from_value, as_batch(batch, field))
            for batch in examples
        ]
        for spec in specs[1:]:
            _check_same(spec, specs[0], 2, field, is_loose=True)
        _check_rows(specs[0], 1, field)
        merged = tf.nest.map_structure(_merge, specs[0], *specs[1:])
        return cls(merged, field)

    @property
    def dtypes(self) -> list[tf.DType]:
        """The dtypes of what `flatten` returns."""
        return [part.dtype for part in self._parts]

    @property
    def components(self) -> tuple[tf.TensorSpec, ...]:
        """The specs of what `flatten` returns."""
        return tuple(tf.TensorSpec(part.shape, part.dtype) for part in self._parts)

    def flatten(self, batch: Any, number: int) -> list[np.ndarray]:
        """Returns a batch as a list of arrays, after a look at it.

        Args:
            batch: from the user's code.
            number: how many came before it, for the message.

        Raises:
            TrainingFailed: it has not the form.
        """
        batch = as_batch(batch, self._field)
        spec = tf.nest.map_structure(tf.type_spec_from_value, batch)
        _check_same(spec, self.spec, number + 1, self._field)
        _check_rows(spec, number + 1, self._field)
        return [_to_numpy(t) for t in tf.nest.flatten(batch, expand_composites=True)]

    def pack(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Returns the batch that `flatten` took apart, to be traced."""
        shaped = [
            tf.ensure_shape(tensor, part.shape)
            for tensor, part in zip(tensors, self._parts, strict=True)
        ]
        return tf.nest.pack_sequence_as(self.spec, shaped, expand_composites=True)


def as_batch(value: Any, field: str) -> tuple:
    """Returns (x, y) or (x, y, sample_weight) of arrays and tensors.

    Floats of 64 bits become Keras' own, as they do in `Model.fit`.

    Raises:
        UsageError: the value is none.
    """
    value = tuples(value)
    if isinstance(value, tuple) and len(value) == 3 and value[2] is None:
        value = value[:2]
    if not isinstance(value, tuple) or len(value) not in (2, 3):
        raise errors.UsageError(
            f"Experiment({field}=...) gives batches of {describe(value)}. Give tuples "
            "(x, y) or (x, y, sample_weight)."
        )
    return tf.nest.map_structure(as_leaf, value)


def as_leaf(value: Any) -> Any:
    """Returns an array or tensor, with floats as Keras has them."""
    if isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
        return value
    if isinstance(value, tf.Variable):
        return tf.convert_to_tensor(value)
    value = np.asarray(value)
    if value.dtype.hasobject and value.size and not isinstance(value.flat[0], _TEXT):
        raise errors.UsageError(
            "The data holds an array of Python objects (the first is "
            f"{describe(value.flat[0])}). Give it the dtype of what is in it, for "
            'instance x.astype("float32"); rows of different lengths are for '
            "tf.ragged.constant."
        )
    if value.dtype == np.float64:
        return value.astype(keras.config.floatx())
    return value


def rows(x: Any) -> tf.Tensor:
    """Returns the number of examples in a batch, an int64 scalar.

    Args:
        x: dense, ragged or sparse tensors, one or a structure of them.
    """
    first = tf.nest.flatten(x)[0]
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int64)
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    return tf.shape(first, tf.int64)[0]


def zeros(spec: Any) -> Any:
    """Returns a batch of that form which stands for none; to be traced.

    Free sizes are 1, ragged rows and sparse tensors empty.
    """
    return tf.nest.map_structure(_zeros, spec)


def check_spec(spec: Any, field: str) -> None:
    """Sees that elements are batches.

    Raises:
        UsageError: they are not.
    """
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise errors.UsageError(
            f"Experiment({field}=...) gives elements {_shorten(show(spec))}. Give "
            "tuples (x, y) or (x, y, sample_weight)."
        )
    for leaf in tf.nest.flatten(spec):
        shape = getattr(leaf, "shape", None)
        if not isinstance(shape, tf.TensorShape):
            continue
        if shape.rank is None:
            raise errors.UsageError(
                f"Experiment({field}=...) gives tensors of unknown rank: "
                f"{_shorten(show(spec))}. Tell it in the pipeline, with "
                "tf.ensure_shape(x, [None, ...])."
            )
        if shape.rank == 0:
            raise errors.UsageError(
                f"Experiment({field}=...) gives single examples, not batches: "
                f"{_shorten(show(spec))}. Add .batch(config.batch_size)."
            )


def describe(value: Any) -> str:
    """Returns what something is, in a few words."""
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def tuples(value: Any) -> Any:
    """Returns a structure without lists, which tf.data takes for arrays.

    A list of numbers or strings, or of lists of them, is one array; of arrays, a tuple.
    """
    if isinstance(value, list) and _is_plain(value):
        try:
            return np.asarray(value)
        except ValueError as error:
            raise errors.UsageError(
                "The data holds a list with rows of different lengths. Make all of one "
                "length, or a ragged tensor: tf.ragged.constant."
            ) from error
    if isinstance(value, dict):
        return {key: tuples(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(tuples, value))
    if isinstance(value, (list, tuple)):
        return tuple(map(tuples, value))
    return value


def _is_plain(value: Any) -> bool:
    """Returns whether a list holds no array: by its first items, as it may be long."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, (bool, numbers.Number, str, bytes))


def _merge(first: tf.TypeSpec, *others: tf.TypeSpec) -> tf.TypeSpec:
    """Returns the spec of both, with the number of examples free."""
    merged = first.most_specific_common_supertype(others) or first
    if isinstance(merged, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)):
        if merged.shape.rank:
            shape = [None, *merged.shape.as_list()[1:]]
            if isinstance(merged, tf.TensorSpec):
                return tf.TensorSpec(shape, merged.dtype)
            if isinstance(merged, tf.SparseTensorSpec):
                return tf.SparseTensorSpec(shape, merged.dtype)
            return tf.RaggedTensorSpec(
                shape, merged.dtype, merged.ragged_rank, merged.row_splits_dtype
            )
    return merged


def _check_same(
    spec: Any, expected: Any, number: int, field: str, is_loose: bool = False
) -> None:
    """Sees that a batch is like the others; if loose, but for its sizes.

    Raises:
        TrainingFailed: it is not.
    """
    try:
        tf.nest.assert_same_structure(spec, expected)
    except (ValueError, TypeError) as error:
        raise errors.TrainingFailed(
            f"Batch {number} of {field} is {show(spec)}, but the first one was "
            f"{show(expected)}. All batches need the same structure."
        ) from error
    pairs = zip(tf.nest.flatten(spec), tf.nest.flatten(expected), strict=True)
    for path, (leaf, wanted) in zip(_paths(expected), pairs, strict=True):
        if is_loose:
            fits = leaf.dtype == wanted.dtype and leaf.shape.rank == wanted.shape.rank
        else:
            fits = wanted.is_compatible_with(leaf)
        if not fits:
            raise errors.TrainingFailed(
                f"Batch {number} of {field} has {path} {show(leaf)}, but the batches "
                f"before it had {show(wanted)}. Give all batches the same dtype and, "
                "but for the number of examples, the same shape; where a size has to "
                "vary, use tf.data.Dataset.from_generator with an output_signature."
            )


def _check_rows(spec: tuple, number: int, field: str) -> None:
    """Sees that all parts of a batch have equally many examples.

    Raises:
        TrainingFailed: they have not.
    """
    leaves = zip(_paths(spec), tf.nest.flatten(spec), strict=True)
    counts = {path: leaf.shape[0] for path, leaf in leaves if leaf.shape.rank}
    if len(set(counts.values()) - {None}) > 1:
        told = ", ".join(f"{path} has {count}" for path, count in counts.items())
        raise errors.TrainingFailed(
            f"Batch {number} of {field} has parts of different lengths: {told}. Each "
            "example needs a row in all of them."
        )


def _paths(spec: tuple) -> list[str]:
    """Returns what to call each leaf: "x", "y", "x['age']"."""
    names = []
    for name, part in zip(("x", "y", "sample_weight"), spec, strict=False):
        for path, _ in _walk(part):
            names.append(name + path)
    return names


def _walk(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        items = [(f"[{key!r}]", value[key]) for key in sorted(value)]
    elif isinstance(value, tuple):
        items = [(f"[{index}]", item) for index, item in enumerate(value)]
    else:
        return [(path, value)]
    return [leaf for key, item in items for leaf in _walk(item, path + key)]


def show(spec: Any) -> str:
    """Returns what a spec is, for people."""
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None:
        sizes = ", ".join("any" if size is None else str(size) for size in spec.shape)
        return f"{spec.dtype.name} ({sizes}{',' * (spec.shape.rank == 1)})"
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{k!r}: {show(v)}" for k, v in spec.items()) + "}"
    if isinstance(spec, tuple):
        return "(" + ", ".join(map(show, spec)) + ")"
    return str(spec)


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + " ..."


def _to_numpy(tensor: Any) -> np.ndarray:
    return tensor.numpy() if isinstance(tensor, tf.Tensor) else tensor


def _zeros(spec: tf.TypeSpec) -> Any:
    if isinstance(spec, tf.RaggedTensorSpec):
        inner = spec.shape.as_list()[spec.ragged_rank + 1 :]
        values = tf.zeros([0, *(size or 1 for size in inner)], spec.dtype)
        splits = [tf.zeros([1], spec.row_splits_dtype)] * (spec.ragged_rank - 1)
        splits = [tf.zeros([2], spec.row_splits_dtype), *splits]
        return tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False)
    shape = [size or 1 for size in spec.shape]
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(
            tf.zeros([0, len(shape)], tf.int64),
            tf.zeros([0], spec.dtype),
            tf.constant(shape, tf.int64),
        )
    return tf.zeros(shape, spec.dtype)
