"""An evaluator beside a training: each checkpoint once."""

import json
import os

import keras
import pytest
import tensorflow as tf

from dtrain import errors


def scalars(folder):
    found = {}
    for path in (folder / "evaluator").glob("events.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                number = float(tf.make_ndarray(value.tensor))
                found.setdefault(value.tag, {})[event.step] = number
    return found


# Each of them once.


def test_each_checkpoint_is_evaluated_once(training, watch, tmp_path):
    training.save(10, 2.0)
    watched = watch(
        lambda: training.save(20, 1.0),
        lambda: None,
        lambda: (training.save(30, 0.5), training.save(40, 0.25)),
        lambda: training.end(0),
    )
    assert watched.status == 0
    assert watched.steps == [10, 20, 30, 40]
    assert scalars(tmp_path) == {
        "eval/loss": {10: 4, 20: 1, 30: 0.25, 40: 0.0625},
        "eval/mae": {10: 2, 20: 1, 30: 0.5, 40: 0.25},
    }
    path = tmp_path / "ckpt-20"
    assert watched.lines[0] == f"Evaluating each new checkpoint of {tmp_path}."
    expected = f"Evaluation of {path}: loss 1.0000  mae 1.0000 on 10 examples"
    assert watched.lines[2] == expected
    assert watched.lines[-1] == (
        "Training has ended with status 0; 4 checkpoints were evaluated."
    )


def test_the_next_evaluator_goes_on_where_one_was_stopped(
    training, watch, stopped, tmp_path
):
    training.save(10, 2.0)
    signals, stop = stopped()
    with pytest.raises(errors.Interrupted) as caught:
        watch(stop, signals=signals)
    assert caught.value.exit_status == 143
    training.save(20, 1.0)
    watched = watch(lambda: training.end(0))
    assert watched.steps == [20]
    assert scalars(tmp_path)["eval/loss"] == {10: 4, 20: 1}
    assert watch().steps == []


def test_an_evaluation_that_is_stopped_does_not_count(
    training, watch, stopped, during_evaluation
):
    training.save(10, 2.0)
    signals, stop = stopped()
    during_evaluation(stop)
    with pytest.raises(errors.Interrupted):
        watch(signals=signals)
    assert watch(lambda: training.end(0)).steps == [10]


def test_a_checkpoint_that_is_deleted_meanwhile_is_left_out(
    training, watch, during_evaluation
):
    for step in (10, 20, 30):
        training.save(step, 1.0)
    during_evaluation(lambda: training.delete(20))
    watched = watch(lambda: training.end(0))
    assert watched.steps == [10, 30]
    path = training.folder / "ckpt-20"
    assert f"{path} was deleted before it could be evaluated." in watched.lines
    assert "2 checkpoints were evaluated" in watched.lines[-1]


def test_a_different_model_is_refused(training, watch, tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt-10"))
    with pytest.raises(errors.UsageError, match="ckpt-10 does not fit this model"):
        watch()


def test_what_was_evaluated_is_noted_with_when_it_was_written(
    training, watch, tmp_path
):
    paths = [training.save(step, 1.0) for step in (10, 20)]
    watch(lambda: training.end(0))
    noted = json.loads((tmp_path / "evaluator" / "evaluated.json").read_text())
    written = [os.stat(f"{path}.index").st_mtime_ns for path in paths]
    assert noted == dict(zip(["10", "20"], written, strict=True))


def test_a_step_that_is_trained_anew_is_evaluated_anew(training, watch, stopped):
    def save_anew():
        path = training.save(10, 1.0)
        os.utime(f"{path}.index", ns=(2 * 10**18, 2 * 10**18))

    training.save(10, 2.0)
    signals, stop = stopped()
    with pytest.raises(errors.Interrupted):
        watch(stop, signals=signals)
    watched = watch(save_anew, lambda: None, lambda: training.end(0))
    assert watched.steps == [10]
    assert "loss 1.0000" in watched.lines[1]
    assert "; 1 checkpoints were" in watched.lines[-1]


@pytest.mark.parametrize("best_metric", [None, "loss"])
@pytest.mark.parametrize("damage", ["damage", "lose_data"])
def test_a_damaged_one_is_passed_over_and_told_once(
    training, watch, damage, best_metric
):
    for step in (10, 20, 30):
        training.save(step, 1.0)
    getattr(training, damage)(20)
    watched = watch(
        lambda: None, lambda: None, lambda: training.end(0), best_metric=best_metric
    )
    assert watched.steps == [10, 30]
    assert not any("deleted" in line for line in watched.lines)
    warnings = [line for line in watched.lines if line.startswith("Warning: ")]
    path = training.folder / "ckpt-20"
    assert len(warnings) == 1
    assert warnings[0].startswith(f"Warning: passed over: {path} is damaged: ")
    assert "; 2 checkpoints were" in watched.lines[-1]


def test_a_damaged_one_counts_once_it_is_written_anew(training, watch):
    def save_anew():
        path = training.save(10, 1.0)
        os.utime(f"{path}.index", ns=(2 * 10**18, 2 * 10**18))

    training.save(10, 2.0)
    training.damage(10)
    assert watch(save_anew, lambda: training.end(0)).steps == [10]
