"""What the runs of a comparison come to: medians, ratios, bars, and one file of all."""

import json

import pytest

from benchmarks import results
from benchmarks.comparisons import Comparison, Ratio, at_least, at_most
from benchmarks.results import Series


def runs(*values, skipped=None):
    """Returns what runs told; `None` stands for one that failed."""
    reports = [None if value is None else {"value": value} for value in values]
    failed = "status 1" if None in values else None
    return Series("command", reports, skipped, failed)


def compare(*ratios, each=None):
    return Comparison("speed", "Speed", "steps/s", {}, ratios, each)


def row_of(ratio, **series):
    (row,) = results.rows(compare(ratio), series)
    return row


def document(commit="28a0df5", machine=None, **comparisons):
    machine = {"CPU": "a CPU", "PyTorch": "2.9"} | (machine or {})
    return {"commit": commit, "machine": machine, "comparisons": comparisons}


# Runs


def test_every_other_round_goes_the_other_way():
    orders = ["".join(results.order("abc", number)) for number in range(4)]
    assert orders == ["abc", "cba", "abc", "cba"]


@pytest.mark.parametrize(
    ("values", "median"),
    [
        ([3.0, 1.0, 8.0], 3.0),
        ([3.0, 1.0], 2.0),
        ([None, 3.0, None], 3.0),
        ([0.0], 0.0),
        ([None], None),
        ([], None),
    ],
)
def test_the_median_is_of_the_runs_that_told_something(values, median):
    assert runs(*values).median == median


def test_a_failed_run_keeps_its_place_among_the_values():
    assert runs(1.0, None, 3.0).values == [1.0, None, 3.0]
    assert runs(1.0, None, 3.0).good == [1.0, 3.0]


def test_what_is_saved_has_every_run_and_what_they_come_to():
    series = {"a": runs(4.0, None, 1.0, 2.0), "b": runs(skipped="no PyTorch")}
    comparison = compare(Ratio("a", ("b",), at_least(1)))
    data = results.as_data(comparison, series)
    assert (data["title"], data["unit"]) == ("Speed", "steps/s")
    assert data["contenders"]["a"] == {
        "command": "command",
        "reports": [{"value": 4.0}, None, {"value": 1.0}, {"value": 2.0}],
        "skipped": None,
        "failed": "status 1",
        "values": [4.0, None, 1.0, 2.0],
        "median": 2.0,
        "least": 1.0,
        "most": 4.0,
    }
    b = data["contenders"]["b"]
    assert (b["values"], b["median"], b["least"], b["most"]) == ([], None, None, None)
    assert data["rows"] == results.rows(comparison, series)
    assert json.loads(json.dumps(data)) == data


# Ratios


def test_the_ratio_is_of_medians_and_beside_it_stand_the_pairs():
    ratio = Ratio("a", ("b",), at_least(3.5))
    row = row_of(ratio, a=runs(2.0, 8.0, 9.0), b=runs(1.0, 2.0, 9.0))
    assert row == {
        "name": "a / b",
        "ratio": 4.0,  # 8 / 2
        "pair_median": 2.0,  # of 2, 4 and 1
        "pair_least": 1.0,
        "pair_most": 4.0,
        "bar": "at least 3.5",
        "is_reached": True,
    }


def test_a_failed_run_spoils_its_own_pair_and_no_other():
    ratio = Ratio("a", ("b",), at_least(1))
    row = row_of(ratio, a=runs(6.0, None, 8.0, 9.0), b=runs(2.0, 1.0, 4.0, None))
    # Pairs are those of the first and the third round.
    assert (row["pair_least"], row["pair_median"], row["pair_most"]) == (2.0, 2.5, 3.0)
    assert row["ratio"] == 4.0  # 8 / 2


def test_the_run_that_only_one_of_them_has_counts_in_its_median_alone():
    ratio = Ratio("a", ("b",), at_least(1))
    row = row_of(ratio, a=runs(4.0, 6.0, 9.0), b=runs(2.0, 2.0))
    assert row["ratio"] == 3.0
    assert (row["pair_least"], row["pair_most"]) == (2.0, 3.0)
    row = row_of(ratio, a=runs(4.0), b=runs(2.0, 6.0))
    assert row["ratio"] == 1.0
    assert (row["pair_least"], row["pair_most"]) == (2.0, 2.0)


def test_without_one_whole_pair_there_still_is_a_ratio_of_medians():
    ratio = Ratio("a", ("b",), at_least(1))
    row = row_of(ratio, a=runs(4.0, None), b=runs(None, 2.0))
    assert row["ratio"] == 2.0
    assert row["pair_median"] is row["pair_least"] is row["pair_most"] is None
    assert row["is_reached"] is True


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (runs(None, None), runs(1.0, 1.0)),
        (runs(1.0, 1.0), runs(None, None)),
        (runs(1.0), runs(skipped="no PyTorch")),
        (runs(), runs()),
    ],
    ids=["a_failed", "b_failed", "b_skipped", "none_ran"],
)
def test_without_both_of_them_nobody_knows(a, b):
    row = row_of(Ratio("a", ("b",), at_least(1)), a=a, b=b)
    assert row["name"] == "a / b"
    assert row["ratio"] is row["pair_median"] is row["is_reached"] is None


def test_what_is_expected_of_more_workers_divides():
    ratio = Ratio("a", ("b",), at_least(0.95), divided_by=4)
    row = row_of(ratio, a=runs(8.0, 16.0, 16.0), b=runs(4.0, 4.0, 4.0))
    assert row["name"] == "a / b / 4"
    assert (row["ratio"], row["pair_median"]) == (1.0, 1.0)
    assert (row["pair_least"], row["pair_most"]) == (0.5, 1.0)
    assert row["is_reached"]


