from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias, get_args

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, brentq, minimize
from torch import Tensor

from fairrf_lightning.errors import InputError
from fairrf_lightning.functional import (
    Moments,
    Rule,
    Statistic,
    batch_moments,
    correlation_interval,
    correlation_interval_multi,
    feature_penalties,
    merge_moments,
    penalties_from_moments,
    solve_lambda,
    weighted_covariances,
)

STATISTICS: tuple[Statistic, ...] = ("covariance", "correlation")
OWNER = torch.tensor([0, 1, 1, 2, 1])

quick = settings(deadline=None, max_examples=50)
each_statistic = pytest.mark.parametrize("statistic", STATISTICS)
each_mask = pytest.mark.parametrize("mask", [None, torch.arange(40) % 3 == 0], ids=["all rows", "masked"])
seeds = st.integers(0, 2**32 - 1)
statistics = st.sampled_from(STATISTICS)


def draw(
    *lead: int, rows: int = 40, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Predictions ``(*lead, rows)`` and five columns ``(rows, 5)`` that they depend on, each differently."""
    generator = torch.Generator().manual_seed(seed)
    related = torch.randn(rows, len(OWNER), generator=generator, dtype=torch.float64)
    slopes = torch.tensor([1.0, -0.8, 0.6, 1.2, -1.0], dtype=torch.float64)
    noise = torch.randn(*lead, rows, generator=generator, dtype=torch.float64)
    return (related @ slopes + noise).sigmoid().to(dtype), related.to(dtype)


def by_hand(preds: Tensor, related: Tensor, owner: Tensor, num_features: int) -> list[float]:
    """R of each feature, from the paper's formula with two plain loops."""
    p = preds.tolist()
    mean_p = math.fsum(p) / len(p)
    result = [0.0] * num_features
    for c, feature in enumerate(owner.tolist()):
        x = related[:, c].tolist()
        mean_x = math.fsum(x) / len(x)
        total = 0.0
        for x_i, p_i in zip(x, p, strict=True):
            total += (x_i - mean_x) * (p_i - mean_p)
        result[feature] += abs(total / len(x))
    return result


# --- feature_penalties ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 7, 200])
def test_penalties_follow_the_papers_formula(rows: int) -> None:
    preds, related = draw(rows=rows)
    penalties = feature_penalties(preds, related, OWNER, 3)
    assert penalties.tolist() == pytest.approx(by_hand(preds, related, OWNER, 3), abs=1e-14)


def test_columns_of_a_feature_do_not_cancel() -> None:
    preds = torch.tensor([0.0, 0.0, 1.0, 1.0])
    sides = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert feature_penalties(preds, sides, torch.tensor([0, 0]), 1).tolist() == [0.5]


def test_correlation_is_that_of_numpy() -> None:
    preds, related = draw()
    expected = [0.0, 0.0, 0.0]
    for c, feature in enumerate(OWNER.tolist()):
        expected[feature] += abs(np.corrcoef(preds, related[:, c])[0, 1])
    penalties = feature_penalties(preds, related, OWNER, 3, statistic="correlation")
    assert penalties.tolist() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("masked", [False, True])
@each_statistic
def test_leading_dimensions_are_models_of_their_own(statistic: Statistic, masked: bool) -> None:  # noqa: FBT001 - parametrised
    preds, shared = draw(2, 3)
    own = shared * torch.rand(2, 3, 1, 5, dtype=torch.float64) + torch.rand(2, 3, 40, 5, dtype=torch.float64)
    mask = torch.rand(2, 3, 40) < 0.6 if masked else None
    together = feature_penalties(preds, shared, OWNER, 3, statistic=statistic, mask=mask)
    apart = feature_penalties(preds, own, OWNER, 3, statistic=statistic, mask=mask)
    assert together.shape == apart.shape == (2, 3, 3)
    for i, j in np.ndindex(2, 3):
        part = None if mask is None else mask[i, j]
        for found, related in ((together[i, j], shared), (apart[i, j], own[i, j])):
            single = feature_penalties(preds[i, j], related, OWNER, 3, statistic=statistic, mask=part)
            assert found.tolist() == pytest.approx(single.tolist(), abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float64, torch.int64])
