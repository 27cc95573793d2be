"""The heart of the matter: a stack of models equals the same models trained one by one."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from lightning import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from fairrf_lightning import FairRFModule
from fairrf_lightning.backbones import MLP, Linear, LinearSVM
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import AdultDataModule, SyntheticDataModule
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments import Schedule, Setting, Stack

SCHEDULE = Schedule(epochs=4, pretrain_epochs=1, lr=1e-3)
BACKBONES: dict[str, Callable[..., nn.Module]] = {"mlp": MLP, "linear": Linear, "svm": LinearSVM}
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}

setting_of = partial(Setting, every_n_steps=10)


def single_fit(
    data: TabularDataModule, setting: Setting, seed: int, lr: float = SCHEDULE.lr, **options: Any
) -> FairRFModule:
    """Train one model with the ordinary module and callbacks, as ``fit`` does."""
    seed_everything(seed)
    backbone = BACKBONES[setting.backbone]
    if setting.backbone == "mlp":
        backbone = lambda n: MLP(n, dropout=setting.dropout)  # noqa: E731 - two lines are not clearer
    module = FairRFModule(
        backbone=backbone, eta=setting.eta, statistic=setting.statistic, given=setting.given, lr=lr
    )
    pretrain = PretrainCallback(epochs=SCHEDULE.pretrain_epochs, reset_monitors=True)
    callbacks = [pretrain, *options.pop("callbacks", [])]
    if setting.every_n_steps is not None:
        callbacks.append(LambdaUpdateCallback(setting.beta, setting.every_n_steps, setting.rule))
    options = {"enable_checkpointing": False} | QUIET | options
    Trainer(callbacks=callbacks, **options).fit(module, datamodule=data)
    return module


def weights_in_stack(stack: Stack, s: int, p: int) -> list[Tensor]:
    backbone = stack.module.backbone
    first, *others = (weight[s, p] for weight in backbone.weights)
    weights = [first[:, backbone.columns[p]], *others]
    biases = [bias[s, p].squeeze(-1) for bias in backbone.biases]
    return list(itertools.chain.from_iterable(zip(weights, biases, strict=True)))


def pairs(stack: Stack) -> Iterator[tuple[int, int, int, Setting]]:
    for (s, seed), (p, setting) in itertools.product(enumerate(stack.seeds), enumerate(stack.settings)):
        yield s, p, seed, setting


def assert_same_weights(stack: Stack, s: int, p: int, single: FairRFModule) -> None:
    for alone, stacked in zip(single.backbone.parameters(), weights_in_stack(stack, s, p), strict=True):
        torch.testing.assert_close(stacked, alone.detach(), rtol=0, atol=1e-5)
    penalty = stack.module.penalty
    features = [penalty.feature_names.index(name) for name in single.penalty.feature_names]
    if stack.settings[p].eta:
        torch.testing.assert_close(penalty.weights[s, p, features], single.penalty.weights, rtol=0, atol=1e-5)


def assert_equal_to_single_fits(
    stack: Stack, make_data: Callable[..., TabularDataModule], **options: Any
) -> None:
    for s, p, seed, setting in pairs(stack):
        single = single_fit(make_data(seed=seed), setting, seed, **options)
        assert_same_weights(stack, s, p, single)


def test_a_stack_on_adult_takes_the_steps_of_single_fits() -> None:
    settings = [
        setting_of(eta=eta, beta=beta, dropout=0.0)
        for eta, beta in ((0.0, 0.5), (0.3, 0.5), (0.6, 0.2), (1.0, 0.8))
    ]
    stack = Stack(AdultDataModule, settings, seeds=[3, 11], schedule=SCHEDULE)
    stack.fit(select=False, max_steps=100, max_epochs=-1)
    assert_equal_to_single_fits(stack, AdultDataModule, max_steps=100, max_epochs=-1)


def small_data(**options: Any) -> SyntheticDataModule:
    return SyntheticDataModule(**{"n_rows": 3000, "batch_size": 128} | options)


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.3},
        {"backbone": "linear"},
        {"backbone": "svm"},
        {"statistic": "correlation", "dropout": 0.0},
        {"given": "positives", "dropout": 0.0},
        {"rule": "worst_case", "dropout": 0.0},
        {"every_n_steps": None, "dropout": 0.0},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_each_recipe_takes_the_steps_of_single_fits(options: dict[str, Any]) -> None:
    settings = [setting_of(eta=0.4, beta=0.3, **options), setting_of(eta=1.0, beta=0.9, **options)]
    stack = Stack(small_data, settings, seeds=[1, 2], schedule=SCHEDULE)
    stack.fit(select=False)
    assert_equal_to_single_fits(stack, small_data, max_epochs=SCHEDULE.epochs)


class NarrowData(SyntheticDataModule):
    """The same people with fewer columns: what a model trained alone would be given."""

    def read(self) -> pd.DataFrame:
        return super().read().drop(columns=["height", "lottery"])


def narrow_data(**options: Any) -> NarrowData:
    return NarrowData(related=["income"], **{"n_rows": 3000, "batch_size": 128} | options)


def test_features_can_be_chosen_and_removed_for_each_model() -> None:
    narrow = setting_of(eta=0.8, related=("income",), remove=("height", "lottery"), dropout=0.0)
    wide = setting_of(eta=0.4, beta=0.3, dropout=0.0)
    stack = Stack(small_data, [wide, narrow], seeds=[1, 2], schedule=SCHEDULE)
    stack.fit(select=False)
    for s, p, seed, setting in pairs(stack):
        data = (small_data, narrow_data)[p](seed=seed)
        single = single_fit(data, setting, seed, max_epochs=SCHEDULE.epochs)
        assert_same_weights(stack, s, p, single)
    assert stack.module.penalty.weights[:, 1].tolist() == [[0.0, 1.0, 0.0]] * 2


def test_the_sensitive_attribute_can_be_constrained_but_is_no_input() -> None:
    constrained = [setting_of(eta=eta, expose_sensitive=True, dropout=0.0) for eta in (0.5, 1.0)]
    stack = Stack(small_data, constrained, seeds=[0, 1], schedule=SCHEDULE)
    stack.fit(select=False)
    assert "group" not in stack.data.parts[0].encoder.owners
    exposed = partial(small_data, expose_sensitive=True)
    assert_equal_to_single_fits(stack, exposed, max_epochs=SCHEDULE.epochs)
    gaps = stack.evaluate()["test_dp_gap_prob"]
    vanilla = Stack(small_data, [setting_of(eta=0.0, dropout=0.0)], seeds=[0, 1], schedule=SCHEDULE)
    vanilla.fit()
    assert "related" not in next(iter(vanilla.data.train_dataloader()))
    assert (gaps[:, 1] < 0.5 * vanilla.evaluate()["test_dp_gap_prob"][:, 0]).all()


def test_the_sensitive_attribute_has_to_be_opted_in() -> None:
    with pytest.raises(InputError, match="opted in"):
        Stack(small_data, [Setting(related=("group",))], seeds=[0])


def test_selection_and_figures_equal_those_of_the_checkpoint(tmp_path: Path) -> None:
    settings = [setting_of(eta=eta, dropout=0.0) for eta in (0.0, 0.5, 2.0)]
    # So few rows and so large a rate that the best epoch is not the last one.
    schedule = Schedule(epochs=8, pretrain_epochs=1, lr=SCHEDULE.lr * 20)
    data = partial(small_data, n_rows=1000)
    stack = Stack(data, settings, seeds=[0, 5], schedule=schedule)
    stack.fit()
    figures = stack.evaluate()
    for s, p, seed, setting in pairs(stack):
        keep = ModelCheckpoint(tmp_path / f"{s}{p}", monitor="val_objective")
        options: dict[str, Any] = {"callbacks": [keep], "enable_checkpointing": True}
        module = single_fit(data(seed=seed), setting, seed, lr=schedule.lr, max_epochs=8, **options)
        chosen = torch.load(keep.best_model_path, weights_only=True)
        module.load_state_dict(chosen["state_dict"])
        (tested,) = Trainer(**QUIET).test(module, datamodule=data(seed=seed), verbose=False)
        assert int(stack.best.best_epoch[s, p]) == chosen["epoch"]
        assert keep.best_model_score == pytest.approx(float(figures["val_objective"][s, p]), abs=1e-4)
        for name in ("acc", "dp_gap", "eo_gap", "eodds_gap", "loss", "penalty", "objective"):
            assert float(figures[f"test_{name}"][s, p]) == pytest.approx(tested[f"test_{name}"], abs=5e-3)
    assert len(set(stack.best.best_epoch.flatten().tolist())) > 1
