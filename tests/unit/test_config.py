"""RunConfig: its defaults, what it refuses, and its way back to flags."""

import dataclasses
import os
import pathlib

import pytest

from dtrain import errors
from dtrain.config import SCHEDULES, RunConfig

STRATEGIES = "local, mirrored, ps, sync"


def message_of(**options):
    with pytest.raises(errors.UsageError) as caught:
        RunConfig(**options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strategy", "ps"),
        ("experiment", "digits_mlp"),
        ("model_dir", None),
        ("train_steps", None),
        ("batch_size", None),
        ("optimizer", None),
        ("learning_rate", None),
        ("seed", 0),
        ("steps_per_loop", None),
        ("eval_every", 0),
        ("checkpoint_every", 1000),
        ("checkpoint_secs", 600),
        ("keep_checkpoints", 5),
        ("summary_every", 100),
        ("log_every", 100),
        ("result_file", None),
        ("num_workers", 2),
        ("num_ps", 1),
        ("accumulate_steps", 1),
        ("gradient_dtype", "float32"),
        ("devices_per_task", None),
        ("cluster", "auto"),
        ("startup_timeout", 300),
    ],
)
def test_defaults_that_scripts_rely_on(name, value):
    assert getattr(RunConfig(), name) == value


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"strategy": "pss"}, ["--strategy=pss", STRATEGIES, "Did you mean ps?"]),
        ({"strategy": "PS"}, ["--strategy=PS", STRATEGIES]),
        ({"strategy": "synch"}, ["--strategy=synch", "Did you mean sync?"]),
        ({"cluster": "flag"}, ["--cluster=flag", "Did you mean flags?"]),
        ({"train_steps": 0}, ["--train_steps=0", "too small", "Give 1 or more"]),
        ({"train_steps": -5}, ["--train_steps=-5", "too small"]),
        ({"train_steps": 1.5}, ["--train_steps=1.5", "not a whole number"]),
        ({"train_steps": "10"}, ["--train_steps='10'", "not a whole number"]),
        ({"batch_size": 0}, ["--batch_size=0", "Give 1 or more"]),
        ({"seed": -1}, ["--seed=-1", "Give 0 or more"]),
        ({"steps_per_loop": 0}, ["--steps_per_loop=0"]),
        ({"eval_every": -1}, ["--eval_every=-1"]),
        ({"checkpoint_every": -1}, ["--checkpoint_every=-1"]),
        ({"checkpoint_secs": -0.5}, ["--checkpoint_secs=-0.5"]),
        ({"keep_checkpoints": 0}, ["--keep_checkpoints=0", "Give 1 or more"]),
        ({"summary_every": -1}, ["--summary_every=-1"]),
        ({"log_every": -1}, ["--log_every=-1"]),
        ({"num_workers": 0}, ["--num_workers=0"]),
        ({"num_ps": 0}, ["--num_ps=0"]),
        ({"epochs": 0}, ["--epochs=0", "Give 1 or more"]),
        ({"epochs": 1.5}, ["--epochs=1.5", "not a whole number"]),
        ({"data_sharding": "of"}, ["--data_sharding=of", "static, dynamic, off"]),
        ({"accumulate_steps": 0}, ["--accumulate_steps=0", "Give 1 or more"]),
        ({"accumulate_steps": 1.5}, ["--accumulate_steps=1.5", "not a whole number"]),
        ({"devices_per_task": 0}, ["--devices_per_task=0", "Give 1 or more"]),
        (
            {"strategy": "sync", "gradient_dtype": "float16"},
            ["--gradient_dtype=float16", "float32, bfloat16", "Did you mean"],
        ),
        ({"startup_timeout": 0}, ["--startup_timeout=0"]),
        ({"learning_rate": 0.0}, ["--learning_rate=0.0", "above 0"]),
        ({"learning_rate": -0.1}, ["--learning_rate=-0.1"]),
        ({"learning_rate": float("nan")}, ["--learning_rate=nan"]),
    ],
)
def test_refuses_with_what_was_given_and_what_to_give(options, parts):
    message = message_of(**options)
    assert not [part for part in parts if part not in message], message
    assert "\n" not in message


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 2**32},  # NumPy and Keras take seeds of 32 bits
        {"startup_timeout": float("nan")},
        {"checkpoint_secs": float("nan")},
        {"learning_rate": "0.1"},
        {"checkpoint_secs": "60"},
    ],
    ids=str,
)
def test_refuses_what_would_only_fail_later(options):
    (name,) = options
    assert f"--{name}=" in message_of(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"train_steps": 1, "batch_size": 1, "steps_per_loop": 1},
        {"eval_every": 0, "checkpoint_every": 0, "checkpoint_secs": 0},
        {"summary_every": 0, "log_every": 0, "keep_checkpoints": 1},
        {"seed": 2**32 - 1},
        {"learning_rate": 1e-12},
        {"checkpoint_secs": 0.5, "startup_timeout": 1},
    ],
)
def test_accepts_the_least(options):
    config = RunConfig(**options)
    assert {name: getattr(config, name) for name in options} == options


@pytest.mark.parametrize(
    ("strategy", "options", "way"),
    [
        ("local", {"gradient_dtype": "bfloat16"}, "or use --strategy=ps or sync"),
        ("local", {"devices_per_task": 2}, "or use --strategy=mirrored"),
        ("ps", {"devices_per_task": 2}, "or use --strategy=mirrored"),
    ],
    ids=str,
)
def test_one_device_has_no_use_for_what_replicas_need(strategy, options, way):
    message = message_of(strategy=strategy, **options)
    parts = [*RunConfig(strategy="sync", **options).to_flags()[1:], "Leave it out", way]
    assert not [part for part in parts if part not in message], message
    assert f"--strategy={strategy}" in message
    assert "\n" not in message


