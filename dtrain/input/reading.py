"""Iterators that are taken down while Python code of theirs may be running.

TensorFlow's own end with their last reference: with the interpreter locked, and waiting
for threads that may be waiting for the interpreter, to call a generator. Seen as a hang
where a program ends. An operation does not lock it.
"""

import threading
import weakref

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops

# For a generator that sleeps or waits: then the rest of the program need not.
_PATIENCE_SECONDS = 5.0


class Reading:
    """A pass over a data set, for steps in this process.

    It is taken down when nothing refers to this object any more, or the program ends.

    Args:
        data: what to read.

    Attributes:
        iterator: of its elements, for eager code and traced functions.
    """

    def __init__(self, data: tf.data.Dataset):
        with tf.device("CPU:0"):
            handle, deleter = tf.raw_ops.AnonymousIteratorV2(**data._flat_structure)
            tf.raw_ops.MakeIterator(dataset=data._variant_tensor, iterator=handle)
        self.iterator = iterator_ops.OwnedIterator(
            components=[handle], element_spec=data.element_spec
        )
        self._finalizer = weakref.finalize(self, _take_down, handle, deleter)

    def close(self) -> None:
        """Takes it down now."""
        self._finalizer()


def _take_down(handle: tf.Tensor, deleter: tf.Tensor) -> None:
    thread = threading.Thread(
        target=lambda: tf.raw_ops.DeleteIterator(handle=handle, deleter=deleter),
        daemon=True,
    )
    thread.start()
    thread.join(_PATIENCE_SECONDS)
