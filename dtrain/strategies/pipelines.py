"""From an experiment's data functions to the pipelines that a strategy reads."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from dtrain import errors
from dtrain.experiment import InputContext

# Operations that call back into Python.
_PYTHON_OPS = ("PyFunc", "EagerPyFunc", "PyFuncStateless", "GeneratorDataset")
_LARGE_BYTES = 1 << 20


def open_training(
    function: Callable[..., Any], context: InputContext
) -> tf.data.Dataset:
    """Returns this pipeline's part of the training data, for ever.

    A function that takes the context shards by itself, or does not. One without
    parameters gives the same batches everywhere: of these, pipeline i of n takes
    every n-th.

    Args:
        function: an experiment's `train_data`.
        context: which pipeline this is; the id may be a tensor.

    Raises:
        UsageError: it returns no `tf.data.Dataset` of (x, y[, sample_weight]).
    """
    shards_itself = _takes_context(function)
    data = function(context) if shards_itself else function()
    _check(data, "train_data")
    data = data.repeat()
    if not shards_itself and context.num_input_pipelines > 1:
        # Of all epochs in a row: so nobody is left without when batches are few.
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    return data


def next_or_zeros(iterator: tf.data.Iterator) -> tuple[Any, tf.Tensor]:
    """Returns the next batch of a share, and whether there is one: a bool scalar.

    Replicas that wait for each other must not run out of batches. One whose shard
    is empty (fewer examples than shards) goes on with zeros, which must not count.
    To be traced.
    """
    spec = iterator.element_spec
    if not all(isinstance(leaf, tf.TensorSpec) for leaf in tf.nest.flatten(spec)):
        return next(iterator), tf.constant(True)  # zeros are for tensors
    following = iterator.get_next_as_optional()
    exists = following.has_value()

    def zeros():
        return tf.nest.map_structure(
            lambda leaf: tf.zeros([size or 1 for size in leaf.shape], leaf.dtype), spec
        )

    return tf.cond(exists, following.get_value, zeros), exists


def open_evaluation(function: Callable[..., Any]) -> tf.data.Dataset:
    """Returns all evaluation data, once.

    Raises:
        UsageError: it is endless, or no `tf.data.Dataset` of (x, y[, sample_weight]).
    """
    data = function(InputContext()) if _takes_context(function) else function()
    _check(data, "eval_data")
    if data.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise errors.UsageError(
            "Experiment(eval_data=...) returned an endless data set. Evaluation sees "
            "every example once: leave out repeat()."
        )
    return data


def batch_size(element_spec: Any, default: int) -> int:
    """Returns the examples in a batch, where the pipeline fixes them.

    An experiment may batch as it likes; `default`, the flag, is what it was told.
    """
    sizes = {
        leaf.shape[0]
        for leaf in tf.nest.flatten(element_spec[0])
        if isinstance(leaf, tf.TensorSpec)
    }
    fixed = sizes - {None}
    return fixed.pop() if len(fixed) == 1 else default


def describe_costs(dataset_function) -> str | None:
    """Returns what it costs to send a pipeline to the workers, if that is much.

    The function is traced here and runs on each worker. But Python code stays in
    the process that traced it, and arrays become constants of the traced graph.

    Args:
        dataset_function: a concrete function that returns a data set.

    Raises:
        UsageError: the data set was made elsewhere and cannot be sent at all.

    Returns:
        One warning; `None` for a pipeline of TensorFlow operations over files.
    """
    captures = dataset_function.graph.captures
    if any(tensor.dtype == tf.variant for tensor, _ in captures):
        raise errors.UsageError(
            "Experiment(train_data=...) returns a data set that was made outside it, "
            "and a data set cannot be sent to the workers. Make it inside the "
            "function: train_data=lambda: tf.data.Dataset.from_tensor_slices(...)..."
        )
    graph = dataset_function.graph.as_graph_def()
    python, size = set(), 0
    for node in _nodes(graph):
        if node.op in _PYTHON_OPS:
            python.add(
                "a generator" if node.op == "GeneratorDataset" else "a py_function"
            )
        if node.op == "Const":
            size += node.attr["value"].tensor.ByteSize()
    # A captured tensor lives here too, and is fetched from here.
    for tensor, _ in captures:
        if tensor.dtype not in (tf.resource, tf.variant):
            size += tensor.dtype.size * (tensor.shape.num_elements() or 0)
    if python:
        # from_generator is built of py_functions around a GeneratorDataset.
        what = "a generator" if "a generator" in python else "a py_function"
        return (
            f"Warning: train_data runs Python code ({what}). Under --strategy=ps it "
            "runs in the chief's process for every worker: one process makes all the "
            "data, and every example crosses the network. Use TensorFlow operations "
            "over files (TextLineDataset, TFRecordDataset, FixedLengthRecordDataset), "
            "which run on the worker."
        )
    if size > _LARGE_BYTES:
        return (
            f"Warning: train_data holds {size / 2**20:.0f} MiB of arrays in memory. "
            "Under --strategy=ps the chief sends them to every worker at the start. "
            "Reading files with TensorFlow operations happens on the worker."
        )
    return None


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _takes_context(function: Callable[..., Any]) -> bool:
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    parameters = inspect.signature(function).parameters.values()
    # One with a default is the function's own, as in `lambda path=path: ...`.
    return any(
        p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters
    )


def _check(data: Any, field: str) -> None:
    if not isinstance(data, tf.data.Dataset):
        raise errors.UsageError(
            f"Experiment({field}=...) returned a {type(data).__name__}. Return a "
            "tf.data.Dataset of batches (x, y) or (x, y, sample_weight)."
        )
    spec = data.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise errors.UsageError(
            f"Experiment({field}=...) gives elements {spec}. Give tuples (x, y) or "
            "(x, y, sample_weight)."
        )
    for leaf in tf.nest.flatten(spec):
        if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank is None:
            raise errors.UsageError(
                f"Experiment({field}=...) gives tensors of unknown rank: {spec}. Tell "
                "it in the pipeline, with tf.ensure_shape(x, [None, ...])."
            )
        if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank == 0:
            raise errors.UsageError(
                f"Experiment({field}=...) gives single examples, not batches: {spec}. "
                "Add .batch(config.batch_size)."
            )