@each_statistic
def test_mask_equals_dropping_rows(statistic: Statistic, dtype: torch.dtype) -> None:
    preds, related = draw()
    mask = torch.arange(40) % 3 == 0
    dropped = feature_penalties(preds[mask], related[mask], OWNER, 3, statistic=statistic)
    masked = feature_penalties(preds, related, OWNER, 3, statistic=statistic, mask=mask.to(dtype))
    assert masked.tolist() == pytest.approx(dropped.tolist(), abs=1e-14)


@pytest.mark.parametrize("masked", [False, True])
@each_statistic
def test_gradient_is_that_of_finite_differences(statistic: Statistic, masked: bool) -> None:  # noqa: FBT001 - parametrised
    preds, related = draw(2, rows=9, seed=3)
    mask = torch.tensor([True] * 4 + [False, True] * 2 + [True]) if masked else None
    each = torch.arange(5)
    columns = feature_penalties(preds, related, each, 5, statistic=statistic, mask=mask)
    assert columns.min() > 1e-3, "a column at the kink of |.| has no gradient to compare with"

    def penalties(preds: Tensor, related: Tensor) -> Tensor:
        return feature_penalties(preds, related, OWNER, 3, statistic=statistic, mask=mask)

    assert torch.autograd.gradcheck(penalties, (preds.requires_grad_(), related.requires_grad_()))


@each_statistic
@pytest.mark.parametrize("masked", [False, True])
def test_float32_is_accurate_far_from_zero(statistic: Statistic, masked: bool) -> None:  # noqa: FBT001 - parametrised
    generator = torch.Generator().manual_seed(0)
    column = (1e4 + torch.empty(2000, 1).uniform_(-1, 1, generator=generator)).float()
    preds = ((column[:, 0] - 1e4) * 0.1 + torch.rand(2000, generator=generator)).sigmoid()
    mask = torch.rand(2000, generator=generator) < 0.5 if masked else None
    owner = torch.tensor([0])
    exact = feature_penalties(preds.double(), column.double(), owner, 1, statistic=statistic, mask=mask)
    found = feature_penalties(preds, column, owner, 1, statistic=statistic, mask=mask)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(exact.item(), rel=2e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_statistic
def test_half_inputs_are_computed_in_float32(statistic: Statistic, dtype: torch.dtype) -> None:
    preds, related = draw(dtype=dtype)
    found = feature_penalties(preds, related, OWNER, 3, statistic=statistic)
    assert found.dtype == torch.float32
    assert torch.equal(
        found, feature_penalties(preds.float(), related.float(), OWNER, 3, statistic=statistic)
    )


@each_mask
@each_statistic
def test_autocast_changes_nothing(statistic: Statistic, mask: Tensor | None) -> None:
    preds, related = draw(3, dtype=torch.float32)
    expected = feature_penalties(preds, related, OWNER, 3, statistic=statistic, mask=mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (preds @ related).dtype == torch.bfloat16
        found = feature_penalties(preds, related, OWNER, 3, statistic=statistic, mask=mask)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1e4 + 0.1])
@each_mask
@each_statistic
def test_constant_side_has_no_penalty_and_a_finite_gradient(
    statistic: Statistic, value: float, mask: Tensor | None
) -> None:
    varied, related = draw(dtype=torch.float32)
    for preds, columns in (
        (varied.clone(), torch.full((40, 5), value)),
        (torch.full((40,), value), related.clone()),
    ):
        preds.requires_grad_()
        columns.requires_grad_()
        penalties = feature_penalties(preds, columns, OWNER, 3, statistic=statistic, mask=mask)
        rounding = 1e-6 * max(1.0, value) if statistic == "covariance" else 0.0
        assert penalties.tolist() == pytest.approx([0, 0, 0], abs=rounding)
        preds_grad, columns_grad = torch.autograd.grad(penalties.sum(), (preds, columns))
        assert preds_grad.isfinite().all()
        assert columns_grad.isfinite().all()


@each_statistic
def test_empty_mask_gives_zero_and_a_zero_gradient(statistic: Statistic) -> None:
    preds, related = draw()
    preds.requires_grad_()
    mask = torch.zeros(40, dtype=torch.bool)
    penalties = feature_penalties(preds, related, OWNER, 3, statistic=statistic, mask=mask)
    (gradient,) = torch.autograd.grad(penalties.sum(), preds)
    assert penalties.tolist() == [0, 0, 0]
    assert gradient.eq(0).all()


