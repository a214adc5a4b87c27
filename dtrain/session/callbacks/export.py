"""Exports the model at the end."""

from __future__ import annotations

from dtrain.session import exporting
from dtrain.session.callbacks.base import Callback


class Exporter(Callback):
    """Writes a SavedModel and a .keras file when training has ended well.

    Args:
        folder: where to.
    """

    def __init__(self, folder: str):
        self._folder = folder

    def on_end(self, session):
        session.extras["export"] = exporting.export(
            session.trainer.copy_model(),
            session.trainer.batch_spec,
            self._folder,
            session.console,
        )
