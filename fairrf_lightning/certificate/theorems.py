"""The paper's Theorems 1 and 2 and its form for K features."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fairrf_lightning.errors import InputError
from fairrf_lightning.functional import correlation_interval


def theorem_1(rho_xy: float, rho_yz: float) -> tuple[float, float]:
    """Bound ``rho(X, Z)``: it lies in ``[cos(alpha + beta), cos(alpha - beta)]`` (Theorem 1).

    Args:
        rho_xy: ``rho(X, Y) = cos(alpha)``.
        rho_yz: ``rho(Y, Z) = cos(beta)``.

    >>> low, high = theorem_1(0.8, 0.0)
    >>> print(f"{low:.1f} {high:.1f}")
    -0.6 0.6
    """
    pair = torch.tensor([rho_xy, rho_yz], dtype=torch.float64)
    _check_correlations(pair)
    low, high = correlation_interval(pair[0], pair[1])
    return float(low), float(high)


def theorem_2(rho_fs: float, rho_fp: float) -> tuple[float, float]:
    """Bound ``rho(S, p)`` by one feature that correlates with S but hardly with p (Theorem 2).

    With ``rho_fs = cos(alpha)`` and ``rho_fp = sin(delta)`` it lies within ``-+ sin(alpha + delta)``.
    The paper does not mention the condition ``alpha + delta <= pi / 2``. Beyond it nothing is known, and
    the interval is [-1, 1].

    Args:
        rho_fs: Smallest correlation of the feature with S; its sign does not matter.
        rho_fp: Largest absolute correlation of the feature with the prediction.

    >>> low, high = theorem_2(0.8, 0.0)
    >>> print(f"{low:.1f} {high:.1f}")
    -0.6 0.6
    """
    pair = torch.tensor([rho_fs, rho_fp], dtype=torch.float64)
    return k_feature_interval(pair[:1], pair[1:])


def k_feature_interval(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Bound ``rho(S, p)`` by K features, as the paper does: one delta for all, and the smallest alpha.

    Args:
        a: Correlations of the features with S, ``(K,)``.
        b: Correlations of the features with the prediction, ``(K,)``.
    """
    _check_correlations(torch.cat([a, b]))
    alpha = math.acos(min(1.0, float(a.double().abs().max())))
    delta = math.asin(min(1.0, float(b.double().abs().max())))
    radius = math.sin(min(alpha + delta, math.pi / 2))
    return -radius, radius


def _check_correlations(values: Tensor) -> None:
    # Rounding may put an estimated correlation of 1 a little above it.
    if not len(values) or not bool((values.abs() <= 1 + 1e-6).all()):
        raise InputError(f"correlations = {values.tolist()}: expected numbers from -1 to 1.")
