from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
from sklearn.metrics import hinge_loss
from torch import nn

from fairrf_lightning import FairRFModule
from fairrf_lightning.backbones import BACKBONES, MLP, BackboneName, Linear, LinearSVM
from fairrf_lightning.cli.short_names import SHORT_NAMES
from fairrf_lightning.errors import InputError
from fairrf_lightning.methods import ARLModule
from tests.trainers import quiet_trainer


@pytest.mark.parametrize("make", [MLP, Linear, LinearSVM])
@pytest.mark.parametrize("rows", [0, 1, 2, 17])
def test_backbones_give_one_logit_a_row(make: Callable[[int], nn.Module], rows: int) -> None:
    assert make(5)(torch.randn(rows, 5)).shape == (rows,)


@pytest.mark.parametrize("make", [MLP, Linear, LinearSVM])
def test_rows_do_not_influence_each_other(make: Callable[[int], nn.Module]) -> None:
    backbone, inputs = make(5).double().eval(), torch.randn(6, 5, dtype=torch.float64)
    alone = torch.cat([backbone(row[None]) for row in inputs])
    torch.testing.assert_close(backbone(inputs), alone)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_mlp_without_dropout_is_the_papers() -> None:
    backbone = MLP(10, dropout=0)
    assert parameters(backbone) == (10 * 64 + 64) + (64 * 32 + 32) + (32 + 1)
    kinds = [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear, nn.Flatten]
    assert [type(layer) for layer in backbone] == kinds


def test_mlp_takes_any_hidden_layers() -> None:
    assert parameters(MLP(4, hidden=[])) == parameters(Linear(4)) == 5
    assert parameters(MLP(4, hidden=[3])) == (4 * 3 + 3) + (3 + 1)


def test_dropout_acts_in_training_only() -> None:
    backbone, inputs = MLP(5, dropout=0.5), torch.randn(8, 5)
    assert sum(isinstance(layer, nn.Dropout) for layer in backbone) == 2
    assert not torch.equal(backbone(inputs), backbone(inputs))
    backbone.eval()
    assert torch.equal(backbone(inputs), backbone(inputs))


@pytest.mark.parametrize("l2", [0.0, 0.1, 3.0])
def test_svm_loss_is_the_mean_hinge_loss_and_the_mean_squared_coefficient(l2: float) -> None:
    svm = LinearSVM(5, l2=l2)
    logits, target = 2 * torch.randn(50), torch.randint(2, (50,)).float()
    hinge = hinge_loss(2 * target.numpy() - 1, logits.numpy())
    coefficients = next(w for name, w in svm.named_parameters() if name.endswith("weight"))
    expected = hinge + l2 * sum(w * w for w in coefficients.flatten().tolist()) / 5
    assert svm.task_loss(logits, target).item() == pytest.approx(expected, rel=1e-6)


def test_svm_leaves_its_intercept_free() -> None:
    svm = LinearSVM(3, l2=1.0)
    safe = svm.task_loss(torch.tensor([9.0, -9.0]), torch.tensor([1.0, 0.0]))
    weight, bias = svm.parameters()
    gradients = torch.autograd.grad(safe, [weight, bias], allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(gradients, (2 * weight / 3, torch.zeros(1)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(5, hidden=[8, 0]), r"hidden = \[8, 0\]"),
        (lambda: MLP(5, hidden=[-1]), r"hidden = \[-1\]"),
        (lambda: MLP(5, dropout=1.0), r"dropout = 1\.0"),
        (lambda: MLP(5, dropout=-0.1), r"dropout = -0\.1"),
        (lambda: MLP(5, dropout=math.nan), "dropout = nan"),
        (lambda: LinearSVM(5, l2=-0.5), r"l2 = -0\.5"),
    ],
)
def test_impossible_arguments_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


RELATED = {"age": [0]}


def test_every_short_name_of_the_command_line_is_known() -> None:
    assert set(BACKBONES) == set(SHORT_NAMES["model.backbone"]) == set(get_args(BackboneName))
    for name, kind in BACKBONES.items():
        assert type(FairRFModule(3, RELATED, backbone=name).backbone) is kind
        path = SHORT_NAMES["model.backbone"][name]
        assert path == f"fairrf_lightning.backbones.{kind.__name__}"
    assert type(ARLModule(3, RELATED, backbone="linear").backbone) is BACKBONES["linear"]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="backbone = 'lineer': no such name; did you mean 'linear'"):
        FairRFModule(3, RELATED, backbone="lineer")


def test_a_checkpoint_remembers_the_name(tmp_path: Path) -> None:
    module = FairRFModule(3, RELATED, backbone="svm")
    trainer = quiet_trainer()
    trainer.strategy.connect(module)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    loaded = FairRFModule.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    assert type(loaded.backbone) is LinearSVM
    inputs = torch.randn(5, 3)
    assert torch.equal(loaded(inputs), module(inputs))
