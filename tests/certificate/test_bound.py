"""The bound against the truth, a general optimiser and a linear programme."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from fairrf_lightning.certificate import GapBound, Knowledge, certify_rows, gap_bound, k_feature_interval
from fairrf_lightning.certificate.bound import (
    Box,
    box_bound,
    population_bound,
    residual_spread,
    second_moments,
    standardise,
    weights_any,
)
from fairrf_lightning.certificate.knowledge import sample_box
from fairrf_lightning.errors import InputError
from fairrf_lightning.functional import correlation_interval, correlation_interval_multi

Array = np.ndarray[Any, np.dtype[np.float64]]
seeds = st.integers(0, 2**32 - 1)
quick = settings(deadline=None, max_examples=60)


def draw(seed: int, rows: int, num_columns: int, *, hard: bool = False) -> tuple[Array, Array, Array] | None:
    """Predictions, columns (some collinear) and S; None where one of them does not vary."""
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(rows, num_columns))
    if num_columns > 2:
        columns[:, 1] = columns[:, 0] > 0
        columns[:, 2] = 1 - columns[:, 1]
    score = columns @ rng.normal(size=num_columns) / 2 + rng.normal(size=rows)
    sensitive = (score + rng.normal(size=rows) > 0.3).astype(float)
    preds = 1 / (1 + np.exp(-score - rng.normal(size=rows)))
    preds = (preds > 0.5).astype(float) if hard else preds
    if min(sensitive.std(), preds.std(), columns.std(axis=0).min()) == 0:
        return None
    return preds, columns, sensitive


def varying(seed: int, rows: int, num_columns: int, *, hard: bool = False) -> tuple[Array, Array, Array]:
    """Return what ``draw`` does, for rows in which everything varies."""
    drawn = draw(seed, rows, num_columns, hard=hard)
    assert drawn is not None
    return drawn


def correlations(columns: Array, other: Array) -> Array:
    return np.array([np.corrcoef(column, other)[0, 1] for column in columns.T]).clip(-1, 1)


def bound_of(preds: Array, columns: Array, a: Array | tuple[Array, Array], share: Any) -> GapBound:
    limits = tuple(map(torch.from_numpy, a)) if isinstance(a, tuple) else torch.from_numpy(a)
    return gap_bound(torch.from_numpy(preds), torch.from_numpy(columns), limits, share)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=40)
@given(seeds, st.integers(5, 60), st.integers(1, 6), st.booleans(), st.floats(0, 0.2))
@example(seed=0, rows=5, num_columns=6, hard=False, slack=0.0)  # more columns than rows leave free
@example(seed=1, rows=30, num_columns=3, hard=True, slack=0.1)
@example(seed=174, rows=5, num_columns=3, hard=True, slack=0.0)  # 3e-6 above the paper's bound
def test_bound_holds_whatever_the_rows(
    seed: int,
    rows: int,
    num_columns: int,
    hard: bool,  # noqa: FBT001 - drawn
    slack: float,
) -> None:
    drawn = draw(seed, rows, num_columns, hard=hard)
    if drawn is None:
        return
    preds, columns, sensitive = drawn
    a, share = correlations(columns, sensitive), float(sensitive.mean())
    box = (a - slack).clip(-1, 1), (a + slack).clip(-1, 1)
    limits = max(share - slack / 4, share / 2), min(share + slack / 4, (1 + share) / 2)
    known = bound_of(preds, columns, box, limits)
    truth = preds[sensitive == 1].mean() - preds[sensitive == 0].mean()
    assert known.low - 1e-6 <= truth <= known.high + 1e-6
    assert known.rho[0] - 1e-6 <= np.corrcoef(preds, sensitive)[0, 1] <= known.rho[1] + 1e-6
    by = known.by_method
    assert by["binary"] <= by["share"] + 1e-6
    assert by["binary"] <= by["tight"] + 1e-4
    assert by["tight"] <= by["paper"] + 1e-5  # the search for weights is not exact


@pytest.mark.parametrize("seed", range(8))
def test_known_correlations_give_the_tight_interval(seed: int) -> None:
    preds, columns, sensitive = varying(seed, 40, 1 + seed % 5)
    a, b = correlations(columns, sensitive), correlations(columns, preds)
    matrix = np.corrcoef(columns.T).reshape(len(a), len(a))
    low, high = correlation_interval_multi(*map(torch.from_numpy, (a, b, matrix)))
    known = bound_of(preds, columns, a, float(sensitive.mean()))
    assert known.rho == pytest.approx((low.item(), high.item()), abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_worst_case_over_a_box_is_that_of_a_general_optimiser(seed: int) -> None:
    preds, columns, sensitive = varying(seed, 50, 2)
    a, standard = correlations(columns, sensitive), standardise(columns)[0]
    box = Box((a - 0.1).clip(-1, 1), (a + 0.15).clip(-1, 1))
    corr, cov, variance = moments = second_moments(preds, standard)
    inverse, b = np.linalg.inv(corr), cov / np.sqrt(variance)

    def loss(point: Array) -> float:
        rest = max((1 - point @ inverse @ point) * (1 - b @ inverse @ b), 0.0)
        return -float(point @ inverse @ b + np.sqrt(rest))

    found = minimize(loss, a, bounds=list(zip(box.low, box.high, strict=True)), method="SLSQP", tol=1e-14)
    weights = weights_any(moments, box)
    bound = (box.support(weights) + residual_spread(weights, moments)) / np.sqrt(variance)
    assert bound >= -found.fun - 1e-9  # any weights prove an upper bound
    assert bound == pytest.approx(-found.fun, abs=1e-6)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_no_binary_sensitive_attribute_allows_a_smaller_bound(seed: int, hard: bool) -> None:  # noqa: FBT001 - parametrised
    preds, columns, sensitive = varying(seed, 60, 3, hard=hard)
    a, q = correlations(columns, sensitive), float(sensitive.mean())
    known = bound_of(preds, columns, a, q)
    standard, size = standardise(columns)[0], len(preds)
    fixed = np.vstack([np.ones(size), standard.T]) / size
    values = np.append(q, a * np.sqrt(q * (1 - q)))
    goal = (preds - preds.mean()) / (size * q * (1 - q))
    least, most = (
        sign * float(linprog(sign * goal, A_eq=fixed, b_eq=values, bounds=(0, 1)).fun or 0.0)
        for sign in (1, -1)
    )
    assert (known.low, known.high) == pytest.approx((least, most), abs=1e-4)
    assert known.low <= least + 1e-9
    assert known.high >= most - 1e-9


def test_interval_of_shares_is_as_bad_as_its_worst_share() -> None:
    preds, columns, sensitive = varying(3, 200, 2)
    a = correlations(columns, sensitive)
    wide = bound_of(preds, columns, a, (0.3, 0.6))
    single = [bound_of(preds, columns, a, float(q)) for q in np.linspace(0.3, 0.6, 13)]
    assert wide.high >= max(one.high for one in single) - 1e-9
    assert wide.high == pytest.approx(max(one.high for one in single), abs=0.02)
    assert wide.low <= min(one.low for one in single) + 1e-9


def test_constant_columns_and_predictions() -> None:
    preds, columns, sensitive = varying(5, 50, 2)
    a = correlations(columns, sensitive)
    more = np.column_stack([columns, np.full(50, 7.0)])
    with_constant = bound_of(preds, more, np.append(a, 0.3), 0.4)
    assert with_constant.bound == pytest.approx(bound_of(preds, columns, a, 0.4).bound)
    assert bound_of(np.full(50, 0.2), columns, a, 0.4).bound == 0
    nothing = bound_of(preds, more[:, 2:], np.array([0.3]), 0.4)
    assert nothing.by_method["binary"] == nothing.by_method["share"]
    assert nothing.by_method["paper"] == pytest.approx(nothing.spread / np.sqrt(0.24))


def test_many_rows_are_searched_on_some_of_them() -> None:
    preds, columns, sensitive = varying(2, 60_000, 2)
    known = bound_of(preds, columns, correlations(columns, sensitive), float(sensitive.mean()))
    truth = preds[sensitive == 1].mean() - preds[sensitive == 0].mean()
    assert known.low <= truth <= known.high
    assert known.bound < 0.98 * known.by_method["tight"]


@pytest.mark.parametrize(
    ("a", "share", "message"),
    [
        ([0.99, -0.99], 0.5, "no S can have"),
        ([0.1], 0.5, "expected 2 numbers"),
        ([0.1, 1.2], 0.5, "from -1 to 1"),
        ([0.1, 0.1], 1.0, "share = 1.0"),
    ],
)
def test_what_cannot_be_is_refused(a: list[float], share: float, message: str) -> None:
    columns = np.repeat(np.random.default_rng(0).normal(size=(40, 1)), 2, axis=1)
    preds = np.random.default_rng(1).uniform(size=40)
    with pytest.raises(InputError, match=message):
        bound_of(preds, columns, np.array(a), share)
    with pytest.raises(InputError, match="preds"):
        bound_of(preds[:5], columns, np.array([0.1, 0.1]), 0.5)
    with pytest.raises(InputError, match="without missing values"):
        bound_of(preds, np.full((40, 2), np.nan), np.array([0.1, 0.1]), 0.5)
    with pytest.raises(InputError, match="expected N numbers"):
        bound_of(preds[:0], columns[:0], np.array([0.1, 0.1]), 0.5)


def test_logits_get_no_certificate() -> None:
    """Their gap can be larger than 1, the largest of probabilities."""
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=r"preds has the value .*sigmoid of logits"):
        bound_of(5 * rng.normal(size=40), rng.normal(size=(40, 1)), np.array([0.1]), 0.5)


@pytest.mark.parametrize(
    ("preds", "columns", "message"),
    [
        (torch.randn(40), torch.randn(40, 1), "sigmoid of logits"),
        (torch.rand(40), torch.full((40, 1), torch.nan), "without missing values"),
        (torch.rand(40), torch.randn(40, 2), "expected 2 numbers"),
        (torch.rand(39), torch.randn(40, 1), "one line for each row"),
    ],
)
def test_rows_that_are_no_predictions_get_no_certificate(
    preds: torch.Tensor, columns: torch.Tensor, message: str
) -> None:
    known = Knowledge(["age"], Box(np.array([0.1]), np.array([0.2])), (0.4, 0.5), "S = 1", "a test")
    with pytest.raises(InputError, match=message):
        certify_rows(preds, columns, known)
    with pytest.raises(InputError, match="threshold = nan"):
        certify_rows(torch.rand(40), torch.randn(40, 1), known, threshold=math.nan)
    with pytest.raises(InputError, match="level = 95"):
        certify_rows(torch.rand(40), torch.randn(40, 1), known, level=95)


def test_intervals_of_a_sample_hold_together() -> None:
    """Over 100 samples; 0.96 is meant, and 0.90 is three standard errors below."""
    _, columns, sensitive = varying(7, 20_000, 4)
    a, share = correlations(columns, sensitive), sensitive.mean()
    rng = np.random.default_rng(0)
    held = 0
    for seed in range(100):
        rows = rng.integers(0, len(columns), 150)
        box, limits = sample_box(columns[rows], sensitive[rows], 0.96, seed)
        inside = ((box.low <= a) & (a <= box.high)).all() and limits[0] <= share <= limits[1]
        held += bool(inside)
    assert held >= 90


def test_nothing_is_said_of_a_column_that_hardly_varies() -> None:
    rng = np.random.default_rng(0)
    columns = np.column_stack([rng.normal(size=200), np.arange(200) < 3])
    box, _ = sample_box(columns, (rng.uniform(size=200) > 0.5).astype(float))
    assert (box.low[1], box.high[1]) == (-1, 1)
    assert -0.3 < box.low[0] < 0 < box.high[0] < 0.3
    rare, _ = sample_box(columns[:, 1:], (rng.uniform(size=200) > 0.5).astype(float))
    assert (rare.low[0], rare.high[0]) == (-1, 1)


def test_too_small_a_sample_is_refused() -> None:
    with pytest.raises(InputError, match="expected at least 100"):
        sample_box(np.zeros((50, 1)), np.resize([0.0, 1.0], 50))


def test_limit_for_the_population_covers_it() -> None:
    preds, columns, sensitive = varying(11, 50_000, 3)
    a, share = correlations(columns, sensitive), float(sensitive.mean())
    box, limits = Box(a, a), (share, share)
    best = box_bound(preds, standardise(columns)[0], box, limits).bound
    rng = np.random.default_rng(0)
    found = []
    for seed in range(20):
        rows = rng.integers(0, len(preds), 1000)
        limit = population_bound(preds[rows], columns[rows], box, (share - 0.01, share + 0.01), seed=seed)
        assert limit is not None
        found.append(limit)
    assert min(found) >= best  # the population's own bound, of which each is an upper limit
    assert np.mean(found) < best + 0.15
    assert population_bound(preds[:100], columns[:100], box, limits) is None


def test_decisions_that_were_rare_on_the_rows_may_be_less_rare_in_the_population() -> None:
    """At a normal limit alone, 200 rows without a positive decision would certify that there is no gap."""
    columns = np.random.default_rng(0).normal(size=(400, 1))
    limit = population_bound(np.zeros(400), columns, Box(-np.ones(1), np.ones(1)), (0.3, 0.3), level=0.99)
    # If a share t is decided positively, all of it in the group, the gap is t / 0.3; with this t no positive
    # decision in 200 rows is as likely as each of six limits may fail.
    unseen = 1 - (0.01 / 6) ** (1 / 200)
    assert limit is not None
    assert unseen / 0.3 - 1e-9 <= limit < 0.15


def theorem_2(with_s: float, with_preds: float) -> tuple[float, float]:
    """The paper's Theorem 2: one feature."""
    pair = torch.tensor([[with_s], [with_preds]], dtype=torch.float64)
    return k_feature_interval(pair[0], pair[1])


