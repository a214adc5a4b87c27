"""From a data function to the batches of one pipeline."""

import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.input import feed as feed_lib
from dtrain.input.feed import Feed, open_evaluation
from dtrain.input.share import Place, Share


def numbers(count):
    """Batches of one number, with the number as the label."""
    column = tf.range(count, dtype=tf.int64)
    return tf.data.Dataset.from_tensor_slices((column, column)).batch(1)


def shard_by_context(ctx):
    return numbers(6).shard(ctx.num_input_pipelines, ctx.input_pipeline_id)


def message_of(kind, function, *args):
    with pytest.raises(kind) as caught:
        function(*args)
    return str(caught.value)


# Who reads what.


def read_parts(read, train_data, pipelines):
    """Returns what every pipeline reads in one pass."""
    return [
        read(train_data, Share(index, pipelines, epochs=1))
        for index in range(pipelines)
    ]


def test_every_pass_is_the_whole_set_and_nothing_twice(kind, read):
    parts = read_parts(read, kind(10), 3)
    assert sorted(value for part in parts for value in part) == list(range(10))
    assert sorted(map(len, parts)) == [3, 3, 4]


@pytest.mark.parametrize("pipelines", [1, 2, 7])
def test_a_data_set_without_a_parameter_is_dealt_by_batches(pipelines, read):
    parts = read_parts(read, lambda: numbers(10), pipelines)
    expected = [list(range(index, 10, pipelines)) for index in range(pipelines)]
    assert parts == expected


def test_fewer_examples_than_pipelines_are_read_once(kind_without_context, read):
    parts = read_parts(read, kind_without_context(2), 3)
    assert sorted(value for part in parts for value in part) == [0, 1]
    assert parts[2] == []


@pytest.mark.parametrize(
    "train_data",
    [
        shard_by_context,
        lambda ctx: ctx.deal(6).batch(1).map(lambda x: (x, x)),
    ],
    ids=["shard", "deal"],
)
def test_a_pipeline_whose_own_shard_is_empty_has_no_batch(train_data, read):
    share = Share(6, 7, num_replicas=7, epochs=1)
    assert read(train_data, share) == []


def test_every_pass_has_another_order_that_follows_the_seed(numbered, read):
    whole = read(numbered(20), Share(seed=1, epochs=3))
    orders = np.reshape(whole, (3, 20)).tolist()
    assert len({tuple(order) for order in [*orders, range(20)]}) == 4
    assert whole == read(numbered(20), Share(seed=1, epochs=3))
    assert whole != read(numbered(20), Share(seed=2, epochs=3))


def test_where_all_read_all_each_has_its_own_order(kind, read):
    parts = [
        read(kind(12), Share(index, 3, sharding="off", epochs=1)) for index in range(3)
    ]
    assert [sorted(part) for part in parts] == [list(range(12))] * 3
    orders = {tuple(part) for part in parts}
    assert len(orders) == (1 if orders == {tuple(range(12))} else 3)


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
        (lambda: numbers(6).repeat(), [[0, 3, 0, 3], [1, 4, 1, 4], [2, 5, 2, 5]]),
        (
            lambda ctx: ctx.repeat(numbers(7)).shard(3, ctx.input_pipeline_id),
            [[0, 3, 6, 2], [1, 4, 0, 3], [2, 5, 1, 4]],
        ),
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
        "endless",
        "repeated",
    ],
)
def test_a_data_set_is_sharded_by_its_function_or_by_dtrain(function, expected, read):
    parts = [read(function, Share(index, 3), 4) for index in range(3)]
    assert parts == expected


def test_a_method_gets_the_context_too(read):
    class Data:
        def train(self, ctx):
            return numbers(ctx.num_input_pipelines)

    assert read(Data().train, Share(1, 2), 4) == [0, 1, 0, 1]


def test_a_function_is_called_as_its_seed_says():
    def draw(seed, **fields):
        drawn = []
        Feed(
            lambda: drawn.append(np.random.rand()) or numbers(2),
            Share(**fields, seed=seed),
            1,
        )
        return drawn[0]

    assert draw(1) == draw(1) == draw(1, pipeline=2, num_pipelines=3)
    assert draw(1) != draw(2)
    own = [draw(1, pipeline=i, num_pipelines=3, sharding="off") for i in range(3)]
    assert len({*own, draw(1)}) == 4


