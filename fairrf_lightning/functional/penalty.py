"""The formulas of FairRF: moments, penalties, lambda, and bounds on correlations.

A batch is reduced to its :class:`Moments`. The moments of several ranks, steps or evaluation batches merge
exactly (Chan, Golub and LeVeque 1979), and stay well conditioned in float32 where plain sums would cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from fairrf_lightning.errors import InputError, check_choice

Rule: TypeAlias = Literal["kkt", "worst_case"]

_MAX_CENTRED = 256  # columns that are centred at a time
PROBABILITY_WIDTH = 0.25  # of the kernel on probabilities, for "hsic"


class Moments(NamedTuple):
    """Row count, means and centred sums of predictions ``(..., 1)`` and related columns ``(..., C)``.

    ``rows`` is a plain number where every row counts, and the sums of squares are ``None`` where the
    statistic does not need them: each tensor costs time in a training step.
    """

    rows: Tensor | int
    mean_preds: Tensor
    squares_preds: Tensor | None
    mean_related: Tensor
    squares_related: Tensor | None
    products: Tensor

    def pack(self) -> Tensor:
        """Return all fields as one tensor ``(..., 3 + 3 C)``; squares that are ``None`` become 0."""
        rows, mean, squares, *related, products = self
        count = rows.expand_as(mean) if isinstance(rows, Tensor) else torch.full_like(mean, rows)
        of_preds = (count, mean, torch.zeros_like(mean) if squares is None else squares)
        of_related = (
            torch.zeros_like(products) if field is None else field.expand_as(products) for field in related
        )
        return torch.cat((*of_preds, *of_related, products), dim=-1)

    @classmethod
    def pack_all(cls, parts: Sequence[Moments]) -> Tensor:
        """Return the packed moments of ``P`` parts, ``(P, ..., 3 + 3 C)``."""
        rows, mean, squares, mean_related, _, products = zip(*parts, strict=True)
        if any(isinstance(count, Tensor) for count in rows) or squares[0] is not None:
            return torch.stack([part.pack() for part in parts])
        # One tensor operation for all parts in place of one each.
        counts = torch.tensor(rows, dtype=mean[0].dtype, device=mean[0].device)
        fields = (counts, torch.stack(mean), torch.stack(mean_related), torch.stack(products))
        dims = fields[-1].ndim
        # Models that share their rows have fewer leading dimensions in some fields.
        counts, means, means_related, sums = (
            field.reshape(len(parts), *(1,) * (dims - field.ndim), *field.shape[1:]) for field in fields
        )
        return cls(counts, means, None, means_related, None, sums).pack()

    @classmethod
    def unpack(cls, packed: Tensor) -> Moments:
        """Undo :meth:`pack`."""
        return cls(*_tensors(packed))

    def detach(self) -> Moments:
        """Return the moments without their graph."""
        return self._with(Tensor.detach)

    def to(self, device: torch.device) -> Moments:
        """Return the moments on a device."""
        return self._with(lambda field: field.to(device))

    def _with(self, change: Callable[[Tensor], Tensor]) -> Moments:
        fields: list[Any] = [change(field) if isinstance(field, Tensor) else field for field in self]
        return Moments(*fields)


def batch_moments(
    preds: Tensor, related: Tensor, mask: Tensor | None = None, *, squares: bool = True
) -> Moments:
    """Reduce a batch to its moments, in float32 or wider even under autocast.

    Args:
        preds: Predicted probabilities ``(..., N)``.
        related: Related columns ``(N, C)``, or ``(..., N, C)`` with leading dimensions that broadcast
            against those of ``preds``.
        mask: Rows that count ``(N,)`` or ``(..., N)``, broadcast likewise; all when ``None``.
        squares: Whether to compute the sums of squares (correlations need them); otherwise they are ``None``.
    """
    kind = preds.device.type
    with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
        dtype = torch.promote_types(preds.dtype, torch.float32)
        preds, related = preds.to(dtype), related.to(dtype)
        rows: Tensor | int = preds.shape[-1]
        if mask is not None or not rows:
            return _masked_moments(preds, related, mask, squares=squares)
        mean_preds, mean_related = preds.mean(-1, keepdim=True), related.mean(-2)
        # Both sides are centred: with one side only, a column far from 0 costs 3-4 digits in float32.
        centred = related - (mean_related if related.ndim == 2 else mean_related.unsqueeze(-2))
        # The centred columns add up to 0, so the products' gradient by the mean of preds is 0.
        centred_preds = preds - (mean_preds if squares else mean_preds.detach())
        return _centred_moments(rows, mean_preds, centred_preds, mean_related, centred, squares=squares)


def _masked_moments(preds: Tensor, related: Tensor, mask: Tensor | None, *, squares: bool) -> Moments:
    rows = torch.ones_like(preds, dtype=torch.bool) if mask is None else mask.bool()
    preds, related = preds.where(rows, 0.0), related.where(rows.unsqueeze(-1), 0.0)
    count = rows.sum(-1, keepdim=True).to(preds.dtype)
    mean_preds = preds.sum(-1, keepdim=True) / count.clamp(min=1)
    mean_related = related.sum(-2) / count.clamp(min=1)
    centred_preds = (preds - (mean_preds if squares else mean_preds.detach())).where(rows, 0.0)
    centred = (related - mean_related.unsqueeze(-2)).where(rows.unsqueeze(-1), 0.0)
    return _centred_moments(count, mean_preds, centred_preds, mean_related, centred, squares=squares)


def _centred_moments(
    rows: Tensor | int,
    mean_preds: Tensor,
    preds: Tensor,
    mean_related: Tensor,
    related: Tensor,
    *,
    squares: bool,
) -> Moments:
    return Moments(
        rows,
        mean_preds,
        preds.square().sum(-1, keepdim=True) if squares else None,
        mean_related,
        related.square().sum(-2) if squares else None,
        _row_products(preds, related),
    )


def _row_products(preds: Tensor, related: Tensor) -> Tensor:
    if related.ndim == 2:
        return related.mT.mv(preds) if preds.ndim == 1 else preds @ related
    if related.shape[-3] == 1:
        # Models that share their rows: one matrix product instead of one per model.
        return preds @ related.squeeze(-3)
    return (preds.unsqueeze(-2) @ related).squeeze(-2)


def merge_moments(parts: Tensor) -> Moments:
    """Merge packed moments of ``P`` parts, ``(P, ..., 3 + 3 C)``, into those of all their rows."""
    count, mean_preds, squares_preds, mean_related, squares_related, products = _tensors(parts)
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


def _tensors(packed: Tensor) -> list[Tensor]:
    return [*packed[..., :3].chunk(3, dim=-1), *packed[..., 3:].chunk(3, dim=-1)]


def _covariance(moments: Moments) -> Tensor:
    rows = moments.rows
    return moments.products / (rows.clamp(min=1) if isinstance(rows, Tensor) else rows)


def _correlation(moments: Moments) -> Tensor:
    count, mean_preds, squares_preds, mean_related, squares_related, products = moments
    if squares_preds is None or squares_related is None:
        raise ValueError("a correlation needs the sums of squares: batch_moments(..., squares=True)")
    # A constant side has no correlation; rounding leaves it a spread of about eps * |mean|.
    floor = count * (8 * torch.finfo(products.dtype).eps) ** 2
    # Negated, so that NaN does not count as constant and stays NaN.
    constant = (squares_preds <= floor * mean_preds.square()) | (
        squares_related <= floor * mean_related.square()
    )
    varies = ~constant
    # The roots one by one: the gradient of the root of a tiny product overflows.
    spread = torch.where(varies, squares_preds, 1.0).sqrt() * torch.where(varies, squares_related, 1.0).sqrt()
    return torch.where(varies, products / spread, 0.0)


def fourier_frequencies(count: int, seed: int = 0) -> Tensor:
    """Return random frequencies and phases, ``(2, count)``, for a Gaussian kernel of width 1."""
    generator = torch.Generator().manual_seed(seed)
    frequencies = torch.randn(count, generator=generator)
    return torch.stack([frequencies, 2 * math.pi * torch.rand(count, generator=generator)])


def fourier_features(values: Tensor, frequencies: Tensor, width: float = 1.0) -> Tensor:
    """Map values to ``sqrt(2 / F) cos(w x / width + b)``, ``(..., F)`` (Rahimi and Recht 2007).

    The products of the features of two values approximate ``exp(-(x - y)^2 / (2 width^2))``.
    """
    of_values = torch.promote_types(values.dtype, torch.float32)
    frequency, phase = frequencies.to(values.device, of_values)
    angles = values.to(of_values).unsqueeze(-1) * (frequency / width) + phase
    features: Tensor = angles.cos() * math.sqrt(2 / len(frequency))
    return features


def _hsic(moments: Moments) -> Tensor:
    # The squared norm of the covariance matrix of the features is HSIC with the kernel that they span.
    covariances = _covariance(moments)
    count = covariances.shape[-2]
    squares = covariances.reshape(*covariances.shape[:-1], -1, count).square().sum((-3, -1))
    positive = ~(squares <= 0)  # the root has no gradient at 0; NaN stays NaN
    return torch.where(positive, squares, 1.0).sqrt() * positive


def weighted_covariances(
    values: Tensor, related: Tensor, weights: Tensor, *, is_logit: bool
) -> tuple[Tensor, Moments]:
    """Return ``sum_c w_c N |cov(x_c, p)|`` and the moments without a graph; quick in a training step.

    The moments and the gradient are those of :func:`batch_moments`; with up to 256 columns bit for bit.

    Args:
        values: Predictions ``(N,)``, float32 or float64, or their logits.
        related: Related columns ``(N, C)`` of the same dtype; they get no gradient.
        weights: Weight of each column, divided by ``N``, ``(C,)``; they get no gradient.
        is_logit: Whether the predictions are the sigmoid of ``values``.
    """
    preds = values.sigmoid() if is_logit else values
    mean_preds, mean_related = preds.detach().mean(-1, keepdim=True), related.mean(-2)
    centred_preds = preds - mean_preds
    columns = related, mean_related, weights
    if len(weights) <= _MAX_CENTRED:
        products, gradient = _products_and_gradient(centred_preds.detach(), *columns)
    else:  # a copy of all columns would cost more time in page faults than the rest of the penalty
        blocks = zip(*(part.split(_MAX_CENTRED, -1) for part in columns), strict=True)  # type: ignore[no-untyped-call]
        found = [_products_and_gradient(centred_preds.detach(), *block) for block in blocks]
        products = torch.cat([block[0] for block in found])
        gradient = torch.stack([block[1] for block in found]).sum(0)
    # In a training step the nodes of a graph cost more time than the numbers in them: this is one.
    moments = Moments(values.shape[0], mean_preds, None, mean_related, None, products)
    return centred_preds.dot(gradient), moments


def _products_and_gradient(
    centred_preds: Tensor, related: Tensor, mean_related: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the products and the gradient of ``sum_c w_c |products_c|`` by the predictions."""
    centred = related - mean_related
    products = centred.mT.mv(centred_preds)
    return products, centred.mv(products.sgn() * weights)


