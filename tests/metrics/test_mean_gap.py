"""The gap of mean predictions, against scipy and by simulation."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from scipy import stats

from fairrf_lightning.errors import InputError
from fairrf_lightning.metrics import MeanGap
from tests.ranks import run_on_ranks


def rows(seed: int, *sizes: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(seed)
    preds = [draw.normal(1e4 + 0.5 * group, 1 + group, size) for group, size in enumerate(sizes)]
    return torch.tensor(np.concatenate(preds)), torch.arange(len(sizes)).repeat_interleave(
        torch.tensor(sizes)
    )


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_two_groups_are_those_of_welch(level: float) -> None:
    preds, groups = rows(0, 40, 25)
    metric = MeanGap()
    for part in torch.randperm(65).chunk(7):
        metric.update(preds[part], groups[part])
    first, second = (preds[groups == group].numpy() for group in (0, 1))
    assert metric.compute().item() == pytest.approx(abs(first.mean() - second.mean()))
    limits = stats.ttest_ind(first, second, equal_var=False).confidence_interval(level)
    low, high = sorted(abs(limit) for limit in limits)
    expected = (low if limits.low * limits.high > 0 else 0.0, high)
    assert [end.item() for end in metric.interval(level)] == pytest.approx(expected, rel=1e-3)


def test_intervals_of_four_groups_cover() -> None:
    covered = 0
    for seed in range(300):
        metric = MeanGap(4)
        metric.update(*rows(seed, 30, 30, 40, 60))
        low, high = metric.interval()
        covered += low.item() <= 1.5 <= high.item()
    assert covered >= 0.92 * 300


def test_a_group_without_rows_is_unknown_and_not_0() -> None:
    metric = MeanGap(3)
    metric.update(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0, 1, -1]))
    with pytest.warns(UserWarning, match="no rows in group 2"):
        assert metric.compute().isnan()
    assert all(end.isnan() for end in metric.interval())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32, as on MPS"])
@pytest.mark.parametrize("num_groups", [2, 3])
def test_constant_predictions_have_an_interval_without_width(num_groups: int, dtype: torch.dtype) -> None:
    metric = MeanGap(num_groups)
    metric.moments = metric.moments.to(dtype)
    metric.update(torch.full((6,), 3.0), torch.arange(6) % num_groups)
    assert [end.item() for end in metric.interval()] == [0, 0]


def test_two_rows_per_group_are_enough_for_an_interval_and_one_is_not() -> None:
    metric = MeanGap(2)
    metric.update(torch.tensor([1.0, 2.0, 5.0, 7.0]), torch.tensor([0, 0, 1, 1]))
    assert all(end.isfinite() for end in metric.interval())
    metric.reset()
    metric.update(torch.tensor([1.0, 5.0, 7.0]), torch.tensor([0, 1, 1]))
    assert all(end.isnan() for end in metric.interval())


@pytest.mark.parametrize(
    ("preds", "groups", "message"),
    [
        ([1.0, 2.0], [0], "one and the same shape"),
        ([1.0, float("nan")], [0, 1], "not finite"),
        ([1.0, 2.0], [0, 2], "from 0 to 1"),
        ([1.0, 2.0], [0.0, 1.0], "integer ids"),
    ],
)
def test_wrong_input(preds: list[float], groups: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MeanGap().update(torch.tensor(preds), torch.tensor(groups))
    with pytest.raises(InputError, match="2 or more"):
        MeanGap(1)


def gap_of_rank(world: int) -> dict[str, torch.Tensor]:
    preds, groups = rows(1, 30, 50)
    rank = int(os.environ.get("RANK", "0"))
    if world > 1:
        dist.init_process_group("gloo")
    metric = MeanGap()
    metric.update(preds[rank::world], groups[rank::world])
    low, high = metric.interval()
    return {"gap": metric.compute(), "low": low, "high": high}


def test_two_ranks_have_the_gap_of_one(tmp_path: Path) -> None:
    torch.testing.assert_close(run_on_ranks(gap_of_rank, tmp_path), gap_of_rank(1), rtol=0, atol=1e-9)
