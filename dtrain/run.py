"""From a config to the role that this process plays, and that role's work.

The role is one of: launcher of a local cluster, server of a ps or worker, chief,
or the only process there is. TensorFlow is imported only by those that use it.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

from dtrain import console as console_lib
from dtrain import errors, experiment
from dtrain.cluster import sources
from dtrain.cluster.spec import Cluster, Task
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.launch import local, model_dir
from dtrain.launch.beside import ServerBeside
from dtrain.launch.signals import Signals
from dtrain.runtime import environment

_CHIEF = Task("chief", 0)
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
            raise errors.TaskUnavailable(f"The chief ended with status {status}.")
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
            _lead(None, config, source, console, signals)
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
        console.error(
            f"dtrain: training failed: {errors.describe(error)}. The traceback is in "
            f"{model_dir.log_path(config.model_dir, _CHIEF)}."
        )
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
    return source


def _is_server(source: sources.Source) -> bool:
    return source.cluster is not None and source.task != source.cluster.chief


def _needs_launcher(source: sources.Source, config: RunConfig) -> bool:
    return source.cluster is None and config.strategy != "local"


def _with_model_dir(config: RunConfig) -> RunConfig:
    path = config.model_dir or model_dir.default(
        experiment.display_name(config.experiment)
    )
    return config.replace(model_dir=os.path.abspath(path))


def _check_result_file(config: RunConfig) -> RunConfig:
    """Finds out before training, not after, that the result cannot be written."""
    if config.result_file is None:
        return config
    path = os.path.abspath(config.result_file)
    if not os.access(os.path.dirname(path), os.W_OK):
        raise errors.UsageError(
            f"--result_file={path} cannot be written: its folder is not there, or "
            "not writable. Make the folder first."
        )
    return config.replace(result_file=path)


def _launch(config: RunConfig, environ, console: Console) -> int:
    console.line(
        f"Starting a local cluster: 1 chief, {config.num_workers} "
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
    environment.prepare(cluster)
    from dtrain.runtime import server

    return server.serve(cluster, source.task, console)


def _lead(
    function: ExperimentFunction | None,
    config: RunConfig,
    source: sources.Source,
    console: Console,
    signals: Signals,
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
    try:
        function = function or experiment.find(config.experiment)
        from dtrain import chief

        check = beside.check if beside is not None else None
        result = chief.lead(function, config, cluster, check, console, signals)
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
        if cluster is not None:
            _part(cluster, status, console)
        if beside is not None:
            beside.stop()


def _sizes(cluster: Cluster | None) -> dict[str, int]:
    """Returns how many tasks take part in training, as the cluster was described."""
    return cluster.without("evaluator").sizes() if cluster is not None else {}


def _part(cluster: Cluster, status: int, console: Console) -> None:
    """Tells every server that the run is over, and how."""
    from dtrain.runtime import farewell, preflight

    if not farewell.is_connected(cluster):
        # This chief failed early; the servers may be about to start.
        deadline = time.monotonic() + (0 if status > 128 else _APPEAR_SECONDS)
        answering = preflight.find_servers(cluster)
        while len(answering) < len(cluster.servers()) and time.monotonic() < deadline:
            time.sleep(0.1)
            answering = preflight.find_servers(cluster)
        if answering:
            farewell.connect(cluster, answering)
    for task in farewell.tell(cluster, status):
        console.log(f"{task} could not be told that the run is over.")


def _write_result(result: dict, path: str) -> None:
    with open(path + ".tmp", "w") as file:
        json.dump(result, file, indent=1)
    os.replace(path + ".tmp", path)
