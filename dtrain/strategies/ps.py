"""Asynchronous training on parameter servers.

Heir of between-graph replication with `replica_device_setter`: variables live on
ps tasks, every worker reads them, computes a gradient on its own data and sends
it back, and no worker waits for another. `ParameterServerStrategy` connects the
cluster; `ClusterCoordinator` hands packed steps (closures) to free workers and
runs again what a lost worker had begun.
"""

import concurrent.futures
import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

from dtrain import errors
from dtrain.cluster.spec import Cluster, Task
from dtrain.config import RunConfig
from dtrain.experiment import Experiment
from dtrain.runtime import calls, executors, profiling
from dtrain.runtime.input_service import PAUSE
from dtrain.runtime.watch import Watch
from dtrain.strategies import failures, packing, parts
from dtrain.strategies import tally as tally_lib
from dtrain.strategies.balance import Balance, Call
from dtrain.strategies.common import CommonTrainer
from dtrain.strategies.gates import Gates
from dtrain.strategies.messages import Packed
from dtrain.strategies.placement import PlacementBySize
from dtrain.strategies.staleness import Staleness
from dtrain.strategies.worker_inputs import WorkerInputs

# One running and one waiting closure keep a worker busy.
_CLOSURES_PER_WORKER = 2
_CHECK_SECONDS = 1.0
_POLL_SECONDS = 0.05
_DRAIN_SECONDS = 10.0  # for closures of other workers, when one is lost
_LEFT = 143  # the exit status of a worker that was asked to leave
# How stale updates are, in single updates, up to several times what is usual.
_LEAST_BINS = 32
_BINS_PER_WORKER = 8


