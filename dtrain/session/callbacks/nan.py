"""Stops a run whose loss is no number: heir of `NanTensorHook`."""

from __future__ import annotations

import math

from dtrain import errors
from dtrain.session.callbacks.base import Callback


class NanStopper(Callback):
    """Fails the run at the first mean loss that is not finite."""

    def on_loop(self, session):
        if not math.isfinite(session.last_loss):
            raise errors.TrainingFailed(
                f"The loss is {session.last_loss} at or shortly before global step "
                f"{session.step}. Try a lower --learning_rate, or clip the gradients. "
                "Checkpoints that were saved before are untouched."
            )