@quick
@given(st.floats(0, math.pi / 4), st.floats(0, math.pi / 4))
def test_theorem_2_is_the_paper_s_formula(alpha: float, delta: float) -> None:
    found = theorem_2(math.cos(alpha), math.sin(delta))
    expected = math.cos(math.pi / 2 + delta + alpha), math.cos(math.pi / 2 - delta - alpha)
    assert found == pytest.approx(expected, abs=1e-6)


def test_theorem_2_says_nothing_where_the_paper_s_formula_would_be_wrong() -> None:
    # alpha = delta = pi / 2: the formula as printed gives [0, 0], though S may be the prediction itself
    assert theorem_2(0.0, 1.0) == (-1.0, 1.0)


@quick
@given(st.integers(1, 6), seeds, st.integers(3, 30))
def test_tight_interval_holds_the_truth_and_is_never_wider_than_the_paper_s(
    num_columns: int, seed: int, rows: int
) -> None:
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(rows, num_columns + 2)) + rng.normal(size=(rows, 1))
    joint = torch.from_numpy(np.corrcoef(data.T))
    a, b, columns, truth = joint[:-2, -2], joint[:-2, -1], joint[:-2, :-2], joint[-1, -2].item()
    low, high = (limit.item() for limit in correlation_interval_multi(a, b, columns))
    assert low - 1e-6 <= truth <= high + 1e-6
    singles = torch.stack(correlation_interval(a, b), -1).tolist()
    for paper in (k_feature_interval(a, b), *singles):
        assert paper[0] - 1e-6 <= low
        assert high <= paper[1] + 1e-6


