"""Ending before the last step: by a callback, at a step, by a file."""

import json

import pytest

from dtrain import errors
from dtrain.session.callbacks.base import Callback
from dtrain.session.callbacks.checkpoint import CheckpointSaver
from dtrain.session.callbacks.evaluation import Evaluator
from dtrain.session.callbacks.stop import StopAtStep, StopFile, write_stop_file

LAGS = pytest.mark.parametrize("lag", [0, 3])
EPOCHS = {"train_steps": None, "epochs": 2}


class Do(Callback):
    """Does something at one moment of a run, or at the first loop past a step."""

    def __init__(self, action, step=None):
        self._action = action
        self._step = step

    def on_start(self, session):
        if self._step is None:
            self._action(session)

    def on_loop(self, session):
        if self._step is not None and session.step >= self._step:
            self._step = 10**9
            self._action(session)


def ask(session):
    session.request_stop("enough")


def ends(setup, checkpoints):
    """Runs; returns the result of a run that has ended as every good one does."""
    result = setup.run()
    step = result["global_step"]
    assert checkpoints()[-1] == step
    assert setup.trainer.evaluations == [step]
    kinds = [kind for kind, _ in setup.recorder.events]
    assert kinds == ["start", "save", "evaluation", "end"]
    assert result["checkpoint"].endswith(f"ckpt-{step}")
    return result


# On request.


@LAGS
@pytest.mark.parametrize("options", [{}, EPOCHS], ids=["steps", "epochs"])
def test_a_run_ends_well_on_request(options, lag, prepare, make_trainer, checkpoints):
    ends_at = 1000 if options else None
    trainer = make_trainer(lag=lag, ends_at=ends_at)
    callbacks = [Do(ask, 20), CheckpointSaver(0, 0), Evaluator(0)]
    setup = prepare(*callbacks, trainer=trainer, **{"train_steps": 500, **options})
    result = ends(setup, checkpoints)
    # What is under way is done; nothing more is begun.
    assert result["global_step"] == trainer.global_step == sum(trainer.asked)
    assert result["global_step"] == 20 + 10 * lag
    assert result["stopped"] == "enough"
    assert result["repeated_steps"] == 0


def test_a_run_may_be_stopped_before_its_first_step(prepare, checkpoints):
    setup = prepare(Do(ask), CheckpointSaver(0, 0), Evaluator(0))
    assert ends(setup, checkpoints)["global_step"] == 0
    assert setup.trainer.asked == []


def test_a_run_that_was_stopped_goes_on_with_the_next_command(
    prepare, make_trainer, checkpoints
):
    prepare(Do(ask, 10), CheckpointSaver(0, 0)).run()
    setup = prepare(CheckpointSaver(0, 0))
    result = setup.run()
    assert (setup.trainer.asked, result["global_step"]) == ([10, 10], 30)
    assert result["stopped"] is None


# At a step.


@LAGS
@pytest.mark.parametrize("step", [1, 13, 20])
def test_a_run_stops_at_a_step_of_its_own(
    step, lag, prepare, make_trainer, checkpoints
):
    trainer = make_trainer(lag=lag)
    callbacks = [StopAtStep(last_step=step), CheckpointSaver(0, 0), Evaluator(0)]
    setup = prepare(*callbacks, trainer=trainer, train_steps=500)
    result = ends(setup, checkpoints)
    assert result["global_step"] == step
    assert result["stopped"] == f"StopAtStep({step})"


@LAGS
def test_a_number_of_steps_counts_from_where_a_command_begins(
    lag, prepare, make_trainer
):
    def run():
        callbacks = [StopAtStep(num_steps=12), CheckpointSaver(0, 0)]
        trainer = make_trainer(lag=lag)
        return prepare(*callbacks, trainer=trainer, train_steps=500).run()

    assert [run()["global_step"] for _ in range(3)] == [12, 24, 36]


def test_a_step_that_is_past_makes_no_more(prepare, make_trainer):
    prepare(CheckpointSaver(0, 0)).run()
    setup = prepare(StopAtStep(last_step=20), train_steps=500)
    assert setup.run()["global_step"] == 30
    assert setup.trainer.asked == []


def test_a_step_after_the_last_one_stops_nothing(prepare):
    result = prepare(StopAtStep(last_step=31)).run()
    assert (result["global_step"], result["stopped"]) == (30, None)


@pytest.mark.parametrize(
    "options", [{}, {"num_steps": 1, "last_step": 2}], ids=["none", "both"]
)
def test_exactly_one_of_the_two_is_given(options):
    with pytest.raises(errors.UsageError, match="give one of the two"):
        StopAtStep(**options)


# By a file.


def write(session):
    write_stop_file(session.config.model_dir, "no better")


@LAGS
def test_a_file_ends_a_run_with_its_reason(
    lag, prepare, make_trainer, checkpoints, tmp_path, clock
):
    trainer = make_trainer(lag=lag)  # a loop takes 2.5 seconds
    file = StopFile(str(tmp_path), now=clock)
    callbacks = [Do(write, 20), file, CheckpointSaver(0, 0), Evaluator(0)]
    setup = prepare(*callbacks, trainer=trainer, train_steps=500)
    result = ends(setup, checkpoints)
    assert result["stopped"] == "no better"
    assert result["global_step"] == 20 + 10 * lag


def test_a_file_is_looked_for_once_a_second(prepare, make_trainer, tmp_path, clock):
    trainer = make_trainer(step_seconds=0.0625)  # a loop takes 0.625 seconds
    callbacks = [Do(write, 10), StopFile(str(tmp_path), now=clock)]
    result = prepare(*callbacks, trainer=trainer, train_steps=500).run()
    assert result["global_step"] == 20
    trainer = make_trainer(step_seconds=1 / 64)  # the run, less than one
    callbacks = [Do(write, 10), StopFile(str(tmp_path), now=clock)]
    result = prepare(*callbacks, trainer=trainer, train_steps=50).run()
    assert (result["global_step"], result["stopped"]) == (50, None)


def test_a_file_for_an_earlier_run_is_not_for_this_one(prepare, tmp_path, clock):
    write_stop_file(str(tmp_path), "long ago")
    result = prepare(StopFile(str(tmp_path), now=clock)).run()
    assert (result["global_step"], result["stopped"]) == (30, None)
    assert not (tmp_path / "stop.json").exists()


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    write_stop_file(str(tmp_path), 'it "is" enough')
    (path,) = tmp_path.iterdir()
    assert path.name == "stop.json"
    assert json.loads(path.read_text()) == {"reason": 'it "is" enough'}


def test_a_run_is_asked_once(tmp_path):
    assert write_stop_file(str(tmp_path), "first")
    assert not write_stop_file(str(tmp_path), "second")
    assert json.loads((tmp_path / "stop.json").read_text()) == {"reason": "first"}
