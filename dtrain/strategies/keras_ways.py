"""What Keras does in a step by itself, and a step of dtrain's must do otherwise.

Some of it is private to Keras; tests fail if a version of it does it in another way.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator

import keras
import keras.src.losses.loss as keras_loss
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state

_SCALE = "scale_loss_for_distribution"
_SEEDS = "global_seed_generator"


@contextlib.contextmanager
def unscaled_losses() -> Iterator[None]:
    """Within it, a mean that a Keras loss takes is that mean, in this thread.

    Among other replicas Keras divides it by their number, wherever in a model or a
    loss it is taken. dtrain weighs batches instead, and all that they give.
    """
    _here.is_unscaled = True
    try:
        yield
    finally:
        _here.is_unscaled = False


# By thread, because replicas are traced in threads that take turns.
_here = threading.local()


def _install() -> None:
    scale = getattr(keras_loss, _SCALE, None)
    if scale is not None:
        setattr(
            keras_loss,
            _SCALE,
            lambda value: value if getattr(_here, "is_unscaled", 0) else scale(value),
        )


_install()


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
        self._count = 0

    def next(self, ordered: bool = True) -> tf.Tensor:
        """Returns a seed, uint32 (2,), another one each time."""
        self._count += 1
        return seed_at(self._seed, self._draws + self._count)


def seed_at(seed: np.uint32, draws: tf.Tensor, dtype=tf.uint32) -> tf.Tensor:
    """Returns what Keras' generators hold after so many draws: (2,).

    Args:
        seed: of the generator.
        draws: an int64 scalar; where it needs more than 32 bits, the seed has them.
        dtype: of the result, an integer of 32 bits.
    """
    high = tf.cast(tf.bitwise.right_shift(draws, 32), dtype)
    own = tf.bitwise.bitwise_xor(tf.constant(seed, dtype), high)
    return tf.stack([own, tf.cast(tf.bitwise.bitwise_and(draws, 2**32 - 1), dtype)])


def forget_losses(model: keras.Model) -> None:
    """Drops what a model's layers noted of the losses of an earlier call.

    They tell losses apart by `id`, which a new one may have from one that is gone:
    `stateless_call`, which does not clear, then drops it.
    """
    model._clear_losses()


@contextlib.contextmanager
def updating(
    optimizer: keras.optimizers.Optimizer, update: Callable[..., None]
) -> Iterator[None]:
    """Within it, what an optimizer's updates are made of goes through a function.

    By then gradients are clipped and weights have decayed.

    Args:
        update: `(original, pairs, rate)`: calls `original(pairs, rate)` for all pairs
            of a gradient and a `tf.Variable`, together or in parts.
    """
    name = "_distributed_tf_update_step"
    original = getattr(optimizer, name)

    def replacement(distribution, pairs, rate):
        update(functools.partial(original, distribution), list(pairs), rate)

    vars(optimizer)[name] = replacement  # past what Keras tracks
    try:
        yield
    finally:
        del vars(optimizer)[name]


class TicketScope(keras.StatelessScope):
    """Gives the optimizer its count, and lets it write all else as usual.

    Args:
        count: the optimizer's, to which nothing is written.
        mapping: of it, and of what else has been read, to values.
    """

    def __init__(self, count: keras.Variable, mapping: list[tuple]):
        super().__init__(state_mapping=mapping)
        self._count = count

    def add_update(self, update):
        variable, value = update
        if variable is not self._count:
            variable._value.assign(value)  # `value` may be what has been read