@pytest.mark.parametrize(
    ("a", "columns"),
    [
        ([0.9, -0.9], [[1.0, 0.9], [0.9, 1.0]]),  # a' C^-1 a is above 1
        ([0.5, 0.4], [[1.0, 1.0], [1.0, 1.0]]),  # a is out of the range of a singular C
    ],
)
def test_impossible_correlations_are_refused(a: list[float], columns: list[list[float]]) -> None:
    zero = torch.zeros(2, dtype=torch.float64)
    with pytest.raises(InputError, match="no variable has these correlations"):
        correlation_interval_multi(torch.tensor(a).double(), zero, torch.tensor(columns).double())
    with pytest.raises(InputError, match="b = "):
        correlation_interval_multi(zero, torch.tensor(a).double(), torch.tensor(columns).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_does_not_make_a_singular_matrix_impossible(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    job = np.eye(4)[rng.integers(0, 4, 500)]
    data = np.column_stack([job, job[:, 0] + rng.normal(size=500), job[:, 0]])
    joint = torch.from_numpy(np.corrcoef(data.T)).to(dtype)  # S is a column, and the columns sum to 1
    low, high = correlation_interval_multi(joint[:4, 5], joint[:4, 4], joint[:4, :4])
    assert low.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float64 else 2e-2
    assert [low.item(), high.item()] == pytest.approx([joint[4, 5].item()] * 2, abs=tolerance)


def test_numbers_that_are_no_correlations_are_refused() -> None:
    with pytest.raises(InputError, match="from -1 to 1"):
        theorem_2(1.5, 0.0)
    with pytest.raises(InputError, match="from -1 to 1"):
        theorem_2(math.nan, 0.0)
