from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pytest
import torch

from fairrf_lightning.audit.labels import labels_needed, mean_width, worst_case
from fairrf_lightning.audit.predictions import PredictionsFile
from fairrf_lightning.cli import main
from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics.gap_interval import RateSample, gap_interval

CLI: TypeAlias = Callable[[str], None]
CHECKPOINT = "lightning_logs/version_{}/checkpoints/last.ckpt"


def read_audit() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("audit/audit.json").read_text(encoding="utf-8"))
    return found


def write_predictions(rows: int = 2000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    race = rng.choice(["a", "b", "c"], rows)
    prob = rng.beta(2 + (race == "a"), 3)
    table = pd.DataFrame({"prob": prob, "target": (rng.random(rows) < prob).astype(int), "race": race})
    table["sex"] = rng.choice(["f", "m"], rows)
    table["other"] = rng.beta(2, 3, rows)
    table["decision"] = (prob >= 0.4).astype(int)
    table.loc[:49, "race"] = None
    table.to_csv("p.csv", index=False)
    table.to_parquet("p.parquet")
    return table


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
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--groups race --prob probb", "no column 'probb'; did you mean 'prob'"),
        ("", "--groups is not given"),
        ("--groups race --nonsense 1", "--nonsense 1: not an option"),
        ("--groups prob", "combinations of values"),
        ("--groups sex,target", "--groups target: this column is the true class"),
        ("--groups prob,other", "too many to be groups"),
        ("--groups race --target sex", "column 'sex' has the value '.' in data row 1: expected 0 or 1"),
        (
            "--groups race --prob more",
            "column 'more' has the value 2.0 in data row 1: expected a probability",
        ),
        (
            "--groups race --prob holes",
            "column 'holes' has an empty cell in data row 8: expected a probability",
        ),
        ("--groups race --level 95", "level is 95"),
        ("--groups race --level abc", "--level: invalid float value"),
        ("--groups race --threshold 2", "--threshold 2"),
        ("--groups race --min_rows 0", "--min_rows 0"),
        ("--groups race --out p.parquet", "--out p.parquet: this is a file"),
    ],
)
def test_bad_input_is_told(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_predictions()
    rows.assign(more=2.0, holes=rows["prob"].where(rows.index != 7)).to_parquet("p.parquet")
    with pytest.raises(SystemExit) as error:
        main(["audit", "--predictions", "p.parquet", *options.split()])
    assert error.value.code == 2
    printed = capsys.readouterr().err
    assert re.search(message, printed)
    assert printed.count("\n") == 1


@pytest.mark.usefixtures("cli")
def test_a_folder_that_cannot_be_written_to_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    write_predictions()
    main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    # The file of predictions is not there: what cannot be written is told before it is read.
    for command in (["audit", "--predictions", "none.csv", "--groups", "sex"], ["report", "audit"]):
        with pytest.raises(SystemExit):
            main([*command, "--out", "p.csv/below"])
        printed = capsys.readouterr().err
        assert printed.startswith("error: p.csv/below: cannot be written to (Not a directory); name another")
        assert printed.count("\n") == 1


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"prob;target;sex\n0.5;1;f\n", "p.csv: its columns are separated by ';'; write it with commas."),
        (b"prob,target,sex\n0.5,1,\xfc\n", "invalid UTF8 data; save the file as UTF-8"),
        (b"prob,target,sex,\xfc\n0.5,1,f,1\n", "save the file as UTF-8"),
        (b"prob,target,sex\nhigh,1,f\n", "invalid value 'high'; expected numbers such as 0.25"),
    ],
)
def test_what_to_do_with_other_kinds_of_csv_is_told(
    content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("p.csv").write_bytes(content)
    with pytest.raises(SystemExit):
        main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.usefixtures("cli")
def test_the_row_of_a_wrong_value_counts_the_batches_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairrf_lightning.audit.predictions._BATCH_ROWS", 100)
    rows = write_predictions()
    rows.loc[1233, "target"] = 3
    rows.to_parquet("p.parquet")
    with pytest.raises(InputError, match="'target' has the value 3 in data row 1,234: expected 0 or 1"):
        PredictionsFile(Path("p.parquet"), "target", ("sex",), "prob").count()


@pytest.mark.usefixtures("cli")
def test_a_checkpoint_without_data_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["audit", "--ckpt_path", "best.ckpt"])
    assert "error: --data is not given: name the data of the checkpoint" in capsys.readouterr().err


@pytest.mark.usefixtures("cli")
def test_two_columns_of_one_name_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.csv").write_text("target,prob,prob,sex\n1,0.2,0.3,f\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    assert "2 columns are named 'prob'" in capsys.readouterr().err


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
def test_without_a_model_there_is_nothing_to_audit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["audit", "--groups", "race"])
    assert error.value.code == 2
    assert "--ckpt_path and --data, or --predictions" in capsys.readouterr().err


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


