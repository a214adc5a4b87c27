"""Profiles of this process, and of the servers that a chief drives.

TensorFlow's profiler runs in one process and writes to that process's disk. Here a
profile travels to the chief as bytes, over the connection that is there.
"""

import pathlib
import tempfile

import tensorflow as tf

from dtrain.cluster.spec import Task
from dtrain.runtime import calls

_START, _STOP = "profile/start", "profile/stop"

_folders: list[tempfile.TemporaryDirectory] = []  # of what is running


def start() -> None:
    """Begins to record what this process does.

    Without Python's own calls: following them would slow down all that it does.
    """
    _folders.append(tempfile.TemporaryDirectory(prefix="dtrain-profile-"))
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
    )
    tf.profiler.experimental.start(_folders[-1].name, options)


def stop() -> bytes:
    """Ends it; returns the profile, an `XSpace` message."""
    tf.profiler.experimental.stop()
    with _folders.pop() as folder:
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        return path.read_bytes()


def answer() -> None:
    """Lets the chief profile the server that this process is."""

    def begin() -> bytes:
        start()
        return b""

    calls.answer(_START, begin)
    calls.answer(_STOP, stop)


def drop() -> None:
    """Ends what runs in this process, if anything does; nobody wants the profile."""
    while _folders:
        tf.profiler.experimental.stop(save=False)
        _folders.pop().cleanup()


def start_at(task: Task) -> None:
    """Begins to record what a server does."""
    _call(task, _START)


def stop_at(task: Task) -> bytes:
    """Ends it; returns the server's profile, empty if it was lost meanwhile."""
    try:
        return _call(task, _STOP)
    except tf.errors.OpError:  # one that has come back has not been told to begin
        return b""


def _call(task: Task, name: str) -> bytes:
    with tf.device(f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0"):
        return calls.call(name).numpy()
