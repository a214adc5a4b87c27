"""The best checkpoint: which one it is, where it is kept, and when to give up."""

import json
import math

import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.config import RunConfig
from dtrain.session import best as best_lib
from dtrain.session import checkpoints as checkpoints_lib
from dtrain.session.best import Best
from dtrain.session.callbacks.best import BestKeeper
from dtrain.session.callbacks.checkpoint import CheckpointSaver
from dtrain.session.callbacks.evaluation import Evaluator

LESS = [
    "loss",
    "out_loss",
    "mse",
    "mean_absolute_error",
    "root_mean_squared_error",
    "perplexity",
    "kl_divergence",
    "binary_crossentropy",
    "Poisson",
    "hinge",
    "logcosh",
]
MORE = [
    "accuracy",
    "sparse_categorical_accuracy",
    "top_5_accuracy",
    "AUC",
    "precision",
    "recall_at_precision",
    "f1_score",
    "mean_io_u_iou",
    "r2_score",
    "cosine_similarity",
    "sensitivity_at_specificity",
]


def evaluation(value, name="loss", **more):
    return {name: value, **more, "examples": 10}


@pytest.fixture
def note(store):
    """A function that saves and evaluates a step; says if it is the best so far."""

    def note(best, step, value, name="loss"):
        if step not in store.steps:
            store.save(step)
        return best.note(step, evaluation(value, name), store.path(step))

    return note


@pytest.fixture
def make(tmp_path):
    return lambda metric="loss": Best(str(tmp_path), metric)


def kept(folder):
    return sorted(path.name for path in (folder / "best").glob("*.index"))


# What is better.


@pytest.mark.parametrize(
    ("metric", "is_more"),
    [(name, False) for name in LESS] + [(name, True) for name in MORE],
)
def test_a_metric_s_name_tells_what_is_better(metric, is_more, make, note):
    best = make(metric)
    assert note(best, 1, 0.5, metric)
    assert note(best, 2, 0.75, metric) is is_more
    assert best.record["goal"] == ("max" if is_more else "min")
    assert best.record["metric"] == metric


@pytest.mark.parametrize(("goal", "is_more"), [("min", False), ("max", True)])
def test_what_is_said_goes_before_the_name(goal, is_more, make, note):
    for name in ("accuracy", "loss", "banana"):
        best = make(f"{goal}:{name}")
        assert best.is_better(evaluation(0.5, name))
        best.record = {"value": 0.5}
        assert best.is_better(evaluation(0.75, name)) is is_more
        assert best.is_better(evaluation(0.25, name)) is not is_more


def test_where_nothing_tells_one_has_to_say(make):
    with pytest.raises(errors.UsageError) as caught:
        make("banana")
    message = str(caught.value)
    assert "--best_metric=banana" in message
    assert "max:banana or min:banana" in message


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_as_good_as_before_is_not_better(metric, make, note):
    best = make(metric)
    note(best, 1, 0.5, metric)
    assert not note(best, 2, 0.5, metric)
    assert best.record["global_step"] == 1


def test_what_is_no_number_is_never_better(make, note):
    best = make()
    assert not note(best, 1, math.nan)
    assert best.record == {}
    assert note(best, 2, 0.5)
    assert not note(best, 3, math.nan)
    assert best.record["global_step"] == 2


def test_anything_is_better_than_infinity(make, note):
    best = make()
    assert note(best, 1, math.inf)
    assert note(best, 2, 1e30)


@pytest.mark.parametrize(
    ("config", "metric"),
    [
        ({}, None),
        ({"best_metric": "max:x"}, "max:x"),
        ({"early_stop_patience": 2, "eval_every": 5}, "loss"),
        (
            {"early_stop_patience": 2, "eval_every": 5, "best_metric": "auc"},
            "auc",
        ),
    ],
    ids=["none", "named", "patience", "both"],
)
def test_who_wants_to_stop_early_wants_the_best(config, metric):
    assert best_lib.wanted(RunConfig(**config)) == metric


# Whether it is measured.


