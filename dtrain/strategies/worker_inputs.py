"""The data of workers that the chief drives, seen from the chief.

Each worker makes its own data (`runtime/input_service.py`). The chief never does: it
asks the workers what their batches look like, and traces the function by which a step
on a worker finds that worker's batches.
"""

import concurrent.futures
import dataclasses
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from dtrain import errors
from dtrain.cluster.spec import Cluster, split_address
from dtrain.config import FOR_EXPERIMENTS, RunConfig
from dtrain.input import feed, form, stream
from dtrain.input.share import Place
from dtrain.runtime import calls
from dtrain.runtime.input_service import FAILURE, OPEN, START, Opened, Order
from dtrain.strategies.failures import describe_input, explained

_CHECK_SECONDS = 0.5
_COUNTER = "dtrain_examples"


class WorkerInputs:
    """The training data of all workers, opened by each of them.

    Args:
        config: without gaps.
        cluster: with this process as its chief; connected.
        check: called while waiting; raises what should end the wait.

    Attributes:
        outline: of the data of all workers.

    Raises:
        DtrainError: a worker could not open its data, or gives other batches than the
            others.
    """

    def __init__(self, config: RunConfig, cluster: Cluster, check: Callable[[], None]):
        self._num_workers = cluster.num_workers
        self._check = check
        share = {
            "num_pipelines": cluster.num_workers,
            "sharding": config.data_sharding,
            "seed": config.seed,
            "epochs": config.epochs,
        }
        if config.data_sharding == "dynamic":
            host, _ = split_address(cluster.address(cluster.chief))
            self._dealer = stream.Dealer(f"[{host}]" if ":" in host else host)
            share["dealer"] = self._dealer.address
        if config.epochs is not None:  # in place of which it was filled in
            config = config.replace(train_steps=None)
        self._order = Order(
            {name: getattr(config, name) for name in FOR_EXPERIMENTS}, share
        )
        opened = self._open()
        outlines = [answer.outline for answer in opened]
        known = [outline.num_batches for outline in outlines]
        count = None if None in known else sum(known)
        if config.data_sharding == "dynamic":  # each of them knows of all
            count = known[0]
        self.outline = dataclasses.replace(
            outlines[0],
            spec=_common([outline.spec for outline in outlines]),
            num_batches=count,
        )

    def function(self, place: Place, taken: tf.Variable):
        """Returns a concrete function that opens the batches of the worker it runs on.

        Args:
            place: where in the data all workers were when this run began.
            taken: int64 (workers,): batches that this run's steps have taken.
        """
        order = Order(self._order.config, self._order.share, place).to_json()

        @tf.function(autograph=False)
        def open_batches():
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            own = taken.sparse_read(worker)
            answer = calls.call(START, tf.constant(order), own, worker)
            parts = tf.strings.split(answer, " ")
            spec = tf.TensorSpec([], tf.int64), self.outline.spec
            # On the CPU of this worker: "CPU:0" alone would be the chief's.
            with answer.graph.colocate_with(answer.op, ignore_existing=True):
                counter = _counter()
                tf.raw_ops.AssignVariableOp(
                    resource=counter, value=tf.zeros([], tf.int64)
                )
            data = stream.read(parts[0], parts[1], spec, "LOCAL")
            return feed.for_steps(data, counter)

        return open_batches.get_concrete_function()

    def find_failure(self, error: tf.errors.OpError) -> str | None:
        """Returns what has failed in a worker's data, and where; `None` if nothing has.

        Args:
            error: that a step on a worker gave.
        """
        for index in range(self._num_workers):
            try:
                text = self._ask(index, FAILURE).decode()
            except tf.errors.OpError:
                continue  # a lost worker can tell nothing
            if text:
                return self._describe(index, text)
        text = describe_input(error)
        if text is None:
            return None
        if isinstance(error, tf.errors.OutOfRangeError):
            return text
        named = re.search(r"/job:worker/replica:0/task:(\d+)", error.message)
        return self._describe(int(named[1]) if named else None, text)

    def _describe(self, index: int | None, text: str) -> str:
        if index is None:
            return f"train_data failed: {text}"
        return (
            f"worker:{index}: train_data failed after {self.examples(index):,} "
            f"examples: {text}"
        )

    def examples(self, index: int) -> int:
        """Returns how many examples a worker's steps have been given."""
        try:
            with tf.device(_device(index)):
                value = tf.raw_ops.ReadVariableOp(resource=_counter(), dtype=tf.int64)
            return int(value)
        except tf.errors.OpError:  # it has had none
            return 0

    def _open(self) -> list[Opened]:
        """Returns what each worker says; they open their data at the same time."""
        order = self._order.to_json()
        pool = concurrent.futures.ThreadPoolExecutor(self._num_workers)
        answers = [
            pool.submit(self._ask, index, OPEN, order, np.int64(index))
            for index in range(self._num_workers)
        ]
        pool.shutdown(wait=False)
        waiting = set(answers)
        while waiting:
            done, waiting = concurrent.futures.wait(
                waiting, _CHECK_SECONDS, concurrent.futures.FIRST_COMPLETED
            )
            for answer in done:
                with explained():
                    opened = pickle.loads(answer.result())
                if opened.status:
                    raise errors.from_status(
                        opened.status,
                        f"worker:{answers.index(answer)}: {opened.message}",
                    )
            self._check()
        return [pickle.loads(answer.result()) for answer in answers]

    def _ask(self, index: int, name: str, *args: Any) -> bytes:
        with tf.device(_device(index)):
            return calls.call(name, *map(tf.constant, args)).numpy()


def _device(index: int) -> str:
    return f"/job:worker/replica:0/task:{index}/device:CPU:0"


def _counter() -> tf.Tensor:
    """Returns the handle of the examples that the worker at hand has been given."""
    return tf.raw_ops.VarHandleOp(
        dtype=tf.int64, shape=[], shared_name=_COUNTER, container=""
    )


def _are_alike(one: tf.TypeSpec, other: tf.TypeSpec) -> bool:
    """Returns whether batches of both fit one model: but for the number of examples."""
    if one.most_specific_common_supertype([other]) is None:
        return False
    if not isinstance(one, tf.TensorSpec):
        return True
    sizes = zip(one.shape[1:], other.shape[1:], strict=True)
    return all(a == b or a is None or b is None for a, b in sizes)


def _common(specs: list) -> Any:
    """Returns the spec that all workers' batches have in common.

    Raises:
        UsageError: they have none.
    """
    first, *others = specs
    for index, spec in enumerate(others, 1):
        try:
            tf.nest.assert_same_structure(first, spec, expand_composites=True)
            leaves = zip(tf.nest.flatten(first), tf.nest.flatten(spec), strict=True)
            fits = all(_are_alike(a, b) for a, b in leaves)
        except (ValueError, TypeError):
            fits = False
        if not fits:
            raise errors.UsageError(
                f"train_data gives {form.show(spec)} on worker:{index}, but "
                f"{form.show(first)} on worker:0. All workers need batches of the same "
                "dtypes and shapes: give them the same files and code."
            )
    return tf.nest.map_structure(
        lambda a, *b: a.most_specific_common_supertype(b), first, *others
    )
