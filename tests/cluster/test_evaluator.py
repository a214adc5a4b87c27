"""Evaluators: beside training, before it, and when they say that it should stop."""

import json
import re
import signal

import pytest

STUCK = """
import dtrain, keras
from dtrain.data import digits

@dtrain.defaults(train_steps=100000, batch_size=32)
def experiment(config):
    return dtrain.Experiment(
        model=lambda: keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)]),
        optimizer=lambda: keras.optimizers.SGD(1e-12),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=lambda: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        train_data=lambda ctx: digits.train_batches(
            ctx, batch_size=config.batch_size, seed=config.seed),
        eval_data=lambda ctx: digits.eval_batches(ctx, batch_size=config.batch_size),
    )
"""


def test_an_evaluator_stops_training_that_gets_no_better(lab):
    (lab.folder / "stuck.py").write_text(STUCK)
    result = lab.folder / "result.json"
    command = lab.dtrain(
        "--experiment=stuck:experiment",
        "--evaluator",
        "--best_metric=accuracy",
        "--early_stop_patience=2",
        "--checkpoint_every=100",
        f"--result_file={result}",
    )
    assert command.wait() == 0
    assert "1 chief, 2 workers, 1 ps, 1 evaluator" in command.output
    stopped = json.loads(result.read_text())["stopped"]
    assert "accuracy has not become better in 2 evaluations" in stopped
    assert f"stopped: {stopped}" in command.output
    assert "evaluator: best accuracy" in command.output
    best = json.loads((lab.model_dir / "best" / "best.json").read_text())
    assert best["global_step"] == 100
    evaluator = lab.tasks()["evaluator:0"]
    assert (evaluator["state"], evaluator["exit_status"]) == ("exited", 0)
    seen = lab.events(lab.model_dir / "evaluator")["eval/accuracy"]
    assert len(seen) >= 3
    assert len(set(seen.values())) == 1


def test_an_evaluator_may_come_first_and_evaluates_each_checkpoint_once(lab):
    """One process trains, another one evaluates, and whoever is late is no error."""
    lab.model_dir.mkdir()
    watch = ("--job_name=evaluator", "--best_metric=loss")
    evaluator = lab.dtrain(*watch, name="evaluator")
    evaluator.wait_for("Waiting for a run in")
    second = lab.dtrain(*watch, name="second")
    assert second.wait() == 2
    assert f"in use by process {evaluator.process.pid}" in second.output
    train = lab.dtrain(
        "--strategy=local",
        "--train_steps=6000",
        "--checkpoint_every=10",
        "--keep_checkpoints=1",
        name="train",
    )
    assert train.wait() == 0
    assert evaluator.wait() == 0
    seen = lab.events(lab.model_dir / "evaluator")["eval/loss"]
    assert list(seen)[-1] == 6000
    assert 2 <= len(seen) < 600  # most were gone before their turn
    done = json.loads((lab.model_dir / "evaluator" / "evaluated.json").read_text())
    assert [int(step) for step in done] == list(seen)
    shown = [int(step) for step in re.findall(r"ckpt-(\d+): loss", evaluator.output)]
    assert shown == list(seen)
    best = json.loads((lab.model_dir / "best" / "best.json").read_text())
    assert best["value"] == pytest.approx(min(seen.values()))


def test_ctrl_c_ends_an_evaluator_with_the_rest(lab):
    command = lab.dtrain(
        "--train_steps=1000000", "--evaluator", "--checkpoint_every=50"
    )
    command.wait_for(r"^step \d+")
    lab.kill(command.process.pid, signal.SIGINT)
    assert command.wait() == 130
    lab.check_nothing_left()


def test_an_evaluator_that_fails_is_named_and_ends_the_run_in_the_end(lab):
    """Training goes on without it; but not as if nothing had happened."""
    own = "eval_data=lambda ctx: "
    broken = """
import os

def check():
    if '"type": "evaluator"' in os.environ.get("TF_CONFIG", ""):
        raise ValueError("no file for evaluators")
"""
    text = STUCK.replace(own, f"{own}check() or ") + broken
    (lab.folder / "stuck.py").write_text(text)
    command = lab.dtrain(
        "--experiment=stuck:experiment", "--evaluator", "--train_steps=6000"
    )
    assert command.wait() == 4
    assert "evaluator:0 (pid" in command.output
    assert "no file for evaluators" in command.output
    assert "Training goes on without it." in command.output
    assert "Done: global step 6000" in command.output
