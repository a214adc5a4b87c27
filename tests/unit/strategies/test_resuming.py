"""What a resumed run takes from the checkpoint, and what from its own options."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.config import RunConfig
from dtrain.strategies import parts, pipelines
from dtrain.strategies.local import LocalTrainer


def make(problem, **options):
    config = RunConfig(strategy="local", train_steps=100, batch_size=8, **options)
    return LocalTrainer(problem.experiment(), config)


def test_a_constant_rate_is_the_run_s_own(problem, tmp_path, short_unrolls):
    first = make(problem, learning_rate=0.1)
    first.train(3)
    first.before_save()
    path = first.checkpoint.save(str(tmp_path / "ckpt"))
    second = make(problem, learning_rate=0.025)
    second.checkpoint.restore(path).assert_existing_objects_matched()
    second.after_restore()
    assert second.global_step == 3
    assert second.learning_rate() == pytest.approx(0.025)
    assert np.allclose(
        second.checkpoint.model.layers[0].kernel,
        first.checkpoint.model.layers[0].kernel,
    )


def test_a_schedule_goes_on_where_it_was(problem, tmp_path):
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 10, 0.0)
    optimizer = keras.optimizers.SGD(schedule)
    optimizer.build([keras.Variable(0.0)])
    parts.rate_keeper(optimizer)()
    assert parts.rate_at(optimizer, 4) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("shape", "expected"), [((5, 2), 5), ((None, 2), 32)], ids=["fixed", "free"]
)
def test_the_batch_size_is_the_pipeline_s_where_it_fixes_one(shape, expected):
    spec = (tf.TensorSpec(shape), tf.TensorSpec([None]))
    assert pipelines.batch_size(spec, 32) == expected


def test_shuffles_without_a_seed_follow_the_run_s(problem, short_unrolls):
    def order(seed):
        experiment = problem.experiment(train_data=lambda: problem.data().shuffle(12))
        config = RunConfig(strategy="local", train_steps=9, batch_size=8, seed=seed)
        trainer = LocalTrainer(experiment, config)
        window = trainer.totals.window()
        trainer.train(1)
        return window.take()["loss"]

    assert order(1) == order(1)
    assert len({order(seed) for seed in range(4)}) > 1


def test_float16_is_refused(problem):
    def model():
        return keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1, dtype="mixed_float16")]
        )

    spec = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
    with pytest.raises(errors.UsageError, match="mixed_bfloat16"):
        parts.build_model(problem.experiment(model=model), spec)


def test_a_model_with_free_sizes_is_built(problem):
    def model():
        layers = keras.layers
        return keras.Sequential(
            [layers.Conv1D(3, 4), layers.GlobalMaxPooling1D(), layers.Dense(1)]
        )

    spec = (tf.TensorSpec([None, None, 2]), tf.TensorSpec([None, 1]))
    experiment = problem.experiment(model=model)
    built = parts.build_model(experiment, spec)
    assert tuple(built.variables[0].shape) == (4, 2, 3)
    assert parts.make_objective(experiment, built, spec).metric_names == []
