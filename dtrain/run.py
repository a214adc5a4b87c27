"""From a config to the role that this process plays: as a command, and from Python."""

import dataclasses
import enum
import os
import tempfile
import traceback

from dtrain import console as console_lib
from dtrain import errors, experiment, roles
from dtrain.cluster import sources
from dtrain.cluster.spec import Task
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.launch import gpus, life, model_dir, private_network, record, supervise
from dtrain.launch.life import Life
from dtrain.launch.signals import Signals


class _Role(enum.Enum):
    """What one process is for."""

    ALONE = "the only process there is"
    LAUNCHER = "starts and watches a local cluster"
    CHIEF = "decides, reports and saves"
    SERVER = "a ps or worker that a chief drives"
    WORKER = "trains in step with a chief"
    EVALUATOR = "evaluates each new checkpoint"
    ASSESSOR = "evaluates or exports one checkpoint"
    UNNEEDED = "a task that has nothing to do"


def train(
    function: roles.ExperimentFunction, config: RunConfig | None = None
) -> dict | None:
    """Trains an experiment as `config` says, from a Python program.

    With no cluster described, a strategy that needs one starts it on this machine;
    otherwise this process plays the role that it was given, as the command does.

    Args:
        function: `(config) -> Experiment`. It may be defined in the script or the
            notebook that calls this.
        config: the options of the run.

    Returns:
        What the result file would hold; `None` on a task that is not the chief, and
        from an evaluator.

    Raises:
        DtrainError: the run failed; its kind says how.
    """
    name = getattr(function, "__name__", "experiment").strip("<>")
    config = (config or RunConfig()).replace(experiment=name)
    source, role, config = _find_source(config)
    config = _check_outputs(_with_model_dir(config, role))
    console = console_lib.plain()
    if role in (_Role.SERVER, _Role.WORKER, _Role.UNNEEDED):
        own = Life.read({})
        status = _support(role, function, config, source, own, console)
        if status:
            raise errors.from_status(status, f"The chief ended with status {status}.")
        return None
    if role in (_Role.EVALUATOR, _Role.ASSESSOR):
        return _look(role, function, config, source, console)
    owner = model_dir.Owner(config.model_dir)
    try:
        if role is _Role.LAUNCHER:
            return roles.launch_for_python(function, config, console)
        with Signals(at_once=True) as signals:
            own = Life.read({})
            return roles.lead(function, config, source, own, console, signals)
    finally:
        owner.release()


def run_command(config: RunConfig, own: Life) -> int:
    """Plays this process's role as a command; returns its exit status.

    Args:
        config: from the command line.
        own: what this process knows of the lives before its own.
    """
    console, is_child = console_lib.plain(), own.is_child
    # Nobody is to start again what was told to end.
    over = life.OVER if own.supervisor else 0
    try:
        source, role, config = _find_source(config)
        if config.supervise and role is not _Role.LAUNCHER:  # which does so anyway
            if role in (_Role.ALONE, _Role.CHIEF):
                config = _with_model_dir(config, role)
            return supervise.run(config, source.task, os.environ, console)
        if role in (_Role.SERVER, _Role.WORKER, _Role.UNNEEDED):
            # A child's output is in a log already; one line needs none.
            if not is_child and role is not _Role.UNNEEDED:
                folder = os.path.abspath(config.model_dir or model_dir.FOR_SERVERS)
                console = console_lib.redirect(model_dir.log_path(folder, source.task))
            return over + _support(role, None, config, source, own, console)
        config = _check_outputs(_with_model_dir(config, role))
        if role in (_Role.EVALUATOR, _Role.ASSESSOR):
            if not is_child and os.access(config.model_dir, os.W_OK):
                path = model_dir.log_path(config.model_dir, Task("evaluator"))
                console = console_lib.redirect(path)
            _look(role, None, config, source, console, is_child)
            return 0
        experiment.check_name(config.experiment)
        # The launcher of a local cluster holds the directory for its chief.
        owner = None if is_child else model_dir.Owner(config.model_dir)
        if role is _Role.LAUNCHER:
            return roles.launch(config, os.environ, console)
        # A worker that has become the chief leaves its own log to its server.
        is_worker = role is _Role.CHIEF and roles.meets(config)
        task = source.task if is_worker else Task("chief")
        console = console_lib.redirect(model_dir.log_path(config.model_dir, task))
        for notice in source.notices:
            console.line(notice)
        with Signals(at_once=True) as signals:
            roles.lead(None, config, source, own, console, signals)
        if owner is not None:
            owner.release()
        return 0
    except life.Again as again:
        console.line(f"{again} Starting again.")
        folder = [f"--model_dir={config.model_dir}"] if config.model_dir else []
        life.start_again(again.life, *folder)
    except errors.DtrainError as error:
        text = f"dtrain: {error}"
        console.error(text + private_network.hint(text))
        if error.__cause__ is not None:
            console.log("".join(traceback.format_exception(error.__cause__)))
        return error.exit_status + over * isinstance(error, errors.GivenUp)
    except Exception as error:
        # Not one of ours, so most likely the user's model, loss or data.
        text = f"dtrain: failed: {errors.describe(error)}."
        console.error(text + private_network.hint(text) + console.where())
        console.log("".join(traceback.format_exception(error)))
        return errors.TrainingFailed.exit_status


