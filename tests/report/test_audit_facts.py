"""Audits in the report: of a run, of two runs, and of the audit command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fairrf_lightning.audit import Scores, audit
from fairrf_lightning.cli import main
from fairrf_lightning.cli.audit import print_audit
from fairrf_lightning.report.audit_facts import audit_facts
from fairrf_lightning.report.facts import Estimate
from fairrf_lightning.report.page import figures_of, render_card, render_page
from fairrf_lightning.report.wording import LINEAR_ONLY, interval, points

Cli = Callable[[str], None]
FIT = "fit --data synthetic --data.n_rows 2000 --data.batch_size 50 --trainer.max_epochs=2"
RUNS = Path("lightning_logs")


def test_a_run_is_compared_with_another_one(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    cli(f"{FIT} --model.eta 2")
    cli(f"{FIT} --model.eta 0")
    cli(f"{FIT} --seed_everything 5")
    main(["report", str(RUNS / "version_0"), "--against", str(RUNS / "version_1")])
    card = (RUNS / "version_0/model_card.md").read_text(encoding="utf-8")
    (best,) = (RUNS / "version_0/checkpoints").glob("best.ckpt")
    (other,) = (RUNS / "version_1/checkpoints").glob("best.ckpt")
    options = [
        "--data",
        "synthetic",
        "--data.n_rows",
        "2000",
        "--ckpt_path",
        str(best),
        "--against",
        str(other),
    ]
    main(["audit", *options])
    found = json.loads(Path("audit/audit.json").read_text())
    (grouping,) = found["groupings"]
    for gap in grouping["gaps"]:
        assert f"| {100 * gap['value']:.2f} |" in card
        assert f"| {100 * gap['against']['value']:.2f} |" in card
        assert gap["against"]["verdict"] in card
    change = found["accuracy_difference"]
    ends = interval(Estimate(*(change[name] for name in ("value", "low", "high"))), 2, signed=True)
    size = points(change["value"], 2, signed=True)
    assert f"Change: {size} (95 % interval {ends}), {change['verdict']}." in card
    for group in grouping["groups"]:
        assert f"{100 * group['selection_rate']:.2f} ({100 * group['selection_rate_low']:.2f}" in card
    assert "than vanilla" in card or "from vanilla" in card
    of_audit = Path("audit/model_card.md")
    table = "| dDP | decisions | group |"
    lines = [line for text in (card, of_audit.read_text()) for line in text.splitlines() if table in line]
    assert lines[0] == lines[1]
    of_audit.unlink()
    main(["report", "audit"])
    assert of_audit.is_file()
    with pytest.raises(SystemExit):
        main(["report", str(RUNS / "version_0"), "--against", str(RUNS / "version_2")])
    assert "the test rows of the two checkpoints differ" in capsys.readouterr().err


def test_predictions_of_any_model_are_audited_with_a_report(cli: Cli) -> None:
    del cli  # for its folder
    rows = [
        {"prob": (i % 10) / 10, "target": i % 2, "sex": "fm"[i % 3 > 0], "race": "xyz"[i % 3]}
        for i in range(300)
    ]
    rows += [{"prob": 0.7, "target": 1, "sex": None, "race": "rare"}] * 3
    pd.DataFrame(rows).to_csv("mine.csv", index=False)
    main(["audit", "--predictions", "mine.csv", "--groups", "sex,race"])
    page = Path("audit/report.html").read_text(encoding="utf-8")
    card = Path("audit/model_card.md").read_text(encoding="utf-8")
    assert "Audit of mine.csv" in page
    assert "3 rows of unknown group: between" in page
    assert "The sex of 3 rows is not known. Whatever it is, dDP lies between" in page
    assert "The sex of 3 rows is not known. Whatever it is, dDP lies between" in card
    assert "too few rows of rare" in page
    assert "| sex x race |" in card


@pytest.fixture
def result() -> dict[str, Any]:
    """Return an audit of next to nothing."""
    gap = {"gap": "dDP", "mode": "hard", "left_out": ["a"], "value": None, "low": None, "high": None}
    group = {"name": "a", "estimable": False, "rows": 2, "selection_rate": 0.5}
    grouping = {
        "name": "s",
        "unknown_rows": 0,
        "groups": [group],
        "gaps": [gap | {"bounds": None, "against": None}],
    }
    source = {"kind": "predictions", "path": "x.csv", "against": None, "data": None, "split": None}
    overall = {"accuracy": 0.5, "accuracy_low": 0.1, "accuracy_high": 0.9}
    settings = {"schema": 1, "level": 0.95, "threshold": 0.5, "min_rows": 10, "rows": 2}
    return {**settings, "source": source, "overall": overall, "groupings": [grouping]}


def test_what_is_not_estimable_is_said(result: dict[str, Any]) -> None:
    facts = audit_facts(result)
    assert facts.verdict.tone == "unknown"
    assert facts.verdict.sentences[0] == "dDP is not estimable: too few rows of a."
    assert facts.groups[0].note == "too few rows"
    assert facts.split == "2 rows"
    assert not facts.notes
    assert not figures_of(facts)["gaps"], "an empty axis shows nothing"
    assert "No gap is estimable from these rows" in render_page(facts)


def test_the_page_of_an_audit_says_what_was_audited(result: dict[str, Any]) -> None:
    path = "lightning_logs/version_0/checkpoints/last.ckpt"
    source = {"kind": "checkpoint", "path": path, "data": "compas", "split": "test"}
    ours = audit_facts(result | {"source": result["source"] | source})
    assert (ours.title, ours.subject) == ("Audit of last.ckpt on compas", path)
    assert ours.split == "test split, 2 rows"
    assert LINEAR_ONLY in render_card(ours)
    assert LINEAR_ONLY not in render_card(audit_facts(result)), "anybody's model"


def test_rows_that_are_not_compared_and_the_other_accuracy_are_said(result: dict[str, Any]) -> None:
    other = {"accuracy": 0.75, "accuracy_low": 0.6, "accuracy_high": 0.9}
    facts = audit_facts(result | {"rows": 9, "against": other, "source": result["source"] | {"against": "b"}})
    assert facts.notes == ["7 rows of other groups of s are not compared."]
    assert any(line.startswith("Accuracy is 50.0 % against 75.0 %") for line in facts.verdict.sentences)


def test_the_headline_says_which_groups_the_gap_lies_between() -> None:
    rng = np.random.default_rng(0)
    groups = pd.DataFrame({"race": ["a"] * 500 + ["b"] * 500 + ["c"] * 3})
    probs = np.r_[rng.uniform(0.3, 1.0, 500), rng.uniform(0.0, 0.7, 500), [0.9] * 3]
    source = {"path": "p.csv", "data": None, "split": None, "against": None}
    scores = Scores.of_arrays((probs > 0.4).astype(int), probs[None], groups, source=source)
    said = audit_facts(audit(scores).to_dict()).verdict.sentences
    rates = [f"{100 * (part >= 0.5).mean():.1f} %" for part in (probs[:500], probs[500:1000])]
    assert f"Selection rates by race: highest for a ({rates[0]}), lowest for b ({rates[1]})." in said


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([None] * 50, "No gap by race: no row's group is known, 50 rows are unknown."),
        (["a"] * 50, "No gap by race: only the group 'a' has rows."),
        (["a"] * 40 + [None] * 10, "No gap by race: only the group 'a' has rows, 10 rows are unknown."),
    ],
)
def test_why_there_is_nothing_to_compare_is_said(
    values: list[str | None], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    probs = np.linspace(0, 1, 50)
    groups = pd.DataFrame({"race": pd.Series(values, dtype="string")})
    source = {"path": "p.csv", "data": None, "split": None, "against": None}
    result = audit(Scores.of_arrays((probs > 0.4).astype(int), probs[None], groups, source=source)).to_dict()
    assert expected in audit_facts(result).verdict.sentences
    print_audit(result)
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "no audit.json"),
        ('{"schema": 9}', "schema 9 is not"),
        ('{"schema": 1}', "groupings is missing"),
    ],
)
def test_other_files_are_refused(
    cli: Cli, text: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    del cli  # for its folder
    Path("audit").mkdir()
    Path("audit/audit.json").write_text(text)
    with pytest.raises(SystemExit):
        main(["report", "audit"])
    assert expected in capsys.readouterr().err
