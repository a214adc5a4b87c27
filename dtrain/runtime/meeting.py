"""How the tasks of a synchronous run meet, act together and part.

Each task runs the same program. The chief alone decides what is done next, and says so
by a small all-reduce to which the others add nothing but what they want heard.
"""

import concurrent.futures
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from dtrain import errors
from dtrain.cluster.spec import Cluster, Task
from dtrain.console import Console
from dtrain.launch import processors
from dtrain.launch.life import OVER
from dtrain.launch.signals import Signals
from dtrain.runtime import preflight, rendezvous, unlocked
from dtrain.runtime.collectives import Group
from dtrain.runtime.notes import Notes, abort_collectives

LEAVE = 0  # the order that ends a run; any other number is the strategy's

_POLL_SECONDS = 0.2
_FIRST_CAUSE_SECONDS = 2.0  # for a failing task's note to arrive
_PART_SECONDS = 10.0
_PART_FROM_LOST_SECONDS = 2.0  # who does not answer keeps nobody
_PATIENCE_SECONDS = 1.0
_TELL_SECONDS = 3.0
_SELDOM_SECONDS = 1.5  # that a call lasts, if nobody is lost

_has_met: list[Task] = []  # in this process, as which task


class Meeting:
    """All tasks of a run, met.

    Args:
        cluster: chief and workers, nobody else.
        task: which of them this process is.
        timeout: seconds to wait for all of them.
        heartbeat_timeout: seconds of silence after which a task is lost.
        console: for lines that name who is missing.
        restarts: what this task's supervisor has noted of its restarts.
        signals: what this task has been asked; the chief gets the others' too.

    Attributes:
        group: the replicas of all tasks; the chief is process 0.
        is_chief: whether this task is.
        tasks: all of them, by process.

    Raises:
        TaskUnavailable: somebody did not come.
    """

    def __init__(
        self,
        cluster: Cluster,
        task: Task,
        timeout: float,
        heartbeat_timeout: float,
        restarts: Sequence[Mapping[str, Any]],
        console: Console,
        signals: Signals,
    ):
        self._restarts = list(restarts)
        self.tasks = tasks = cluster.tasks()
        self.is_chief = task == cluster.chief
        self._task = task
        self._cluster = cluster
        self._chief = cluster.chief
        self._timeout = timeout
        self._console = console
        self._signals = signals
        self._asked_at: float | None = None  # to stop, seen here first
        self._said = False  # that it was heard
        self._is_clean = True  # nothing has failed while all had to act together
        if processors.are_shared(os.environ):
            _rest_when_idle()
        _choose_heartbeat(cluster, heartbeat_timeout)
        strategy = _connect(cluster, task, timeout, console)
        signals.take_back()
        self.group = Group(strategy, tasks.index(task), len(tasks))
        self._notes = Notes(task, cluster.chief)
        # Collectives wait in a thread, so that this one hears signals.
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._sum = tf.function(self.group.sum_over_processes, autograph=False)

    def compare(self, settings: dict[str, Any]) -> None:
        """Sees that all tasks were started alike.

        Args:
            settings: what has to be the same, by the names that messages use.

        Raises:
            UsageError: some were not, on the chief.
            TaskUnavailable: a task did not get ready in time.
        """
        if not self.is_chief:
            self._notes.write("restarts", json.dumps(self._restarts))
            self._notes.write("settings", json.dumps(settings))
            return
        settings, unready = json.loads(json.dumps(settings)), self._others()
        preflight.wait_for(
            lambda: self._hear_settings(unready, settings),
            self._cluster,
            self._timeout,
            self._console,
            self._check_alive,
        )

    def _hear_settings(
        self, unready: list[Task], settings: dict[str, Any]
    ) -> list[Task]:
        """Takes out who has told its settings, and sees that they agree."""
        for task in list(unready):
            text = self._notes.read("settings", task)
            if text is None:
                continue
            unready.remove(task)
            self._restarts += json.loads(self._notes.read("restarts", task) or "[]")
            for name, theirs in json.loads(text).items():
                if theirs != settings[name]:
                    raise errors.UsageError(
                        f"{task} was started with {_name(name, theirs)}, {self._chief} "
                        f"with {_name(name, settings[name])}. All tasks of synchronous "
                        "training need the same: give every command the same flags and "
                        "files."
                    )
        return unready

    def _check_alive(self) -> None:
        """Raises what has ended the run, or who is lost."""
        if self._notes.failure is not None:
            self._raise_failure()
        silent = self._find_silent()
        if silent:
            self._is_clean = False
            if self._notes.wait_for_failure(_FIRST_CAUSE_SECONDS) is not None:
                self._raise_failure()
            raise errors.TaskUnavailable(_describe_loss(silent))

    def restarts(self) -> list[Mapping[str, Any]]:
        """On the chief: returns what supervisors have noted of the tasks' restarts."""
        return self._restarts

    def order(self, code: int, number: int = 0) -> None:
        """On the chief: says what all tasks do next."""
        _, _, *asked = self._exchange(code, number)
        if any(asked) and not self._signals.received:  # somebody else was to stop
            self._signals.received.append(next(filter(None, asked)))

    def hear(self) -> tuple[int, int]:
        """On the others: waits for the chief's next order; returns code and number."""
        code, number, *_ = self._exchange(0, 0)
        return code, number

    def act(self, function: Callable, *args) -> Any:
        """Runs what all tasks run now, without Python code in it; hears signals.

        Raises:
            DtrainError: it failed here, or somebody else said that it did.
        """
        future = self._pool.submit(function, *args)
        refusals = preflight.Refusals([*map(self._cluster.address, self._others())])
        looks_from = time.monotonic() + _SELDOM_SECONDS
        try:
            while not future.done():
                concurrent.futures.wait([future], _POLL_SECONDS)
                self._answer_signals()
                if time.monotonic() < looks_from or future.done():
                    continue
                if refusals.look():
                    abort_collectives(tf.errors.UNAVAILABLE, "a task is gone")
            return future.result()
        except tf.errors.OpError as error:
            self._is_clean = False
            self._explain(error)
            raise
        except KeyboardInterrupt:
            self._is_clean = False
            raise

    def _answer_signals(self) -> None:
        """Says that a signal was heard, if what it has to wait for takes long."""
        if not self._signals.received:
            return
        self._asked_at = self._asked_at or time.monotonic()
        if time.monotonic() - self._asked_at > _PATIENCE_SECONDS and not self._said:
            self._said = True
            self._console.line(
                "Stopping when all tasks have come to the same step. Once more stops "
                "at once."
            )

    def end(self, status: int, failure: str | None) -> None:
        """Parts. The chief is the last to leave, and tells the others its status.

        Args:
            status: this task's exit status.
            failure: why it leaves before its time; `None` if all is in order.
        """
        if failure is not None or not self._is_clean:
            _in_time(self._notes.fail, status, failure or "")
        elif self.is_chief:
            self.order(LEAVE, status)
        self._notes.close()
        if self.is_chief:
            seconds = _PART_SECONDS if self._is_clean else _PART_FROM_LOST_SECONDS
            in_haste = failure is not None and len(self._signals.received) > 1
            self._see_off(0.0 if in_haste else seconds)
        else:
            _in_time(self._notes.write, "left", "")

    def _see_off(self, seconds: float) -> None:
        """Waits until the others have left: the notes are kept in this process."""
        deadline = time.monotonic() + seconds
        for task in self._others():
            while time.monotonic() < deadline:
                if self._notes.read("left", task) is not None:
                    break
                if not preflight.accepts(self._cluster.address(task)):
                    break

    def _others(self) -> list[Task]:
        return [task for task in self._cluster.tasks() if task != self._task]

    def _exchange(self, code: int, number: int) -> list[int]:
        """Returns the order, and by task the signal that asked it to stop, or 0."""
        asked = [0] * self.group.num_processes
        asked[self.group.process] = next(iter(self._signals.received), 0)
        result = self.act(self._sum, tf.constant([code, number, *asked], tf.int64))
        return [int(value) for value in result.numpy()]

    def _explain(self, error: tf.errors.OpError) -> None:
        """Raises what is behind an error that a collective gave.

        A lost connection is a symptom, whose cause its task may have told.
        """
        symptoms = (
            tf.errors.UnavailableError,
            tf.errors.AbortedError,
            tf.errors.CancelledError,
            tf.errors.InternalError,
            tf.errors.DeadlineExceededError,
        )
        if not isinstance(error, symptoms):
            return
        if self._notes.wait_for_failure(_FIRST_CAUSE_SECONDS) is not None:
            self._raise_failure(error)
        lost = self._find_silent() or self._find_named(error.message)
        # ... of a heartbeat, for instance, to the chief.
        is_call = "/tensorflow.CoordinationService/" in error.message
        if is_call and not lost and not self.is_chief:
            lost = [self._chief]
        if lost or is_call or isinstance(error, tf.errors.UnavailableError):
            raise errors.TaskUnavailable(_describe_loss(lost)) from error

    def _find_silent(self) -> list[Task]:
        others = self._others()
        return [t for t in others if not preflight.accepts(self._cluster.address(t))]

    def _find_named(self, text: str) -> list[Task]:
        """Returns whom TensorFlow has missed the heartbeats of."""
        named = re.findall(r"Error reported from /job:(\w+)/task:(\d+)", text)
        tasks = [Task(job, int(index)) for job, index in dict.fromkeys(named)]
        return [task for task in tasks if task != self._task]

    def _raise_failure(self, cause: BaseException | None = None) -> None:
        failure = self._notes.failure
        message = failure.message
        if failure.task != str(self._task):
            message = f"{failure.task} ended the run: {message}"
        # Who has lost a task is about to start again, as this one has to.
        error = errors.TaskUnavailable(message)
        given_up = OVER + error.exit_status
        if failure.status == given_up:
            error = errors.GivenUp(message)
        elif failure.status != error.exit_status:
            error = errors.from_status(failure.status, message)
        raise error from cause


