"""The peers' flags, and the line that each ends with."""

import argparse
import json

from benchmarks.peers import data


def parser(description: str | None, **jobs: int) -> argparse.ArgumentParser:
    """Returns a parser of the flags that peers share.

    Args:
        description: for --help.
        **jobs: flag of a number of tasks, and its default.
    """
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--model", choices=list(data.WIDTHS), default="mnist_mlp")
    made.add_argument("--optimizer", choices=list(data.LEARNING_RATES), default="sgd")
    made.add_argument(
        "--steps", type=int, default=2000, help="that are timed; a tenth come before"
    )
    for name, default in jobs.items():
        made.add_argument(f"--{name}", type=int, default=default)
    return made


def tell(value: float, **more) -> None:
    """Prints the result, as `benchmarks.run` expects it."""
    print(json.dumps({"value": value, **more}), flush=True)