@pytest.mark.parametrize("centre", [-35.0, -40.0])
def test_correlation_of_saturated_predictions_has_a_finite_gradient(centre: float) -> None:
    preds, related = draw(dtype=torch.float32)
    logits = (preds + centre).requires_grad_()
    penalties = feature_penalties(logits.sigmoid(), related, OWNER, 3, statistic="correlation")
    (gradient,) = torch.autograd.grad(penalties.sum(), logits)
    assert penalties.isfinite().all()
    assert gradient.isfinite().all()


@quick
@given(seeds, st.integers(3, 30), st.floats(-1e3, 1e3), statistics)
def test_shift_of_a_column_changes_nothing(seed: int, rows: int, shift: float, statistic: Statistic) -> None:
    preds, related = draw(rows=rows, seed=seed)
    shifted = related + shift * torch.tensor([1.0, 0.0, 1.0, 0.0, -1.0])
    before, after = (feature_penalties(preds, x, OWNER, 3, statistic=statistic) for x in (related, shifted))
    assert after.tolist() == pytest.approx(before.tolist(), abs=1e-9)


@quick
@given(seeds, st.integers(3, 30), st.floats(1e-3, 1e3), st.sampled_from([1, -1]))
def test_scale_of_a_column_scales_covariance_only(seed: int, rows: int, size: float, sign: int) -> None:
    preds, related = draw(rows=rows, seed=seed)
    scaled = related * (size * sign)
    before, after = (feature_penalties(preds, x, OWNER, 3) for x in (related, scaled))
    assert after.tolist() == pytest.approx((size * before).tolist(), rel=1e-9)
    before, after = (
        feature_penalties(preds, x, OWNER, 3, statistic="correlation") for x in (related, scaled)
    )
    assert after.tolist() == pytest.approx(before.tolist(), rel=1e-9)


@quick
@given(seeds, st.integers(1, 30), statistics)
def test_order_of_rows_does_not_matter(seed: int, rows: int, statistic: Statistic) -> None:
    preds, related = draw(rows=rows, seed=seed)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    before = feature_penalties(preds, related, OWNER, 3, statistic=statistic)
    after = feature_penalties(preds[order], related[order], OWNER, 3, statistic=statistic)
    assert after.tolist() == pytest.approx(before.tolist(), abs=1e-12)


# --- moments -------------------------------------------------------------------------------------------


@quick
@given(seeds, st.integers(1, 60), st.lists(st.floats(0, 1), max_size=8), st.sampled_from([(), (3,)]))
def test_moments_of_parts_merge_into_those_of_all_rows(
    seed: int, rows: int, cuts: list[float], lead: tuple[int, ...]
) -> None:
    preds, related = draw(*lead, rows=rows, seed=seed)
    limits = sorted({0, *(int(cut * rows) for cut in cuts), rows})
    parts = [batch_moments(preds[..., i:j], related[i:j]).pack() for i, j in pairwise(limits)]
    merged, whole = merge_moments(torch.stack(parts)), batch_moments(preds, related)
    assert torch.as_tensor(merged.rows).eq(rows).all()
    torch.testing.assert_close(merged.pack(), whole.pack(), rtol=1e-12, atol=1e-12)


def test_parts_without_rows_merge_as_nothing() -> None:
    preds, related = draw()
    parts = [batch_moments(preds[i:j], related[i:j]).pack() for i, j in ((0, 0), (0, 40), (40, 40))]
    torch.testing.assert_close(merge_moments(torch.stack(parts)).pack(), batch_moments(preds, related).pack())


def test_parts_with_all_rows_masked_merge_as_nothing() -> None:
    preds, related = draw()
    nothing = batch_moments(preds + 7, related - 3, torch.zeros(40))
    merged = merge_moments(torch.stack([nothing.pack(), batch_moments(preds, related).pack()]))
    torch.testing.assert_close(merged.pack(), batch_moments(preds, related).pack())
    empty = merge_moments(torch.stack([nothing.pack()] * 2))
    assert empty.pack().eq(0).all()


@each_statistic
def test_penalties_of_merged_moments_are_those_of_all_rows(statistic: Statistic) -> None:
    preds, related = draw(2)
    parts = [batch_moments(preds[:, i::3], related[i::3]).pack() for i in range(3)]
    found = penalties_from_moments(merge_moments(torch.stack(parts)), OWNER, 3, statistic)
    expected = feature_penalties(preds, related, OWNER, 3, statistic=statistic)
    torch.testing.assert_close(found, expected)