def _find_source(config: RunConfig) -> tuple[sources.Source, _Role, RunConfig]:
    """Returns who describes the cluster, what this process is in it, and its config.

    Raises:
        UsageError: the strategy or other options do not fit the cluster.
    """
    source = sources.find(config, os.environ)
    cluster, task = source.cluster, source.task
    if task is not None and task.type == "evaluator":
        return source, _Role.EVALUATOR, config
    if cluster is not None:
        if cluster.addresses("evaluator"):
            config = config.replace(evaluator=True)
        cluster.check_strategy(config.strategy)
        cluster = cluster.without("evaluator")
        if roles.meets(config):
            cluster = cluster.without("ps")
        source = dataclasses.replace(source, cluster=cluster)
    role = _choose_role(source, config)
    if config.mode != "train":
        return source, _choose_assessor(role), config
    _check_size(role, source, config)
    if role is _Role.ALONE and config.evaluator:
        raise errors.UsageError(
            f"--evaluator is a task of a cluster, but --strategy={config.strategy} is "
            "one process. Start a second command beside it: --job_name=evaluator "
            "--model_dir=..., the same directory."
        )
    if (
        roles.meets(config)
        and (config.devices_per_task or 1) > 1
        and not gpus.find_real()
    ):
        raise errors.UsageError(
            f"--devices_per_task={config.devices_per_task} needs as many GPUs, and "
            "there are none here: on CPUs a process of --strategy=sync is one replica. "
            "Start more workers, or use --strategy=mirrored on a single machine."
        )
    return source, role, config


def _choose_role(source: sources.Source, config: RunConfig) -> _Role:
    if source.cluster is None:
        alone = config.strategy in ("local", "mirrored")
        return _Role.ALONE if alone else _Role.LAUNCHER
    if source.task == source.cluster.chief:
        return _Role.CHIEF
    if not roles.meets(config):
        return _Role.SERVER
    return _Role.UNNEEDED if source.task.type == "ps" else _Role.WORKER


def _choose_assessor(role: _Role) -> _Role:
    """Returns what a process of this role does where nobody trains: one assesses."""
    leads = role in (_Role.ALONE, _Role.LAUNCHER, _Role.CHIEF)
    return _Role.ASSESSOR if leads else _Role.UNNEEDED


def _check_size(role: _Role, source: sources.Source, config: RunConfig) -> None:
    """Refuses sizes of a local cluster where there is none."""
    unused = ("num_workers", "num_ps")
    where = "this run is described" if source.cluster else "this run is one process"
    if role is _Role.LAUNCHER:
        unused = ("num_ps",) if roles.meets(config) else ()
        where = f"--strategy={config.strategy} has no ps"
    for name in unused:
        value = getattr(config, name)
        if value != getattr(RunConfig, name):
            raise errors.UsageError(
                f"--{name}={value} is the size of a local cluster, but {where}. "
                f"Leave --{name} out."
            )


