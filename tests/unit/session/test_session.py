"""The outer loop: it stops exactly, saves, resumes, and says how it went."""

import json
import signal

import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.session.callbacks.base import Callback
from dtrain.session.callbacks.checkpoint import CheckpointSaver
from dtrain.session.callbacks.evaluation import Evaluator

LAGS = pytest.mark.parametrize("lag", [0, 3])


class Stop(Callback):
    """Asks for quiet where it is told to, and notes where there was quiet."""

    def __init__(self, next_stop):
        self._next_stop = next_stop
        self.quiet_at = []

    def next_stop(self, session):
        return self._next_stop(session)

    def on_loop(self, session):
        if session.is_quiet:
            self.quiet_at.append(session.step)


class Act(Callback):
    """Does something once, at the first loop with at least so many steps done."""

    def __init__(self, step, action):
        self._step = step
        self._action = action

    def on_loop(self, session):
        if self._action and session.step >= self._step:
            action, self._action = self._action, None
            action(session)


def saver(every):
    return CheckpointSaver(every, secs=0)


# How far.


@LAGS
@pytest.mark.parametrize(
    ("train_steps", "steps_per_loop", "asked"),
    [
        (30, 10, [10, 10, 10]),
        (25, 10, [10, 10, 5]),
        (7, 10, [7]),
        (1, 1, [1]),
        (11, 10, [10, 1]),
    ],
)
def test_stops_at_the_last_step_exactly(
    train_steps, steps_per_loop, asked, lag, prepare, make_trainer
):
    trainer = make_trainer(steps_per_loop=steps_per_loop, lag=lag)
    result = prepare(trainer=trainer, train_steps=train_steps).run()
    assert trainer.asked == asked
    assert trainer.global_step == result["global_step"] == train_steps


@LAGS
def test_there_is_quiet_where_a_callback_needs_it_and_at_the_end(
    lag, prepare, make_trainer
):
    stop = Stop(lambda session: next((n for n in (12, 15) if n > session.step), None))
    trainer = make_trainer(lag=lag)
    prepare(stop, trainer=trainer).run()
    assert stop.quiet_at == trainer.waits == [12, 15, 30]
    assert trainer.asked == [10, 2, 3, 10, 5]


def test_there_is_no_barrier_where_nobody_needs_one(prepare, make_trainer):
    trainer = make_trainer(lag=3)
    prepare(trainer=trainer, train_steps=100).run()
    assert trainer.waits == [100]


@LAGS
@pytest.mark.parametrize(
    "next_stop",
    [
        lambda session: 0,
        lambda session: 5,
        lambda session: session.step,
        lambda session: session.step - 1,
        lambda session: session.last_step + 100,
    ],
    ids=["0", "5", "step", "step-1", "later"],
)
def test_a_callback_with_a_stubborn_stop_does_not_hold_the_run_up(
    next_stop, lag, prepare, make_trainer
):
    trainer = make_trainer(lag=lag)
    setup = prepare(Stop(next_stop), trainer=trainer)
    assert setup.run()["global_step"] == 30
    assert sum(trainer.asked) == 30


def test_a_callback_that_always_asks_for_the_next_step_gets_every_step(
    prepare, make_trainer
):
    stop = Stop(lambda session: session.step + 1)
    prepare(stop, trainer=make_trainer(lag=2), train_steps=5).run()
    assert stop.quiet_at == [1, 2, 3, 4, 5]


def test_the_loops_size_may_change_on_the_way(prepare, make_trainer):
    trainer = make_trainer(steps_per_loop=1)
    grow = Act(1, lambda session: setattr(trainer, "steps_per_loop", 20))
    prepare(grow, trainer=trainer).run()
    assert trainer.asked == [1, 20, 9]


EPOCHS = {"train_steps": None, "epochs": 2}


