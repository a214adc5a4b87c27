"""Calls TensorFlow aside, so that the main thread hears signals meanwhile.

Python handles a signal between two instructions of its main thread. While that one is
inside TensorFlow, waiting for a batch for instance, not even a second Ctrl-C is heard.
"""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

_POLL_SECONDS = 0.2


def call(function: Callable, *args) -> Any:
    """Returns what a traced function returns, called in a thread of its own.

    Raises:
        KeyboardInterrupt: a signal asked to stop at once. The call goes on, unheeded.
    """
    result: concurrent.futures.Future = concurrent.futures.Future()

    def run() -> None:
        try:
            result.set_result(function(*args))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not result.done():
        concurrent.futures.wait([result], _POLL_SECONDS)
    return result.result()
