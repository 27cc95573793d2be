"""The evidence for prior knowledge: a tiny run from training to the page, and the reading of its targets."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks.prior_knowledge import STEPS, run
from benchmarks.prior_knowledge_methods import Case, Knowledge, Part, Runs, act_results, logistic_results
from benchmarks.prior_knowledge_results import FAIRRF, SURVEY_400, Results, Row, hypervolume, targets
from benchmarks.prior_knowledge_training import Plan
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.experiments.stack import MakeData

SEEDS = (0, 1)
pytestmark = pytest.mark.filterwarnings("ignore")  # of scikit-learn and Lightning, as in the script


class TinyPlan(Plan):
    """A few thousand synthetic people."""

    def make_data(self) -> MakeData:
        return partial(SyntheticDataModule, n_rows=5000)


PLAN = TinyPlan("synthetic", etas=(0.5,), signed_etas=(1.0,), fairret=(0.1,), adversary_lrs=(0.1,), epochs=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evidence")
    run([PLAN], STEPS, SEEDS, folder / "out", folder / "docs")
    return folder


def test_page_has_all_methods_and_its_figures(folder: Path) -> None:
    page = (folder / "docs" / "prior-knowledge.md").read_text("utf-8")
    tables = (folder / "docs" / "prior-knowledge-tables.md").read_text("utf-8")
    for name in (
        "FairRF, tuned",
        "ARL",
        "fairret",
        "ExponentiatedGradient on",
        "ConstrainS",
        "thresholds per group",
    ):
        assert f"| {name}" in tables
    assert page.count("| correction, 400 people |") == 1, "the summary has a line of each data set"
    assert "nan" not in page + tables
    for figure in ("prior_knowledge_story", "prior_knowledge_synthetic"):
        assert f"figures/{figure}.svg" in page + tables
        assert (folder / "docs" / "figures" / f"{figure}.svg").stat().st_size > 10_000


def test_gap_that_cannot_be_estimated_leads_to_no_action() -> None:
    data = SyntheticDataModule(n_rows=3000, seed=0)
    data.setup()
    val = Part.of(data, "val")
    val.target.zero_()[:3] = 1  # hardly any positives are surveyed
    runs = Runs(pd.DataFrame(), 0.0)
    found = act_results(Case(data, val, val, runs, lambda _: {}), (val.inputs[:, 0] > 0).long())
    assert {row["strength"] for row in found if row["aim"] == "eo"} == {0.0}


def test_reduction_without_a_second_proxy_group_keeps_the_logistic_regression() -> None:
    data = SyntheticDataModule(n_rows=3000, seed=0)
    data.setup()
    val, test = (Part.of(data, name) for name in ("val", "test"))
    case = Case(data, val, test, Runs(pd.DataFrame(), 0.0), lambda _: {})
    known = Knowledge("survey of 400", "dp", val.inputs[:, 0].sigmoid(), test.inputs[:, 0].sigmoid())
    proxy = torch.ones(len(Part.of(data, "train").inputs)).long()
    found = pd.DataFrame(list(logistic_results(case, known, proxy)))
    (plain,) = found.loc[found["method"] == "logistic", "dp_gap"]
    assert set(found.loc[found["method"] == "eg", "dp_gap"]) == {plain}


def test_nothing_is_run_twice(folder: Path) -> None:
    files = {
        path: path.stat().st_mtime_ns
        for path in (folder / "out").rglob("*.csv")
        if path.name != "results.csv"
    }
    run([PLAN], STEPS, SEEDS, folder / "out", folder / "docs")
    assert {path: path.stat().st_mtime_ns for path in files} == files


def made_up(points: dict[Row, dict[float, tuple[float, float]]]) -> Results:
    """Return results with given accuracy and dDP by method and budget; those of vanilla are 0.85 and 0.2."""
    vanilla = Row("vanilla", "vanilla", "nothing", "")
    rows = [
        {
            "method": row.method,
            "knowledge": row.knowledge,
            "aim": row.aim,
            "budget": budget,
            "seed": seed,
            "acc": acc + seed / 1e4,
            "dp_gap": gap + seed / 1e4,
            "eo_gap": 0.1,
        }
        for row, budgets in {vanilla: {0.0: (0.85, 0.2)}, **points}.items()
        for budget, (acc, gap) in budgets.items()
        for seed in SEEDS
    ]
    return Results(pd.DataFrame(rows))


@pytest.mark.parametrize(("gap", "outcome"), [(0.12, "pass"), (0.13, "**fail**")])
def test_target_of_dp_needs_a_reduction_by_38_percent(gap: float, outcome: str) -> None:
    found = made_up({SURVEY_400: {0.005: (0.846, gap)}})
    (target,) = [
        each for each in targets({"adult": found}) if each.text.startswith("Adult, survey of 400, budget")
    ]
    assert target.outcome == outcome


def test_target_of_dp_fails_if_the_measured_loss_is_above_half_a_point() -> None:
    found = made_up({SURVEY_400: {0.005: (0.844, 0.05)}})
    outcomes = [target.outcome for target in targets({"adult": found})]
    assert "pass" not in outcomes
    assert "**fail**" in outcomes


@pytest.mark.parametrize(("gap", "outcome"), [(0.14, "pass"), (0.16, "**fail**")])
def test_target_against_fairrf_compares_at_the_accuracy_of_fairrf(gap: float, outcome: str) -> None:
    budgets = {0.0025: (0.849, gap), 0.005: (0.846, 0.1), 0.01: (0.84, 0.05)}
    found = made_up({FAIRRF: {0.005: (0.848, 0.15)}, SURVEY_400: budgets})
    (target,) = [each for each in targets({"dutch": found}) if each.met is not None]
    assert target.outcome == outcome
    assert "budget of 0.25" in target.measured


def test_hypervolume_of_a_step() -> None:
    # The gap halves for a loss of 1 of 2 points: half of the gap over half of the losses.
    found = made_up({SURVEY_400: {0.01: (0.84, 0.1)}})
    assert hypervolume(found, SURVEY_400, "dp_gap") == pytest.approx(0.25, abs=1e-3)
