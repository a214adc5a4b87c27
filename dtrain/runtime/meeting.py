"""How the tasks of a synchronous run meet, act together and part.

Each task runs the same program. The chief alone decides what is done next, and says so
by a small all-reduce to which the others add nothing but what they want heard.
"""

import concurrent.futures
import json
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# MultiWorkerMirroredStrategy configures it too, but would wait for an hour.
from tensorflow.python.distribute.collective_all_reduce_strategy import (
    coordination_config_pb2,
)
from tensorflow.python.eager import context

from dtrain import errors
from dtrain.cluster.spec import Cluster, Task
from dtrain.console import Console
from dtrain.launch.signals import Signals
from dtrain.runtime import preflight, rendezvous
from dtrain.runtime.collectives import Group
from dtrain.runtime.notes import Notes

LEAVE = 0  # the order that ends a run; any other number is the strategy's

_POLL_SECONDS = 0.2
_FIRST_CAUSE_SECONDS = 2.0  # for a failing task's note to arrive
_PART_SECONDS = 10.0
_REGISTER_MS = 60_000


class Meeting:
    """All tasks of a run, met.

    Args:
        cluster: chief and workers, nobody else.
        task: which of them this process is.
        timeout: seconds to wait for all of them.
        console: for lines that name who is missing.
        signals: what this task has been asked; the chief gets the others' too.

    Attributes:
        group: the replicas of all tasks; the chief is process 0.
        is_chief: whether this task is.

    Raises:
        TaskUnavailable: somebody did not come.
        UsageError: TensorFlow was used in this process before.
    """

    def __init__(
        self,
        cluster: Cluster,
        task: Task,
        timeout: float,
        console: Console,
        signals: Signals,
    ):
        tasks = cluster.tasks()
        self.is_chief = task == cluster.chief
        self._task = task
        self._cluster = cluster
        self._chief = cluster.chief
        self._timeout = timeout
        self._signals = signals
        self._is_clean = True  # nothing has failed while all had to act together
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
            self._notes.write("settings", json.dumps(settings))
            return
        settings = json.loads(json.dumps(settings))
        for task in self._others():
            text = self._notes.read(
                "settings", task, self._check_failure, self._timeout
            )
            if text is None:
                raise errors.TaskUnavailable(
                    f"{task} has connected, but was not ready to train within "
                    f"--startup_timeout={self._timeout:g} s. Its log says what it does."
                )
            for name, theirs in json.loads(text).items():
                if theirs != settings[name]:
                    raise errors.UsageError(
                        f"{task} was started with {name}={theirs}, {self._chief} with "
                        f"{name}={settings[name]}. All tasks of synchronous training "
                        "need the same: give every command the same flags and files."
                    )

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
        try:
            while not future.done():
                concurrent.futures.wait([future], _POLL_SECONDS)
            return future.result()
        except tf.errors.OpError as error:
            self._is_clean = False
            self._explain(error)
            raise
        except KeyboardInterrupt:
            self._is_clean = False
            raise

    def end(self, status: int, failure: str | None) -> None:
        """Parts. The chief is the last to leave, and tells the others its status.

        Args:
            status: this task's exit status.
            failure: why it leaves before its time; `None` if all is in order.
        """
        if failure is not None or not self._is_clean:
            self._notes.fail(status, failure or "")
        elif self.is_chief:
            self.order(LEAVE, status)
        self._notes.close()
        if self.is_chief:
            self._see_off()
        else:
            try:
                self._notes.write("left", "")
            except tf.errors.OpError:
                return  # the chief is gone already

    def _see_off(self) -> None:
        """Waits until the others have left: the notes are kept in this process."""
        deadline = time.monotonic() + _PART_SECONDS
        for task in self._others():
            while time.monotonic() < deadline:
                if self._notes.read("left", task, lambda: None, 0.0) is not None:
                    break
                if not preflight.accepts(self._cluster.address(task)):
                    break

    def _others(self) -> list[Task]:
        return [task for task in self._cluster.tasks() if task != self._chief]

    def _exchange(self, code: int, number: int) -> list[int]:
        """Returns the order, and by task the signal that asked it to stop, or 0."""
        asked = [0] * self.group.num_processes
        asked[self.group.process] = next(iter(self._signals.received), 0)
        result = self.act(self._sum, tf.constant([code, number, *asked], tf.int64))
        return [int(value) for value in result.numpy()]

    def _check_failure(self) -> None:
        if self._notes.failure is not None:
            self._raise_failure()

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
        others = [task for task in self._cluster.tasks() if task != self._task]
        silent = [t for t in others if not preflight.accepts(self._cluster.address(t))]
        if silent or isinstance(error, tf.errors.UnavailableError):
            raise errors.TaskUnavailable(
                f"The connection to {', '.join(map(str, silent)) or 'another task'} is "
                "lost. Synchronous training needs every task: start the run again, and "
                "it goes on from the last checkpoint, if there is one."
            ) from error

    def _raise_failure(self, cause: BaseException | None = None) -> None:
        failure = self._notes.failure
        message = failure.message
        if failure.task != str(self._task):
            message = f"{failure.task} ended the run: {message}"
        raise errors.from_status(failure.status, message) from cause


def _connect(
    cluster: Cluster, task: Task, timeout: float, console: Console
) -> tf.distribute.Strategy:
    """Returns the strategy, once all tasks are there."""
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
    rendezvous.come_together(cluster, task, timeout, console)
    try:
        # TensorFlow's own wait, for whoever was lost within this moment.
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader=_device(cluster.chief),
            cluster_register_timeout_in_ms=_REGISTER_MS,
            coordinated_jobs=[
                coordination_config_pb2.CoordinatedJob(name=job, num_tasks=count)
                for job, count in cluster.sizes().items()
            ],
        )
        return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
    except RuntimeError as error:
        raise errors.UsageError(
            "TensorFlow was used in this process before the tasks could meet: "
            f"{errors.describe(error)} Let training be the first that uses it: make no "
            "tensor or model before dtrain.train, or where a module is imported."
        ) from error
    except tf.errors.OpError as error:
        raise errors.TaskUnavailable(
            f"{task} cannot join the others on {cluster.address(task)}: {error.message}"
        ) from error


def _device(task: Task) -> str:
    return f"/job:{task.type}/replica:0/task:{task.index}"
