"""How long it takes until a local cluster has done its first step.

    python -m benchmarks.startup dtrain     from the command's start to its first step
    python -m benchmarks.startup imports    4 processes that only import TensorFlow
    python -m benchmarks.startup parts      what the first is made of, as a table

A local cluster is 4 processes (chief, 2 workers, ps) that import TensorFlow at the same
time, so the second figure is what no such cluster can be faster than. `mnist_mlp` under
`ps` with the command's defaults; the chief learns of its first step when the first
packed call is done. The last line is {"value": seconds}. Needs Fashion-MNIST (apt-get
install dataset-fashion-mnist).
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pkgutil
import statistics
import subprocess
import sys
import tempfile
import time

import dtrain
from dtrain.session.callbacks.base import Callback

_FILE = os.path.abspath(__file__)
_IMPORTS = 4
_FIRST = "the first step is done"
_POLL_SECONDS = 0.05

# Where the chief's time goes: methods in which it waits or works, as they come.
_PARTS = (
    ("dtrain.chief", "_wait_for_servers", "chief: waiting for workers and ps"),
    ("dtrain.strategies.ps", "_connect", "chief: connecting"),
    ("dtrain.strategies.worker_inputs.WorkerInputs", "_open", "workers: opening data"),
    ("dtrain.strategies.parts", "build_model", "chief: building the model"),
    ("dtrain.strategies.parts", "make_optimizer", "chief: making the optimizer"),
    ("dtrain.strategies.ps.PsTrainer", "__init__", "chief: all of the trainer"),
    ("dtrain.session.checkpoints.Checkpoints", "rehearse", "chief: a trial checkpoint"),
    ("dtrain.session.session.Session", "__init__", "chief: all of the session"),
    ("dtrain.strategies.ps.PsTrainer", "train", "chief: tracing the first call"),
)
_TRACE = "BENCHMARK_STARTUP_TRACE"


class FirstStep(Callback):
    """Notes when the first step is known to be done, and ends the run."""

    def on_loop(self, session):
        if session.step and session.stopped is None:
            _note(session.config.model_dir, _FIRST, time.time())
            session.request_stop("its first step is done")


@dtrain.defaults(train_steps=5000, batch_size=100)
def experiment(config):
    from dtrain.experiments import mnist_mlp

    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    if os.environ.get(_TRACE) and task.get("type") == "chief":
        _note(config.model_dir, "chief: all is imported", time.time())
        for owner, name, label in _PARTS:
            _time(owner, name, label, config.model_dir)
    what = mnist_mlp.experiment(config)
    return dataclasses.replace(what, callbacks=lambda: [FirstStep()])


def _note(folder: str, label: str, *times: float) -> None:
    with open(f"{folder}/startup.jsonl", "a") as file:
        file.write(json.dumps([label, *times]) + "\n")


def _notes(folder: str) -> list[list]:
    try:
        with open(f"{folder}/startup.jsonl") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []


def _time(owner: str, name: str, label: str, folder: str) -> None:
    """Has a function or method note when it began and ended."""
    try:
        thing = pkgutil.resolve_name(owner)
        function = getattr(thing, name)
    except (ImportError, AttributeError):
        return  # it has another name by now: a row less in the table

    @functools.wraps(function)
    def timed(*args, **kwargs):
        started = time.time()
        try:
            return function(*args, **kwargs)
        finally:
            _note(folder, label, started, time.time())

    setattr(thing, name, timed)


def _run(trace: bool = False) -> list[list]:
    """Runs the command up to its first step; returns (label, [from,] to) in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "dtrain.main", "--strategy=ps"),
            "--experiment=benchmarks.startup:experiment",
            f"--model_dir={folder}",
        ]
        environ = dict(os.environ, **({_TRACE: "1"} if trace else {}))
        root = os.path.dirname(os.path.dirname(_FILE))
        started = time.time()
        with subprocess.Popen(command, cwd=root, env=environ) as process:
            seen = _watch(process, folder) if trace else []
            if process.wait():
                sys.exit(process.returncode)
        notes = _notes(folder)
    return [[label, *(t - started for t in times)] for label, *times in seen + notes]


def _watch(process: subprocess.Popen, folder: str) -> list[list]:
    """Notes, from outside, when tasks are started and when they serve."""
    seen: dict[str, list[float]] = {}
    while process.poll() is None and not any(n[0] == _FIRST for n in _notes(folder)):
        time.sleep(_POLL_SECONDS)
        with contextlib.suppress(OSError, ValueError):
            with open(f"{folder}/tasks.json") as file:
                tasks = json.load(file)["tasks"]
            born = time.time()  # to within a poll, which is more than the system tells
            for task in tasks:
                seen.setdefault(f"launcher: {task['task']} started", [born])
                with open(task["log"]) as file:
                    if " serves on " in file.read():
                        started = seen[f"launcher: {task['task']} started"][0]
                        label = f"{task['task']}: from its start until it serves"
                        seen.setdefault(label, [started, time.time()])
    return [[label, *times] for label, times in seen.items()]


def measure_dtrain() -> float:
    return next(times[-1] for label, *times in _run() if label == _FIRST)


def measure_imports() -> float:
    """Returns seconds until processes that import TensorFlow together have ended."""
    command = [sys.executable, "-c", "import tensorflow"]
    started = time.time()
    processes = [subprocess.Popen(command) for _ in range(_IMPORTS)]
    if any([process.wait() for process in processes]):
        sys.exit("import tensorflow failed")
    return time.time() - started


def show_parts(rounds: int) -> float:
    """Prints medians of some rounds as a table; returns the whole."""
    imports, rows = [], {}
    for _ in range(rounds):
        imports.append(measure_imports())
        # Of what is called several times, the first call is the one that is waited for.
        first = {label: times for label, *times in reversed(_run(trace=True))}
        for label, times in first.items():
            rows.setdefault(label, []).append((times[-1], times[-1] - times[0]))
    imported = statistics.median(imports)
    ends = {label: statistics.median(e for e, _ in row) for label, row in rows.items()}
    print(f"\n{'seconds after the start':>60}{'it took':>10}")
    for label in sorted(ends, key=ends.get):
        took = statistics.median(t for _, t in rows[label])
        print(f"{label:46}{ends[label]:14.2f}" + (f"{took:10.2f}" if took else ""))
    print(f"{f'{_IMPORTS} imports of TensorFlow alone':46}{imported:14.2f}")
    print(f"ratio {ends[_FIRST] / imported:.2f}")
    return ends[_FIRST]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["dtrain", "imports", "parts"])
    parser.add_argument("--rounds", type=int, default=3, help="of parts")
    args = parser.parse_args()
    measures = {
        "dtrain": measure_dtrain,
        "imports": measure_imports,
        "parts": lambda: show_parts(args.rounds),
    }
    print(json.dumps({"value": measures[args.what]()}))


if __name__ == "__main__":
    main()