class ColumnStatistic(NamedTuple):
    """An association of the prediction with a related column.

    Args:
        score: Maps moments to one score per column, ``(..., C)``; its absolute value is penalised.
        needs_squares: Whether ``score`` reads the sums of squares.
        num_frequencies: Number of random Fourier features ``F`` that predictions and columns are mapped to
            first; 0 for the values themselves. The moments are then ``(..., F, 3 + 3 C F)`` packed.
    """

    score: Callable[[Moments], Tensor]
    needs_squares: bool = False
    num_frequencies: int = 0

    def moments(
        self,
        preds: Tensor,
        related: Tensor,
        mask: Tensor | None = None,
        frequencies: Tensor | None = None,
        width: float = PROBABILITY_WIDTH,
    ) -> Moments:
        """Return the moments that ``score`` reads.

        Args:
            preds: Predictions ``(..., N)``.
            related: Related columns ``(N, C)`` or ``(..., N, C)``.
            mask: Rows that count ``(N,)`` or ``(..., N)``; all when ``None``.
            frequencies: Those of the Fourier features; ``None`` draws them from a fixed seed.
            width: Width of the predictions' kernel; that of the columns is 1.
        """
        if self.num_frequencies:
            if frequencies is None:
                frequencies = fourier_frequencies(self.num_frequencies)
            preds = fourier_features(preds, frequencies, width).mT
            related = fourier_features(related, frequencies).flatten(-2)
            related = related if related.ndim == 2 else related.unsqueeze(-3)
            mask = mask if mask is None or mask.ndim == 1 else mask.unsqueeze(-2)
        return batch_moments(preds, related, mask, squares=self.needs_squares)


