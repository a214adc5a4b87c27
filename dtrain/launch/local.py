"""A local cluster: one process a task, started, watched and stopped from here.

The launcher is never a task. It gives every task its role through TF_CONFIG, its
log and its GPU, passes signals on to the chief, and ends with the chief's status.
No task outlives it (see `lifeline`).
"""

import glob
import json
import os
import signal
import time
from collections.abc import Mapping

from dtrain import errors
from dtrain.cluster import tf_config
from dtrain.cluster.spec import Cluster, Task, split_address
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.launch import gpus, ports, record
from dtrain.launch.child import Child
from dtrain.launch.signals import Signals

_POLL_SECONDS = 0.1
_PORT_TRIES = 5
_LEAVE_SECONDS = 3.0  # for servers, once the chief is gone
_SAVE_SECONDS = 60.0  # for the chief, when another task is lost
_NOTICE_SECONDS = 2.0  # for the chief to end by itself when another task has
_TELL_SECONDS = 8.0  # for the chief to tell all servers, when one has left

# How dtrain's own processes end when they end by themselves. With 3 a server ends
# that cannot serve; with the others one that its chief told to leave.
_STATUSES = (0, 2, 3, 4, 129, 130, 143)
_TOLD = tuple(status for status in _STATUSES if status != 3)


_EVALUATOR = Task("evaluator")


class _PortLost(Exception):
    """Another program took a port between choosing and binding it."""


def run(config: RunConfig, environ: Mapping[str, str], console: Console) -> int:
    """Runs a whole local cluster; returns the exit status of the run.

    Args:
        config: `model_dir` must be absolute; `num_workers` and `num_ps` are the
            cluster's size. The rest goes to every task as flags.
        environ: what the tasks' environments start from.
        console: for lines about tasks. The chief writes to the terminal itself.

    Raises:
        TaskUnavailable: a task died, or no ports could be had.
        Interrupted: a signal came before there was anything to save, or a second one.
    """
    with Signals() as signals:
        for _ in range(_PORT_TRIES):
            launcher = _Launcher(config, environ, console, signals)
            try:
                return launcher.run()
            except KeyboardInterrupt:  # asked twice: no waiting for a checkpoint
                raise errors.Interrupted(signals.received[0]) from None
            except _PortLost as error:
                console.line(f"{error} Trying again with other ports.")
            finally:
                launcher.stop()
    raise errors.TaskUnavailable(
        f"Other programs took the chosen ports {_PORT_TRIES} times in a row. See what "
        "listens on this machine (ss -tlnp), then start again."
    )


def sizes(config: RunConfig) -> dict[str, int]:
    """Returns how many tasks of each job a local cluster has."""
    tasks = {"chief": 1, "worker": config.num_workers, "ps": config.num_ps}
    if config.strategy == "sync":
        tasks = {"worker": config.num_workers}
    return tasks | ({"evaluator": 1} if config.evaluator else {})


def describe(config: RunConfig) -> str:
    """Returns the size of a local cluster in words: "1 chief, 2 workers, 1 ps"."""
    return ", ".join(
        f"{count} {job}{'s' * (job == 'worker' and count != 1)}"
        for job, count in sizes(config).items()
    )


def choose_cluster(config: RunConfig) -> Cluster:
    """Returns the cluster of a run on free ports of this machine."""
    wanted = sizes(config)
    addresses = iter(f"127.0.0.1:{port}" for port in ports.free(sum(wanted.values())))
    return Cluster(
        {job: [next(addresses) for _ in range(n)] for job, n in wanted.items()}
    )


