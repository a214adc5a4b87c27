"""The callbacks that come with the package, in a session that only counts."""

import io
import math

import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.session.callbacks.base import Callback, crosses, next_multiple
from dtrain.session.callbacks.checkpoint import CheckpointSaver
from dtrain.session.callbacks.evaluation import Evaluator
from dtrain.session.callbacks.nan import NanStopper
from dtrain.session.callbacks.progress import ProgressDisplay
from dtrain.session.callbacks.summary import SummaryWriter

LAGS = pytest.mark.parametrize("lag", [0, 3])


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A terminal that can move its cursor."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


# Multiples.


@pytest.mark.parametrize(
    ("before", "now", "every", "expected"),
    [
        (0, 9, 10, False),
        (0, 10, 10, True),
        (9, 10, 10, True),
        (10, 19, 10, False),
        (10, 35, 10, True),
        (10, 10, 10, False),
        (0, 100, 0, False),
    ],
)
def test_crosses_a_multiple(before, now, every, expected):
    assert crosses(before, now, every) is expected


@pytest.mark.parametrize(
    ("step", "every", "expected"),
    [(0, 10, 10), (9, 10, 10), (10, 10, 20), (25, 10, 30), (25, 0, None)],
)
def test_next_multiple(step, every, expected):
    assert next_multiple(step, every) == expected


# Checkpoints.


@LAGS
@pytest.mark.parametrize(
    ("every", "secs", "saves"),
    [
        (0, 0, [100]),
        (40, 0, [40, 80, 100]),
        (50, 0, [50, 100]),
        (1000, 0, [100]),
    ],
)
def test_saves_every_so_many_steps_and_at_the_end(
    every, secs, saves, lag, prepare, make_trainer, clock, checkpoints
):
    saver = CheckpointSaver(every, secs, now=clock)
    prepare(saver, trainer=make_trainer(lag=lag), train_steps=100).run()
    assert checkpoints() == saves


@pytest.mark.parametrize(
    ("secs", "saves"),
    [
        (25, [30, 60, 90, 100]),  # a loop of 10 steps takes 10 seconds
        (10, list(range(10, 101, 10))),
        (1000, [100]),
    ],
)
def test_saves_at_least_every_so_many_seconds(
    secs, saves, prepare, make_trainer, clock, checkpoints
):
    saver = CheckpointSaver(0, secs, now=clock)
    trainer = make_trainer(step_seconds=1)
    prepare(saver, trainer=trainer, train_steps=100, keep_checkpoints=100).run()
    # One that is overdue waits for the next loop's end if steps are under way.
    assert checkpoints() == saves


def test_a_checkpoint_that_is_overdue_asks_for_quiet(
    prepare, make_trainer, clock, checkpoints
):
    saver = CheckpointSaver(0, 25, now=clock)
    trainer = make_trainer(step_seconds=1, lag=2)
    prepare(saver, trainer=trainer, train_steps=200).run()
    # 30 s after the start 30 steps are done and 20 are under way.
    assert checkpoints()[0] == trainer.waits[0] == 50


def test_steps_and_seconds_each_start_anew_with_any_checkpoint(
    prepare, make_trainer, clock, checkpoints
):
    saver = CheckpointSaver(30, 20, now=clock)
    trainer = make_trainer(step_seconds=1)
    prepare(saver, trainer=trainer, train_steps=60, keep_checkpoints=100).run()
    # 20 by seconds, 30 by steps, 50 by seconds, 60 by steps.
    assert checkpoints() == [20, 30, 50, 60]


def test_a_checkpoint_that_somebody_else_saved_is_not_saved_again(
    prepare, make_trainer, clock
):
    class SaveAt20(Callback):
        def on_loop(self, session):
            if session.step == 20:
                session.save()

    saver = CheckpointSaver(20, 0, now=clock)
    setup = prepare(SaveAt20(), saver, train_steps=30)
    setup.run()
    assert setup.recorder.events.count(("save", 20)) == 1


def test_a_slow_save_is_not_overdue_at_once(prepare, make_trainer, clock, checkpoints):
    saver = CheckpointSaver(0, 25, now=clock)
    trainer = make_trainer(step_seconds=1)
    trainer.slow_seconds = 100
    prepare(saver, trainer=trainer, train_steps=60).run()
    assert checkpoints() == [30, 60]


