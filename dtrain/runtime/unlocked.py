"""Starting TensorFlow's servers without stopping Python.

`TFE_EnableCollectiveOps` returns when all tasks are connected, and its Python binding
holds the interpreter's lock all the while. The same function of TensorFlow's C
library, called through ctypes, does not.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python import pywrap_tfe

_NAME = "TFE_EnableCollectiveOps"
_LIBRARY = "libtensorflow_cc.so.2"


@contextlib.contextmanager
def server_start() -> Iterator[None]:
    """Within it, whoever starts a server leaves Python to other threads.

    Where the library is not as expected, Python waits.
    """
    bound = getattr(pywrap_tfe, _NAME)
    try:
        library = ctypes.CDLL(os.path.join(os.path.dirname(tf.__file__), _LIBRARY))
        library[_NAME]
    except (OSError, AttributeError):
        yield
        return
    setattr(pywrap_tfe, _NAME, lambda *args: _enable(library, *args))
    try:
        yield
    finally:
        setattr(pywrap_tfe, _NAME, bound)


def _enable(library: ctypes.CDLL, handle: object, server_def: bytes) -> None:
    """Does what the binding does.

    Raises:
        tf.errors.OpError: the server cannot start, or somebody was lost.
    """
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = (
        ctypes.c_void_p,
        [ctypes.py_object, ctypes.c_char_p],
    )
    library.TF_NewStatus.restype = ctypes.c_void_p
    library.TF_Message.restype = ctypes.c_char_p
    status = ctypes.c_void_p(library.TF_NewStatus())
    library[_NAME](
        ctypes.c_void_p(get_pointer(handle, None)),
        server_def,
        ctypes.c_size_t(len(server_def)),
        status,
    )
    code = library.TF_GetCode(status)
    message = library.TF_Message(status).decode(errors="replace")
    library.TF_DeleteStatus(status)
    if code:
        raise tf.errors.exception_type_from_error_code(code)(None, None, message)
