"""What a model directory tells of its run to those who come later."""

import io
import json
import types

import pytest

from dtrain import errors
from dtrain.config import FOR_EXPERIMENTS, RunConfig
from dtrain.console import Console
from dtrain.launch import record


@pytest.fixture
def trained(tmp_path):
    """A run with an option of every kind."""
    config = RunConfig(
        strategy="local",
        experiment="mine:f",
        model_dir=str(tmp_path),
        data_dir="/data",
        train_steps=70,
        batch_size=16,
        learning_rate=0.5,
        seed=3,
        eval_every=10,
        keep_checkpoints=2,
    )
    record.begin(str(tmp_path), config)
    return config


def test_where_nothing_was_trained_there_is_no_status(tmp_path):
    assert record.status(str(tmp_path)) is None
    record.end(str(tmp_path), 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("status", [0, 4, 143])
def test_a_run_has_a_status_once_it_has_ended(status, trained, tmp_path):
    assert record.status(str(tmp_path)) is None
    record.end(str(tmp_path), status)
    assert record.status(str(tmp_path)) == status


@pytest.mark.parametrize("first", [0, 3])
def test_the_first_status_counts(first, trained, tmp_path):
    record.end(str(tmp_path), first)
    record.end(str(tmp_path), 137)
    assert record.status(str(tmp_path)) == first


def test_a_new_run_has_no_status_again(trained, tmp_path):
    record.end(str(tmp_path), 4)
    record.begin(str(tmp_path), trained)
    assert record.status(str(tmp_path)) is None


def test_a_run_that_is_opened_anew_is_known_still(trained, tmp_path):
    record.end(str(tmp_path), 4)
    record.open_anew(str(tmp_path))
    assert record.status(str(tmp_path)) is None
    completed = record.complete(RunConfig(mode="eval", model_dir=str(tmp_path)))
    assert completed.experiment == "mine:f"
    record.end(str(tmp_path), 2)
    assert record.status(str(tmp_path)) == 2


def test_a_run_that_has_not_begun_has_a_status_but_nothing_to_evaluate(tmp_path):
    record.open_anew(str(tmp_path))
    assert record.status(str(tmp_path)) is None
    record.end(str(tmp_path), 2)
    assert record.status(str(tmp_path)) == 2
    with pytest.raises(errors.UsageError):
        record.complete(RunConfig(mode="eval", model_dir=str(tmp_path)))


def test_all_options_are_noted_and_stay_to_the_end(trained, tmp_path):
    record.end(str(tmp_path), 0)
    (path,) = tmp_path.iterdir()  # nothing half-written is left
    assert path.name == "run.json"
    content = json.loads(path.read_text())
    assert RunConfig(**content["config"]) == trained
    assert content["status"] == 0


def test_a_record_is_there_whole_or_not_at_all(trained, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(json, "dump", fail)
        record.end(str(tmp_path), 0)
    assert record.status(str(tmp_path)) is None
    assert record.complete(RunConfig(model_dir=str(tmp_path))).batch_size == 16


# Who evaluates or exports.


def test_who_comes_before_the_run_waits_for_it(tmp_path, monkeypatch):
    sleeps = []

    def sleep(seconds):
        sleeps.append(seconds)
        if len(sleeps) == 1:  # it may be refused yet
            record.open_anew(str(tmp_path))
        if len(sleeps) == 3:
            record.begin(str(tmp_path), RunConfig())

    monkeypatch.setattr(record, "time", types.SimpleNamespace(sleep=sleep))
    terminal = io.StringIO()
    record.wait_for(str(tmp_path), Console(terminal))
    assert len(sleeps) == 3
    assert terminal.getvalue() == f"Waiting for a run in {tmp_path}.\n"


def test_who_comes_later_does_not_wait(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(record, "time", None)
    terminal = io.StringIO()
    record.wait_for(str(tmp_path), Console(terminal))
    record.end(str(tmp_path), 4)
    record.wait_for(str(tmp_path), Console(terminal))
    assert terminal.getvalue() == ""


def test_what_made_the_model_is_taken_over(trained, tmp_path):
    config = RunConfig(mode="eval", model_dir=str(tmp_path))
    completed = record.complete(config)
    for name in FOR_EXPERIMENTS:
        assert getattr(completed, name) == getattr(trained, name), name
    # The rest is the command's own.
    assert completed.mode == "eval"
    assert completed.eval_every == 0
    assert completed.keep_checkpoints == RunConfig.keep_checkpoints


def test_what_is_given_wins(trained, tmp_path):
    config = RunConfig(
        mode="eval",
        model_dir=str(tmp_path),
        experiment="other:g",
        data_dir="/elsewhere",
        batch_size=8,
    )
    completed = record.complete(config)
    assert completed.experiment == "other:g"
    assert completed.data_dir == "/elsewhere"
    assert completed.batch_size == 8
    assert completed.seed == 3


def test_the_folder_of_the_best_belongs_to_its_run(trained, tmp_path):
    folder = tmp_path / "best"
    folder.mkdir()
    completed = record.complete(RunConfig(mode="eval", model_dir=str(folder)))
    assert completed.experiment == "mine:f"
    assert completed.model_dir == str(folder)


def test_another_folder_of_a_run_does_not(trained, tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    with pytest.raises(errors.UsageError):
        record.complete(RunConfig(mode="eval", model_dir=str(folder)))


def test_without_a_run_the_experiment_has_to_be_given(tmp_path):
    config = RunConfig(mode="eval", model_dir=str(tmp_path))
    with pytest.raises(errors.UsageError) as caught:
        record.complete(config)
    message = str(caught.value)
    assert message.startswith(f"--model_dir={tmp_path} has no run.json")
    assert "--experiment" in message
    config = config.replace(experiment="mine:f")
    assert record.complete(config) == config