def test_moments_are_numpys() -> None:
    preds, related = draw()
    moments = batch_moments(preds, related)
    joint = np.cov(np.column_stack([preds, related]).T, bias=True) * 40
    assert moments.rows == 40
    assert moments.mean_preds.item() == pytest.approx(preds.numpy().mean())
    assert moments.mean_related.tolist() == pytest.approx(related.numpy().mean(0).tolist())
    assert moments.squares_preds is not None
    assert moments.squares_related is not None
    assert moments.squares_preds.item() == pytest.approx(joint[0, 0])
    assert moments.squares_related.tolist() == pytest.approx(joint.diagonal()[1:].tolist())
    assert moments.products.tolist() == pytest.approx(joint[0, 1:].tolist())


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_packed_moments_unpack_to_the_same(lead: tuple[int, ...]) -> None:
    moments = batch_moments(*draw(*lead))
    packed = moments.pack()
    assert packed.shape == (*lead, 3 + 3 * 5)
    for before, after in zip(moments, Moments.unpack(packed), strict=True):
        assert isinstance(after, Tensor)
        assert before is not None
        assert torch.equal(torch.as_tensor(before, dtype=packed.dtype).expand_as(after), after)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("squares", [False, True])
def test_many_moments_are_packed_as_each_of_them(squares: bool, masked: bool) -> None:  # noqa: FBT001 - parametrised
    batches = [draw(2, rows=rows, seed=rows) for rows in (7, 3, 11)]
    masks = [torch.arange(len(related)) % 2 == 0 if masked else None for _, related in batches]
    parts = [batch_moments(*batch, mask, squares=squares) for batch, mask in zip(batches, masks, strict=True)]
    whole = [part.pack() for part in parts]
    assert torch.equal(Moments.pack_all(parts), torch.stack(whole))
    # Parts from a checkpoint, next to those of later batches.
    parts[0] = Moments.unpack(whole[0])
    assert torch.equal(Moments.pack_all(parts), torch.stack(whole))


# --- solve_lambda --------------------------------------------------------------------------------------

Vector: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]

penalty_lists = st.lists(st.floats(0, 10) | st.sampled_from([0.0, 0.5]), min_size=1, max_size=30)
betas = st.floats(-4, 4).map(lambda exponent: 10.0**exponent)


def assert_optimal(weights: Tensor, penalties: Tensor, beta: float, tolerance: float) -> None:
    """Check the KKT conditions of: minimise lambda . R + beta |lambda|^2 over the simplex."""
    weights, penalties = weights.double(), penalties.double()
    # Feasibility.
    assert weights.min() >= 0
    assert weights.sum().item() == pytest.approx(1, abs=1e-6)
    # Stationarity, R + 2 beta lambda - multiplier - slack = 0, with slack = 0 where lambda > 0.
    gradient = penalties + 2 * beta * weights
    multiplier = gradient[weights > 0].mean()
    slack = gradient - multiplier
    assert slack[weights > 0].abs().max() <= tolerance
    assert slack.min() >= -tolerance
    # Complementary slackness.
    assert (weights * slack).abs().max() <= tolerance


def by_dual(penalties: Sequence[float], beta: float) -> list[float]:
    """Find the multiplier v of sum_j max(0, -v - R_j) = 2 beta by root finding, and lambda from it."""
    values = np.asarray(penalties)

    def surplus(v: float) -> float:
        return float(np.maximum(0, -v - values).sum()) - 2 * beta

    v = brentq(surplus, -values.max() - 2 * beta - 1, -values.min(), xtol=1e-15, rtol=1e-15, maxiter=500)
    weights: list[float] = (np.maximum(0, -v - values) / (2 * beta)).tolist()
    return weights


