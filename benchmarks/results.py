"""Results as plain data: medians, ratios, and the file they are merged into.

Nothing here runs or prints anything. A document, as it is saved, is

    {"commit": "28a0df5", "machine": {...}, "comparisons": {NAME: comparison, ...}}

and a comparison

    {"title", "unit", "commit", "is_dirty", "date", "load_average",
     "contenders": {NAME: {"command", "values", "reports", "skipped", "failed",
                           "median", "least", "most"}, ...},
     "rows": [{"name", "ratio", "pair_median", "pair_least", "pair_most", "bar",
               "is_reached"}, ...]}

In "values", a run that failed has `None`: the values of a round stand at one place.
"""

import dataclasses
import json
import os
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.comparisons import Comparison, Ratio


@dataclasses.dataclass
class Series:
    """What the runs of one contender told, round by round.

    Attributes:
        command: as a shell would take it.
        reports: the object of each run; `None` of one that failed.
        skipped: why it cannot run here; `None` if it can.
        failed: what the last failure was; `None` if there was none.
    """

    command: str
    reports: list[dict | None] = dataclasses.field(default_factory=list)
    skipped: str | None = None
    failed: str | None = None

    @property
    def values(self) -> list[float | None]:
        return [report and report["value"] for report in self.reports]

    @property
    def good(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def median(self) -> float | None:
        return statistics.median(self.good) if self.good else None


def order(names: Sequence[str], round_number: int) -> list[str]:
    """Returns the contenders in the order of a round.

    Each comes first as often as last: what drifts meets all of them alike.
    """
    return list(names)[:: -1 if round_number % 2 else 1]


def as_data(comparison: Comparison, series: Mapping[str, Series]) -> dict:
    """Returns a comparison's contenders and rows, as they are saved."""
    return {
        "title": comparison.title,
        "unit": comparison.unit,
        "contenders": {
            name: {
                **dataclasses.asdict(one),
                "values": one.values,
                "median": one.median,
                "least": min(one.good, default=None),
                "most": max(one.good, default=None),
            }
            for name, one in series.items()
        },
        "rows": rows(comparison, series),
    }


def rows(comparison: Comparison, series: Mapping[str, Series]) -> list[dict]:
    """Returns each ratio, and each of the values by name, beside its bar."""
    found = [_ratio_row(ratio, series) for ratio in comparison.ratios]
    if comparison.each is not None:
        for contender, one in series.items():
            for name, numbers in _by_name(one).items():
                middle = statistics.median(numbers)
                found.append(
                    _row(f"{contender} {name}", middle, numbers, comparison.each)
                )
    return found


def best(names: Sequence[str], series: Mapping[str, Series]) -> str | None:
    """Returns the contender with the highest median; `None` if none has one."""
    told = [name for name in names if series[name].median is not None]
    return max(told, key=lambda name: series[name].median, default=None)


def merge(old: Mapping | None, new: Mapping) -> dict:
    """Returns a document with the comparisons of both, where both have one, the new.

    Args:
        old: a document of the same commit; `None` if there is none.
        new: a document.

    Raises:
        ValueError: they are of different commits, or of different machines.
    """
    if old is None:
        return dict(new)
    if old["commit"] != new["commit"]:
        raise ValueError(f"Results of {old['commit']} and {new['commit']} do not mix.")
    machine = {**old["machine"], **new["machine"]}
    for name, value in new["machine"].items():
        if value is None:  # an interpreter without PyTorch says nothing against it
            machine[name] = old["machine"].get(name)
        elif old["machine"].get(name) not in (None, value):
            raise ValueError(
                f"The results that are there are of another machine: {name} is "
                f"{old['machine'][name]!r}, and now {value!r}. Give another --output."
            )
    comparisons = {**old["comparisons"], **new["comparisons"]}
    return {**new, "machine": machine, "comparisons": comparisons}


def read(path: str) -> dict | None:
    """Returns the document in a file; `None` if there is no file."""
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return json.load(file)


def write(path: str, text: str) -> None:
    """Writes a file, whole or not at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def _ratio_row(ratio: Ratio, series: Mapping[str, Series]) -> dict:
    other = best(ratio.denominators, series)
    name = f"{ratio.numerator} / {other or ' or '.join(ratio.denominators)}"
    if ratio.divided_by != 1:
        name += f" / {ratio.divided_by:g}"
    if len(ratio.denominators) > 1 and other:
        name += " (the best)"
    top = series[ratio.numerator]
    if other is None or top.median is None:
        return _row(name, None, [], ratio.bar)
    bottom = series[other]
    pairs = [
        one / two / ratio.divided_by
        # One of them may have been skipped from some round on.
        for one, two in zip(top.values, bottom.values, strict=False)
        if one is not None and two is not None
    ]
    return _row(name, top.median / bottom.median / ratio.divided_by, pairs, ratio.bar)


def _row(name: str, number: float | None, pairs: Sequence[float], bar) -> dict:
    return {
        "name": name,
        "ratio": number,
        "pair_median": statistics.median(pairs) if pairs else None,
        "pair_least": min(pairs, default=None),
        "pair_most": max(pairs, default=None),
        "bar": str(bar),
        "is_reached": None if number is None else bar.is_reached(number),
    }


def _by_name(one: Series) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for report in one.reports:
        for name, number in (report or {}).get("values", {}).items():
            found.setdefault(name, []).append(number)
    return found