# Evaluation.


@LAGS
@pytest.mark.parametrize(
    ("every", "steps"),
    [(0, [100]), (40, [40, 80, 100]), (25, [25, 50, 75, 100]), (1000, [100])],
)
def test_evaluates_every_so_many_steps_and_once_at_the_end(
    every, steps, lag, prepare, make_trainer
):
    trainer = make_trainer(lag=lag)
    setup = prepare(Evaluator(every), trainer=trainer, train_steps=100)
    setup.run()
    assert trainer.evaluations == steps
    heard = [step for kind, step in setup.recorder.events if kind == "evaluation"]
    assert heard == steps


# No number.


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_fails_the_run_before_it_is_saved(
    loss, prepare, make_trainer, checkpoints, clock
):
    class Poison(Callback):
        def on_loop(self, session):
            if session.step == 20:
                session.trainer.totals.last_loss = loss

    callbacks = [Poison(), NanStopper(), CheckpointSaver(10, 0, now=clock)]
    setup = prepare(*callbacks, train_steps=60)
    with pytest.raises(errors.TrainingFailed) as caught:
        setup.run()
    message = str(caught.value)
    assert f"The loss is {loss}" in message
    assert "global step 30" in message
    assert "--learning_rate" in message
    assert checkpoints() == [10, 20]


def test_a_finite_loss_is_no_reason_to_stop(prepare, make_trainer):
    trainer = make_trainer()
    trainer.totals.last_loss = 1e30
    assert prepare(NanStopper(), trainer=trainer).run()["global_step"] == 30


def test_a_run_that_is_stopped_by_a_signal_saves_no_weights_that_are_no_numbers(
    prepare, make_trainer, checkpoints
):
    trainer = make_trainer(lag=2)

    class PoisonAndStop(Callback):
        def on_loop(self, session):
            if session.step == 10:
                setup.signals.received.append(15)
                trainer.wait = poisoned

    def poisoned():
        trainer.totals.last_loss = math.nan
        type(trainer).wait(trainer)

    setup = prepare(NanStopper(), PoisonAndStop(), trainer=trainer, train_steps=60)
    with pytest.raises(errors.DtrainError):
        setup.run()
    assert checkpoints() == []


# Progress.


def lines_of_progress(setup):
    return [line for line in setup.lines if line.startswith("step ")]


def test_a_line_says_how_far_how_well_how_fast_and_how_long(
    prepare, make_trainer, clock
):
    trainer = make_trainer(step_seconds=0.5)
    setup = prepare(ProgressDisplay(20, clock), trainer=trainer, train_steps=70)
    setup.run()
    # The first loop traces: it is not timed. Step n has a loss of n.
    assert lines_of_progress(setup) == [
        "step 20/70  loss 10.5000  2.0 steps/s  0:25 left  input 0%",
        "step 40/70  loss 30.5000  2.0 steps/s  0:15 left  input 0%",
        "step 60/70  loss 50.5000  2.0 steps/s  0:05 left  input 0%",
    ]


@pytest.mark.parametrize(
    ("shares", "shown"),
    [
        ([0.126], "input 13%"),
        ([0.0, 0.15, 1.0], "input 0%/15%/100%"),
        ([0.1, 0.02, 0.0, 0.04, 0.3], "input 0% to 30%"),
    ],
    ids=["one", "three", "five"],
)
def test_a_line_says_how_long_steps_wait_for_input(
    shares, shown, prepare, make_trainer, clock
):
    trainer = make_trainer(shares=shares)
    setup = prepare(ProgressDisplay(20, clock), trainer=trainer)
    setup.run()
    (line,) = lines_of_progress(setup)
    assert line.endswith("  " + shown)