def _in_time(function: Callable, *args) -> None:
    """Tells the others something, unless they cannot be reached.

    The chief, who keeps the notes, may be cut off, and TensorFlow waits for it.
    """

    def tell() -> None:
        try:
            function(*args)
        except tf.errors.OpError:
            return  # the chief is gone already

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    thread.join(_TELL_SECONDS)


def _name(setting: str, value: Any) -> str:
    return f"no {setting}" if value is None else f"{setting}={value}"


def _describe_loss(tasks: list[Task]) -> str:
    return (
        f"The connection to {', '.join(map(str, tasks)) or 'another task'} is lost. "
        "Synchronous training needs every task."
    )


def check_unused() -> None:
    """Sees that this process can meet others: before it tries to.

    Raises:
        UsageError: TensorFlow was used here already.
    """
    if _has_met:
        raise errors.UsageError(
            "This process has trained with --strategy=sync already, and TensorFlow can "
            "connect it only once. Start a new process for each run."
        )
    if context.context()._context_handle is not None:
        raise errors.UsageError(
            "TensorFlow was used in this process before dtrain.train, and can connect "
            "to others only before that. Let training be the first that uses it: make "
            "no tensor or model before it, or where a module is imported."
        )


def _rest_when_idle() -> None:
    """Has TensorFlow's threads sleep as soon as they find nothing to do.

    They would look around for a while, on processors that others have work for.
    """
    config = tf.compat.v1.ConfigProto()
    if context.context()._config is not None:
        config.CopyFrom(context.context()._config)
    config.experimental.disable_thread_spinning = True
    context.context()._config = config


