"""Group figures against fairlearn and scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fairlearn.metrics import MetricFrame, false_positive_rate, selection_rate, true_positive_rate
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, roc_auc_score

from fairrf_lightning.audit import cells as cells_module
from fairrf_lightning.audit.command import count_rows
from fairrf_lightning.audit.result import audit
from fairrf_lightning.metrics import DemographicParityGap, EqualizedOddsGap, EqualOpportunityGap
from fairrf_lightning.metrics.paired import paired_difference_interval
from tests.audit.rows import draw, grouping

METRICS = {
    "accuracy": accuracy_score,
    "selection_rate": selection_rate,
    "true_positive_rate": true_positive_rate,
    "false_positive_rate": false_positive_rate,
}


def test_group_figures_equal_fairlearns_metric_frame() -> None:
    target, probs, attributes = draw()
    result = audit(count_rows(target, probs[None], attributes), ["race", "sex"], source={})
    decisions = (probs >= 0.5).astype(int)
    for name, columns in (("race", ["race"]), ("sex", ["sex"]), ("race x sex", ["race", "sex"])):
        frame = MetricFrame(
            metrics=METRICS, y_true=target, y_pred=decisions, sensitive_features=attributes[columns]
        )
        aucs = MetricFrame(
            metrics={"auc": roc_auc_score},
            y_true=target,
            y_pred=probs,
            sensitive_features=attributes[columns],
        )
        groups = {group["name"]: group for group in grouping(result, name)["groups"]}
        assert len(groups) == len(frame.by_group)
        for key, expected in frame.by_group.iterrows():
            group = groups[", ".join(key) if isinstance(key, tuple) else key]
            for metric in METRICS:
                assert group[metric] == pytest.approx(expected[metric], abs=1e-12)
            assert group["auc"] == pytest.approx(aucs.by_group.loc[key, "auc"], abs=1e-12)
            assert group["auc_error"] == 0
        gap = next(gap for gap in grouping(result, name)["gaps"] if gap["gap"] == "dDP")
        assert gap["value"] == pytest.approx(frame.difference()["selection_rate"], abs=1e-12)


def test_commas_in_values_do_not_merge_intersections() -> None:
    target, probs, _ = draw(400)
    attributes = pd.DataFrame({"job": ["a", "a, b"] * 200, "town": ["b, c"] * 200 + ["c"] * 200})
    result = audit(count_rows(target, probs[None], attributes), ["job", "town"], source={})
    groups = {group["name"]: group["rows"] for group in grouping(result, "job x town")["groups"]}
    assert groups == {'a, "b, c"': 100, "a, c": 100, '"a, b", "b, c"': 100, '"a, b", c': 100}
    assert {group["name"] for group in grouping(result, "job")["groups"]} == {"a", "a, b"}


def test_gaps_and_intervals_are_those_of_the_metrics() -> None:
    target, probs, attributes = draw()
    result = audit(count_rows(target, probs[None], attributes[["race"]]), ["race"], source={})
    groups = torch.from_numpy(pd.factorize(attributes["race"], sort=True)[0])
    classes: dict[str, Any] = {
        "dDP": DemographicParityGap,
        "dEO": EqualOpportunityGap,
        "dEOdds": EqualizedOddsGap,
    }
    for gap in grouping(result, "race")["gaps"]:
        metric = classes[gap["gap"]](3, mode=gap["mode"])
        metric.update(torch.from_numpy(probs), torch.from_numpy(target), groups)
        low, high = metric.interval()
        found = gap["value"], gap["low"], gap["high"]
        assert found == pytest.approx((metric.compute().item(), low.item(), high.item()), abs=1e-9)


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_the_intervals_of_rates_have_the_level_that_was_asked_for(level: float) -> None:
    target, probs, attributes = draw(400)
    models = np.stack([probs, 1 - probs])
    result = audit(count_rows(target, models, attributes[["sex"]]), ["sex"], source={}, level=level)
    parts = [(result["overall"], probs), (result["against"], 1 - probs)]
    for figures, of in parts:
        selected = binomtest(int((of >= 0.5).sum()), 400).proportion_ci(level, method="wilson")
        found = figures["selection_rate_low"], figures["selection_rate_high"]
        assert found == pytest.approx((selected.low, selected.high), abs=1e-9)
    women = (attributes["sex"] == "f").to_numpy() & (target == 1)
    expected = binomtest(int((probs[women] >= 0.5).sum()), int(women.sum())).proportion_ci(level, "wilson")
    group = grouping(result, "sex")["groups"][0]
    found = group["true_positive_rate_low"], group["true_positive_rate_high"]
    assert found == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_calibration_is_measured_in_ten_bins() -> None:
    target, probs, attributes = draw(500)
    result = audit(count_rows(target, probs[None], attributes[["sex"]]), ["sex"], source={})
    bins = np.minimum((probs * 10).astype(int), 9)
    errors = [abs(probs[bins == b].sum() - target[bins == b].sum()) for b in range(10)]
    assert result["overall"]["calibration_error"] == pytest.approx(sum(errors) / 500, abs=1e-12)
    assert result["overall"]["mean_probability"] == pytest.approx(probs.mean(), abs=1e-12)


def test_auc_of_many_rows_is_within_its_stated_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    target, probs = rng.integers(0, 2, 5000), rng.random(5000)
    attributes = pd.DataFrame({"g": rng.choice(["x", "y"], 5000)})
    monkeypatch.setattr(cells_module, "EXACT_ROWS", 3000)
    monkeypatch.setattr(cells_module, "BINS", 1 << 10)
    counts = cells_module.CellCounts()
    counts._histogram = np.zeros((0, 2, 1 << 10), np.uint32)
    for start in range(0, 5000, 1000):
        rows = slice(start, start + 1000)
        numbers = np.array([counts.number((value,)) for value in attributes["g"][rows]])
        decisions = (probs[None, rows] >= 0.5).astype(np.int64)
        counts.update(cells_module.Batch(target[rows], numbers, decisions, probs[None, rows]))
    counts.number(("late",))  # a group that turns up after the scores were binned
    overall = audit(counts, ["g"], source={})["overall"]
    assert 0 < overall["auc_error"] < 1e-3
    assert abs(overall["auc"] - roc_auc_score(target, probs)) <= overall["auc_error"]


def test_small_groups_are_not_estimable_and_named() -> None:
    target, probs, attributes = draw(300)
    attributes.loc[:4, "race"] = "rare"
    result = audit(count_rows(target, probs[None], attributes[["race"]]), ["race"], source={}, min_rows=10)
    found = grouping(result, "race")
    assert [group["estimable"] for group in found["groups"]] == [True, True, True, False]
    assert all(gap["left_out"] == ["rare"] and gap["estimable"] for gap in found["gaps"])
    alone = audit(count_rows(target, probs[None], attributes[["race"]]), ["race"], source={}, min_rows=1000)
    for gap in grouping(alone, "race")["gaps"]:
        assert not gap["estimable"]
        assert gap["value"] is gap["low"] is gap["against"] is None


def test_verdicts_on_two_models() -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 6000)
    attributes = pd.DataFrame({"g": np.where(group, "x", "y")})
    target = rng.integers(0, 2, 6000)
    noise = rng.random(6000)
    fair, unfair = np.clip(noise, 0, 1), np.clip(noise + 0.2 * (group - 0.5), 0, 1)
    for models, expected in (
        ((fair, unfair), "fairer, beyond noise"),
        ((unfair, fair), "less fair, beyond noise"),
        ((fair, fair), "no difference shown"),
    ):
        result = audit(count_rows(target, np.stack(models), attributes), ["g"], source={})
        for gap in grouping(result, "g")["gaps"]:
            assert gap["against"]["verdict"] == expected
            assert gap["against"]["difference_low"] <= gap["against"]["difference"] + 1e-3


def test_the_difference_in_accuracy_is_counted_on_the_same_rows() -> None:
    target, probs, attributes = draw(2000)
    other = np.random.default_rng(1).random(2000)
    other[:1200] = probs[:1200]
    cells = cells_module.CellCounts()
    for rows in (slice(0, 700), slice(700, 2000)):  # in a stream, with cells that turn up late
        numbers = np.array([cells.number(tuple(values)) for values in attributes[rows].to_numpy()])
        models = np.stack([probs, other])[:, rows]
        decisions = (models >= 0.5).astype(np.int64)
        cells.update(cells_module.Batch(target[rows], numbers, decisions, models))
    found = audit(cells, ["race", "sex"], source={}, level=0.9)["accuracy_difference"]
    right = (probs >= 0.5) == target, (other >= 0.5) == target
    assert found["both_right"] == (right[0] & right[1]).sum()
    assert found["only_first_right"] == (right[0] & ~right[1]).sum()
    assert found["only_second_right"] == (~right[0] & right[1]).sum()
    assert found["both_wrong"] == (~right[0] & ~right[1]).sum()
    assert found["value"] == pytest.approx(right[0].mean() - right[1].mean(), abs=1e-12)
    expected = paired_difference_interval(found["only_first_right"], found["only_second_right"], 2000, 0.9)
    assert (found["low"], found["high"]) == expected
    assert found["verdict"] == "more accurate, beyond noise"


def test_without_another_model_there_is_no_difference_in_accuracy() -> None:
    target, probs, attributes = draw(100)
    cells = count_rows(target, probs[None], attributes[["sex"]])
    assert audit(cells, ["sex"], source={})["accuracy_difference"] is None
