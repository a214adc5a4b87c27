"""The work on checkpoints of those who do not train: evaluating, and exporting."""

import contextlib
import importlib.metadata
import json
import os
import time
from collections.abc import Callable

import tensorflow as tf

from dtrain import errors, experiment, version
from dtrain.assessment import Assessment
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.launch import record
from dtrain.launch.signals import Signals
from dtrain.session import best as best_lib
from dtrain.session import checkpoints, events, exporting
from dtrain.session.best import Best
from dtrain.session.callbacks import stop
from dtrain.strategies.failures import explained

RUN = "evaluator"  # its folder in the model directory
_DONE_FILE = "evaluated.json"
_HELD_FOLDER = "held"
_POLL_SECONDS = 0.5

ExperimentFunction = Callable[[RunConfig], experiment.Experiment]


def assess(
    function: ExperimentFunction, config: RunConfig, console: Console, signals: Signals
) -> dict:
    """Evaluates or exports the newest checkpoint of a model directory.

    Args:
        function: what was trained.
        config: its `mode` says which of the two.
        console: for the results.
        signals: a noted one ends the evaluation.

    Returns:
        What the result file holds, but for the cluster.

    Raises:
        DtrainError: there is no checkpoint, or it failed.
    """
    found = _find(config.model_dir)
    what, config = experiment.build(function, config)
    with explained():
        assessment = Assessment(what, config)
        path = _read_newest(assessment, found, console)
        signals.at_once = False
        result = {
            "mode": config.mode,
            "experiment": experiment.display_name(config.experiment),
            "global_step": checkpoints.step_of(path),
            "checkpoint": path,
            "versions": _versions(),
        }
        if config.mode == "export":
            folder = config.export_dir or os.path.join(config.model_dir, "export")
            spec = assessment.batch_spec
            result["export"] = exporting.export(assessment.model, spec, folder, console)
            console.line(f"Exported {path}: {', '.join(result['export'])}")
            return result
        results = assessment.evaluate(lambda: bool(signals.received))
        if results is None:
            raise errors.Interrupted(signals.received[0])
        _show(results, path, console)
        log = events.Events(config.model_dir, "eval")
        try:
            log.scalars(result["global_step"], events.evaluation(results))
            log.close()
        except tf.errors.OpError as error:  # a directory may be there to be read only
            console.line(f"There is no event file of it: {errors.tidy(error.message)}")
        return {**result, "eval": results}


def watch(
    function: ExperimentFunction,
    config: RunConfig,
    console: Console,
    signals: Signals,
    patience: float,
) -> int:
    """Evaluates each new checkpoint once, until training has ended.

    Args:
        function: what is trained.
        config: `model_dir` is the run's.
        console: for the results.
        signals: a noted one ends it.
        patience: seconds to wait for a run that has ended before to be resumed.

    Returns:
        The exit status with which training ended; 0 if that was before.

    Raises:
        DtrainError: the evaluation failed, or was interrupted.
    """
    what, config = experiment.build(function, config)
    with explained():
        assessment = Assessment(what, config)
        return _Watch(assessment, config, console, signals, patience).run()


