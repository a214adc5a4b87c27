"""Learning rates by global step, as flags describe them.

Step k of a run, 0-based, uses `schedule(k)`, also where several workers count at the
same time (`Step.take_ticket`).
"""

from typing import Any

import keras

from dtrain import errors
from dtrain.config import RunConfig

Schedule = keras.optimizers.schedules.LearningRateSchedule


class Constant(Schedule):
    """The same rate at every step.

    Args:
        rate: that one.
    """

    def __init__(self, rate: float):
        self._rate = rate

    def __call__(self, step: Any) -> Any:
        return keras.ops.convert_to_tensor(self._rate, "float32")


class WarmUp(Schedule):
    """Rises from 0 in a straight line, and then is another schedule.

    As in "Accurate, Large Minibatch SGD" (Goyal et al., 2017).

    Args:
        after: what follows; its step 0 comes right after the warm-up.
        steps: how long the warm-up is.
    """

    def __init__(self, after: Schedule, steps: int):
        self._after = after
        self._steps = steps

    def __call__(self, step: Any) -> Any:
        step = keras.ops.cast(step, "float32")
        rate = self._after(keras.ops.maximum(step - self._steps, 0.0))
        return rate * keras.ops.minimum(step / self._steps, 1.0)


def make(config: RunConfig, own: float | Schedule) -> Schedule:
    """Returns the schedule that a config asks for.

    Args:
        config: without gaps.
        own: the rate from which it starts, or the experiment's own schedule, which
            stays unless the config has another.

    Raises:
        UsageError: the flags do not say when what happens.
    """
    schedule = _make_main(config, own)
    return WarmUp(schedule, config.warmup_steps) if config.warmup_steps else schedule


def _make_main(config: RunConfig, own: float | Schedule) -> Schedule:
    schedules = keras.optimizers.schedules
    name = config.learning_rate_schedule
    if isinstance(own, Schedule):
        if name is None:
            return own
        raise errors.UsageError(
            f"--learning_rate_schedule={name} would take the place of the experiment's "
            f"own {type(own).__name__}, which has no single rate to start from. Add "
            "--learning_rate."
        )
    if name == "cosine":
        return schedules.CosineDecay(own, _decay_steps(config))
    if name == "exponential":
        return schedules.ExponentialDecay(own, _decay_steps(config), config.decay_rate)
    if name == "piecewise":
        boundaries = [step - config.warmup_steps for step in config.boundaries()]
        if boundaries[0] < 0:
            raise errors.UsageError(
                f"--decay_boundaries={config.decay_boundaries} begins within "
                f"--warmup_steps={config.warmup_steps}. Give steps after it."
            )
        rates = [own * config.decay_rate**i for i in range(len(boundaries) + 1)]
        return schedules.PiecewiseConstantDecay(boundaries, rates)
    return Constant(own)


def _decay_steps(config: RunConfig) -> int:
    if config.decay_steps is not None:
        return config.decay_steps
    flag = f"--learning_rate_schedule={config.learning_rate_schedule}"
    if config.epochs is not None:
        raise errors.UsageError(
            f"{flag} with --epochs={config.epochs} does not know how many steps there "
            "will be. Add --decay_steps."
        )
    steps = config.train_steps - config.warmup_steps
    if steps < 1:
        raise errors.UsageError(
            f"{flag}: --warmup_steps={config.warmup_steps} leaves nothing of "
            f"--train_steps={config.train_steps}. Give fewer."
        )
    return steps
