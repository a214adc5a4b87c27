"""From a config to the role that this process plays, and that role's work.

The role is one of: launcher of a local cluster, server of a ps or worker, chief,
or the only process there is. TensorFlow is imported only by those that use it.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable

from dtrain import console as console_lib
from dtrain import errors, experiment
from dtrain.cluster import sources
from dtrain.cluster.spec import Cluster, Task, split_address
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.launch import gpus, local, model_dir, ports
from dtrain.launch.beside import ServerBeside
from dtrain.launch.signals import Signals
from dtrain.runtime import environment

_CHIEF = Task("chief", 0)
_ORIGINS = {
    "flags": "the flags",
    "env": "the environment",
    "tf_config": "TF_CONFIG",
}
# For servers that start at the same time as a chief that fails at once.
_APPEAR_SECONDS = 10.0

ExperimentFunction = Callable[[RunConfig], experiment.Experiment]


def train(function: ExperimentFunction, config: RunConfig | None = None) -> dict | None:
    """Trains an experiment as `config` says, from a Python program.

    With no cluster described, a strategy that needs one starts it on this machine;
    otherwise this process plays the role that it was given, as the command does.

    Args:
        function: `(config) -> Experiment`. It may be defined in the script or the
            notebook that calls this.
        config: the options of the run.

    Returns:
        What the result file would hold; `None` on a task that is not the chief.

    Raises:
        DtrainError: the run failed; its kind says how.
    """
    name = getattr(function, "__name__", "experiment").strip("<>")
    config = (config or RunConfig()).replace(experiment=name)
    config = _check_result_file(_with_model_dir(config))
    source = _find_source(config)
    console = console_lib.plain()
    if _is_server(source):
        status = _serve(source, console)
        if status:
            raise errors.from_status(status, f"The chief ended with status {status}.")
        return None
    owner = model_dir.Owner(config.model_dir)
    try:
        if _needs_launcher(source, config):
            return _launch_for_python(function, config, console)
        with Signals(at_once=True) as signals:
            return _lead(function, config, source, console, signals)
    finally:
        owner.release()


def run_command(config: RunConfig, is_child: bool) -> int:
    """Plays this process's role as a command; returns its exit status.

    Args:
        config: from the command line.
        is_child: another dtrain process started this one as a task of its cluster.
    """
    console = console_lib.plain()
    try:
        source = _find_source(config)
        if _is_server(source):
            if not is_child:  # whose output is in a log already
                folder = os.path.abspath(config.model_dir or model_dir.FOR_SERVERS)
                console = console_lib.redirect(model_dir.log_path(folder, source.task))
            return _serve(source, console)
        experiment.check_name(config.experiment)
        config = _check_result_file(_with_model_dir(config))
        # The launcher of a local cluster holds the directory for its chief.
        owner = None if is_child else model_dir.Owner(config.model_dir)
        if _needs_launcher(source, config):
            return _launch(config, os.environ, console)
        console = console_lib.redirect(model_dir.log_path(config.model_dir, _CHIEF))
        for notice in source.notices:
            console.line(notice)
        with Signals(at_once=True) as signals:
            _lead(None, config, source, console, signals, is_child)
        if owner is not None:
            owner.release()
        return 0
    except errors.DtrainError as error:
        console.error(f"dtrain: {error}")
        if error.__cause__ is not None:
            console.log("".join(traceback.format_exception(error.__cause__)))
        return error.exit_status
    except Exception as error:
        # Not one of ours, so most likely the user's model, loss or data.
        console.error(f"dtrain: failed: {errors.describe(error)}.{console.where()}")
        console.log("".join(traceback.format_exception(error)))
        return errors.TrainingFailed.exit_status


def _find_source(config: RunConfig) -> sources.Source:
    source = sources.find(config, os.environ)
    if source.cluster is not None:
        if source.task.type == "evaluator":
            raise errors.UsageError(
                "This task is an evaluator, which this version does not have: the "
                "chief evaluates. Leave the evaluator's command out."
            )
        source.cluster.check_strategy(config.strategy)
    for name in ("num_workers", "num_ps"):
        value = getattr(config, name)
        if not _needs_launcher(source, config) and value != getattr(RunConfig, name):
            where = "is described" if source.cluster else "is one process"
            raise errors.UsageError(
                f"--{name}={value} is the size of a local cluster, but this run "
                f"{where}. Leave --{name} out."
            )
    return source


def _is_server(source: sources.Source) -> bool:
    return source.cluster is not None and source.task != source.cluster.chief


def _needs_launcher(source: sources.Source, config: RunConfig) -> bool:
    return source.cluster is None and config.strategy != "local"


def _with_model_dir(config: RunConfig) -> RunConfig:
    path = config.model_dir or model_dir.default(
        experiment.display_name(config.experiment)
    )
    model_dir.check(path)
    path = os.path.abspath(path)
    model_dir.check(path)  # where it is may have such a name, too
    return config.replace(model_dir=path)


def _check_result_file(config: RunConfig) -> RunConfig:
    """Finds out before training, not after, that the result cannot be written."""
    if config.result_file is None:
        return config
    path = os.path.abspath(config.result_file)
    if not os.access(os.path.dirname(path), os.W_OK) or os.path.isdir(path):
        raise errors.UsageError(
            f"--result_file={path} cannot be written: it is a folder, or its folder is "
            "not there or not writable. Give a file's name in a folder that is there."
        )
    return config.replace(result_file=path)


def _launch(config: RunConfig, environ, console: Console) -> int:
    why = ", because none is described" if config.cluster == "auto" else ""
    console.line(
        f"Starting a local cluster{why}: 1 chief, {config.num_workers} "
        f"worker{'s' * (config.num_workers != 1)}, {config.num_ps} ps. "
        f"Logs: {os.path.join(config.model_dir, 'logs')}"
    )
    return local.run(config, environ, console)


def _launch_for_python(
    function: ExperimentFunction, config: RunConfig, console: Console
) -> dict:
    """Runs a local cluster for `train`, whose function goes there as a file."""
    path = os.path.join(config.model_dir, f"{config.experiment}.pickle")
    experiment.save(function, path)
    result = config.result_file or os.path.join(config.model_dir, "result.json")
    # What the function imports has to be found there as it is here.
    python_path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    status = _launch(
        config.replace(experiment=path, result_file=result),
        dict(os.environ, PYTHONPATH=python_path),
        console,
    )
    if status:
        log = model_dir.log_path(config.model_dir, _CHIEF)
        raise errors.from_status(status, f"The run failed; its log is {log}.")
    with open(result) as file:
        return json.load(file)


def _serve(source: sources.Source, console: Console) -> int:
    cluster = source.cluster.without("evaluator")
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus.visible_to(
        cluster.rank_on_host(source.task), os.environ
    )
    environment.prepare(cluster)
    from dtrain.runtime import server

    return server.serve(cluster, source.task, console)


def _lead(
    function: ExperimentFunction | None,
    config: RunConfig,
    source: sources.Source,
    console: Console,
    signals: Signals,
    is_child: bool = False,
) -> dict:
    """Does the chief's work, and tells the servers how it ended.

    Args:
        function: what to train; `None` to find it by its name, which imports the
            user's module and with it TensorFlow, once the environment is prepared.
    """
    cluster, beside = source.cluster, None
    if cluster is not None:
        cluster = cluster.without("evaluator")
        if not cluster.addresses("chief"):
            beside = ServerBeside(cluster, config)
            cluster = beside.cluster
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # they are the server's
    environment.prepare(cluster)
    status = errors.TrainingFailed.exit_status
    is_chief = False  # proven: nobody else is
    try:
        from dtrain import chief

        if beside is not None:
            beside.wait_until_up()
        elif cluster is not None:
            _check_port(cluster)
        is_chief = True
        function = function or experiment.find(config.experiment)
        check = beside.check if beside is not None else lambda: None
        # A local cluster is described by its launcher, which has said so.
        origin = None if is_child else _ORIGINS.get(source.name)
        result = chief.lead(function, config, cluster, check, origin, console, signals)
        result["cluster"] = _sizes(source.cluster)
        if config.result_file:
            _write_result(result, config.result_file)
        status = 0
        return result
    except KeyboardInterrupt:
        stopped = errors.Interrupted((signals.received or [signal.SIGINT])[0])
        status = stopped.exit_status
        raise stopped from None
    except errors.DtrainError as error:
        status = error.exit_status
        raise
    finally:
        signals.at_once = False
        if cluster is not None and is_chief:
            _part(cluster, status, console)
        if beside is not None:
            beside.stop()


def _check_port(cluster: Cluster) -> None:
    """Sees that no other chief listens where this one is going to.

    Raises:
        TaskUnavailable: the chief's port is taken.
    """
    address = cluster.address(cluster.chief)
    holder = ports.holder(split_address(address)[1])
    if holder:
        raise errors.TaskUnavailable(
            f"chief:0 cannot listen on {address}: the port is taken by {holder}. If "
            "that is a chief of this cluster, one is enough; else stop that program, "
            "or give the chief another port in every task's command."
        )


def _sizes(cluster: Cluster | None) -> dict[str, int]:
    """Returns how many tasks take part in training, as the cluster was described."""
    return cluster.without("evaluator").sizes() if cluster is not None else {}


def _part(cluster: Cluster, status: int, console: Console) -> None:
    """Tells every server that the run is over; never hides how it ended."""
    from dtrain.runtime import farewell

    try:
        untold = farewell.part(cluster, status, 0 if status > 128 else _APPEAR_SECONDS)
    except Exception as error:
        console.log(f"The servers could not be told: {errors.describe(error)}.")
        return
    for task in untold:
        console.log(f"{task} could not be told that the run is over.")


def _write_result(result: dict, path: str) -> None:
    with open(path + ".tmp", "w") as file:
        json.dump(result, file, indent=1)
    os.replace(path + ".tmp", path)
