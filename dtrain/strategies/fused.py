"""Updates of dense weights in one operation each, where TensorFlow has it.

Keras' Adam goes a dozen times over a weight and its two averages, and a ps does so for
all workers. TensorFlow's own operations compute the same, but for the last bits, in one
pass or a few: docs/design.md has what that gains.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

_ROUNDING = 1e-6  # of a number, several times what float32 leaves of 1 - 0.9


@contextlib.contextmanager
def updates(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Within it, an optimizer updates by one operation a weight, if there is one.

    That is so for SGD; and, in float32, for Adam and AdamW without `amsgrad`. What is
    sparse, and an optimizer with an `update_step` of its own, is left as it is.
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
    dtype = variable.dtype
    if optimizer.amsgrad or dtype != tf.float32:  # Keras rounds float64 in its own way
        return False
    gradient = tf.cast(gradient, dtype)
    m = _slot(optimizer, optimizer._momentums, variable)
    v = _slot(optimizer, optimizer._velocities, variable)
    count = tf.cast(tf.convert_to_tensor(optimizer.iterations) + 1, dtype)
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=m.handle,
        v=v.handle,
        beta1_power=tf.pow(tf.constant(optimizer.beta_1, dtype), count),
        beta2_power=tf.pow(tf.constant(optimizer.beta_2, dtype), count),
        lr=tf.cast(rate, dtype),
        beta1=_move(m, gradient, optimizer.beta_1),
        beta2=_move(v, tf.square(gradient), optimizer.beta_2),
        epsilon=tf.constant(optimizer.epsilon, dtype),
        grad=gradient,
    )
    return True


def _move(average: tf.Variable, value: tf.Tensor, beta: float) -> tf.Tensor:
    """Returns the beta by which the operation is to move an average to a value.

    It takes 1 - beta in the average's own precision, which for 0.999 in float32 is
    1.3e-5 less than the 0.001 that Keras takes. Where that is more than rounding, the
    average is moved here, as Keras does it; for the operation it stays: a beta of 1.
    (A square that overflows then becomes NaN, which ends the run; Keras' stays
    infinite, and the weight where it is.)
    """
    dtype = average.dtype.as_numpy_dtype
    lost = abs(float(dtype(1) - dtype(beta)) - (1 - beta))
    if lost > _ROUNDING * (1 - beta):
        average.assign_add((value - average) * (1 - beta))
        beta = 1.0
    return tf.constant(beta, average.dtype)


def _sgd(
    optimizer: keras.optimizers.SGD,
    gradient: tf.Tensor,
    variable: tf.Variable,
    rate: tf.Tensor,
) -> bool:
    """Updates a weight and its momentum, if it has one; it always can."""
    dtype = variable.dtype
    rate, gradient = tf.cast(rate, dtype), tf.cast(gradient, dtype)
    if optimizer.momentum:
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=_slot(optimizer, optimizer.momentums, variable).handle,
            lr=rate,
            grad=gradient,
            momentum=tf.constant(optimizer.momentum, dtype),
            use_nesterov=optimizer.nesterov,
        )
    else:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=rate, delta=gradient
        )
    return True


_UPDATES: dict[Callable, Callable[..., bool]] = {
    keras.optimizers.Adam.update_step: _adam,
    keras.optimizers.SGD.update_step: _sgd,
}


def _slot(optimizer, slots: list, variable: tf.Variable) -> tf.Variable:
    """Returns what an optimizer keeps beside a weight."""
    slot = slots[optimizer._get_variable_index(variable)]
    return getattr(slot, "value", slot)
