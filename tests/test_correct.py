"""A finished run is corrected with a survey, and the corrected checkpoint is an ordinary one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from lightning import seed_everything

from fairrf_lightning import FairRFModule, InputError
from fairrf_lightning.checkpoints import WholeFileIO
from fairrf_lightning.correct import CorrectionResult, correct, correct_scores
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.estimate import NOTHING_CHANGED
from fairrf_lightning.load import Run, evaluate, load_run
from fairrf_lightning.metrics.counts import GAPS, GroupCounts
from fairrf_lightning.survey import Survey
from tests.surveys import write_survey
from tests.trainers import quiet_trainer


def train(folder: Path, **options: Any) -> Path:
    seed_everything(0, verbose=False)
    data = SyntheticDataModule(n_rows=12_000, seed=0, **options)
    trainer = quiet_trainer(max_epochs=3)
    trainer.fit(FairRFModule(backbone="linear", eta=0.0, lr=0.05), datamodule=data)
    trainer.save_checkpoint(folder / "best.ckpt")
    return folder / "best.ckpt"


def survey(checkpoint: Path, people: int) -> Path:
    return write_survey(load_run(checkpoint).data, people, checkpoint.with_name("survey.csv"), seed=1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def result(checkpoint: Path) -> CorrectionResult:
    return correct(checkpoint, survey=survey(checkpoint, 400), goal="dp=0.10", max_accuracy_loss=0.1)


def gaps(run: Run) -> dict[str, float]:
    rows = evaluate(run)
    counts = GroupCounts.of(rows.probabilities, rows.target, rows.groups, 2)
    return {key: float(counts.gap(gap)) for key, gap in GAPS.items()}


def save(result: CorrectionResult, path: Path) -> Path:
    WholeFileIO().save_checkpoint(result.checkpoint(), path)
    return path


def test_goal_holds_for_the_true_groups(checkpoint: Path, result: CorrectionResult, tmp_path: Path) -> None:
    before, after = gaps(load_run(checkpoint)), gaps(load_run(save(result, tmp_path / "corrected.ckpt")))
    assert before["dp_gap"] > 0.25
    assert after["dp_gap"] == pytest.approx(0.10, abs=0.05)
    assert result.outcome is not None
    assert result.outcome.stopped_by == "goal"
    assert result.after is not None
    for measured, truth in ((result.before, before), (result.after, after)):
        for key, estimate in measured.gaps.items():
            assert estimate.low <= truth[key] <= estimate.high, key


def test_corrected_checkpoint_is_an_ordinary_one(
    checkpoint: Path, result: CorrectionResult, tmp_path: Path
) -> None:
    path = save(result, tmp_path / "corrected.ckpt")
    torch.load(path, weights_only=True)
    run = load_run(path)
    assert result.after is not None
    rows = evaluate(run)
    accuracy = float(((rows.probabilities >= 0.5) == (rows.target > 0.5)).double().mean())
    assert accuracy == pytest.approx(result.after.accuracy, abs=1e-9)
    module, data = FairRFModule(backbone="linear", eta=0.0), SyntheticDataModule(n_rows=12_000, seed=0)
    (measured,) = quiet_trainer().test(module, datamodule=data, ckpt_path=str(path), verbose=False)
    assert measured["test_acc"] == pytest.approx(accuracy, abs=1e-6)
    batches: Any = quiet_trainer().predict(module, datamodule=data, ckpt_path=str(path))
    plain = evaluate(load_run(checkpoint))
    assert torch.allclose(batches[0]["uncorrected_probability"].double(), plain.probabilities, atol=1e-6)
    assert torch.allclose(batches[0]["probability"].double(), rows.probabilities, atol=1e-6)
    assert torch.equal(batches[0]["decision"].bool(), rows.probabilities >= 0.5)
    with pytest.raises(InputError, match="corrected already"):
        correct(path, survey=survey(checkpoint, 400))


def test_corrected_model_is_not_trained_further(result: CorrectionResult, tmp_path: Path) -> None:
    path = save(result, tmp_path / "corrected.ckpt")
    trainer = quiet_trainer(max_epochs=9)
    module, data = (
        FairRFModule(backbone="linear", eta=0.0, lr=0.05),
        SyntheticDataModule(n_rows=12_000, seed=0),
    )
    with pytest.raises(InputError, match="cannot be trained"):
        trainer.fit(module, datamodule=data, ckpt_path=str(path))


def test_answers_are_not_in_the_checkpoint(result: CorrectionResult) -> None:
    added = {name: value for name, value in result.checkpoint()["state_dict"].items() if "correction" in name}
    sizes = [value.numel() for value in added.values() if isinstance(value, torch.Tensor)]
    assert max(sizes) < 50  # coefficients of 6 columns in 5 folds; the survey has 400 people
    texts = [value for value in added.values() if not isinstance(value, torch.Tensor)]
    known = {"goal", "outcome", "source", "group_names", "digest"}  # the digest is of people, not of answers
    assert {name for text in texts for name in text} == known


def test_other_gap_that_grows_is_named(result: CorrectionResult) -> None:
    assert result.after is not None
    for growth, named in ((-0.1, False), (0.004, False), (0.006, True)):
        before = replace(result.after.gaps["eo_gap"], value=result.after.gaps["eo_gap"].value - growth)
        changed = replace(result, before=replace(result.before, gaps={"eo_gap": before}))
        assert any("dEO grows" in line for line in changed.warnings()) == named
    shown = result.table()
    assert shown.iloc[:, 0].tolist()[:2] == ["accuracy", "share of positive decisions"]
    assert "reached the goal: dDP 0.10" in repr(result)
    assert "<table" in result._repr_html_()
    json.dumps(result.to_dict())


def test_unreachable_goal_is_stopped_by_the_budget(checkpoint: Path) -> None:
    found = correct(checkpoint, survey=survey(checkpoint, 400), goal="dp=0.01", max_accuracy_loss=0.01)
    assert found.outcome is not None
    assert f"stopped by the accuracy budget (0.01) at dDP {found.outcome.gap_after:.3f}" in repr(found)
    assert found.outcome.gap_after > 0.01


def test_no_gap_is_left_alone(tmp_path: Path) -> None:
    fair = {"bias": 0.0, "correlations": {"a": (0.5, 0.0), "b": (0.0, 0.5)}}
    checkpoint = train(tmp_path, **fair)
    found = correct(checkpoint, survey=survey(checkpoint, 400))
    assert found.correction is None
    assert found.after is None
    assert NOTHING_CHANGED in repr(found)
    with pytest.raises(InputError, match=NOTHING_CHANGED):
        found.checkpoint()


def test_published_statistics_give_no_estimate(checkpoint: Path, tmp_path: Path) -> None:
    known = {"share": 0.5, "group": "b", "correlations": {"height": 0.4, "income": 0.5, "hours": 0.4}}
    (tmp_path / "proxies.yaml").write_text(yaml.safe_dump(known))
    found = correct(checkpoint, proxies=tmp_path / "proxies.yaml", goal="dp=0.15", max_accuracy_loss=0.1)
    assert not found.before.gaps
    assert any("only a part of a gap" in line for line in found.warnings())
    assert found.outcome is not None
    assert f"dDP {found.outcome.gap_after:.3f} (before: {found.outcome.gap_before:.3f})" in repr(found)
    assert "the visible part of the gap" in repr(found)
    after = gaps(load_run(save(found, tmp_path / "corrected.ckpt")))
    assert after["dp_gap"] < gaps(load_run(checkpoint))["dp_gap"]
    with pytest.raises(InputError, match="needs membership among the positives"):
        correct(checkpoint, proxies=tmp_path / "proxies.yaml", goal="eo=0.05")


def test_budget_that_test_rows_exceed_is_named(result: CorrectionResult) -> None:
    assert result.after is not None
    assert not any("budget" in line for line in result.warnings())
    worse = replace(result, after=replace(result.after, accuracy=result.before.accuracy - 0.15))
    assert any("0.1500 on the test rows, more than the budget" in line for line in worse.warnings())


def test_column_of_probabilities_is_not_called_published_statistics(result: CorrectionResult) -> None:
    found = replace(result, before=replace(result.before, gaps={}), source="a column of the table")
    assert not any("published" in line for line in (*found.statements(), *found.warnings()))
    assert any("column" in line for line in found.warnings())


def test_one_source_of_knowledge(checkpoint: Path) -> None:
    with pytest.raises(InputError, match="give one of"):
        correct(checkpoint)


def test_equal_opportunity_lowers_the_true_gap(checkpoint: Path, tmp_path: Path) -> None:
    found = correct(checkpoint, survey=survey(checkpoint, 2000), goal="eo", max_accuracy_loss=0.1)
    after = gaps(load_run(save(found, tmp_path / "corrected.ckpt")))
    assert after["eo_gap"] < 0.05 < gaps(load_run(checkpoint))["eo_gap"]


def test_survey_with_its_own_columns(checkpoint: Path, tmp_path: Path) -> None:
    table: pd.DataFrame = load_run(checkpoint).data.read().tail(400).drop(columns="label")
    table.to_csv(tmp_path / "survey.csv", index=False)
    found = correct(checkpoint, survey=tmp_path / "survey.csv", group="a")
    assert set(found.before.gaps) == {"dp_gap"}  # no labels
    assert "a survey of 400 people (group: b, a)" in found.source


def test_worst_pair_of_three_groups_counts(checkpoint: Path) -> None:
    run = load_run(checkpoint)

    def group_of(inputs: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        return torch.where(inputs[:, 0] > 0.7, 2, groups)

    rows, people = evaluate(run, "test"), evaluate(run, "train")
    chosen = slice(0, 1500)
    groups = group_of(people.inputs[chosen], people.groups[chosen])
    survey = Survey(people.inputs[chosen], groups, people.target[chosen].float(), group_names=("a", "b", "c"))
    found = correct(run, survey=survey, goal="dp=0.10", max_accuracy_loss=0.1)
    assert found.correction is not None
    counts = [
        GroupCounts.of(preds, rows.target, group_of(rows.inputs, rows.groups), 3)
        for preds in (rows.probabilities, found.correction(rows.probabilities, rows.inputs))
    ]
    before, after = (float(one.gap(GAPS["dp_gap"])) for one in counts)
    assert before > 0.3
    assert after == pytest.approx(0.10, abs=0.06)


@pytest.mark.parametrize("part", ["multipliers", "membership.coefficients", "_extra_state"])
def test_damaged_correction_is_one_clear_error(result: CorrectionResult, tmp_path: Path, part: str) -> None:
    content = result.checkpoint()
    content["state_dict"] = {**content["state_dict"], f"correction.{part}": torch.zeros(1)}
    WholeFileIO().save_checkpoint(content, tmp_path / "damaged.ckpt")
    with pytest.raises(InputError) as error:
        evaluate(load_run(tmp_path / "damaged.ckpt"))
    assert "damaged.ckpt" in str(error.value)
    assert len(str(error.value).splitlines()) <= 3


def test_scores_are_corrected_from_python(tmp_path: Path) -> None:
    table = SyntheticDataModule(n_rows=2000, seed=0).read()
    table["prob"] = 1 / (1 + np.exp(-table.drop(columns=["group", "label"]).sum(axis=1)))
    table.head(400).to_csv(tmp_path / "asked.csv", index=False)
    table.drop(columns="group").to_csv(tmp_path / "scores.csv", index=False)
    options: dict[str, Any] = {"survey": tmp_path / "asked.csv", "target": "label", "max_accuracy_loss": 0.1}
    found = correct_scores(tmp_path / "scores.csv", **options)
    assert found.result.correction is not None
    assert found.write(tmp_path / "out.parquet") == 2000
    assert "corrected_decision" in pd.read_parquet(tmp_path / "out.parquet")
    alone = correct_scores(tmp_path / "scores.csv", **options, act_above=0.9)
    with pytest.raises(InputError, match="there are no corrected scores"):
        alone.write(tmp_path / "nothing.csv")
    assert not (tmp_path / "nothing.csv").exists()
