"""Where the data ends, and where a run goes on in it: one process, several devices."""

import itertools
import sys
import time

import keras
import numpy as np
import pytest

from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.strategies.local import LocalTrainer
from dtrain.strategies.mirrored import MirroredTrainer

COUNT, BATCH = 40, 8


pytestmark = pytest.mark.usefixtures("no_unrolls")


def dense():
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    return keras.Sequential([keras.Input((4,)), layer])


@pytest.fixture(scope="module")
def make(problem):
    """A function that makes a trainer on 40 examples in batches of 8."""

    def make(replicas=1, train_data=None, model=dense, loss=None, **options):
        config = RunConfig(
            **{"batch_size": BATCH, "epochs": 2, "train_steps": 100, **options},
            strategy="local" if replicas == 1 else "mirrored",
            devices_per_task=replicas,
        )
        experiment = problem.experiment(
            model=model,
            loss=loss or keras.losses.MeanSquaredError(),
            optimizer=lambda: keras.optimizers.Adam(0.05),
            train_data=train_data or (lambda: (problem.x[:COUNT], problem.y[:COUNT])),
        )
        if replicas == 1:
            return LocalTrainer(experiment, config)
        return MirroredTrainer(experiment, config, Console(sys.stdout))

    return make


def finish(trainer, num_steps=2):
    for _ in range(100):
        if trainer.is_over:
            return trainer
        trainer.train(num_steps)
    raise AssertionError("the data has no end")


def values(trainer):
    """Returns all that a checkpoint holds, but for the place in the data."""
    trainer.before_save()
    checkpoint = trainer.checkpoint
    variables = [*checkpoint.model.variables, *trainer.optimizer.variables]
    return [v.numpy() for v in [*variables, checkpoint.global_step]]


@pytest.mark.parametrize(
    ("replicas", "options", "steps"),
    [
        (1, {}, 10),
        (1, {"batch_size": 7}, 12),  # of 80 examples, the last batch has 3
        (1, {"accumulate_steps": 3}, 4),
        (3, {"accumulate_steps": 2, "epochs": 1}, 1),
        (2, {"epochs": 1}, 3),  # of 5 batches, one replica has none in the end
    ],
    ids=str,
)
def test_a_run_ends_at_the_last_batch_of_its_epochs(replicas, options, steps, make):
    trainer = make(replicas, **options)
    assert trainer.num_steps == steps
    finish(trainer)
    assert trainer.global_step == steps
    assert trainer.passes == options.get("epochs", 2)
    assert int(trainer.checkpoint.global_step.numpy()) == steps
    before = values(trainer)
    for _ in range(2):
        trainer.train(3)
        assert trainer.is_over
    np.testing.assert_equal(values(trainer), before)
    assert trainer.global_step == steps


def test_every_example_is_trained_on_once_an_epoch(make, problem):
    """At a rate of nothing, the loss is the same for all orders."""

    def train_data():
        return problem.x[:COUNT], problem.y[:COUNT]

    trainer = make(2, train_data, learning_rate=1e-30)
    window = trainer.totals.window()
    finish(trainer)
    expected = np.mean((problem.x[:COUNT].sum(1) - problem.y[:COUNT, 0]) ** 2)
    assert window.take() == {"loss": pytest.approx(expected, rel=1e-5)}


