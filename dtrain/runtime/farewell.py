"""How the chief tells every ps and worker server that the run is over.

`tf.distribute.Server.join` never returns, and the chief shares neither a disk nor
a port of its own with the servers. But a file operation that the chief places on
a server's device runs inside that server's process, and there `/proc/self/fd/N`
is that process's own descriptor N. So a server keeps the writing end of a pipe at
a fixed number and waits at the other end; the chief writes its exit status into
it. Nothing is left on any disk, and no other process can be meant by mistake.
"""

import os
import threading
from collections.abc import Collection

import tensorflow as tf

from dtrain import errors
from dtrain.cluster.spec import Cluster, Task
from dtrain.runtime import preflight

# Below the usual limit of 1,024 descriptors, above what a process has open early.
_DESCRIPTOR = 900
_PATH = f"/proc/self/fd/{_DESCRIPTOR}"


class Listener:
    """The server's end. Make it before the TensorFlow server starts."""

    def __init__(self):
        self._reader, writer = os.pipe()
        try:
            os.dup2(writer, _DESCRIPTOR)
        except OSError as error:
            raise errors.TaskUnavailable(
                f"A server needs the file descriptor {_DESCRIPTOR}, which the limit of "
                "open files forbids here. Raise it: ulimit -n 1024."
            ) from error
        os.close(writer)

    def wait(self) -> int:
        """Blocks until the chief has parted; returns its exit status."""
        text = b""
        while not text.endswith(b"\n"):
            text += os.read(self._reader, 64)
        return int(text.split()[0])


def part(cluster: Cluster, status: int, patience: float) -> list[Task]:
    """Ends a run: tells every ps and worker, also if there is no connection yet.

    Args:
        cluster: of which this process is the chief.
        status: the exit status that the servers are to end with.
        patience: seconds for servers to appear that start when the chief does.

    Returns:
        The tasks that could not be told.
    """
    if not is_connected(cluster):
        answering = preflight.find_servers(cluster, patience)
        if not answering:
            return list(cluster.servers())
        connect(cluster, answering)
    return tell(cluster, status)


def tell(cluster: Cluster, status: int, timeout: float = 5.0) -> list[Task]:
    """Tells every ps and worker of a cluster to leave with `status`.

    Args:
        cluster: of which this process is the chief, connected or not.
        status: the exit status that the servers are to end with.
        timeout: seconds after which a server that does not answer is given up.

    Returns:
        The tasks that could not be told.
    """
    told = set()

    def write(task: Task) -> None:
        try:
            with tf.device(_device(task)):
                tf.io.write_file(_PATH, f"{status}\n")
        except tf.errors.OpError:
            return  # a lost server; the caller hears of it as not told
        told.add(task)

    tasks = cluster.servers()
    threads = [threading.Thread(target=write, args=(t,), daemon=True) for t in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    return [task for task in tasks if task not in told]


def is_connected(cluster: Cluster) -> bool:
    """Returns whether this process has connected to the cluster's servers."""
    devices = {device.name for device in tf.config.list_logical_devices()}
    return any(_device(task) in devices for task in cluster.servers())


def connect(cluster: Cluster, tasks: Collection[Task]) -> None:
    """Connects to servers only to part from them.

    A chief that fails early, over its data for instance, has not connected yet.

    Args:
        cluster: of which this process is the chief.
        tasks: the ps and workers that accept connections, at least one.
    """
    jobs: dict[str, dict[int, str]] = {}
    for task in [*tasks, cluster.chief]:
        jobs.setdefault(task.type, {})[task.index] = cluster.address(task)
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec(jobs), job_name="chief", protocol="grpc"
    )


def _device(task: Task) -> str:
    return f"/job:{task.type}/replica:0/task:{task.index}/device:CPU:0"
