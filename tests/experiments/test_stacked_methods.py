"""ARL and KSMOTE in a stack equal the same models trained one by one; ranking within groups."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from lightning import Trainer, seed_everything
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from fairrf_lightning.backbones import MLP, Linear
from fairrf_lightning.datamodules import AdultDataModule
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Schedule, Setting, Stack
from fairrf_lightning.experiments.stacked_module import StackedARLModule, WorstGroupAUC
from fairrf_lightning.methods import KSMOTE, ARLModule
from tests.experiments.test_equals_single_fits import (
    QUIET,
    SCHEDULE,
    assert_equal_to_single_fits,
    assert_same_weights,
    pairs,
    small_data,
)

HUNDRED_STEPS: dict[str, Any] = {"max_steps": 100, "max_epochs": -1}


def single_arl(data: TabularDataModule, setting: Setting, seed: int) -> ARLModule:
    seed_everything(seed)
    backbone = Linear if setting.backbone == "linear" else partial(MLP, dropout=setting.dropout)
    options: dict[str, Any] = {"adversary_lr": setting.adversary_lr, "lr": SCHEDULE.lr}
    module = ARLModule(backbone=backbone, pretrain_steps=setting.pretrain_steps, **options)
    Trainer(enable_checkpointing=False, **HUNDRED_STEPS, **QUIET).fit(module, datamodule=data)
    return module


@pytest.mark.parametrize(
    ("make_data", "options"),
    [
        (AdultDataModule, {"dropout": 0.0, "pretrain_steps": 20}),
        (small_data, {"dropout": 0.3, "pretrain_steps": 0}),
        (small_data, {"backbone": "linear", "pretrain_steps": 50}),
    ],
    ids=["adult", "dropout", "linear"],
)
def test_stacked_arl_takes_the_steps_of_single_fits(
    make_data: Callable[..., TabularDataModule], options: dict[str, Any]
) -> None:
    settings = [Setting(eta=0.0, adversary_lr=lr, **options) for lr in (0.005, 0.1)]
    stack = Stack(make_data, settings, seeds=[3, 11], schedule=SCHEDULE)
    stack.fit(select=False, **HUNDRED_STEPS)
    assert isinstance(stack.module, StackedARLModule)
    for s, p, seed, setting in pairs(stack):
        single = single_arl(make_data(seed=seed), setting, seed)
        assert_same_weights(stack, s, p, single)
        stacked = stack.module.adversary.coefficients[s, p]
        torch.testing.assert_close(stacked, single.adversary.coefficients, rtol=0, atol=1e-5)
        assert float(stacked.abs().max()) > setting.adversary_lr, "the adversary has stepped"


def test_an_adversary_changes_training_but_not_the_measure() -> None:
    def fit(**options: Any) -> Stack:
        stack = Stack(small_data, [Setting(eta=0.0, dropout=0.0, **options)], [0], Schedule(epochs=2))
        stack.fit(select=False)
        return stack

    vanilla, late, early = fit(), fit(adversary_lr=0.5), fit(adversary_lr=0.5, pretrain_steps=0)
    measured = [float(stack.evaluate()["val_loss"]) for stack in (vanilla, late, early)]
    assert measured[0] == measured[1], "250 steps are not over"
    assert measured[2] != measured[0]
    assert measured[2] == pytest.approx(measured[0], abs=0.1), "weighted, it would be twice as much"


@pytest.mark.parametrize("seed", [1, 2])
def test_stacked_ksmote_takes_the_steps_of_single_fits(seed: int) -> None:
    balanced = partial(small_data, ksmote=KSMOTE(n_clusters=3))
    settings = [Setting(eta=eta, dropout=0.0, every_n_steps=10, method="ksmote") for eta in (0.2, 1.0)]
    stack = Stack(balanced, settings, seeds=[seed], schedule=SCHEDULE)
    stack.fit(select=False, **HUNDRED_STEPS)
    assert_equal_to_single_fits(stack, balanced, **HUNDRED_STEPS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adversary_lr": -0.1}, "adversary_lr = -0.1"),
        ({"adversary_lr": 0.1, "pretrain_steps": -1}, "pretrain_steps = -1"),
        ({"adversary_lr": 0.1}, "no penalty"),
        ({"adversary_lr": 0.1, "eta": 0.0, "backbone": "svm"}, "no svm"),
        ({"adversary_lr": 0.1, "eta": 0.0, "remove": ("age",)}, "nothing removed"),
    ],
)
def test_what_arl_cannot_do_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Setting(**options)


def grouped_rows() -> tuple[Tensor, dict[str, Tensor]]:
    """Return coarse logits ``(2, 3, 200)``, so that many tie, and rows of three groups and none."""
    generator = torch.Generator().manual_seed(0)
    target = (torch.rand(2, 200, generator=generator) < 0.4).float()
    groups = torch.randint(-1, 3, (2, 200), generator=generator)
    noise = torch.randn(2, 3, 200, generator=generator)
    return (noise + target.unsqueeze(1)).mul(2).round() / 2, {"target": target, "groups": groups}


def test_the_worst_group_auc_is_that_of_torchmetrics() -> None:
    logits, batch = grouped_rows()
    metric = WorstGroupAUC(num_groups=3)
    for rows in (slice(0, 150), slice(150, 200)):
        metric.update(logits[..., rows], batch["target"][..., rows] > 0.5, batch["groups"][..., rows])
    worst = metric.compute()
    for s, p in ((s, p) for s in range(2) for p in range(3)):
        chosen = [batch["groups"][s] == group for group in range(3)]
        target = batch["target"][s].long()
        expected = min(float(binary_auroc(logits[s, p, of], target[of])) for of in chosen)
        assert float(worst[s, p]) == pytest.approx(expected, abs=1e-6)


def test_a_group_of_one_class_has_no_auc() -> None:
    logits, batch = grouped_rows()
    batch["target"][0, batch["groups"][0] == 2] = 1
    metric = WorstGroupAUC(num_groups=3)
    metric.update(logits, batch["target"] > 0.5, batch["groups"])
    worst = metric.compute()
    assert worst[0].isnan().all()
    assert not worst[1].isnan().any()


def test_a_stack_measures_the_worst_group_auc_on_the_test_split() -> None:
    stack = Stack(small_data, [Setting(eta=0.0), Setting(eta=1.0)], [0, 1], Schedule(epochs=2))
    stack.fit()
    measures = stack.evaluate()
    assert measures["test_worst_group_auc"].shape == (2, 2)
    assert (measures["test_worst_group_auc"] > 0.6).all()
    assert "val_worst_group_auc" not in measures
