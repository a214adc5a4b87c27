"""The chief's work: an experiment, a strategy and a session put together."""

import importlib.metadata
import os
from collections.abc import Callable, Collection, Sequence

import keras

from dtrain import errors, experiment, version
from dtrain.cluster.spec import Cluster, Task, split_address
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.launch import life as life_lib
from dtrain.launch import model_dir, ports, record
from dtrain.launch.history import History
from dtrain.launch.life import Life
from dtrain.launch.signals import Signals
from dtrain.runtime import preflight
from dtrain.runtime.meeting import Meeting
from dtrain.runtime.watch import Watch
from dtrain.session import best as best_lib
from dtrain.session.best import Best
from dtrain.session.callbacks.base import Callback
from dtrain.session.callbacks.best import BestKeeper
from dtrain.session.callbacks.checkpoint import CheckpointSaver
from dtrain.session.callbacks.evaluation import Evaluator
from dtrain.session.callbacks.export import Exporter
from dtrain.session.callbacks.nan import NanStopper
from dtrain.session.callbacks.profiler import Profiler
from dtrain.session.callbacks.progress import ProgressDisplay
from dtrain.session.callbacks.restarts import RestartNoter
from dtrain.session.callbacks.stop import StopFile
from dtrain.session.callbacks.summary import SummaryWriter
from dtrain.session.callbacks.workers import WorkerLines
from dtrain.session.session import Session
from dtrain.strategies import mirrored
from dtrain.strategies.failures import explained
from dtrain.strategies.local import LocalTrainer
from dtrain.strategies.mirrored import MirroredTrainer
from dtrain.strategies.ps import PsTrainer
from dtrain.strategies.sync import SyncTrainer
from dtrain.strategies.trainer import Trainer

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
    watch: Watch | None,
    own: Life,
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
        watch: keeps in touch with the servers, if they do not.
        own: this process's life.
        check: called while others are waited for; raises what should end the wait.
        origin: who describes the cluster, for the banner; `None` to leave it out.
        console: for the terminal.
        signals: noted ones stop the run after a checkpoint.

    Raises:
        DtrainError: the run failed, or was interrupted.
    """
    what, config = experiment.build(function, config)
    own_callbacks = _make_own(what)
    best = _choose_best(what, config)
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
            known = cluster
            missing = _wait_for_servers(known, config, watch, own, check, console)
            cluster = known.without_tasks(missing)
            workers = [
                task
                for task in known.tasks()
                if task.type == "worker" and task not in missing
            ]
            lookout = preflight.Lookout(
                cluster, config.startup_timeout, lambda: bool(signals.received)
            )

            def look(workers: Collection[int] | None = None) -> None:
                check()
                watch.check()
                lookout.check(workers)

            trainer = PsTrainer(what, config, cluster, look, watch, workers)
            _kept.append(trainer)
        if best is not None:
            best.check(trainer.metric_names)
        lines = _describe_cluster(trainer, cluster, origin)
        _show_banner(trainer, config, lines, console)
        has_evaluation = what.eval_data is not None
        callbacks = _make_callbacks(config, best, lines, has_evaluation)
        callbacks += own_callbacks
        others = watch or meeting

        def find_restarts() -> list:
            return [*own.restarts, *(others.restarts() if others else [])]

        callbacks.insert(0, RestartNoter(find_restarts, own.is_child))
        history = History(config.model_dir, own.run)
        session = Session(trainer, config, callbacks, console, signals, history)
        record.begin(config.model_dir, config)  # it fits what is there
        result = session.run()
    _show_result(result, config, console)
    return result


def _wait_for_servers(
    cluster: Cluster,
    config: RunConfig,
    watch: Watch,
    own: Life,
    check: Callable[[], None],
    console: Console,
) -> list[Task]:
    """Returns the lost workers that are left out, once all others are there."""
    workers = [task for task in cluster.servers() if task.type == "worker"]
    optional = [task for task in workers if own.knows_as_lost(task)]
    if len(optional) == len(workers):  # nobody would be left
        optional = []
    is_later = bool(own.again or own.restarts)
    missing = watch.wait(config.startup_timeout, console, check, optional, is_later)
    for task in missing:
        console.line(f"  goes on without {task}, which was lost")

    def start_again(error: errors.TaskUnavailable) -> None:
        step = model_dir.newest_step(config.model_dir)
        try:
            again = own.next(step, config.max_restarts, error, watch.spares())
        except errors.GivenUp as another:
            console.error(f"dtrain: {another}")
            record.end(config.model_dir, another.exit_status)
            watch.part(another.exit_status, 0.0)
            os._exit(life_lib.OVER * bool(own.supervisor) + another.exit_status)
        console.line(f"{error} Starting again.")
        life_lib.start_again(again, f"--model_dir={config.model_dir}")

    if life_lib.can_start_again():  # who cannot has to wait for TensorFlow
        watch.watch_over(start_again)
    return missing


def _make_callbacks(
    config: RunConfig, best: Best | None, cluster: Sequence[str], has_evaluation: bool
) -> list[Callback]:
    """Returns the chief's own callbacks.

    Order matters: a loss that is no number comes before all else; then saving, then
    evaluating, then what depends on that.
    """
    callbacks: list[Callback] = [
        NanStopper(),
        ProgressDisplay(config.log_every),
        StopFile(config.model_dir),
    ]
    if config.log_workers:
        callbacks.append(WorkerLines(config.log_every))
    if config.profile_steps is not None:
        callbacks.append(Profiler(config.model_dir, *config.profiled_steps()))
    callbacks.append(CheckpointSaver(config.checkpoint_every, config.checkpoint_secs))
    if best is not None:
        callbacks.append(BestKeeper(best, config.early_stop_patience))
    callbacks.append(Evaluator(config.eval_every))
    if config.export_dir is not None:
        callbacks.append(Exporter(config.export_dir))
    # The last to end: until then there is something to write.
    callbacks.append(
        SummaryWriter(config.model_dir, config.summary_every, cluster, has_evaluation)
    )
    return callbacks


def _choose_best(what: experiment.Experiment, config: RunConfig) -> Best | None:
    """Returns what keeps the best checkpoint; `None` if nobody here does."""
    metric = best_lib.wanted(config)
    if what.eval_data is None and (config.evaluator or metric is not None):
        flag = "an evaluator" if config.evaluator else f"--best_metric={metric}"
        raise errors.UsageError(
            f"{flag} needs evaluation data, but experiment {config.experiment} has no "
            "eval_data. Add it, or leave the evaluator, --best_metric and "
            "--early_stop_patience out."
        )
    if metric is None:
        return None
    best = Best(config.model_dir, metric)
    return None if config.evaluator else best  # an evaluator keeps it


def _make_own(what: experiment.Experiment) -> list[Callback]:
    """Returns the experiment's callbacks.

    Raises:
        UsageError: its function raises, or returns something else.
    """
    try:
        callbacks = list(what.callbacks())
    except errors.DtrainError:
        raise
    except Exception as error:
        raise errors.UsageError(
            f"Experiment(callbacks=...) failed: {errors.describe_with_traceback(error)}"
        ) from error
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise errors.UsageError(
                f"Experiment(callbacks=...) returned {callback!r}. Give objects of "
                "classes derived from dtrain.Callback."
            )
    return callbacks


def _describe_cluster(
    trainer: Trainer, cluster: Cluster | None, origin: str | None
) -> list[str]:
    """Returns lines on who takes part, and who does what."""
    lines = []
    if cluster is not None:
        if origin is not None:
            lines.append(f"the cluster is described by {origin}")
        for task in cluster.tasks():
            own = " (this process)" * (task == cluster.chief)
            lines.append(f"{task} on {cluster.address(task)}{own}")
        public = [t for t in cluster.tasks() if _is_public(cluster.address(t))]
        if public:
            lines.append(
                f"Warning: {', '.join(map(str, public))} has a public address. Whoever "
                "reaches its port can run code there: put a firewall in front "
                "(docs/failures.md)"
            )
    return [*lines, *trainer.description]


def _is_public(address: str) -> bool:
    return ports.is_public(split_address(address)[0])


def _show_banner(
    trainer: Trainer, config: RunConfig, cluster: Sequence[str], console: Console
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
    precision = f", {config.mixed_precision}" if config.mixed_precision else ""
    console.line(
        f"  {name}, --strategy={config.strategy}: {extent}, "
        f"{trainer.examples_per_step} examples each"
    )
    model = trainer.checkpoint.model
    console.line(
        f"  {type(model).__name__} of {model.count_params():,} parameters{precision}; "
        f"{type(trainer.optimizer).__name__}, {_describe_rate(trainer)}"
    )
    for line in (*cluster, f"model_dir {config.model_dir}"):
        console.line(f"  {line}")


def _describe_rate(trainer: Trainer) -> str:
    rate = f"learning rate {trainer.learning_rate():g}"
    schedule = trainer.optimizer._learning_rate
    if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return rate
    return f"{rate} at step {trainer.global_step} ({type(schedule).__name__})"


def _show_result(result: dict, config: RunConfig, console: Console) -> None:
    """Says how it went, where everything is, and what to do next."""
    why = f", stopped: {result['stopped']}" if result["stopped"] else ""
    console.line(f"Done: global step {result['global_step']}{why}.")
    if result["steps_per_second"] is not None:
        console.line(
            f"  {result['train_seconds']:.1f} s of training: "
            f"{result['steps_per_second']:.1f} steps/s, "
            f"{result['examples_per_second']:,.0f} examples/s"
        )
    if result["eval"] is not None:
        measured = (
            f"{k} {v:.4f}" for k, v in result["eval"].items() if k != "examples"
        )
        console.line(f"  evaluation: {'  '.join(measured)}")
    if result.get("best"):
        best = result["best"]
        console.line(
            f"  best {best['metric']} {best['value']:.4f}, at step "
            f"{best['global_step']}: {best['checkpoint']}"
        )
    if result.get("skipped_updates"):
        console.line(
            f"  {result['skipped_updates']} updates were left out, because their "
            "gradients were no numbers in float16"
        )
    console.line(f"  checkpoint: {result['checkpoint']}")
    for path in result.get("export", ()):
        console.line(f"  exported: {path}")
    console.line(f"  tensorboard --logdir={config.model_dir}")
