"""A multilayer perceptron."""

from collections.abc import Sequence

import keras


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> keras.Model:
    """Returns a stack of ReLU layers, and one linear layer for the logits.

    Args:
        inputs: features of an example.
        hidden: units of each ReLU layer, from the input on.
        outputs: logits.

    Returns:
        A model from float32 (batch, inputs) to float32 (batch, outputs).
    """
    layers = [keras.layers.Dense(units, activation="relu") for units in hidden]
    return keras.Sequential(
        [keras.Input((inputs,)), *layers, keras.layers.Dense(outputs)], name="mlp"
    )
