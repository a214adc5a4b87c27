"""A small problem to train on, and what a strategy makes of it."""

import functools
import gc
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from dtrain.config import RunConfig
from dtrain.console import Console
from dtrain.experiment import Experiment
from dtrain.strategies import packing
from dtrain.strategies.local import LocalTrainer
from dtrain.strategies.mirrored import MirroredTrainer

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

    def plain(self, optimizer, **changes):
        """A function from a run's options to the experiment, in batches of its size."""
        return lambda config: self.experiment(
            optimizer=optimizer,
            train_data=lambda: self.data().rebatch(config.batch_size),
            **changes,
        )


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


@pytest.fixture(scope="module")
def no_unrolls():
    """As `short_unrolls`, but for a whole file and the fixtures that it shares."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "UNROLL", 1)
        yield


optimizers, schedules = keras.optimizers, keras.optimizers.schedules

OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.05),
    "momentum": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "schedule": lambda: optimizers.SGD(schedules.ExponentialDecay(0.1, 2, 0.5)),
    "decay": lambda: optimizers.SGD(0.05, weight_decay=0.1),
    "clipvalue": lambda: optimizers.SGD(0.05, clipvalue=0.1),
    "clipnorm": lambda: optimizers.SGD(0.05, clipnorm=0.1),
    "global_clipnorm": lambda: optimizers.SGD(0.05, global_clipnorm=0.1),
    "ema": lambda: optimizers.SGD(0.05, use_ema=True, ema_momentum=0.5),
    "ema_overwrite": lambda: optimizers.SGD(
        0.05, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "callable": lambda: optimizers.SGD(lambda: 0.05),
    "adam": lambda: optimizers.Adam(schedules.CosineDecay(0.1, 5)),
    "amsgrad": lambda: optimizers.Adam(0.1, amsgrad=True),
    "adamw": lambda: optimizers.AdamW(0.1, weight_decay=0.1),
    "adadelta": lambda: optimizers.Adadelta(0.1),
    "adafactor": lambda: optimizers.Adafactor(0.1),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adamax": lambda: optimizers.Adamax(0.1),
    "ftrl": lambda: optimizers.Ftrl(0.1),
    "lamb": lambda: optimizers.Lamb(0.1),
    "lion": lambda: optimizers.Lion(0.01),
    "nadam": lambda: optimizers.Nadam(0.1),
    "rmsprop": lambda: optimizers.RMSprop(0.1, momentum=0.9, centered=True),
}
# Younger than the oldest Keras that dtrain works with.
for name in ("Muon", "ScheduleFreeAdamW"):
    if hasattr(optimizers, name):
        OPTIMIZERS[name.lower()] = functools.partial(getattr(optimizers, name), 0.1)


@pytest.fixture(params=OPTIMIZERS)
def make_optimizer(request):
    """A function that makes an optimizer: each kind that Keras has, and its options."""
    return OPTIMIZERS[request.param]


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


# Replicas that compute one global batch.

GLOBAL_BATCH = 16


@pytest.fixture(scope="session")
def make_trainer():
    """A function that makes a trainer with global batches of 16, divided as told."""

    def make_trainer(experiment, replicas=1, accumulate_steps=1, **options):
        config = RunConfig(
            strategy="local" if replicas == 1 else "mirrored",
            train_steps=100,
            batch_size=GLOBAL_BATCH // (replicas * accumulate_steps),
            accumulate_steps=accumulate_steps,
            devices_per_task=replicas,
            **options,
        )

        if replicas == 1:
            return LocalTrainer(experiment(config), config)
        return MirroredTrainer(experiment(config), config, Console(sys.stdout))

    return make_trainer


@pytest.fixture(scope="session")
def run():
    """A function that trains, and returns what two runs are compared by."""

    def run(trainer, steps):
        """Trains step by step; returns losses, their mean and metrics, and weights."""
        window, losses = trainer.totals.window(), []
        for _ in range(steps):
            trainer.train(1)
            losses.append(trainer.totals.last_loss)
        trainer.before_save()
        weights = [v.numpy() for v in trainer.checkpoint.model.variables]
        return losses, window.take(), weights

    return run


@pytest.fixture(scope="session")
def assert_same_run():
    """A function that compares what two runs returned."""

    def assert_same_run(ours, theirs, rtol=1e-5, atol=2e-6):
        assert ours[0] == pytest.approx(theirs[0], rel=rtol)
        assert ours[1] == pytest.approx(theirs[1], rel=rtol)
        for a, b in zip(ours[2], theirs[2], strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)

    return assert_same_run


@pytest.fixture(scope="session")
def all_values():
    """A function that returns the values of a trainer's variables by replica."""

    def all_values(trainer):
        return [[v.numpy() for v in variables] for variables in trainer._variables()]

    return all_values


@pytest.fixture(scope="session")
def assert_replicas_agree(all_values):
    """A function that fails unless all replicas have the same values, to the bit."""

    def assert_replicas_agree(trainer):
        first, *others = all_values(trainer)
        for other in others:
            for a, b in zip(first, other, strict=True):
                assert a.tobytes() == b.tobytes()

    return assert_replicas_agree
