"""One task of a cluster as a process that was started from here."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

import psutil

from dtrain.cluster.spec import Cluster, Task
from dtrain.config import RunConfig
from dtrain.launch import lifeline, model_dir

_TAIL_LINES = 15


class Child:
    """A task's process, its log, and how it is doing.

    Args:
        task: the role, which the process finds in `environ`'s TF_CONFIG.
        cluster: where the task has its address.
        config: the run's; becomes the process's flags.
        environ: the process's environment.
        keeps_terminal: its output goes to the terminal, not to its log.

    Attributes:
        process: the process.
        log: path of its log.
        state: "starting", "running", "exited" or "failed".
        was_running: it has listened on its port.
    """

    def __init__(
        self,
        task: Task,
        cluster: Cluster,
        config: RunConfig,
        environ: Mapping[str, str],
        keeps_terminal: bool = False,
    ):
        self.task = task
        self.address = cluster.address(task)
        self.state = "starting"
        self.was_running = False
        self.log = model_dir.log_path(config.model_dir, task)
        os.makedirs(os.path.dirname(self.log), exist_ok=True)
        environ = dict(environ, PYTHONUNBUFFERED="1")
        lifeline.attach(environ)
        # The cluster is in TF_CONFIG: its size is nobody else's business.
        config = config.replace(
            cluster="tf_config",
            num_workers=RunConfig.num_workers,
            num_ps=RunConfig.num_ps,
        )
        flags = config.to_flags()
        with open(self.log, "ab") as log:
            self._log_start = log.tell()  # what is before belongs to earlier runs
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dtrain.main", *flags],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=None if keeps_terminal else log,
                stderr=None if keeps_terminal else log,
                # The terminal's Ctrl-C is for the process that started this one.
                start_new_session=True,
            )

    def entry(self) -> dict:
        """Returns this task's part of tasks.json."""
        return {
            "task": str(self.task),
            "pid": self.process.pid,
            "address": self.address,
            "log": self.log,
            "restarts": 0,
            "state": self.state,
            "exit_status": self.process.returncode,
        }

    def describe_end(self) -> str:
        """Says how the process ended, with the end of its log."""
        status = self.process.returncode
        how = (
            f"was killed by {signal.Signals(-status).name}"
            if status < 0
            else f"ended with exit status {status}"
        )
        with open(self.log, errors="replace") as file:
            file.seek(self._log_start)
            lines = file.read().splitlines()[-_TAIL_LINES:] or ["(empty)"]
        tail = "\n".join(f"  | {line}" for line in lines)
        return (
            f"{self.task} (pid {self.process.pid}) {how}. The end of its log, "
            f"{self.log}:\n{tail}"
        )

    def wait(self, seconds: float) -> bool:
        """Returns whether the process has ended within that time."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, seconds: float) -> None:
        """Gives the process that time to leave by itself, then kills it.

        What it has started itself goes with it.
        """
        if self.wait(seconds):
            return
        try:
            process = psutil.Process(self.process.pid)
            family = [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            family = []
        for member in family:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()
