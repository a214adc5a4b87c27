"""Ties a task's life to the process that started it.

A launcher that is SIGKILLed cannot clean up, so every task asks the kernel to be
killed when its parent dies (`PR_SET_PDEATHSIG`, prctl(2); Linux).
"""

import ctypes
import os
import signal
import sys
from collections.abc import MutableMapping

_VARIABLE = "DTRAIN_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def attach(environ: MutableMapping[str, str]) -> None:
    """Makes a child started with this environment die with this process.

    The child has to be started by a thread that lives as long as the process.
    """
    environ[_VARIABLE] = str(os.getpid())


def hold(environ: MutableMapping[str, str] = os.environ) -> bool:
    """In a child: from now on, die when the parent dies.

    Returns:
        Whether this process was started with `attach`.
    """
    parent = environ.pop(_VARIABLE, None)
    if parent is None:
        return False
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(parent):  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)
    return True
