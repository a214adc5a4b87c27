"""Shows how training goes: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

import rich.progress

from dtrain.session.callbacks.base import Callback, crosses, next_multiple
from dtrain.session.speedometer import Speedometer


class ProgressDisplay(Callback):
    """Heir of `LoggingTensorHook` and `StepCounterHook`, for people.

    A terminal gets a bar; the log, and what is no terminal, a line each time the
    step crosses a multiple of `every`.

    Args:
        every: steps between lines; 0 for none.
        now: the clock, in seconds.
    """

    def __init__(self, every: int, now: Callable[[], float] = time.monotonic):
        self._every = every
        self._now = now
        self._bar = None

    def on_start(self, session):
        self._window = session.window()
        self._step = session.step
        self._speedometer = Speedometer(session.step, self._now)
        if session.console.is_terminal and session.step < session.last_step:
            self._bar = session.console.progress(
                rich.progress.TextColumn(
                    "step {task.completed:,.0f}/{task.total:,.0f}"
                ),
                rich.progress.BarColumn(bar_width=None),
                rich.progress.TextColumn("{task.fields[figures]}"),
            )
            self._task = self._bar.add_task(
                "", total=session.last_step, completed=session.step, figures=""
            )
            self._bar.start()

    def next_stop(self, session):
        # Where a stop costs nothing, what is told is of the very step.
        is_free = session.trainer.is_synchronous
        return next_multiple(session.step, self._every) if is_free else None

    def on_loop(self, session):
        if self._bar is not None:
            shown = min(session.step, session.last_step)
            self._bar.update(self._task, completed=shown)
        self._speedometer.note(session.step)
        if not crosses(self._step, session.step, self._every):
            return
        self._step = session.step
        figures = _describe(self._window.take())
        speed = self._speedometer.read(session.step)
        if speed is not None:
            left = max(session.last_step - session.step, 0) / speed
            figures += f"  {speed:.1f} steps/s  {_clock(left)} left"
        line = f"step {session.step}/{session.last_step}  {figures}"
        if self._bar is not None:
            self._bar.update(self._task, figures=figures)
            session.console.log(line)
        else:
            session.console.line(line)

    def on_evaluation(self, session, results):
        measured = {key: results[key] for key in results if key != "examples"}
        session.console.line(
            f"Evaluation at step {session.step}: {_describe(measured)} on "
            f"{results['examples']:,} examples"
        )

    def on_end(self, session):
        self._close()

    def on_error(self, session, error):
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _describe(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in values.items())


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
