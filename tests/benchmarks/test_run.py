"""The benchmark run: rows with tiny sizes, a row that fails, and the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.measuring import Row, alternate, compare, new_row
from benchmarks.run_page import TITLES, is_reached, write_page

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries, as in the script


@pytest.mark.parametrize("name", ["lambda", "metrics", "step"])
def test_a_row_has_times_and_ratios(name: str) -> None:
    row = run.measure(name, quick=True)
    # Peers are in the extra `benchmarks`, which `test` does not include.
    assert all(reason.startswith("ModuleNotFoundError") for reason in row["not_run"].values())
    assert row["comparisons"]
    for times in row["times"].values():
        assert len(times["cpu"]) == len(times["wall"]) > 0
        assert all(seconds >= 0 for seconds in times["cpu"] + times["wall"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fit", "grid", "goal", "imports", "processes", "audit", "growth"])
def test_a_long_row_runs(name: str) -> None:
    row = run.measure(name, quick=True)
    assert not row["not_run"]
    assert row["comparisons"]


def test_every_row_is_on_the_page() -> None:
    assert list(run.ROWS) == list(TITLES)


def test_the_first_way_is_compared_round_by_round() -> None:
    row = new_row()
    row["times"] = {"a": {"cpu": [2.0, 6.0, 4.0], "wall": []}, "b": {"cpu": [1.0, 2.0, 2.0], "wall": []}}
    compare(row, "a / b", "a", "b", at_most=2.0)
    (found,) = row["comparisons"]
    assert (found["value"], found["low"], found["high"]) == (2.0, 2.0, 2.5)
    assert is_reached({**found})
    assert not is_reached({**found, "kind": "at least", "target": 2.1})


def failing() -> None:
    raise ImportError("no such library")


def test_a_way_that_fails_is_reported_and_the_others_are_measured() -> None:
    row: Row = new_row()
    alternate(row, {"ours": lambda: sum(range(100)), "peer": failing}, rounds=2)
    compare(row, "peer / ours", "peer", "ours", at_least=1.0)
    assert row["not_run"] == {"peer": "ImportError: no such library"}
    assert list(row["times"]) == ["ours"]
    assert not row["comparisons"]


def test_a_row_that_fails_is_on_the_page_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results.json"
    row = new_row()
    row["times"] = {
        "ours": {"cpu": [1.0, 1.0], "wall": [1.0, 1.2]},
        "peer": {"cpu": [3.0, 3.0], "wall": [3, 4]},
    }
    compare(row, "peer / ours", "peer", "ours", at_least=1.0)
    row["growth"] = {"rows: training": [(10, 1.0), (100, 1.0)], "ranks: epoch": [(1, 2.0)]}
    results.write_text(json.dumps({"growth": row}))
    monkeypatch.setattr(run, "_MAX_SECONDS", 0.01)
    run.run_row("lambda", results, quick=True)
    write_page(results, tmp_path)
    page = (tmp_path / "benchmarks.md").read_text("utf-8")
    assert "| peer / ours | 3x | faster | yes |" in page
    assert "Not run: the whole row (given up after 0.01 s)." in page
    for figure in ("benchmarks", "benchmarks_growth"):
        assert (tmp_path / "figures" / f"{figure}.svg").stat().st_size > 5_000
