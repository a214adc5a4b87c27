"""The main job: one command, a whole local cluster, and what it leaves behind."""

import re

import pytest

RESULT_KEYS = {
    "strategy",
    "experiment",
    "cluster",
    "global_step",
    "train_steps",
    "batch_size",
    "replicas",
    "accumulate_steps",
    "examples_seen",
    "train_seconds",
    "steps_per_second",
    "examples_per_second",
    "restarts",
    "repeated_steps",
    "eval",
    "checkpoint",
    "versions",
}


def test_one_command_trains_a_cluster_and_a_second_one_resumes(lab):
    # Cluster traffic must not go through a proxy: here one that nobody serves.
    dead = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    result_flag = f"--result_file={lab.folder}/result.json"
    run = lab.dtrain(result_flag, "--eval_every=1000", env=dead)
    run.wait_for(r"^step ")
    pids = {task: entry["pid"] for task, entry in lab.tasks().items()}
    assert {entry["state"] for entry in lab.tasks().values()} == {"running"}
    assert run.wait() == 0

    result = lab.result()
    assert result.keys() >= RESULT_KEYS
    assert result["global_step"] == result["train_steps"] == 2000
    assert result["repeated_steps"] == result["restarts"] == 0
    assert result["cluster"] == {"chief": 1, "worker": 2, "ps": 1}
    assert (result["strategy"], result["experiment"]) == ("ps", "digits_mlp")
    assert (result["batch_size"], result["replicas"]) == (32, 2)
    assert result["examples_seen"] == 64000
    assert result["steps_per_second"] * 32 == pytest.approx(
        result["examples_per_second"]
    )
    assert result["eval"]["accuracy"] >= 0.95
    assert result["eval"]["examples"] == 360
    assert result["checkpoint"] == f"{lab.model_dir}/ckpt-2000"

    # The terminal: which ps holds what, progress, both evaluations, no TF chatter.
    assert re.search(r"ps:0 holds \d+ variables, 3\d\.\d KiB", run.output)
    assert re.search(r"^step \d+/2000  loss .*steps/s  0:0\d left", run.output, re.M)
    assert run.output.count("Evaluation at step") == 2
    assert not re.search(r"^[IWE]\d{4} |oneDNN|cuda", run.output, re.M)

    # The files.
    tasks = lab.tasks()
    assert {t["state"] for t in tasks.values()} == {"exited"}
    assert {t["exit_status"] for t in tasks.values()} == {0}
    for task, entry in tasks.items():
        assert entry["pid"] == pids[task]
        assert entry["log"] == f"{lab.model_dir}/logs/{task.replace(':', '-')}.log"
        assert re.search(r"\S", open(entry["log"]).read())
    saved = {path.name for path in lab.model_dir.glob("ckpt-*.index")}
    assert saved == {"ckpt-1000.index", "ckpt-2000.index"}
    # Event files come from the chief alone: their names hold the writer's pid.
    events = list(lab.model_dir.rglob("events.*"))
    assert {path.parent.name for path in events} == {"train", "eval"}
    assert all(f".{pids['chief:0']}." in path.name for path in events)
    train = lab.events(lab.model_dir / "train")
    assert train.keys() == {
        "train/loss",
        "train/accuracy",
        "learning_rate",
        "speed/steps_per_second",
        "speed/examples_per_second",
        "speed/input_wait/0",
        "speed/input_wait/1",
        "workers/0/steps",
        "workers/1/steps",
        "workers/0/share",
        "workers/1/share",
    }
    assert len(train["train/loss"]) > 10
    assert lab.events(lab.model_dir / "eval").keys() == {"eval/loss", "eval/accuracy"}
    lab.check_nothing_left()

    # Nothing is left to do: the same command evaluates and ends. One process is
    # enough, because a checkpoint does not depend on the strategy that made it.
    again = lab.dtrain(result_flag, "--strategy=local", name="again")
    assert again.wait(30) == 0
    assert f"Resumed from {lab.model_dir}/ckpt-2000" in again.output
    repeated = lab.result()
    assert repeated["eval"] == pytest.approx(result["eval"], rel=1e-5)
    assert (repeated["examples_seen"], repeated["train_seconds"]) == (0, 0)
    assert repeated["steps_per_second"] is repeated["examples_per_second"] is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mnist_mlp_reaches_its_accuracy_in_exactly_5000_steps(dtype, lab):
    run = lab.dtrain(
        "--experiment=mnist_mlp",
        f"--gradient_dtype={dtype}",
        "--num_workers=2",
        "--num_ps=1",
        "--batch_size=100",
        "--train_steps=5000",
        f"--result_file={lab.folder}/result.json",
    )
    assert run.wait() == 0
    is_rounded = "weights and gradients travel as bfloat16" in run.output
    assert is_rounded == (dtype == "bfloat16")
    result = lab.result()
    assert result["global_step"] == 5000
    assert result["eval"]["examples"] == 10000
    assert result["eval"]["accuracy"] >= 0.86