def test_a_metric_that_is_measured_is_found(make):
    make("loss").check([])
    make("accuracy").check(["accuracy"])
    make("min:f1_0").check(["f1"])  # one of several numbers


@pytest.mark.parametrize("known", [[], ["auc"], ["accuracy2"]], ids=str)
def test_a_metric_that_is_not_measured_is_refused(known, make):
    with pytest.raises(errors.UsageError) as caught:
        make("accuracy").check(known)
    message = str(caught.value)
    assert "--best_metric=accuracy is not measured" in message
    assert f"There are: {', '.join(['loss', *known])}." in message


def test_a_metric_that_an_evaluation_lacks_is_refused(make):
    with pytest.raises(errors.UsageError, match="There are: loss"):
        make("accuracy").is_better(evaluation(0.5))
    with pytest.raises(errors.UsageError, match=r"There are: loss, f1_0"):
        make("max:f1_x").is_better(evaluation(0.5, f1_0=1, f1=2))


# What is kept.


def test_the_best_checkpoint_is_kept_alone(make, note, store, tmp_path):
    best = make()
    store.start(keep=1)
    for step, loss in enumerate([0.5, 0.25, 0.375, 0.3125], 1):
        note(best, step, loss)
    assert store.steps == [4]
    assert kept(tmp_path) == ["ckpt-2.index"]
    path = str(tmp_path / "best" / "ckpt-2")
    assert store.read(path) == 2
    assert json.loads((tmp_path / "best" / "best.json").read_text()) == {
        "metric": "loss",
        "goal": "min",
        "value": 0.25,
        "global_step": 2,
        "checkpoint": path,
        "results": {"loss": 0.25, "examples": 10},
    }
    assert best.since == 2
    assert best.describe() == f"best loss 0.2500 at step 2: {path}"


def test_the_next_command_knows_it(make, note, tmp_path):
    first = make()
    note(first, 1, 0.5)
    note(first, 2, 0.75)
    second = make()
    assert second.record == first.record
    assert not note(second, 3, 0.625)
    assert note(second, 4, 0.25)
    assert kept(tmp_path) == ["ckpt-4.index"]


def test_each_command_is_as_patient_as_the_first(make, note):
    first = make()
    for step, loss in enumerate([0.5, 0.75, 0.75], 1):
        note(first, step, loss)
    assert first.why_stop(2) is not None
    second = make()
    assert second.since == 0
    note(second, 4, 0.75)
    assert (second.since, second.why_stop(2)) == (1, None)
    note(second, 5, 0.75)
    assert second.why_stop(2) is not None


class Death(BaseException):
    """The end of a process, as far as one process can play it."""


def test_a_run_that_dies_while_it_keeps_the_best_has_it(
    make, note, store, tmp_path, monkeypatch
):
    def die(path):
        raise Death

    note(make(), 1, 0.5)
    with monkeypatch.context() as patch, pytest.raises(Death):
        patch.setattr(checkpoints_lib, "remove_others", die)
        note(make(), 2, 0.25)
    best = make()
    assert best.record["global_step"] == 2
    assert store.read(best.record["checkpoint"]) == 2
    assert note(best, 3, 0.125)
    assert kept(tmp_path) == ["ckpt-3.index"]


@pytest.mark.parametrize("metric", ["accuracy", "max:loss"])
def test_another_metric_begins_anew(metric, make, note):
    note(make(), 1, 0.5)
    assert make(metric).record == {}
    assert make(metric).since == 0


def test_before_the_first_nothing_is_kept(make, note, tmp_path):
    note(make(), 1, math.nan)
    assert kept(tmp_path) == []


def test_a_checkpoint_that_is_gone_does_not_take_the_best_away(
    make, note, store, tmp_path
):
    best = make()
    note(best, 1, 0.5)
    before = dict(best.record)
    with pytest.raises(FileNotFoundError):
        best.note(2, evaluation(0.25), store.path(2))
    assert best.record == before
    assert kept(tmp_path) == ["ckpt-1.index"]
    assert make().record == before


# When to give up.


