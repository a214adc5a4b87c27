"""Numbers in an order of their own every pass, and who takes which."""

import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.input import stream
from dtrain.input.share import Share


def draw(share, count, size=1, most=None):
    """Returns what `draw` gives: a list of (numbers, indices)."""
    data = stream.draw(share, count, size, "job", share.done)
    return list((data if most is None else data.take(most)).as_numpy_iterator())


def indices(*args, **options):
    return [int(i) for _, own in draw(*args, **options) for i in own]


@pytest.mark.parametrize(
    ("count", "pipelines", "size"),
    [(10, 1, 4), (10, 2, 1), (10, 3, 4), (10, 7, 1), (2, 3, 1), (1, 3, 3)],
    ids=str,
)
def test_every_pass_is_the_whole_set_over_all_pipelines(count, pipelines, size):
    passes = {}
    for index in range(pipelines):
        for numbers, own in draw(Share(index, pipelines, epochs=3), count, size):
            assert 0 < len(numbers) == len(own) <= size
            for number, i in zip(numbers, own, strict=True):
                passes.setdefault(number // count, []).append(i)
    assert {number: sorted(own) for number, own in passes.items()} == {
        number: list(range(count)) for number in range(3)
    }


def test_every_pass_has_an_order_of_its_own_that_follows_the_seed():
    def orders(seed):
        return np.reshape(indices(Share(seed=seed, epochs=4), 20), (4, 20)).tolist()

    own, other = orders(1), orders(2)
    assert own == orders(1)
    different = {tuple(order) for order in [*own, *other, range(20)]}
    assert len(different) == 4 + 4 + 1


def test_a_set_of_a_few_dozen_is_well_mixed():
    """With too few rounds, or poor seeds, it would come out almost in order."""
    orders = np.reshape(indices(Share(epochs=50), 30), (50, 30))
    # Neighbours that are one apart: of 29 pairs in a random order, 1.9 on average.
    neighbours = np.mean(np.sum(np.abs(np.diff(orders, axis=1)) == 1, 1))
    assert 1 < neighbours < 3
    assert np.all(np.abs(np.mean(orders, 0) - 14.5) < 6)  # each place has a bit of all


def test_where_all_read_all_each_has_its_own_order():
    parts = [
        indices(Share(index, 3, sharding="off", epochs=1), 10) for index in range(3)
    ]
    assert [sorted(part) for part in parts] == [list(range(10))] * 3
    assert len({tuple(part) for part in parts}) == 3


@pytest.mark.parametrize(("sharding", "done"), [("static", 4), ("off", 7)])
def test_any_place_is_found_at_once(sharding, done):
    share = Share(1, 2, sharding=sharding)
    placed = Share(1, 2, sharding=sharding, done=done)
    assert (
        indices(placed, 5, 2, most=5) == indices(share, 5, 2, most=5 + done)[2 * done :]
    )


def test_a_stream_without_epochs_has_no_end():
    assert len(indices(Share(), 3, most=100)) == 100
    assert indices(Share(), 2**40, most=3) == indices(Share(), 2**40, most=3)


@pytest.mark.parametrize(("size", "pipelines"), [(1, 1), (4, 3), (50, 2)], ids=str)
def test_the_length_is_known_before(size, pipelines):
    for index in range(pipelines):
        share = Share(index, pipelines, epochs=2)
        assert len(draw(share, 10, size)) == stream.length(share, 10, size)
    assert stream.length(Share(), 10, size) is None


@pytest.mark.parametrize(
    ("numbers", "every", "begun"),
    [
        ([0], 1, 1),
        ([1], 1, 0),
        ([5], 1, 1),
        ([3, 4], 1, 0),
        ([4, 5], 1, 1),
        (range(4, 12), 1, 2),
        # Of the pipelines that share a pass each begins it, with its own first number.
        ([1], 3, 1),
        ([4], 3, 0),
        ([6], 3, 1),
        ([7], 3, 1),
        ([8], 3, 0),
    ],
    ids=str,
)
def test_passes_are_counted_where_they_begin(numbers, every, begun):
    share = Share(0, every)
    numbers = tf.constant(list(numbers), tf.int64)
    assert int(stream.begun(numbers, 5, share)) == begun


# Items.


def test_items_are_dealt_by_number_or_as_they_are():
    names = ["a", "b", "c"]
    share = Share(epochs=2)
    numbers = [int(i) for i in stream.deal(3, share, "job")]
    items = [
        item.decode() for item in stream.deal(names, share, "job").as_numpy_iterator()
    ]
    assert items == [names[i] for i in numbers]
    assert sorted(items[:3]) == sorted(items[3:]) == names


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (("a", "b"), {b"a", b"b"}),
        (np.array(["a", "b"]), {b"a", b"b"}),
        ([1.5, 2.5], {1.5, 2.5}),
    ],
    ids=["tuple", "array", "floats"],
)
def test_any_sequence_is_dealt(items, expected):
    dealt = stream.deal(items, Share(epochs=1), "job")
    assert set(dealt.as_numpy_iterator()) == expected


def test_pairs_are_dealt_as_pairs():
    pairs = [["a", "b"], ["c", "d"]]
    dealt = stream.deal(pairs, Share(epochs=1), "job").as_numpy_iterator()
    assert sorted([part.decode() for part in pair] for pair in dealt) == pairs


@pytest.mark.parametrize("items", [[], 0, np.zeros(0)], ids=str)
def test_nothing_to_deal_is_refused(items):
    with pytest.raises(errors.UsageError, match="no item"):
        stream.deal(items, Share(), "job")
