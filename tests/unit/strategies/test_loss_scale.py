"""The loss scale of float16: how it moves, and which updates are left out."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.strategies import loss_scale
from dtrain.strategies import parts as parts_lib
from dtrain.strategies.local import LocalTrainer
from dtrain.strategies.loss_scale import LossScale
from dtrain.strategies.mirrored import MirroredTrainer

pytestmark = pytest.mark.usefixtures("no_unrolls")


def note(scale, *answers):
    """Tells of updates; returns the scale after each."""
    found = []
    for is_good in answers:
        scale.note(tf.constant(is_good))
        found.append(float(scale.read()))
    return found


def state(scale):
    return float(scale.scale), int(scale.good), int(scale.skipped)


def test_it_doubles_after_many_good_updates_in_a_row():
    scale = LossScale(8.0, growth_steps=3)
    assert note(scale, *[True] * 7) == [8, 8, 16, 16, 16, 32, 32]
    assert state(scale) == (32, 1, 0)


def test_it_is_halved_by_a_bad_one_which_is_counted():
    scale = LossScale(8.0, growth_steps=3)
    assert note(scale, True, True, False, True, True, True) == [8, 8, 4, 4, 4, 8]
    assert state(scale) == (8, 0, 1)


def test_it_stays_within_what_float32_holds():
    scale = LossScale(2.0, growth_steps=1)
    assert note(scale, *[False] * 3) == [1, 1, 1]
    assert state(scale) == (1, 0, 3)
    scale = LossScale(2.0**126, growth_steps=1)
    assert note(scale, *[True] * 3) == [2.0**127] * 3


def test_it_starts_as_in_keras():
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    scale = LossScale()
    assert float(scale.read()) == theirs.initial_scale
    note(scale, *[True] * 3)
    assert state(scale) == (2.0**15, 3, 0)


def rows(*values):
    return tf.IndexedSlices(tf.constant([values]), tf.constant([0]), [3, len(values)])


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ([[1.0, 2.0], [[3.0]]], True),
        ([[1.0, np.inf], [[3.0]]], False),
        ([[1.0, 2.0], [[np.nan]]], False),
        ([None, [1.0]], True),
        ([None, [-np.inf]], False),
        ([rows(1.0, 2.0), [1.0]], True),
        ([rows(1.0, np.nan), [1.0]], False),
    ],
    ids=["good", "inf", "nan", "none", "none and inf", "rows", "rows and nan"],
)
def test_one_number_that_is_none_makes_an_update_bad(tensors, expected):
    kept = (type(None), tf.IndexedSlices)
    tensors = [t if isinstance(t, kept) else tf.constant(t) for t in tensors]
    assert bool(loss_scale.are_finite(tensors)) is expected


# In training.


def make_trainer(problem, replicas, bad=()):
    """A trainer of one batch of 8 a step, where some have a gradient that is inf.

    Args:
        replicas: that share a batch.
        bad: which steps, 0-based; the last example of their batch is too large.
    """
    options = {"strategy": "local"}
    if replicas > 1:
        options = {"strategy": "mirrored", "devices_per_task": replicas}
    config = RunConfig(
        train_steps=100, batch_size=8 // replicas, mixed_precision="float16", **options
    )
    x = problem.x.copy()
    x[[8 * step + 7 for step in bad]] = 1e30

    def data():
        columns = (x, problem.y)
        return tf.data.Dataset.from_tensor_slices(columns).batch(config.batch_size)

    experiment = problem.experiment(
        train_data=data, optimizer=lambda: keras.optimizers.SGD(0.05, momentum=0.5)
    )
    if replicas > 1:
        trainer = MirroredTrainer(experiment, config, Console(io.StringIO()))
    else:
        trainer = LocalTrainer(experiment, config)
    trainer.loss_scale.scale.assign(2.0**8)  # with which all else is good
    return trainer


def variables(trainer):
    kept = trainer.checkpoint
    both = [*kept.model.variables, *kept.optimizer.variables[2:]]
    return [variable.numpy() for variable in both]


def is_same(before, after):
    return all((a == b).all() for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_update_with_a_gradient_that_is_no_number_is_left_out(replicas, problem):
    trainer = make_trainer(problem, replicas, bad=[2])
    trainer.train(2)
    before = variables(trainer)
    scale = trainer.loss_scale
    assert state(scale) == (2.0**8, 2, 0)
    trainer.train(1)
    # One replica has seen what is too large: no replica has made the update.
    assert is_same(before, variables(trainer))
    assert state(scale) == (2.0**7, 0, 1)
    assert (trainer.global_step, int(trainer.checkpoint.global_step)) == (3, 3)
    trainer.train(1)
    after = variables(trainer)
    assert not is_same(before, after)
    assert all(np.isfinite(value).all() for value in after)
    assert state(scale) == (2.0**7, 1, 1)


def test_replicas_leave_out_the_same_updates_as_one_process(problem):
    bad = [1, 3, 4]
    whole, parts = (make_trainer(problem, replicas, bad) for replicas in (1, 2))
    for trainer in (whole, parts):
        trainer.train(6)
        trainer.before_save()
    assert state(whole.loss_scale) == state(parts.loss_scale) == (2.0**5, 1, 3)
    for ours, theirs in zip(variables(parts), variables(whole), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-3)


def test_only_float16_has_a_scale():
    for precision in (None, "bfloat16", "float16"):
        config = RunConfig(strategy="local", mixed_precision=precision)
        has_scale = parts_lib.make_loss_scale(config) is not None
        assert has_scale is (precision == "float16")
