"""Starts the tasks of a peer on this machine, as a shell script of its users would.

A peer calls `tasks` first. In the command that returns nothing, because it starts the
same program once a task and waits; in a task it returns what `TF_CONFIG` says.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

from dtrain.cluster.spec import Task
from dtrain.launch import ports, processors

_FOLDER = "BENCHMARK_FOLDER"
_POLL_SECONDS = 0.05


def tasks(module: str, jobs: dict[str, int], teller: str) -> tuple[str, int] | None:
    """Starts the tasks and waits, or tells which one this process is.

    Args:
        module: the peer's, for `python -m`.
        jobs: job to number of tasks.
        teller: the job whose task 0 tells the result. When it has ended, the others
            are ended, too.

    Returns:
        `None` in the command; in a task its job and index.

    Raises:
        SystemExit: a task failed.
    """
    if "TF_CONFIG" in os.environ:
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        return task["type"], task["index"]
    with tempfile.TemporaryDirectory() as folder:
        _run(module, jobs, teller, folder)
    return None


def addresses() -> dict[str, list[str]]:
    """Returns the cluster, in a task: job to addresses."""
    return json.loads(os.environ["TF_CONFIG"])["cluster"]


def mark(name: str) -> None:
    """Lets the other tasks know that something has happened."""
    open(f"{os.environ[_FOLDER]}/{name}", "w").close()


def is_marked(name: str) -> bool:
    """Returns whether a task has called `mark` with that name."""
    return os.path.exists(f"{os.environ[_FOLDER]}/{name}")


def wait_for(name: str) -> None:
    """Waits until a task has called `mark` with that name."""
    while not is_marked(name):
        time.sleep(_POLL_SECONDS)


def _run(module: str, jobs: dict[str, int], teller: str, folder: str) -> None:
    free = iter(ports.free(sum(jobs.values())))
    cluster = {
        job: [f"127.0.0.1:{next(free)}" for _ in range(count)]
        for job, count in jobs.items()
        if count
    }
    processes = {}
    try:
        for job, hosts in cluster.items():
            for index in range(len(hosts)):
                task = {"type": job, "index": index}
                config = json.dumps({"cluster": cluster, "task": task})
                # As dtrain's tasks share them; it helps TF1's wide model by a tenth.
                shared = processors.threads(
                    Task(job, index), jobs["worker"], os.environ
                )
                processes[job, index] = subprocess.Popen(
                    [sys.executable, "-m", module, *sys.argv[1:]],
                    env={
                        **os.environ,
                        **shared,
                        "TF_CONFIG": config,
                        _FOLDER: folder,
                    },
                )
        _wait(processes, processes[teller, 0])
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def _wait(processes: dict, teller: subprocess.Popen) -> None:
    while teller.poll() is None:
        for (job, index), process in processes.items():
            if process.poll():
                raise SystemExit(f"{job}:{index} failed: status {process.returncode}.")
        time.sleep(_POLL_SECONDS)
    if teller.returncode:
        raise SystemExit(f"The task that tells failed: status {teller.returncode}.")
