"""The tables of results, as text."""

import io

import pytest
import rich.console

from benchmarks import results, tables
from benchmarks.comparisons import Comparison, Ratio, at_least
from benchmarks.results import Series


def runs(*values):
    reports = [None if value is None else {"value": value} for value in values]
    return Series("command", reports, failed="status 1" if None in values else None)


def document(is_dirty=False, **series):
    """Returns a document of one comparison, of dtrain with each of the others."""
    series = {"dtrain": runs(3000.0, 2000.0, 4000.0), **series}
    ratios = tuple(
        Ratio("dtrain", (name,), at_least(2.0)) for name in series if name != "dtrain"
    )
    comparison = Comparison("sync", "Two workers", "steps/s", {}, ratios)
    about = {
        "commit": "28a0df5",
        "is_dirty": is_dirty,
        "date": "2026-07-01T12:00:00+00:00",
        "load_average": [0.126, 0.5, 1.5],
    }
    return {
        "commit": "28a0df5",
        "machine": {"CPU": "a fast one", "PyTorch": None},
        "comparisons": {"sync": {**about, **results.as_data(comparison, series)}},
    }


def cells_of(text, *first):
    """Returns the cells of the only row that begins with these."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
    (row,) = [row for row in rows if tuple(row[: len(first)]) == first]
    return [cell.strip() for cell in row[len(first) :]]


def test_the_page_is_headed_by_the_commit_and_the_machine():
    page = tables.markdown(document())
    assert page.startswith(
        "# Benchmarks of 28a0df5\n\n- CPU: a fast one\n- PyTorch: not installed\n\n"
    )


def test_a_contender_has_its_median_between_least_and_most():
    page = tables.markdown(document())
    found = cells_of(page, "sync", "dtrain")
    assert found == ["3,000", "2,000 to 4,000", "steps/s", "3"]


def test_a_skipped_peer_stands_there_by_name_with_the_reason():
    page = tables.markdown(document(ddp=Series("command", skipped="no PyTorch")))
    found = cells_of(page, "sync", "ddp")
    assert found == ["skipped: no PyTorch", "", "steps/s", "0"]
    found = cells_of(page, "sync", "dtrain / ddp")
    assert found == ["", "", "at least 2", "unknown"]


def test_a_peer_that_always_failed_is_said_to_have_failed():
    page = tables.markdown(document(tf1=runs(None, None)))
    assert cells_of(page, "sync", "tf1") == ["failed", "", "steps/s", "0"]
    assert cells_of(page, "sync", "dtrain / tf1")[-1] == "unknown"


def test_a_run_that_failed_is_told_beside_those_that_did_not():
    page = tables.markdown(document(tf1=runs(1.0, None, 2.0)))
    found = cells_of(page, "sync", "tf1")
    assert found == ["1.5", "1 to 2", "steps/s", "2, and some failed"]


def test_a_peer_whose_turn_has_not_come_did_not_run():
    page = tables.markdown(document(tf1=runs()))
    assert cells_of(page, "sync", "tf1")[0] == "did not run"


def test_a_ratio_stands_beside_its_bar():
    page = tables.markdown(document(tf1=runs(1000.0, 1000.0, 1000.0)))
    found = cells_of(page, "sync", "dtrain / tf1")
    assert found == ["3.000", "3.000 (2.000 to 4.000)", "at least 2", "yes"]


def test_a_bar_that_is_missed_catches_the_eye():
    page = tables.markdown(document(tf1=runs(3000.0, 3000.0, 3000.0)))
    assert cells_of(page, "sync", "dtrain / tf1")[-1] == "NO"


def test_a_ratio_without_pairs_is_of_medians_alone():
    page = tables.markdown(document(tf1=runs(None, None, None, 1500.0)))
    found = cells_of(page, "sync", "dtrain / tf1")
    assert found == ["2.000", "", "at least 2", "yes"]


@pytest.mark.parametrize("is_dirty", [False, True], ids=["clean", "dirty"])
def test_each_comparison_tells_when_and_of_what_it_is(is_dirty):
    page = tables.markdown(document(is_dirty))
    last = "- sync: Two workers. 2026-07-01T12:00:00+00:00, load 0.13"
    last += ", with changes that are not committed" if is_dirty else ""
    assert page.splitlines()[-1] == last


def test_the_page_has_as_many_cells_in_each_row():
    page = tables.markdown(document(tf1=runs(None), ddp=runs(1.0)))
    contenders, ratios = (
        part for part in page.split("\n\n") if part.startswith("| comparison")
    )
    for part, columns, count in (
        (contenders, tables.CONTENDERS, 3),
        (ratios, tables.RATIOS, 2),
    ):
        rows = [line[1:-1].split("|") for line in part.splitlines()]
        assert [cell.strip() for cell in rows[0]] == list(columns)
        assert {len(row) for row in rows} == {len(columns)}
        assert len(rows) == 2 + count


def test_the_terminal_shows_the_same_and_names_a_comparison_once():
    comparisons = document(
        tf1=runs(1000.0), ddp=Series("command", skipped="no PyTorch")
    )["comparisons"]
    output = io.StringIO()
    console = rich.console.Console(file=output, width=160)
    contenders, ratios = tables.for_terminal(comparisons)
    console.print(contenders)
    text = output.getvalue()
    for part in ("dtrain", "3,000", "2,000 to 4,000", "skipped: no PyTorch", "tf1"):
        assert part in text
    assert text.count("sync") == 1
    console.print(ratios)
    text = output.getvalue()
    assert text.count("sync") == 2
    for part in ("dtrain / tf1", "3.000", "at least 2", "yes", "unknown"):
        assert part in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12,346"),
        (1000, "1,000"),
        (999.4, "999.4"),
        (23.456, "23.46"),
        (1.02345, "1.023"),
        (0.0, "0"),
    ],
)
def test_numbers_are_short(value, text):
    assert tables.number(value) == text
