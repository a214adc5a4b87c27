"""An evaluator beside a training: how it ends."""

import pytest

from dtrain import errors

# A run that ends while it is watched.


def test_what_was_saved_before_the_end_is_evaluated(training, watch):
    watched = watch(
        lambda: (training.save(10, 1.0), training.end(0)),
    )
    assert watched.steps == [10]


@pytest.mark.parametrize("status", [3, 4, 143])
def test_an_evaluator_of_a_run_that_failed_leaves_with_its_status(
    status, training, watch
):
    training.save(10, 1.0)
    watched = watch(lambda: (training.save(20, 1.0), training.end(status)))
    assert watched.status == status
    assert watched.steps == [10]
    assert f"status {status}" in watched.lines[-1]


def test_a_run_that_fails_ends_the_evaluation_under_way(
    training, watch, during_evaluation
):
    for step in (10, 20):
        training.save(step, 1.0)
    during_evaluation(lambda: training.end(4))
    watched = watch(lambda: None)
    assert (watched.status, watched.steps) == (4, [])


def test_a_run_that_ends_well_does_not_end_the_evaluation(
    training, watch, during_evaluation
):
    for step in (10, 20):
        training.save(step, 1.0)
    during_evaluation(lambda: training.end(0))
    watched = watch(lambda: None)
    assert (watched.status, watched.steps) == (0, [10, 20])


# A run that had ended before.

STATUSES = pytest.mark.parametrize("status", [0, 4, 143])


@STATUSES
def test_what_a_run_that_had_ended_has_left_is_evaluated(status, training, watch):
    for step in (10, 20):
        training.save(step, 1.0)
    training.end(status)
    watched = watch()
    assert (watched.status, watched.steps) == (0, [10, 20])
    assert watched.lines[-1] == (
        f"Training has ended with status {status}; 2 checkpoints were evaluated."
    )


@STATUSES
def test_a_run_that_had_ended_may_be_resumed_in_time(status, training, watch):
    def nothing():
        pass

    training.save(10, 1.0)
    training.end(status)
    watched = watch(nothing, nothing, nothing, nothing, patience=1.75)  # 0.5 s each
    assert (watched.status, watched.steps) == (0, [10])


@pytest.mark.parametrize("status", [0, 3])
def test_a_run_that_is_resumed_is_watched_to_its_end(status, training, watch):
    training.save(10, 1.0)
    training.end(4)
    watched = watch(
        training.resume,
        *[lambda: None] * 5,  # longer than anybody would wait for it
        lambda: training.save(20, 1.0),
        lambda: training.end(status),
        patience=1.0,
    )
    assert (watched.status, watched.steps) == (status, [10, 20])
    assert f"status {status}" in watched.lines[-1]


def test_a_resumed_run_that_fails_ends_the_evaluation_under_way(
    training, watch, during_evaluation
):
    training.end(4)
    watched = watch(
        training.resume,
        lambda: (training.save(10, 1.0), during_evaluation(lambda: training.end(3))),
        lambda: None,
        patience=1.0,
    )
    assert (watched.status, watched.steps) == (3, [])


def test_a_signal_ends_the_wait_for_a_run(training, watch, stopped):
    training.save(10, 1.0)
    training.end(0)
    signals, stop = stopped()
    with pytest.raises(errors.Interrupted):
        watch(lambda: None, stop, signals=signals, patience=60.0)