def test_the_denominator_is_the_one_with_the_highest_median():
    series = {
        "a": runs(6.0, 6.0, 6.0),
        "once fast": runs(1.0, 1.0, 9.0),
        "fast": runs(3.0, 3.0, 2.0),
        "slow": runs(2.0, 2.0, 2.0),
    }
    others = ("once fast", "fast", "slow")
    assert results.best(others, series) == "fast"
    row = row_of(Ratio("a", others, at_least(1)), **series)
    assert row["name"] == "a / fast (the best)"
    assert (row["ratio"], row["pair_least"], row["pair_most"]) == (2.0, 2.0, 3.0)


def test_the_best_is_one_that_ran():
    ran, failed, skipped = runs(0.1), runs(None), runs(skipped="it is not here")
    series = {"failed": failed, "skipped": skipped, "ran": ran}
    assert results.best(list(series), series) == "ran"
    del series["ran"]
    assert results.best(list(series), series) is None
    row = row_of(Ratio("a", tuple(series), at_least(1)), a=ran, **series)
    assert row["name"] == "a / failed or skipped"
    assert row["ratio"] is None


# Values by name


def test_values_by_name_get_a_row_each():
    reports = [
        {"value": 1.5, "values": {"ps:0": 1.0, "worker:0": 1.5}},
        None,
        {"value": 1.1, "values": {"ps:0": 1.1, "worker:0": 1.1}},
        {"value": 1.3, "values": {"ps:0": 1.2}},
        {"value": 1.0},
    ]
    series = {"dtrain": Series("command", reports)}
    rows = results.rows(compare(each=at_most(1.2)), series)
    assert [row["name"] for row in rows] == ["dtrain ps:0", "dtrain worker:0"]
    first, second = rows
    assert (first["ratio"], first["is_reached"]) == (1.1, True)
    assert (first["pair_least"], first["pair_most"]) == (1.0, 1.2)
    assert second["ratio"] == pytest.approx(1.3)
    assert (second["bar"], second["is_reached"]) == ("at most 1.2", False)


def test_values_by_name_get_no_row_unless_they_have_a_bar():
    series = {"dtrain": Series("command", [{"value": 1.0, "values": {"ps:0": 1.0}}])}
    assert results.rows(compare(), series) == []


# Bars


@pytest.mark.parametrize(
    ("bar", "text", "reached", "missed"),
    [
        (at_least(0.95), "at least 0.95", [0.95, 2.0], [0.9499]),
        (at_least(2.0), "at least 2", [2.0, 9.0], [1.9999, 0.0]),
        (at_most(1.02), "at most 1.02", [1.02, 0.5], [1.0201, 9.0]),
    ],
    ids=["least", "least_whole", "most"],
)
def test_a_bar_is_reached_from_one_side(bar, text, reached, missed):
    assert str(bar) == text
    assert all(bar.is_reached(number) for number in reached)
    assert not any(bar.is_reached(number) for number in missed)


@pytest.mark.parametrize(
    ("bar", "is_reached"),
    [(at_least(1.0), True), (at_least(1.2), False), (at_most(1.0), True)],
    ids=str,
)
def test_the_ratio_of_medians_is_held_against_the_bar_and_no_pair(bar, is_reached):
    row = row_of(Ratio("a", ("b",), bar), a=runs(2.0, 3.0, 1.0), b=runs(1.0, 2.0, 3.0))
    assert (row["ratio"], row["pair_median"]) == (1.0, 1.5)
    assert row["is_reached"] is is_reached


# The file


def test_the_first_results_are_the_document():
    new = document(speed={"title": "new"})
    assert results.merge(None, new) == new


def test_a_comparison_that_ran_again_replaces_itself_and_nothing_else():
    old = document(speed={"title": "old", "unit": "s"}, memory={"title": "old"})
    new = document(speed={"title": "new"}, startup={"title": "new"})
    assert results.merge(old, new) == document(
        speed={"title": "new"}, memory={"title": "old"}, startup={"title": "new"}
    )
    assert old["comparisons"]["speed"]["title"] == "old"


def test_another_commit_is_refused():
    with pytest.raises(ValueError, match="28a0df5 and 13438e2 do not mix"):
        results.merge(document(), document("13438e2"))


@pytest.mark.parametrize("name", ["CPU", "PyTorch"])
def test_another_machine_is_refused(name):
    with pytest.raises(ValueError, match=f"another machine: {name} is .*'another'"):
        results.merge(document(), document(machine={name: "another"}))


@pytest.mark.parametrize(
    ("old", "new", "merged"),
    [("2.9", None, "2.9"), (None, "2.9", "2.9"), (None, None, None)],
    ids=["gone", "new", "never"],
)
def test_a_pytorch_that_is_missing_is_no_other_machine(old, new, merged):
    both = results.merge(
        document(machine={"PyTorch": old}), document(machine={"PyTorch": new})
    )
    assert both["machine"] == {"CPU": "a CPU", "PyTorch": merged}


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "results" / "28a0df5.json"
    assert results.read(str(path)) is None
    for title in ("old", "new"):
        saved = document(machine={"PyTorch": None}, speed={"title": title})
        results.write(str(path), json.dumps(saved))
        assert results.read(str(path)) == saved
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "28a0df5.json"
    results.write(str(path), "{}")
    with pytest.raises(UnicodeEncodeError):
        results.write(str(path), '{"a": "\udc80"}')
    assert results.read(str(path)) == {}
