from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pandas as pd
import pytest

from fairrf_lightning.audit.predictions import PredictionsFile
from fairrf_lightning.cli import main
from tests.audit.rows import read_audit, write_predictions

CLI: TypeAlias = Callable[[str], None]
CHECKPOINT = "lightning_logs/version_{}/checkpoints/last.ckpt"


def test_two_checkpoints_on_compas(cli: CLI, capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("fairrf", "arl", "fairrf --data.seed 1"):
        cli(f"fit --data compas --method {method} --trainer.max_epochs=1 --trainer.accelerator=cpu")
    paths = [CHECKPOINT.format(version) for version in range(3)]
    with pytest.raises(SystemExit) as error:
        main(["audit", f"--ckpt_path={paths[0]}", "--data=compas", "--against", paths[2]])
    assert error.value.code == 2
    assert "train both with the same data and seed" in capsys.readouterr().err
    assert not Path("audit").exists()
    capsys.readouterr()
    options = ["--data", "compas", "--against", paths[1], "--groups", "race,sex", "--min_rows", "100"]
    main(["audit", "--ckpt_path", paths[0], *options])
    printed = capsys.readouterr().out
    result = read_audit()
    assert [one["name"] for one in result["groupings"]] == ["race", "sex", "race x sex"]
    assert result["source"] == {
        "kind": "checkpoint",
        "path": paths[0],
        "against": paths[1],
        "data": "compas",
        "split": "test",
    }
    assert result["rows"] == 1852
    verdicts = {gap["against"]["verdict"] for gap in result["groupings"][0]["gaps"]}
    assert verdicts <= {"fairer, beyond noise", "no difference shown", "less fair, beyond noise"}
    assert "Gaps by race x sex" in printed
    assert "dEO leaves out groups with fewer than 100 such rows" in printed
    assert len(pd.read_csv("audit/audit_groups.csv")) == 2 + 2 + 4
    assert not list(Path("audit").glob("*.part"))


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_predictions_of_any_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_predictions()
    main(["audit", "--predictions", name, "--groups", "race,sex", "--against", "other"])
    result = read_audit()
    expected = table.assign(selected=table["prob"] >= 0.5).groupby("race")["selected"].mean()
    found = {group["name"]: group["selection_rate"] for group in result["groupings"][0]["groups"]}
    assert found == pytest.approx(expected.to_dict(), abs=1e-12)
    assert result["groupings"][0]["unknown_rows"] == 50
    printed = capsys.readouterr().out
    assert "whatever the groups of the 50 rows of unknown race" in printed
    change = result["accuracy_difference"]
    right = [(table[model] >= 0.5) == table["target"] for model in ("prob", "other")]
    assert change["value"] == pytest.approx(right[0].mean() - right[1].mean(), abs=1e-12)
    assert change["verdict"] == "more accurate, beyond noise"
    assert re.search(rf"{change['value']:.4f} .* {change['low']:.3f} to {change['high']:.3f} ", printed)
    assert result["groupings"][0]["gaps"][0]["against"]["verdict"] == "less fair, beyond noise"


@pytest.mark.usefixtures("cli")
def test_decisions_alone() -> None:
    table = write_predictions()
    main(
        [
            "audit",
            "--predictions",
            "p.csv",
            "--groups",
            "sex",
            "--decision",
            "decision",
            "--against",
            "target",
        ]
    )
    result = read_audit()
    assert {gap["mode"] for gap in result["groupings"][0]["gaps"]} == {"hard"}
    assert "auc" not in result["overall"]
    wrong = int((table["decision"] != table["target"]).sum())
    change = result["accuracy_difference"]
    assert (change["only_first_right"], change["only_second_right"]) == (0, wrong)
    assert change["verdict"] == "less accurate, beyond noise"
    assert result["overall"]["selection_rate"] == pytest.approx(table["decision"].mean(), abs=1e-12)


@pytest.mark.usefixtures("cli")
def test_many_batches_are_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    write_predictions()
    file = PredictionsFile(Path("p.parquet"), "target", ("race", "sex"), "prob")
    whole = file.count()
    monkeypatch.setattr("fairrf_lightning.audit.predictions._BATCH_ROWS", 100)
    parts = file.count()
    order = [parts.names.index(name) for name in whole.names]
    assert (parts.rows[order] == whole.rows).all()
    assert parts.squares[0][order] == pytest.approx(whole.squares[0], abs=1e-9)


@pytest.mark.usefixtures("cli")
def test_names_and_figures_are_whole_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = write_predictions()
    rows["sex"] = rows["sex"].map({"f": "[/b]African-American", "m": "[red]Caucasian[/red]"})
    rows.to_csv("p.csv", index=False)
    main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    printed = capsys.readouterr().out
    for name, group in rows.groupby("sex"):
        (line, scores) = [line for line in printed.splitlines() if f"│ {name} " in line]
        assert f"{(group['prob'] >= 0.5).mean():.4f}" in line
        assert f"{group['prob'].mean():.4f}" in scores
    assert "…" not in printed


@pytest.mark.usefixtures("cli")
def test_the_comparison_of_two_models_has_a_line_for_each_gap_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = write_predictions()
    rows["unfair"] = rows["prob"].where(rows["sex"] == "f", 0.9 - rows["target"] / 2)
    rows.to_csv("p.csv", index=False)
    for columns in (["--prob", "unfair", "--against", "prob"], ["--prob", "prob", "--against", "unfair"]):
        main(["audit", "--predictions", "p.csv", "--groups", "sex", *columns])
        lines = capsys.readouterr().out.splitlines()
        result = read_audit()
        shown = {f"│ {gap['gap']} {gap['mode']} ": gap["against"] for gap in result["groupings"][0]["gaps"]}
        shown[f"│ {result['overall']['accuracy']:.4f} "] = result["accuracy_difference"]
        for start, other in shown.items():
            (line,) = [line for line in lines if line.startswith(start) and "beyond noise" in line]
            assert f"│ {other.get('difference', other['value']):.4f} " in line
            assert f" {other['verdict']} " in line
            assert len(line) <= 80


@pytest.mark.usefixtures("cli")
def test_at_another_level_no_page_says_95_percent(capsys: pytest.CaptureFixture[str]) -> None:
    write_predictions()
    main(["audit", "--predictions", "p.csv", "--groups", "sex,sex", "--level", "0.9"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "90 % interval" in printed
    assert "sex x sex" not in printed
    assert "No report.html: its intervals are at 0.95, these at 0.9." in printed
    assert not Path("audit/report.html").exists()
    with pytest.raises(SystemExit):
        main(["report", "audit"])
    assert "audit without --level" in capsys.readouterr().err
