"""Arrays, numbered batches and generators as data sets."""

import itertools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.input import sources
from dtrain.input.share import Share

X, Y = np.arange(20, dtype=np.float32).reshape(10, 2), np.arange(10)


def make(result, again=None, batch_size=4, shards=True):
    return sources.make(
        result, again or (lambda: result), batch_size, "train_data", shards
    )


def message_of(kind, function, *args, **options):
    with pytest.raises(kind) as caught:
        function(*args, **options)
    return str(caught.value)


def take(source, count=None, share=None):
    data = source.batches(share or Share())
    return [batch for _, batch in (data if count is None else data.take(count))]


# Which source it is.


def batches():
    yield X, Y
    yield X, Y


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        ((X, Y), sources.Arrays),
        ((X, Y, Y), sources.Arrays),
        ((X, Y, None), sources.Arrays),
        (((X, X), {"u": Y}), sources.Arrays),
        (([X, X], Y), sources.Arrays),
        (lambda: (tf.constant(X), tf.Variable(Y)), sources.Arrays),
        (batches, sources.Generated),
        (batches(), sources.Generated),
        ([(X, Y)], sources.Generated),
        ([[X, Y]], sources.Generated),
    ],
    ids=[
        "pair",
        "weights",
        "no weights",
        "structures",
        "list of inputs",
        "tensors",
        "generator function",
        "generator",
        "list of batches",
        "list of lists",
    ],
)
def test_what_a_function_may_return(result, kind):
    if kind is sources.Arrays and callable(result):  # tensors, made here
        result = result()
    source = make(result)
    assert type(source) is kind
    x, *_ = take(source, 1)[0]
    first = tf.nest.flatten(x)[0]
    assert first.shape[1:] == X.shape[1:]


@pytest.mark.parametrize(
    ("result", "parts"),
    [
        (None, ["returned NoneType"]),
        (3, ["returned int"]),
        ("data.csv", ["returned str"]),
        ((X,), ["returned tuple of 1"]),
        ((X, Y, Y, Y), ["returned tuple of 4"]),
        ((np.float32(1), np.float32(2)), ["returned tuple of 2"]),
        ({"x": X, "y": Y}, ["batches of str", "(x, y)"]),
        ([1, 2], ["returned a list (int, int)", "tuple (x, y)"]),
        ([(1.0, 2.0)], ["single examples"]),
        ((X, Y[:3]), ["different lengths", "3, 10"]),
        ((X[:0], Y[:0]), ["empty"]),
        (({"a": X, "b": X[:4]}, Y), ["different lengths", "4, 10"]),
    ],
    ids=str,
)
def test_what_it_may_not(result, parts):
    message = message_of(errors.UsageError, make, result)
    assert "train_data" in message
    assert not [part for part in parts if part not in message], message


# Arrays.


def test_a_batch_of_arrays_has_the_rows_of_its_examples():
    data = ({"x": X, "word": Y.astype(str)}, Y, Y / 10)
    for x, y, weight in take(make(data), share=Share(epochs=1)):
        np.testing.assert_array_equal(x["x"], X[y.numpy()])
        assert [int(word) for word in x["word"].numpy()] == y.numpy().tolist()
        assert weight.dtype == tf.float32  # as Keras makes of 64 bits
        np.testing.assert_allclose(weight, y.numpy() / 10, rtol=1e-6)


def test_batches_without_an_end_are_full_and_of_a_known_shape():
    source = make((X, Y))
    data = source.batches(Share())
    assert data.element_spec[1][0].shape == [4, 2]
    assert [len(y) for _, y in take(source, 7)] == [4] * 7


def test_arrays_in_order_once():
    data = make((X, Y)).once()
    assert [y.numpy().tolist() for _, y in data] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]


# Numbered batches.


def test_numbered_batches_are_told_when_a_pass_ends(make_pages):
    pages = make_pages(4, workers=3)
    source = make(pages)
    pages.log.clear()
    take(source, share=Share(epochs=3))
    ends = [i for i, entry in enumerate(pages.log) if entry == "end"]
    assert ends == [4, 9]  # after each pass but the last
    for start in (0, 5, 10):
        assert sorted(pages.log[start : start + 4]) == [0, 1, 2, 3]


def test_a_pass_does_not_end_while_its_batches_are_fetched(make_pages):
    """Fetching takes turns: nobody goes on before two are at it."""
    both, under_way, seen = threading.Barrier(2, timeout=30), itertools.count(), []
    state = {"now": 0}
    lock = threading.Lock()

    class Together(type(make_pages(1))):
        def __getitem__(self, index):
            next(under_way)
            with lock:
                state["now"] += 1
            if next(calls) >= 2:  # the first two tell the form, one by one
                both.wait()
            with lock:
                state["now"] -= 1
            return super().__getitem__(index)

        def on_epoch_end(self):
            seen.append(state["now"])

    calls = itertools.count()
    source = make(Together(4, workers=2))
    take(source, share=Share(epochs=3))
    assert seen == [0, 0]
    assert next(under_way) == 2 + 3 * 4


