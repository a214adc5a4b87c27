"""The command: `python -m dtrain.main --strategy=ps`."""

import os
import sys
from collections.abc import Sequence

from dtrain import errors, flags
from dtrain.launch import life, lifeline
from dtrain.run import run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status.

    Args:
        argv: the program's name and its arguments; `sys.argv` if not given.
    """
    lifeline.hold()
    own = life.Life.read()
    try:
        config = flags.parse(sys.argv if argv is None else argv)
    except errors.DtrainError as error:
        print(f"dtrain: {error}", file=sys.stderr)
        return error.exit_status
    if config is None:
        return 0
    try:
        return run_command(config, own)
    except KeyboardInterrupt:
        return 130


def run() -> None:
    """The console script: ends the process with `main`'s status."""
    life.keep_command()
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # TensorFlow's servers and the coordinator's threads cannot be stopped, and
    # tearing down a process under them can hang or crash it.
    os._exit(status)


if __name__ == "__main__":
    run()
