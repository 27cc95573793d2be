from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer, seed_everything
from lightning.pytorch.core.mixins.hparams_mixin import _given_hyperparameters_context
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fairrf_lightning import InputError
from fairrf_lightning.backbones import MLP, Linear, LinearSVM
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.methods import ARLModule
from fairrf_lightning.methods.arl import Adversary
from tests.ranks import run_on_ranks
from tests.trainers import quiet_trainer


def some_rows(rows: int = 50) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 3, generator=generator)
    target = (torch.rand(rows, generator=generator) < 0.3).float()
    return inputs, target, torch.rand(rows, generator=generator)


def trained_adversary() -> Adversary:
    adversary = Adversary(3)
    adversary.coefficients.copy_(torch.tensor([0.5, -1.0, 0.2, 0.7, -0.3]))
    return adversary


def test_weights_are_the_formula_of_the_paper() -> None:
    inputs, target, _ = some_rows()
    x, y = inputs.double().numpy(), target.double().numpy()
    scores = 1 / (1 + np.exp(-(x @ [0.5, -1.0, 0.2] + 0.7 * y - 0.3)))
    expected = 1 + len(y) * scores / scores.sum()
    weights = trained_adversary().weights(inputs, target)
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-5)
    assert float(weights.mean()) == pytest.approx(2, abs=1e-5)


def test_gradient_is_that_of_the_weighted_loss() -> None:
    inputs, target, losses = some_rows()
    adversary = trained_adversary()
    coefficients = adversary.coefficients.clone().requires_grad_()
    scores = torch.sigmoid(inputs @ coefficients[:3] + coefficients[3] * target + coefficients[4])
    ((1 + scores / scores.mean()) * losses).mean().backward()  # type: ignore[no-untyped-call]
    assert coefficients.grad is not None
    torch.testing.assert_close(adversary.gradient(inputs, target, losses), coefficients.grad)


def test_ascent_raises_the_weighted_loss() -> None:
    inputs, target, losses = some_rows()
    adversary = Adversary(3, lr=0.05)
    values = []
    for _ in range(20):
        values.append(float((adversary.weights(inputs, target) * losses).mean()))
        adversary.ascend(inputs, target, losses)
    assert all(later > earlier for earlier, later in pairwise(values))
    assert values[0] == pytest.approx(2 * float(losses.mean()), rel=1e-5)


def test_the_adversary_finds_the_region_with_the_errors() -> None:
    """Where column 0 is 1 the loss is 1, elsewhere 0: the best weights are 1 there plus all the rest."""
    inputs, target, _ = some_rows(400)
    inputs[:, 0] = (inputs[:, 0] > 0.8).float()
    region = inputs[:, 0] == 1
    adversary = Adversary(3, lr=0.5)
    for _ in range(2000):
        adversary.ascend(inputs, target, region.float())
    weights = adversary.weights(inputs, target)
    share = float(region.float().mean())
    assert float(weights[region].mean()) == pytest.approx(1 + 1 / share, rel=0.02)
    assert float(weights[~region].mean()) == pytest.approx(1, abs=0.02)


def test_vanishing_scores_leave_finite_weights() -> None:
    adversary = Adversary(1)
    adversary.coefficients.copy_(torch.tensor([0.0, 0.0, -200.0]))
    assert adversary.weights(torch.zeros(4, 1), torch.zeros(4)).tolist() == [1, 1, 1, 1]


def two_regions() -> dict[str, Tensor]:
    """Return 900 rows whose label is column 1, and 100, marked by column 0, where it is the opposite.

    A linear model cannot serve both; the average is best served by the 900.
    """
    generator = torch.Generator().manual_seed(1)
    minority = (torch.arange(1000) < 100).float()
    target = (torch.rand(1000, generator=generator) < 0.5).float()
    sign = (2 * target - 1) * (1 - 2 * minority)
    return {"inputs": torch.stack([minority, sign], dim=1), "target": target, "minority": minority}


def minority_loss(**options: Any) -> float:
    """Return the cross entropy of the minority after 400 steps on all rows."""
    module = ARLModule(2, {"minority": [0]}, backbone=Linear, **options)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    rows = two_regions()
    for _ in range(400):
        optimizer.zero_grad()
        module.training_step((rows["inputs"], rows["target"])).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        losses = module.row_losses(module(rows["inputs"]), rows["target"])
    return float(losses[rows["minority"] == 1].mean())


def test_the_learner_serves_the_worst_region_better_than_without_the_adversary() -> None:
    alone = minority_loss(pretrain_steps=400)
    assert minority_loss(pretrain_steps=50, adversary_lr=0.1) < 0.5 * alone


