"""Asynchronous training on parameter servers.

Heir of between-graph replication with `replica_device_setter`: variables live on
ps tasks, every worker reads them, computes a gradient on its own data and sends
it back, and no worker waits for another. `ParameterServerStrategy` connects the
cluster; `ClusterCoordinator` hands packed steps (closures) to free workers and
runs again what a lost worker had begun.
"""

import concurrent.futures
import os
import uuid
from collections.abc import Callable

import keras
import tensorflow as tf

from dtrain.cluster.spec import Cluster
from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.experiment import Experiment, InputContext
from dtrain.strategies import parts, pipelines
from dtrain.strategies.common import CommonTrainer
from dtrain.strategies.failures import explained
from dtrain.strategies.placement import PlacementBySize

# One running and one waiting closure keep a worker busy.
_CLOSURES_PER_WORKER = 2
_CHECK_SECONDS = 1.0


class PsTrainer(CommonTrainer):
    """A Trainer on the chief of a cluster with ps and worker tasks.

    Args:
        experiment: what to train.
        config: without gaps.
        cluster: with a chief, which is this process.
        console: for warnings.
        check: called about once a second while waiting for workers; raises what
            should end the wait.
    """

    def __init__(
        self,
        experiment: Experiment,
        config: RunConfig,
        cluster: Cluster,
        console: Console,
        check: Callable[[], None],
    ):
        self.is_synchronous = False
        self.replicas = cluster.num_workers
        self.worker_steps = [0] * cluster.num_workers
        self._check = check
        strategy = _connect(cluster)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

        keras.utils.set_random_seed(config.seed)  # shuffles without a seed, too
        dataset_function = _trace_input(experiment, cluster.num_workers)
        warning = pipelines.describe_costs(dataset_function)
        if warning:
            console.line(warning)
        element_spec = dataset_function.structured_outputs.element_spec

        keras.utils.set_random_seed(config.seed)
        placement = PlacementBySize(cluster.num_ps)
        with placement.scope(strategy):
            counter = tf.Variable(0, dtype=tf.int64, name="global_step")
            model = parts.build_model(experiment, element_spec)
            optimizer = parts.make_optimizer(experiment, config)
            optimizer.build(model.trainable_variables)
        self.description = placement.describe()
        self.checkpoint_options = self._choose_saver(config.model_dir, cluster.num_ps)
        super().__init__(
            experiment,
            config,
            element_spec,
            model,
            optimizer,
            counter,
            cluster.num_workers,
        )

        packed = self._pack(strategy.run)
        self._closure = tf.function(
            lambda iterator, num_steps: (packed(iterator, num_steps), _worker_index()),
            autograph=False,
        )
        self._iterator = iter(
            self._coordinator.create_per_worker_dataset(dataset_function)
        )
        self._num_lanes = _CLOSURES_PER_WORKER * cluster.num_workers
        self._lanes = concurrent.futures.ThreadPoolExecutor(self._num_lanes)
        # What is under way: the fetch of each closure, and its number of steps.
        self._under_way: dict[concurrent.futures.Future, int] = {}

    def train(self, num_steps: int) -> None:
        self._collect(room_for=1)
        with explained():
            remote = self._coordinator.schedule(
                self._closure,
                args=(self._iterator, tf.constant(num_steps, tf.int64)),
            )
        # A lane waits for this closure alone: one slow worker holds up no other.
        self._under_way[self._lanes.submit(remote.fetch)] = num_steps

    def wait(self) -> None:
        self._collect(room_for=self._num_lanes)
        with explained():
            self._coordinator.join()
        self._loop_size.pause()
        # The truth: a lost worker's steps may have been counted, and run again.
        self.global_step = int(self._counter.numpy())

    def _collect(self, room_for: int) -> None:
        """Takes in finished closures until so many more may be scheduled."""
        while True:
            finished = [future for future in self._under_way if future.done()]
            for future in finished:
                num_steps = self._under_way.pop(future)
                with explained():
                    totals, worker = future.result()
                self._note(totals, num_steps)
                self._loop_size.note(num_steps)
                self.worker_steps[int(worker)] += num_steps
            if len(self._under_way) + room_for <= self._num_lanes:
                return
            done, _ = concurrent.futures.wait(
                self._under_way,
                timeout=_CHECK_SECONDS,
                return_when=concurrent.futures.FIRST_COMPLETED,
            )
            if not done:
                self._check()

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


def _trace_input(experiment: Experiment, num_workers: int):
    """Traces train_data here; each worker runs the trace on its own machine."""

    @tf.function(autograph=False)
    def open_pipeline():
        context = InputContext(num_workers, _worker_index(), 1)
        data = pipelines.open_training(experiment.train_data, context)
        return data.prefetch(tf.data.AUTOTUNE)

    return open_pipeline.get_concrete_function()


def _connect(cluster: Cluster) -> tf.distribute.ParameterServerStrategy:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster.to_dict()),
        task_type="chief",
        task_id=0,
        rpc_layer="grpc",
    )
    with explained():
        return tf.distribute.ParameterServerStrategy(
            resolver, variable_partitioner=None
        )


def _worker_index() -> tf.Tensor:
    index = tf.distribute.coordinator.experimental_get_current_worker_index()
    return tf.cast(index, tf.int64)


def _sees(device: str, path: str) -> bool:
    with tf.device(device):
        return tf.io.matching_files(path).shape[0] > 0
