"""Rows of unknown group: bounds of gaps and of their change, against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairrf_lightning.audit.command import count_rows
from fairrf_lightning.audit.gaps import may_turn
from fairrf_lightning.audit.missing import gap_bounds
from fairrf_lightning.audit.result import audit
from fairrf_lightning.audit.tables import print_audit
from fairrf_lightning.report.sources import audit_facts
from tests.audit.rows import draw, grouping


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
    from scipy.optimize import linprog  # noqa: PLC0415 - the independent reference of this test

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
    result = audit(count_rows(target, probs[None], attributes), ["race", "sex"], source={})
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
    result = audit(count_rows(target, probs, pd.DataFrame({"sex": sex})), ["sex"], source={})
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
    cells = count_rows(rng.integers(0, 2, len(sex)), probs, pd.DataFrame({"sex": sex}))
    result = audit(cells, ["sex"], source={"path": "p", "data": None, "split": None, "against": "unfair"})
    against = result["groupings"][0]["gaps"][0]["against"]
    assert against["verdict"] == "fairer, beyond noise"
    assert (against["difference_bounds"][1] >= 0) == turns == may_turn(against)
    print_audit(result)
    assert ("'fairer, beyond noise' need not hold with them" in capsys.readouterr().out) == turns
    said = " ".join(audit_facts(result).verdict.sentences)
    assert "With these rows the change is: dDP between" in said
    assert ("could therefore change the verdict on dDP (fairer, beyond noise)" in said) == turns
