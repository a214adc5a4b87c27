"""Anybody's Keras models, under every strategy, and from one strategy to another."""

import re
import signal

import pytest

# One of them adds up micro-batches, which every strategy that updates can.
MODELS = [
    ("arrays", ()),
    ("generator", ()),
    ("two_outputs", ()),
    ("strings", ()),
    ("functional_model", ()),
    ("subclassed_model", ()),
    ("model_with_losses", ("--accumulate_steps=3", "--batch_size=10")),
]


def weights(command, when):
    """Returns the step and the digest of the weights that the callback told."""
    found = re.findall(rf"^WEIGHTS {when} (\d+) (\w+)$", command.output, re.M)
    assert len(found) == 1  # one task has callbacks
    return int(found[0][0]), found[0][1]


@pytest.mark.parametrize(("model", "flags"), MODELS, ids=[m for m, _ in MODELS])
def test_a_keras_model_runs_unchanged(model, flags, strategy, run, first_weights):
    own = f"--experiment=my_models:{model}", "--seed=3"
    command, result = run(strategy, *own, *flags)
    assert result["global_step"] == 150
    examples = result["batch_size"] * result["accumulate_steps"]
    assert examples == (30 if flags else 32)
    assert result["examples_seen"] == 150 * examples * strategy.global_batch
    (accuracy,) = (v for k, v in result["eval"].items() if k.endswith("accuracy"))
    assert accuracy >= 0.8
    assert result["eval"]["examples"] == 360
    # The same seed gives the same initial weights under every strategy.
    step, digest = weights(command, "start")
    assert step == 0
    assert first_weights.setdefault(model, digest) == digest


@pytest.fixture(scope="session")
def first_weights():
    """The digest of each model's initial weights, once it has been seen."""
    return {}


def test_sigterm_saves_and_leaves(strategy, lab, run):
    command = lab.dtrain(
        f"--strategy={strategy.name}",
        *strategy.flags,
        "--train_steps=1000000",
        "--checkpoint_every=0",
    )
    command.wait_for("^step ")
    command.process.send_signal(signal.SIGTERM)
    assert command.wait(30) == 143
    (saved,) = (int(p.stem.split("-")[1]) for p in lab.model_dir.glob("ckpt-*.index"))
    assert f"Saved {lab.model_dir}/ckpt-{saved} before stopping." in command.output
    assert "Traceback" not in command.output
    if (lab.model_dir / "tasks.json").exists():
        assert {t["exit_status"] for t in lab.tasks().values()} == {143}


# Each command trains 20 steps further what the one before it has left.
CHAIN = [
    ("ps", ("--num_ps=2", "--num_workers=1")),
    ("local", ()),
    ("sync", ("--num_workers=2",)),
    ("ps", ("--num_ps=1", "--num_workers=2")),
    ("mirrored", ("--devices_per_task=2",)),
    ("sync", ("--num_workers=1",)),
    ("local", ()),
]


def test_any_strategy_goes_on_from_any_others_checkpoint(lab, strategies, run):
    """With what Adam knows, and batch norm's averages."""
    before = None
    for index, (name, flags) in enumerate(CHAIN):
        steps = 20 * (index + 1)
        command, result = run(
            strategies[name],
            "--experiment=my_models:subclassed_model",
            f"--train_steps={steps}",
            name=f"run-{index}",
            own_flags=flags,
        )
        assert result["global_step"] == steps
        if before is not None:
            assert f"Resumed from {lab.model_dir}/ckpt-{steps - 20}" in command.output
            assert weights(command, "start") == before
        before = weights(command, "end")
        assert before[0] == steps
        lab.check_nothing_left()
    assert result["eval"]["accuracy"] >= 0.8


def test_seven_replicas_evaluate_every_example_once(strategies, run):
    _, result = run(
        strategies["mirrored"], "--train_steps=20", own_flags=("--devices_per_task=7",)
    )
    assert result["replicas"] == 7
    assert result["examples_seen"] == 20 * 7 * 32
    assert result["eval"]["examples"] == 360