@LAGS
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("ends_at", [25, 30, 3])
def test_with_epochs_the_data_says_when_to_stop(
    ends_at, is_known, lag, prepare, make_trainer, checkpoints
):
    trainer = make_trainer(lag=lag, ends_at=ends_at, is_known=is_known)
    setup = prepare(saver(20), Evaluator(0), trainer=trainer, **EPOCHS)
    assert setup.session.last_step == (ends_at if is_known else None)
    result = setup.run()
    assert result["global_step"] == trainer.global_step == ends_at
    assert (result["train_steps"], result["epochs"]) == (None, 2)
    assert checkpoints() == [step for step in (20,) if step < ends_at] + [ends_at]
    assert trainer.evaluations == [ends_at]
    assert result["repeated_steps"] == 0


@LAGS
def test_a_run_whose_data_has_ended_resumes_to_nothing(lag, prepare, make_trainer):
    prepare(saver(0), trainer=make_trainer(ends_at=25), **EPOCHS).run()
    trainer = make_trainer(lag=lag, ends_at=25)
    setup = prepare(saver(0), trainer=trainer, **EPOCHS)
    assert setup.run()["global_step"] == 25
    assert [kind for kind, _ in setup.recorder.events] == ["start", "end"]


# Saving and resuming.


@LAGS
def test_saves_at_its_steps_whatever_the_loops_size(
    lag, prepare, make_trainer, checkpoints
):
    setup = prepare(saver(25), trainer=make_trainer(lag=lag), train_steps=60)
    result = setup.run()
    saves = [step for kind, step in setup.recorder.events if kind == "save"]
    assert saves == checkpoints() == [25, 50, 60]
    assert result["checkpoint"].endswith("ckpt-60")


def test_a_checkpoint_at_the_last_step_is_saved_once(prepare, checkpoints):
    setup = prepare(saver(15))
    setup.run()
    assert setup.recorder.events.count(("save", 30)) == 1
    assert checkpoints() == [15, 30]


@LAGS
def test_a_resumed_run_does_only_the_rest(lag, prepare, make_trainer):
    prepare(saver(0), train_steps=25).run()
    trainer = make_trainer(lag=lag)
    setup = prepare(saver(0), trainer=trainer, train_steps=40)
    assert setup.session.step == 25
    result = setup.run()
    assert trainer.asked == [10, 5]
    assert int(trainer.counter.numpy()) == result["global_step"] == 40
    assert result["examples_seen"] == 15 * trainer.examples_per_step
    assert setup.recorder.events[0] == ("start", 25)
    assert "ckpt-25, global step 25." in setup.lines[0]


def test_a_run_with_nothing_left_to_do_evaluates_and_ends(prepare, checkpoints):
    prepare(saver(0), Evaluator(0)).run()
    setup = prepare(saver(0), Evaluator(0))
    result = setup.run()
    assert setup.trainer.asked == []
    assert setup.trainer.evaluations == [30]
    assert checkpoints() == [30]
    assert [kind for kind, _ in setup.recorder.events] == ["start", "evaluation", "end"]
    figures = ("examples_seen", "train_seconds", "steps_per_second")
    assert [result[name] for name in figures] == [0, 0, None]
    assert result["examples_per_second"] is None
    assert result["checkpoint"].endswith("ckpt-30")
    assert result["eval"] == setup.trainer.results


def test_a_run_that_is_past_its_last_step_ends_too(prepare):
    prepare(saver(0), train_steps=50).run()
    setup = prepare(saver(0), train_steps=30)
    assert setup.run()["global_step"] == 50
    assert setup.trainer.asked == []


@pytest.mark.parametrize(("keep", "left"), [(1, [60]), (3, [40, 50, 60])])
def test_only_so_many_checkpoints_stay(keep, left, prepare, checkpoints):
    prepare(saver(10), train_steps=60, keep_checkpoints=keep).run()
    assert checkpoints() == left


