"""The models and optimizers as Keras has them."""

import keras

from benchmarks.peers import data


def model(name: str) -> keras.Model:
    """Returns a stack of ReLU layers, and one linear layer for the logits."""
    hidden = [keras.layers.Dense(n, activation="relu") for n in data.WIDTHS[name]]
    return keras.Sequential(
        [keras.Input((data.NUM_PIXELS,)), *hidden, keras.layers.Dense(data.NUM_CLASSES)]
    )


def optimizer(name: str) -> keras.optimizers.Optimizer:
    """Returns the optimizer, at the rate that all peers use."""
    made = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[name]
    return made(data.LEARNING_RATES[name])
