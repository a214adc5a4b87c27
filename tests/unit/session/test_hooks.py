"""What experiments add to a run: values, lines, profiles; and looks at the weights."""

import json
import math

import pytest

from dtrain import errors
from dtrain.runtime import profiling
from dtrain.session.callbacks.base import Callback
from dtrain.session.callbacks.checkpoint import CheckpointSaver
from dtrain.session.callbacks.evaluation import Evaluator
from dtrain.session.callbacks.final import FinalValues
from dtrain.session.callbacks.nan import NanStopper
from dtrain.session.callbacks.profiler import Profiler
from dtrain.session.callbacks.values import ValueLogger
from dtrain.session.callbacks.workers import WorkerLines

LAGS = pytest.mark.parametrize("lag", [0, 3])


class FailAt(Callback):
    def __init__(self, step):
        self._step = step

    def on_loop(self, session):
        if session.step >= self._step:
            raise RuntimeError("boom")


# Values of one's own.


@LAGS
@pytest.mark.parametrize(
    ("every", "steps"), [(0, [30]), (12, [12, 24, 30]), (15, [15, 30]), (100, [30])]
)
def test_values_are_shown_every_so_many_steps_and_at_the_end(
    every, steps, lag, prepare, make_trainer
):
    seen = []

    def look(session):
        assert session.is_quiet
        seen.append(session.step)
        return session.step / 8

    trainer = make_trainer(lag=lag)
    setup = prepare(ValueLogger({"share": look}, every), trainer=trainer)
    setup.run()
    assert seen == steps
    assert setup.lines == [f"step {step}  share {step / 8:g}" for step in steps]


def test_values_stand_in_one_line_in_their_order(prepare):
    values = {"b": lambda session: 1e-9, "a": lambda session: session.trainer.counter}
    setup = prepare(ValueLogger(values, 0))
    setup.run()
    assert setup.lines == ["step 30  b 1e-09  a 30"]


def test_values_go_on_after_a_restart(prepare):
    def run(train_steps):
        logger = ValueLogger({"x": lambda session: 1}, 20)
        setup = prepare(logger, CheckpointSaver(0, 0), train_steps=train_steps)
        setup.run()
        return [line for line in setup.lines if line.startswith("step ")]

    assert run(30) == ["step 20  x 1", "step 30  x 1"]
    assert run(60) == ["step 40  x 1", "step 60  x 1"]
    assert run(60) == []


@pytest.mark.parametrize(
    "make", [lambda f: ValueLogger({"x": f}, 10), FinalValues], ids=["value", "final"]
)
def test_a_function_that_fails_is_told_as_the_user_s(make, prepare):
    def look(session):
        raise KeyError("no such layer")

    with pytest.raises(errors.TrainingFailed) as caught:
        prepare(make(look)).run()
    assert "KeyError: 'no such layer'" in str(caught.value)


# Values at the end.


def test_final_values_are_in_the_result(prepare):
    calls = []

    def final(session):
        calls.append(session.step)
        return {"counter": int(session.trainer.counter), "list": [1, None]}

    result = prepare(FinalValues(final)).run()
    assert result["final"] == {"counter": 30, "list": [1, None]}
    assert calls == [30]
    json.dumps(result)


def test_a_run_that_fails_has_no_final_values(prepare):
    calls = []
    with pytest.raises(errors.TrainingFailed):
        prepare(FinalValues(calls.append), FailAt(20)).run()
    assert calls == []


# Workers.


def worker_lines(setup):
    return [line for line in setup.lines if line.startswith("worker:")]


def test_each_worker_has_a_line_every_so_many_steps_of_its_own(prepare):
    setup = prepare(WorkerLines(10), train_steps=50)  # steps go to two, in turn
    setup.run()
    assert worker_lines(setup) == [
        "worker:0  step 10  global step 20",
        "worker:1  step 10  global step 20",
        "worker:0  step 20  global step 40",
        "worker:1  step 20  global step 40",
    ]