class PsTrainer(CommonTrainer):
    """A Trainer on the chief of a cluster with ps and worker tasks.

    Args:
        experiment: what to train.
        config: without gaps.
        cluster: with a chief, which is this process.
        check: called about once a second while waiting for workers, with those that
            all others wait for, if there are such; raises what should end the wait.
        watch: keeps in touch with the tasks.
        workers: what the watch knows the cluster's workers as.
    """

    def __init__(
        self,
        experiment: Experiment,
        config: RunConfig,
        cluster: Cluster,
        check: Callable[..., None],
        watch: Watch,
        workers: Sequence[Task],
    ):
        self.is_synchronous = False
        self.replicas = cluster.num_workers
        self.worker_steps = [0] * cluster.num_workers
        self._check = check
        self._watch = watch
        self._workers = workers
        self._left: dict[Task, str | None] = {}  # who has, and as which process
        self._servers = cluster.servers()
        strategy = _connect(cluster)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._gates = Gates(self._coordinator)

        self._inputs = WorkerInputs(config, cluster, check)
        keras.utils.set_random_seed(config.seed)
        placement = PlacementBySize(cluster.num_ps)
        with placement.scope(strategy):
            counter = tf.Variable(0, dtype=tf.int64, name="global_step")
            model = parts.build_model(
                experiment, self._inputs.outline.spec, config.mixed_precision
            )
            optimizer = parts.make_optimizer(experiment, config)
            optimizer.build(model.trainable_variables)
        self.description = placement.describe()
        if config.gradient_dtype != "float32":
            self.description.append(
                f"weights and gradients travel as {config.gradient_dtype}"
            )
        self.checkpoint_options = self._choose_saver(config.model_dir, cluster.num_ps)
        staleness = None
        if config.summary_every:
            num_bins = max(_LEAST_BINS, _BINS_PER_WORKER * cluster.num_workers)
            staleness = Staleness(model.trainable_variables, num_bins, packing.UNROLL)
        super().__init__(
            experiment,
            config,
            self._inputs.outline,
            cluster.num_workers,
            model,
            optimizer,
            counter,
            cluster.num_workers,
            staleness=staleness,
            messages=Packed(config.gradient_dtype),
        )
        # Batches that this run's steps have taken, by worker: one that is started again
        # reads here where it was.
        with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
            self._taken = tf.Variable(
                tf.zeros([cluster.num_workers], tf.int64), name="taken"
            )
        # Which workers have come to the end of their data.
        self._has_ended = [False] * cluster.num_workers
        self._checked = self._looked = 0.0  # when it was last seen who answers

        packed = self._pack(strategy.run)

        def closure(iterator, num_steps):
            started = tf.timestamp()
            with tf.control_dependencies([started]):
                num_steps = tf.identity(num_steps)
            totals = packed(iterator, num_steps)
            with tf.control_dependencies([totals]):
                seconds = tf.timestamp() - started
            *_, batches, updates = tally_lib.counts(totals)
            worker = _worker_index()
            self._taken.scatter_add(tf.IndexedSlices(batches, worker))
            if self._may_end:  # while others go on
                tf.cond(
                    updates > 0, lambda: tf.constant(b""), lambda: calls.call(PAUSE)
                )
            # In one message, because each takes as long as a step's.
            own = tf.stack([tf.cast(worker, tf.float64), seconds])
            return tf.concat([totals, own], 0)

        self._closure = tf.function(closure, autograph=False)
        self._iterator = None
        # What is read once can be read with a worker cut off (see `_drain`).
        self.global_step = int(self._counter.numpy())
        self._num_lanes = _CLOSURES_PER_WORKER * cluster.num_workers
        self._lanes = concurrent.futures.ThreadPoolExecutor(
            self._num_lanes, initializer=executors.use_own
        )
        self._balance = Balance(cluster.num_workers)
        # What is under way: the fetch of each closure.
        self._under_way: dict[concurrent.futures.Future, Call] = {}

    def choose_loop(self, remaining: int) -> int:
        self._collect(room_for=1)  # what is chosen late is chosen well
        return self._balance.choose(remaining, self.steps_per_loop)

    def train(self, num_steps: int) -> None:
        self._collect(room_for=1)
        self._look()
        if self.is_over:
            return
        with self._explained():
            if self._iterator is None:
                self._iterator = self._open()
            remote = self._coordinator.schedule(
                self._closure,
                args=(self._iterator, tf.constant(num_steps, tf.int64)),
            )
        # A lane waits for this closure alone: one slow worker holds up no other.
        future = self._lanes.submit(_fetch, remote)
        self._under_way[future] = self._balance.add(num_steps)

    def wait(self) -> None:
        self._collect(room_for=self._num_lanes)
        with self._explained():
            self._coordinator.join()
        self._loop_size.pause()
        # The truth: a lost worker's steps may have been counted, and run again.
        self.global_step = int(self._counter.numpy())

    def evaluate(self, is_over: Callable[[], bool]) -> dict[str, float] | None:
        def look() -> bool:
            self._look()
            return is_over()

        return super().evaluate(look)

    def start_profiling(self) -> None:
        super().start_profiling()
        for task in self._servers:
            profiling.start_at(task)

    def stop_profiling(self) -> dict[str, bytes]:
        profiles = {str(task): profiling.stop_at(task) for task in self._servers}
        return super().stop_profiling() | profiles

    def _collect(self, room_for: int) -> None:
        """Takes in finished closures until so many more may be scheduled."""
        while True:
            finished = [future for future in self._under_way if future.done()]
            for future in finished:
                call = self._under_way.pop(future)
                with self._explained():
                    result = future.result()
                if result is None:  # done, as the counter will tell; but not how well
                    self._balance.end(call, None)
                    self.global_step += call.num_steps
                    continue
                totals, (worker, seconds) = result[:-2], result[-2:].tolist()
                tail = tally_lib.tail(totals)
                worker, updates = int(worker), tail.updates
                waits = [(worker, tail.waited, seconds)]
                self._note(
                    totals, updates, tail.batches, tail.begun, waits, tail.bad_step
                )
                self._balance.end(call, worker, updates, seconds)
                self._loop_size.note(updates)
                self.worker_steps[worker] += updates
                self._has_ended[worker] |= updates < call.num_steps
                self.is_over = all(self._has_ended)
                if not updates and not self.is_over:
                    self._check_unended()
            if len(self._under_way) + room_for <= self._num_lanes:
                return
            self._look()
            concurrent.futures.wait(
                self._under_way,
                timeout=_CHECK_SECONDS,
                return_when=concurrent.futures.FIRST_COMPLETED,
            )

    def _look(self) -> None:
        """Sees, now and then, that all others are there, or may leave.

        Raises:
            TasksLost: some are lost, and nothing of the others is under way.
            TaskUnavailable: the run cannot go on like this.
        """
        if time.monotonic() - self._looked < _CHECK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            self._check()
        except errors.TasksLost as error:
            error.undone = self._drain(len(error.tasks))
            raise
        self._let_leave()

    def _drain(self, num_lost: int) -> int:
        """Waits for what is under way but on lost workers; then counts.

        Returns:
            Steps that were asked for, and are not done.
        """
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            if sum(not future.done() for future in self._under_way) <= num_lost:
                break
            time.sleep(_POLL_SECONDS)
        self.global_step = int(self._counter.numpy())
        waiting = [c for future, c in self._under_way.items() if not future.done()]
        return sum(call.num_steps for call in waiting)

    def _let_leave(self) -> None:
        """Lets workers go that were asked to leave, and takes in who came instead.

        Raises:
            TaskUnavailable: a ps was asked to leave.
        """
        leaving = self._watch.leaving()
        for task in leaving:
            if task.type == "ps":
                raise errors.TasksLost(f"{task} was asked to leave.", [task])
            boot = self._watch.boot(task)
            is_idle = self._gates.close(self._workers.index(task))
            if is_idle and self._left.get(task) != boot:
                if self._watch.tell(task, _LEFT):
                    self._left[task] = boot
        for task, boot in list(self._left.items()):
            if self._watch.boot(task) != boot:
                del self._left[task]
                self._gates.open(self._workers.index(task))

    def _check_unended(self) -> None:
        """Sees, now and then, that somebody is left to bring the data to its end."""
        if time.monotonic() - self._checked < _CHECK_SECONDS:
            return
        self._checked = time.monotonic()
        self._check([i for i, ended in enumerate(self._has_ended) if not ended])

    def _open(self) -> Any:
        """Returns an iterator of every worker's batches, from the run's place on."""
        function = self._inputs.function(self._place, self._taken)
        return iter(self._coordinator.create_per_worker_dataset(function))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns TensorFlow's errors into dtrain's; the user's own code comes first."""
        try:
            yield
        except (tf.errors.OpError, cluster_coordinator.ClosureInputError) as error:
            # What opens a worker's data anew, after a loss, is wrapped.
            error = getattr(error, "original_exception", error)
            if not isinstance(error, tf.errors.OpError):
                raise error
            if not isinstance(error, tf.errors.UnavailableError):
                text = self._inputs.find_failure(error)
                if text is not None:
                    raise errors.TrainingFailed(text) from error
            raise failures.explain(error) from error

    def _choose_saver(self, model_dir: str, num_ps: int) -> tf.train.CheckpointOptions:
        """Lets each ps write its own shard, if it sees the model directory.

        A file that only the chief's directory has tells: every ps looks for it.
        """
        probe = os.path.join(model_dir, f".probe-{uuid.uuid4().hex}")
        with open(probe, "w"):
            pass
        try:
            blind = [
                f"ps:{index}"
                for index in range(num_ps)
                if not _sees(f"/job:ps/replica:0/task:{index}/device:CPU:0", probe)
            ]
        finally:
            os.remove(probe)
        if not blind:
            self.description.append("each ps saves its own shard of a checkpoint")
            return tf.train.CheckpointOptions()
        self.description.append(
            f"checkpoints go through the chief: {', '.join(blind)} does not see "
            f"{model_dir}"
        )
        return tf.train.CheckpointOptions(
            experimental_io_device="/job:chief/replica:0/task:0/device:CPU:0"
        )


def _connect(cluster: Cluster) -> tf.distribute.ParameterServerStrategy:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.to_dict()),
        task_type="chief",
        task_id=0,
        rpc_layer="grpc",
    )
    with failures.explained():
        return tf.distribute.ParameterServerStrategy(
            resolver, variable_partitioner=None
        )


def _worker_index() -> tf.Tensor:
    index = tf.distribute.coordinator.experimental_get_current_worker_index()
    return tf.cast(index, tf.int64)


def _fetch(remote: tf.distribute.coordinator.RemoteValue) -> Any:
    """Returns what a closure returned; `None` if it was lost with its worker.

    A closure whose worker is lost meanwhile is run again elsewhere. But one that is
    done is not, and its results stay with the worker until they are fetched.
    """
    try:
        return remote.fetch()
    except tf.errors.UnavailableError as error:
        if "/job:worker/" not in error.message or "/job:ps/" in error.message:
            raise
        return None


def _sees(device: str, path: str) -> bool:
    with tf.device(device):
        return tf.io.matching_files(path).shape[0] > 0