@pytest.mark.parametrize("pipelines", [2, 4])
def test_a_global_batch_of_arrays_is_the_same_however_many_share_it(
    pipelines, batches_of
):
    columns = np.arange(30)
    train_data = lambda: (columns, columns)  # noqa: E731

    def global_batches(count):
        parts = [
            batches_of(train_data, Share(i, count, count, epochs=2), None, 12 // count)
            for i in range(count)
        ]
        rows = zip(*parts, strict=True)
        return [sorted(v for _, (x, _) in row for v in x.tolist()) for row in rows]

    whole = global_batches(1)
    assert [len(batch) for batch in whole] == [12] * 5
    assert global_batches(pipelines) == whole


# A place in the data.


@pytest.mark.parametrize("done", [1, 6, 11])
def test_a_place_goes_on_where_it_was(kind_with_place, done, read):
    share = Share(1, 2, seed=3, epochs=3)
    whole = read(kind_with_place(5), share)
    placed = share.at(Place(done, done // 5 + 1, done // 5))
    assert read(kind_with_place(5), placed) == whole[placed.done :]


def test_a_generator_begins_its_pass_again(read):
    def train_data():
        for number in range(3):
            yield np.array([number]), np.array([number])

    share = Share(epochs=3)
    assert read(lambda: train_data, share.at(Place(4, 2, 1))) == [0, 1, 2, 0, 1, 2]
    assert read(lambda: train_data, share.at(Place(9, 3, 3))) == []


def test_a_worker_that_was_lost_finds_its_place_or_begins_its_pass_again(make_pages):
    share = Share(1, 2).at(Place(14, 3, 2))
    assert share.done == 7
    for function, done in (
        (lambda: make_pages(5), 7),
        (lambda: (np.ones(5), np.ones(5)), 7),
        (lambda ctx: numbers(5), 5),
        (lambda ctx: ctx.repeat(numbers(5)), 0),
        (lambda: numbers(5).repeat(), 0),
        (lambda: numbers(5).filter(lambda x, y: True), 0),
    ):
        assert Feed(function, share, 1).from_pass(share).done == done


# How long, and how often.


def test_the_number_of_batches_is_what_there_are(kind_with_place, batches_of):
    for index in range(2):
        share = Share(index, 2, epochs=3)
        feed = Feed(kind_with_place(5), share, 4)
        assert feed.num_batches(share) == len(list(feed.batches(share)))
        assert feed.num_batches(Share(index, 2)) is None


def test_a_number_that_nobody_knows_is_none():
    share = Share(epochs=2)
    for function in (
        lambda: iter([(np.ones(1), np.ones(1))]),
        lambda: numbers(3).filter(lambda x, y: x[0] > 0),
    ):
        assert Feed(function, share, 1).num_batches(share) is None


def test_each_pass_is_counted_once_by_each_who_takes_part(kind, batches_of):
    for share in (Share(epochs=4), Share(1, 2, epochs=4)):
        counted = [begun for begun, _ in batches_of(kind(5), share)]
        if Feed(kind(5), share, 1).outline(share).has_passes:
            assert counted[0] == 1
            assert sum(counted) == 4


def test_passes_are_counted_after_a_place_as_before_it(kind_with_place, batches_of):
    share = Share(epochs=4)
    whole = [begun for begun, _ in batches_of(kind_with_place(5), share)]
    rest = [
        begun for begun, _ in batches_of(kind_with_place(5), share.at(Place(7, 2, 1)))
    ]
    assert rest == whole[7:]


@pytest.mark.parametrize(
    ("function", "has_passes"),
    [
        (lambda: numbers(3), True),
        (lambda ctx: numbers(3), True),
        (lambda: numbers(3).repeat(), False),
        (lambda ctx: ctx.repeat(numbers(3)), False),
        (lambda ctx: ctx.deal(3).batch(1).map(lambda x: (x, x)), False),
        (lambda: (np.ones(3), np.ones(3)), True),
    ],
)
def test_passes_can_be_counted_where_dtrain_makes_them(function, has_passes):
    assert Feed(function, Share(), 1).outline(Share()).has_passes is has_passes


# What is refused.


@pytest.mark.parametrize(
    ("make", "kind", "parts"),
    [
        (lambda: numbers(3).unbatch(), errors.UsageError, ["single examples"]),
        (lambda: numbers(3).map(lambda x, y: x), errors.UsageError, ["(x, y)"]),
        (
            lambda: numbers(3).map(lambda x, y: {"x": x}),
            errors.UsageError,
            ["(x, y)"],
        ),
        (lambda: numbers(3).take(0), errors.TrainingFailed, ["gives no batch"]),
        (lambda: iter(()), errors.TrainingFailed, ["gives no batch"]),
        (lambda: None, errors.UsageError, ["returned NoneType"]),
    ],
    ids=["rows", "x", "dict", "empty", "empty generator", "None"],
)
def test_what_gives_no_batches_is_refused(make, kind, parts):
    message = message_of(kind, Feed, make, Share(), 1)
    assert "train_data" in message
    assert not [part for part in parts if part not in message], message


def test_sample_weights_are_welcome():
    function = lambda: numbers(3).map(lambda x, y: (x, y, x))  # noqa: E731
    assert len(Feed(function, Share(), 1).spec) == 3


@pytest.mark.parametrize("epochs", [1, 3])
def test_an_endless_numbered_data_set_has_no_epochs(epochs, make_pages):
    class Endless(type(make_pages(1))):
        num_batches = None

    message = message_of(
        errors.UsageError, Feed, lambda: Endless(0), Share(epochs=epochs), 1
    )
    assert f"--epochs={epochs}" in message


def test_endless_data_has_no_epochs():
    message = message_of(
        errors.UsageError, Feed, lambda: numbers(3).repeat(), Share(epochs=2), 1
    )
    assert "--epochs=2" in message
    assert "ctx.repeat" in message


@pytest.mark.parametrize(
    "function",
    [
        lambda: numbers(3),
        lambda ctx: (np.ones(3), np.ones(3)),
        lambda: iter([(np.ones(1), np.ones(1))]),
    ],
    ids=["Dataset", "by ctx", "generator"],
)
def test_what_cannot_be_numbered_cannot_be_dealt_out(function):
    share = Share(sharding="dynamic")
    message = message_of(errors.UsageError, Feed, function, share, 1)
    assert "--data_sharding=dynamic" in message


# Data sets that are served.


def test_what_a_data_set_holds_is_added_up():
    x = np.zeros((1 << 10, 2), np.float32)
    tensor = tf.constant(x)
    slices = tf.data.Dataset.from_tensor_slices((x, x)).shuffle(3).batch(8)
    in_map = numbers(3).map(lambda i, _: (tf.gather(tensor, i), i))
    for data in (slices.map(lambda a, b: (a, b)), in_map):
        assert feed_lib._held_bytes(data) == pytest.approx(2 * x.nbytes, rel=0.5)
    assert feed_lib._held_bytes(tf.data.TextLineDataset("x.csv")) < 1000


def is_made_by_python(data):
    """Returns whether a data set comes from a generator."""
    names = type(data).__name__, *map(is_made_by_python, data._inputs())
    return "FlatMap" in names[0] or any(names[1:])


@pytest.mark.parametrize("make", [lambda x: x, tf.range], ids=["dense", "ragged"])
def test_a_data_set_that_holds_much_is_read_here(make, monkeypatch):
    monkeypatch.setattr(feed_lib, "_held_bytes", lambda data: feed_lib._LARGE_BYTES + 1)
    share = Share(1, 2, epochs=2).at(Place(3, 1))

    def train_data():
        data = tf.data.Dataset.range(7).map(make)
        data = data.ragged_batch(2) if make is tf.range else data.batch(2)
        return data.map(lambda x: (x, x)).cache()

    opened = [
        Feed(train_data, share, 1).batches(share, is_served)
        for is_served in (False, True)
    ]
    assert [is_made_by_python(data) for data in opened] == [False, True]
    plain, served = ([tf.nest.flatten(e) for e in data] for data in opened)
    assert len(plain) == len(served) > 1
    for ours, theirs in zip(served, plain, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert str(a) == str(b)


def test_a_data_set_that_holds_much_can_be_opened_at_another_place(monkeypatch):
    monkeypatch.setattr(feed_lib, "_LARGE_BYTES", 10)
    feed = Feed(lambda: numbers(6), Share(), 1)
    firsts = [
        int(next(iter(feed.batches(Share().at(Place(done, 1)), True)))[1][0][0])
        for done in (0, 4)
    ]
    assert firsts == [0, 4]


# For steps.


def test_examples_are_counted_and_batches_are_kept_ready():
    counter = tf.Variable(0, dtype=tf.int64)
    data = numbers(7).unbatch().batch(3)
    data = data.map(lambda x, y: (tf.constant(0, tf.int64), ({"a": x}, y)))
    assert len(list(feed_lib.for_steps(data, counter.handle))) == 3
    assert int(counter) == 7


# Evaluation.


@pytest.mark.parametrize(
    "function",
    [
        lambda: numbers(5).unbatch().batch(2),
        lambda ctx: numbers(5).unbatch().batch(2),
        lambda: (np.arange(5), np.arange(5)),
        lambda ctx: iter([(np.arange(2),) * 2, (np.arange(2, 5),) * 2]),
    ],
    ids=["Dataset", "by ctx", "arrays", "iterator"],
)
def test_evaluation_data_is_read_once_in_order_and_again(function):
    data, _ = open_evaluation(function, 2)
    for _ in range(2):
        labels = [y.numpy().tolist() for _, y in data]
        assert [label for batch in labels for label in batch] == list(range(5))


def test_endless_evaluation_data_is_refused():
    message = message_of(
        errors.UsageError, open_evaluation, lambda: numbers(3).repeat(), 1
    )
    assert "endless" in message
    assert "repeat()" in message


def test_items_that_evaluation_asks_for_are_dealt_once():
    data, _ = open_evaluation(lambda ctx: ctx.deal(3).batch(1).map(lambda x: (x, x)), 1)
    assert len(list(data.take(10))) == 3


def test_evaluation_data_is_named_when_it_is_refused():
    message = message_of(errors.UsageError, open_evaluation, lambda: None, 1)
    assert "eval_data" in message