def test_a_slow_worker_has_its_lines_later(prepare, make_trainer):
    trainer = make_trainer()
    shares = iter([[9, 1], [18, 2], [27, 3], [36, 4], [45, 5]])

    class Uneven(Callback):
        def on_loop(self, session):
            trainer.worker_steps = next(shares)

    lines = WorkerLines(5)
    setup = prepare(Uneven(), lines, trainer=trainer, train_steps=50)
    setup.run()
    assert worker_lines(setup) == [
        *(f"worker:0  step {9 * i}  global step {10 * i}" for i in range(1, 6)),
        "worker:1  step 5  global step 50",
    ]


def test_a_run_without_workers_counts_as_one(prepare, make_trainer):
    def run(train_steps):
        trainer = make_trainer()
        lines = WorkerLines(15)
        setup = prepare(
            lines, CheckpointSaver(0, 0), trainer=trainer, train_steps=train_steps
        )
        trainer.worker_steps = Alone()
        setup.run()
        return worker_lines(setup)

    class Alone(list):
        """No workers, though the trainer of these tests counts two."""

        def __getitem__(self, index):
            return 0

        def __setitem__(self, index, value):
            pass

    assert run(40) == [
        "worker:0  step 20  global step 20",
        "worker:0  step 30  global step 30",
    ]
    # What this command has done, not those before.
    assert run(60) == ["worker:0  step 20  global step 60"]


def test_no_lines_of_workers_if_none_are_wanted(prepare):
    setup = prepare(WorkerLines(0))
    setup.run()
    assert setup.lines == []


# Profiles.


@LAGS
@pytest.mark.parametrize(
    ("span", "steps"),
    [((12, 17), [12, 17]), ((0, 5), [0, 5]), ((25, 100), [25, 30]), ((40, 50), [])],
    ids=["within", "from the start", "past the end", "after the end"],
)
def test_steps_are_profiled_from_one_to_another(
    span, steps, lag, prepare, make_trainer, tmp_path
):
    trainer = make_trainer(lag=lag)
    setup = prepare(Profiler(str(tmp_path), *span), trainer=trainer)
    setup.run()
    assert trainer.profiling == steps
    folders = list((tmp_path / "train" / "plugins" / "profile").glob("*"))
    assert len(folders) == (1 if steps else 0)
    for folder in folders:
        contents = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert contents == {
            "chief-0.xplane.pb": b"a profile",
            "worker-1.xplane.pb": b"another",
        }
        assert setup.lines == [
            f"Profile of steps {steps[0]} to {steps[1]}, of chief:0, worker:1: {folder}"
        ]


def resume_at_30(prepare):
    prepare(CheckpointSaver(0, 0)).run()


@pytest.mark.parametrize(
    ("span", "steps"),
    [((10, 20), []), ((10, 30), []), ((10, 35), [30, 35]), ((40, 45), [40, 45])],
    ids=["before", "just before", "in between", "later"],
)
def test_a_resumed_run_profiles_what_is_left(
    span, steps, prepare, make_trainer, tmp_path
):
    resume_at_30(prepare)
    trainer = make_trainer()
    profiler = Profiler(str(tmp_path), *span)
    prepare(profiler, trainer=trainer, train_steps=60).run()
    assert trainer.profiling == steps


@pytest.mark.parametrize("ending", ["reached", "resumed"])
def test_a_run_that_does_not_reach_its_first_step_says_so(ending, prepare, tmp_path):
    if ending == "resumed":
        resume_at_30(prepare)
    setup = prepare(Profiler(str(tmp_path), 40, 50))
    setup.run()
    assert setup.lines[-1] == "There is no profile: step 40 was not reached."


def test_a_resumed_run_that_is_past_them_says_nothing(prepare, tmp_path):
    resume_at_30(prepare)
    setup = prepare(Profiler(str(tmp_path), 10, 20), train_steps=60)
    setup.run()
    assert [line for line in setup.lines if "rofile" in line] == []


