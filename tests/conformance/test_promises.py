"""What every strategy promises, read from one run of each."""

import re

import pytest
import tensorflow as tf


def test_ends_at_exactly_its_last_step(digits_run):
    assert digits_run.result["global_step"] == 700
    reader = tf.train.load_checkpoint(digits_run.result["checkpoint"])
    names = reader.get_variable_to_shape_map()
    for part in ("global_step/", "optimizer/_iterations/"):
        (name,) = [n for n in names if n.startswith(part)]
        assert reader.get_tensor(name) == 700


def test_learns_the_digits(digits_run):
    assert digits_run.result["eval"]["accuracy"] >= 0.95


def test_evaluation_counts_every_example_once(digits_run):
    """Batches of 32 do not divide 360, nor do the replicas."""
    assert digits_run.result["eval"]["examples"] == 360


def test_all_processes_exit_0(digits_run):
    if digits_run.pids:
        tasks = digits_run.lab.tasks().values()
        assert {(t["state"], t["exit_status"]) for t in tasks} == {("exited", 0)}
    assert "Traceback" not in digits_run.command.output
    logs = digits_run.lab.logs()
    assert not re.search("[Cc]onnection reset|Socket closed|UNAVAILABLE", logs)


def test_the_result_is_right(digits_run, strategy):
    result = digits_run.result
    per_step = 32 * strategy.global_batch
    assert {
        "strategy": strategy.name,
        "experiment": "digits_mlp",
        "cluster": strategy.cluster,
        "train_steps": 700,
        "batch_size": 32,
        "replicas": strategy.replicas,
        "accumulate_steps": 1,
        "examples_seen": 700 * per_step,
        "restarts": 0,
        "repeated_steps": 0,
        "checkpoint": f"{digits_run.lab.model_dir}/ckpt-700",
    }.items() <= result.items()
    rate = result["steps_per_second"]
    assert rate > 0
    assert result["examples_per_second"] == pytest.approx(rate * per_step)
    assert 0 < result["train_seconds"] <= 700 / rate
    assert result["eval"].keys() == {"loss", "accuracy", "examples"}
    assert result["versions"].keys() == {"dtrain", "tensorflow", "keras"}


def test_the_terminal_shows_how_it_goes(digits_run, strategy):
    output = digits_run.command.output
    assert f"700 steps, {32 * strategy.global_batch} examples each" in output
    assert re.search(r"^step 700/700  loss \d", output, re.M)
    assert output.count("Evaluation at step") == 2
    assert "Evaluation at step 500:" in output
    assert not re.search(r"^[IWE]\d{4} |oneDNN|cuda", output, re.M)


def test_kept_checkpoints_and_event_files_come_from_one_task(digits_run, strategy):
    folder = digits_run.lab.model_dir
    saved = {path.name for path in folder.rglob("ckpt-*.index")}
    assert saved == {"ckpt-600.index", "ckpt-700.index"}
    events = list(folder.rglob("events.*"))
    assert {path.parent.name for path in events} == {"train", "eval"}
    pid = digits_run.pids.get(strategy.chief, digits_run.command.process.pid)
    assert all(f".{pid}." in path.name for path in events)
    train = digits_run.lab.events(folder / "train")
    expected = {"train/loss", "train/accuracy", "learning_rate"}
    expected |= {f"speed/{unit}_per_second" for unit in ("steps", "examples")}
    workers = strategy.cluster.get("worker", 0)
    expected |= {f"speed/input_wait/{i}" for i in range(max(workers, 1))}
    for what in ("steps", "share"):
        expected |= {f"workers/{i}/{what}" for i in range(workers)}
    assert train.keys() == expected
    evaluations = digits_run.lab.events(folder / "eval")
    assert {tag: list(found) for tag, found in evaluations.items()} == {
        "eval/loss": [500, 700],
        "eval/accuracy": [500, 700],
    }


# Further runs.


def test_resumes_from_its_checkpoint_at_the_right_step(digits_run, strategy, run_again):
    command, result = run_again("--train_steps=760", "--log_every=20", name="resumed")
    folder = digits_run.lab.model_dir
    assert f"Resumed from {folder}/ckpt-700, global step 700." in command.output
    assert result["global_step"] == 760
    assert result["examples_seen"] == 60 * 32 * strategy.global_batch
    assert result["checkpoint"] == f"{folder}/ckpt-760"
    # It goes on from what was learnt: the first loss is that of a trained model.
    assert float(re.search(r"^step 760/760  loss (\S+)", command.output, re.M)[1]) < 0.5
