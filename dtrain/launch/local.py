"""A local cluster: one process a task, started, watched and stopped from here.

The launcher is never a task. It gives every task its role through TF_CONFIG, its
log and its GPU, starts lost ones again, passes signals on to the chief, and ends with
its status. No task outlives it (see `lifeline`).
"""

import contextlib
import functools
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
from dtrain.launch import child, gpus, model_dir, ports, processors, record
from dtrain.launch.child import Child
from dtrain.launch.life import Life
from dtrain.launch.private_network import PrivateNetwork
from dtrain.launch.signals import Signals
from dtrain.launch.supervised import Supervised

_POLL_SECONDS = 0.1
_PORT_TRIES = 5
_LEAVE_SECONDS = 3.0  # for servers, once the chief is gone
_SAVE_SECONDS = 60.0  # for the chief, when another task is lost for good
_NOTICE_SECONDS = 2.0  # for the chief to end by itself when another task has
_TELL_SECONDS = 20.0  # for the chief to tell all servers, when one has left

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
        UsageError: the private network that was asked for cannot be had.
        TaskUnavailable: a task died and could not be replaced, or no ports could be
            had.
        Interrupted: a signal came before there was anything to save, or a second one.
    """
    with Signals() as signals, contextlib.ExitStack() as stack:
        network = _make_network(config, console)
        if network is not None:
            stack.callback(network.close)
        for _ in range(_PORT_TRIES):
            launcher = _Launcher(config, environ, network, console, signals)
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


def _make_network(config: RunConfig, console: Console) -> PrivateNetwork | None:
    """Returns a network for the cluster alone; `None` to use the machine's."""
    if config.private_network == "off":
        return None
    try:
        return PrivateNetwork()
    except OSError as error:
        if config.private_network == "on":
            raise errors.UsageError(
                "--private_network=on, but this system allows no private network "
                f"({error}). Use --private_network=auto, and see docs/failures.md for "
                "what to put around the cluster instead."
            ) from error
        console.line(
            f"  no private network could be made ({error}): whoever reaches this "
            "machine's ports can run code in its tasks (docs/failures.md)"
        )
        return None