@pytest.mark.parametrize(
    ("shares", "who"),
    [
        ([0.2], None),
        ([0.25], "input: worker:0 25% of its time."),
        ([0.1, 0.2], None),
        (
            [0.1, 0.5, 0.25],
            "input: worker:1 50% of its time, worker:2 25% of its time.",
        ),
    ],
    ids=str,
)
def test_who_waits_much_is_advised_once(shares, who, prepare, make_trainer, clock):
    trainer = make_trainer(shares=shares)
    setup = prepare(ProgressDisplay(10, clock), trainer=trainer, train_steps=60)
    setup.run()
    advice = [line for line in setup.lines if "prefetch" in line]
    assert len(advice) == (who is not None)
    assert all(who in line for line in advice)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "step 20/30  loss 10.5000  4.0 steps/s  0:02 left  epoch 2  input 0%"),
        (
            {"train_steps": None, "epochs": 3},
            "step 20/35  loss 10.5000  4.0 steps/s  0:04 left  epoch 2/3  input 0%",
        ),
    ],
    ids=["endless", "epochs"],
)
def test_a_line_says_which_epoch_it_is(options, expected, prepare, make_trainer, clock):
    trainer = make_trainer(ends_at=35 if "epochs" in options else None)
    trainer.passes = 2
    setup = prepare(ProgressDisplay(20, clock), trainer=trainer, **options)
    setup.run()
    assert lines_of_progress(setup) == [expected]


def test_where_nobody_knows_the_end_nothing_is_said_of_it(
    prepare, make_trainer, clock, terminal
):
    def run(**outputs):
        trainer = make_trainer(ends_at=25, is_known=False)
        options = {"train_steps": None, "epochs": 2, **outputs}
        setup = prepare(ProgressDisplay(20, clock), trainer=trainer, **options)
        setup.run()
        return setup

    expected = "step 20  loss 10.5000  4.0 steps/s  input 0%"
    assert lines_of_progress(run()) == [expected]
    log = io.StringIO()
    run(terminal=terminal, log=log)
    assert log.getvalue().splitlines()[0] == expected
    assert "step 25 " in terminal.getvalue()


@pytest.mark.parametrize(
    ("every", "steps_per_loop", "steps"),
    [
        (0, 10, []),
        (25, 10, [30, 50, 80, 100]),
        (1, 10, list(range(10, 101, 10))),
        (10, 50, [50, 100]),
        (1000, 10, []),
    ],
)
def test_a_line_comes_when_the_step_crosses_a_multiple(
    every, steps_per_loop, steps, prepare, make_trainer, clock
):
    trainer = make_trainer(steps_per_loop=steps_per_loop)
    setup = prepare(ProgressDisplay(every, clock), trainer=trainer, train_steps=100)
    setup.run()
    shown = [int(line.split()[1].split("/")[0]) for line in lines_of_progress(setup)]
    assert shown == steps


@pytest.mark.parametrize(
    ("step_seconds", "left"),
    [(0.25, "0:20 left"), (8, "10:40 left"), (512, "11:22:40 left")],
)
def test_the_time_left_is_for_people(step_seconds, left, prepare, make_trainer, clock):
    trainer = make_trainer(step_seconds=step_seconds)
    setup = prepare(ProgressDisplay(20, clock), trainer=trainer, train_steps=100)
    setup.run()
    assert lines_of_progress(setup)[0].endswith(f"{left}  input 0%")


def test_an_evaluation_is_shown_with_what_it_saw(prepare, clock):
    setup = prepare(ProgressDisplay(0, clock), Evaluator(0))
    setup.run()
    assert setup.lines[-1] == (
        "Evaluation at step 30: loss 0.2500  accuracy 0.5000 on 1,234 examples"
    )


def test_a_terminal_gets_a_bar_and_the_lines_go_to_the_log(prepare, clock, terminal):
    log = io.StringIO()
    callbacks = [ProgressDisplay(20, clock), Evaluator(0)]
    setup = prepare(*callbacks, terminal=terminal, log=log)
    setup.run()
    shown = terminal.getvalue()
    assert "step 30/30" in shown
    assert "loss 10.5000" in shown
    assert "━" in shown
    assert not lines_of_progress(setup)
    logged = log.getvalue().splitlines()
    assert logged[0].startswith("step 20/30  loss 10.5000  ")
    # What comes after the bar stands on a line of its own, with the cursor back.
    last = shown.splitlines()[-1]
    assert last.startswith("\x1b[?25hEvaluation at step 30")


