"""Which life of a task this is: how often it was started again, by whom, and for what.

A task that is lost is started again by who supervises it (`supervised.py`). A task that
has lost another one, whose TensorFlow therefore is of no use any more, starts itself
again: the same process becomes the same command anew (execve(2)). Its pid, parent,
terminal and network stay; its memory, threads and connections do not. Each life tells
the next by an environment variable what it has to know.
"""

from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import json
import os
import signal
import sys
import uuid
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, NoReturn

from dtrain import console, errors
from dtrain.cluster.spec import Task
from dtrain.launch.signals import ASKING

_VARIABLE = "DTRAIN_LIFE"

# A supervised task ends with this much more than its status when its run is over, so
# that nobody starts it again.
OVER = 100

_own_command: tuple[list[str], dict[str, str], str] | None = None


@dataclasses.dataclass(frozen=True)
class Life:
    """What a process knows of the lives before its own.

    Attributes:
        run: names the run, in all lives of the task that leads it.
        supervisor: who starts this task again: "launcher" (of a local cluster),
            "command" (`--supervise`), or "" for nobody.
        restarts: how often a supervisor has started this task again, and why each time
            (see `restart`).
        again: how often it has started itself again since `step` has grown.
        step: of the newest checkpoint at that time.
        without: names of tasks that were given up: if they are not there, the run goes
            on without them.
        alone: seconds that a server had no chief for, before this life.
    """

    run: str = ""
    supervisor: str = ""
    restarts: tuple[Mapping[str, Any], ...] = ()
    again: int = 0
    step: int = -1
    without: tuple[str, ...] = ()
    alone: float = 0.0

    @classmethod
    def read(cls, environ: MutableMapping[str, str] = os.environ) -> Life:
        """Returns what the life before has left; takes it out of the environment."""
        known = json.loads(environ.pop(_VARIABLE, "{}"))
        known = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
        return cls(**{"run": uuid.uuid4().hex[:12]} | known)

    def of(self, supervisor: str) -> Life:
        """Returns the life of a task that is supervised from here."""
        return dataclasses.replace(self, supervisor=supervisor)

    def leave(self, environ: MutableMapping[str, str]) -> None:
        """Puts it where the next life finds it."""
        environ[_VARIABLE] = json.dumps(dataclasses.asdict(self))

    @property
    def is_child(self) -> bool:
        """Whether this process is a task of a local cluster."""
        return self.supervisor == "launcher"

    def next(
        self,
        step: int,
        most: float,
        error: errors.TaskUnavailable,
        spares: Iterable[Task] = (),
    ) -> Life:
        """Returns the next life, in which a task that was lost is to be back.

        Args:
            step: of the newest checkpoint.
            most: lives in a row without a newer one.
            error: the loss.
            spares: tasks that this life did without.

        Raises:
            GivenUp: there were as many.
        """
        again = self.again + 1 if step <= self.step else 1
        if again > most:
            raise errors.GivenUp(
                f"{error} --max_restarts={most} allows no more losses without a newer "
                "checkpoint. Start the run again: it goes on from the last one, if any."
            ) from error
        lost = error.tasks if isinstance(error, errors.TasksLost) else ()
        without = tuple(map(str, dict.fromkeys((*spares, *lost))))
        return dataclasses.replace(self, again=again, step=step, without=without)

    def knows_as_lost(self, task: Task) -> bool:
        """Returns whether a task was given up before."""
        return str(task) in self.without


class Again(Exception):
    """This life is over, and another one begins.

    Attributes:
        life: the next one.
    """

    def __init__(self, message: str, life: Life):
        super().__init__(message)
        self.life = life


def restart(task: str, cause: str, time: float) -> dict[str, Any]:
    """Returns the record of a restart: whose, why, and when (seconds since 1970)."""
    return {"task": task, "cause": cause, "time": time}


def keep_command() -> None:
    """Notes how this process was started, so that it can be once more.

    Only for a process that is dtrain's own: nobody else's can be started again.
    """
    global _own_command
    argv = [sys.executable, *sys.orig_argv[1:]]
    _own_command = argv, dict(os.environ), os.getcwd()


def can_start_again() -> bool:
    """Returns whether this process may become its own command anew."""
    return _own_command is not None


def start_again(life: Life, *flags: str) -> NoReturn:
    """Ends this life and begins the next, in the same process.

    Args:
        life: the next one.
        flags: to add to the command, if they are not there.
    """
    argv, environ, folder = _own_command
    argv = [*argv, *(flag for flag in flags if flag not in argv)]
    environ = dict(environ)
    life.leave(environ)
    os.chdir(folder)
    # What comes from here on waits for the next life's handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
    console.restore()
    # Whatever TensorFlow and others have opened ends with this life.
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                fcntl.fcntl(int(name), fcntl.F_SETFD, fcntl.FD_CLOEXEC)
            except OSError:  # it was the listing's own
                continue
    outlive_threads()
    os.execve(argv[0], argv, environ)


def outlive_threads() -> None:
    """Has a thread that aborts this process sleep instead: for it is about to go.

    While one thread is in execve(2), Linux lets no other one start a thread (EAGAIN
    from copy_fs, in kernel/fork.c). TensorFlow's and gRPC's take that for fatal, and
    would end the process before its next life has begun.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    # As the signal's handler it is given the signal's number, 6: for so many seconds.
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))
