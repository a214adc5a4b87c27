"""Runs of the command side by side: rounds of each in turn, and their medians."""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

FOLDER = os.path.dirname(os.path.abspath(__file__))


def run(experiment: str, *flags: str) -> float:
    """Returns the steps per second of one run.

    Args:
        experiment: module:function, of a module beside this one.
    """
    with tempfile.TemporaryDirectory() as scratch:
        result = f"{scratch}/result.json"
        command = [sys.executable, "-m", "dtrain.main", *flags]
        command += [
            f"--experiment={experiment}",
            f"--model_dir={scratch}/model",
            f"--result_file={result}",
        ]
        root = os.path.dirname(FOLDER)
        environ = dict(os.environ, PYTHONPATH=f"{root}{os.pathsep}{FOLDER}")
        subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
        with open(result) as file:
            return json.load(file)["steps_per_second"]


def main(
    description: str,
    runs: Mapping[str, Sequence[str]],
    ratios: Sequence[tuple[str, str]],
    rounds: int = 5,
) -> None:
    """Runs all of them in turn, as often as the command line says, and compares.

    Args:
        description: for --help.
        runs: name to experiment and flags.
        ratios: pairs of names, of whose medians the ratio is shown.
        rounds: how often, unless the command line says otherwise.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    rounds = parser.parse_args().rounds
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        # Each comes first as often as last: what drifts meets all of them alike.
        for name in list(runs)[:: -1 if number % 2 else 1]:
            speeds[name].append(run(*runs[name]))
            print(f"round {number + 1}: {name} {speeds[name][-1]:.1f}", flush=True)
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    print()
    for name, median in medians.items():
        least, most = min(speeds[name]), max(speeds[name])
        print(f"{name:22} {median:7.1f} steps/s  ({least:.1f} to {most:.1f})")
    for one, other in ratios:
        pairs = [a / b for a, b in zip(speeds[one], speeds[other], strict=True)]
        error = statistics.stdev(pairs) / len(pairs) ** 0.5 if rounds > 1 else math.nan
        print(
            f"{one} / {other}: {medians[one] / medians[other]:.3f} of medians; pairs: "
            f"median {statistics.median(pairs):.3f}, mean {statistics.mean(pairs):.3f} "
            f"(standard error {error:.3f})"
        )
