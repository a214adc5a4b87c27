"""What a callback is. Importing this does not import TensorFlow."""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from dtrain.session.session import Session


class Callback:
    """Heir of `SessionRunHook`: called on the chief, around the steps.

    Override what is needed. Workers may be at work while `on_loop` runs; where a
    callback needs every step done, it says at which global step with `next_stop`.
    """

    def on_start(self, session: Session) -> None:
        """Called once, after the model is restored and before the first step."""

    def next_stop(self, session: Session) -> int | None:
        """Returns the next global step at which no step may be under way."""
        return None

    def on_loop(self, session: Session) -> None:
        """Called after each packed call; `session.step` updates are done."""

    def before_save(self, session: Session) -> None:
        """Called before a checkpoint is written; one that raises prevents it."""

    def on_save(self, session: Session, path: str) -> None:
        """Called after a checkpoint is written whole."""

    def on_evaluation(self, session: Session, results: dict[str, float]) -> None:
        """Called after an evaluation, with "loss", metrics and "examples"."""

    def on_end(self, session: Session) -> None:
        """Called once, when training has ended well, with no step under way."""

    def on_error(self, session: Session, error: BaseException) -> None:
        """Called once, when training ends in any other way, a signal included."""


class Periodic(Callback):
    """Acts every so many steps, with no step under way.

    Args:
        every: steps; 0 for never.
    """

    def __init__(self, every: int):
        self._every = every

    def on_start(self, session):
        self._last_step = session.step

    def next_stop(self, session):
        return next_multiple(self._last_step, self._every)

    def on_loop(self, session):
        due = self.next_stop(session)
        if session.is_quiet and due is not None and session.step >= due:
            self._last_step = session.step
            self.act(session)

    def act(self, session: Session) -> None:
        """Called when it is due."""


def crosses(before: int, now: int, every: int) -> bool:
    """Returns whether a multiple of `every` lies in (before, now]; 0 means never."""
    return every > 0 and now // every > before // every


def next_multiple(step: int, every: int) -> int | None:
    """Returns the first multiple of `every` above `step`; `None` if it is 0."""
    return (step // every + 1) * every if every > 0 else None