def test_a_profile_that_is_lost_is_named(prepare, make_trainer, tmp_path):
    trainer = make_trainer()
    trainer.stop_profiling = lambda: {"chief:0": b"a", "worker:1": b"", "ps:0": b"b"}
    setup = prepare(Profiler(str(tmp_path), 10, 20), trainer=trainer)
    setup.run()
    (folder,) = (tmp_path / "train" / "plugins" / "profile").iterdir()
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["chief-0.xplane.pb", "ps-0.xplane.pb"]
    assert setup.lines == [
        f"Profile of steps 10 to 20, of chief:0, ps:0: {folder} (worker:1 was lost "
        "meanwhile)"
    ]


def test_a_run_that_fails_while_it_is_profiled_ends_its_own_profile(
    prepare, make_trainer, tmp_path, monkeypatch
):
    drops = []
    monkeypatch.setattr(profiling, "drop", lambda: drops.append("dropped"))
    trainer = make_trainer()
    profiler = Profiler(str(tmp_path), 5, 100)
    setup = prepare(profiler, FailAt(20), trainer=trainer)
    with pytest.raises(errors.TrainingFailed, match="boom"):
        setup.run()
    # The others' profiles go with them: one may be gone, which is why it failed.
    assert trainer.profiling == [5]
    assert drops == ["dropped"]
    assert not (tmp_path / "train").exists()


# Weights that are no numbers.


def test_weights_that_are_no_numbers_are_not_saved(prepare, make_trainer, checkpoints):
    trainer = make_trainer()

    class Poison(Callback):
        def on_loop(self, session):
            trainer.bad_weight = "dense/kernel" if session.step >= 20 else None

    callbacks = [NanStopper(), Poison(), CheckpointSaver(10, 0)]
    setup = prepare(*callbacks, trainer=trainer)
    with pytest.raises(errors.TrainingFailed) as caught:
        setup.run()
    message = str(caught.value)
    assert message.startswith("At global step 20 dense/kernel holds what is no number")
    assert "--learning_rate" in message
    assert checkpoints() == [10]
    assert setup.recorder.events[-1] == ("error", caught.value)


@pytest.mark.parametrize(("is_synchronous", "first"), [(True, []), (False, [0])])
def test_weights_are_looked_at_only_before_they_are_saved(
    is_synchronous, first, prepare, make_trainer
):
    """And once in a rehearsal, if workers may be lost that are not needed."""
    looks = []
    trainer = make_trainer()
    trainer.is_synchronous = is_synchronous

    def look():
        looks.append(trainer.global_step)

    trainer.find_bad_weight = look
    prepare(NanStopper(), CheckpointSaver(15, 0), trainer=trainer).run()
    assert looks == [*first, 15, 30]


def test_the_step_that_went_wrong_is_named(prepare, make_trainer, checkpoints):
    trainer = make_trainer()

    class Poison(Callback):
        def on_loop(self, session):
            if session.step == 20:
                trainer.totals.bad_step = 23

    setup = prepare(NanStopper(), Poison(), CheckpointSaver(10, 0), trainer=trainer)
    with pytest.raises(errors.TrainingFailed, match="in the step to global step 24"):
        setup.run()
    assert checkpoints() == [10, 20]


def test_an_evaluation_that_gives_no_number_is_warned_of(prepare, make_trainer):
    trainer = make_trainer()
    trainer.results = {"loss": math.nan, "mae": math.inf, "auc": 0.5, "examples": 3}
    setup = prepare(NanStopper(), Evaluator(20), trainer=trainer)
    assert setup.run()["global_step"] == 30
    starts = [line.partition(". Look at")[0] for line in setup.lines]
    assert starts == [
        f"Warning: the evaluation at step {step} gives no number for loss, mae"
        for step in (20, 30)
    ]


def test_an_evaluation_of_numbers_is_not_warned_of(prepare):
    setup = prepare(NanStopper(), Evaluator(20))
    setup.run()
    assert setup.lines == []
