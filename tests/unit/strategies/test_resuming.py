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


def test_a_schedule_goes_on_where_it_was():
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 10, 0.0)
    optimizer = keras.optimizers.SGD(schedule)
    optimizer.build([keras.Variable(0.0)])
    assert parts.rate_at(optimizer, 4) == pytest.approx(0.6)


def build(rate):
    layers = [keras.layers.Dense(2), keras.layers.Dense(1)]

    class Listed(keras.Model):
        """TensorFlow does not look into lists of layers."""

        def __init__(self):
            super().__init__()
            self.parts = layers

        def call(self, x):
            return self.parts[1](self.parts[0](x))

    model = Listed()
    model(tf.zeros([1, 3]))
    optimizer = keras.optimizers.Adam(rate)
    optimizer.build(model.trainable_variables)
    counter, place = tf.Variable(0), tf.Variable(0)
    checkpoint = parts.make_checkpoint(model, optimizer, counter, place, None)
    return checkpoint, [*model.variables, *optimizer.variables[-8:]]


@pytest.mark.parametrize("before", ["constant", "schedule"])
@pytest.mark.parametrize("now", ["constant", "schedule"])
def test_another_kind_of_rate_shifts_no_slot(before, now, tmp_path):
    rates = {
        "constant": 0.5,
        "schedule": keras.optimizers.schedules.CosineDecay(0.5, 10),
    }
    saved, variables = build(rates[before])
    for index, variable in enumerate(variables):
        variable.assign(np.full(variable.shape, index))
    path = saved.write(str(tmp_path / "ckpt"))
    restored, variables = build(rates[now])
    restored.read(path).assert_existing_objects_matched()
    for index, variable in enumerate(variables):
        assert np.all(variable.numpy() == index), variable.path


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
