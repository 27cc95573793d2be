"""The formulas of FairRF as pure functions; all of them take leading dimensions.

A batch is reduced to its :class:`Moments`. The moments of several ranks, steps or evaluation batches merge
exactly (Chan, Golub and LeVeque 1979), and stay well conditioned in float32 where plain sums would cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from fairrf_lightning.errors import InputError, check_choice

Rule: TypeAlias = Literal["kkt", "worst_case"]


class Moments(NamedTuple):
    """Row count, means and centred sums of predictions ``(..., 1)`` and related columns ``(..., C)``."""

    rows: Tensor
    mean_preds: Tensor
    squares_preds: Tensor
    mean_related: Tensor
    squares_related: Tensor
    products: Tensor

    def pack(self) -> Tensor:
        """Return all fields as one tensor ``(..., 3 + 3 C)``."""
        return torch.cat(self, dim=-1)

    @classmethod
    def unpack(cls, packed: Tensor) -> Moments:
        """Undo :meth:`pack`."""
        return cls(*packed[..., :3].chunk(3, dim=-1), *packed[..., 3:].chunk(3, dim=-1))


def batch_moments(
    preds: Tensor, related: Tensor, mask: Tensor | None = None, *, squares: bool = True
) -> Moments:
    """Reduce a batch to its moments, in float32 or wider even under autocast.

    Args:
        preds: Predicted probabilities ``(..., N)``.
        related: Related columns ``(N, C)``, or ``(..., N, C)`` with leading dimensions that broadcast
            against those of ``preds``.
        mask: Rows that count ``(N,)`` or ``(..., N)``, broadcast likewise; all when ``None``.
        squares: Whether to compute the sums of squares (correlations need them); otherwise they are 0.
    """
    kind = preds.device.type
    with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
        dtype = torch.promote_types(preds.dtype, torch.float32)
        preds, related = preds.to(dtype), related.to(dtype)
        # Both sides are centred: with one side only, a column far from 0 costs 3-4 digits in float32.
        if mask is None:
            rows = None
            count = preds.new_full((1,), preds.shape[-1])
        else:
            rows = mask.bool()
            preds, related = preds.where(rows, 0.0), related.where(rows.unsqueeze(-1), 0.0)
            count = rows.sum(-1, keepdim=True).to(dtype)
        counted = count if rows is None and preds.shape[-1] else count.clamp(min=1)
        mean_preds = preds.sum(-1, keepdim=True) / counted
        mean_related = related.sum(-2) / counted
        # The centred columns add up to 0, so the products' gradient by the mean of preds is 0.
        centred_preds = preds - (mean_preds if squares else mean_preds.detach())
        centred = related - mean_related.unsqueeze(-2)
        if rows is not None:
            centred_preds = centred_preds.where(rows, 0.0)
            centred = centred.where(rows.unsqueeze(-1), 0.0)
        products = _row_products(centred_preds, centred)
        count = count.expand_as(mean_preds)
        return Moments(
            count,
            mean_preds,
            centred_preds.square().sum(-1, keepdim=True) if squares else torch.zeros_like(count),
            mean_related.expand_as(products),
            centred.square().sum(-2).expand_as(products) if squares else torch.zeros_like(products),
            products,
        )


def _row_products(preds: Tensor, related: Tensor) -> Tensor:
    if related.ndim > 2 and related.shape[-3] == 1:
        # Models that share their rows: one matrix product instead of one per model.
        return preds @ related.squeeze(-3)
    return (preds.unsqueeze(-2) @ related).squeeze(-2)


def merge_moments(parts: Tensor) -> Moments:
    """Merge packed moments of ``P`` parts, ``(P, ..., 3 + 3 C)``, into those of all their rows."""
    count, mean_preds, squares_preds, mean_related, squares_related, products = Moments.unpack(parts)
    total = count.sum(0)
    share = count / total.clamp(min=1)
    merged_preds, merged_related = (share * mean_preds).sum(0), (share * mean_related).sum(0)
    shift_preds, shift = mean_preds - merged_preds, mean_related - merged_related
    return Moments(
        total,
        merged_preds,
        (squares_preds + count * shift_preds.square()).sum(0),
        merged_related,
        (squares_related + count * shift.square()).sum(0),
        (products + count * shift_preds * shift).sum(0),
    )


def _covariance(moments: Moments) -> Tensor:
    return moments.products / moments.rows.clamp(min=1)


def _correlation(moments: Moments) -> Tensor:
    count, mean_preds, squares_preds, mean_related, squares_related, products = moments
    # A constant side has no correlation; rounding leaves it a spread of about eps * |mean|.
    floor = count * (8 * torch.finfo(products.dtype).eps) ** 2
    varies = (squares_preds > floor * mean_preds.square()) & (squares_related > floor * mean_related.square())
    # The roots one by one: the gradient of the root of a tiny product overflows.
    spread = torch.where(varies, squares_preds, 1.0).sqrt() * torch.where(varies, squares_related, 1.0).sqrt()
    return torch.where(varies, products / spread, 0.0)


class ColumnStatistic(NamedTuple):
    """An association of the prediction with a related column.

    Args:
        score: Maps moments to one score per column, ``(..., C)``; its absolute value is penalised.
        needs_squares: Whether ``score`` reads the sums of squares.
    """

    score: Callable[[Moments], Tensor]
    needs_squares: bool = False


# A new statistic is one entry: options, errors and grids take their choices from here.
STATISTICS = {
    "covariance": ColumnStatistic(_covariance),
    "correlation": ColumnStatistic(_correlation, needs_squares=True),  # invariant to the predictions' scale
}
if TYPE_CHECKING:
    Statistic: TypeAlias = str
else:
    Statistic = Literal[tuple(STATISTICS)]  # the choices on the command line


def penalties_from_moments(
    moments: Moments, column_feature: Tensor, num_features: int, statistic: Statistic = "covariance"
) -> Tensor:
    """Return ``R`` of each related feature, ``(..., K)``.

    Args:
        moments: Moments from :func:`batch_moments` or :func:`merge_moments`.
        column_feature: The feature that each column belongs to, ``(C,)``, from 0 to ``num_features - 1``.
        num_features: The number of related features ``K``.
        statistic: A key of :data:`STATISTICS`.
    """
    scores = STATISTICS[statistic].score(moments)
    penalties = scores.new_zeros(*scores.shape[:-1], num_features)
    return penalties.index_add(-1, column_feature, scores.abs())


def feature_penalties(
    preds: Tensor,
    related: Tensor,
    owner: Tensor,
    num_features: int,
    *,
    statistic: Statistic = "covariance",
    mask: Tensor | None = None,
) -> Tensor:
    """Penalty ``R_j`` of each related feature (the paper's regulariser R(x^j, y-hat), as a mean).

    ``R_j`` is the sum over the columns ``c`` of feature ``j`` of
    ``|mean_i (x_ic - mean x_c) (p_i - mean p)|``.

    Args:
        preds: Predicted probabilities ``(..., N)``.
        related: Related columns ``(N, C)`` or ``(..., N, C)``.
        owner: The feature that each column belongs to, ``(C,)``.
        num_features: The number of related features ``K``.
        statistic: ``"covariance"``, or ``"correlation"``, which is invariant to the scale of the predictions.
        mask: Rows that count ``(N,)`` or ``(..., N)``; all when ``None``.

    Returns:
        ``R`` of shape ``(..., K)``.

    >>> preds, age = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([[-1.0], [-1.0], [1.0], [1.0]])
    >>> feature_penalties(preds, age, owner=torch.tensor([0]), num_features=1)
    tensor([0.5000])
    """
    check_choice("statistic", statistic, STATISTICS)
    moments = batch_moments(preds, related, mask, squares=STATISTICS[statistic].needs_squares)
    return penalties_from_moments(moments, owner, num_features, statistic)


def solve_lambda(
    penalties: Tensor, beta: float | Tensor, rule: Rule = "kkt", feature_mask: Tensor | None = None
) -> Tensor:
    """Minimise ``sum_j lambda_j R_j + beta |lambda|^2`` over the simplex, exactly.

    The KKT conditions (the paper's section 4) make lambda the Euclidean projection of ``-R / (2 beta)``
    onto the simplex, found with one sort. With ``rule="worst_case"`` it is that of ``+R / (2 beta)``,
    which maximises ``sum_j lambda_j R_j - beta |lambda|^2``: weight goes to the largest penalties.

    Args:
        penalties: ``R`` of shape ``(..., K)``.
        beta: Positive; a float or a tensor that broadcasts to ``(...)``. Large: towards ``1 / K``.
        rule: ``"kkt"`` (the paper's) or ``"worst_case"``.
        feature_mask: Features that may have weight, boolean, broadcast to ``(..., K)``; all when ``None``.

    Returns:
        Weights ``(..., K)``, each row on the simplex.

    >>> solve_lambda(torch.tensor([0.1, 0.2, 0.9]), beta=0.5)
    tensor([0.5500, 0.4500, 0.0000])
    >>> solve_lambda(torch.tensor([0.1, 0.2, 0.9]), beta=0.5, rule="worst_case")
    tensor([0.0333, 0.1333, 0.8333])
    """
    check_beta(beta)
    check_choice("rule", rule, get_args(Rule))
    # MPS has no float64; elsewhere it keeps the KKT residual at rounding level for any beta.
    wide = torch.float32 if penalties.device.type == "mps" else torch.float64
    ranked = penalties.to(wide) if rule == "worst_case" else -penalties.to(wide)
    if feature_mask is not None:
        ranked = ranked.where(feature_mask, -torch.inf)
    excess = ranked - ranked.amax(-1, keepdim=True)
    point = excess / (2 * torch.as_tensor(beta, dtype=wide, device=excess.device).unsqueeze(-1))
    ordered = point.sort(dim=-1, descending=True).values
    surplus = ordered.cumsum(-1) - 1
    rank = torch.arange(1, point.shape[-1] + 1, device=point.device)
    support = (ordered * rank > surplus).sum(-1, keepdim=True).clamp(min=1)
    threshold = surplus.gather(-1, support - 1) / support
    return (point - threshold).clamp(min=0).to(penalties.dtype)


def lambda_cost(
    penalties: Tensor, beta: float | Tensor, rule: Rule = "kkt", feature_mask: Tensor | None = None
) -> Tensor:
    """Return the optimal value of the problem that :func:`solve_lambda` solves, ``(...)``.

    It is the minimum of ``sum_j lambda_j R_j + beta |lambda|^2`` over the simplex, or with
    ``rule="worst_case"`` the maximum of ``sum_j lambda_j R_j - beta |lambda|^2``.

    >>> lambda_cost(torch.tensor([0.1, 0.2, 0.9]), beta=0.5)
    tensor(0.3975)
    """
    weights = solve_lambda(penalties, beta, rule, feature_mask)
    spread = torch.as_tensor(beta, dtype=weights.dtype, device=weights.device) * weights.square().sum(-1)
    return (weights * penalties).sum(-1) + (spread if rule == "kkt" else -spread)


def check_beta(beta: float | Tensor) -> None:
    """Raise :class:`InputError` unless ``beta`` is positive and finite."""
    values = torch.as_tensor(beta, dtype=torch.float64, device="cpu")
    if not bool(((values > 0) & values.isfinite()).all()):
        raise InputError(
            f"beta = {beta!r}: expected a positive number. Large values spread lambda evenly, small "
            "ones put it on the feature with the smallest penalty; the paper uses 0.4 to 1.0."
        )


def correlation_interval(rho_xy: Tensor, rho_yz: Tensor) -> tuple[Tensor, Tensor]:
    """Bound ``rho(X, Z)`` by ``rho(X, Y)`` and ``rho(Y, Z)`` (the paper's Theorem 1).

    >>> low, high = correlation_interval(torch.tensor(0.6), torch.tensor(0.0))
    >>> print(f"{low:.1f} {high:.1f}")
    -0.8 0.8
    """
    centre = rho_xy * rho_yz
    radius = ((1 - rho_xy.square()) * (1 - rho_yz.square())).clamp(min=0).sqrt()
    return centre - radius, centre + radius


def correlation_interval_multi(a: Tensor, b: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:  # noqa: N803 - the matrix is C in the formula
    """Bound ``rho(S, p)`` by the correlations of both with ``K`` related columns, tightly.

    Positive semi-definiteness of the joint correlation matrix gives
    ``a' C^-1 b +- sqrt((1 - a' C^-1 a)(1 - b' C^-1 b))``; with one column it is Theorem 1.
    If ``C`` is singular, the columns are replaced by uncorrelated ones, as many as its rank.

    Args:
        a: Correlations of the columns with S, ``(..., K)``.
        b: Correlations of the columns with the prediction, ``(..., K)``.
        C: Correlation matrix of the columns, ``(..., K, K)``; may be singular.

    Raises:
        InputError: If no variable can have the correlations ``a``, or ``b``, with such columns.

    >>> a, b = torch.tensor([0.6, 0.6]), torch.tensor([0.0, 0.0])
    >>> low, high = correlation_interval_multi(a, b, torch.eye(2))
    >>> print(f"{low:.2f} {high:.2f}")
    -0.53 0.53
    """
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), C.dtype)
    wide = dtype if dtype.is_floating_point and C.device.type == "mps" else torch.float64
    rounding = 10 * torch.finfo(dtype).eps ** 0.5
    variances, directions = torch.linalg.eigh(C.to(wide))
    # Leaving out a direction widens the interval; keeping one of no variance would divide noise by 0.
    kept = variances > rounding / 10 * variances.amax(-1, keepdim=True)
    spreads = torch.where(kept, variances, 1.0).sqrt()

    def whitened(name: str, correlations: Tensor) -> Tensor:
        along = (directions.mT @ correlations.to(wide).unsqueeze(-1)).squeeze(-1)
        inside = torch.where(kept, along / spreads, 0.0)
        beyond = torch.where(kept, 0.0, along.abs() - variances.clamp(min=0).sqrt())
        if bool((inside.square().sum(-1) > 1 + rounding).any() or (beyond > rounding).any()):
            raise InputError(
                f"{name} = {correlations.tolist()}: no variable has these correlations with columns that "
                "correlate with each other as C says; take all of them from the same rows."
            )
        return inside

    left, right = whitened("a", a), whitened("b", b)
    unexplained = (1 - left.square().sum(-1)).clamp(min=0) * (1 - right.square().sum(-1)).clamp(min=0)
    centre, radius = (left * right).sum(-1), unexplained.sqrt()
    return (centre - radius).clamp(min=-1).to(dtype), (centre + radius).clamp(max=1).to(dtype)
