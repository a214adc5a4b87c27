"""What each role does: launch, serve, lead or train along.

TensorFlow is imported only by the roles that use it, and only once its environment is
prepared.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping

from dtrain import errors, experiment
from dtrain.cluster import sources
from dtrain.cluster.spec import Cluster, Task, split_address
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.ending import Ending
from dtrain.launch import gpus, local, model_dir, ports, record
from dtrain.launch.beside import ServerBeside
from dtrain.launch.life import Life
from dtrain.launch.signals import Signals
from dtrain.runtime import environment

if typing.TYPE_CHECKING:
    from dtrain.runtime.meeting import Meeting
    from dtrain.runtime.watch import Watch

_ORIGINS = {
    "flags": "the flags",
    "env": "the environment",
    "tf_config": "TF_CONFIG",
}

ExperimentFunction = Callable[[RunConfig], experiment.Experiment]


def meets(config: RunConfig) -> bool:
    """Returns whether all tasks train, as equals, in step."""
    return config.strategy == "sync"


def launch(config: RunConfig, environ: Mapping[str, str], console: Console) -> int:
    """Runs a local cluster; returns the exit status of the run."""
    why = ", because none is described" if config.cluster == "auto" else ""
    console.line(
        f"Starting a local cluster{why}: {local.describe(config)}. "
        f"Logs: {os.path.join(config.model_dir, 'logs')}"
    )
    return local.run(config, environ, console)


def launch_for_python(
    function: ExperimentFunction, config: RunConfig, console: Console
) -> dict:
    """Runs a local cluster for `train`, whose function goes there as a file."""
    result = config.result_file or os.path.join(config.model_dir, "result.json")
    with _saved(function, config) as (saved, environ):
        status = launch(saved.replace(result_file=result), environ, console)
    if status:
        chief = Task("worker") if meets(config) else Task("chief")
        log = model_dir.log_path(config.model_dir, chief)
        raise errors.from_status(status, f"The run failed; its log is {log}.")
    with open(result) as file:
        return json.load(file)


@contextlib.contextmanager
def _saved(
    function: ExperimentFunction, config: RunConfig
) -> Iterator[tuple[RunConfig, dict[str, str]]]:
    """Gives a config and an environment with which other processes find a function."""
    path = os.path.join(config.model_dir, f"{config.experiment}.pickle")
    experiment.save(function, path)
    # What the function imports has to be found there as it is here.
    python_path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    try:
        yield config.replace(experiment=path), dict(os.environ, PYTHONPATH=python_path)
    finally:
        experiment.forget(path)


def serve(
    function: ExperimentFunction | None,
    config: RunConfig,
    source: sources.Source,
    own: Life,
    console: Console,
    signals: Signals,
) -> int:
    """Serves a ps or worker until its chief is done; returns the chief's status.

    Args:
        function: what to train; `None` to find it by the name that the chief tells.
        config: of this command.
        source: who describes the cluster, and this task.
        own: this process's life.
        console: for lines.
        signals: noted ones let the task leave.
    """
    cluster, task = source.cluster, source.task
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus.visible_to(
        cluster.rank_on_host(task), os.environ
    )
    environment.prepare(cluster)
    from dtrain.runtime import connections, input_service, profiling, server

    connections.keep(config.heartbeat_timeout)

    def prepare() -> None:
        profiling.answer()
        if task.type == "worker":
            input_service.InputService(function, config, task.index, console)

    signals.at_once = False
    return server.serve(cluster, task, config, own, console, signals, prepare)


def lead(
    function: ExperimentFunction | None,
    config: RunConfig,
    source: sources.Source,
    own: Life,
    console: Console,
    signals: Signals,
) -> dict:
    """Does the chief's work, or that of the only process; returns the result.

    Args:
        function: what to train; `None` to find it by its name, which imports the
            user's module and with it TensorFlow, once the environment is prepared.
        own: this process's life.

    Raises:
        DtrainError: the run failed, or was interrupted.
        Again: a task was lost, and this process has to start again.
    """
    cluster, beside = source.cluster, None
    with contextlib.ExitStack() as stack:
        if cluster is not None and not meets(config) and not cluster.addresses("chief"):
            saved, environ = config, dict(os.environ)
            if function is not None:  # the server calls it, too, for its data
                saved, environ = stack.enter_context(_saved(function, config))
            beside = ServerBeside(cluster, saved, environ, console)
            stack.enter_context(beside)
            cluster = beside.cluster
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # they are the server's
        ending = stack.enter_context(Ending(config, own, console, signals))
        environment.prepare(cluster)
        if cluster is not None and meets(config):
            ending.meeting = _meet(config, source, own, console, signals)
        from dtrain import chief

        watch = None
        chief.prepare(config)
        if cluster is not None and not meets(config):
            if beside is not None:
                beside.wait_until_up()
            else:
                _check_port(cluster, cluster.chief)
            ending.watch = watch = _watch_servers(cluster, config, own)
        os.makedirs(config.model_dir, exist_ok=True)
        record.open_anew(config.model_dir)
        ending.model_dir = config.model_dir
        function = function or experiment.find(config.experiment)
        check = beside.check if beside is not None else lambda: None
        # A local cluster is described by its launcher, which has said so.
        origin = None if own.is_child else _ORIGINS.get(source.name)
        result = chief.lead(
            function,
            config,
            cluster,
            ending.meeting,
            watch,
            own,
            check,
            origin,
            console,
            signals,
        )
        result["cluster"] = {} if source.cluster is None else source.cluster.sizes()
        if config.result_file:
            _write_result(result, config.result_file)
        ending.status = 0
    return result


def assess(
    function: ExperimentFunction | None,
    config: RunConfig,
    console: Console,
    signals: Signals,
) -> dict:
    """Evaluates or exports a checkpoint, as `--mode` says; returns the result."""
    environment.prepare(None)
    from dtrain import evaluator

    function = function or experiment.find(config.experiment)
    result = evaluator.assess(function, config, console, signals)
    if config.result_file:
        _write_result(result, config.result_file)
    return result


def watch(
    function: ExperimentFunction | None,
    config: RunConfig,
    console: Console,
    signals: Signals,
    patience: float,
) -> int:
    """Evaluates each new checkpoint; returns the exit status of the training.

    Args:
        patience: seconds to wait for a run that has ended before to be resumed.
    """
    environment.prepare(None)
    from dtrain import evaluator

    function = function or experiment.find(config.experiment)
    return evaluator.watch(function, config, console, signals, patience)


def follow(
    function: ExperimentFunction | None,
    config: RunConfig,
    source: sources.Source,
    own: Life,
    console: Console,
    signals: Signals,
) -> int:
    """Trains in step with the chief; returns its exit status."""
    with Ending(config, own, console, signals, is_chief=False) as ending:
        ending.meeting = _meet(config, source, own, console, signals)
        from dtrain import worker

        console.line(f"{source.task} trains with {source.cluster.chief}, the chief.")
        function = function or experiment.find(config.experiment)
        ending.status = worker.follow(
            function, config, ending.meeting, console, signals
        )
    console.line(f"{source.task} leaves: the chief ended with status {ending.status}.")
    return ending.status


def _meet(
    config: RunConfig,
    source: sources.Source,
    own: Life,
    console: Console,
    signals: Signals,
) -> Meeting:
    """Waits until all tasks are there; returns what they act together through.

    It has to come before anything else that uses TensorFlow, the user's module too.
    """
    cluster, task = source.cluster, source.task
    # Who chose some for this command chose them for this task.
    is_chosen = "CUDA_VISIBLE_DEVICES" in os.environ
    place = (0, 1) if is_chosen else cluster.place_on_host(task)
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus.share(
        *place, config.devices_per_task, os.environ
    )
    environment.prepare(cluster)
    from dtrain.runtime import connections, meeting

    connections.keep(config.heartbeat_timeout)
    meeting.check_unused()
    _check_port(cluster, task)
    return meeting.Meeting(
        cluster,
        task,
        config.startup_timeout,
        config.heartbeat_timeout,
        own.restarts,
        console,
        signals,
    )


def _watch_servers(cluster: Cluster, config: RunConfig, own: Life) -> Watch:
    from dtrain.runtime import connections
    from dtrain.runtime.watch import Watch

    servers, timeout = cluster.servers(), config.heartbeat_timeout
    connections.keep(timeout)
    watch = Watch(cluster, servers, config.strategy, own, timeout)
    watch.start()
    return watch


def _check_port(cluster: Cluster, task: Task) -> None:
    """Sees that nobody listens where a task is going to.

    Raises:
        TaskUnavailable: the task's port is taken.
    """
    address = cluster.address(task)
    holder = ports.holder(split_address(address)[1])
    if holder:
        raise errors.TaskUnavailable(
            f"{task} cannot listen on {address}: the port is taken by {holder}. If "
            f"that is {task} of this cluster, one is enough; else stop that program, "
            f"or give {task} another port in every task's command."
        )


def _write_result(result: dict, path: str) -> None:
    with open(path + ".tmp", "w") as file:
        json.dump(result, file, indent=1)
    os.replace(path + ".tmp", path)
