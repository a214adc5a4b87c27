"""Where and of what a result is: the machine, the versions, the commit."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping

import psutil

from benchmarks import contender
from dtrain import version

_VERSION = "import importlib.metadata as m; print(m.version('torch'))"


def note(commit: str, torch_python: str) -> dict[str, str | None]:
    """Returns what a reader needs to judge a result; `None` for what is missing."""
    return {
        "CPU": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "TensorFlow": _version("tensorflow"),
        "Keras": _version("keras"),
        "NumPy": _version("numpy"),
        "grpcio": _version("grpcio"),
        "PyTorch": _output(torch_python, "-c", _VERSION),
        "dtrain": f"{version.__version__}, commit {commit}",
    }


def commit() -> str:
    """Returns the short name of the commit; "unknown" outside of a repository."""
    return _output("git", "rev-parse", "--short", "HEAD") or "unknown"


def is_dirty(results: str) -> bool:
    """Returns whether anything but results is not committed.

    Args:
        results: the folder that results go to.
    """
    folder = os.path.relpath(results, contender.ROOT)
    others = [] if folder.startswith("..") else [f":(exclude){folder}"]
    return bool(_output("git", "status", "--porcelain", "--", ".", *others))


def _cpu() -> str:
    info: Mapping[str, str] = {}
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            lines = [line.partition(":") for line in file]
        info = {name.strip(): value.strip() for name, _, value in lines}
    return info.get("model name") or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    try:
        found = subprocess.run(
            command, cwd=contender.ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
