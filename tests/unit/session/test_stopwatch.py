"""The stopwatch counts training alone."""

import pytest

from dtrain.session.stopwatch import Stopwatch


@pytest.fixture
def watch(clock):
    return Stopwatch(clock)


@pytest.fixture
def loop(watch, clock):
    """A function that trains up to a step in so many seconds."""

    def run(before, step, seconds, have_all_begun=True):
        watch.run(before)
        clock.advance(seconds)
        watch.note(step, have_all_begun)

    return run


def measured(watch):
    return watch.seconds(), watch.speed()


def test_nothing_done(watch, clock):
    clock.advance(5)
    assert measured(watch) == (0, None)


def test_the_first_loop_is_left_out(watch, loop):
    loop(0, 10, 60)  # traces
    loop(10, 20, 2)
    loop(20, 40, 3)
    assert measured(watch) == (5, 6)


def test_each_workers_first_loop_is_left_out(watch, loop):
    loop(0, 10, 60, False)  # one of them traces
    loop(10, 40, 0.1, False)  # and others come to the end of their first
    loop(40, 50, 0.1)
    loop(50, 100, 10)
    assert measured(watch) == (pytest.approx(10), pytest.approx(5))


def test_a_worker_that_comes_late_leaves_enough_to_measure(watch, loop):
    loop(0, 10, 60, False)
    loop(10, 990, 98, False)
    loop(990, 995, 1)
    loop(995, 1000, 0.001)
    assert measured(watch) == (pytest.approx(99.001), pytest.approx(10, rel=1e-3))


def test_a_worker_that_never_comes_spoils_nothing(watch, loop):
    loop(0, 10, 60, False)
    loop(10, 20, 2, False)
    assert measured(watch) == (2, 5)


def test_the_only_loop_counts(watch, loop):
    loop(0, 10, 4)
    assert measured(watch) == (4, 2.5)


def test_a_loop_in_which_no_step_was_finished_is_not_the_first(watch, loop):
    loop(0, 0, 30)  # under way
    loop(0, 10, 30)
    loop(10, 20, 5)
    assert measured(watch) == (5, 2)


def test_a_resumed_run_counts_from_where_it_started(watch, loop):
    loop(1000, 1010, 60)
    loop(1010, 1020, 2)
    assert measured(watch) == (2, 5)


def test_what_is_not_training_does_not_count(watch, loop, clock):
    loop(0, 10, 60)
    clock.advance(1)  # callbacks count: the steps wait for them
    loop(10, 20, 2)
    with watch.paused():
        clock.advance(100)
    clock.advance(100)  # until the next step
    loop(20, 30, 2)
    with watch.paused():
        clock.advance(100)
    assert measured(watch) == (5, 4)


def test_a_pause_before_the_first_step(watch, loop, clock):
    with watch.paused():
        clock.advance(100)
    loop(0, 10, 60)
    loop(10, 20, 2)
    assert measured(watch) == (2, 5)


def test_a_pause_right_after_the_first_loop(watch, loop, clock):
    loop(0, 10, 60)
    with watch.paused():
        clock.advance(100)
    loop(10, 20, 2)
    assert measured(watch) == (2, 5)
