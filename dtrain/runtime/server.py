"""Serves one ps or worker task until the chief is done."""

import dataclasses
import time
from collections.abc import Callable

import tensorflow as tf

from dtrain import errors
from dtrain.cluster.spec import Cluster, Task, split_address
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.launch import life as life_lib
from dtrain.launch import ports
from dtrain.launch.life import Life
from dtrain.launch.signals import Signals
from dtrain.runtime import mailbox, memory, post
from dtrain.runtime.leash import Leash
from dtrain.runtime.mailbox import Mailbox

_POLL_SECONDS = 0.2
_LINGER_SECONDS = 0.2


def serve(
    cluster: Cluster,
    task: Task,
    config: RunConfig,
    life: Life,
    console: Console,
    signals: Signals,
    prepare: Callable[[], None],
) -> int:
    """Runs a TensorFlow server for a task; returns the chief's exit status.

    A server cannot be stopped again: the process has to end after this.

    Args:
        cluster: the whole cluster, without an evaluator.
        task: which ps or worker this process is.
        config: of this command.
        life: of this process.
        console: where to say that it serves.
        signals: noted ones let it leave, once the chief can do without.
        prepare: called once the port is known to be free, before anybody is served.

    Raises:
        GivenUp: no chief has come, or none has come back.
        Interrupted: a signal asked this task to leave, and it was idle.
        TaskUnavailable: the task's port is taken; or its chief is lost, and this
            process cannot start again.
    """
    address = cluster.address(task)
    _, port = split_address(address)
    holder = ports.holder(port)
    if holder:
        raise errors.TaskUnavailable(
            f"{task} cannot serve on {address}: the port is taken by {holder}. Stop "
            "that program, or give the task another port in every task's command."
        )
    memory.limit_arenas()
    box = Mailbox(**post.identity(cluster, task, config.strategy, life))
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
    leash = Leash(box, life.alone)
    status = _obey(task, config, life, console, signals, box, leash)
    time.sleep(_LINGER_SECONDS)  # the answer to the chief is still on its way
    console.line(f"{task} leaves: the chief ended with status {status}.")
    return status


def _obey(
    task: Task,
    config: RunConfig,
    life: Life,
    console: Console,
    signals: Signals,
    box: Mailbox,
    leash: Leash,
) -> int:
    """Does what the chief says; returns the status to leave with."""
    is_leaving = False
    while True:
        for message in leash.listen(_POLL_SECONDS):
            if message["do"] == mailbox.LEAVE:
                return message["status"]
            if is_leaving:
                raise errors.Interrupted(signals.received[0])
            # Memory, functions and iterators of the old chief go with the old life.
            time.sleep(_LINGER_SECONDS)
            _start_again(task, life, console, "a new chief has come")
        if signals.received and not is_leaving:
            if leash.chief is None:
                raise errors.Interrupted(signals.received[0])
            is_leaving = True
            box.show(is_leaving=True)
            console.line(f"{task} leaves when the chief can do without it.")
        if leash.chief is None and leash.silence > config.chief_timeout:
            raise errors.GivenUp(
                f"{task} leaves: there was no chief for --chief_timeout="
                f"{config.chief_timeout:g} s. Start the run again."
            )
        if leash.is_torn():
            alone = dataclasses.replace(life, alone=leash.silence)
            why = f"its chief, {leash.chief['who']}, is silent"
            if is_leaving:
                raise errors.Interrupted(signals.received[0])
            _start_again(task, alone, console, why)


def _start_again(task: Task, life: Life, console: Console, why: str) -> None:
    """Begins a new life, with empty hands.

    Raises:
        TaskUnavailable: this process is somebody else's, and cannot.
    """
    if not life_lib.can_start_again():
        raise errors.TaskUnavailable(
            f"{task} leaves: {why}, and in a process that is not its own it cannot "
            "start again. Start it once more."
        )
    console.line(f"{task} starts again: {why}.")
    life_lib.start_again(life)