@pytest.mark.parametrize("strategy", STRATEGIES.split(", "))
def test_every_strategy_accumulates_and_takes_one_device(strategy):
    config = RunConfig(strategy=strategy, accumulate_steps=4, devices_per_task=1)
    assert config.gradient_dtype == "float32"


@pytest.mark.parametrize("strategy", ["mirrored", "sync"])
def test_replicas_take_what_they_need(strategy):
    config = RunConfig(strategy=strategy, gradient_dtype="bfloat16", devices_per_task=3)
    assert config.devices_per_task == 3


@pytest.mark.parametrize("strategy", ["mirrored", "sync"])
def test_who_waits_for_the_slowest_has_no_use_for_dealing_out(strategy):
    message = message_of(strategy=strategy, data_sharding="dynamic")
    assert "--data_sharding=dynamic" in message
    assert f"--strategy={strategy}" in message
    assert RunConfig(strategy="ps", data_sharding="dynamic").data_sharding == "dynamic"


def test_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().seed = 1


def test_replace_checks_again():
    config = RunConfig(seed=3)
    assert config.replace(num_ps=2) == RunConfig(seed=3, num_ps=2)
    with pytest.raises(errors.UsageError, match="--num_ps=0"):
        config.replace(num_ps=0)


def test_an_experiments_defaults_fill_only_what_is_not_given():
    own = {"train_steps": 50, "batch_size": 8}
    given = RunConfig(train_steps=7, seed=3)
    assert given.with_defaults(own) == RunConfig(train_steps=7, batch_size=8, seed=3)
    assert given.with_defaults({}) == given


def test_an_experiments_defaults_are_checked_too():
    with pytest.raises(errors.UsageError, match="--batch_size=0"):
        RunConfig().with_defaults({"batch_size": 0})


def test_flags_are_only_those_that_differ_from_the_defaults():
    assert RunConfig().to_flags() == []
    config = RunConfig(strategy="local", learning_rate=0.5, ps_hosts="a:1,b:2")
    assert config.to_flags() == [
        "--strategy=local",
        "--learning_rate=0.5",
        "--ps_hosts=a:1,b:2",
    ]


# Types.


@pytest.mark.parametrize("name", ["model_dir", "data_dir", "experiment", "export_dir"])
def test_a_path_stands_for_its_text(name):
    config = RunConfig(**{name: pathlib.Path("a") / "b"})
    assert getattr(config, name) == os.path.join("a", "b")
    assert config == RunConfig(**{name: os.path.join("a", "b")})


@pytest.mark.parametrize("value", ["", b"x", 3, True, ["a"]], ids=repr)
@pytest.mark.parametrize("name", ["model_dir", "ps_hosts", "strategy", "best_metric"])
def test_what_is_no_text_is_refused(name, value):
    assert message_of(**{name: value}).startswith(f"--{name}={value!r} is no text")


@pytest.mark.parametrize("value", [None, 1, 0, "true", ""], ids=repr)
@pytest.mark.parametrize("name", ["evaluator", "log_workers"])
def test_what_is_neither_true_nor_false_is_refused(name, value):
    message = message_of(**{name: value})
    assert message.startswith(f"--{name}={value!r} is neither true nor false")


# Learning rates.

DECAYS = {
    "decay_steps": (10, ["cosine", "exponential"]),
    "decay_rate": (0.5, ["exponential", "piecewise"]),
    "decay_boundaries": ("5,10", ["piecewise"]),
}


@pytest.mark.parametrize("schedule", [None, *SCHEDULES])
@pytest.mark.parametrize("name", DECAYS)
def test_a_flag_that_its_schedule_does_not_know_is_refused(name, schedule):
    value, schedules = DECAYS[name]
    options = {name: value, "learning_rate_schedule": schedule}
    if schedule in schedules:
        if schedule == "piecewise":
            options["decay_boundaries"] = "5,10"
        assert getattr(RunConfig(**options), name) == value
        return
    message = message_of(**options)
    needed = f"--{name}={value} needs --learning_rate_schedule={' or '.join(schedules)}"
    assert message.startswith(needed)
    assert f"leave --{name} out" in message


@pytest.mark.parametrize("schedule", SCHEDULES[:3])
def test_a_decay_rate_that_is_the_default_needs_no_schedule(schedule):
    rate = RunConfig.decay_rate
    config = RunConfig(learning_rate_schedule=schedule, decay_rate=rate)
    assert config.decay_rate == rate


@pytest.mark.parametrize(
    ("boundaries", "part"),
    [
        ("10,5", "does not ascend"),
        ("5,5", "does not ascend"),
        ("5,", "no list of steps"),
        ("5,x", "no list of steps"),
        ("-5", "no list of steps"),
        ("1.5", "no list of steps"),
    ],
)
def test_boundaries_that_are_no_steps_in_order_are_refused(boundaries, part):
    message = message_of(
        learning_rate_schedule="piecewise", decay_boundaries=boundaries
    )
    assert f"--decay_boundaries={boundaries}" in message
    assert part in message


def test_pieces_need_boundaries():
    message = message_of(learning_rate_schedule="piecewise")
    assert "needs --decay_boundaries=" in message


def test_boundaries_are_steps():
    config = RunConfig(learning_rate_schedule="piecewise", decay_boundaries="5, 10,20")
    assert config.boundaries() == [5, 10, 20]
    assert RunConfig().boundaries() == []