def test_the_bar_is_taken_away_when_the_run_fails(prepare, make_trainer, terminal):
    trainer = make_trainer()
    trainer.totals.last_loss = math.nan
    setup = prepare(
        ProgressDisplay(20), NanStopper(), trainer=trainer, terminal=terminal
    )
    with pytest.raises(errors.TrainingFailed):
        setup.run()
    assert "\x1b[?25h" in terminal.getvalue()


# Summaries.


def scalars(folder):
    """Reads the scalars in all event files of a folder: {step: {tag: value}}."""
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name != "scalars":
                    continue
                number = float(tf.make_ndarray(value.tensor))
                found.setdefault(event.step, {})[value.tag] = number
    return found


def test_summaries_have_the_promised_tags(prepare, make_trainer, clock, tmp_path):
    trainer = make_trainer(step_seconds=0.5, shares=[0.25])
    writer = SummaryWriter(str(tmp_path), 20, now=clock)
    prepare(writer, trainer=trainer, train_steps=50).run()
    assert scalars(tmp_path / "train") == {
        20: {
            "train/loss": 10.5,
            "learning_rate": 0.125,
            "speed/steps_per_second": 2.0,
            "speed/examples_per_second": 16.0,
            "speed/input_wait/0": 0.25,
            "workers/0/steps": 10,
            "workers/1/steps": 10,
            "workers/0/share": 0.5,
            "workers/1/share": 0.5,
        },
        40: {
            "train/loss": 30.5,
            "learning_rate": 0.125,
            "speed/steps_per_second": 2.0,
            "speed/examples_per_second": 16.0,
            "speed/input_wait/0": 0.25,
            "workers/0/steps": 20,
            "workers/1/steps": 20,
            "workers/0/share": 0.5,
            "workers/1/share": 0.5,
        },
    }
    assert not (tmp_path / "eval").exists()


def test_summaries_have_what_each_worker_waits(prepare, make_trainer, clock, tmp_path):
    trainer = make_trainer(shares=[0.5, 0.0, 0.25])
    prepare(SummaryWriter(str(tmp_path), 20, now=clock), trainer=trainer).run()
    waits = {
        tag: value
        for tag, value in scalars(tmp_path / "train")[20].items()
        if tag.startswith("speed/input_wait/")
    }
    assert waits == {f"speed/input_wait/{i}": s for i, s in enumerate([0.5, 0, 0.25])}


def test_no_summaries_if_none_are_wanted(prepare, clock, tmp_path):
    prepare(SummaryWriter(str(tmp_path), 0, now=clock)).run()
    assert not (tmp_path / "train").exists()


@pytest.mark.parametrize(
    ("every", "steps"), [(0, [50]), (20, [20, 40, 50]), (25, [25, 50])]
)
def test_every_evaluation_is_in_the_summaries(every, steps, prepare, clock, tmp_path):
    writer = SummaryWriter(str(tmp_path), 0, now=clock)
    prepare(writer, Evaluator(every), train_steps=50).run()
    expected = {"eval/loss": 0.25, "eval/accuracy": 0.5}
    assert scalars(tmp_path / "eval") == {step: expected for step in steps}


def test_summaries_are_written_out_when_the_run_fails(prepare, clock, tmp_path):
    class FailAt30(Callback):
        def on_loop(self, session):
            if session.step == 30:
                raise RuntimeError

    writer = SummaryWriter(str(tmp_path), 10, now=clock)
    with pytest.raises(errors.TrainingFailed):
        prepare(writer, FailAt30(), train_steps=50).run()
    assert sorted(scalars(tmp_path / "train")) == [10, 20, 30]


def test_a_resumed_run_adds_to_the_summaries(prepare, clock, tmp_path):
    saver = CheckpointSaver(0, 0, now=clock)
    prepare(SummaryWriter(str(tmp_path), 10, now=clock), saver, train_steps=20).run()
    prepare(SummaryWriter(str(tmp_path), 10, now=clock), saver, train_steps=40).run()
    assert sorted(scalars(tmp_path / "train")) == [10, 20, 30, 40]
