"""From data functions to pipelines: shards, checks, and what a pipeline costs."""

import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.experiment import InputContext
from dtrain.strategies import pipelines


def numbers(count):
    """Batches of one number, with the number as the label."""
    column = tf.range(count, dtype=tf.int64)
    return tf.data.Dataset.from_tensor_slices((column, column)).batch(1)


def read(data, count):
    return [int(x[0]) for x, _ in data.take(count)]


def message_of(function, *args):
    with pytest.raises(errors.UsageError) as caught:
        function(*args)
    return str(caught.value)


# Shards.


def shard_by_context(ctx):
    return numbers(6).shard(ctx.num_input_pipelines, ctx.input_pipeline_id)


@pytest.mark.parametrize(
    "make_id", [int, lambda i: tf.constant(i, tf.int64)], ids=["int", "tensor"]
)
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (shard_by_context, [[0, 3, 0, 3], [1, 4, 1, 4], [2, 5, 2, 5]]),
        (lambda ctx: numbers(3), [[0, 1, 2, 0]] * 3),
        (lambda *args: numbers(3), [[0, 1, 2, 0]] * 3),
        (lambda: numbers(6), [[0, 3, 0, 3], [1, 4, 1, 4], [2, 5, 2, 5]]),
        (lambda count=6: numbers(count), [[0, 3, 0, 3], [1, 4, 1, 4], [2, 5, 2, 5]]),
        (lambda *, n=6: numbers(n), [[0, 3, 0, 3], [1, 4, 1, 4], [2, 5, 2, 5]]),
        # Epochs follow each other, so that every batch has its turn once an epoch.
        (lambda: numbers(7), [[0, 3, 6, 2], [1, 4, 0, 3], [2, 5, 1, 4]]),
        (lambda: numbers(1), [[0, 0, 0, 0]] * 3),
    ],
    ids=[
        "by ctx",
        "not by ctx",
        "args",
        "no ctx",
        "default",
        "keyword",
        "uneven",
        "few",
    ],
)
def test_every_pipeline_gets_its_part_for_ever(function, expected, make_id):
    parts = [
        read(pipelines.open_training(function, InputContext(3, make_id(i))), 4)
        for i in range(3)
    ]
    assert parts == expected


def test_a_method_and_a_partial_function_get_the_context_too():
    class Data:
        def train(self, ctx):
            return numbers(ctx.num_input_pipelines)

    data = pipelines.open_training(Data().train, InputContext(2, 1))
    assert read(data, 4) == [0, 1, 0, 1]


def test_a_single_pipeline_reads_everything():
    data = pipelines.open_training(lambda: numbers(3), InputContext())
    assert read(data, 5) == [0, 1, 2, 0, 1]


# Batches of replicas that wait for each other.


def read_or_zeros(data, count):
    """What `next_or_zeros` gives so many times, in a trace: batches and `exists`."""
    iterator = iter(data)
    traced = tf.function(lambda: pipelines.next_or_zeros(iterator), autograph=False)
    return [traced() for _ in range(count)]


def numbers_or_zeros(data, count):
    pairs = read_or_zeros(data, count)
    return [int(x[0]) if exists else None for (x, _), exists in pairs]


def test_a_replica_with_data_has_batches_for_ever():
    data = pipelines.open_training(lambda: numbers(3), InputContext(2, 1))
    assert numbers_or_zeros(data, 5) == [1, 0, 2, 1, 0]


def test_a_replica_whose_shard_is_empty_has_zeros():
    def train_data(ctx):
        return numbers(3).shard(ctx.num_input_pipelines, ctx.input_pipeline_id)

    shards = [
        numbers_or_zeros(pipelines.open_training(train_data, InputContext(4, i)), 3)
        for i in range(4)
    ]
    assert shards == [[0] * 3, [1] * 3, [2] * 3, [None] * 3]


def test_data_that_has_ended_stays_ended():
    assert numbers_or_zeros(numbers(2), 5) == [0, 1, None, None, None]


ANYTHING = (
    {
        "words": tf.TensorSpec([None, None], tf.string),
        "ids": tf.TensorSpec([8, 3], tf.int32),
        "seen": tf.TensorSpec([None], tf.bool),
    },
    (tf.TensorSpec([None, 2], tf.bfloat16), tf.TensorSpec([None], tf.float64)),
)


def test_zeros_are_a_batch_of_the_right_kind():
    empty = tf.data.Dataset.from_generator(lambda: [], output_signature=ANYTHING)
    ((batch, exists),) = read_or_zeros(empty, 1)
    assert not exists
    tf.nest.assert_same_structure(batch, ANYTHING)
    for tensor, spec in zip(
        tf.nest.flatten(batch), tf.nest.flatten(ANYTHING), strict=True
    ):
        assert tensor.dtype == spec.dtype
        assert tensor.shape == [size or 1 for size in spec.shape]
        zero = b"" if spec.dtype == tf.string else 0
        assert np.all(tensor.numpy() == zero)


def test_a_batch_has_the_shape_that_is_known_of_it():
    """Of the two ways to come by a batch, only one knows its size."""
    shapes = []

    @tf.function(autograph=False)
    def trace(iterator):
        batch, exists = pipelines.next_or_zeros(iterator)
        shapes.extend(tensor.shape.as_list() for tensor in tf.nest.flatten(batch))
        return exists

    trace(iter(tf.data.Dataset.from_generator(list, output_signature=ANYTHING)))
    assert shapes == [spec.shape.as_list() for spec in tf.nest.flatten(ANYTHING)]


