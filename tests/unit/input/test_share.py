"""Which part of the data a pipeline takes."""

import pytest

from dtrain.input.share import START, Place, Share


def shares(count, **fields):
    return [Share(index, count, **fields) for index in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("done", [0, 1, 5, 14, 100])
def test_what_is_done_was_done_in_turn(count, done):
    taken = [number % count for number in range(done)]
    own = [share.at(Place(done, 3, 2)).done for share in shares(count)]
    assert own == [taken.count(index) for index in range(count)]


def test_a_place_is_all_that_changes():
    share = Share(1, 3, 6, "off", seed=5, epochs=4)
    placed = share.at(Place(8, 2, 1))
    assert (placed.done, placed.place) == (3, Place(8, 2, 1))
    assert placed.at(START) == share


@pytest.mark.parametrize(
    ("sharding", "strides"),
    [
        ("static", [(0, 3), (1, 3), (2, 3)]),
        ("dynamic", [(0, 1)] * 3),
        ("off", [(0, 1)] * 3),
    ],
)
def test_a_stride_is_what_the_pipeline_takes_of_one_stream(sharding, strides):
    assert [share.stride for share in shares(3, sharding=sharding)] == strides


@pytest.mark.parametrize("sharding", ["static", "dynamic"])
def test_all_who_share_have_one_order(sharding):
    seeds = {share.order_seed for share in shares(5, sharding=sharding, seed=9)}
    assert seeds == {9}


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_each_who_reads_all_has_an_order_of_its_own(seed):
    seeds = {share.order_seed for share in shares(1000, sharding="off", seed=seed)}
    assert len(seeds | {seed}) == 1001
    assert all(0 <= own < 2**32 for own in seeds)


@pytest.mark.parametrize(
    ("epochs", "place", "left"),
    [
        (None, Place(9, 7, 6), None),
        (3, START, 3),
        (3, Place(1, 1, 0), 3),
        (3, Place(9, 2, 1), 2),
        (3, Place(9, 3, 3), 0),
        (3, Place(9, 9, 9), 0),
    ],
)
def test_a_pass_that_was_begun_is_made_again(epochs, place, left):
    assert Share(epochs=epochs).at(place).passes_left == left