@pytest.mark.parametrize(("done", "missed"), [(2, 0), (4, 1), (5, 1), (9, 2)])
def test_passes_that_were_missed_are_made_up_for(done, missed, make_pages):
    """So that an order which each of them changes is the same everywhere."""
    pages = make_pages(4)
    source = make(pages)
    pages.log.clear()
    taken = take(source, share=Share(epochs=3, done=done))
    assert len(taken) == 12 - done
    assert [entry for entry in pages.log[:missed] if entry != "end"] == []
    assert pages.log.count("end") == 2


def test_numbered_batches_can_be_opened_again_when_some_were_under_way(make_pages):
    source = make(make_pages(4, workers=2))
    for count in range(1, 8):
        iterator = iter(source.batches(Share()).prefetch(2))
        for _ in range(count):
            next(iterator)
        del iterator
    assert len(take(source, share=Share(epochs=2))) == 8


class Endless(keras.utils.PyDataset):
    num_batches = None

    def __getitem__(self, index):
        return np.full((2, 1), index, np.float32), np.full(2, index)


def test_endless_numbered_batches_come_in_order():
    source = make(Endless())
    for index, expected in enumerate([[0, 2, 4], [1, 3, 5]]):
        numbers = [int(y[0]) for _, y in take(source, 3, Share(index, 2))]
        assert numbers == expected
    assert [int(y[0]) for _, y in take(source, 2, Share(done=7))] == [7, 8]
    assert source.num_batches(Share()) is None


def test_numbered_batches_in_order_once(make_pages):
    data = make(make_pages(3)).once()
    assert [int(y[0, 0]) for _, y in data] == [0, 1, 2]
    with pytest.raises(errors.UsageError, match="endless"):
        make(Endless()).once()


def test_numbered_batches_that_are_none_are_refused(make_pages):
    assert "its length is 0" in message_of(errors.UsageError, make, make_pages(0))


# Generators.


def test_the_first_batches_are_not_lost_and_each_pass_begins_anew():
    passes = []

    def generate():
        passes.append(len(passes))
        for number in range(3):
            yield X, Y + 100 * passes[-1] + number

    source = make(generate)
    taken = [int(y[0]) for _, y in take(source, share=Share(epochs=3))]
    assert taken == [0, 1, 2, 100, 101, 102, 200, 201, 202]


def test_an_iterator_is_made_again_by_calling_the_function():
    calls = []

    def train_data():
        calls.append(1)
        return iter([(X, Y)] * 2)

    source = make(train_data(), train_data)
    assert len(take(source, share=Share(epochs=3))) == 6
    assert len(calls) == 3


def test_an_iterator_that_cannot_be_made_again_is_refused():
    same = iter([(X, Y)] * 3)
    source = make(same, lambda: same)
    with pytest.raises(tf.errors.OpError):
        take(source, 4)
    assert "must start anew" in str(source.failure)


def test_a_generator_without_a_batch_is_refused():
    message = message_of(errors.TrainingFailed, make, iter([]))
    assert "gives no batch" in message


def test_a_generator_of_one_batch_is_one():
    assert len(take(make([(X, Y)]), share=Share(epochs=2))) == 2


@pytest.mark.parametrize("number", [3, 8])
def test_a_batch_that_does_not_fit_is_named(number):
    def generate():
        for index in itertools.count(1):
            yield (X, Y) if index < number else (X, X)

    source = make(generate)
    with pytest.raises(tf.errors.OpError):
        take(source, 9)
    assert f"Batch {number} of train_data has y float32 (10, 2)" in str(source.failure)


def test_a_second_batch_of_a_later_pass_that_does_not_fit_is_named():
    passes = itertools.count()

    def generate():
        yield X, Y
        yield (X, Y) if next(passes) == 0 else (X[:, :1], Y)

    source = make(generate)
    with pytest.raises(tf.errors.OpError):
        take(source, 4)
    assert "Batch 2 of train_data has x float32 (10, 1)" in str(source.failure)


# What the user's code raises.


def raise_at(number):
    class Failing(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if next(calls) == number:
                raise KeyError(f"no row {number}")
            return X, Y

    calls = itertools.count()
    return Failing()


def generate_and_raise():
    yield X, Y
    yield X, Y
    raise KeyError("no row 2")


def test_what_is_raised_is_kept_with_its_place():
    for source in (make(generate_and_raise), make(raise_at(2))):
        assert source.failure is None
        with pytest.raises(tf.errors.OpError):
            take(source, 3)
        assert isinstance(source.failure, KeyError)
        assert "no row 2" in errors.describe_with_traceback(source.failure)
        assert __file__ in errors.describe_with_traceback(source.failure)


def test_what_the_end_of_a_pass_raises_is_kept(make_pages):
    class Tired(type(make_pages(1))):
        def on_epoch_end(self):
            raise OSError("disk full")

    source = make(Tired(2))
    with pytest.raises(tf.errors.OpError):
        take(source, 3)
    assert isinstance(source.failure, OSError)