class _Launcher:
    """One try: the processes of a cluster from their start to their end."""

    def __init__(
        self,
        config: RunConfig,
        environ: Mapping[str, str],
        console: Console,
        signals: Signals,
    ):
        self._config = config
        self._environ = environ
        self._console = console
        self._signals = signals
        self._cluster = choose_cluster(config)
        self._children: dict[Task, Child] = {}
        self._is_stopping = False  # from here on tasks end because they are made to

    def run(self) -> int:
        # What an earlier run has noted would send an evaluator home.
        record.open_anew(self._config.model_dir)
        for task in self._cluster.tasks():
            self._start(task)
        self._write_tasks()
        chief = self._children[self._cluster.chief]
        asked = False
        while chief.process.poll() is None:
            if self._signals.received and not asked:
                self._ask_to_stop(chief, self._signals.received[0])
                asked = True
            self._update_states()
            lost = self._find_lost()
            if lost is not None:
                self._give_up(lost, chief)
            time.sleep(_POLL_SECONDS)
        self._update_states()
        self._wait_for_evaluator(chief)
        return self._end(chief)

    def _wait_for_evaluator(self, chief: Child) -> None:
        """Lets it evaluate the last checkpoint, if all went well."""
        status = chief.process.returncode
        # A chief that was killed could not note that the run is over.
        record.end(self._config.model_dir, status if status >= 0 else 128 - status)
        evaluator = self._children.get(_EVALUATOR)
        if evaluator is None:
            return
        if status == 0 and not evaluator.wait(_LEAVE_SECONDS):
            self._console.line("Waiting for the evaluator. Ctrl-C ends it.")
        while not evaluator.wait(_POLL_SECONDS):
            if self._signals.received and not self._is_stopping:
                evaluator.process.send_signal(self._signals.received[0])
                self._is_stopping = True
        self._update_states()

    def stop(self) -> None:
        """Ends every task that is still there: first by waiting, then by force."""
        if not self._children:
            return
        self._update_states()
        self._is_stopping = True
        chief = self._children[self._cluster.chief]  # the first to be started
        # A chief that is gone has told the servers, unless it failed before it could;
        # those that train in step with it notice by themselves.
        status = chief.process.poll()
        told = status in _STATUSES
        told = told or (status is not None and self._config.strategy == "sync")
        deadline = time.monotonic() + (_LEAVE_SECONDS if told else 0.0)
        for child in self._children.values():
            child.stop(max(0.0, deadline - time.monotonic()))
        self._update_states()

    def _start(self, task: Task) -> None:
        environ = dict(self._environ)
        environ["TF_CONFIG"] = tf_config.build(self._cluster, task)
        environ["CUDA_VISIBLE_DEVICES"] = self._visible_gpus(task)
        # The chief keeps the terminal, and sends all but its lines to its log.
        keeps_terminal = task == self._cluster.chief
        self._children[task] = Child(
            task, self._cluster, self._config, environ, keeps_terminal
        )

    def _visible_gpus(self, task: Task) -> str:
        if self._config.strategy != "sync":
            return gpus.visible_to(task, self._environ)
        count = self._config.devices_per_task
        return gpus.share(task.index, self._config.num_workers, count, self._environ)

    def _update_states(self) -> None:
        before = [child.state for child in self._children.values()]
        ended_with = self._children[self._cluster.chief].process.poll()
        for task, child in self._children.items():
            status = child.process.poll()
            if child.state in ("exited", "failed"):
                continue
            if task == _EVALUATOR and child.state == "starting":
                child.was_running, child.state = True, "running"  # it listens nowhere
            if status is not None:
                told = status in _TOLD or status == ended_with
                told = told and task != self._cluster.chief
                if task == _EVALUATOR:  # nobody tells it how to fail
                    told = status == ended_with
                well = told or status == 0 or self._is_stopping
                child.state = "exited" if well else "failed"
                if task == _EVALUATOR and not well:
                    goes_on = "\nTraining goes on without it." * (ended_with is None)
                    self._console.error(child.describe_end() + goes_on)
            elif child.state == "starting":
                _, port = split_address(child.address)
                if ports.listens(child.process.pid, port):
                    child.was_running = True
                    child.state = "running"
        if [child.state for child in self._children.values()] != before:
            self._write_tasks()

    def _ask_to_stop(self, chief: Child, signum: int) -> None:
        """Passes a signal on.

        Raises:
            Interrupted: there is nothing to save yet.
        """
        if not chief.was_running:
            raise errors.Interrupted(signum)
        chief.process.send_signal(signum)
        self._console.line(
            "Stopping: the chief saves a checkpoint. Once more stops at once."
        )

    def _find_lost(self) -> Child | None:
        """Returns a server that has ended; its chief may have told it to.

        Raises:
            _PortLost: a task died because its port went to another program.
        """
        for task, child in self._children.items():
            if child.process.poll() is None or task == _EVALUATOR:
                continue
            _, port = split_address(child.address)
            if not child.was_running and ports.holder(port):
                raise _PortLost(f"Port {port} of {task} went to another program.")
            if task != self._cluster.chief:
                return child
        return None

    def _give_up(self, lost: Child, chief: Child) -> None:
        """Reports a lost task, lets the chief save what it can, and raises."""
        # The chief may be about to end itself, having told the servers or lost a ps.
        told = lost.process.returncode in (
            _STATUSES if self._config.strategy == "sync" else _TOLD
        )
        if chief.wait(_TELL_SECONDS if told else _NOTICE_SECONDS):
            return
        self._console.error(lost.describe_end())
        chief.process.send_signal(signal.SIGTERM)
        chief.wait(_SAVE_SECONDS)
        raise errors.TaskUnavailable(self._how_to_resume(lost))

    def _end(self, chief: Child) -> int:
        """Returns the run's status once the chief is gone.

        Raises:
            TaskUnavailable: the chief, or a server before it, died.
        """
        lost = self._find_lost()
        if chief.process.returncode not in _STATUSES:
            lost = chief
        if lost is not None and lost.process.returncode not in _STATUSES:
            self._console.error(lost.describe_end())
            raise errors.TaskUnavailable(self._how_to_resume(lost))
        evaluator = self._children.get(_EVALUATOR)
        if chief.process.returncode == 0 and evaluator is not None:
            self._show_best()
            status = evaluator.process.returncode
            return status if status >= 0 else errors.TaskUnavailable.exit_status
        return chief.process.returncode

    def _show_best(self) -> None:
        """Tells what the evaluator has found, if that was its task."""
        path = os.path.join(self._config.model_dir, "best", "best.json")
        wanted = self._config.best_metric or self._config.early_stop_patience
        if wanted and os.path.exists(path):
            with open(path) as file:
                best = json.load(file)
            self._console.line(
                f"  evaluator: best {best['metric']} {best['value']:.4f}, at step "
                f"{best['global_step']}: {best['checkpoint']}"
            )

    def _how_to_resume(self, lost: Child) -> str:
        folder = self._config.model_dir
        saved = glob.glob(os.path.join(glob.escape(folder), "ckpt-*.index"))
        return f"The run stopped, because {lost.task} was lost." + (
            f" The same command with --model_dir={folder} goes on from the last "
            "checkpoint."
            if saved
            else " There is no checkpoint yet: start again."
        )

    def _write_tasks(self) -> None:
        path = os.path.join(self._config.model_dir, "tasks.json")
        tasks = [child.entry() for child in self._children.values()]
        with open(path + ".tmp", "w") as file:
            json.dump({"tasks": tasks}, file, indent=1)
        os.replace(path + ".tmp", path)
