"""Updates of dense weights in one operation each, where TensorFlow has it.

Keras' Adam goes a dozen times over a weight and its two averages, and a ps does so for
all workers. TensorFlow's own operations, those of TF1's optimizers, compute the same in
one pass: docs/design.md has what that gains. But for rounding: they take 1 - 0.999 in
float32, which makes it 0.0000000129 less than Keras' 0.001.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf


@contextlib.contextmanager
def updates(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Within it, an optimizer updates by one operation a weight, if there is one.

    That is so for SGD, and for Adam and AdamW without `amsgrad`. What is sparse, and an
    optimizer with an `update_step` of its own, is left as it is.
    """
    fused = _UPDATES.get(type(optimizer).update_step)
    if fused is None or "update_step" in vars(optimizer):
        yield
        return
    original = optimizer.update_step

    def update_step(gradient: Any, variable: Any, rate: Any) -> None:
        is_dense = isinstance(gradient, tf.Tensor)
        if not (is_dense and fused(optimizer, gradient, variable, rate)):
            original(gradient, variable, rate)

    vars(optimizer)["update_step"] = update_step  # past what Keras tracks
    try:
        yield
    finally:
        del vars(optimizer)["update_step"]


def _adam(
    optimizer: keras.optimizers.Adam,
    gradient: tf.Tensor,
    variable: tf.Variable,
    rate: tf.Tensor,
) -> bool:
    """Updates a weight and its averages; returns whether it could."""
    if optimizer.amsgrad:
        return False
    dtype = variable.dtype
    beta_1, beta_2 = (tf.cast(b, dtype) for b in (optimizer.beta_1, optimizer.beta_2))
    count = tf.cast(tf.convert_to_tensor(optimizer.iterations) + 1, dtype)
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=_slot(optimizer, optimizer._momentums, variable),
        v=_slot(optimizer, optimizer._velocities, variable),
        beta1_power=tf.pow(beta_1, count),
        beta2_power=tf.pow(beta_2, count),
        lr=tf.cast(rate, dtype),
        beta1=beta_1,
        beta2=beta_2,
        epsilon=tf.cast(optimizer.epsilon, dtype),
        grad=tf.cast(gradient, dtype),
    )
    return True


def _sgd(
    optimizer: keras.optimizers.SGD,
    gradient: tf.Tensor,
    variable: tf.Variable,
    rate: tf.Tensor,
) -> bool:
    """Updates a weight and its momentum; returns whether it could: always."""
    dtype = variable.dtype
    if not optimizer.momentum:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle,
            alpha=tf.cast(rate, dtype),
            delta=tf.cast(gradient, dtype),
        )
        return True
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=_slot(optimizer, optimizer.momentums, variable),
        lr=tf.cast(rate, dtype),
        grad=tf.cast(gradient, dtype),
        momentum=tf.cast(optimizer.momentum, dtype),
        use_nesterov=optimizer.nesterov,
    )
    return True


_UPDATES: dict[Callable, Callable[..., bool]] = {
    keras.optimizers.Adam.update_step: _adam,
    keras.optimizers.SGD.update_step: _sgd,
}


def _slot(optimizer, slots: list, variable: tf.Variable) -> tf.Tensor:
    """Returns the handle of what an optimizer keeps beside a weight."""
    slot = slots[optimizer._get_variable_index(variable)]
    return getattr(slot, "value", slot).handle