class _Launcher:
    """One try: the processes of a cluster from their start to their end."""

    def __init__(
        self,
        config: RunConfig,
        environ: Mapping[str, str],
        network: PrivateNetwork | None,
        console: Console,
        signals: Signals,
    ):
        self._config = config
        self._environ = environ
        self._network = network
        self._console = console
        self._signals = signals
        self._cluster = choose_cluster(config)
        self._tasks: dict[Task, Supervised] = {}
        self._has_listened: dict[Task, Child] = {}  # which process of it has
        self._written: list | None = None
        self._ends: dict[Child, str] = {}
        self._is_stopping = False  # from here on tasks end because they are made to
        self._lost: Child | None = None  # that cannot be replaced

    def run(self) -> int:
        # What an earlier run has noted would send an evaluator home.
        record.open_anew(self._config.model_dir)
        life = Life.read({}).of("launcher")
        for task in self._cluster.tasks():
            self._tasks[task] = Supervised(
                str(task),
                functools.partial(self._start, task),
                life,
                self._config.max_restarts,
                self._console,
            )
        self._write_tasks()
        chief = self._tasks[self._cluster.chief]
        asked = False
        while not chief.has_ended:
            if self._signals.received and not asked:
                self._ask_to_stop(chief, self._signals.received[0])
                asked = True
            self._check_ports()
            self._look()
            self._give_up_if_lost(chief)
            time.sleep(_POLL_SECONDS)
        self._look()
        self._wait_for_evaluator(chief)
        return self._end(chief)

    def _start(self, task: Task, life: Life) -> Child:
        environ = {**self._environ, "TF_CONFIG": tf_config.build(self._cluster, task)}
        environ["CUDA_VISIBLE_DEVICES"] = self._visible_gpus(task)
        environ |= processors.threads(task, self._config.num_workers, environ)
        # The chief keeps the terminal, and sends all but its lines to its log.
        keeps_terminal = task == self._cluster.chief
        options = life, keeps_terminal, self._network
        return child.start_task(task, self._config, environ, *options)

    def _visible_gpus(self, task: Task) -> str:
        if self._config.strategy != "sync":
            return gpus.visible_to(task, self._environ)
        count = self._config.devices_per_task
        return gpus.share(task.index, self._config.num_workers, count, self._environ)

    def _look(self) -> None:
        """Takes notice of what has happened to the tasks; starts lost ones again."""
        chief = self._tasks[self._cluster.chief]
        for supervised in (chief, *self._tasks.values()):
            # With the chief gone, whatever follows it is meant to.
            is_last = supervised.name == str(_EVALUATOR) and chief.child.status == 0
            is_over = chief.has_ended and not is_last
            supervised.is_stopping = self._is_stopping or is_over
            supervised.look()
        for task, supervised in self._tasks.items():
            if self._listens(task):
                self._has_listened[task] = supervised.child
        self._write_tasks()

    def _listens(self, task: Task) -> bool:
        process = self._tasks[task].child
        if process.poll() is not None or self._has_listened.get(task) is process:
            return False
        _, port = split_address(self._cluster.address(task))
        return task == _EVALUATOR or ports.listens(process.process.pid, port)

    def _check_ports(self) -> None:
        """Sees that no task has lost its port before it could listen there.

        Raises:
            _PortLost: a task died because its port went to another program.
        """
        if self._network is not None:  # there is no other program
            return
        for task, supervised in self._tasks.items():
            if supervised.child.poll() is None or task in self._has_listened:
                continue
            _, port = split_address(self._cluster.address(task))
            if task != _EVALUATOR and ports.holder(port):
                raise _PortLost(f"Port {port} of {task} went to another program.")

    def _ask_to_stop(self, chief: Supervised, signum: int) -> None:
        """Passes a signal on.

        Raises:
            Interrupted: there is nothing to save yet.
        """
        self._is_stopping = True
        is_up = self._has_listened.get(self._cluster.chief) is chief.child
        if chief.is_pausing or not is_up:
            raise errors.Interrupted(signum)
        chief.child.process.send_signal(signum)
        self._console.line(
            "Stopping: the chief saves a checkpoint. Once more stops at once."
        )

    def _give_up_if_lost(self, chief: Supervised) -> None:
        """Reports a task that is lost for good, lets the chief save what it can.

        Raises:
            TaskUnavailable: there is one.
        """
        for task, supervised in self._tasks.items():
            if task == self._cluster.chief or not supervised.has_ended:
                continue
            lost = supervised.child
            if lost is self._lost or self._may_leave(task, lost):
                continue
            if task == _EVALUATOR:
                self._lost = lost
                self._console.error(
                    f"{lost.describe_end()}\nTraining goes on without it."
                )
                continue
            # The chief may be about to end, for the same reason or as the cause.
            known = lost.is_over or lost.status in child.STATUSES
            if chief.child.wait(_TELL_SECONDS if known else _NOTICE_SECONDS):
                return
            self._console.error(lost.describe_end())
            if not self._is_stopping:
                self._is_stopping = True
                chief.child.process.send_signal(signal.SIGTERM)
            chief.child.wait(_SAVE_SECONDS)
            raise errors.TaskUnavailable(self._how_to_resume(task))

    def _leaves_well(self, task: Task, process: Child) -> bool:
        """Returns whether a task other than the chief has ended in order."""
        chief = self._tasks[self._cluster.chief].child
        told = process.is_over or process.status == chief.poll()
        return told or self._may_leave(task, process)

    def _may_leave(self, task: Task, process: Child) -> bool:
        """Returns whether a task that has ended was free to do so."""
        if task == _EVALUATOR:
            return process.status == 0 or self._is_stopping
        # A worker of an asynchronous run may leave when it is asked to.
        is_free = self._config.strategy != "sync" and task.type == "worker"
        return is_free and process.status in child.ASKED

    def _wait_for_evaluator(self, chief: Supervised) -> None:
        """Lets it evaluate the last checkpoint, if all went well."""
        status = chief.child.status
        # A chief that was killed could not note that the run is over.
        record.end(self._config.model_dir, status if status >= 0 else 128 - status)
        if _EVALUATOR not in self._tasks:
            return
        evaluator = self._tasks[_EVALUATOR]
        if status == 0 and not evaluator.child.wait(_LEAVE_SECONDS):
            self._console.line("Waiting for the evaluator. Ctrl-C ends it.")
        while not evaluator.has_ended:
            if self._signals.received and not self._is_stopping:
                evaluator.child.process.send_signal(self._signals.received[0])
                self._is_stopping = True
            self._look()
            time.sleep(_POLL_SECONDS)
        self._look()
        if not self._leaves_well(_EVALUATOR, evaluator.child):
            self._console.error(evaluator.child.describe_end())

    def stop(self) -> None:
        """Ends every task that is still there: first by waiting, then by force."""
        if not self._tasks:
            return
        self._is_stopping = True
        chief = self._tasks[self._cluster.chief].child  # the first to be started
        # A chief that is gone has told the servers, unless it failed before it could;
        # those that train in step with it notice by themselves.
        told = chief.poll() is not None and (
            chief.status in child.STATUSES or self._config.strategy == "sync"
        )
        deadline = time.monotonic() + (_LEAVE_SECONDS if told else 0.0)
        for supervised in self._tasks.values():
            supervised.stop(max(0.0, deadline - time.monotonic()))
        self._write_tasks()

    def _end(self, chief: Supervised) -> int:
        """Returns the run's status once the chief is gone.

        Raises:
            TaskUnavailable: the chief died and could not be replaced.
        """
        status = chief.child.status
        if self._signals.received and status == -self._signals.received[0]:
            return 128 - status  # it was not up to saving
        lost = [self._cluster.chief] if status not in child.STATUSES else []
        if status == errors.TaskUnavailable.exit_status:  # what is behind that
            lost = [task for task in self._tasks if self._is_lost(task)]
        for task in lost[:1]:
            self._console.error(self._tasks[task].child.describe_end())
            raise errors.TaskUnavailable(self._how_to_resume(task))
        if status == 0 and _EVALUATOR in self._tasks:
            self._show_best()
            status = self._tasks[_EVALUATOR].child.status
            return status if status >= 0 else errors.TaskUnavailable.exit_status
        return status

    def _is_lost(self, task: Task) -> bool:
        return self._tasks[task].child.poll() not in (None, *child.STATUSES)

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

    def _how_to_resume(self, task: Task) -> str:
        folder = self._config.model_dir
        saved = model_dir.newest_step(folder) >= 0
        return f"The run stopped, because {task} was lost." + (
            f" The same command with --model_dir={folder} goes on from the last "
            "checkpoint."
            if saved
            else " There is no checkpoint yet: start again."
        )

    def _write_tasks(self) -> None:
        """Keeps tasks.json (docs/flags.md) current."""
        tasks = [self._entry(task) for task in self._tasks]
        if tasks == self._written:
            return
        self._written = tasks
        path = os.path.join(self._config.model_dir, "tasks.json")
        with open(path + ".tmp", "w") as file:
            json.dump({"tasks": tasks}, file, indent=1)
        os.replace(path + ".tmp", path)

    def _entry(self, task: Task) -> dict:
        supervised = self._tasks[task]
        status = supervised.child.poll()
        if supervised.is_pausing:
            state = "restarting"
        elif status is None:
            is_up = self._has_listened.get(task) is supervised.child
            state = "running" if is_up else "starting"
        else:  # how it ended does not change with what follows
            state = self._ends.setdefault(supervised.child, self._end_of(task))
        return {
            "task": str(task),
            "pid": supervised.child.process.pid,
            "address": self._cluster.address(task),
            "log": model_dir.log_path(self._config.model_dir, task),
            "restarts": len(supervised.restarts),
            "state": state,
            "exit_status": status,
        }

    def _end_of(self, task: Task) -> str:
        process = self._tasks[task].child
        is_chief = task == self._cluster.chief
        well = not is_chief and self._leaves_well(task, process)
        well = well or process.status == 0 or self._is_stopping
        return "exited" if well else "failed"
