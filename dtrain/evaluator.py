"""The work on checkpoints of those who do not train: evaluating, and exporting."""

import importlib.metadata
import json
import os
import time
from collections.abc import Callable

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
    path = _newest(config.model_dir)
    what, config = experiment.build(function, config)
    with explained():
        assessment = Assessment(what, config)
        assessment.read(path)
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
        log.scalars(result["global_step"], events.evaluation(results))
        log.close()
        return {**result, "eval": results}


def watch(
    function: ExperimentFunction, config: RunConfig, console: Console, signals: Signals
) -> int:
    """Evaluates each new checkpoint once, until training has ended.

    Args:
        function: what is trained.
        config: `model_dir` is the run's.
        console: for the results.
        signals: a noted one ends it.

    Returns:
        The exit status with which training ended.

    Raises:
        DtrainError: the evaluation failed, or was interrupted.
    """
    what, config = experiment.build(function, config)
    with explained():
        return _Watch(Assessment(what, config), config, console, signals).run()


class _Watch:
    """An evaluator at work."""

    def __init__(
        self,
        assessment: Assessment,
        config: RunConfig,
        console: Console,
        signals: Signals,
    ):
        self._assessment = assessment
        self._config = config
        self._folder = config.model_dir
        self._console = console
        self._signals = signals
        self._events = events.Events(self._folder, RUN)
        self._path = os.path.join(self._folder, RUN, _DONE_FILE)
        self._done: list[int] = []
        if os.path.exists(self._path):
            with open(self._path) as file:
                self._done = json.load(file)
        metric = best_lib.wanted(config)
        self._best = None if metric is None else Best(self._folder, metric)
        if self._best is not None:
            self._best.check(assessment.metric_names)

    def run(self) -> int:
        self._signals.at_once = False
        self._console.line(f"Evaluating each new checkpoint of {self._folder}.")
        try:
            while True:
                # Asked before looking: what is saved before the end is then seen.
                status = record.status(self._folder)
                if not status:
                    for path in self._find_new():
                        self._evaluate(path)
                if self._signals.received:
                    raise errors.Interrupted(self._signals.received[0])
                if status is not None:
                    return self._leave(status)
                time.sleep(_POLL_SECONDS)
        finally:
            self._events.close()

    def _find_new(self) -> list[str]:
        return [
            path
            for path in checkpoints.find(self._folder)
            if checkpoints.step_of(path) not in self._done
        ]

    def _evaluate(self, path: str) -> None:
        if self._is_over():
            return
        step = checkpoints.step_of(path)
        try:
            self._assessment.read(path)
        except FileNotFoundError:  # newer ones have taken its place
            self._console.line(f"{path} was deleted before it could be evaluated.")
            return
        results = self._assessment.evaluate(self._is_over)
        if results is None:
            return
        _show(results, path, self._console)
        self._events.scalars(step, events.evaluation(results))
        self._events.flush()
        if self._best is not None:
            self._keep_best(step, results, path)
        self._done.append(step)
        with open(self._path + ".tmp", "w") as file:
            json.dump(self._done, file)
        os.replace(self._path + ".tmp", self._path)

    def _keep_best(self, step: int, results: dict[str, float], path: str) -> None:
        try:
            is_better = self._best.note(step, results, path)
        except FileNotFoundError:
            self._console.line(f"{path} was deleted before it could be kept.")
            return
        if is_better:
            self._console.line(self._best.describe())
        reason = self._best.why_stop(self._config.early_stop_patience)
        if reason is not None and record.status(self._folder) is None:
            self._console.line(f"Training should stop: {reason}.")
            stop.write_stop_file(self._folder, reason)

    def _is_over(self) -> bool:
        """Returns whether nobody waits for evaluations any more."""
        return bool(self._signals.received or record.status(self._folder))

    def _leave(self, status: int) -> int:
        if self._best is not None and self._best.record:
            self._console.line(f"The {self._best.describe()}")
        self._console.line(
            f"Training has ended with status {status}; {len(self._done)} checkpoints "
            "were evaluated."
        )
        return status


def _newest(folder: str) -> str:
    found = checkpoints.find(folder)
    if not found:
        raise errors.UsageError(
            f"--model_dir={folder} has no checkpoint. Give the directory of a run that "
            "has saved one."
        )
    return found[-1]


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
