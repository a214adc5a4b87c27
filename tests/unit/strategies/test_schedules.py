"""Learning rates by global step, as flags describe them."""

import keras
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.config import RunConfig
from dtrain.strategies import schedules

OWN = keras.optimizers.schedules.PolynomialDecay(0.5, 100, 0.0)


def make(own=0.5, name=None, **options):
    options = {"train_steps": 100, "strategy": "local", **options}
    config = RunConfig(learning_rate_schedule=name, **options)
    return schedules.make(config, own)


def rates(schedule, *steps):
    return [round(float(schedule(tf.constant(s, tf.int64))), 6) for s in steps]


def message_of(*args, **options):
    with pytest.raises(errors.UsageError) as caught:
        make(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "steps", "expected"),
    [
        (None, {}, [0, 50, 1000], [0.5, 0.5, 0.5]),
        ("constant", {}, [0, 50, 1000], [0.5, 0.5, 0.5]),
        ("cosine", {}, [0, 50, 100, 1000], [0.5, 0.25, 0, 0]),
        ("cosine", {"decay_steps": 20}, [0, 10, 20], [0.5, 0.25, 0]),
        (
            "exponential",
            {"decay_rate": 0.25},
            [0, 50, 100, 200],
            [0.5, 0.25, 0.125, 0.03125],
        ),
        ("exponential", {"decay_steps": 10}, [0, 10, 20], [0.5, 0.05, 0.005]),
        (
            "piecewise",
            {"decay_boundaries": "10,20", "decay_rate": 0.5},
            [0, 10, 11, 20, 21, 1000],
            [0.5, 0.5, 0.25, 0.25, 0.125, 0.125],
        ),
        ("piecewise", {"decay_boundaries": "0"}, [0, 1], [0.5, 0.05]),
    ],
    ids=[
        "none",
        "constant",
        "cosine",
        "shorter cosine",
        "exponential",
        "faster exponential",
        "pieces",
        "one step",
    ],
)
def test_a_rate_follows_its_flags(name, options, steps, expected):
    assert rates(make(name=name, **options), *steps) == expected


@pytest.mark.parametrize(
    ("name", "options", "steps", "expected"),
    [
        (None, {}, [20, 500], [0.5, 0.5]),
        # What follows has the rest of the steps.
        ("cosine", {}, [20, 60, 100], [0.5, 0.25, 0]),
        ("cosine", {"decay_steps": 20}, [20, 30, 40], [0.5, 0.25, 0]),
        # Boundaries are global steps all the same.
        (
            "piecewise",
            {"decay_boundaries": "40,60", "decay_rate": 0.5},
            [20, 40, 41, 60, 61],
            [0.5, 0.5, 0.25, 0.25, 0.125],
        ),
    ],
    ids=["constant", "cosine", "shorter cosine", "pieces"],
)
def test_a_rate_rises_from_nothing_and_then_follows_its_flags(
    name, options, steps, expected
):
    schedule = make(name=name, warmup_steps=20, **options)
    assert rates(schedule, 0, 5, 10) == [0, 0.125, 0.25]
    assert rates(schedule, *steps) == expected


def test_an_experiment_s_schedule_stays_and_may_be_warmed_up():
    assert make(OWN) is OWN
    assert rates(make(OWN, warmup_steps=10), 0, 5, 10, 60) == [0, 0.25, 0.5, 0.25]


@pytest.mark.parametrize("name", ["constant", "cosine"])
def test_an_experiment_s_schedule_has_no_rate_to_start_from(name):
    message = message_of(OWN, name)
    assert f"--learning_rate_schedule={name}" in message
    assert "own PolynomialDecay" in message
    assert "Add --learning_rate." in message


@pytest.mark.parametrize("name", ["cosine", "exponential"])
def test_where_the_data_says_when_to_stop_somebody_has_to_say_how_long(name):
    options = {"train_steps": None, "epochs": 2}
    message = message_of(name=name, **options)
    assert f"--learning_rate_schedule={name} with --epochs=2" in message
    assert "Add --decay_steps." in message
    assert rates(make(name=name, decay_steps=10, **options), 0) == [0.5]


@pytest.mark.parametrize("steps", [100, 200])
def test_a_warm_up_has_to_leave_something(steps):
    message = message_of(name="cosine", warmup_steps=steps)
    assert f"--warmup_steps={steps} leaves nothing of --train_steps=100" in message


def test_boundaries_come_after_the_warm_up():
    options = {"name": "piecewise", "warmup_steps": 20}
    message = message_of(decay_boundaries="10,30", **options)
    assert "--decay_boundaries=10,30 begins within --warmup_steps=20" in message
    assert rates(make(decay_boundaries="20", **options), 20, 21) == [0.5, 0.05]