@pytest.mark.usefixtures("cli")
def test_a_group_too_small_for_the_pilot_does_not_ask_for_labels(capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_predictions()
    rows.loc[rows.index[:3], "sex"] = "x"
    rows.to_csv("p.csv", index=False)
    main(["audit", "--predictions", "p.csv", "--groups", "sex"])
    main(["labels", "--width", "0.2", "--pilot", "audit/audit.json"])
    rates = re.findall(r"at rates ([^)]*)\)", capsys.readouterr().out)
    assert len(rates[0].split(",")) == rows["sex"].nunique() - 1


@pytest.mark.usefixtures("cli")
def test_unreadable_files_are_told() -> None:
    Path("bad.parquet").write_bytes(b"PAR1 nonsense")
    Path("empty.csv").write_text("prob,target,race\n", encoding="utf-8")
    for name, message in (
        ("none.csv", "no such file"),
        ("bad.parquet", "cannot be read"),
        ("empty.csv", "no rows"),
    ):
        with pytest.raises(InputError, match=message):
            PredictionsFile(Path(name), "target", ("race",), "prob").count()
    write_predictions()
    with pytest.raises(InputError, match="--prob"):
        PredictionsFile(Path("p.csv"), "target", ("race",)).count()


@pytest.mark.parametrize(
    ("shares", "rates"), [((0.3, 0.7), (0.3, 0.2)), ((0.1, 0.2, 0.3, 0.2, 0.2), (0.2, 0.3, 0.4, 0.4, 0.3))]
)
def test_so_many_labels_give_the_width(shares: tuple[float, ...], rates: tuple[float, ...]) -> None:
    needed = labels_needed(0.1, shares, rates)
    metric_widths = []
    rng = np.random.default_rng(5)
    for _ in range(40):  # sampled anew, groups at random too, and measured by the interval that audits use
        counts = rng.multinomial(needed, shares)
        metric_widths.append(interval_width(counts, rng.binomial(counts, rates)))
    assert np.mean(metric_widths) == pytest.approx(0.1, rel=0.05)
    assert mean_width(needed // 2, shares, rates, 0.95) > 0.12


def interval_width(counts: np.ndarray[Any, Any], successes: np.ndarray[Any, Any]) -> float:
    sums, totals = (torch.from_numpy(part).double().unsqueeze(0) for part in (successes, counts))
    low, high = gap_interval(RateSample.of_sums(totals, sums))
    return float(high - low)


def test_the_worst_case_is_enough() -> None:
    assert mean_width(worst_case(0.1, [0.4, 0.6]), [0.4, 0.6], [0.6, 0.4], 0.95) <= 0.1


@pytest.mark.parametrize(
    ("shares", "hard"),
    [  # the hardest rates of a long random search, and some of their kind
        ((1 / 3, 1 / 3, 1 / 3), (0.653, 0.5, 0.5)),
        ((0.2, 0.2, 0.2, 0.2, 0.2), (0.467, 0.556, 0.542, 0.536, 0.47)),
        ((0.05, 0.05, 0.05, 0.05, 0.8), (0.563, 0.554, 0.423, 0.416, 0.506)),
    ],
)
def test_the_worst_case_of_several_groups_is_enough(
    shares: tuple[float, ...], hard: tuple[float, ...]
) -> None:
    rows = worst_case(0.1, shares)
    rng = np.random.default_rng(0)
    for _ in range(5):
        rates = (hard + rng.normal(0, 0.02, len(hard))).tolist()
        assert mean_width(rows, shares, rates, 0.95) < 0.102
    needed = mean_width(rows, shares, hard, 0.95)
    assert 0.095 < needed < 0.102, "nor much more than enough"


@pytest.mark.usefixtures("cli")
def test_labels_command(capsys: pytest.CaptureFixture[str]) -> None:
    write_predictions()
    main(["labels", "--width", "0.1"])
    assert (
        "1,537 rows with a known S give dDP a 95 % interval of width 0.1 (whatever" in capsys.readouterr().out
    )
    main(["labels", "--width", "0.2", "--shares", "0.3,0.3,0.4"])
    assert "at the hardest rates found by simulation" in capsys.readouterr().out
    main(["labels", "--width", "0.2", "--gap", "dEO", "--rates", "0.6,0.4", "--base_rates", "0.3,0.2"])
    assert "at rates 0.600, 0.400" in capsys.readouterr().out
    main(["audit", "--predictions", "p.csv", "--groups", "race,sex"])
    for gap in ("dDP", "dEO"):
        main(["labels", "--width", "0.2", "--pilot", "audit/audit.json", "--grouping", "sex", "--gap", gap])
        assert f"rows with a known S give {gap}" in capsys.readouterr().out


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--width 2", "--width 2.0"),
        ("--width 0.1 --shares 0.9,0.9", "--shares 0.9,0.9"),
        ("--width 0.1 --shares a,b", "--shares a,b"),
        ("--width 0.1 --rates 0.1", "--rates 0.1"),
        ("--width 0.1 --gap dEO --base_rates 0,0.5", "--base_rates 0,0.5"),
        ("--width 0.1 --pilot none.json", "not an audit.json"),
        ("--width 0.1 --pilot few.json", "not two groups"),
        ("--width 0.1 --pilot few.json --grouping sex", "--grouping sex"),
        ("--width 0.000001 --rates 0.3,0.2", "more than"),
    ],
)
def test_bad_options_of_labels_are_told(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("few.json").write_text(
        '{"min_rows": 10, "groupings": [{"name": "race", "groups": []}]}', encoding="utf-8"
    )
    with pytest.raises(SystemExit) as error:
        main(["labels", *options.split()])
    assert error.value.code == 2
    assert message in capsys.readouterr().err
