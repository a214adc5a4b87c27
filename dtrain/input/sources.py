"""What data functions may return that is no `tf.data.Dataset`, as data sets."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain import errors
from dtrain.input import stream
from dtrain.input.form import Form, as_leaf, describe, tuples
from dtrain.input.py_dataset import Numbered
from dtrain.input.share import Share
from dtrain.input.source import Source


class Arrays(Source):
    """Arrays in memory, of which each batch takes rows, shuffled in every pass.

    They stay where they are: TensorFlow sees indices, and the rows of a batch.

    Args:
        arrays: (x, y) or (x, y, sample_weight), each of equally many rows.
        batch_size: examples in a batch.
        field: "train_data" or "eval_data".

    Raises:
        UsageError: they differ in length, or have none.
    """

    def __init__(self, arrays: tuple, batch_size: int, field: str):
        super().__init__()
        self._batch_size = batch_size
        self._arrays = tf.nest.flatten(arrays)
        lengths = {len(array) for array in self._arrays}
        if len(lengths) > 1:
            raise errors.UsageError(
                f"Experiment({field}=...) returned arrays of different lengths: "
                f"{', '.join(map(str, sorted(lengths)))}. Each example needs a row in "
                "all of them."
            )
        (self.count,) = lengths
        if not self.count:
            raise errors.UsageError(f"Experiment({field}=...) returned empty arrays.")
        first = tf.nest.pack_sequence_as(arrays, [array[:1] for array in self._arrays])
        self.form = Form.of([first], field)

    def batches(self, share: Share) -> tf.data.Dataset:
        start = share.place.batches if share.sharding == "dynamic" else share.done
        drawn = stream.draw(share, self.count, self._batch_size, "batches", start)
        data = drawn.map(
            lambda numbers, index: (
                stream.begun(numbers, self.count, share),
                self._call(self._take, index),
            )
        )
        if share.epochs is None:  # every batch is full: one shape
            data = data.map(lambda begun, batch: (begun, self._fix(batch)))
        return data

    def once(self) -> tf.data.Dataset:
        """Returns batches of all rows in order, the last one smaller."""
        rows = tf.data.Dataset.range(self.count).batch(self._batch_size)
        return rows.map(lambda index: self._call(self._take, index))

    def num_batches(self, share: Share) -> int | None:
        return stream.length(share, self.count, self._batch_size)

    def _take(self, index: np.ndarray) -> list[np.ndarray]:
        return [as_leaf(array[index]) for array in self._arrays]

    def _fix(self, batch: Any) -> Any:
        return tf.nest.map_structure(
            lambda t: tf.ensure_shape(t, [self._batch_size, *t.shape[1:]]), batch
        )


class Generated(Source):
    """Batches that an iterable gives one after the other, pass after pass.

    Args:
        passes: returns the iterable of one pass; called anew for each.
        field: "train_data" or "eval_data".
        shards: whether every pipeline is given the same, so that each takes its part.

    Raises:
        TrainingFailed: there is no batch.
    """

    starts_again = True

    def __init__(self, passes: Callable[[], Iterable], field: str, shards: bool):
        super().__init__()
        self._passes = passes
        self._field = field
        self._shards = shards
        # The first two batches tell the form. They are not lost: others follow them.
        begun = iter(passes())
        first = list(itertools.islice(begun, 2))
        if not first:
            raise errors.TrainingFailed(f"Experiment({field}=...) gives no batch.")
        self.form = Form.of(first, field)
        self._first: Iterator | None = itertools.chain(first, begun)
        self.is_whole = False  # whether the first pass holds all that there are

    def batches(self, share: Share) -> tf.data.Dataset:
        return self._data_set(lambda: self._generate(share))

    def once(self) -> tf.data.Dataset:
        """Returns the batches of one pass."""
        return self._data_set(lambda: self._number(self._iterate(), 1)).map(
            lambda _, batch: batch
        )

    def num_batches(self, share: Share) -> int | None:
        return None

    def _data_set(self, generate: Callable[[], Iterator]) -> tf.data.Dataset:
        signature = (tf.TensorSpec([], tf.int64), *self.form.components)
        data = tf.data.Dataset.from_generator(
            self._kept_iterator(generate), output_signature=signature
        )
        return data.map(lambda begun, *parts: (begun, self.form.pack(parts)))

    def _kept_iterator(self, generate: Callable[[], Iterator]) -> Callable:
        def iterate():
            with self._keeping():
                yield from generate()

        return iterate

    def _generate(self, share: Share) -> Iterator[tuple]:
        first, every = share.stride if self._shards else (0, 1)
        total = itertools.count()
        left = share.passes_left
        passes = itertools.count() if left is None else range(left)
        if self.is_whole:
            done = 0 if share.sharding == "dynamic" else share.done
            yield from itertools.islice(
                self._number(self._iterate(), 0), done * every + first, None, every
            )
            return
        for _ in passes:
            is_empty = True
            for element in self._number(self._iterate(), every):
                is_empty = False
                if next(total) % every == first:
                    yield element
            if is_empty:
                raise errors.TrainingFailed(
                    f"{self._field} gives no batch when it is gone through once more. "
                    "A generator function must start anew each time it is called; with "
                    "--epochs=1 there is one pass."
                )

    def _iterate(self) -> Iterator:
        begun, self._first = self._first, None
        return iter(self._passes()) if begun is None else begun

    def _number(self, batches: Iterator, every: int) -> Iterator[tuple]:
        for number, batch in enumerate(batches):
            begins = np.int64(number < every)  # if it is this pipeline's: the first
            yield (begins, *self.form.flatten(batch, number))


def make(
    result: Any, again: Callable[[], Any], batch_size: int, field: str, shards: bool
) -> Source:
    """Returns the source that a function's result stands for.

    Args:
        result: what `train_data` or `eval_data` returned.
        again: calls it once more.
        batch_size: for arrays.
        field: "train_data" or "eval_data".
        shards: whether each pipeline is given the same.

    Raises:
        UsageError: it is nothing that batches can be made of.
    """
    if isinstance(result, keras.utils.PyDataset):
        return Numbered(result, field)
    if isinstance(result, tuple) and len(result) in (2, 3):
        if len(result) == 3 and result[2] is None:
            result = result[:2]
        arrays = _arrays(result)
        if arrays is not None:
            return Arrays(arrays, batch_size, field)
    if isinstance(result, list) and not any(
        isinstance(item, (tuple, list)) for item in result
    ):
        kinds = ", ".join(map(describe, result[:3]))
        raise errors.UsageError(
            f"Experiment({field}=...) returned a list ({kinds}). Return a tuple (x, y) "
            "or (x, y, sample_weight) of arrays; a list is taken for a list of batches."
        )
    if isinstance(result, Iterator):  # it can be gone through once
        calls = itertools.chain([result], iter(again, None))
        return Generated(lambda: next(calls), field, shards)
    if isinstance(result, Iterable) and not isinstance(result, (str, bytes, tuple)):
        return Generated(lambda: result, field, shards)
    if callable(result):
        return Generated(result, field, shards)
    raise errors.UsageError(
        f"Experiment({field}=...) returned {describe(result)}. Return a "
        "tf.data.Dataset of batches, a keras.utils.PyDataset, a generator of batches, "
        "or a tuple (x, y) or (x, y, sample_weight) of arrays."
    )


def _arrays(result: tuple) -> tuple | None:
    """Returns a structure of arrays; `None` if it is none."""

    def array(value: Any) -> Any:
        if isinstance(value, tf.Tensor):
            return value.numpy()
        if hasattr(value, "to_numpy"):  # pandas
            return value.to_numpy()
        if not isinstance(value, np.ndarray) and hasattr(value, "__array__"):
            return np.asarray(value)
        return value

    result = tf.nest.map_structure(array, tuples(result))
    is_array = [
        isinstance(leaf, np.ndarray) and leaf.ndim for leaf in tf.nest.flatten(result)
    ]
    return result if is_array and all(is_array) else None
