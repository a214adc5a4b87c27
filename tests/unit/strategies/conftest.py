"""A small problem to train on, and what a strategy makes of it."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain.config import RunConfig
from dtrain.experiment import Experiment
from dtrain.strategies import packing

# Several replicas in one process. It has to come before TensorFlow is used, and stays
# so: whoever divides the CPU later finds it done.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 4,
)
tf.config.list_logical_devices()

# What TensorFlow is made of stays: to look through it for garbage takes long.
gc.freeze()


class Problem:
    """Twelve batches of eight examples: four features, one target."""

    def __init__(self):
        generator = np.random.default_rng(0)
        self.x = generator.normal(size=(96, 4)).astype(np.float32)
        self.y = (self.x @ [[1], [-2], [3], [0.5]]).astype(np.float32)

    def data(self):
        return tf.data.Dataset.from_tensor_slices((self.x, self.y)).batch(8)

    def batches(self, count):
        """The first batches of the data, repeated for ever."""
        return list(self.data().repeat().take(count))

    @staticmethod
    def model():
        """A model whose initial weights are the same each time."""
        init = keras.initializers.GlorotUniform(seed=1)
        return keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(6, activation="relu", kernel_initializer=init),
                keras.layers.Dense(1, kernel_initializer=init),
            ]
        )

    def experiment(self, **changes):
        fields = {
            "model": self.model,
            "optimizer": lambda: keras.optimizers.SGD(0.05),
            "loss": keras.losses.MeanSquaredError(),
            "train_data": self.data,
        }
        return Experiment(**{**fields, **changes})


@pytest.fixture(scope="session")
def problem():
    return Problem()


@pytest.fixture
def config():
    return RunConfig(strategy="local", train_steps=100, batch_size=8)


@pytest.fixture
def short_unrolls(monkeypatch):
    """Tracing takes time in proportion; what is traced is the same."""
    monkeypatch.setattr(packing, "UNROLL", 2)


def train_with_keras(model, optimizer, loss, batches):
    """A hand-written loop, one eager step a batch: what dtrain has to agree with."""
    optimizer.build(model.trainable_variables)
    losses = []
    for x, y in batches:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
            if model.losses:
                value += tf.add_n(model.losses)
        gradients = tape.gradient(value, model.trainable_variables)
        # A row that is in a batch twice has one gradient, as in a dense one.
        gradients = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        optimizer.apply(gradients, model.trainable_variables)
        losses.append(float(value))
    return losses


@pytest.fixture(scope="session")
def as_element():
    """A function that makes an element of a batch: no pass begins with it."""
    return lambda batch: (tf.constant(0, tf.int64), batch)


@pytest.fixture
def keras_loop():
    return train_with_keras
