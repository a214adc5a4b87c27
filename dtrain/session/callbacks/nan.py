"""Stops a run whose loss is no number: heir of `NanTensorHook`."""

from __future__ import annotations

import math

from dtrain import errors
from dtrain.session.callbacks.base import Callback

_ADVICE = (
    "Try a lower --learning_rate, --warmup_steps, or --clip_norm. "
    "Checkpoints that were saved before are untouched."
)


class NanStopper(Callback):
    """Fails the run at the first loss that is no number.

    The weights may be none already when the loss still is one: so they are looked at
    before they would take the place of good ones in a checkpoint.
    """

    def on_loop(self, session):
        bad_step = session.trainer.totals.bad_step
        if bad_step is not None:
            raise errors.TrainingFailed(
                f"The loss is no number in the step to global step {bad_step + 1}. "
                f"{_ADVICE}"
            )
        if not math.isfinite(session.last_loss):
            raise errors.TrainingFailed(
                f"The loss is {session.last_loss} at or shortly before global step "
                f"{session.step}. {_ADVICE}"
            )

    def before_save(self, session):
        bad = session.trainer.find_bad_weight()
        if bad is not None:
            raise errors.TrainingFailed(
                f"At global step {session.step} {bad} holds what is no number: no "
                f"checkpoint of it is saved. {_ADVICE}"
            )

    def on_evaluation(self, session, results):
        bad = [name for name, value in results.items() if not math.isfinite(value)]
        if bad:
            session.console.line(
                f"Warning: the evaluation at step {session.step} gives no number for "
                f"{', '.join(bad)}. Look at eval_data, and at what the model keeps "
                "beside its weights."
            )
