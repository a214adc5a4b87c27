"""The model directory: its name, its owner, its logs."""

import datetime
import fcntl
import glob
import json
import os
import socket
import sys

from dtrain import errors
from dtrain.cluster.spec import Task

# Where a server's log goes if no model directory is given.
FOR_SERVERS = os.path.join("runs", "servers")
_OWNER_FILE = "owner.lock"
EVALUATOR_FILE = "evaluator.lock"


def default(experiment: str, now: datetime.datetime | None = None) -> str:
    """Returns `runs/EXPERIMENT-DATE-TIME` for a run that names no directory."""
    now = now or datetime.datetime.now()
    name = experiment.replace(":", ".").replace(os.sep, ".")
    return os.path.join("runs", f"{name}-{now:%Y%m%d-%H%M%S}")


def check(path: str) -> None:
    """Refuses a name that TensorFlow or the system would read differently.

    Raises:
        UsageError: it is a URL, or has characters of a search pattern.
    """
    if "://" in path:
        raise errors.UsageError(
            f"--model_dir={path} is remote, but locks and logs need a directory of "
            "this machine's file system. Give one; it may be mounted."
        )
    if set(path) & set("[]*?"):
        raise errors.UsageError(
            f"--model_dir={path} has one of [ ] * ?, which TensorFlow takes for a "
            "pattern when it looks for checkpoints. Give a name without them."
        )


def newest_step(model_dir: str | None) -> int:
    """Returns the step of the newest checkpoint; -1 if there is none."""
    pattern = os.path.join(glob.escape(model_dir or ""), "ckpt-*.index")
    names = [os.path.basename(path) for path in glob.glob(pattern)]
    steps = [name.removeprefix("ckpt-").removesuffix(".index") for name in names]
    return max((int(step) for step in steps if step.isdecimal()), default=-1)


def log_path(model_dir: str, task: Task) -> str:
    """Returns where a task's output goes."""
    return os.path.join(model_dir, "logs", f"{task.file_name}.log")


class Owner:
    """Holds a model directory for one run; freed when this process ends.

    The lock is the kernel's (flock(2)), so a run that died holds nothing.

    Args:
        model_dir: made if it is not there.
        file_name: of the lock: who trains has one, who evaluates another.

    Raises:
        UsageError: a live run uses it, or it cannot be made.
    """

    def __init__(self, model_dir: str, file_name: str = _OWNER_FILE):
        try:
            os.makedirs(model_dir, exist_ok=True)
            self._file = open(os.path.join(model_dir, file_name), "a+")
        except OSError as error:
            raise errors.UsageError(
                f"--model_dir={model_dir} cannot be used: {error.strerror}. Give a "
                "directory that can be written to."
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise errors.UsageError(
                f"--model_dir={model_dir} is in use by {self._describe()}. Wait for "
                "it, stop it, or give this run a directory of its own."
            ) from error
        except OSError as error:
            raise errors.UsageError(
                f"--model_dir={model_dir} is on a file system without locks (flock: "
                f"{error.strerror}). Give a directory on another one."
            ) from error
        self._file.truncate(0)
        json.dump(
            {"pid": os.getpid(), "host": socket.gethostname(), "command": sys.argv},
            self._file,
        )
        self._file.flush()

    def release(self) -> None:
        """Gives the directory back."""
        self._file.close()

    def _describe(self) -> str:
        self._file.seek(0)
        try:
            owner = json.load(self._file)
            return f"process {owner['pid']} on {owner['host']}"
        except (ValueError, KeyError):
            return "another process"