@quick
@given(penalty_lists, betas)
@example([0.0], 1e-4)
@example([0.5] * 7, 0.5)
@example([0.0, 0.0, 10.0], 1e-4)
@example([0.0, 1e-9, 10.0], 1e4)
def test_lambda_meets_the_kkt_conditions(penalties: list[float], beta: float) -> None:
    values = torch.tensor(penalties, dtype=torch.float64)
    weights = solve_lambda(values, beta)
    assert weights.dtype == torch.float64
    assert_optimal(weights, values, beta, tolerance=1e-6)
    assert weights.tolist() == pytest.approx(by_dual(penalties, beta), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta", [1e-4, 1e-2, 0.5, 10.0, 1e4])
@pytest.mark.parametrize("num_features", [1, 2, 10, 100, 1000])
def test_lambda_of_many_features_solves_the_dual(num_features: int, beta: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(num_features)
    penalties = torch.rand(num_features, generator=generator, dtype=dtype)
    penalties[::3] = penalties[0]
    penalties[1::7] = 0
    weights = solve_lambda(penalties, beta)
    assert weights.dtype == dtype
    # In float32 the result is rounded to 6e-8, which the gradient multiplies by 2 beta.
    rounding = 2 * beta * torch.finfo(dtype).eps
    assert_optimal(weights, penalties, beta, tolerance=1e-6 + rounding)
    assert weights.tolist() == pytest.approx(by_dual(penalties.tolist(), beta), abs=1e-6)


@pytest.mark.parametrize("beta", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("num_features", [1, 2, 4, 6])
def test_lambda_agrees_with_a_general_solver(num_features: int, beta: float) -> None:
    values = np.random.default_rng(num_features).uniform(0, 1, num_features)

    def objective(weights: Vector) -> float:
        return float(weights @ values + beta * weights @ weights)

    def gradient(weights: Vector) -> Vector:
        return values + 2 * beta * weights

    solution = minimize(
        objective,
        np.full(num_features, 1 / num_features),
        jac=gradient,
        method="SLSQP",
        bounds=[(0, 1)] * num_features,
        constraints=LinearConstraint(np.ones((1, num_features)), 1, 1),
        tol=1e-15,
    )
    assert solution.success
    weights = solve_lambda(torch.from_numpy(values), beta)
    assert weights.tolist() == pytest.approx(solution.x.tolist(), abs=1e-6)


def test_rows_of_a_batch_are_solved_each_with_its_beta() -> None:
    penalties = torch.rand(4, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    beta = torch.logspace(-3, 2, 12, dtype=torch.float64).reshape(4, 3)
    together, shared = solve_lambda(penalties, beta), solve_lambda(penalties, 0.125)
    for i, j in np.ndindex(4, 3):
        assert torch.equal(together[i, j], solve_lambda(penalties[i, j], beta[i, j]))
        assert torch.equal(shared[i, j], solve_lambda(penalties[i, j], 0.125))


@pytest.mark.parametrize("beta", [1e-3, 0.5, 1e5])
def test_many_features_have_the_weights_that_a_sort_gives(beta: float) -> None:
    draw = torch.Generator().manual_seed(0)
    penalties = torch.rand(3, 40_000, generator=draw, dtype=torch.float64)
    penalties[1] = 0.3  # all have the same weight
    penalties[2].exp_().pow_(8)
    for row, weights in zip(penalties, solve_lambda(penalties, beta), strict=True):
        surplus = (-row / (2 * beta)).sort(descending=True).values.cumsum(0) - 1
        sizes = torch.arange(1, len(row) + 1)
        expected = (-row / (2 * beta) - (surplus / sizes).max()).clamp(min=0)
        torch.testing.assert_close(weights, expected, rtol=1e-7, atol=1e-11)
    assert solve_lambda(torch.full((40_000,), torch.nan), beta).isnan().all()


@pytest.mark.parametrize("rule", get_args(Rule))
def test_lambda_with_a_gradient_is_the_same(rule: Rule) -> None:
    """NumPy solves on the CPU, and torch where a graph is wanted."""
    draw = torch.Generator().manual_seed(0)
    penalties = torch.rand(4, 9, generator=draw, dtype=torch.float64, requires_grad=True)
    beta, chosen = torch.logspace(-3, 1, 4), torch.rand(4, 9, generator=draw) > 0.3
    graph = solve_lambda(penalties, beta, rule, chosen)
    torch.testing.assert_close(solve_lambda(penalties.detach(), beta, rule, chosen), graph)
    assert torch.autograd.gradcheck(lambda values: solve_lambda(values, beta, rule, chosen), [penalties])
    wide = beta.double().requires_grad_()
    fixed = penalties.detach()
    assert torch.autograd.gradcheck(lambda values: solve_lambda(fixed, values, rule), [wide])
    rows = torch.func.vmap(lambda row: solve_lambda(row, 0.5, rule))(fixed)
    torch.testing.assert_close(rows, solve_lambda(fixed, 0.5, rule))


@pytest.mark.parametrize("rule", get_args(Rule))
@pytest.mark.parametrize("with_graph", [False, True])
def test_nan_and_infinite_penalties_are_not_hidden(rule: Rule, *, with_graph: bool) -> None:
    penalties = torch.tensor([[0.1, math.nan, 0.3], [0.1, math.inf, 0.3]]).requires_grad_(with_graph)
    weights = solve_lambda(penalties, 0.5, rule).detach()
    assert weights[0].isnan().all()
    if rule == "kkt":
        assert weights[1].tolist() == pytest.approx([0.6, 0, 0.4])
    else:
        assert weights[1].isnan().all()


def test_weights_of_a_million_features_are_exact() -> None:
    draw = torch.Generator().manual_seed(0)
    penalties = torch.rand(1_000_000, generator=draw, dtype=torch.float64)
    for beta in (1e-7, 0.5, 1e6):
        weights = solve_lambda(penalties, beta)
        assert math.fsum(weights.tolist()) == pytest.approx(1, abs=1e-9)
        assert_optimal(weights, penalties, beta, tolerance=1e-9 * max(1, beta))


@pytest.mark.parametrize("num_features", [2, 5])
def test_the_worst_case_lambda_agrees_with_a_general_solver(num_features: int) -> None:
    penalties = torch.linspace(0.1, 0.6, num_features, dtype=torch.float64).numpy()

    def regret(weights: np.ndarray) -> float:
        return float(-weights @ penalties + 0.4 * weights @ weights)

    found = minimize(
        regret,
        np.full(num_features, 1 / num_features),
        bounds=[(0, 1)] * num_features,
        constraints=[LinearConstraint(np.ones((1, num_features)), 1, 1)],
        tol=1e-12,
    )
    solved = solve_lambda(torch.from_numpy(penalties), 0.4, rule="worst_case")
    np.testing.assert_allclose(solved.numpy(), found.x, atol=1e-5)


@pytest.mark.parametrize("rule", get_args(Rule))
def test_lambda_over_chosen_features_is_that_without_the_others(rule: Rule) -> None:
    penalties = torch.tensor([[0.3, 0.01, 0.2, 0.9], [0.1, 0.5, 0.2, 0.4]])
    chosen = torch.tensor([[True, False, True, False], [False, True, True, True]])
    weights = solve_lambda(penalties, 0.3, rule, chosen)
    for row in range(2):
        alone = solve_lambda(penalties[row, chosen[row]], 0.3, rule)
        assert weights[row, chosen[row]].tolist() == alone.tolist()
        assert weights[row, ~chosen[row]].tolist() == [0.0] * int((~chosen[row]).sum())


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InputError, match="worst_case"):
        solve_lambda(torch.rand(3), 0.5, rule="best")  # type: ignore[arg-type]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("statistic", get_args(Statistic))
def test_models_may_share_the_rows_of_their_seed(statistic: Statistic, masked: bool) -> None:  # noqa: FBT001 - parametrised
    preds, related, owner = torch.rand(3, 4, 20), torch.randn(3, 1, 20, 5), torch.tensor([0, 1, 1, 2, 0])
    mask = torch.rand(3, 1, 20) > 0.4 if masked else None
    together = feature_penalties(preds, related, owner, 3, statistic=statistic, mask=mask)
    for s in range(3):
        for p in range(4):
            rows = None if mask is None else mask[s, 0]
            alone = feature_penalties(preds[s, p], related[s, 0], owner, 3, statistic=statistic, mask=rows)
            torch.testing.assert_close(together[s, p], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_beta_spreads_lambda_evenly(dtype: torch.dtype) -> None:
    weights = solve_lambda(torch.tensor([0.0, 3.0, 1.0, 10.0], dtype=dtype), 1e8)
    assert weights.tolist() == pytest.approx([0.25] * 4, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_beta_picks_the_smallest_penalty(dtype: torch.dtype) -> None:
    assert solve_lambda(torch.tensor([0.3, 0.2, 0.9], dtype=dtype), 1e-8).tolist() == [0, 1, 0]
    assert solve_lambda(torch.tensor([0.3, 0.2, 0.2], dtype=dtype), 1e-8).tolist() == [0, 0.5, 0.5]


@pytest.mark.parametrize("beta", [0.0, -1.0, -1e-9, math.nan, math.inf, -math.inf])
def test_impossible_beta_is_refused(beta: float) -> None:
    with pytest.raises(InputError, match=rf"beta = {beta}: expected a positive number"):
        solve_lambda(torch.tensor([0.1, 0.2]), beta)


# --- correlation intervals -----------------------------------------------------------------------------


def random_correlations(size: int, seed: int, rows: int | None = None) -> Tensor:
    data = np.random.default_rng(seed).normal(size=(rows or size + 3, size))
    data[:, 1:] += 0.7 * data[:, :1]
    return torch.from_numpy(np.corrcoef(data.T))


def feasible_limits(joint: Tensor) -> tuple[float, float]:
    """The least and the largest value of the last correlation of ``joint`` that keep it a correlation matrix.

    Bisection from the value that it has, with the smallest eigenvalue as the judge.
    """

    def feasible(rho: float) -> bool:
        candidate = joint.clone()
        candidate[-1, -2] = candidate[-2, -1] = rho
        return bool(torch.linalg.eigvalsh(candidate)[0] >= -1e-13)

    def last_feasible(inside: float, outside: float) -> float:
        for _ in range(50):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if feasible(middle) else (inside, middle)
        return inside

    start = float(joint[-1, -2])
    return last_feasible(start, -1.0), last_feasible(start, 1.0)


def as_floats(limits: tuple[Tensor, Tensor]) -> tuple[float, float]:
    return limits[0].item(), limits[1].item()


@pytest.mark.parametrize("seed", range(10))
def test_interval_is_all_that_three_correlations_allow(seed: int) -> None:
    joint = random_correlations(3, seed)  # Y, X, Z
    limits = as_floats(correlation_interval(joint[0, 1], joint[0, 2]))
    assert limits == pytest.approx(feasible_limits(joint), abs=1e-6)


@quick
@given(st.floats(0, math.pi), st.floats(0, math.pi))
@example(1e-8, 1.0)
@example(1e-8, math.pi)
def test_interval_is_that_of_theorem_1(a: float, b: float) -> None:
    angles = torch.tensor([a, b], dtype=torch.float64)
    low, high = as_floats(correlation_interval(*angles.cos()))
    # A correlation near 1 tells its angle to half of the digits only.
    assert (low, high) == pytest.approx((math.cos(a + b), math.cos(a - b)), abs=1e-7)


@quick
@given(st.integers(1, 8), seeds, st.integers(2, 14))
@example(num_columns=6, seed=0, rows=4)
def test_interval_of_many_columns_holds_the_truth(num_columns: int, seed: int, rows: int) -> None:
    """Also with fewer rows than columns, where the correlation matrix is singular."""
    joint = random_correlations(num_columns + 2, seed, rows)
    a, b, columns = joint[:-2, -2], joint[:-2, -1], joint[:-2, :-2]
    low, high = as_floats(correlation_interval_multi(a, b, columns))
    assert low - 1e-6 <= joint[-1, -2].item() <= high + 1e-6


@pytest.mark.parametrize("num_columns", [1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_interval_of_many_columns_is_all_that_they_allow(num_columns: int, seed: int) -> None:
    joint = random_correlations(num_columns + 2, seed)
    limits = as_floats(correlation_interval_multi(joint[:-2, -2], joint[:-2, -1], joint[:-2, :-2]))
    assert limits == pytest.approx(feasible_limits(joint), abs=1e-6)


def test_interval_of_one_column_is_theorem_1() -> None:
    grid = torch.linspace(-1, 1, 9, dtype=torch.float64)
    pairs = torch.cartesian_prod(grid, grid)
    a, b = pairs[:, :1], pairs[:, 1:]
    multi = correlation_interval_multi(a, b, torch.ones(1, 1, dtype=torch.float64))
    torch.testing.assert_close(multi, correlation_interval(a[:, 0], b[:, 0]))


def test_columns_that_determine_s_leave_one_correlation() -> None:
    determined, b = torch.tensor([0.6, 0.8]), torch.tensor([0.5, -0.3])  # S = 0.6 x + 0.8 z
    low, high = as_floats(correlation_interval_multi(determined, b, torch.eye(2)))
    assert low == pytest.approx(0.06, abs=1e-3)
    assert high == pytest.approx(0.06, abs=1e-3)


@pytest.mark.parametrize(
    ("a", "columns"),
    [
        ([0.8, 0.8], [[1.0, 0.0], [0.0, 1.0]]),  # more than all of S is explained
        ([0.5, -0.5], [[1.0, 1.0], [1.0, 1.0]]),  # equal columns, opposite correlations
    ],
)
def test_correlations_that_no_variable_has_are_refused(a: list[float], columns: list[list[float]]) -> None:
    with pytest.raises(InputError, match="no variable has these correlations"):
        correlation_interval_multi(torch.tensor(a), torch.zeros(2), torch.tensor(columns))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rounded_correlations_give_an_interval_within_one(sign: float) -> None:
    rounded = torch.tensor([1.0001])
    assert as_floats(correlation_interval_multi(rounded, sign * rounded, torch.eye(1))) == (sign, sign)


def test_float32_loses_no_more_than_its_last_digits() -> None:
    a, b = torch.tensor([0.6, 0.58]), torch.tensor([0.3, 0.32])
    columns = torch.tensor([[1.0, 0.999], [0.999, 1.0]])
    exact = correlation_interval_multi(a.double(), b.double(), columns.double())
    found = correlation_interval_multi(a, b, columns)
    assert as_floats(found) == pytest.approx(as_floats(exact), abs=6e-8)


def test_duplicated_column_does_not_change_the_interval() -> None:
    joint = random_correlations(5, seed=1)
    again = joint[[0, 1, 2, 1, 3, 4]][:, [0, 1, 2, 1, 3, 4]]
    assert torch.linalg.matrix_rank(again[:-2, :-2]) == 3
    once, twice = (correlation_interval_multi(j[:-2, -2], j[:-2, -1], j[:-2, :-2]) for j in (joint, again))
    assert as_floats(twice) == pytest.approx(as_floats(once), abs=1e-9)


def test_intervals_of_a_batch_are_those_of_its_members() -> None:
    joint = torch.stack([random_correlations(5, seed) for seed in range(4)])
    low, high = correlation_interval_multi(joint[:, :-2, -2], joint[:, :-2, -1], joint[:, :-2, :-2])
    for i, one in enumerate(joint):
        single = correlation_interval_multi(one[:-2, -2], one[:-2, -1], one[:-2, :-2])
        assert (low[i].item(), high[i].item()) == pytest.approx(as_floats(single), abs=1e-12)


@pytest.mark.parametrize("is_logit", [True, False])
@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_weighted_covariances_are_those_of_the_moments(*, is_logit: bool, shift: float) -> None:
    """The gradient and the moments are equal bit for bit, also where a covariance is exactly 0."""
    generator = torch.Generator().manual_seed(0)
    related = torch.randn(50, 4, generator=generator) + shift
    related[:, 2] = 1.0
    weights = torch.rand(4, generator=generator)
    values = torch.randn(50, generator=generator, requires_grad=True)
    moments = batch_moments(values.sigmoid() if is_logit else values, related, squares=False)
    slow = (moments.products / 50).abs().dot(weights)
    quick, found = weighted_covariances(values, related, weights / 50, is_logit=is_logit)
    (by_slow,), (by_quick,) = torch.autograd.grad(slow, values), torch.autograd.grad(quick, values)
    assert torch.equal(by_slow, by_quick)
    assert torch.equal(moments.pack(), found.pack())
    torch.testing.assert_close(quick, slow)


@pytest.mark.parametrize("columns", [3, 256, 257, 1000])
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_weighted_covariances_are_those_of_float64(columns: int, shift: float) -> None:
    draw = torch.Generator().manual_seed(columns)
    related = torch.randn(400, columns, generator=draw) + shift
    logits = torch.randn(400, generator=draw, requires_grad=True)
    weights = torch.rand(columns, generator=draw) / 400
    total, moments = weighted_covariances(logits, related, weights, is_logit=True)
    (gradient,) = torch.autograd.grad(total, logits)

    probs = logits.detach().double().sigmoid().numpy()
    wide = related.double().numpy()
    products = (wide - wide.mean(0)).T @ (probs - probs.mean())
    np.testing.assert_allclose(moments.products.numpy(), products, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(total.item(), weights.double().numpy() @ np.abs(products), rtol=1e-4)
    by_probs = (wide - wide.mean(0)) @ (np.sign(moments.products.numpy()) * weights.double().numpy())
    expected = by_probs * probs * (1 - probs)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=2e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("is_logit", [True, False])
def test_weighted_covariances_can_be_differentiated_twice(*, is_logit: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    options: Any = {"generator": generator, "dtype": torch.float64}
    related, weights = torch.randn(9, 3, **options), torch.rand(3, **options)
    values = torch.randn(9, **options).requires_grad_()

    def total(given: Tensor) -> Tensor:
        return weighted_covariances(given, related, weights, is_logit=is_logit)[0]

    assert torch.autograd.gradcheck(total, [values])
    assert torch.autograd.gradgradcheck(total, [values])
