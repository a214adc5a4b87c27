"""Replicas without data: they compute on zeros, and that counts for nothing."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.strategies import pipelines

pytestmark = pytest.mark.usefixtures("no_unrolls")


@pytest.fixture
def starve(monkeypatch, problem):
    """A function after whose call the second of two replicas has no batch."""

    def starve():
        elements = problem.data().map(lambda x, y: (tf.constant(0, tf.int64), (x, y)))
        turns, nothing = itertools.count(), iter(elements.take(0))
        real = pipelines.next_or_zeros

        def next_or_zeros(iterator):
            return real(nothing if next(turns) % 2 else iterator)

        monkeypatch.setattr(pipelines, "next_or_zeros", next_or_zeros)

    return starve


class Shares(keras.layers.Layer):
    """Makes NaN of zeros, forward and backward."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[1:], initializer="ones")

    def call(self, x):
        x = keras.ops.square(x * self.scale)
        return x / keras.ops.sum(x, axis=-1, keepdims=True)


def test_what_a_replica_makes_of_zeros_does_not_count(
    problem, starve, make_trainer, run, assert_same_run, assert_replicas_agree
):
    def model():
        return keras.Sequential(
            [
                keras.Input((4,)),
                Shares(),
                keras.layers.BatchNormalization(momentum=0.5),
                keras.layers.Dense(1, kernel_initializer="ones"),
            ]
        )

    def case(config):
        return problem.experiment(
            model=model, metrics=lambda: [keras.metrics.MeanAbsoluteError("error")]
        )

    whole = run(make_trainer(case), 4)
    starve()
    trainer = make_trainer(case, 2)
    trainer.before_save()
    ours = run(trainer, 4)
    assert np.all(np.isfinite(ours[0]))
    assert_same_run(ours, whole)
    assert_replicas_agree(trainer)
    mean = trainer._models[1].layers[1].moving_mean
    before = mean.numpy()
    trainer.train(1)
    np.testing.assert_array_equal(mean, before)


def test_without_any_batch_a_run_fails(problem, make_trainer):
    empty = problem.data().filter(lambda x, y: False)  # which nobody knows before
    experiment = problem.experiment(train_data=lambda: empty)
    trainer = make_trainer(lambda config: experiment, 2)
    before = [v.numpy() for v in trainer.checkpoint.model.variables]
    with pytest.raises(errors.TrainingFailed, match="gives no batch"):
        trainer.train(2)
    after = [v.numpy() for v in trainer.checkpoint.model.variables]
    np.testing.assert_equal(after, before)


def test_batches_that_weigh_nothing_are_batches(problem, make_trainer, run):
    def case(config):
        data = problem.data().map(lambda x, y: (x, y, tf.zeros([8])))
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        return problem.experiment(train_data=lambda: data, loss=loss)

    trainer = make_trainer(case, 2)
    before = [v.numpy() for v in trainer.checkpoint.model.variables]
    losses, _, after = run(trainer, 2)
    assert losses == [0, 0]
    assert trainer.global_step == 2
    np.testing.assert_equal(after, before)
