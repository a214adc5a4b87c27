"""Serves one ps or worker task until the chief is done."""

import time
from collections.abc import Callable

import tensorflow as tf

from dtrain import errors
from dtrain.cluster.spec import Cluster, Task, split_address
from dtrain.console import Console
from dtrain.launch import ports
from dtrain.runtime import farewell

_LINGER_SECONDS = 0.2


def serve(
    cluster: Cluster, task: Task, console: Console, prepare: Callable[[], None]
) -> int:
    """Runs a TensorFlow server for a task; returns the chief's exit status.

    A server cannot be stopped again: the process has to end after this.

    Args:
        cluster: the whole cluster, without an evaluator.
        task: which ps or worker this process is.
        console: where to say that it serves.
        prepare: called once the port is known to be free, before anybody is served.

    Raises:
        TaskUnavailable: the task's port is taken.
    """
    address = cluster.address(task)
    _, port = split_address(address)
    holder = ports.holder(port)
    if holder:
        raise errors.TaskUnavailable(
            f"{task} cannot serve on {address}: the port is taken by {holder}. Stop "
            "that program, or give the task another port in every task's command."
        )
    listener = farewell.Listener()
    prepare()
    try:
        tf.distribute.Server(
            tf.train.ClusterSpec(cluster.to_dict()),
            job_name=task.type,
            task_index=task.index,
            protocol="grpc",
        )
    except tf.errors.OpError as error:
        raise errors.TaskUnavailable(
            f"{task} cannot serve on {address}: {error.message}"
        ) from error
    console.line(f"{task} serves on {address} until the chief is done.")
    status = listener.wait()
    time.sleep(_LINGER_SECONDS)  # the answer to the chief is still on its way
    console.line(f"{task} leaves: the chief ended with status {status}.")
    return status
