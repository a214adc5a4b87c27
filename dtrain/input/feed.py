"""An experiment's data functions, called, and what they return as batches."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from dtrain import errors
from dtrain.input import form, sources
from dtrain.input.context import InputContext
from dtrain.input.inline import inline_map
from dtrain.input.py_dataset import Numbered
from dtrain.input.share import START, Share
from dtrain.input.source import ENDLESS, Source

# A data set that is served travels as a message of at most 2 GiB, with the arrays that
# it holds: larger ones stay here, and their batches are taken out by Python.
_LARGE_BYTES = 64 << 20
_PREFETCH = 2


@dataclasses.dataclass(frozen=True)
class Outline:
    """What is known of training data before it is read.

    Attributes:
        spec: of a batch.
        counts_passes: whether all pipelines together begin each pass once; else each
            of them begins its own.
        has_passes: whether passes can be counted: not of endless data, and not where
            the function has made a stream of them.
        starts_again: whether a pass that was interrupted is begun once more.
        num_batches: about how many there are up to `--epochs`; `None` if nobody knows.
    """

    spec: Any
    counts_passes: bool
    has_passes: bool
    starts_again: bool
    num_batches: int | None


class Feed:
    """The training data of one pipeline, opened in the process that reads it.

    Args:
        function: an experiment's `train_data`.
        share: which part of it to read; without a place.
        batch_size: examples in a batch of arrays.

    Attributes:
        spec: of a batch.

    Raises:
        DtrainError: the function returned nothing that batches can be made of.
    """

    def __init__(self, function: Callable[..., Any], share: Share, batch_size: int):
        self._function = function
        self._context = InputContext.of(share)
        # A function that is told who it is shards by itself, or does not.
        self._shards = not takes_context(function)
        self._source: Source | None = None
        # What it draws, and shuffles without a seed, is what it would be elsewhere.
        keras.utils.set_random_seed(share.order_seed)
        with tf.device("CPU:0"):
            result = self._call()
            if isinstance(result, tf.data.Dataset):
                self._open_data_set(result, share)
            else:
                self._source = sources.make(
                    result, self._call, batch_size, "train_data", self._shards
                )
                self.spec = self._source.form.spec
                if isinstance(self._source, sources.Generated):
                    self._source.is_whole = self.deals
        source = self._source
        if source is None:
            is_endless = self._is_endless
            self._has_passes = not self._is_whole
        else:
            is_endless = isinstance(source, Numbered) and source.count is None
            self._has_passes = not is_endless and not self.deals
        if share.epochs is not None and is_endless:
            raise errors.UsageError(
                f"--epochs={share.epochs}, but train_data gives endless data, without "
                "epochs. Leave out repeat(), or use ctx.repeat(data) in its place."
            )
        if share.sharding == "dynamic" and not self._is_dealt():
            raise errors.UsageError(
                "--data_sharding=dynamic deals out what can be numbered: arrays, a "
                "keras.utils.PyDataset, or items that train_data(ctx) asks for with "
                "ctx.deal(file_names). This train_data returns something else: leave "
                "the flag out, or let it use ctx.deal."
            )

    def outline(self, share: Share) -> Outline:
        """Returns what is known of a share, from its very start."""
        return Outline(
            self.spec,
            share.sharding == "dynamic",
            self._has_passes,
            self._source is not None and self._source.starts_again,
            self.num_batches(share),
        )

    @property
    def deals(self) -> bool:
        """Whether the function has asked for its items by `ctx.deal`."""
        return "deal" in self._context.used

    @property
    def failure(self) -> BaseException | None:
        """What the user's Python code raised, where dtrain has called it."""
        return self._source and self._source.failure

    def batches(self, share: Share, is_served: bool = False) -> tf.data.Dataset:
        """Returns the batches of a share, from its place on.

        Args:
            share: the one that it was opened for, with a place.
            is_served: the data set is to be written to a message.

        Returns:
            Elements (begun, batch): how many passes begin with it, an int64 scalar;
            and (x, y) or (x, y, sample_weight).
        """
        with tf.device("CPU:0"):
            if self._source is not None:
                return self._source.batches(share)
            data = self._repeat(share)
            if is_served and _held_bytes(data) > _LARGE_BYTES:
                return self._take_out(data)
            return data

    def from_pass(self, share: Share) -> Share:
        """Returns a share from the start of the pass that its place is in.

        For a worker that was lost: a data set cannot be entered in the middle without
        reading all that comes before. What finds its place at once stays there.
        """
        if self._source is not None or self._is_whole:
            return share if self._source else dataclasses.replace(share, done=0)
        one_pass = dataclasses.replace(share.at(START), epochs=1)
        count = int(self._repeat(one_pass).cardinality())
        if count < 1:
            return dataclasses.replace(share, done=0)
        return dataclasses.replace(share, done=share.done // count * count)

    def num_batches(self, share: Share) -> int | None:
        """Returns how many there are up to `--epochs`; `None` if nobody knows."""
        if share.epochs is None:
            return None
        if self._source is not None:
            return self._source.num_batches(share)
        count = int(self._repeat(share.at(START)).cardinality())
        return count if count >= 0 else None

    def _call(self) -> Any:
        if takes_context(self._function):
            return self._function(self._context)
        return self._function()

    def _is_dealt(self) -> bool:
        if self.deals:
            return True
        numbered = isinstance(self._source, (sources.Arrays, Numbered))
        return numbered and self._shards

    def _open_data_set(self, data: tf.data.Dataset, share: Share) -> None:
        form.check_spec(data.element_spec, "train_data")
        self._data = data
        self.spec = data.element_spec
        self._is_endless = data.cardinality() == tf.data.INFINITE_CARDINALITY
        # What the function has repeated itself, or asked for, is not repeated again.
        self._is_whole = bool(self._context.used) or self._is_endless
        # Where each pipeline is told its own part, others may have some.
        if data.cardinality() == 0 and (self._shards or share.num_pipelines == 1):
            raise errors.TrainingFailed("Experiment(train_data=...) gives no batch.")

    def _repeat(self, share: Share) -> tf.data.Dataset:
        """Returns all elements of a share, with a mark where a pass begins."""
        first, every = share.stride if self._shards else (0, 1)
        # One of the first `every` of a pass is the first that this pipeline takes.
        first_ones = 0 if self._is_whole else every
        data = tf.data.Dataset.zip((marks(first_ones), self._data))
        if not self._is_whole:
            data = data.repeat(share.epochs)
        if every > 1:
            # Of all passes in a row: nobody is left without if batches are few.
            data = data.shard(every, first)
        # What is dealt out to whoever asks is past its place already.
        skips = share.done and share.sharding != "dynamic"
        return data.skip(share.done) if skips else data

    def _take_out(self, data: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the same elements, which Python takes from the data set here."""
        batches = form.Form(self.spec, "train_data")

        def generate():
            for begun, batch in data:
                parts = tf.nest.flatten(batch, expand_composites=True)
                yield (begun, *(part.numpy() for part in parts))

        signature = (tf.TensorSpec([], tf.int64), *batches.components)
        taken = tf.data.Dataset.from_generator(generate, output_signature=signature)
        return taken.map(lambda begun, *parts: (begun, batches.pack(parts)))


def for_steps(data: tf.data.Dataset, counter: tf.Tensor) -> tf.data.Dataset:
    """Returns batches for the steps that run beside them: counted, and kept ready.

    Args:
        data: elements (begun, batch).
        counter: handle of an int64 variable, to which examples are added. When a
            pipeline raises, it tells how many came before.
    """

    def count(begun, batch):
        examples = form.rows(batch[0])
        tf.raw_ops.AssignAddVariableOp(resource=counter, value=examples)
        return begun, batch

    options = tf.data.Options()
    # Nothing here is left to tune, and the tuner's bookkeeping costs time.
    options.autotune.enabled = False
    # Counted when taken: what is read ahead, after an error too, is not.
    return inline_map(data.prefetch(_PREFETCH), count).with_options(options)


def open_evaluation(
    function: Callable[..., Any], batch_size: int
) -> tuple[tf.data.Dataset, Source | None]:
    """Returns all evaluation data, once; and what Python makes it, which may fail.

    Args:
        function: an experiment's `eval_data`.
        batch_size: examples in a batch of arrays.

    Raises:
        UsageError: it is endless, or nothing that batches can be made of.
    """

    def call() -> Any:
        context = InputContext.of(Share(epochs=1))
        return function(context) if takes_context(function) else function()

    data = call()
    if not isinstance(data, tf.data.Dataset):
        source = sources.make(data, call, batch_size, "eval_data", False)
        return source.once(), source
    form.check_spec(data.element_spec, "eval_data")
    if data.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise errors.UsageError(ENDLESS)
    return data, None


def takes_context(function: Callable[..., Any]) -> bool:
    """Returns whether a function has a parameter that must be given."""
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


def marks(count: int) -> tf.data.Dataset:
    """Returns so many ones, and then zeros without end: int64 scalars."""
    return _constant(1).repeat(count).concatenate(_constant(0).repeat())


def _constant(value: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(tf.constant(value, tf.int64))


def _held_bytes(data: tf.data.Dataset) -> int:
    """Returns the size of the tensors that a data set holds in memory."""
    tensors: dict[int, tf.Tensor] = {}

    def look(data_set: Any) -> None:
        values = [v for k, v in vars(data_set).items() if k != "_variant_tensor_attr"]
        for value in tf.nest.flatten(values, expand_composites=True):
            if isinstance(value, tf.Tensor) and value.dtype != tf.variant:
                tensors[id(value)] = value
        for function in data_set._functions():
            for op in function.function.graph.get_operations():
                if op.type == "Const":
                    tensors[id(op)] = op.outputs[0]
            for value in function.function.captured_inputs:
                if isinstance(value, tf.Tensor) and value.dtype not in (
                    tf.variant,
                    tf.resource,
                ):
                    tensors[id(value)] = value
        for before in data_set._inputs():
            look(before)

    look(data)
    return sum(
        (tensor.shape.num_elements() or 0) * (tensor.dtype.size or 16)
        for tensor in tensors.values()
    )