class _Watch:
    """An evaluator at work."""

    def __init__(
        self,
        assessment: Assessment,
        config: RunConfig,
        console: Console,
        signals: Signals,
        patience: float,
    ):
        self._assessment = assessment
        self._config = config
        self._folder = config.model_dir
        self._console = console
        self._signals = signals
        self._events = events.Events(self._folder, RUN)
        self._path = os.path.join(self._folder, RUN, _DONE_FILE)
        self._held = os.path.join(self._folder, RUN, _HELD_FOLDER)
        self._patience = patience
        # By step: when its index was written. Training anew may reach a step again.
        self._done: dict[str, int] = {}
        if os.path.exists(self._path):
            with open(self._path) as file:
                self._done = json.load(file)
        self._passed_over: set[tuple[str, int]] = set()
        self._was_over = False  # before this began
        metric = best_lib.wanted(config)
        self._best = None if metric is None else Best(self._folder, metric)
        if self._best is not None:
            self._best.check(assessment.metric_names)

    def run(self) -> int:
        self._signals.at_once = False
        self._console.line(f"Evaluating each new checkpoint of {self._folder}.")
        started = time.monotonic()
        self._was_over = record.status(self._folder) is not None
        written = record.written(self._folder)
        try:
            while True:
                # Asked before looking: what is saved before the end is then seen.
                status = record.status(self._folder)
                self._was_over &= record.written(self._folder) == written
                for path in self._find_new():
                    self._evaluate(path)
                if self._signals.received:
                    raise errors.Interrupted(self._signals.received[0])
                patience = self._patience if self._was_over else 0.0
                if status is not None and time.monotonic() - started >= patience:
                    return self._leave(status)
                time.sleep(_POLL_SECONDS)
        finally:
            self._events.close()

    def _find_new(self) -> list[str]:
        return [
            path
            for path in checkpoints.find(self._folder)
            if self._done.get(str(checkpoints.step_of(path))) != _written(path)
            and (path, _written(path)) not in self._passed_over
        ]

    def _evaluate(self, path: str) -> None:
        if self._is_over():
            return
        step, written = checkpoints.step_of(path), _written(path)
        with contextlib.ExitStack() as stack:
            try:
                self._assessment.read(path)
                # The best one is known after its evaluation, and must be there then.
                kept = path
                if self._best is not None:
                    kept = stack.enter_context(checkpoints.hold(path, self._held))
            except FileNotFoundError:  # newer ones have taken its place
                self._console.line(f"{path} was deleted before it could be evaluated.")
                return
            except checkpoints.Damaged as error:
                self._console.line(f"Warning: passed over: {error}")
                self._passed_over.add((path, written))
                return
            results = self._assessment.evaluate(self._is_over)
            if results is None:
                return
            _show(results, path, self._console)
            self._events.scalars(step, events.evaluation(results))
            self._events.flush()
            if self._best is not None:
                self._keep_best(step, results, kept)
        self._done[str(step)] = written
        with open(self._path + ".tmp", "w") as file:
            json.dump(self._done, file)
        os.replace(self._path + ".tmp", self._path)

    def _keep_best(self, step: int, results: dict[str, float], path: str) -> None:
        if self._best.note(step, results, path):
            self._console.line(self._best.describe())
        reason = self._best.why_stop(self._config.early_stop_patience)
        is_training = record.status(self._folder) is None
        if reason is not None and is_training:
            if stop.write_stop_file(self._folder, reason):
                self._console.line(f"Training should stop: {reason}.")

    def _is_over(self) -> bool:
        """Returns whether nobody waits for evaluations any more."""
        status = record.status(self._folder)
        return bool(self._signals.received or (status and not self._was_over))

    def _leave(self, status: int) -> int:
        if self._best is not None and self._best.record:
            self._console.line(f"The {self._best.describe()}")
        self._console.line(
            f"Training has ended with status {status}; {len(self._done)} checkpoints "
            "were evaluated."
        )
        return 0 if self._was_over else status


def _written(path: str) -> int:
    """Returns when a checkpoint was written, in ns; -1 if it is not there any more."""
    try:
        return os.stat(f"{path}.index").st_mtime_ns
    except FileNotFoundError:
        return -1


def _find(folder: str) -> list[str]:
    found = checkpoints.find(folder)
    if not found:
        raise errors.UsageError(
            f"--model_dir={folder} has no checkpoint. Give the directory of a run that "
            "has saved one."
        )
    return found


def _read_newest(assessment: Assessment, found: list[str], console: Console) -> str:
    """Takes over the newest checkpoint that is whole; returns its path."""
    for path in reversed(found):
        try:
            assessment.read(path)
        except checkpoints.Damaged as error:
            console.line(f"Warning: passed over: {error}")
            failure = error
            continue
        return path
    raise failure


def _show(results: dict[str, float], path: str, console: Console) -> None:
    measured = "  ".join(
        f"{name} {value:.4f}" for name, value in results.items() if name != "examples"
    )
    console.line(
        f"Evaluation of {path}: {measured} on {results['examples']:,} examples"
    )


def _versions() -> dict[str, str]:
    packages = ("tensorflow", "keras")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {"dtrain": version.__version__, **versions}
