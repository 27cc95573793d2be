from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from fairrf_lightning import FairRFModule, RelatedFeaturePenalty
from fairrf_lightning.callbacks import PretrainCallback
from fairrf_lightning.datamodules import TensorBatches
from fairrf_lightning.errors import InputError

BATCHES = 3


class Toy(LightningModule):
    """A user's module with a penalty; notes the phase of each step, and logs the losses it is told to."""

    def __init__(self, val_losses: list[float] | None = None, eta: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(2, 1)
        self.fairness = RelatedFeaturePenalty({"age": [0], "zip": [1]}, eta=eta)
        self.val_losses = val_losses
        self.phases: list[bool] = []

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        self.phases.append(self.fairness.enabled)
        logits = self.net(batch["inputs"]).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["target"])
        fair: Tensor = self.fairness(logits, batch["inputs"])
        return loss + fair

    def validation_step(self, batch: dict[str, Tensor]) -> None:
        if self.val_losses is not None:
            self.log("val_loss", self.val_losses[self.current_epoch], batch_size=len(batch["target"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(*callbacks: Callback, **options: Any) -> Trainer:
    checkpoints = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    return Trainer(
        accelerator="cpu",
        callbacks=list(callbacks),
        enable_checkpointing=checkpoints,
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=1,
        logger=False,
        **options,
    )


def rows() -> TensorBatches:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(BATCHES * 4, 2, generator=generator)
    return TensorBatches({"inputs": inputs, "target": (inputs.sum(1) > 0).float()}, batch_size=4)


def phases(
    callback: PretrainCallback, epochs: int, val_losses: list[float] | None = None, **options: Any
) -> int:
    """Train, check that the phases are pretraining and then the rest; return how many batches are first."""
    toy = Toy(val_losses)
    trainer(callback, max_epochs=epochs, **options).fit(toy, rows(), rows())
    off = toy.phases.count(False)
    assert toy.phases == [False] * off + [True] * (BATCHES * epochs - off)
    return off


@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_penalty_is_off_for_epochs(epochs: int) -> None:
    assert phases(PretrainCallback(epochs=epochs), epochs=4) == BATCHES * epochs


def test_one_epoch_is_the_default() -> None:
    assert phases(PretrainCallback(), epochs=2) == BATCHES


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_penalty_is_off_for_steps(steps: int) -> None:
    assert phases(PretrainCallback(steps=steps), epochs=2) == steps


def test_steps_are_those_of_the_optimiser() -> None:
    assert phases(PretrainCallback(steps=2), epochs=3, accumulate_grad_batches=3) == 6


def test_pretraining_is_training_without_the_penalty() -> None:
    pretrained, vanilla, fair = Toy(), Toy(eta=0.0), Toy()
    trainer(PretrainCallback(epochs=2), max_epochs=2).fit(pretrained, rows(), rows())
    for toy in (vanilla, fair):
        trainer(max_epochs=2).fit(toy, rows(), rows())
    assert torch.equal(pretrained.net.weight, vanilla.net.weight)
    assert not torch.equal(pretrained.net.weight, fair.net.weight)


@pytest.mark.parametrize(
    ("val_losses", "options", "epochs_off"),
    [
        ([3, 2, 2, 2, 1, 1], {"patience": 1}, 3),
        ([3, 2, 2, 2, 1, 1], {"patience": 2}, 4),
        ([3, 4, 2, 4, 4, 1], {"patience": 2}, 5),
        ([6, 5, 4, 3, 2, 1], {"patience": 1}, 6),
        ([6, 5.8, 4, 3, 2, 1], {"patience": 1, "min_delta": 0.5}, 2),
        ([math.nan] * 6, {"patience": 2}, 2),
    ],
)
def test_penalty_is_off_until_the_validation_loss_stops_improving(
    val_losses: list[float], options: dict[str, Any], epochs_off: int
) -> None:
    """The sanity check before training, which runs here too, is not one of the validations."""
    assert phases(PretrainCallback(**options), 6, val_losses) == BATCHES * epochs_off


def test_patience_watches_the_loss_of_fairrf_module() -> None:
    torch.manual_seed(0)
    model = FairRFModule(2, {"age": [0], "zip": [1]}, lr=1e-6)
    callback = PretrainCallback(patience=1, min_delta=0.1)
    trainer(callback, max_epochs=3).fit(model, rows(), rows())
    assert callback.state_dict()["finished"]
    assert model.penalty.enabled


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize("kept", [1, 2, 3, 4, 5])
def test_patience_survives_a_resume(tmp_path: Path, kept: int) -> None:
    val_losses = [3.0, 2.0, 2.5, 2.5, 1.0, 1.0]
    whole, first, second = (Toy(val_losses) for _ in range(3))
    trainer(PretrainCallback(patience=2), max_epochs=6).fit(whole, rows(), rows())
    saved = PretrainCallback(patience=2), ModelCheckpoint(tmp_path / "first", filename="kept")
    trainer(*saved, max_epochs=kept).fit(first, rows(), rows())
    resumed = PretrainCallback(patience=2), ModelCheckpoint(tmp_path / "second")
    ckpt_path = tmp_path / "first" / "kept.ckpt"
    trainer(*resumed, max_epochs=6).fit(second, rows(), rows(), ckpt_path=ckpt_path)
    assert whole.phases == [False] * (4 * BATCHES) + [True] * (2 * BATCHES)
    assert first.phases + second.phases == whole.phases
    assert resumed[0].state_dict()["finished"]


def test_validation_outside_of_fit_does_not_count() -> None:
    toy, callback = Toy([1.0, 1.0]), PretrainCallback(patience=2)
    runner = trainer(callback, max_epochs=1)
    runner.fit(toy, rows(), rows())
    before = callback.state_dict()
    for _ in range(2):
        runner.validate(toy, rows(), verbose=False)
    assert callback.state_dict() == before


def test_unknown_monitor_is_told() -> None:
    with pytest.raises(InputError, match=r"monitor = 'val_los' is not among the logged metrics \(val_loss\)"):
        phases(PretrainCallback(patience=1, monitor="val_los"), 1, [1.0])
    with pytest.raises(InputError, match=r"'val_loss' is not among the logged metrics \(none\)"):
        phases(PretrainCallback(patience=1), 1)


class Plain(Toy):
    """A module without a penalty."""

    def __init__(self) -> None:
        super().__init__()
        del self.fairness


def test_module_without_a_penalty_is_refused() -> None:
    with pytest.raises(InputError, match="PretrainCallback found no RelatedFeaturePenalty in Plain"):
        trainer(PretrainCallback(), max_epochs=1).fit(Plain(), rows(), rows())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 1, "steps": 5}, "give one of epochs, steps, patience"),
        ({"epochs": 1, "patience": 5}, "give one of epochs, steps, patience"),
        ({"epochs": -1}, "epochs = -1: .* 0 or more"),
        ({"steps": -1}, "steps = -1: .* 0 or more"),
        ({"patience": 0}, "patience = 0: .* 1 or more"),
        ({"patience": 1, "min_delta": -0.1}, r"min_delta = -0\.1"),
    ],
)
def test_impossible_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PretrainCallback(**options)
