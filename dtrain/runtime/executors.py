"""Threads of the chief that wait for their own operations alone.

TensorFlow's coordinator has a thread for each worker, which after each closure waits
for all that the executor of its thread is doing. That is the common one, unless the
thread has one of its own: then a result that is being fetched from a lost worker holds
up all others, for as long as the connection seems alive.
"""

import threading

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

_here = threading.local()


def use_own() -> None:
    """Gives the thread at hand an executor of its own, if it has none yet."""
    if getattr(_here, "has_own", False):
        return
    _here.has_own = True
    # Never deleted: that would wait, too, where the thread or the program ends.
    own = pywrap_tfe.TFE_NewExecutor(False, True, 0)
    context.ensure_initialized()
    pywrap_tfe.TFE_ContextSetExecutorForThread(context.context()._handle, own)