# A new statistic is one entry: options, errors and grids take their choices from here.
STATISTICS = {
    "covariance": ColumnStatistic(_covariance),
    "correlation": ColumnStatistic(_correlation, needs_squares=True),  # invariant to the predictions' scale
    "hsic": ColumnStatistic(_hsic, num_frequencies=16),  # the root of HSIC: non-linear dependence as well
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
        statistic: ``"covariance"``; ``"correlation"``, which is invariant to the scale of the predictions; or
            ``"hsic"``, which sees non-linear dependence as well (for columns with a spread of about 1).
        mask: Rows that count ``(N,)`` or ``(..., N)``; all when ``None``.

    Returns:
        ``R`` of shape ``(..., K)``.

    >>> preds, age = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([[-1.0], [-1.0], [1.0], [1.0]])
    >>> feature_penalties(preds, age, owner=torch.tensor([0]), num_features=1)
    tensor([0.5000])
    """
    check_choice("statistic", statistic, STATISTICS)
    moments = STATISTICS[statistic].moments(preds, related, mask)
    return penalties_from_moments(moments, owner, num_features, statistic)


def solve_lambda(
    penalties: Tensor, beta: float | Tensor, rule: Rule = "kkt", feature_mask: Tensor | None = None
) -> Tensor:
    """Minimise ``sum_j lambda_j R_j + beta |lambda|^2`` over the simplex, exactly.

    The KKT conditions (the paper's section 4) make lambda the Euclidean projection of ``-R / (2 beta)``
    onto the simplex. With ``rule="worst_case"`` it is that of ``+R / (2 beta)``,
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
    costs = penalties if rule == "kkt" else -penalties
    given = [penalties, beta] if isinstance(beta, Tensor) else [penalties]
    has_graph = torch.is_grad_enabled() and any(value.requires_grad for value in given)
    if penalties.device.type == "cpu" and not has_graph and not torch.compiler.is_compiling():
        with suppress(RuntimeError):  # the tensors of torch.func have no numbers of their own
            return _project(costs, beta, feature_mask).to(penalties.dtype)
    # MPS has no float64; elsewhere it keeps the KKT residual at rounding level for any beta.
    costs = costs.to(torch.float32 if penalties.device.type == "mps" else torch.float64)
    if feature_mask is not None:
        costs = costs.where(feature_mask, torch.inf)
    spread = beta.to(costs).unsqueeze(-1) if isinstance(beta, Tensor) else beta
    point = (costs - costs.amin(-1, keepdim=True)) / (2 * spread)
    ordered = point.sort(dim=-1).values
    inside = ordered * torch.arange(1, point.shape[-1] + 1, device=point.device) - ordered.cumsum(-1) < 1
    level = (1 + ordered.where(inside, 0.0).sum(-1, keepdim=True)) / inside.sum(-1, keepdim=True)
    return (level - point).clamp(min=0).to(penalties.dtype)


def _project(costs: Tensor, beta: float | Tensor, feature_mask: Tensor | None) -> Tensor:
    """Return the weights by NumPy: it sorts and takes small steps several times faster than torch."""
    values = costs.detach().double().contiguous().numpy()
    if feature_mask is not None:
        values = np.where(feature_mask.numpy(), values, np.inf)
    spread = beta.detach().double().unsqueeze(-1).cpu().numpy() if isinstance(beta, Tensor) else beta
    with np.errstate(all="ignore"):  # NaN and infinite costs give NaN
        point = (values - values.min(-1, keepdims=True)) / (2 * spread)
        ordered = np.sort(point, -1)
        # The features of the smallest costs, as long as the weights that fill up to the next one are below 1.
        inside = ordered * np.arange(1.0, point.shape[-1] + 1) - ordered.cumsum(-1) < 1
        level = (1 + ordered.sum(-1, keepdims=True, where=inside)) / inside.sum(-1, keepdims=True)
        return torch.from_numpy(np.maximum(level - point, 0.0))


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
    valid = bool(((beta > 0) & beta.isfinite()).all()) if isinstance(beta, Tensor) else 0 < beta < math.inf
    if not valid:
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
    return (centre - radius).clamp(-1, 1).to(dtype), (centre + radius).clamp(-1, 1).to(dtype)
