"""Rates, gaps and bounds of an audit, against fairlearn, scikit-learn and brute force."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fairlearn.metrics import MetricFrame, false_positive_rate, selection_rate, true_positive_rate
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, roc_auc_score

from fairrf_lightning.audit import Scores, audit
from fairrf_lightning.audit import scores as scores_module
from fairrf_lightning.audit.result import may_turn
from fairrf_lightning.cli.audit import print_audit
from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics import DemographicParityGap, EqualizedOddsGap, EqualOpportunityGap
from fairrf_lightning.metrics.intervals import gap_bounds
from fairrf_lightning.metrics.paired import paired_difference_interval
from fairrf_lightning.report.audit import audit_facts
from tests.audit.rows import audited, draw, grouping

METRICS = {
    "accuracy": accuracy_score,
    "selection_rate": selection_rate,
    "true_positive_rate": true_positive_rate,
    "false_positive_rate": false_positive_rate,
}


def test_group_figures_equal_fairlearns_metric_frame() -> None:
    target, probs, attributes = draw()
    result = audited(target, probs[None], attributes, ["race", "sex"])
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
    result = audited(target, probs[None], attributes, ["job", "town"])
    groups = {group["name"]: group["rows"] for group in grouping(result, "job x town")["groups"]}
    assert groups == {'a, "b, c"': 100, "a, c": 100, '"a, b", "b, c"': 100, '"a, b", c': 100}
    assert {group["name"] for group in grouping(result, "job")["groups"]} == {"a", "a, b"}


def test_gaps_and_intervals_are_those_of_the_metrics() -> None:
    target, probs, attributes = draw()
    result = audited(target, probs[None], attributes[["race"]], ["race"])
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
    result = audited(target, models, attributes[["sex"]], ["sex"], level=level)
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
    result = audited(target, probs[None], attributes[["sex"]], ["sex"])
    bins = np.minimum((probs * 10).astype(int), 9)
    errors = [abs(probs[bins == b].sum() - target[bins == b].sum()) for b in range(10)]
    assert result["overall"]["calibration_error"] == pytest.approx(sum(errors) / 500, abs=1e-12)
    assert result["overall"]["mean_probability"] == pytest.approx(probs.mean(), abs=1e-12)


def test_auc_of_many_rows_is_within_its_stated_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    target, probs = rng.integers(0, 2, 5000), rng.random(5000)
    attributes = pd.DataFrame({"g": rng.choice(["x", "y"], 5000)})
    monkeypatch.setattr(scores_module, "EXACT_ROWS", 3000)
    monkeypatch.setattr(scores_module, "BINS", 1 << 10)
    scores = Scores(["g"])
    for start in range(0, 5000, 1000):
        rows = slice(start, start + 1000)
        numbers = np.array([scores.cell((value,)) for value in attributes["g"][rows]])
        scores.add(numbers, probs[None, rows] >= 0.5, target[rows], probs[None, rows])
    scores.cell(("late",))  # a group that turns up after the scores were binned
    overall = audit(scores).overall
    assert 0 < overall["auc_error"] < 1e-3
    assert abs(overall["auc"] - roc_auc_score(target, probs)) <= overall["auc_error"]


def test_small_groups_are_not_estimable_and_named() -> None:
    target, probs, attributes = draw(300)
    attributes.loc[:4, "race"] = "rare"
    result = audited(target, probs[None], attributes[["race"]], ["race"], min_rows=10)
    found = grouping(result, "race")
    assert [group["estimable"] for group in found["groups"]] == [True, True, True, False]
    assert all(gap["left_out"] == ["rare"] and gap["estimable"] for gap in found["gaps"])
    alone = audited(target, probs[None], attributes[["race"]], ["race"], min_rows=1000)
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
        result = audited(target, np.stack(models), attributes, ["g"])
        for gap in grouping(result, "g")["gaps"]:
            assert gap["against"]["verdict"] == expected
            assert gap["against"]["difference_low"] <= gap["against"]["difference"] + 1e-3


def test_the_difference_in_accuracy_is_counted_on_the_same_rows() -> None:
    target, probs, attributes = draw(2000)
    other = np.random.default_rng(1).random(2000)
    other[:1200] = probs[:1200]
    scores = Scores(["race", "sex"])
    for rows in (slice(0, 700), slice(700, 2000)):  # in a stream, with cells that turn up late
        numbers = np.array([scores.cell(tuple(values)) for values in attributes[rows].to_numpy()])
        models = np.stack([probs, other])[:, rows]
        scores.add(numbers, models >= 0.5, target[rows], models)
    found = audit(scores, ["sex"], level=0.9).accuracy_difference
    assert found is not None
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
    assert audited(target, probs[None], attributes[["sex"]])["accuracy_difference"] is None


def test_the_result_shows_itself_and_has_tables() -> None:
    target, probs, attributes = draw(400)
    attributes["sex"] = attributes["sex"].map({"f": "<b>", "m": "m"})
    scores = Scores.of_arrays(target, np.stack([probs, 1 - probs]), attributes)
    result = audit(scores, ["sex"])
    assert [one.name for one in result.groupings] == ["sex"]
    assert list(result.groups_table()["name"]) == ["<b>", "m"]
    assert list(result.gaps_table().columns)[:6] == ["grouping", "gap", "mode", "value", "low", "high"]
    assert f"{result.groupings[0].gaps[0].value:.4f}" in repr(result)
    assert "&lt;b&gt;" in result._repr_html_()
    assert "difference shown" in result._repr_html_()
    with pytest.raises(InputError, match="no attribute 'sexx'; did you mean 'sex'"):
        audit(scores, ["sexx"])


def test_arrays_without_labels() -> None:
    _, probs, attributes = draw(500)
    result = audited(None, probs[None], attributes)
    assert result["overall"]["accuracy"] is None
    assert result["overall"]["selection_rate"] == pytest.approx((probs >= 0.5).mean(), abs=1e-12)


@pytest.mark.parametrize("value", [np.nan, -0.1, 1.1, np.inf])
def test_arrays_are_checked(value: float) -> None:
    probs = np.array([[0.5, value, 0.2]])
    with pytest.raises(InputError, match="numbers from 0 to 1"):
        Scores.of_arrays(np.array([0, 1, 1]), probs, pd.DataFrame({"s": ["a", "b", "a"]}))


def brute_bounds(n: list[int], x: list[int], unknown: int, positives: int) -> tuple[float, float]:
    """Over all whole assignments of the unknown rows to the groups, or to none of them."""

    def splits(total: int, parts: int) -> list[tuple[int, ...]]:
        return [s for s in itertools.product(range(total + 1), repeat=parts) if sum(s) <= total]

    gaps = []
    for up in splits(positives, len(n)):
        for down in splits(unknown - positives, len(n)):
            rates = [(xg + a) / (ng + a + b) for xg, ng, a, b in zip(x, n, up, down, strict=True)]
            gaps.append(max(rates) - min(rates))
    return min(gaps), max(gaps)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_bounds_hold_for_all_memberships(data: st.DataObject) -> None:
    groups = data.draw(st.integers(2, 3))
    n = [data.draw(st.integers(1, 12)) for _ in range(groups)]
    x = [data.draw(st.integers(0, total)) for total in n]
    unknown = data.draw(st.integers(0, 6))
    positives = data.draw(st.integers(0, unknown))
    low, high = gap_bounds(np.array(n), np.array(x), unknown, positives)
    smallest, largest = brute_bounds(n, x, unknown, positives)
    assert high == pytest.approx(largest, abs=1e-9)
    assert low <= smallest + 1e-9
    assert smallest - low <= 1 / min(n)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000))
def test_the_smallest_gap_is_that_of_a_linear_programme(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = int(rng.integers(2, 5))
    n = rng.integers(1, 60, groups)
    x = rng.binomial(n, rng.random(groups))
    unknown, positives = (int(v) for v in sorted(rng.integers(0, 30, 2), reverse=True))
    low, _ = gap_bounds(n, x, unknown, positives)

    def feasible(bottom: float, top: float) -> bool:
        """Whether divisible rows can bring all rates between the two."""
        eye = np.eye(groups)
        upper = np.block([[-(1 - bottom) * eye, bottom * eye], [(1 - top) * eye, -top * eye]])
        limits = np.concatenate([x - bottom * n, top * n - x])
        sums = np.block([[np.ones(groups), np.zeros(groups)], [np.zeros(groups), np.ones(groups)]])
        upper = np.vstack([upper, sums])
        limits = np.concatenate([limits, [positives, unknown - positives]])
        found = linprog(np.zeros(2 * groups), upper, limits)
        return bool(found.status == 0)

    def last(holds: Callable[[float], bool]) -> float:
        """Return up to where a condition holds, from 0 on."""
        good, bad = 0.0, 1.0
        for _ in range(16):
            middle = (good + bad) / 2
            good, bad = (middle, bad) if holds(middle) else (good, middle)
        return good

    # No window begins above the one or ends below the other, and the window between them holds.
    bottom, top = last(lambda rate: feasible(rate, 1.0)), 1 - last(lambda rate: feasible(0.0, 1 - rate))
    assert low == pytest.approx(max(0.0, top - bottom), abs=1e-4)
    assert feasible(bottom - 1e-4, top + 1e-4) if top > bottom else feasible(top - 1e-4, top + 1e-4)


def test_rows_of_unknown_group_give_bounds_not_a_refusal() -> None:
    target, probs, attributes = draw(600)
    attributes["race"] = attributes["race"].where(np.arange(600) % 20 != 0)
    result = audited(target, probs[None], attributes, ["race", "sex"])
    found = grouping(result, "race")
    assert found["unknown_rows"] == 30
    for gap in found["gaps"]:
        assert (gap["bounds"] is None) == (gap["mode"] == "prob")
        if gap["bounds"]:
            assert gap["bounds"][0] <= gap["value"] <= gap["bounds"][1]
    assert grouping(result, "sex")["gaps"][0]["bounds"] is None


def test_the_change_stays_in_its_bounds_for_all_memberships() -> None:
    rng = np.random.default_rng(0)
    sex = np.array(["f"] * 25 + ["m"] * 26 + [None] * 8, dtype=object)
    target, probs = rng.integers(0, 2, len(sex)), rng.random((2, len(sex)))
    result = audited(target, probs, pd.DataFrame({"sex": sex}), ["sex"])
    found = result["groupings"][0]["gaps"][0]["against"]
    (least, most), (low, high) = found["difference_bounds"], found["bounds"]
    others = []
    for members in itertools.product("fm", repeat=8):
        women = np.concatenate([sex[:-8], members]) == "f"
        gap, other = (abs(p[women].mean() - p[~women].mean()) for p in probs >= 0.5)
        others.append(other)
        assert least - 1e-9 <= gap - other <= most + 1e-9
    assert low - 1e-9 <= min(others) <= low + 1 / 25
    assert max(others) == pytest.approx(high)


@pytest.mark.parametrize("unknown", [20, 600])
def test_a_verdict_that_the_unknown_rows_could_turn_says_so(
    unknown: int, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = unknown == 600
    rng = np.random.default_rng(0)
    sex = np.array(["f", "m"] * 500 + [None] * unknown, dtype=object)
    unfair = np.where(sex == "m", 0.4, 0.0) + 0.6 * rng.random(len(sex))
    probs = np.stack([rng.random(len(sex)), unfair])
    source = {"path": "p", "data": None, "split": None, "against": "unfair"}
    people = pd.DataFrame({"sex": sex})
    scores = Scores.of_arrays(rng.integers(0, 2, len(sex)), probs, people, source=source)
    result = audit(scores).to_dict()
    against = result["groupings"][0]["gaps"][0]["against"]
    assert against["verdict"] == "fairer, beyond noise"
    assert (against["difference_bounds"][1] >= 0) == turns == may_turn(against)
    print_audit(result)
    for said in (capsys.readouterr().out, " ".join(audit_facts(result).verdict.sentences)):
        assert "With these rows the change is: dDP between" in said
        assert ("could therefore change the verdict on dDP (fairer, beyond noise)" in said) == turns
