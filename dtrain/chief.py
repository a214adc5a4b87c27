"""The chief's work: an experiment, a strategy and a session put together."""

import importlib.metadata
import os
from collections.abc import Callable, Collection

from dtrain import errors, experiment, version
from dtrain.cluster.spec import Cluster
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.launch.signals import Signals
from dtrain.runtime import preflight
from dtrain.runtime.meeting import Meeting
from dtrain.session.callbacks.base import Callback
from dtrain.session.callbacks.checkpoint import CheckpointSaver
from dtrain.session.callbacks.evaluation import Evaluator
from dtrain.session.callbacks.nan import NanStopper
from dtrain.session.callbacks.progress import ProgressDisplay
from dtrain.session.callbacks.summary import SummaryWriter
from dtrain.session.session import Session
from dtrain.strategies import mirrored
from dtrain.strategies.base import Trainer
from dtrain.strategies.failures import explained
from dtrain.strategies.local import LocalTrainer
from dtrain.strategies.mirrored import MirroredTrainer
from dtrain.strategies.ps import PsTrainer
from dtrain.strategies.sync import SyncTrainer

# Trainers on a cluster live as long as the process. To collect one, TensorFlow
# removes its functions from every task and waits for that with the interpreter
# locked, while a worker may be waiting for a generator that needs the interpreter.
_kept: list[Trainer] = []


def prepare(config: RunConfig) -> None:
    """Sets up this process's devices, before the user's code can use any.

    Raises:
        UsageError: there are not as many as asked for.
    """
    if config.strategy == "mirrored":
        mirrored.find_devices(config.devices_per_task)


def lead(
    function: Callable[[RunConfig], experiment.Experiment],
    config: RunConfig,
    cluster: Cluster | None,
    meeting: Meeting | None,
    check: Callable[[], None],
    origin: str | None,
    console: Console,
    signals: Signals,
) -> dict:
    """Trains; returns what the result file holds, but for the cluster.

    Args:
        function: what to train.
        config: with an absolute `model_dir`.
        cluster: with this process as its chief; `None` for one process.
        meeting: all its tasks, met, if they train synchronously.
        check: called while others are waited for; raises what should end the wait.
        origin: who describes the cluster, for the banner; `None` to leave it out.
        console: for the terminal.
        signals: noted ones stop the run after a checkpoint.

    Raises:
        DtrainError: the run failed, or was interrupted.
    """
    what, config = experiment.build(function, config)
    os.makedirs(config.model_dir, exist_ok=True)
    with explained():
        if meeting is not None:
            trainer: Trainer = SyncTrainer(what, config, meeting, console)
            _kept.append(trainer)
        elif config.strategy == "mirrored":
            trainer = MirroredTrainer(what, config, console)
        elif cluster is None:
            trainer = LocalTrainer(what, config)
        else:
            preflight.wait_for_servers(cluster, config.startup_timeout, console, check)
            lookout = preflight.Lookout(
                cluster, config.startup_timeout, lambda: bool(signals.received)
            )

            def look(workers: Collection[int] | None = None) -> None:
                check()
                lookout.check(workers)

            trainer = PsTrainer(what, config, cluster, look)
            _kept.append(trainer)
        _show_banner(trainer, config, cluster, origin, console)
        callbacks = [*_make_callbacks(config), *_check_callbacks(what.callbacks())]
        result = Session(trainer, config, callbacks, console, signals).run()
    console.line(
        f"Done: global step {result['global_step']}. "
        f"tensorboard --logdir={config.model_dir}"
    )
    return result


def _make_callbacks(config: RunConfig) -> list[Callback]:
    """Returns the chief's own callbacks. Order matters: save, then evaluate."""
    return [
        NanStopper(),
        ProgressDisplay(config.log_every),
        SummaryWriter(config.model_dir, config.summary_every),
        CheckpointSaver(config.checkpoint_every, config.checkpoint_secs),
        Evaluator(config.eval_every),
    ]


def _check_callbacks(callbacks: list) -> list[Callback]:
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise errors.UsageError(
                f"Experiment(callbacks=...) returned {callback!r}. Give objects of "
                "classes derived from dtrain.Callback."
            )
    return callbacks


def _show_banner(
    trainer: Trainer,
    config: RunConfig,
    cluster: Cluster | None,
    origin: str | None,
    console: Console,
) -> None:
    versions = ", ".join(
        f"{name} {importlib.metadata.version(package)}"
        for name, package in (("TensorFlow", "tensorflow"), ("Keras", "keras"))
    )
    console.line(f"dtrain {version.__version__} ({versions})")
    name = experiment.display_name(config.experiment)
    extent = f"{config.train_steps} steps"
    if config.epochs is not None:
        extent = f"{config.epochs} epoch{'s' * (config.epochs != 1)}"
        if trainer.num_steps is not None:
            extent += f" of {trainer.num_steps} steps in all"
    console.line(
        f"  {name}, --strategy={config.strategy}: {extent}, "
        f"{trainer.examples_per_step} examples each"
    )
    if cluster is not None:
        if origin is not None:
            console.line(f"  the cluster is described by {origin}")
        for task in cluster.tasks():
            console.line(f"  {task} on {cluster.address(task)}")
    for line in trainer.description:
        console.line(f"  {line}")
    console.line(f"  model_dir {config.model_dir}")
