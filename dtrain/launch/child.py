"""One task of a cluster as a process that was started from here."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

import psutil

from dtrain.cluster.spec import Task
from dtrain.config import RunConfig
from dtrain.launch import lifeline, model_dir
from dtrain.launch.life import OVER, Life
from dtrain.launch.private_network import PrivateNetwork

_TAIL_LINES = 15

# How a command ends when nobody has killed it (docs/flags.md).
STATUSES = (0, 2, 3, 4, 129, 130, 143)
ASKED = (129, 130, 143)  # by a signal, and it has left in order


class Child:
    """A process that is a dtrain command, with its log.

    Args:
        name: for messages.
        config: becomes the process's flags.
        environ: the process's environment.
        life: what the process is told of the lives before its own.
        log: path of its log.
        keeps_terminal: its output goes to the terminal, not to its log.
        network: where it runs; `None` for the machine's.

    Attributes:
        process: the process.
        status: its exit status; `None` until it has ended, and `poll` has seen that.
    """

    def __init__(
        self,
        name: str,
        config: RunConfig,
        environ: Mapping[str, str],
        life: Life,
        log: str,
        keeps_terminal: bool = False,
        network: PrivateNetwork | None = None,
    ):
        self._name = name
        self._log = log
        self._is_over = False
        self.status: int | None = None
        os.makedirs(os.path.dirname(log), exist_ok=True)
        environ = dict(environ, PYTHONUNBUFFERED="1")
        lifeline.attach(environ)
        life.leave(environ)
        argv = [sys.executable, "-m", "dtrain.main", *config.to_flags()]
        with open(log, "ab") as output:
            self._log_start = output.tell()  # what is before belongs to earlier ones
            self.process = subprocess.Popen(
                argv if network is None else network.inside(argv),
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=None if keeps_terminal else output,
                stderr=None if keeps_terminal else output,
                # The terminal's Ctrl-C is for the process that started this one.
                start_new_session=True,
                pass_fds=() if network is None else network.descriptors,
            )

    def poll(self) -> int | None:
        """Returns the exit status; `None` as long as the process lives."""
        status = self.process.poll()
        if status is not None and self.status is None:
            self._is_over = status - OVER in STATUSES
            self.status = status - OVER if self._is_over else status
        return self.status

    @property
    def is_over(self) -> bool:
        """Whether it has ended because its run is over, and said so."""
        return self._is_over

    def describe_cause(self) -> str:
        """Returns how the process ended: "was killed by SIGKILL"."""
        if self.status < 0:
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"ended with exit status {self.status}"

    def describe_end(self) -> str:
        """Says how the process ended, with the end of its log."""
        with open(self._log, errors="replace") as file:
            file.seek(self._log_start)
            lines = file.read().splitlines()[-_TAIL_LINES:] or ["(empty)"]
        tail = "\n".join(f"  | {line}" for line in lines)
        return (
            f"{self._name} (pid {self.process.pid}) {self.describe_cause()}. The end "
            f"of its log, {self._log}:\n{tail}"
        )

    def wait(self, seconds: float) -> bool:
        """Returns whether the process has ended within that time."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self.poll()
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
        self.poll()


def start_task(
    task: Task,
    config: RunConfig,
    environ: Mapping[str, str],
    life: Life,
    keeps_terminal: bool = False,
    network: PrivateNetwork | None = None,
) -> Child:
    """Starts a task of a cluster that its environment's TF_CONFIG describes."""
    # The cluster's size is nobody else's business.
    config = config.replace(
        cluster="tf_config",
        num_workers=RunConfig.num_workers,
        num_ps=RunConfig.num_ps,
        supervise=False,
    )
    log = model_dir.log_path(config.model_dir, task)
    return Child(str(task), config, environ, life, log, keeps_terminal, network)
