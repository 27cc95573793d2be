"""Files without true labels: selection rates and dDP, and nothing made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fairrf_lightning.audit.command import count_rows
from fairrf_lightning.audit.labels import run_labels
from fairrf_lightning.audit.result import audit
from fairrf_lightning.cli import main
from fairrf_lightning.errors import InputError
from tests.audit.rows import read_audit, write_predictions

MEASURED = {"rows", "selection_rate", "selection_rate_low", "selection_rate_high", "mean_probability"}
pytestmark = pytest.mark.usefixtures("cli")


@pytest.fixture
def table() -> pd.DataFrame:
    rows = write_predictions().drop(columns="target")
    rows.to_csv("p.csv", index=False)
    rows.to_parquet("p.parquet")
    return rows


def numbers(figures: dict[str, Any]) -> set[str]:
    return {
        name for name, value in figures.items() if isinstance(value, (int, float)) and name != "estimable"
    }


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_selection_rates_and_dp_are_all_that_is_measured(
    name: str, table: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["audit", "--predictions", name, "--groups", "sex"])
    result, printed = read_audit(), capsys.readouterr().out
    assert result["labels"] is False
    (grouping,) = result["groupings"]
    for figures in (result["overall"], *grouping["groups"]):
        assert numbers(figures) == MEASURED
    rates = (table["prob"] >= 0.5).groupby(table["sex"]).mean()
    gaps = {(gap["gap"], gap["mode"]): gap for gap in grouping["gaps"]}
    assert gaps["dDP", "hard"]["value"] == pytest.approx(rates.max() - rates.min(), abs=1e-12)
    assert gaps["dDP", "hard"]["low"] is not None
    assert gaps["dDP", "prob"]["value"] is not None
    for gap in ("dEO", "dEOdds"):
        assert {gaps[gap, "hard"][key] for key in ("value", "low", "high", "bounds", "against")} == {None}
    lines = printed.splitlines()
    assert lines[0].startswith("No true labels: selection rates and dDP are measured; accuracy, ")
    assert lines[-2] == lines[0], "before the line of the files"
    assert len([line for line in lines if line.count("not applicable") == 2 and "│ dEO" in line]) == 4
    assert "AUC" not in printed.replace(lines[0], "")


def test_the_report_names_nothing_that_needs_labels(table: pd.DataFrame) -> None:
    del table
    main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    page, card = (
        Path("audit", name).read_text(encoding="utf-8") for name in ("report.html", "model_card.md")
    )
    for text in (page, card):
        assert "No true labels: selection rates and dDP are measured" in text
        assert "dEO and dEOdds are not applicable" in text
    assert "| dDP | decisions | sex |" in card
    for words in ("| dEO |", "| dEOdds |", "Accuracy", "true positive rate, %", "calibration error"):
        assert words not in card
    assert '<p class="what">accuracy</p>' not in page


def test_two_models_are_compared_by_selection_rates(
    table: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    del table
    main(["audit", "--predictions", "p.csv", "--groups", "sex", "--against", "other"])
    result = read_audit()
    assert result["accuracy_difference"] is None
    assert numbers(result["against"]) == MEASURED
    gaps = {(gap["gap"], gap["mode"]): gap for gap in result["groupings"][0]["gaps"]}
    assert gaps["dDP", "hard"]["against"]["verdict"]
    assert gaps["dEO", "hard"]["against"] is None
    printed = capsys.readouterr().out
    assert "Accuracy" not in printed
    assert "| dDP | decisions | sex |" in Path("audit/model_card.md").read_text(encoding="utf-8")


def test_decisions_without_probabilities(table: pd.DataFrame) -> None:
    main(["audit", "--predictions", "p.csv", "--groups", "race", "--decision", "decision"])
    result = read_audit()
    assert numbers(result["overall"]) == MEASURED - {"mean_probability"}
    assert result["overall"]["selection_rate"] == pytest.approx(table["decision"].mean(), abs=1e-12)
    (gap,) = [gap for gap in result["groupings"][0]["gaps"] if gap["gap"] == "dDP"]
    assert gap["bounds"], "rows of unknown race"


def test_labels_that_are_there_are_used_and_a_named_column_must_exist(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = write_predictions()
    main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    assert read_audit()["overall"]["accuracy"] is not None
    main(["audit", "--predictions", "p.csv", "--groups", "sex", "--target", ""])
    assert read_audit()["overall"]["accuracy"] is None
    with pytest.raises(SystemExit):
        main(["audit", "--predictions", "p.csv", "--groups", "sex", "--target", "hired"])
    assert "no column 'hired'" in capsys.readouterr().err
    rows.assign(target=rows["target"].where(rows.index != 4)).to_csv("p.csv", index=False)
    with pytest.raises(SystemExit):
        main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    assert "row 5: expected 0 or 1 in every row; --target '' audits without" in capsys.readouterr().err


def test_a_dummy_label_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    write_predictions().assign(target=0).to_csv("p.csv", index=False)
    main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    assert capsys.readouterr().out.startswith("Every true label is 0: if these are not real labels, accuracy")


def test_a_pilot_without_labels_answers_for_dp_only(table: pd.DataFrame) -> None:
    del table
    main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    assert run_labels(["--width", "0.1", "--pilot", "audit/audit.json"]) > 0
    with pytest.raises(InputError, match="no true labels, which --gap dEO needs"):
        run_labels(["--width", "0.1", "--pilot", "audit/audit.json", "--gap", "dEO"])


def test_arrays_without_labels(table: pd.DataFrame) -> None:
    cells = count_rows(None, table[["prob"]].to_numpy().T, table[["sex"]])
    result = audit(cells, ["sex"], source={})
    assert result["overall"]["accuracy"] is None
    assert result["overall"]["selection_rate"] == pytest.approx((table["prob"] >= 0.5).mean(), abs=1e-12)
