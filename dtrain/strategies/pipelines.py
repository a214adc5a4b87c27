"""How steps take batches from the data that `input.feed` opens."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from dtrain import errors
from dtrain.input import form
from dtrain.input.feed import Feed, for_steps
from dtrain.input.reading import Reading
from dtrain.input.share import Place, Share
from dtrain.strategies import failures


class OwnInputs:
    """The training data that this process reads for its own steps.

    Args:
        function: an experiment's `train_data`.
        share: which part of it.
        batch_size: examples in a batch of arrays.

    Attributes:
        outline: of the data of all processes.

    Raises:
        DtrainError: the function returned nothing that batches can be made of.
    """

    def __init__(self, function: Callable[..., Any], share: Share, batch_size: int):
        self._share = share
        try:
            self._feed = Feed(function, share, batch_size)
        except (errors.DtrainError, tf.errors.OpError):
            raise
        except Exception as error:
            text = errors.describe_with_traceback(error)
            raise errors.TrainingFailed(f"train_data failed: {text}") from error
        outline = self._feed.outline(share)
        if outline.num_batches is not None:
            count = outline.num_batches * share.num_pipelines
            outline = dataclasses.replace(outline, num_batches=count)
        self.outline = outline
        with tf.device("CPU:0"):
            self._examples = tf.Variable(0, dtype=tf.int64)

    def open(self, place: Place) -> Reading:
        """Returns elements (begun, batch) to iterate over.

        Args:
            place: where in the data all processes are.
        """
        with failures.explained():
            data = self._feed.batches(self._share.at(place))
            return Reading(for_steps(data, self._examples.handle))

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turns TensorFlow's errors into dtrain's; the user's own code comes first."""
        try:
            yield
        except tf.errors.OpError as error:
            failure = self._feed.failure
            text = (
                errors.describe_with_traceback(failure)
                if failure is not None
                else failures.describe_input(error)
            )
            if text is None:
                raise failures.explain(error) from error
            if isinstance(error, tf.errors.OutOfRangeError) and failure is None:
                raise errors.TrainingFailed(text) from error
            raise errors.TrainingFailed(
                f"train_data failed after {int(self._examples):,} examples: {text}"
            ) from error


def next_or_zeros(iterator: tf.data.Iterator) -> tuple[Any, tf.Tensor]:
    """Returns the next element of a share, and whether there is one: a bool scalar.

    Replicas that wait for each other must not run out of batches. One whose shard
    is empty (fewer examples than shards) goes on with zeros, which must not count.
    To be traced.
    """
    following = iterator.get_next_as_optional()
    exists = following.has_value()
    element = tf.cond(
        exists, following.get_value, lambda: form.zeros(iterator.element_spec)
    )
    return element, exists


def trace(packed: Callable, batch_spec: Any) -> Callable:
    """Returns `(iterator, num_steps) -> totals`, traced.

    Args:
        packed: many steps, as `packing.pack` makes them.
        batch_spec: of a batch; the iterator gives (begun, batch).
    """
    return tf.function(packed, autograph=False).get_concrete_function(
        tf.data.IteratorSpec((tf.TensorSpec([], tf.int64), batch_spec)),
        tf.TensorSpec([], tf.int64),
    )


def batch_size(batch_spec: Any, default: int) -> int:
    """Returns the examples in a batch, where the pipeline fixes them.

    An experiment may batch as it likes; `default`, the flag, is what it was told.
    """
    sizes = {
        leaf.shape[0]
        for leaf in tf.nest.flatten(batch_spec[0])
        if isinstance(leaf, tf.TensorSpec)
    }
    fixed = sizes - {None}
    return fixed.pop() if len(fixed) == 1 else default