def _look(
    role: _Role,
    function: roles.ExperimentFunction | None,
    config: RunConfig,
    source: sources.Source,
    console: Console,
    is_child: bool = False,
) -> dict | None:
    """Evaluates or exports; returns the result, which a watching evaluator has not.

    Args:
        function: what was trained; `None` to find it by its name.
        is_child: another dtrain process started this one as a task of its cluster.
    """
    with Signals(at_once=True) as signals:
        try:
            if role is _Role.ASSESSOR:
                config = _complete(function, config)
                return roles.assess(function, config, console, signals)
            _watch(function, config, source, console, signals, is_child)
        except KeyboardInterrupt:
            raise errors.Interrupted(signals.received[0]) from None
    return None


def _watch(
    function: roles.ExperimentFunction | None,
    config: RunConfig,
    source: sources.Source,
    console: Console,
    signals: Signals,
    is_child: bool,
) -> None:
    """Evaluates until training ends.

    Raises:
        DtrainError: training, or an evaluation, did not end well.
    """
    owner = model_dir.Owner(config.model_dir, model_dir.EVALUATOR_FILE)
    try:
        patience = 0.0
        if not is_child:  # which starts with its run, and has its flags
            record.wait_for(config.model_dir, console)
            config = _complete(function, config)
            # In a cluster all start at about the same time, to resume for instance.
            patience = config.startup_timeout if source.cluster is not None else 0.0
        status = roles.watch(function, config, console, signals, patience)
    finally:
        owner.release()
    if status:
        raise errors.from_status(status, f"Training ended with status {status}.")


def _complete(
    function: roles.ExperimentFunction | None, config: RunConfig
) -> RunConfig:
    """Returns a config with what the directory's run was given, and this was not."""
    known = record.complete(config)
    if function is not None:  # which stands for its name
        return known.replace(experiment=config.experiment)
    experiment.check_name(known.experiment)
    return known


def _with_model_dir(config: RunConfig, role: _Role) -> RunConfig:
    if role in (_Role.EVALUATOR, _Role.ASSESSOR) and config.model_dir is None:
        what = "an evaluator" if role is _Role.EVALUATOR else f"--mode={config.mode}"
        raise errors.UsageError(
            f"{what} needs --model_dir: whose checkpoints to look at. Give the "
            "directory of the run."
        )
    path = config.model_dir or model_dir.default(
        experiment.display_name(config.experiment)
    )
    model_dir.check(path)
    path = os.path.abspath(path)
    model_dir.check(path)  # where it is may have such a name, too
    if role is _Role.ASSESSOR and not os.path.isdir(path):
        raise errors.UsageError(
            f"--mode={config.mode}: --model_dir={path} is no directory. Give the "
            "directory of a run that has saved a checkpoint."
        )
    return config.replace(model_dir=path)


def _check_outputs(config: RunConfig) -> RunConfig:
    """Finds out before training, not after, that results cannot be written."""
    if config.export_dir is not None:
        path = os.path.abspath(config.export_dir)
        try:
            os.makedirs(path, exist_ok=True)
            tempfile.TemporaryFile(dir=path).close()
        except OSError as error:
            raise errors.UsageError(
                f"--export_dir={path} cannot be written to: {error.strerror}. Give a "
                "directory that can."
            ) from error
        config = config.replace(export_dir=path)
    if config.result_file is None:
        return config
    path = os.path.abspath(config.result_file)
    if not os.access(os.path.dirname(path), os.W_OK) or os.path.isdir(path):
        raise errors.UsageError(
            f"--result_file={path} cannot be written: it is a folder, or its folder is "
            "not there or not writable. Give a file's name in a folder that is there."
        )
    return config.replace(result_file=path)


def _support(
    role: _Role,
    function: roles.ExperimentFunction | None,
    config: RunConfig,
    source: sources.Source,
    own: Life,
    console: Console,
) -> int:
    """Does the work of a task that is not the chief; returns its exit status."""
    if role is _Role.UNNEEDED:
        why = f"--strategy={config.strategy} needs no ps"
        if config.mode != "train":
            why = f"--mode={config.mode} is the work of one task, the chief"
        console.line(f"{source.task}: {why}.")
        return 0
    with Signals(at_once=True) as signals:
        if role is _Role.SERVER:
            return roles.serve(function, config, source, own, console, signals)
        return roles.follow(function, config, source, own, console, signals)
