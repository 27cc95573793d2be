"""Audits and reports of more than two classes, against fairlearn on each class."""

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
from fairlearn.metrics import (
    MetricFrame,
    demographic_parity_difference,
    equalized_odds_difference,
    true_positive_rate,
)

from fairrf_lightning.audit import Scores, audit
from fairrf_lightning.metrics import DemographicParityGap, EqualizedOddsGap, EqualOpportunityGap
from tests.audit.risk import RiskDataModule
from tests.audit.rows import read_audit
from tests.conftest import Refused

CLI: TypeAlias = Callable[[str], None]
CLASSES = range(3)
METRICS: dict[str, Any] = {
    "dDP": DemographicParityGap,
    "dEO": EqualOpportunityGap,
    "dEOdds": EqualizedOddsGap,
}
FIT = (
    "fit --data tests.audit.risk.RiskDataModule --model.num_classes 3 --trainer.max_epochs 2 "
    "--trainer.accelerator cpu"
)
CHECKPOINT = "lightning_logs/version_{}/checkpoints/last.ckpt"


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Real rows in the columns that ``predict`` writes, by a rule on prior offences and age."""
    table = RiskDataModule().read()
    table = table[table["race"].isin(["African-American", "Caucasian", "Hispanic"])]
    risk = np.log1p(table["priors_count"]) - table["age"] / 30
    logits = np.stack([-1.5 * risk, np.full(len(table), 0.3), 1.5 * risk], 1)
    probs = torch.tensor(logits).softmax(1).numpy()
    other = torch.tensor(0.4 * logits + [0.2, 0.0, 0.1]).softmax(1).numpy()
    found = pd.DataFrame({f"probability_{number}": probs[:, number] for number in CLASSES})
    found["decision"] = probs.argmax(1)
    found["target"] = table["risk"].to_numpy()
    found["race"], found["sex"] = (table[name].astype(str).to_numpy() for name in ("race", "sex"))
    return found.assign(**{f"other_{number}": other[:, number] for number in CLASSES})


def references(rows: pd.DataFrame, group: str, number: int) -> dict[str, float]:
    true, decided, groups = rows["target"] == number, rows["decision"] == number, rows[group]
    rates = MetricFrame(metrics=true_positive_rate, y_true=true, y_pred=decided, sensitive_features=groups)
    return {
        "dDP": demographic_parity_difference(true, decided, sensitive_features=groups),
        "dEO": rates.difference(),
        "dEOdds": equalized_odds_difference(true, decided, sensitive_features=groups),
    }


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("group", ["race", "sex"])
def test_gaps_of_a_file_are_fairlearns(
    cli: CLI, rows: pd.DataFrame, suffix: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows.to_csv("p.csv", index=False)
    rows.to_parquet("p.parquet")
    cli(f"audit p.{suffix} --groups {group}")
    printed, result = capsys.readouterr().out, read_audit()
    assert result["num_classes"] == 3
    assert result["threshold"] is None
    assert result["overall"]["accuracy"] == pytest.approx((rows["decision"] == rows["target"]).mean())
    expected = [references(rows, group, number) for number in CLASSES]
    codes = torch.tensor(pd.factorize(rows[group], sort=True)[0])
    probs = torch.tensor(rows[[f"probability_{number}" for number in CLASSES]].to_numpy())
    for gap in result["groupings"][0]["gaps"]:
        metric = METRICS[gap["gap"]](num_groups=int(codes.max()) + 1, mode=gap["mode"], num_classes=3)
        metric.update(probs, torch.tensor(rows["target"].to_numpy()), codes)
        assert gap["value"] == pytest.approx(metric.compute().item(), abs=1e-9)
        low, high = metric.interval()
        assert (gap["low"], gap["high"]) == pytest.approx((low.item(), high.item()), abs=1e-9)
        if gap["mode"] == "hard":
            found = [one["value"] for one in gap["by_class"]]
            assert found == pytest.approx([of[gap["gap"]] for of in expected], abs=1e-9)
            assert gap["value"] == max(found) == found[gap["largest_class"]]
            assert all(one["low"] <= one["value"] <= one["high"] for one in gap["by_class"])
            assert f"{gap['value']:.4f}" in printed
    lines = [line for line in printed.splitlines() if line[:1] in "┏┃│└┡"]
    assert max(map(len, lines)) <= 80
    assert "AUC and calibration are not applicable" in printed
    table = pd.read_csv("audit/audit_groups.csv")
    assert len(table) == rows[group].nunique() * 3
    rates = rows.groupby(group)["decision"].apply(lambda of: (of == 2).mean())
    chosen = table[table["class"] == 2].set_index("name")["selection_rate"]
    assert chosen.to_dict() == pytest.approx(rates.to_dict())


def test_arrays_in_python_give_the_same_as_the_file(cli: CLI, rows: pd.DataFrame) -> None:
    rows.to_parquet("p.parquet")
    cli("audit p.parquet --groups race,sex")
    probs = rows[[f"probability_{number}" for number in CLASSES]].to_numpy()[None]
    result = audit(Scores.of_arrays(rows["target"].to_numpy(), probs, rows[["race", "sex"]]))
    found, written = result.to_dict(), read_audit()
    assert json.loads(json.dumps(found)) == found
    for one, other in zip(found["groupings"], written["groupings"], strict=True):
        for gap, expected in zip(one["gaps"], other["gaps"], strict=True):
            if gap["mode"] == "hard":  # counts, which do not depend on the order of rows
                assert gap == expected
    assert len(result.gaps_table()) == 3 * 6 * 4  # groupings, gaps and modes, the largest and three classes


def test_without_labels_only_selection_rates_and_dp(
    cli: CLI, rows: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    rows.drop(columns="target").to_csv("p.csv", index=False)
    cli("audit p.csv --groups sex")
    printed, result = capsys.readouterr().out, read_audit()
    assert "Accuracy" not in printed
    assert result["overall"]["accuracy"] is None
    numbers = result["groupings"][0]["groups"][0]["classes"][0]
    assert {name for name, value in numbers.items() if value is not None} == {
        "class",
        "selection_rate",
        "selection_rate_low",
        "selection_rate_high",
        "mean_probability",
    }
    values = {gap["gap"]: gap["value"] for gap in result["groupings"][0]["gaps"] if gap["mode"] == "hard"}
    assert values == {"dDP": pytest.approx(values["dDP"]), "dEO": None, "dEOdds": None}


def test_the_same_decision_for_all_comes_first(
    cli: CLI, rows: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    rows.assign(probability_0=0.1, probability_1=0.7, probability_2=0.2).to_csv("p.csv", index=False)
    cli("audit p.csv --groups sex")
    assert capsys.readouterr().out.startswith("The model gives everyone the same decision")
    assert "The model gives everyone the same decision" in Path("audit/report.html").read_text("utf-8")


def test_two_models_are_compared_class_by_class(
    cli: CLI, rows: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    rows.to_csv("p.csv", index=False)
    cli("audit p.csv --groups sex --against other")
    printed, result = capsys.readouterr().out, read_audit()
    decided = rows[[f"other_{number}" for number in CLASSES]].to_numpy().argmax(1)
    right, other_right = rows["decision"] == rows["target"], decided == rows["target"]
    change = result["accuracy_difference"]
    assert change["value"] == pytest.approx(right.mean() - other_right.mean())
    assert change["only_first_right"] == (right & ~other_right).sum()
    assert change["both_wrong"] == (~right & ~other_right).sum()
    for gap in result["groupings"][0]["gaps"]:
        if gap["mode"] == "hard":
            for number, one in enumerate(gap["by_class"]):
                expected = references(rows.assign(decision=decided), "sex", number)[gap["gap"]]
                assert one["against"]["value"] == pytest.approx(expected, abs=1e-9)
                assert one["against"]["difference"] == pytest.approx(one["value"] - expected, abs=1e-9)
    assert "Change of the gaps by sex" in printed


def test_bounds_of_rows_of_unknown_group_hold_the_gap(cli: CLI, rows: pd.DataFrame) -> None:
    hidden = rows["sex"].where(rows.index % 10 != 0)
    rows.assign(sex=hidden).to_csv("p.csv", index=False)
    cli("audit p.csv --groups sex")
    for gap in read_audit()["groupings"][0]["gaps"]:
        if gap["mode"] == "hard":
            largest = max(references(rows, "sex", number)[gap["gap"]] for number in CLASSES)
            assert gap["bounds"][0] <= largest <= gap["bounds"][1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--threshold 0.3", "--threshold 0.3: the model has 3 classes"),
        ("--against race", "--against race: expected the columns race_0 to race_2"),
        ("--prob one --against other", "--against other: it has several classes, but one has two"),
        ("--decision decision", "expected 0 or 1 in every row; for more than two classes"),
        ("--target age", "column 'age' has the value '9' in data row 1: expected a class from 0 to 2"),
        ("--prob two", "name the column of the positive class by --prob, such as --prob two_1"),
    ],
)
def test_bad_input_is_told(options: str, message: str, rows: pd.DataFrame, refused: Refused) -> None:
    rows.assign(age=9, one=0.5, two_0=0.5, two_1=0.5).to_csv("p.csv", index=False)
    assert message in refused(f"audit p.csv --groups sex {options}")


def test_a_pilot_of_three_classes_is_refused(cli: CLI, rows: pd.DataFrame, refused: Refused) -> None:
    rows.to_csv("p.csv", index=False)
    cli("audit p.csv --groups sex")
    assert "an audit of 3 classes" in refused("sample-size 0.05 --pilot audit/audit.json")


@pytest.mark.filterwarnings("ignore:.*collapsed onto")
def test_a_run_of_three_classes_is_audited_and_reported(
    cli: CLI, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    cli(FIT)
    cli(f"{FIT} --model.eta 0")
    cli(FIT.replace("tests.audit.risk.RiskDataModule --model.num_classes 3", "compas"))
    trust = "--trust tests.audit.risk.RiskDataModule"
    first, second, binary = (CHECKPOINT.format(version) for version in range(3))
    logged = pd.read_csv("lightning_logs/version_0/metrics.csv")["test_dp_gap"].dropna().iloc[-1]
    capsys.readouterr()
    cli(f"audit lightning_logs/version_0 {trust}")
    largest = read_audit()["groupings"][0]["gaps"][0]
    assert largest["value"] == pytest.approx(logged, abs=1e-6)
    assert "the largest of 3 classes" in capsys.readouterr().out
    cli(f"audit {first} --against {second} {trust}")
    assert read_audit()["groupings"][0]["gaps"][0]["by_class"][2]["against"]["value"] is not None
    cli(f"report lightning_logs/version_0 {trust}")
    page = Path("lightning_logs/version_0/report.html").read_text("utf-8")
    assert "race, class 2" in page
    assert "Left out: for two classes only, and the model has 3." in page
    assert "calibration error" not in page
    cli(f"report lightning_logs/version_0 --against lightning_logs/version_1 {trust}")
    assert "it has 2 classes, but" in refused(f"audit {first} --against {binary} {trust}")
    assert "--threshold 0.4" in refused(f"audit {first} --threshold 0.4 {trust}")
    assert "expected two" in refused(f"certify {first} --template p.yaml {trust}")
    Path("s.csv").write_text("race\n")
    assert "expected two" in refused(f"audit {first} --survey s.csv {trust}")
    Path("c.json").write_text("{}")
    message = refused(f"report lightning_logs/version_0 --certificate c.json {trust}")
    assert "--certificate c.json: for models of two classes" in message


GOLDEN = Path(__file__).parent / "two_classes"  # written before audits had more than two classes


def write_two_classes(rows: pd.DataFrame) -> None:
    numbers = rows[["probability_2", "other_2"]].round(3)
    numbers.columns = pd.Index(["prob", "other"])
    two = numbers.assign(target=(rows["target"] == 2).astype(int), race=rows["race"], sex=rows["sex"])
    two.loc[two.index % 50 == 0, "sex"] = None
    two.to_csv("two.csv", index=False)


def test_two_classes_are_as_before(cli: CLI, rows: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    write_two_classes(rows)
    cli("audit two.csv --groups sex,race --against other")
    assert capsys.readouterr().out == (GOLDEN / "printed.txt").read_text("utf-8")
    written = json.dumps(read_audit(), indent=1) + "\n"
    numbers = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
    expected = (GOLDEN / "audit.json").read_text("utf-8")
    assert numbers.sub("#", written) == numbers.sub("#", expected)
    found = [float(number) for number in numbers.findall(written)]
    assert found == pytest.approx([float(number) for number in numbers.findall(expected)], abs=1e-9)
    assert content(Path("audit/model_card.md")) == content(GOLDEN / "model_card.md")


def content(card: Path) -> list[str]:
    """Return the lines of a card without its date and the versions of packages."""
    text = card.read_text("utf-8").partition("## Versions")[0]
    return [line for line in text.splitlines() if not line.startswith("Model: ")]


def test_a_limit_of_the_largest_gap_is_unknown_if_that_of_a_class_is() -> None:
    random = np.random.default_rng(0)
    probs = random.dirichlet([1, 1, 1], 400)
    target, groups = random.integers(0, 3, 400), random.integers(0, 2, 400)
    keep = (target != 0) | (groups == 0)
    keep[np.flatnonzero(~keep)[0]] = True  # one row of class 0 in group 1: no variance
    rows = pd.DataFrame({"group": groups.astype(str)})[keep].reset_index(drop=True)
    result = audit(Scores.of_arrays(target[keep], probs[keep][None], rows), min_rows=1)
    (gap,) = [one for one in result.groupings[0].gaps if (one.gap, one.mode) == ("dEO", "prob")]
    assert gap.by_class[0].high is None
    assert gap.value is not None
    assert gap.low is None
    assert gap.high is None
