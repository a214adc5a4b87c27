"""Runs dtrain and its peers side by side: python -m benchmarks.run

Contenders of a comparison run in turn, in rounds. After each round, all results of the
commit are in COMMIT.json, .md and .png.
"""

import argparse
import datetime
import json
import os
import shlex
import sys
from collections.abc import Sequence

import rich.console

from benchmarks import contender, machine, plot, results, tables
from benchmarks.comparisons import COMPARISONS, Comparison

DEFAULT_OUTPUT = os.path.join(contender.ROOT, "benchmarks", "results")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what the command line says; returns 1 if a contender failed."""
    args = _parser().parse_args(argv)
    console = rich.console.Console()
    if args.list:
        for comparison in COMPARISONS:
            print(f"{comparison.name:14} {comparison.title}")
        return 0
    runner = Runner(args.output, args.torch_python, console)
    is_good = True
    for comparison in args.only:
        is_good &= runner.run(comparison, args.rounds)
    return 0 if is_good else 1


class Runner:
    """Runs comparisons, and saves them.

    Args:
        output: the folder for results.
        torch_python: the interpreter that has PyTorch.
        console: where to print.
    """

    def __init__(self, output: str, torch_python: str, console: rich.console.Console):
        self._pythons = {"{python}": sys.executable, "{torch_python}": torch_python}
        self._console = console
        self._commit = machine.commit()
        self._path = os.path.join(os.path.abspath(output), self._commit)
        self._is_dirty = machine.is_dirty(output)
        self._machine = machine.note(self._commit, torch_python)
        self._save({})  # says at once if the results that are there do not go with it

    def run(self, comparison: Comparison, rounds: int) -> bool:
        """Runs the rounds of one comparison; returns whether no run failed."""
        self._console.print(f"\n{comparison.name}: {comparison.title}", style="bold")
        about = {
            "commit": self._commit,
            "is_dirty": self._is_dirty,
            "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "load_average": list(os.getloadavg()),
        }
        commands = {
            name: contender.expand(command, self._pythons)
            for name, command in comparison.contenders.items()
        }
        series = {
            name: results.Series(shlex.join(command))
            for name, command in commands.items()
        }
        for number in range(min(rounds, comparison.rounds or rounds)):
            for name in results.order(list(commands), number):
                if series[name].skipped is None:
                    self._run_one(commands[name], series[name])
                    self._print_last(f"round {number + 1}: {name}", series[name])
            done = {**about, **results.as_data(comparison, series)}
            self._save({comparison.name: done})
        for table in tables.for_terminal({comparison.name: done}):
            self._console.print(table)
        return all(one.failed is None for one in series.values())

    def _run_one(self, command: Sequence[str], series: results.Series) -> None:
        try:
            report = contender.run(command)
        except contender.Failed as error:
            series.reports.append(None)
            series.failed = str(error)
            return
        series.skipped = report.get("skipped")
        if series.skipped is None:
            series.reports.append(report)

    def _print_last(self, what: str, series: results.Series) -> None:
        if series.skipped is not None:
            text = f"skipped: {series.skipped}"
        elif series.values[-1] is None:
            text = f"failed: {series.failed}"
        else:
            text = tables.number(series.values[-1])
        self._console.print(f"{what} {text}", highlight=False, markup=False)

    def _save(self, comparisons: dict) -> None:
        new = {
            "commit": self._commit,
            "machine": self._machine,
            "comparisons": comparisons,
        }
        try:
            document = results.merge(results.read(f"{self._path}.json"), new)
        except ValueError as error:
            raise SystemExit(f"{self._path}.json: {error}") from error
        if not document["comparisons"]:
            return
        results.write(f"{self._path}.json", json.dumps(document, indent=1) + "\n")
        results.write(f"{self._path}.md", tables.markdown(document))
        if comparisons and not plot.draw(document, f"{self._path}.png"):
            self._console.print(
                "No picture: matplotlib is not installed (pip install "
                "dtrain[benchmarks]), or there is nothing to draw.",
                markup=False,
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        type=_comparisons,
        default=list(COMPARISONS),
        metavar="NAME,...",
        help="comparisons to run, of those that --list shows (default: all)",
    )
    parser.add_argument(
        "--rounds", type=_positive, default=5, help="runs of each contender (5)"
    )
    parser.add_argument(
        "--list", action="store_true", help="show the comparisons, and run none"
    )
    parser.add_argument(
        "--output", default=DEFAULT_OUTPUT, help="folder (benchmarks/results)"
    )
    parser.add_argument(
        "--torch_python",
        default=sys.executable,
        metavar="PATH",
        help="the interpreter that has PyTorch, if it is not this one",
    )
    return parser


def _comparisons(text: str) -> list[Comparison]:
    known = {comparison.name: comparison for comparison in COMPARISONS}
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{', '.join(unknown)} is not one of {', '.join(known)}"
        )
    return [known[name] for name in names]


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("at least 1 round")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
