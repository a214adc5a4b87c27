"""What batches look like: read from examples, checked, taken apart, put together."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.input import form
from dtrain.input.form import Form

Pair = collections.namedtuple("Pair", ["left", "right"])

X = np.arange(6, dtype=np.float32).reshape(3, 2)
Y = np.arange(3)


def ragged():
    return tf.ragged.constant([[1], [2, 3], []])


def sparse():
    return tf.sparse.from_dense(np.eye(3, dtype=np.float32))


# Tensors are made in tests: at import it would be too early.
BATCHES = {
    "pair": (X, Y),
    "weights": (X, Y, np.ones(3, np.float32)),
    "dict": ({"b": X, "a": Y}, {"v": Y, "u": X}, {"v": Y, "u": X}),
    "tuple": ((X, Y), (X,)),
    "nested": ({"a": (X, {"b": Y})}, Y),
    "namedtuple": (Pair(X, Y), Y),
    "words": (np.array([[b"a", b""], [b"c", b"d"]], object), np.arange(2)),
    "narrow": (X.astype(np.float16), np.array([True, False, True])),
    "ragged": lambda: (ragged(), Y),
    "sparse": lambda: ({"s": sparse(), "x": X}, Y),
}


def made(batch):
    return batch() if callable(batch) else batch


def message_of(kind, function, *args):
    with pytest.raises(kind) as caught:
        function(*args)
    return str(caught.value)


# As tensors.


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_a_batch_taken_apart_is_the_same_put_together(batch):
    batch = made(batch)
    own = Form.of([batch, batch], "train_data")
    flat = own.flatten(batch, 0)
    assert [np.asarray(part).dtype for part in flat] == [
        dtype.as_numpy_dtype for dtype in own.dtypes
    ]
    again = own.pack([tf.constant(part) for part in flat])
    tf.nest.assert_same_structure(again, batch, expand_composites=True)
    for ours, theirs in zip(
        tf.nest.flatten(again, expand_composites=True),
        tf.nest.flatten(batch, expand_composites=True),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ([X, Y], (X, Y)),
        ((X, Y, None), (X, Y)),
        (([X, X], [Y, Y]), ((X, X), (Y, Y))),
        ((X.astype(np.float64), Y), (X, Y)),
        (lambda: (tf.Variable(X), tf.constant(Y)), (X, Y)),
        ((collections.OrderedDict(b=X, a=Y), Y), ({"b": X, "a": Y}, Y)),
    ],
    ids=["list", "no weights", "lists", "float64", "tensors", "OrderedDict"],
)
def test_a_batch_is_taken_as_keras_takes_it(batch, expected):
    ours = form.as_batch(made(batch), "train_data")
    tf.nest.assert_same_structure(ours, expected)
    for a, b in zip(tf.nest.flatten(ours), tf.nest.flatten(expected), strict=True):
        assert np.asarray(a).dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_floats_are_those_of_keras():
    keras.config.set_floatx("float16")
    try:
        x, y = form.as_batch((X.astype(np.float64), X), "train_data")
    finally:
        keras.config.set_floatx("float32")
    assert (x.dtype, y.dtype) == (np.float16, np.float32)


# What batches have in common.


def test_the_number_of_examples_is_free_and_so_is_what_differs():
    batches = [(np.zeros((3, 5, 2)), Y), (np.zeros((2, 7, 2)), Y[:2])]
    x, y = Form.of(batches, "train_data").spec
    assert x.shape.as_list() == [None, None, 2]
    assert y.shape.as_list() == [None]


def test_one_batch_is_enough():
    x, _ = Form.of([(X, Y)], "train_data").spec
    assert x.shape.as_list() == [None, 2]


def test_the_number_of_rows_is_free_where_they_are_ragged_or_sparse():
    first = {"r": ragged(), "s": sparse()}, Y
    second = (
        {"r": ragged()[:2], "s": tf.sparse.slice(sparse(), [0, 0], [2, 3])},
        Y[:2],
    )
    own = Form.of([first, second], "train_data")
    assert [leaf.shape[0] for leaf in tf.nest.flatten(own.spec)] == [None] * 3
    for batch in (first, second):
        again = own.pack([tf.constant(part) for part in own.flatten(batch, 0)])
        assert int(form.rows(again[0])) == len(batch[1])


WRONG = {
    "dtype": ((X, Y), (X, Y * 1.0), "y float32 (3,)", "int64"),
    "size": ((X, Y), (X[:, :1], Y), "x float32 (3, 1)", "(any, 2)"),
    "rank": ((X, Y), (X[:, 0], Y), "x float32 (3,)", "(any, 2)"),
    "weights": ((X, Y), (X, Y, Y), "(float32 (3, 2), int64 (3,), int64 (3,))", "first"),
    "no weights": ((X, Y, Y), (X, Y), "(float32 (3, 2), int64 (3,))", "first"),
    "key": (({"a": X}, Y), ({"b": X}, Y), "'b'", "'a'"),
    "in a dict": (({"a": X, "b": Y}, Y), ({"a": X, "b": X}, Y), "x['b']", "int64"),
    "in a tuple": ((X, (Y, X)), (X, (Y, Y)), "y[1] int64 (3,)", "float32"),
    "of an output": ((X, Y, {"u": Y}), (X, Y, {"u": X}), "sample_weight['u']", "int64"),
    "dict": (({"a": X}, Y), (X, Y), "(float32 (3, 2), int64 (3,))", "{'a'"),
    "ragged": ((X, Y), lambda: (ragged(), Y), "x ", "float32 (any, 2)"),
}


@pytest.mark.parametrize(("good", "bad", "what", "wanted"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("number", [2, 7])
def test_a_batch_unlike_the_others_is_named(number, good, bad, what, wanted):
    own = Form.of([good, good], "train_data")
    message = message_of(errors.TrainingFailed, own.flatten, made(bad), number)
    assert f"Batch {number + 1} of train_data" in message
    assert what in message
    assert wanted in message


@pytest.mark.parametrize(
    ("good", "bad", "what", "wanted"),
    [WRONG[name] for name in WRONG if name != "size"],
    ids=[name for name in WRONG if name != "size"],
)
def test_the_first_two_may_differ_in_sizes_alone(good, bad, what, wanted):
    message = message_of(errors.TrainingFailed, Form.of, [good, made(bad)], "eval_data")
    assert "Batch 2 of eval_data" in message
    assert what in message


# What is no batch.


@pytest.mark.parametrize(
    "value",
    [X, {"x": X, "y": Y}, (X,), (X, Y, X, Y), "xy", None, 3],
    ids=["array", "dict", "one", "four", "text", "None", "number"],
)
def test_what_is_no_pair_is_refused(value):
    message = message_of(errors.UsageError, form.as_batch, value, "train_data")
    assert form.describe(value) in message
    assert "Give tuples (x, y)" in message


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        (tf.TensorSpec([None]), "Give tuples (x, y)"),
        ((tf.TensorSpec([None]),), "Give tuples (x, y)"),
        ((tf.TensorSpec([None]), tf.TensorSpec([])), "single examples"),
        (({"a": tf.TensorSpec([])}, tf.TensorSpec([None])), "single examples"),
        ((tf.TensorSpec(None), tf.TensorSpec([None])), "unknown rank"),
    ],
    ids=["x", "x,", "scalar", "scalar in a dict", "rank"],
)
def test_a_spec_that_is_no_batch_s_is_refused(spec, part):
    message = message_of(errors.UsageError, form.check_spec, spec, "train_data")
    assert part in message
    assert "train_data" in message


# Rows and zeros.


@pytest.mark.parametrize(
    "x",
    [X, {"v": X, "u": Y}, (Y, X), ragged, sparse, lambda: {"s": sparse()}],
    ids=["dense", "dict", "tuple", "ragged", "sparse", "in a dict"],
)
def test_rows(x):
    count = form.rows(made(x))
    assert count.dtype == tf.int64
    assert int(count) == 3


SPECS = {
    "dense": tf.TensorSpec([None, 2], tf.bfloat16),
    "fixed": tf.TensorSpec([8, 3], tf.int32),
    "words": tf.TensorSpec([None, None], tf.string),
    "ragged": tf.RaggedTensorSpec([None, None], tf.int32),
    "ragged twice": tf.RaggedTensorSpec([None, None, None, 4], tf.float32, 2),
    "sparse": tf.SparseTensorSpec([None, 5], tf.float32),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_zeros_are_a_batch_of_the_right_kind(spec):
    value = form.zeros({"a": spec})["a"]
    assert spec.is_compatible_with(value)
    assert int(form.rows(value)) == (spec.shape[0] or 1)
    if isinstance(value, tf.Tensor):
        assert not np.any(value.numpy().astype(bool))
    else:
        assert int(tf.size(value.values)) == 0


def test_a_spec_is_shown_in_few_words():
    spec = ({"a": tf.TensorSpec([None, 2])}, tf.TensorSpec([3], tf.int64))
    assert form.show(spec) == "({'a': float32 (any, 2)}, int64 (3,))"
