"""What callbacks of users may do, and what they may not."""

import pytest

from dtrain import errors
from dtrain.session.callbacks.base import Callback
from dtrain.session.callbacks.checkpoint import CheckpointSaver

LAGS = pytest.mark.parametrize("lag", [0, 3])
METHODS = ["on_start", "next_stop", "on_loop", "before_save", "on_save", "on_end"]


class At(Callback):
    """Does something whenever one of its methods is called."""

    def __init__(self, method, action):
        setattr(self, method, lambda session, *args: action(session))


class Once(Callback):
    """Does something at the first loop past a step."""

    def __init__(self, step, action):
        self._step = step
        self._action = action

    def on_loop(self, session):
        if self._step is not None and session.step >= self._step:
            self._step = None
            self._action(session)


# Saving and evaluating when they like.


@LAGS
def test_a_callback_saves_what_is_done_and_nothing_is_under_way(
    lag, prepare, make_trainer, checkpoints
):
    seen = []

    def save(session):
        path = session.save()
        seen.append((session.step, session.is_quiet, path.rpartition("-")[2]))

    trainer = make_trainer(lag=lag)
    setup = prepare(Once(10, save), trainer=trainer, train_steps=100)
    setup.run()
    step = 10 + 10 * lag
    assert seen == [(step, True, str(step))]
    assert checkpoints() == [step]
    assert setup.session.step == 100


@LAGS
def test_a_callback_evaluates_what_is_done_and_nothing_is_under_way(
    lag, prepare, make_trainer
):
    trainer = make_trainer(lag=lag)
    evaluate = Once(10, lambda session: session.evaluate())
    setup = prepare(evaluate, trainer=trainer, train_steps=100)
    result = setup.run()
    assert trainer.evaluations == [10 + 10 * lag]
    assert result["eval"] == trainer.results
    assert result["repeated_steps"] == 0


# Stopping when there is nothing to stop.


@LAGS
@pytest.mark.parametrize("method", ["on_loop", "on_end"])
def test_who_asks_to_stop_after_the_last_step_has_stopped_nothing(
    method, lag, prepare, make_trainer
):
    def ask(session):
        if session.step == 30:
            session.request_stop("enough")

    setup = prepare(At(method, ask), trainer=make_trainer(lag=lag))
    result = setup.run()
    assert (result["global_step"], result["stopped"]) == (30, None)


def test_who_asks_to_stop_once_the_data_has_ended_has_stopped_nothing(
    prepare, make_trainer
):
    trainer = make_trainer(ends_at=25)
    ask = At("on_end", lambda session: session.request_stop("enough"))
    result = prepare(ask, trainer=trainer, train_steps=None, epochs=1).run()
    assert (result["global_step"], result["stopped"]) == (25, None)


# What is no stop.


@pytest.mark.parametrize("stop", [12.0, "12", [12]], ids=repr)
def test_a_stop_that_is_no_step_is_named(stop, prepare):
    class Mine(Callback):
        def next_stop(self, session):
            return stop

    with pytest.raises(errors.TrainingFailed) as caught:
        prepare(Mine()).run()
    assert f"Mine.next_stop returned {stop!r}" in str(caught.value)
    assert "or None" in str(caught.value)


# Errors.


@pytest.mark.parametrize("method", METHODS)
def test_a_callback_that_leaves_python_fails_the_run(method, prepare):
    def leave(session):
        raise SystemExit(0)

    setup = prepare(At(method, leave), CheckpointSaver(10, 0))
    with pytest.raises(errors.TrainingFailed) as caught:
        setup.run()
    assert str(caught.value).startswith(f"At.{method} failed: SystemExit: 0")
    assert setup.recorder.events[-1] == ("error", caught.value)


def test_an_interruption_from_the_keyboard_is_no_failure(prepare):
    def interrupt(session):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(At("on_loop", interrupt)).run()
