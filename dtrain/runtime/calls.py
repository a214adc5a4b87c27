"""Calls from the chief to Python functions in a server's process.

TensorFlow's operation for Python callbacks looks its function up, by a token, in the
process where it runs. So a server keeps functions under tokens that everybody knows,
and the chief places the operation on the server's device: over the connection that is
there already, in eager code as well as in functions that a worker runs.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

# The register has no public name; it has been the same from TensorFlow 2.4 to 2.21.
from tensorflow.python.ops import script_ops

_kept: dict[str, Callable] = {}  # TensorFlow's register holds them weakly


def answer(name: str, function: Callable[..., bytes]) -> None:
    """Lets a function of this process be called.

    Args:
        name: what callers call it.
        function: gets what they pass, as NumPy scalars, and returns bytes.
    """

    def call(*args) -> np.ndarray:
        return np.array(function(*args), object)

    _kept[name] = call
    script_ops._py_funcs._funcs[_token(name)] = call


def call(name: str, *args: tf.Tensor) -> tf.Tensor:
    """Calls a function of the process whose device this runs on.

    Args:
        name: as it is known there.
        args: scalars.

    Returns:
        What it returned, a string scalar.
    """
    (result,) = tf.raw_ops.PyFunc(input=args, token=_token(name), Tout=[tf.string])
    return tf.ensure_shape(result, [])


def _token(name: str) -> str:
    return f"dtrain/{name}"
