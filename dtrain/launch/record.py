"""What a model directory's run is and how it ended, for those who come to it later."""

import dataclasses
import json
import os
import time
from collections.abc import Mapping

from dtrain import errors
from dtrain.config import FOR_EXPERIMENTS, RunConfig
from dtrain.console import Console

_FILE = "run.json"
_POLL_SECONDS = 0.5


def open_anew(model_dir: str) -> None:
    """Notes that a command is about to train in a model directory.

    What an earlier one has trained there stays known: this one may be refused.
    """
    known = _read(model_dir) or {"config": None}
    _write(model_dir, {**known, "status": None})


def begin(model_dir: str, config: RunConfig) -> None:
    """Notes what is trained in a model directory."""
    _write(model_dir, {"config": dataclasses.asdict(config), "status": None})


def end(model_dir: str, status: int) -> None:
    """Notes that the run has ended, with an exit status; the first one counts."""
    known = _read(model_dir)
    if known is not None and known["status"] is None:
        _write(model_dir, {**known, "status": status})


def status(model_dir: str) -> int | None:
    """Returns the exit status of the run; `None` as long as there is none."""
    known = _read(model_dir)
    return None if known is None else known["status"]


def written(model_dir: str) -> int:
    """Returns when the record was last written, in ns; 0 if there is none."""
    try:
        return os.stat(os.path.join(model_dir, _FILE)).st_mtime_ns
    except FileNotFoundError:
        return 0


def wait_for(model_dir: str, console: Console) -> None:
    """Returns once a run trains, or has trained, in a model directory."""
    if not _is_known(model_dir):
        console.line(f"Waiting for a run in {model_dir}.")
    while not _is_known(model_dir):
        time.sleep(_POLL_SECONDS)


def complete(config: RunConfig) -> RunConfig:
    """Returns a config that has what the directory's run was given, and this is not.

    Args:
        config: with a `model_dir`.

    Raises:
        UsageError: the directory holds no run, and the config names no experiment.
    """
    folder = config.model_dir
    if not _is_known(folder) and os.path.basename(folder) == "best":
        folder = os.path.dirname(folder)
    if not _is_known(folder):
        if config.experiment == RunConfig.experiment:
            raise errors.UsageError(
                f"--model_dir={config.model_dir} has no {_FILE}, which tells what was "
                "trained there. Give the directory of a run, or add --experiment."
            )
        return config
    known = _read(folder)["config"]
    return config.replace(
        **{
            name: known[name]
            for name in FOR_EXPERIMENTS
            if getattr(config, name) == getattr(RunConfig, name)
        }
    )


def _is_known(model_dir: str) -> bool:
    return (_read(model_dir) or {"config": None})["config"] is not None


def _read(model_dir: str) -> dict | None:
    try:
        with open(os.path.join(model_dir, _FILE)) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def _write(model_dir: str, content: Mapping) -> None:
    path = os.path.join(model_dir, _FILE)
    with open(path + ".tmp", "w") as file:
        json.dump(content, file, indent=1)
    os.replace(path + ".tmp", path)