@pytest.mark.parametrize(
    ("patience", "stops_at"), [(0, None), (1, 3), (2, 4), (3, None)]
)
def test_too_many_without_a_better_one_are_a_reason(patience, stops_at, make, note):
    best, found = make(), None
    for step, loss in enumerate([0.5, 0.25, 0.5, 0.5, 0.125, 0.25, 0.25], 1):
        note(best, step, loss)
        reason = best.why_stop(patience)
        if reason and found is None:
            found = step
            assert reason == (
                f"loss has not become better in {patience} evaluations "
                f"(--early_stop_patience={patience})"
            )
    assert found == stops_at


def test_no_number_counts_as_not_better(make, note):
    best = make()
    note(best, 1, math.nan)
    note(best, 2, math.nan)
    assert best.why_stop(2) is not None


def test_a_step_that_is_evaluated_again_does_not_count(make, note):
    best = make()
    for step in (1, 2, 2, 1, 2):
        note(best, step, 0.5)
    assert best.since == 1
    note(best, 3, 0.5)
    assert best.since == 2


def test_a_step_that_is_better_when_it_is_evaluated_again_is_the_best(make, note):
    best = make()
    note(best, 1, 0.5)
    note(best, 2, 0.75)
    assert note(best, 2, 0.25)
    assert (best.record["global_step"], best.since) == (2, 0)


# In a run.


class Course:
    """Results of evaluations, one after the other."""

    def __init__(self, trainer, losses):
        self._losses = iter(losses)
        trainer.evaluate = lambda is_over: evaluation(next(self._losses))


def start(prepare, make_trainer, best, losses, patience=0, saves=1000, **options):
    trainer = make_trainer(lag=options.pop("lag", 0))
    Course(trainer, losses)
    saver = CheckpointSaver(saves, 0)
    callbacks = [saver, BestKeeper(best, patience), Evaluator(10)]
    return prepare(*callbacks, trainer=trainer, **options)


@pytest.mark.parametrize("lag", [0, 3])
def test_a_run_saves_what_is_best(
    lag, prepare, make_trainer, make, tmp_path, checkpoints
):
    losses = [0.5, 0.75, 0.25, 0.375, 0.5]
    setup = start(prepare, make_trainer, make(), losses, train_steps=50, lag=lag)
    result = setup.run()
    assert checkpoints() == [10, 30, 50]  # the best ones of their time, and the last
    assert kept(tmp_path) == ["ckpt-30.index"]
    best = result["best"]
    assert (best["value"], best["global_step"]) == (0.25, 30)
    counter = "counter/.ATTRIBUTES/VARIABLE_VALUE"
    assert tf.train.load_variable(best["checkpoint"], counter) == 30
    assert result["stopped"] is None


def test_what_is_saved_already_is_not_saved_again(
    prepare, make_trainer, make, checkpoints
):
    losses = [0.5, 0.25, 0.125]
    setup = start(prepare, make_trainer, make(), losses, saves=10)
    setup.run()
    saves = [step for kind, step in setup.recorder.events if kind == "save"]
    assert saves == checkpoints() == [10, 20, 30]


def test_a_run_stops_when_none_is_better(prepare, make_trainer, make, checkpoints):
    losses = [0.5, 0.75, 0.75, 0.25]
    setup = start(prepare, make_trainer, make(), losses, patience=2, train_steps=100)
    result = setup.run()
    assert result["global_step"] == 30
    assert "loss has not become better in 2 evaluations" in result["stopped"]
    assert result["best"]["global_step"] == 10
    assert checkpoints() == [10, 30]
    assert setup.recorder.events[-1] == ("end", 30)


def test_a_run_that_reaches_its_end_was_not_stopped(prepare, make_trainer, make):
    losses = [0.5, 0.75, 0.75]
    setup = start(prepare, make_trainer, make(), losses, patience=2)
    result = setup.run()
    assert result["global_step"] == 30
    assert result["stopped"] is None


def test_a_run_without_a_best_says_so(prepare, make_trainer, make):
    losses = [math.nan] * 3
    assert start(prepare, make_trainer, make(), losses).run()["best"] is None
