"""Facts of audits, and of the files of a run, however odd they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fairrf_lightning.audit import Scores, audit
from fairrf_lightning.checkpoints import load_checkpoint
from fairrf_lightning.cli import main
from fairrf_lightning.cli.audit import print_audit
from fairrf_lightning.errors import InputError
from fairrf_lightning.load import RunFolder
from fairrf_lightning.report.audit import audit_facts
from fairrf_lightning.report.facts import DataFacts, History
from fairrf_lightning.report.page import render_card, render_page
from fairrf_lightning.report.run import RunAudit, run_facts
from fairrf_lightning.report.sections import gaps_section, sections
from fairrf_lightning.report.text import LINEAR_ONLY
from tests.conftest import Cli, Refused

RECORD = """{"data": "X", "rows": {"test": 3}, "columns": ["a", "b=1", "b=2"], "related": {"a": [0]},
"sensitive": "s",
"include_sensitive": %s, "expose_sensitive": %s, "groups": ["f", "m"]}"""


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


SOURCE = {"path": "p.csv", "data": None, "split": None, "against": None}


def audited(target: Any, groups: pd.DataFrame, *probs: Any, against: str | None = None) -> dict[str, Any]:
    """Return the audit of one model, or of two, as in ``audit.json``."""
    source = SOURCE | {"against": against}
    return audit(Scores.of_arrays(target, np.stack(probs), groups, source=source)).to_dict()


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
    settings: dict[str, Any] = {"schema": 1, "level": 0.95, "threshold": 0.5, "min_rows": 10, "rows": 2}
    settings |= {"notices": [], "against": None, "accuracy_difference": None}
    return {**settings, "source": source, "overall": overall, "groupings": [grouping]}


def test_what_is_not_estimable_is_said(result: dict[str, Any]) -> None:
    facts = audit_facts(result)
    assert facts.verdict.tone == "unknown"
    assert facts.verdict.sentences[0] == "dDP is not estimable: too few rows of a."
    assert facts.groups[0].note == "too few rows"
    assert facts.split == "2 rows"
    assert not facts.limits
    section = gaps_section(facts)
    assert section is not None
    assert not section.plots, "an empty axis shows nothing"
    assert "No gap is estimable from these rows" in render_page(facts, sections(facts))


def test_the_page_of_an_audit_says_what_was_audited(result: dict[str, Any]) -> None:
    path = "lightning_logs/version_0/checkpoints/last.ckpt"
    source = {"kind": "checkpoint", "path": path, "data": "compas", "split": "test"}
    ours = audit_facts(result | {"source": result["source"] | source})
    assert (ours.title, ours.subject) == ("Audit of last.ckpt on compas", path)
    assert ours.split == "test split, 2 rows"
    assert LINEAR_ONLY in render_card(ours, sections(ours))
    assert LINEAR_ONLY not in audit_facts(result).limits, "anybody's model"


def test_rows_that_are_not_compared_and_the_other_accuracy_are_said(result: dict[str, Any]) -> None:
    other = {"accuracy": 0.75, "accuracy_low": 0.6, "accuracy_high": 0.9}
    change = {"value": -0.25, "low": -0.5, "high": 0.0}
    facts = audit_facts(
        result
        | {
            "rows": 9,
            "against": other,
            "accuracy_difference": change,
            "source": result["source"] | {"against": "b"},
        }
    )
    assert facts.limits == ["7 rows of other groups of s are not compared."]
    assert any(line.startswith("Accuracy is 50.0 % against 75.0 %") for line in facts.verdict.sentences)


def test_the_headline_says_which_groups_the_gap_lies_between() -> None:
    rng = np.random.default_rng(0)
    groups = pd.DataFrame({"race": ["a"] * 500 + ["b"] * 500 + ["c"] * 3})
    probs = np.r_[rng.uniform(0.3, 1.0, 500), rng.uniform(0.0, 0.7, 500), [0.9] * 3]
    said = audit_facts(audited((probs > 0.4).astype(int), groups, probs)).verdict.sentences
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
    result = audited((probs > 0.4).astype(int), groups, probs)
    assert expected in audit_facts(result).verdict.sentences
    print_audit(result)
    assert expected in capsys.readouterr().out


def test_the_headline_of_a_nearly_constant_model_names_no_gap() -> None:
    rng = np.random.default_rng(0)
    groups = pd.DataFrame({"sex": ["f", "m"] * 1000})
    probs = np.where(np.arange(2000) < 3, 0.9, 0.1)
    facts = audit_facts(audited(rng.integers(0, 2, 2000), groups, probs))
    title = facts.verdict.title
    assert title.startswith(
        "Almost every decision is the same: 99.9 % are negative, balanced accuracy is 0.5"
    )
    assert "small" not in title
    assert not any("dDP" in line or "gap" in line for line in facts.verdict.sentences)
    assert not facts.notices, "the headline has it"


def test_the_headline_of_a_model_that_accepts_few_names_no_gap() -> None:
    """40 of 500 true positives and none of 1,500 negatives are accepted."""
    groups = pd.DataFrame({"sex": ["f", "m"] * 1000})
    target = (np.arange(2000) < 500).astype(int)
    few, many = (np.where(np.arange(2000) < accepted, 0.9, 0.1) for accepted in (40, 450))
    alone, both, reverse = (
        audit_facts(result).verdict
        for result in (
            audited(target, groups, few),
            audited(target, groups, few, many, against="vanilla"),
            audited(target, groups, many, few, against="few"),
        )
    )
    assert alone.title.startswith("It hardly distinguishes people: 2.0 % of decisions are positive and")
    assert both.title.startswith("Its decisions have collapsed: 2.0 % of decisions are positive and")
    assert "against 22.5 % and 0.95 of vanilla" in both.title
    for verdict in (alone, both):
        assert verdict.tone == "unknown"
        assert "dDP" not in verdict.title
    assert "collapsed" not in reverse.title


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "not an audit.json"),
        ('{"schema": 9}', "schema 9 is not"),
        ('{"schema": 1}', "groupings is missing"),
    ],
)
def test_other_files_are_refused(text: str, expected: str, refused: Refused) -> None:
    Path("audit").mkdir()
    Path("audit/audit.json").write_text(text)
    assert expected in refused("report audit")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(
        "model: {class_path: mine.Net}\ndata: {class_path: my.XDataModule}\n"
    )
    return tmp_path


def data_of(folder: Path, include: str, expose: str) -> DataFacts:
    (folder / "run.json").write_text(RECORD % (include, expose))
    found = run_facts(RunFolder(folder), RunAudit()).data
    assert found is not None
    return found


def test_what_the_model_saw_of_s_is_told(folder: Path) -> None:
    assert data_of(folder, "true", "false").use_of_sensitive == "s is an input of the model."
    assert "used by the penalty" in data_of(folder, "false", "true").use_of_sensitive
    data = data_of(folder, "false", "false")
    assert "not used in training" in data.use_of_sensitive
    assert data.columns == {"a": ["a"], "b": ["b=1", "b=2"]}
    assert data.name == "x"


def test_a_foreign_run_is_reported_with_what_it_has(folder: Path) -> None:
    facts = run_facts(RunFolder(folder), RunAudit())
    assert (facts.subject, facts.data, facts.accuracy, list(facts.gaps)) == ("Net", None, None, [])
    assert facts.verdict.tone == "unknown"
    assert set(facts.as_dict()["absent"]) >= {"gaps", "groups", "training", "data"}
    (folder / "config.yaml").write_text("model: {init_args: {eta: 0.0}}")
    assert run_facts(RunFolder(folder), RunAudit()).subject == "vanilla"


def test_lambda_alone_makes_a_path(folder: Path) -> None:
    (folder / "metrics.csv").write_text("epoch,lambda/a\n0,0.5\n1,\n2,0.7\n")
    found = run_facts(RunFolder(folder), RunAudit()).training
    assert found is not None
    assert found.weights == [History("a", [0, 2], [0.5, 0.7])]
    assert (found.penalties, found.chosen_epoch, found.rule) == ([], None, "the last epoch")


def test_a_broken_checkpoint_is_told(folder: Path) -> None:
    (folder / "checkpoints").mkdir()
    broken = folder / "checkpoints" / "x.ckpt"
    broken.write_text("no checkpoint")
    assert RunFolder(folder).best_checkpoint == broken
    with pytest.raises(InputError, match="not a readable checkpoint"):
        load_checkpoint(broken)


def test_the_built_in_callback_names_the_checkpoint_of_a_run(folder: Path) -> None:
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    states = {"PenalisedCheckpoint{}": "fairest.ckpt", "BestCheckpoint{}": "mine.ckpt"}
    callbacks = {key: {"best_model_path": f"/elsewhere/{name}"} for key, name in states.items()}
    for name in ("fairest.ckpt", "mine.ckpt", "last.ckpt"):
        torch.save({"state_dict": {}, "callbacks": callbacks}, checkpoints / name)
    assert RunFolder(folder).best_checkpoint == checkpoints / "mine.ckpt"
