"""What is common to data that Python code or memory holds.

Its code is called back from TensorFlow's threads, in this process, and what it raises
is kept, so that the person who wrote it sees a traceback of their own lines.
"""

import abc
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from dtrain.input.form import Form
from dtrain.input.share import Share

ENDLESS = (
    "Experiment(eval_data=...) returned endless data. Evaluation sees every example "
    "once: leave out repeat()."
)


class Source(abc.ABC):
    """Data that Python code or memory holds.

    Attributes:
        form: of its batches.
        failure: what the user's code raised; `None` so far.
        starts_again: whether a pass that was interrupted is begun once more.
    """

    form: Form
    starts_again = False

    def __init__(self):
        self.failure: BaseException | None = None

    @abc.abstractmethod
    def batches(self, share: Share) -> tf.data.Dataset:
        """Returns elements (passes that begin here, batch) of a share."""

    @abc.abstractmethod
    def num_batches(self, share: Share) -> int | None:
        """Returns how many a share has up to `--epochs`; `None` if nobody knows."""

    @abc.abstractmethod
    def once(self) -> tf.data.Dataset:
        """Returns the batches of one pass, in order."""

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        """Keeps what the user's code raises."""
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error
            raise

    def _kept(self, function: Callable) -> Callable:
        """Returns the function, with what it raises kept."""

        @tf.autograph.experimental.do_not_convert
        def call(*args):
            with self._keeping():
                return function(*args)

        return call

    def _call(self, function: Callable, argument: tf.Tensor) -> Any:
        """Returns the batch that a Python function makes, within a trace.

        Args:
            function: from an array to a list of arrays, as `Form.flatten` has it.
            argument: given to it.
        """
        tensors = tf.numpy_function(self._kept(function), [argument], self.form.dtypes)
        return self.form.pack(tensors)