def test_a_resumed_run_counts_the_checkpoints_that_are_there(prepare, checkpoints):
    prepare(saver(10), train_steps=30, keep_checkpoints=3).run()
    prepare(saver(10), train_steps=50, keep_checkpoints=3).run()
    assert checkpoints() == [30, 40, 50]


def test_a_checkpoint_that_does_not_fit_is_refused(prepare, make_trainer):
    prepare(saver(0)).run()
    other = make_trainer()
    other.checkpoint = tf.train.Checkpoint(counter=other.counter, more=tf.Variable(0.0))
    with pytest.raises(errors.UsageError) as caught:
        prepare(trainer=other)
    parts = ["ckpt-30 does not fit", "--experiment", "--optimizer", "--model_dir"]
    assert not [part for part in parts if part not in str(caught.value)]


def test_a_damaged_checkpoint_is_refused(prepare, tmp_path):
    prepare(saver(0)).run()
    (data,) = tmp_path.glob("ckpt-30.data*")
    data.write_bytes(b"")
    with pytest.raises(errors.UsageError, match="ckpt-30"):
        prepare()


def test_checkpoints_that_nothing_lists_are_found(prepare, tmp_path):
    prepare(saver(10)).run()
    (tmp_path / "checkpoint").unlink()
    assert prepare().session.step == 30


# Stopping early.


def receive(*signums):
    """Returns an action during which signals arrive."""

    def action(session):
        for signum in signums:
            signal.raise_signal(signum)

    return action


@LAGS
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_a_checkpoint(
    signum, lag, prepare, make_trainer, checkpoints
):
    trainer = make_trainer(lag=lag)
    setup = prepare(Act(10, receive(signum)), trainer=trainer, train_steps=100)
    with setup.signals, pytest.raises(errors.Interrupted) as caught:
        setup.run()
    assert caught.value.exit_status == 128 + signum
    done = 10 * (1 + lag)
    assert trainer.global_step == sum(trainer.asked) == done
    assert checkpoints() == [done]
    assert f"ckpt-{done} before stopping" in setup.lines[-1]
    assert setup.recorder.events[-1] == ("error", caught.value)

    rest = make_trainer()
    prepare(trainer=rest, train_steps=100).run()
    assert sum(rest.asked) == 100 - done


def test_a_checkpoint_of_this_step_is_not_saved_again_for_a_signal(prepare):
    setup = prepare(saver(10), Act(20, receive(signal.SIGTERM)))
    with setup.signals, pytest.raises(errors.Interrupted):
        setup.run()
    assert setup.recorder.events.count(("save", 20)) == 1


def test_an_older_checkpoint_does_not_stand_for_this_step(prepare, checkpoints):
    setup = prepare(saver(20), Act(30, receive(signal.SIGTERM)), train_steps=50)
    with setup.signals, pytest.raises(errors.Interrupted):
        setup.run()
    assert checkpoints() == [20, 30]


def test_a_second_signal_stops_at_once(prepare, checkpoints):
    twice = Act(10, receive(signal.SIGINT, signal.SIGINT))
    setup = prepare(twice, train_steps=100)
    with setup.signals, pytest.raises(KeyboardInterrupt):
        setup.run()
    assert checkpoints() == []


def fail(session):
    raise RuntimeError("boom")


class FailAt(Callback):
    def __init__(self, method):
        setattr(self, method, self._fail)

    def _fail(self, *args):
        raise RuntimeError("boom")


@pytest.mark.parametrize(
    "method", ["on_start", "on_loop", "before_save", "on_save", "on_end"]
)
def test_every_callback_is_told_of_an_error_once(method, prepare):
    setup = prepare(FailAt(method), saver(10))
    with pytest.raises(errors.TrainingFailed) as caught:
        setup.run()
    first, *rest = str(caught.value).splitlines()
    assert first.startswith(f"FailAt.{method} failed: RuntimeError: boom (")
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "RuntimeError: boom"
    told = [event for event in setup.recorder.events if event[0] == "error"]
    assert told == [("error", caught.value)]


