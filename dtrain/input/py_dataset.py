"""Batches that a `keras.utils.PyDataset` makes, by their number."""

import random
import threading
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from dtrain import errors
from dtrain.input import stream
from dtrain.input.form import Form
from dtrain.input.share import GOLDEN, Share
from dtrain.input.source import ENDLESS, Source


class Numbered(Source):
    """A `keras.utils.PyDataset`: batches by number, in a new order every pass.

    Its `workers` threads fetch batches. With `use_multiprocessing` they are threads,
    too: each worker of a run is a process already.

    Args:
        data: whose batches.
        field: "train_data" or "eval_data".

    Raises:
        UsageError: it has no batch.
    """

    def __init__(self, data: keras.utils.PyDataset, field: str):
        super().__init__()
        self._data = data
        self.count = data.num_batches  # None: endless
        if self.count is not None and self.count < 1:
            raise errors.UsageError(
                f"Experiment({field}=...) returned a {type(data).__name__} without "
                "batches: its length is 0."
            )
        examples = range(2 if self.count is None else min(2, self.count))
        self.form = Form.of([data[index] for index in examples], field)

    def batches(self, share: Share) -> tf.data.Dataset:
        start = share.place.batches if share.sharding == "dynamic" else share.done
        # An endless one has a single pass, which is not shuffled.
        count = self.count or stream.MOST
        drawn = stream.draw(share, count, 1, "batches", start)
        order = drawn.map(
            lambda numbers, index: (
                stream.begun(numbers, count, share),
                numbers[0] // count,
                numbers[0] if self.count is None else index[0],
            )
        )
        passes = _Passes(self._data, share.order_seed)
        order = order.map(
            lambda begun, number, index: (begun, self._next(passes, number, index))
        )
        return order.map(
            lambda begun, index: (begun, self._call(passes.within(self._get), index)),
            num_parallel_calls=max(getattr(self._data, "workers", 1), 1),
        )

    def once(self) -> tf.data.Dataset:
        """Returns all batches in order."""
        if self.count is None:
            raise errors.UsageError(ENDLESS)
        numbers = tf.data.Dataset.range(self.count)
        return numbers.map(lambda index: self._call(self._get, index))

    def num_batches(self, share: Share) -> int | None:
        return None if self.count is None else stream.length(share, self.count, 1)

    def _next(self, passes: "_Passes", number: tf.Tensor, index: tf.Tensor):
        """Returns the index, once the batches of the pass before it are fetched."""
        result = tf.numpy_function(self._kept(passes.enter), [number, index], tf.int64)
        return tf.ensure_shape(result, [])

    def _get(self, index: np.ndarray) -> list[np.ndarray]:
        return self.form.flatten(self._data[int(index)], int(index))


class _Passes:
    """Tells a PyDataset that a pass is over, when all its batches are fetched.

    Args:
        data: which to tell.
        seed: of what it draws then; the same in every pipeline.
    """

    def __init__(self, data: keras.utils.PyDataset, seed: int):
        self._data = data
        self._seed = seed
        self._number = 0
        _begin(data)
        self._under_way = 0
        self._change = threading.Condition()

    def enter(self, number: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Returns the index when it may be fetched; called for one after the other."""
        with self._change:
            if number != self._number:
                self._change.wait_for(lambda: not self._under_way)
                # Also those of passes that this pipeline has had no batch of: then
                # an order that it changes is the same in every pipeline.
                missed = range(self._number + 1, int(number) + 1)
                self._number = number
                for each in missed:
                    self._end(each)
            self._under_way += 1
        return index

    def _end(self, number: int) -> None:
        """Ends the pass before number so and so, which begins."""
        seed = (self._seed + number * GOLDEN) % 2**32
        np.random.seed(seed)
        random.seed(seed)
        self._data.on_epoch_end()
        _begin(self._data)

    def within(self, fetch: Callable) -> Callable:
        """Returns the function, of which each call ends what `enter` began."""

        def call(index: np.ndarray) -> list[np.ndarray]:
            try:
                return fetch(index)
            finally:
                with self._change:
                    self._under_way -= 1
                    self._change.notify_all()

        return call


def _begin(data: keras.utils.PyDataset) -> None:
    if hasattr(data, "on_epoch_begin"):  # since Keras 3.7
        data.on_epoch_begin()
