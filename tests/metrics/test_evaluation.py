"""Metrics of an epoch: they keep their precision, take a stack of models, and can be updated in any mode."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fairrf_lightning import FairRFModule, RelatedFeaturePenalty
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.functional import Statistic
from fairrf_lightning.metrics.evaluation import EvaluationMetrics, FeaturePenalties
from tests.trainers import quiet_trainer


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


def test_wrong_group_ids_raise_and_rows_of_unknown_group_count_for_the_accuracy() -> None:
    metrics = made()
    logits, related, target, members = batch(40, 0)
    with pytest.raises(InputError, match="groups holds 2, expected 0 to 1"):
        metrics.update(torch.tensor(1.0), logits, related, target, members + 1)
    metrics.update(torch.tensor(1.0), logits, related, target, members.where(torch.arange(40) < 30, -1))
    expected = ((logits >= 0) == (target == 1)).double().mean()
    assert float(metrics.compute()[0]["acc"]) == pytest.approx(float(expected))
    counts = metrics.group_counts()
    assert counts is not None
    assert int(counts.rows.sum()) == 30


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


def test_a_stack_has_the_values_of_its_models() -> None:
    rows, models, groups = 60, (2, 3), 3
    generator = torch.Generator().manual_seed(0)
    eta = torch.rand(*models, generator=generator)
    logits, loss = torch.randn(*models, rows, generator=generator), torch.rand(*models, generator=generator)
    related = torch.randn(2, rows, 2, generator=generator)
    target = torch.randint(2, (2, rows), generator=generator)
    members = torch.randint(-1, groups, (2, rows), generator=generator)
    columns = {"age": [0], "job": [1]}
    stack = EvaluationMetrics(RelatedFeaturePenalty(columns, eta=eta), groups)
    for part in (slice(0, 40), slice(40, rows)):
        stack.update(
            loss,
            logits[..., part],
            related[:, None, part],
            target[:, None, part],
            members[:, None, part],
        )
    values = {name: value for part in stack.compute() for name, value in part.items()}
    for seed, setting in [(s, p) for s in range(2) for p in range(3)]:
        single = EvaluationMetrics(RelatedFeaturePenalty(columns, eta=float(eta[seed, setting])), groups)
        single.update(loss[seed, setting], logits[seed, setting], related[seed], target[seed], members[seed])
        expected = {name: value for part in single.compute() for name, value in part.items()}
        assert values.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(values[name][seed, setting], value, rtol=1e-6, atol=1e-7)
    plain = {
        name for name in values if not name.startswith("penalty/") and not name.endswith(("_low", "_high"))
    }
    assert set(stack.compute(intervals=False)[0]) == plain


def test_sums_of_a_bf16_model_are_not_rounded() -> None:
    rows, batches = 1000, 9
    penalty = RelatedFeaturePenalty({"age": [0]})
    draw = torch.Generator().manual_seed(0)
    inputs, target = torch.randn(rows, 1, generator=draw), torch.arange(rows) % 2.0
    logits = inputs[:, 0].bfloat16()
    converted = EvaluationMetrics(penalty).to(dtype=torch.bfloat16)
    exact = EvaluationMetrics(penalty)
    for number in range(batches):
        for metrics in (converted, exact):
            loss = torch.tensor(0.3 + number / 100)
            metrics.update(loss, logits, inputs.bfloat16(), target, groups=None)
    assert converted.loss.rows == rows * batches
    assert converted.compute() == exact.compute()


def test_a_model_can_be_validated_before_it_is_fitted(tmp_path: Path) -> None:
    module, data = FairRFModule(eta=0.3), SyntheticDataModule(n_rows=400, seed=0)
    trainer = quiet_trainer(default_root_dir=tmp_path, max_epochs=1, log_every_n_steps=1)
    before = trainer.validate(module, data, verbose=False)[0]
    trainer.fit(module, data)
    assert trainer.callback_metrics["val_loss"] < before["val_loss"]


@pytest.mark.parametrize("statistic", ["covariance", "hsic"])
def test_a_penalty_of_no_rows_is_unknown_and_not_0(statistic: Statistic) -> None:
    penalty = RelatedFeaturePenalty({"age": [0], "job": [1]}, given="positives", statistic=statistic)
    metric = FeaturePenalties(penalty)
    metric.update(torch.rand(20), torch.randn(20, 2), torch.zeros(20))
    assert bool(metric.compute().isnan().all())
    metric.update(torch.rand(20), torch.randn(20, 2), torch.ones(20))
    assert bool(metric.compute().isfinite().all())