def test_pretraining_is_plain_training_of_the_learner() -> None:
    inputs, target, _ = some_rows()
    module = ARLModule(3, {"a": [0]}, backbone=Linear, pretrain_steps=1)
    plain = binary_cross_entropy_with_logits(module(inputs), target)
    assert torch.equal(module.training_step((inputs, target)), plain)
    assert torch.equal(module.adversary.coefficients, torch.zeros(5))
    weighted = module.training_step((inputs, target))
    assert bool(module.adversary.coefficients[:4].all())  # all but the constant, which moves all scores alike
    weights = module.adversary.weights(inputs, target)
    torch.testing.assert_close(weighted, (weights * module.row_losses(module(inputs), target)).mean())


def test_the_optimiser_of_the_learner_leaves_the_adversary_alone() -> None:
    module = ARLModule(3, {"a": [0]}, backbone=Linear)
    assert {name for name, _ in module.named_parameters()} == {"backbone.0.weight", "backbone.0.bias"}
    assert {"adversary.coefficients", "adversary.squares", "_steps"} <= set(module.state_dict())


def test_a_resumed_run_ends_as_an_uninterrupted_one(
    make_data: Callable[..., SyntheticDataModule], tmp_path: Path
) -> None:
    def fit(epochs: int, path: Path | None = None) -> tuple[ARLModule, Trainer]:
        seed_everything(0, verbose=False)
        module = ARLModule(backbone=Linear, pretrain_steps=3)
        trainer = quiet_trainer(max_epochs=epochs)
        trainer.fit(module, make_data(n_rows=1000), ckpt_path=path, weights_only=True)
        return module, trainer

    whole, _ = fit(2)
    _, first = fit(1)
    first.save_checkpoint(tmp_path / "half.ckpt")
    resumed, _ = fit(2, tmp_path / "half.ckpt")
    for name, value in whole.state_dict().items():
        if isinstance(value, Tensor):
            assert torch.equal(value, resumed.state_dict()[name]), name
    loaded = ARLModule.load_from_checkpoint(tmp_path / "half.ckpt", weights_only=True, backbone=Linear)
    assert loaded.hparams["pretrain_steps"] == 3


@pytest.mark.parametrize("outputs", [1, 2])
def test_logits_may_have_a_second_dimension(outputs: int) -> None:
    module = ARLModule(3, {"a": [0]}, backbone=lambda size: nn.Linear(size, outputs))
    inputs, target, _ = some_rows()
    losses = module.row_losses(module(inputs), target)
    torch.testing.assert_close(losses.mean(), module.task_loss(module(inputs), target))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adversary_lr": 0.0}, "adversary_lr = 0.0"),
        ({"pretrain_steps": -1}, "pretrain_steps = -1"),
        ({"backbone": LinearSVM}, "LinearSVM has a loss of its own"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ARLModule(3, {"a": [0]}, **options)


def test_a_second_fit_starts_with_the_learner_alone(
    fit: Callable[..., Trainer], make_data: Callable[..., SyntheticDataModule]
) -> None:
    module = ARLModule(pretrain_steps=6)  # an epoch has 10 steps
    for _ in range(2):
        fit(module, make_data(), epochs=1)
        assert module.adversary_steps == 4


class OneAdversary(ARLModule):
    """Take one argument only, so that this is all that the command line knows of."""

    def __init__(self, lr: float) -> None:
        super().__init__(3, {"a": [0]}, lr=lr, adversary_lr=0.5, pretrain_steps=7)


def test_a_subclass_may_set_the_options_of_the_adversary() -> None:
    with _given_hyperparameters_context(hparams={"lr": 0.01}, instantiator="mine"):
        module = OneAdversary(0.01)
    assert "adversary_lr" not in module.hparams
    module._steps.fill_(10)
    assert module.adversary_steps == 3
    assert "learning rate 0.5, after 7 steps" in module.describe()


def learned_by_arl(devices: int) -> dict[str, Tensor]:
    seed_everything(1, verbose=False)
    module = ARLModule(backbone=partial(MLP, dropout=0.0), adversary_lr=0.1, pretrain_steps=10)
    trainer = quiet_trainer(
        devices=devices, precision="64-true", max_steps=50, gradient_clip_val=1.0, limit_val_batches=0
    )
    trainer.fit(module, SyntheticDataModule(batch_size=200 // devices))
    return {"coefficients": module.adversary.coefficients, **module.backbone.state_dict()}


@pytest.mark.filterwarnings("ignore")  # of Lightning, about processes
def test_two_ranks_train_as_one_process_with_twice_the_batch(tmp_path: Path) -> None:
    one, two = learned_by_arl(1), run_on_ranks(learned_by_arl, tmp_path)
    assert float(one["coefficients"].abs().max()) > 0.1
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=0, atol=1e-6)
