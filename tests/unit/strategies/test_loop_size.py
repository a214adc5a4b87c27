"""How many steps a call packs: as many as take half a second, or what is asked for."""

import pytest

from dtrain.strategies import packing
from dtrain.strategies.loop_size import LoopSize


@pytest.fixture
def train(clock):
    """A function that lets calls of a size's own length pass; returns the sizes."""

    def train(size, step_seconds, calls, workers=1):
        sizes = []
        for _ in range(calls):
            for _ in range(workers):
                steps = size.steps
                clock.advance(steps * step_seconds / workers)
                size.note(steps)
            sizes.append(size.steps)
        return sizes

    return train


def test_what_somebody_says_is_kept(clock, train):
    size = LoopSize(7, now=clock)
    assert train(size, 1.0, 5) == [7] * 5


def test_it_starts_with_one_unrolled_piece(clock):
    assert LoopSize(None, now=clock).steps == packing.UNROLL


@pytest.mark.parametrize(
    ("step_seconds", "expected"),
    [
        (0.01, 50),
        (0.0082, 60),  # 61 in half a second: in pieces of ten
        (0.0002, 100),  # not more, so that Ctrl-C need not wait
        (0.05, 10),
        (0.0555, 10),  # 9: better one more that is written out
        (0.0265, 20),  # 19
        (0.03, 10),  # 17
        (0.1, 5),  # below ten, one by one
        (0.22, 2),
        (10.0, 1),
    ],
)
def test_it_settles_at_half_a_second(step_seconds, expected, clock, train):
    sizes = train(LoopSize(None, now=clock), step_seconds, 1000)
    assert sizes[-10:] == [expected] * 10


def test_a_call_takes_as_long_as_is_asked_for(clock, train):
    size = LoopSize(None, call_seconds=1.0, now=clock)
    assert train(size, 0.05, 50)[-1] == 20


@pytest.mark.parametrize(("second", "expected"), [(0.05, 10), (0.2, 30)])
def test_calls_of_less_than_that_are_taken_together(second, expected, clock):
    size = LoopSize(None, call_seconds=1.0, now=clock)
    for seconds in (1000, 0.9, second):  # the first one holds tracing
        with size.timed(20):
            clock.advance(seconds)
    # At least a second, or it stays as it began.
    assert size.steps == expected


def test_the_first_call_is_not_measured(clock, train):
    size = LoopSize(None, now=clock)
    clock.advance(1000)  # tracing
    size.note(size.steps)
    assert size.steps == packing.UNROLL
    assert train(size, 0.01, 50)[-1] == 50


def test_workers_share_the_speed(clock, train):
    size = LoopSize(None, num_workers=4, now=clock)
    # Each of four needs 10 ms a step: 50 of its own steps in half a second.
    assert train(size, 0.01, 50, workers=4)[-1] == 50


def test_time_that_is_not_training_does_not_count(clock, train):
    size = LoopSize(None, now=clock)
    train(size, 0.01, 50)
    for _ in range(5):
        size.pause()
        clock.advance(1000)  # an evaluation
        assert train(size, 0.01, 20)[-1] == 50


def test_it_follows_a_change_of_speed(clock, train):
    size = LoopSize(None, now=clock)
    assert train(size, 0.01, 50)[-1] == 50
    assert train(size, 0.025, 50)[-1] == 20
    assert train(size, 0.01, 50)[-1] == 50
