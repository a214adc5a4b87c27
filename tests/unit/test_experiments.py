"""The packaged experiments, in one process and without a strategy."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain import errors
from dtrain.config import RunConfig
from dtrain.experiment import PACKAGED
from dtrain.input.context import InputContext


def load(name, **options):
    function = importlib.import_module(f"dtrain.experiments.{name}").experiment
    config = RunConfig(experiment=name, **options)
    config = config.with_defaults(function.dtrain_defaults)
    return function(config), config


@pytest.mark.parametrize("name", PACKAGED)
def test_model_loss_and_metrics_fit_the_data(name, mnist_folder):
    experiment, config = load(name, data_dir=str(mnist_folder))
    model = experiment.model()
    x, y = next(iter(experiment.train_data(InputContext())))
    assert len(x) == len(y) == config.batch_size
    logits = model(x, training=True)
    assert logits.shape == (config.batch_size, 10)
    # Ten classes, nothing learnt yet.
    assert float(experiment.loss(y, logits)) == pytest.approx(np.log(10), abs=1.5)
    (metric,) = experiment.metrics()
    assert metric.name == "accuracy"
    metric.update_state(y, logits)
    assert 0 <= float(metric.result()) <= 1


@pytest.mark.parametrize("name", PACKAGED)
def test_every_call_builds_anew(name, mnist_folder):
    experiment, _ = load(name, data_dir=str(mnist_folder))
    for factory in (experiment.model, experiment.optimizer, experiment.metrics):
        assert factory() is not factory()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("digits_mlp", 64 * 128 + 128 + 128 * 10 + 10),
        ("mnist_mlp", 784 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10),
    ],
)
def test_size_of_the_mlps(name, parameters, mnist_folder):
    experiment, _ = load(name, data_dir=str(mnist_folder))
    assert experiment.model().count_params() == parameters


def test_cnn_has_what_it_is_to_show(mnist_folder):
    experiment, _ = load("mnist_cnn", data_dir=str(mnist_folder))
    kinds = {type(layer) for layer in experiment.model().layers}
    assert kinds >= {
        keras.layers.Conv2D,
        keras.layers.BatchNormalization,
        keras.layers.Dropout,
    }
    optimizer = experiment.optimizer()
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert optimizer.global_clipnorm


@pytest.mark.parametrize("name", ["mnist_mlp", "mnist_cnn"])
def test_schedule_goes_from_the_learning_rate_to_zero(name, mnist_folder):
    experiment, _ = load(
        name, data_dir=str(mnist_folder), learning_rate=0.5, train_steps=40
    )
    # Private, for want of a public way to a schedule that has not begun.
    schedule = experiment.optimizer()._learning_rate
    rates = [float(schedule(step)) for step in (0, 20, 40)]
    assert rates == pytest.approx([0.5, 0.25, 0.0])


@pytest.mark.parametrize("name", ["mnist_mlp", "mnist_cnn"])
def test_missing_data_is_found_before_training(name, tmp_path):
    with pytest.raises(errors.UsageError, match="train-images-idx3-ubyte"):
        load(name, data_dir=str(tmp_path))


def test_digits_mlp_learns():
    keras.utils.set_random_seed(0)
    experiment, config = load("digits_mlp")
    model, optimizer = experiment.model(), experiment.optimizer()
    optimizer.build(model.trainable_variables)
    batches = iter(experiment.train_data(InputContext()))

    @tf.function
    def train(num_steps):
        for _ in tf.range(num_steps):
            x, y = next(batches)
            with tf.GradientTape() as tape:
                loss = experiment.loss(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)

    train(tf.constant(config.train_steps))
    (accuracy,) = experiment.metrics()
    count = 0
    for x, y in experiment.eval_data(InputContext()):
        accuracy.update_state(y, model(x))
        count += len(y)
    assert count == 360
    assert float(accuracy.result()) >= 0.95
