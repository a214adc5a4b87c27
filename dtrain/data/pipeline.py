"""From examples to batches: what the pipelines of all packaged data share.

Both functions here are to be called where an experiment's `train_data(ctx)` and
`eval_data(ctx)` are, possibly while they are being traced for a worker.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from dtrain.input.context import InputContext
from dtrain.input.inline import inline_map

# Batches kept ready, so that an evaluation does not wait for the map before it.
_PREFETCH = 4


def train_batches(
    examples: tf.data.Dataset,
    ctx: InputContext,
    *,
    count: int,
    batch_size: int,
    seed: int,
    decode: Callable | None = None,
) -> tf.data.Dataset:
    """Returns shuffled batches of this pipeline's part of the examples, without end.

    (With `--epochs`, up to it; then the last batch may be smaller.)

    Epochs follow each other without a seam: a batch may hold the end of one and the
    start of the next, so that all batches are full and nothing is left out.

    Pipelines of replicas that compute one global batch together deal out one shuffled
    stream, in an order that depends on the seed and the epoch. So a global batch holds
    the same examples however many replicas share it. Of other pipelines each
    shuffles a shard of its own: it keeps less in memory, and meets every example
    of it once an epoch.

    Args:
        examples: the whole set, one example an element, in a fixed order: tensors,
            which fit in memory several times.
        ctx: which shard to read.
        count: how many examples the whole set has; checked while reading.
        batch_size: examples in a batch.
        seed: of the order.
        decode: from examples as stored, all of the shard at once, to examples as
            trained on, which are kept in memory.
    """

    examples = examples.apply(tf.data.experimental.assert_cardinality(count))
    if ctx.num_replicas_in_sync > 1:
        own, stride = examples, (ctx.input_pipeline_id, ctx.num_input_pipelines)
    else:
        own = examples.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
        count = (count - ctx.input_pipeline_id - 1) // ctx.num_input_pipelines + 1
        stride = 0, 1
    whole = own.batch(tf.maximum(tf.cast(count, tf.int64), 1))
    if decode is not None:
        whole = whole.map(decode)
    numbers = _batches_of_numbers(ctx, count, stride, batch_size, seed)

    # A batch is taken out at once: example by example, it would cost more than a small
    # network's step does.
    def take(whole: Any, numbers: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda part: tf.gather(part, numbers), whole)

    # One element, all of it.
    together = tf.data.Dataset.zip(whole.cache().repeat(), numbers)
    return _without_tuning(inline_map(together, take))


def _batches_of_numbers(
    ctx: InputContext,
    count: tf.Tensor | int,
    stride: tuple[tf.Tensor | int, tf.Tensor | int],
    batch_size: int,
    seed: int,
) -> tf.data.Dataset:
    """Returns the numbers below `count`, shuffled, pass after pass.

    Args:
        ctx: which repeats.
        count: how many there are in a pass.
        stride: (first, every): of all passes in a row, which to take.
        batch_size: how many to give at a time.
        seed: of the order, with the pass.

    Returns:
        Elements int64 (batch_size,); of the last epoch's last one, what remains.
    """
    first, every = stride
    passes = ctx.repeat(tf.data.Dataset.from_tensors(0)).enumerate()
    is_endless = passes.cardinality() == tf.data.INFINITE_CARDINALITY

    def shuffled(number: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        in_order = tf.range(count, dtype=tf.int64)
        seeds = tf.stack([tf.constant(seed, tf.int64), number])
        order = tf.random.experimental.stateless_shuffle(in_order, seeds)
        return order[(first - number * count) % every :: every]

    # Of endless ones all batches are full, and have one shape.
    batches = passes.map(shuffled).rebatch(batch_size, drop_remainder=is_endless)
    taken = (passes.cardinality() * count - first - 1) // every + 1
    length = tf.where(is_endless, passes.cardinality(), -(-taken // batch_size))
    return batches.apply(tf.data.experimental.assert_cardinality(length))


def eval_batches(
    examples: tf.data.Dataset,
    ctx: InputContext,
    *,
    batch_size: int,
    decode: Callable | None = None,
) -> tf.data.Dataset:
    """Returns batches with every example of this pipeline's shard exactly once.

    Args:
        examples: the whole set, one example an element, in a fixed order.
        ctx: which shard to read.
        batch_size: examples in a batch; the last one has what remains.
        decode: from a batch as stored to a batch as evaluated.
    """
    shard = examples.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
    batches = shard.batch(batch_size)
    batches = batches if decode is None else batches.map(decode)
    return _without_tuning(batches.prefetch(_PREFETCH))


def _without_tuning(batches: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    # Nothing here is left to tune, and the tuner's bookkeeping for each element
    # costs a third of the pipeline's speed on one core (TF 2.21: 4,900 batches of
    # 100 MNIST images a second with it, 7,200 without).
    options.autotune.enabled = False
    return batches.with_options(options)