def test_the_last_updates_are_of_what_is_left(make, problem, keras_loop):
    """Two replicas with two micro-batches each, and five batches: four, and one."""

    def train_data():
        for start in range(0, COUNT, BATCH):
            yield problem.x[start : start + BATCH], problem.y[start : start + BATCH]

    trainer = make(2, lambda: train_data, epochs=1, accumulate_steps=2)
    finish(trainer, 1)
    model, cut = dense(), 4 * BATCH
    parts = [
        (problem.x[:cut], problem.y[:cut]),
        (problem.x[cut:COUNT], problem.y[cut:COUNT]),
    ]
    keras_loop(
        model, keras.optimizers.Adam(0.05), keras.losses.MeanSquaredError(), parts
    )
    assert trainer.global_step == 2
    for ours, theirs in zip(
        trainer.checkpoint.model.variables, model.variables, strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def normalizing():
    norm = keras.layers.BatchNormalization(momentum=0.5)
    return keras.Sequential([keras.Input((4,)), norm, keras.layers.Dense(1)])


def test_moving_averages_stay_as_they_are_where_there_is_no_batch(make):
    """However many steps are asked for beyond the end."""
    exact = make(2, model=normalizing, epochs=1)
    exact.train(3)
    expected = values(exact)
    for num_steps in (1, 10):
        trainer = finish(make(2, model=normalizing, epochs=1), num_steps)
        for ours, theirs in zip(values(trainer), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_batches_that_weigh_nothing_are_updates_too(make, problem):
    def train_data():
        return problem.x[:COUNT], problem.y[:COUNT], np.zeros(COUNT)

    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    assert finish(make(2, train_data, loss=loss)).global_step == 5


@pytest.mark.parametrize(
    ("replicas", "options"), [(2, {}), (1, {"accumulate_steps": 3})], ids=str
)
def test_a_place_is_of_the_batches_that_were_there(replicas, options, make):
    trainer = finish(make(replicas, epochs=1, **options))
    trainer.before_save()
    assert trainer.checkpoint.data.numpy().tolist() == [5, 1, 1]


# Going on.


def resumed(make, trainer, path, replicas, **options):
    trainer.before_save()
    path = trainer.checkpoint.write(str(path / "ckpt"))
    following = make(replicas, **options)
    following.checkpoint.read(path).assert_consumed()
    following.after_restore()
    return following


@pytest.mark.parametrize(
    ("replicas", "options", "first"),
    [
        (1, {"accumulate_steps": 2}, [1, 2]),
        (2, {}, [1, 2]),
    ],
    ids=["local", "mirrored"],
)
def test_a_resumed_run_reads_what_the_first_one_would_have_read(
    replicas, options, first, make, tmp_path
):
    expected = values(finish(make(replicas, **options)))
    trainer = make(replicas, **options)
    for num_steps in first:
        trainer.train(num_steps)
    per_step = replicas * options.get("accumulate_steps", 1)
    following = resumed(make, trainer, tmp_path, replicas, **options)
    place = following.checkpoint.data.numpy().tolist()
    begun = -(-sum(first) * per_step // 5)
    assert place == [sum(first) * per_step, begun, begun - 1]
    np.testing.assert_equal(values(finish(following)), expected)
    assert following.passes == 2


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_run_may_go_on_with_more_epochs(replicas, make, tmp_path):
    expected = values(finish(make(replicas, epochs=4)))
    trainer = finish(make(replicas, epochs=2))
    following = resumed(make, trainer, tmp_path, replicas, epochs=4)
    assert following.checkpoint.data.numpy().tolist() == [10, 2, 2]
    following.train(1)
    assert (following.is_over, following.passes) == (False, 3)
    np.testing.assert_equal(values(finish(following)), expected)
    assert following.passes == 4


def test_a_generator_loses_no_pass_however_often_it_is_interrupted(
    make, problem, tmp_path
):
    seen = []

    def generate():
        for number in range(3):
            seen.append(number)
            yield problem.x[:BATCH], problem.y[:BATCH]

    options = {"train_data": lambda: generate, "epochs": 2}
    trainer = make(**options)
    for _ in range(3):
        trainer.train(1)
        trainer = resumed(make, trainer, tmp_path, 1, **options)
    seen.clear()
    finish(trainer)
    assert seen.count(2) == 2  # both passes are still to be made


# Waiting.


def waited(trainer, num_steps):
    """Returns the share of so many steps' time that they wait, once it is running."""
    trainer.train(1)
    trainer.train(3)
    window = trainer.totals.window()
    trainer.train(num_steps)
    window.take()
    (share,) = window.waits.values()
    return share


def test_data_that_is_there_is_not_waited_for(make):
    assert 0 <= waited(make(epochs=None), 20) < 0.9


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_slow_generator_is_what_steps_wait_for(replicas, make, problem):
    turn = itertools.count()

    def generate():
        while True:
            if next(turn) > 6:
                end = time.monotonic() + 0.05
                while time.monotonic() < end:
                    time.sleep(0.005)
            yield problem.x[:BATCH], problem.y[:BATCH]

    trainer = make(replicas, lambda: generate, epochs=None)
    assert 0.6 < waited(trainer, 4) <= 1
