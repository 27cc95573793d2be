from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairrf_lightning.certificate import k_feature_interval, theorem_1, theorem_2
from fairrf_lightning.errors import InputError
from fairrf_lightning.functional import correlation_interval_multi

quick = settings(deadline=None, max_examples=60)
angles = st.floats(0, math.pi)


@quick
@given(angles, angles)
def test_theorem_1_is_the_paper_s_formula(alpha: float, beta: float) -> None:
    found = theorem_1(math.cos(alpha), math.cos(beta))
    assert found == pytest.approx((math.cos(alpha + beta), math.cos(alpha - beta)), abs=1e-7)


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
@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.integers(3, 30))
def test_tight_interval_holds_the_truth_and_is_never_wider_than_the_paper_s(
    num_columns: int, seed: int, rows: int
) -> None:
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(rows, num_columns + 2)) + rng.normal(size=(rows, 1))
    joint = torch.from_numpy(np.corrcoef(data.T))
    a, b, columns, truth = joint[:-2, -2], joint[:-2, -1], joint[:-2, :-2], joint[-1, -2].item()
    low, high = (limit.item() for limit in correlation_interval_multi(a, b, columns))
    assert low - 1e-6 <= truth <= high + 1e-6
    singles = [theorem_1(x.item(), y.item()) for x, y in zip(a, b, strict=True)]
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
        theorem_1(1.5, 0.0)
    with pytest.raises(InputError, match="from -1 to 1"):
        theorem_2(math.nan, 0.0)
