"""Runs one contender's command, and takes what it tells."""

import contextlib
import json
import math
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

import psutil

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_TAIL_LINES = 30
# What would let a contender find a cluster or GPUs: all of them are to start their own
# cluster, and to compute on the same thing.
_NOT_PASSED_ON = ("TF_CONFIG", "PS_HOSTS", "WORKER_HOSTS", "JOB_NAME", "TASK_INDEX")


class Failed(Exception):
    """A contender told nothing; the message says why, and how it ended."""


def expand(command: Sequence[str], pythons: Mapping[str, str]) -> list[str]:
    """Returns a command with the interpreters in the places that stand for them."""
    return [pythons.get(part, part) for part in command]


def run(command: Sequence[str], timeout: float = 600) -> dict:
    """Runs a command in the repository's root until it has told its value.

    Processes that it leaves behind in its group are ended; of one that is ended here,
    all that it started.

    Args:
        command: program and arguments.
        timeout: seconds.

    Returns:
        The object of its last line: with "value", or "skipped" and the reason.

    Raises:
        Failed: it failed, took too long, or told nothing.
    """
    environ = {k: v for k, v in os.environ.items() if k not in _NOT_PASSED_ON}
    environ["PYTHONPATH"] = os.pathsep.join(
        path for path in (ROOT, environ.get("PYTHONPATH")) if path
    )
    environ["CUDA_VISIBLE_DEVICES"] = "-1"
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with _log() as stdout, _log() as stderr:
        try:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                # Files, not pipes: nobody who keeps one open is waited for.
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            raise Failed(f"{shlex.join(command)}\ncannot be run: {error}") from error
        try:
            problem = f"ended with status {process.wait(timeout)}"
        except subprocess.TimeoutExpired:
            problem = f"did not end within {timeout:g} seconds"
        finally:
            _end(process)
        written = _read(stdout)
        told = last_object(written)
        if process.returncode == 0 and told is not None:
            return told
        if process.returncode == 0:
            problem = 'ended without a last line such as {"value": 1.0}'
        lines = [*written.splitlines(), *_read(stderr).splitlines()][-_TAIL_LINES:]
    shown = "".join(f"\n  {line}" for line in lines)
    raise Failed(f"{shlex.join(command)}\n{problem}. It wrote last:{shown}")


def _log():
    return tempfile.TemporaryFile("w+", errors="replace")


def _read(file) -> str:
    file.seek(0)
    return file.read()


def last_object(text: str) -> dict | None:
    """Returns the JSON object in the last line, if it is one that tells something."""
    try:
        told = json.loads(text.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return None
    if not isinstance(told, dict):
        return None
    value = told.get("value")
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return told if is_number or "skipped" in told else None


def _end(process: subprocess.Popen) -> None:
    """Ends a command and what it started."""
    children = []
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(process.pid).children(recursive=True)
    # Those whose parent is gone still are of the command's group.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
    process.wait()
