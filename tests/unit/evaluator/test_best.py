"""An evaluator beside a training: the best is kept, and training stopped in time."""

import json

import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.session import checkpoints

# The best.


def best(folder):
    return json.loads((folder / "best" / "best.json").read_text())


def test_the_best_is_kept_and_told(training, watch, tmp_path):
    watched = watch(
        lambda: (training.save(10, 2.0), training.save(20, 0.5)),
        lambda: (training.save(30, 1.0), training.end(0)),
        best_metric="mae",
    )
    assert (best(tmp_path)["global_step"], best(tmp_path)["value"]) == (20, 0.5)
    path = tmp_path / "best" / "ckpt-20"
    assert checkpoints.find(str(tmp_path / "best")) == [str(path)]
    told = f"best mae 0.5000 at step 20: {path}"
    assert told in watched.lines
    assert f"The {told}" == watched.lines[-2]
    assert not (tmp_path / "stop.json").exists()


def test_the_next_evaluator_knows_the_best(training, watch, stopped, tmp_path):
    training.save(10, 0.5)
    signals, stop = stopped()
    with pytest.raises(errors.Interrupted):
        watch(stop, signals=signals, best_metric="loss")
    training.save(20, 1.0)
    watch(lambda: training.end(0), best_metric="loss")
    assert best(tmp_path)["global_step"] == 10
    assert "since" not in best(tmp_path)  # each command counts for itself


def test_without_a_metric_no_best_is_kept(training, watch, tmp_path):
    training.save(10, 0.5)
    watch(lambda: training.end(0))
    assert not (tmp_path / "best").exists()


def test_a_metric_that_is_not_measured_is_refused_at_once(training, watch):
    with pytest.raises(errors.UsageError, match="There are: loss, mae"):
        watch(best_metric="accuracy")


@pytest.mark.parametrize("has_links", [True, False])
def test_the_best_is_kept_though_training_deletes_it_during_its_evaluation(
    training, watch, during_evaluation, tmp_path, monkeypatch, has_links
):
    def refuse(*args):
        raise PermissionError("no links here")

    if not has_links:
        monkeypatch.setattr("os.link", refuse)
    training.save(10, 1.0)
    training.save(20, 0.5)
    during_evaluation(
        lambda: training.delete(20) if (tmp_path / "best").exists() else None
    )
    watched = watch(lambda: training.end(0), best_metric="loss")
    assert watched.steps == [10, 20]
    assert best(tmp_path)["global_step"] == 20
    kept = str(tmp_path / "best" / "ckpt-20")
    assert checkpoints.find(str(tmp_path / "best")) == [kept]
    reader = tf.train.load_checkpoint(kept)
    names = [n for n in reader.get_variable_to_shape_map() if n.startswith("weights/")]
    assert [reader.get_tensor(name).tolist() for name in names] == [[[0.5]]]
    assert not (tmp_path / "evaluator" / "held").exists()


# Early stopping.


def test_training_is_asked_to_stop_when_none_is_better(training, watch, tmp_path):
    def look(is_there):
        return lambda: asked.append((tmp_path / "stop.json").exists() is is_there)

    asked = []
    training.save(10, 1.0)
    watched = watch(
        lambda: (training.save(20, 2.0), look(False)()),
        lambda: (look(False)(), training.save(30, 2.0)),
        lambda: (look(True)(), training.save(40, 2.0)),
        lambda: training.end(0),
        early_stop_patience=2,
    )
    assert asked == [True, True, True]
    reason = json.loads((tmp_path / "stop.json").read_text())["reason"]
    assert reason == (
        "loss has not become better in 2 evaluations (--early_stop_patience=2)"
    )
    told = [line for line in watched.lines if line.startswith("Training should")]
    assert told == [f"Training should stop: {reason}."]


def test_a_run_that_has_ended_is_not_asked_to_stop(training, watch, tmp_path):
    for step in (10, 20, 30):
        training.save(step, 1.0)
    training.end(0)
    watched = watch(early_stop_patience=1)
    assert watched.steps == [10, 20, 30]
    assert not (tmp_path / "stop.json").exists()
