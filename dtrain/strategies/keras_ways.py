"""What Keras does in a step by itself, and a step of dtrain's must do otherwise.

Some of it is private to Keras; tests fail if a version of it does it in another way.
"""

import contextlib
from collections.abc import Iterator

import keras
import keras.src.losses.loss as keras_loss
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state

_SCALE = "scale_loss_for_distribution"
_SEEDS = "global_seed_generator"


@contextlib.contextmanager
def unscaled_losses() -> Iterator[None]:
    """Within it, a mean that a Keras loss takes is that mean.

    Among other replicas Keras divides it by their number, wherever in a model or a
    loss it is taken. dtrain weighs batches instead, and all that they give.
    """
    scale = getattr(keras_loss, _SCALE, None)
    if scale is None:
        yield
        return
    setattr(keras_loss, _SCALE, lambda value: value)
    try:
        yield
    finally:
        setattr(keras_loss, _SCALE, scale)


@contextlib.contextmanager
def seeds_of_step(seed: np.uint32, draws: tf.Tensor) -> Iterator[None]:
    """Within it, random operations of Keras without a seed get a step's.

    Keras keeps one generator a thread for them, a variable that it makes when it is
    first needed: in the midst of a trace, or in a thread that lives as long as one.

    Args:
        seed: of this run and replica.
        draws: how many were made before this batch, an int64 scalar.
    """
    before = global_state.get_global_attribute(_SEEDS)
    global_state.set_global_attribute(_SEEDS, _StepSeeds(seed, draws))
    try:
        yield
    finally:
        global_state.set_global_attribute(_SEEDS, before)


class _StepSeeds:
    """Stands in for Keras' global `SeedGenerator` while a step is traced."""

    def __init__(self, seed: np.uint32, draws: tf.Tensor):
        self._seed = seed
        self._draws = draws

    def next(self, ordered: bool = True) -> tf.Tensor:
        """Returns a seed, uint32 (2,), another one each time."""
        self._draws += 1
        seed = tf.constant(self._seed, tf.uint32)
        return tf.stack([seed, tf.cast(self._draws, tf.uint32)])


class TicketScope(keras.StatelessScope):
    """Gives the optimizer its count, and lets it write all else as usual."""

    def add_update(self, update):
        variable, value = update
        if self.get_current_value(variable) is None:  # all but the count
            variable.value.assign(value)
