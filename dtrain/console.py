"""What a person sees: lines and a progress bar on the terminal, all else in a log.

TensorFlow writes to file descriptors 1 and 2 from C++. `redirect` points both at
a task's log and keeps the terminal for the lines that dtrain itself, or a
`print` in the experiment, writes.
"""

import io
import os
import sys
from typing import TextIO

import rich.console
import rich.progress

from dtrain import errors


class Console:
    """Writes lines to a terminal and, where there is one, to a log.

    Args:
        terminal: where people look.
        error_terminal: where error messages go; `terminal` if not given.
        log: a copy of every line goes here.
    """

    def __init__(
        self,
        terminal: TextIO,
        error_terminal: TextIO | None = None,
        log: TextIO | None = None,
    ):
        self._rich = _RichConsole(file=terminal, highlight=False)
        self._errors = _RichConsole(file=error_terminal or terminal, highlight=False)
        self._log = log

    @property
    def is_terminal(self) -> bool:
        return self._rich.is_terminal

    def where(self) -> str:
        """Returns a sentence that says where the log is, if there is one."""
        return "" if self._log is None else f" The traceback is in {self._log.name}."

    def line(self, text: str = "") -> None:
        """Shows a line; above the progress bar, if there is one."""
        self._print(self._rich, text)
        self.log(text)

    def error(self, text: str) -> None:
        """Shows a line on the error terminal."""
        self._print(self._errors, text)
        self.log(text)

    def log(self, text: str) -> None:
        """Writes a line to the log only."""
        if self._log is not None:
            self._log.write(text + "\n")
            self._log.flush()

    def progress(
        self, *columns: rich.progress.ProgressColumn
    ) -> rich.progress.Progress:
        """Returns a progress display that lives at the terminal's last line."""
        return rich.progress.Progress(
            *columns,
            console=self._rich,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def _print(self, console: rich.console.Console, text: str) -> None:
        try:
            console.print(text, markup=False, emoji=False, soft_wrap=True)
        except OSError as error:
            # The reader of the pipe, or the terminal, is gone. Training goes on.
            console.file = open(os.devnull, "w")
            self.log(f"Nobody reads the terminal any more: {error}.")


class _RichConsole(rich.console.Console):
    """rich's console, but a closed pipe does not end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError("the pipe is closed")


class _Lines(io.TextIOBase):
    """Stands in for `sys.stdout`: whole lines go to the console."""

    def __init__(self, console: Console):
        self._console = console
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._console.line(line)
        return len(text)

    def flush(self) -> None:
        if self._rest:
            self.write("\n")


_terminals: list[TextIO] = []  # what `redirect` has left of the terminal


def restore() -> None:
    """Points file descriptors 1 and 2 at the terminal again."""
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor, terminal in enumerate(_terminals, 1):
        os.dup2(terminal.fileno(), descriptor)


def plain() -> Console:
    """Returns a console on this process's own stdout and stderr."""
    return Console(sys.stdout, sys.stderr)


def redirect(log_path: str) -> Console:
    """Sends file descriptors 1 and 2 to a log; returns the console that is left.

    Args:
        log_path: appended to; its folder is made.

    Raises:
        UsageError: the log cannot be written.
    """
    try:
        os.makedirs(os.path.dirname(log_path), exist_ok=True)
        log = open(log_path, "a", buffering=1, errors="replace")
    except OSError as error:
        raise errors.UsageError(
            f"The log {log_path} cannot be written: {error.strerror}. Give a "
            "--model_dir where it can."
        ) from error
    sys.stdout.flush()
    sys.stderr.flush()
    terminal = os.fdopen(os.dup(1), "w", buffering=1, errors="replace")
    error_terminal = os.fdopen(os.dup(2), "w", buffering=1, errors="replace")
    _terminals[:] = terminal, error_terminal
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    console = Console(terminal, error_terminal, log)
    sys.stdout = _Lines(console)
    return console