def test_what_are_no_tensors_are_read_as_they_are():
    data = tf.data.Dataset.from_tensor_slices([1, 2, 3, 4])
    ragged = data.map(tf.range).ragged_batch(2).map(lambda x: (x, x))
    pairs = read_or_zeros(ragged, 2)
    assert [x.to_list() for (x, _), _ in pairs] == [
        [[0], [0, 1]],
        [[0, 1, 2], [0, 1, 2, 3]],
    ]
    assert all(exists for _, exists in pairs)


def test_evaluation_data_is_read_once_and_whole():
    for function in (lambda: numbers(3), lambda ctx: shard_by_context(ctx).take(3)):
        assert read(pipelines.open_evaluation(function), 10) == [0, 1, 2]


# What is no pipeline for training.


def open_both(function):
    """Opens data both ways; returns the two messages without the field's name."""
    training = message_of(pipelines.open_training, function, InputContext())
    evaluation = message_of(pipelines.open_evaluation, function)
    assert "train_data" in training
    assert training.replace("train_data", "eval_data") == evaluation
    return training


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: [1, 2], ["returned a list", "tf.data.Dataset"]),
        (lambda: None, ["returned a NoneType"]),
        (lambda: numbers(3).unbatch(), ["single examples", ".batch("]),
        (
            lambda: tf.data.Dataset.from_tensor_slices((np.ones((3, 2)), [1, 2, 3])),
            ["single examples"],
        ),
        (lambda: numbers(3).map(lambda x, y: x), ["elements", "(x, y)"]),
        (lambda: numbers(3).map(lambda x, y: {"x": x, "y": y}), ["(x, y)"]),
        (lambda: numbers(3).map(lambda x, y: (x,)), ["(x, y)"]),
        (lambda: numbers(3).map(lambda x, y: (x, y, x, y)), ["(x, y)"]),
        (
            lambda: numbers(3).map(lambda x, y: ({"a": x, "b": 0}, y)),
            ["single examples"],
        ),
    ],
    ids=["list", "none", "one", "rows", "x", "dict", "x,", "four", "in a dict"],
)
def test_what_gives_no_batches_is_refused(make, parts):
    message = open_both(make)
    assert not [part for part in parts if part not in message], message


def test_sample_weights_are_welcome():
    function = lambda: numbers(3).map(lambda x, y: (x, y, x))  # noqa: E731
    assert len(pipelines.open_training(function, InputContext()).element_spec) == 3


def test_endless_evaluation_data_is_refused():
    message = message_of(pipelines.open_evaluation, lambda: numbers(3).repeat())
    assert "endless" in message
    assert "repeat()" in message


# What a pipeline costs.

PAIR = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64))


def generate():
    yield [1], [1]


def from_generator(*_):
    return tf.data.Dataset.from_generator(generate, output_signature=PAIR)


def by_numpy(x, y):
    x = tf.numpy_function(lambda a: a + 1, [x], tf.int64)
    return tf.ensure_shape(x, [None]), y


def by_py_function(x, y):
    x = tf.py_function(lambda a: a + 1, [x], tf.int64)
    return tf.ensure_shape(x, [None]), y


def costs(make):
    data = tf.function(make, autograph=False).get_concrete_function()
    return pipelines.describe_costs(data)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (from_generator, "a generator"),
        (lambda: from_generator().map(lambda x, y: (x + 1, y)), "a generator"),
        (lambda: numbers(3).interleave(from_generator), "a generator"),
        (
            lambda: numbers(3).interleave(
                lambda x, y: numbers(3).flat_map(from_generator)
            ),
            "a generator",
        ),
        (lambda: numbers(3).map(by_numpy), "a py_function"),
        (lambda: numbers(3).map(by_py_function), "a py_function"),
        (lambda: numbers(3).map(by_py_function, tf.data.AUTOTUNE), "a py_function"),
        (
            lambda: numbers(3).interleave(lambda x, y: numbers(2).map(by_numpy)),
            "a py_function",
        ),
    ],
    ids=[
        "generator",
        "generator, mapped",
        "generator in interleave",
        "generator in flat_map in interleave",
        "numpy_function",
        "py_function",
        "py_function in parallel",
        "numpy_function in interleave",
    ],
)
def test_python_in_a_pipeline_is_found_however_deep(make, what):
    warning = costs(make)
    assert f"runs Python code ({what})" in warning
    assert "\n" not in warning


LARGE = np.zeros((1 << 18, 2), np.float32)  # 2 MiB


def captured():
    tensor = tf.constant(LARGE)
    return lambda: tf.data.Dataset.from_tensor_slices((tensor, tensor)).batch(8)


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: tf.data.Dataset.from_tensor_slices((LARGE, LARGE)).batch(8), "4 MiB"),
        (captured(), "2 MiB"),
        (lambda: numbers(3).map(lambda x, y: (tf.gather(LARGE, x), y)), "2 MiB"),
    ],
    ids=["slices", "captured", "in map"],
)
def test_large_arrays_in_a_pipeline_are_found_with_their_size(make, size):
    assert f"holds {size} of arrays in memory" in costs(make)


@pytest.mark.parametrize(
    "make",
    [
        lambda: numbers(3),
        lambda: tf.data.TextLineDataset("x.csv").batch(2).map(lambda t: (t, t)),
        lambda: tf.data.FixedLengthRecordDataset("x.gz", 64, compression_type="GZIP"),
        lambda: (
            tf.data.Dataset.list_files("*.tfrecord", shuffle=False)
            .interleave(tf.data.TFRecordDataset)
            .shuffle(100)
            .batch(2)
        ),
        lambda: tf.data.Dataset.from_tensor_slices((LARGE[:1000], LARGE[:1000])),
    ],
    ids=["numbers", "text", "records", "interleaved", "small arrays"],
)
def test_operations_over_files_cost_nothing(make):
    assert costs(make) is None
