"""Many steps in one call, because a call costs more than a small model's step."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Steps written out one after the other in a packed call; see docs/design.md.
UNROLL = 10


def pack(
    step: Callable[[Any, Any], tuple[tf.Tensor, Any]],
    tally: Callable[[], Any],
    unroll: int = UNROLL,
) -> Callable[[Any, tf.Tensor], tuple]:
    """Returns `(iterator, num_steps) -> (loss_sum, tally)`, many steps in one call.

    Most steps are written out `unroll` at a time, which lets the runtime overlap
    one step's updates with the next one's reads; the rest run one by one. So one
    trace serves every `num_steps`, an int64 scalar, and tracing costs the same for
    any of them.

    Args:
        step: `(iterator, tally) -> (loss, tally)`.
        tally: returns what it is before any step.
        unroll: how many steps to write out.
    """

    # Loops by hand, because AutoGraph wraps what the user's code raises in a stack.
    def packed(iterator, num_steps):
        def one(index, loss_sum, tally):
            loss, tally = step(iterator, tally)
            return index + 1, loss_sum + loss, tally

        def many(index, *state):
            for _ in range(unroll):
                _, *state = one(index, *state)
            return index + 1, *state

        state = tf.zeros([], tf.float32), tally()
        loops = (many, num_steps // unroll), (one, num_steps % unroll)
        for body, times in loops if unroll > 1 else [(one, num_steps)]:
            start = tf.zeros([], tf.int64)
            _, *state = tf.while_loop(
                lambda index, *_, times=times: index < times, body, (start, *state)
            )
        return tuple(state)

    return packed
