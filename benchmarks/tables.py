"""A document of results as tables: for the terminal, and as markdown."""

from collections.abc import Iterable, Mapping, Sequence

import rich.table

CONTENDERS = ("comparison", "contender", "median", "min to max", "unit", "runs")
RATIOS = ("comparison", "ratio", "of medians", "of pairs: median (min to max)", "bar")
RATIOS += ("reached",)


def contender_rows(comparisons: Mapping[str, Mapping]) -> list[tuple[str, ...]]:
    """Returns the cells of `CONTENDERS` for each contender."""
    return [
        (name, contender, *_contender_cells(one, comparison["unit"]))
        for name, comparison in comparisons.items()
        for contender, one in comparison["contenders"].items()
    ]


def ratio_rows(comparisons: Mapping[str, Mapping]) -> list[tuple[str, ...]]:
    """Returns the cells of `RATIOS` for each ratio."""
    return [
        (name, row["name"], *_ratio_cells(row), row["bar"], _reached(row["is_reached"]))
        for name, comparison in comparisons.items()
        for row in comparison["rows"]
    ]


def for_terminal(comparisons: Mapping[str, Mapping]) -> list[rich.table.Table]:
    """Returns both tables, as rich prints them."""
    return [
        _rich(CONTENDERS, contender_rows(comparisons), numbers=(2, 3, 5)),
        _rich(RATIOS, ratio_rows(comparisons), numbers=(2, 3)),
    ]


def markdown(document: Mapping) -> str:
    """Returns the whole document as a page, headed by the machine note."""
    comparisons = document["comparisons"]
    parts = [
        f"# Benchmarks of {document['commit']}",
        "\n".join(
            f"- {name}: {'not installed' if value is None else value}"
            for name, value in document["machine"].items()
        ),
        _pipes(CONTENDERS, contender_rows(comparisons)),
        _pipes(RATIOS, ratio_rows(comparisons)),
        "\n".join(
            f"- {name}: {one['title']}. {one['date']}, "
            f"load {one['load_average'][0]:.2f}"
            + ", with changes that are not committed"
            * one["is_dirty"]
            for name, one in comparisons.items()
        ),
    ]
    return "\n\n".join(parts) + "\n"


def number(value: float) -> str:
    """Returns three or more significant digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _contender_cells(one: Mapping, unit: str) -> tuple[str, ...]:
    if one["median"] is None:
        why = one["skipped"] and f"skipped: {one['skipped']}"
        return (why or ("failed" if one["failed"] else "did not run"), "", unit, "0")
    count = sum(value is not None for value in one["values"])
    runs = str(count) if count == len(one["values"]) else f"{count}, and some failed"
    between = f"{number(one['least'])} to {number(one['most'])}"
    return (number(one["median"]), between, unit, runs)


def _ratio_cells(row: Mapping) -> tuple[str, str]:
    if row["ratio"] is None:
        return ("", "")
    if row["pair_median"] is None:
        return (f"{row['ratio']:.3f}", "")
    between = f"({row['pair_least']:.3f} to {row['pair_most']:.3f})"
    return (f"{row['ratio']:.3f}", f"{row['pair_median']:.3f} {between}")


def _reached(is_reached: bool | None) -> str:
    return "unknown" if is_reached is None else "yes" if is_reached else "NO"


def _rich(
    columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int]
) -> rich.table.Table:
    table = rich.table.Table()
    for place, column in enumerate(columns):
        table.add_column(
            column,
            justify="right" if place in numbers else "left",
            overflow="fold",
        )
    last = None
    for first, *rest in rows:
        if last not in (None, first):
            table.add_section()
        table.add_row("" if first == last else first, *rest)
        last = first
    return table


def _pipes(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
