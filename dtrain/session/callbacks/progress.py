"""Shows how training goes: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

import rich.progress

from dtrain.session.callbacks.base import Callback, crosses, next_multiple
from dtrain.session.speedometer import Speedometer

# Steps that wait for a larger part of their time are worth a word.
_MUCH = 0.2
_MOST_NAMED = 4  # workers whose shares fit into a line


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
        self._advised: set[int] = set()
        total = session.last_step
        if session.console.is_terminal and (total is None or session.step < total):
            self._bar = session.console.progress(
                rich.progress.TextColumn(
                    "step {task.completed:,.0f}"
                    + ("" if total is None else "/{task.total:,.0f}")
                ),
                rich.progress.BarColumn(bar_width=None),
                rich.progress.TextColumn("{task.fields[figures]}"),
            )
            self._task = self._bar.add_task(
                "", total=total, completed=session.step, figures=""
            )
            self._bar.start()

    def next_stop(self, session):
        # Where a stop costs nothing, what is told is of the very step.
        is_free = session.trainer.is_synchronous
        return next_multiple(session.step, self._every) if is_free else None

    def on_loop(self, session):
        if self._bar is not None:
            shown = min(session.step, session.last_step or session.step)
            self._bar.update(self._task, completed=shown)
        self._speedometer.note(session.step)
        if not crosses(self._step, session.step, self._every):
            return
        self._step = session.step
        figures = _describe(self._window.take())
        speed = self._speedometer.read(session.step)
        if speed is not None:
            figures += f"  {speed:.1f} steps/s"
            if session.last_step is not None and speed:
                left = max(session.last_step - session.step, 0) / speed
                figures += f"  {_clock(left)} left"
        figures += self._describe_input(session)
        # With --epochs the end is not known to the step.
        last = (
            None if session.last_step is None else max(session.last_step, session.step)
        )
        whole = "" if last is None else f"/{last}"
        line = f"step {session.step}{whole}  {figures}"
        if self._bar is not None:
            self._bar.update(self._task, figures=figures)
            session.console.log(line)
        else:
            session.console.line(line)

    def _describe_input(self, session) -> str:
        """Returns the pass over the data, and for how long steps wait for it."""
        text, epochs = "", session.config.epochs
        if session.trainer.passes is not None:
            whole = "" if epochs is None else f"/{epochs}"
            text = f"  epoch {session.trainer.passes}{whole}"
        waits = self._window.waits
        slow = [index for index, share in waits.items() if share > _MUCH]
        if any(index not in self._advised for index in slow):
            self._advised.update(slow)
            num_workers = len(session.trainer.worker_steps)
            session.console.line(_advise(slow, waits, num_workers))
        if not waits:
            return text
        shares = waits.values()
        if len(waits) > _MOST_NAMED:
            return text + f"  input {min(shares):.0%} to {max(shares):.0%}"
        return text + "  input " + "/".join(f"{share:.0%}" for share in shares)

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


def _advise(slow: list[int], waits: dict[int, float], num_workers: int) -> str:
    """Returns one line on pipelines that steps wait for."""
    if not num_workers:
        who = f"Steps wait {waits[0]:.0%} of their time for input."
    else:
        who = "Waiting for input: " + ", ".join(
            f"worker:{index} {waits[index]:.0%} of its time" for index in slow
        )
        who += "."
    return (
        f"{who} train_data is slower than the model: prefetch, read files in parallel "
        "(num_parallel_calls, a PyDataset's workers), do less for each batch, or use "
        "more workers."
    )


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