def _choose_heartbeat(cluster: Cluster, timeout: float) -> None:
    """Has TensorFlow's coordination service notice who is silent for so long.

    `MultiWorkerMirroredStrategy` would configure it in the same way, but for that.
    """
    jobs = [
        context.coordination_config_pb2.CoordinatedJob(name=job, num_tasks=count)
        for job, count in cluster.sizes().items()
    ]
    chief = cluster.chief
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{chief.type}/replica:0/task:{chief.index}",
        # Less what it takes until the tasks hear of it, and have asked for the cause.
        heartbeat_timeout_in_ms=int(timeout * 900),
        coordinated_jobs=jobs,
    )


def _connect(
    cluster: Cluster, task: Task, timeout: float, console: Console
) -> tf.distribute.Strategy:
    """Returns the strategy, once all tasks are there."""
    _has_met.append(task)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.to_dict()),
        task_type=task.type,
        task_id=task.index,
        rpc_layer="grpc",
    )
    kinds = tf.distribute.experimental.CommunicationImplementation
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=kinds.NCCL if has_gpu else kinds.RING
    )

    def connect() -> tf.distribute.Strategy:
        with unlocked.server_start():
            return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)

    try:
        return rendezvous.attend(cluster, task, timeout, console, connect)
    except tf.errors.OpError as error:
        raise errors.TaskUnavailable(
            f"{task} cannot connect on {cluster.address(task)}: "
            f"{error.message.splitlines()[0]}"
        ) from error
