"""How asynchronous workers come to a stop: at the same time, in few calls."""

import types

import pytest

from dtrain.strategies.ps import PsTrainer


def calls(remaining, most, workers):
    trainer = PsTrainer.__new__(PsTrainer)  # without a cluster
    trainer._loop_size = types.SimpleNamespace(steps=most)
    trainer.replicas = workers
    trainer._calls_left, trainer._plan = 0, None
    found = []
    while remaining:
        found.append(trainer.choose_loop(remaining))
        remaining -= found[-1]
    return found


@pytest.mark.parametrize(
    ("remaining", "most", "workers", "expected"),
    [
        (1000, 90, 2, [90] * 4 + [80] * 8),
        (100, 90, 2, [50, 50]),
        (25, 10, 2, [7, 6, 6, 6]),
        (7, 10, 2, [4, 3]),
        (1, 100, 3, [1]),
        (300, 100, 3, [100, 100, 100]),
        (90, 100, 1, [90]),
    ],
)
def test_calls_are_of_one_size_and_a_multiple_of_the_workers(
    remaining, most, workers, expected
):
    assert calls(remaining, most, workers) == expected


def test_another_stop_is_planned_for_anew():
    trainer = PsTrainer.__new__(PsTrainer)
    trainer._loop_size = types.SimpleNamespace(steps=100)
    trainer.replicas, trainer._calls_left, trainer._plan = 2, 0, None
    assert trainer.choose_loop(1000) == 100
    assert trainer.choose_loop(60) == 30
    assert trainer.choose_loop(30) == 30
    assert trainer.choose_loop(1000) == 100
