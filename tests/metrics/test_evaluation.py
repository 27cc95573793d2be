from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.metrics.evaluation import EvaluationMetrics


def batch(rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    related = torch.randn(rows, 2, generator=generator)
    target = torch.randint(2, (rows,), generator=generator)
    return torch.randn(rows, generator=generator), related, target, torch.arange(rows) % 2


def made() -> EvaluationMetrics:
    return EvaluationMetrics(RelatedFeaturePenalty({"age": [0], "job": [1]}, eta=2.0))


def add(metrics: EvaluationMetrics, loss: float, rows: int, *, seed: int = 0, groups: bool = True) -> None:
    logits, related, target, members = batch(rows, seed)
    metrics.update(torch.tensor(loss), logits, related, target, members if groups else None)


def test_nothing_is_known_of_groups_before_the_first_update() -> None:
    assert made().group_rates() == {}


def test_loss_is_weighted_by_rows_and_adds_up_to_the_objective() -> None:
    metrics = made()
    add(metrics, 1.0, 30)
    add(metrics, 3.0, 10, seed=1)
    values, penalties = metrics.compute()
    assert float(values["loss"]) == pytest.approx(1.5)
    assert float(values["penalty"]) == pytest.approx(float(sum(penalties.values())))  # eta / K is 1
    assert float(values["objective"]) == pytest.approx(float(values["loss"] + values["penalty"]))
    assert set(penalties) == {"penalty/age", "penalty/job"}


def test_a_batch_without_rows_changes_nothing_but_shows_that_groups_are_known() -> None:
    metrics, other = made(), made()
    for each in (metrics, other):
        add(each, 1.0, 40)
    add(other, float("nan"), 0)
    assert {name: float(value) for name, value in metrics.compute()[0].items()} == {
        name: float(value) for name, value in other.compute()[0].items()
    }
    empty = made()
    add(empty, float("nan"), 0)
    assert set(empty.group_rates()) == set(metrics.group_rates())


def test_gaps_are_left_out_without_groups_and_reset_forgets_all_rows() -> None:
    metrics = made()
    add(metrics, 1.0, 40, groups=False)
    assert not [name for name in metrics.compute()[0] if "gap" in name]
    metrics.reset()
    add(metrics, 2.0, 40, seed=3)
    fresh = made()
    add(fresh, 2.0, 40, seed=3)
    assert {name: float(value) for name, value in metrics.compute()[0].items()} == {
        name: float(value) for name, value in fresh.compute()[0].items()
    }