def test_callbacks_are_told_of_a_trainer_that_fails(prepare, make_trainer):
    trainer = make_trainer()
    trainer.train = fail
    setup = prepare(trainer=trainer)
    with pytest.raises(RuntimeError) as caught:
        setup.run()
    assert setup.recorder.events[-1] == ("error", caught.value)


def test_a_callback_that_fails_on_an_error_hides_neither_it_nor_the_others(prepare):
    class Worse(Callback):
        def on_error(self, session, error):
            raise ValueError("worse")

    setup = prepare(Worse(), Act(10, fail))
    with pytest.raises(errors.TrainingFailed, match="boom"):
        setup.run()
    assert setup.recorder.events[-1][0] == "error"


# What callbacks see.


def test_callbacks_hear_of_everything_in_order(prepare):
    setup = prepare(saver(20), Evaluator(20))
    setup.run()
    assert setup.recorder.events == [
        ("start", 0),
        ("save", 20),
        ("evaluation", 20),
        ("save", 30),
        ("evaluation", 30),
        ("end", 30),
    ]


def test_each_callback_has_a_window_of_its_own(prepare):
    class Ask(Callback):
        def __init__(self, every):
            self.every, self.loops, self.seen = every, 0, []

        def on_start(self, session):
            self.window = session.window()

        def on_loop(self, session):
            self.loops += 1
            if self.loops % self.every == 0:
                self.seen.append(self.window.take()["loss"])

    often, seldom = Ask(1), Ask(2)
    prepare(often, seldom, train_steps=40).run()
    # Steps 1 to 10 have losses of 1 to 10, and so on.
    assert often.seen == [5.5, 15.5, 25.5, 35.5]
    assert seldom.seen == [10.5, 30.5]


def test_without_evaluation_data_nobody_hears_of_an_evaluation(prepare, make_trainer):
    trainer = make_trainer()
    trainer.results = None
    setup = prepare(Evaluator(10), trainer=trainer)
    assert setup.run()["eval"] is None
    assert "evaluation" not in dict(setup.recorder.events)


# The result.


def test_the_result_says_how_it_went(prepare, make_trainer):
    trainer = make_trainer(step_seconds=0.5)
    trainer.slow_seconds = 1000
    # Saves and evaluations at different steps: each stops the clock by itself.
    setup = prepare(saver(10), Evaluator(15), trainer=trainer, experiment="mine:f")
    result = setup.run()
    versions = result.pop("versions")
    assert set(versions) == {"dtrain", "tensorflow", "keras"}
    checkpoint = result.pop("checkpoint")
    assert tf.train.load_checkpoint(checkpoint)
    assert result == {
        "strategy": "local",
        "experiment": "mine:f",
        "global_step": 30,
        "train_steps": 30,
        "epochs": None,
        "batch_size": 8,
        "replicas": 2,
        "accumulate_steps": 1,
        "examples_seen": 240,
        "train_seconds": 10.0,  # 20 steps: without the first loop, saves, evaluations
        "steps_per_second": 2.0,
        "examples_per_second": 16.0,
        "restarts": 0,
        "repeated_steps": 0,
        "eval": {"loss": 0.25, "accuracy": 0.5, "examples": 1234},
        "stopped": None,
    }
    json.dumps(result)


def test_the_only_loop_is_timed(prepare, make_trainer):
    trainer = make_trainer(step_seconds=0.5)
    result = prepare(trainer=trainer, train_steps=10).run()
    assert result["train_seconds"] == 5.0
    assert result["steps_per_second"] == 2.0


def test_steps_that_were_done_again_are_told(prepare, make_trainer, checkpoints):
    trainer = make_trainer(lag=1, repeats=4)
    result = prepare(saver(0), trainer=trainer).run()
    assert result["global_step"] == 34
    assert result["repeated_steps"] == 4
    assert checkpoints() == [34]
    # They were done, so they were seen.
    assert result["examples_seen"] == 34 * trainer.examples_per_step
