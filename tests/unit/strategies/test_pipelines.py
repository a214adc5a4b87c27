"""How steps take batches: with nobody waiting for one who has none."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.input.share import START, Place, Share
from dtrain.strategies import pipelines
from dtrain.strategies.local import LocalTrainer
from dtrain.strategies.pipelines import OwnInputs


def numbers(count):
    """Batches of one number, with the number as the label."""
    column = tf.range(count, dtype=tf.int64)
    return tf.data.Dataset.from_tensor_slices((column, column)).batch(1)


# Batches of replicas that wait for each other.


def read_or_zeros(data, count):
    """What `next_or_zeros` gives so many times, in a trace: elements and `exists`."""
    iterator = iter(data)
    traced = tf.function(lambda: pipelines.next_or_zeros(iterator), autograph=False)
    return [traced() for _ in range(count)]


def numbers_or_zeros(data, count):
    pairs = read_or_zeros(data, count)
    return [int(x[0]) if exists else None for (x, _), exists in pairs]


def test_a_replica_with_data_has_batches_for_ever():
    assert numbers_or_zeros(numbers(3).repeat(), 5) == [0, 1, 2, 0, 1]


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


def test_what_are_no_tensors_have_zeros_as_well():
    ragged = tf.data.Dataset.range(1, 5).map(tf.range).ragged_batch(2)
    sparse = tf.data.Dataset.from_tensors(tf.sparse.from_dense(np.eye(3))).repeat(2)
    pairs = read_or_zeros(tf.data.Dataset.zip(ragged, sparse), 3)
    assert [x.to_list() for (x, _), _ in pairs] == [
        [[0], [0, 1]],
        [[0, 1, 2], [0, 1, 2, 3]],
        [[]],
    ]
    assert [int(tf.size(s.values)) for (_, s), _ in pairs] == [3, 3, 0]
    assert [bool(exists) for _, exists in pairs] == [True, True, False]


# The data of this process.


def generate():
    yield np.zeros((3, 2)), np.zeros(3)
    yield np.zeros((2, 2)), np.zeros(2)
    raise LookupError("no third part")


def raise_at_once():
    raise LookupError("no file")


def test_what_is_open_says_what_it_is():
    data = OwnInputs(lambda: numbers(5), Share(1, 2, epochs=3), 1)
    assert data.outline.spec == numbers(5).element_spec
    assert data.outline.has_passes
    assert data.outline.num_batches == 14  # about: seven of each of the two
    first = next(data.open(Place(4, 1)).iterator)
    assert [int(first[0]), int(first[1][0][0])] == [1, 0]  # its third: a pass begins


def test_data_that_cannot_be_opened_is_told_with_a_traceback():
    with pytest.raises(errors.TrainingFailed) as caught:
        OwnInputs(raise_at_once, Share(), 1)
    first, *others = str(caught.value).splitlines()
    assert first.startswith("train_data failed: LookupError: no file")
    assert f'  File "{__file__}"' in others[1]


def test_what_is_refused_keeps_its_kind():
    with pytest.raises(errors.UsageError, match="returned NoneType"):
        OwnInputs(lambda: None, Share(), 1)


def test_what_a_generator_raises_is_told_with_what_came_before():
    data = OwnInputs(lambda: generate, Share(), 1)
    with pytest.raises(errors.TrainingFailed) as caught, data.explained():
        list(data.open(START).iterator)
    first, *others = str(caught.value).splitlines()
    assert first.startswith("train_data failed after 5 examples: LookupError: ")
    assert "no third part" in first
    assert others[-1] == "LookupError: no third part"
    assert len(others) == 4


def test_an_error_that_is_not_the_data_s_is_told_as_such():
    data = OwnInputs(lambda: numbers(3), Share(), 1)
    with pytest.raises(errors.TrainingFailed) as caught, data.explained():
        tf.linalg.matmul(tf.zeros([8, 4]), tf.zeros([5, 1]))
    assert str(caught.value).startswith("InvalidArgumentError: Matrix size")


def test_a_batch_of_other_words_is_told_in_one_line(make_words):
    data = OwnInputs(lambda: make_words, Share(), 1)
    with pytest.raises(errors.TrainingFailed) as caught, data.explained():
        list(data.open(START).iterator)
    message = str(caught.value)
    assert "train_data failed after 4 examples: Batch 3 of train_data" in message
    assert "\n" not in message


@pytest.fixture
def make_words():
    """A generator function whose third batch is of numbers."""

    def words():
        for batch in (["a", "b"], ["c", "d"], [1, 2]):
            yield np.array(batch), np.zeros(2)

    return words


# A whole model on what is no dense tensor.


def test_words_and_ragged_rows_go_through_a_model(problem, config, short_unrolls):
    words = tf.ragged.constant([["a"], ["b", "c"], [], ["a", "b", "c"]] * 4)

    def model():
        inputs = {
            "words": keras.Input((None,), dtype="string", name="words"),
            "line": keras.Input((), dtype="string", name="line"),
        }
        lookup = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="count")
        split = keras.layers.TextVectorization(
            vocabulary=["a", "b"], output_mode="multi_hot"
        )
        both = keras.layers.Concatenate()(
            [
                keras.ops.cast(lookup(inputs["words"]), "float32"),
                keras.ops.cast(split(inputs["line"]), "float32"),
            ]
        )
        return keras.Model(inputs, keras.layers.Dense(1)(both))

    def data():
        x = {"words": words, "line": np.array(["a b", "c"] * 8)}
        return tf.data.Dataset.from_tensor_slices((x, problem.y[:16])).batch(5)

    experiment = problem.experiment(model=model, train_data=data, eval_data=data)
    trainer = LocalTrainer(experiment, config.replace(epochs=1, accumulate_steps=3))
    trainer.train(3)
    assert (trainer.is_over, trainer.global_step) == (True, 2)
    assert trainer.evaluate(lambda: False)["examples"] == 16
