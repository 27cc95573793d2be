from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn

from fairrf_lightning import FairRFModule, RelatedFeaturePenalty
from fairrf_lightning.backbones import Linear
from fairrf_lightning.callbacks import PenalisedCheckpoint, PretrainCallback
from fairrf_lightning.datamodules import TensorBatches
from fairrf_lightning.errors import InputError
from fairrf_lightning.run_state import in_pretraining
from tests.test_module import PeopleData
from tests.trainers import quiet_trainer

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
    return quiet_trainer(
        callbacks=list(callbacks), enable_checkpointing=checkpoints, log_every_n_steps=1, **options
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
    model = FairRFModule(2, {"age": [0], "zip": [1]}, lr=1e-6)
    callback = PretrainCallback(patience=1, min_delta=0.1)
    trainer(callback, max_epochs=3).fit(model, rows(), rows())
    assert callback.state_dict()["finished"]
    assert model.penalty.enabled


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


BLIND = "does not include the penalty"
# The first two epochs are of pretraining; the loss rises when the penalty comes on.
RISING = [3.0, 1.0, 9.0, 8.0, 7.0, 7.5]


def epoch_of(checkpoint: ModelCheckpoint) -> int:
    return int(torch.load(checkpoint.best_model_path, weights_only=True)["epoch"])


def run(folder: Path, *callbacks: Callback, toy: Toy | None = None, **options: Any) -> tuple[int, int]:
    """Train for six epochs; return the epoch that is kept and the last epoch."""
    keep = ModelCheckpoint(folder, monitor="val_loss")
    runner = trainer(*callbacks, keep, max_epochs=6)
    runner.fit(toy or Toy(RISING), rows(), rows(), **options)
    return epoch_of(keep), runner.current_epoch


def test_scores_of_pretraining_are_forgotten_if_the_user_agrees(tmp_path: Path) -> None:
    stop = EarlyStopping("val_loss", patience=2)
    with pytest.warns(UserWarning, match=rf"EarlyStopping.*ModelCheckpoint\(monitor='val_loss'\).*{BLIND}"):
        blind = run(tmp_path / "blind", PretrainCallback(epochs=2), stop)
    assert blind == (1, 4), "an epoch of pretraining is kept, and training stops two epochs later"
    stop = EarlyStopping("val_loss", patience=2)
    sound = run(tmp_path / "sound", PretrainCallback(epochs=2, reset_monitors=True), stop)
    assert sound == (4, 6)
    assert len(list((tmp_path / "sound").glob("*.ckpt"))) == 1, "the checkpoint of pretraining was replaced"


def test_a_run_that_ends_within_pretraining_keeps_a_checkpoint(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the penalty was never on"):
        assert run(tmp_path, PretrainCallback(epochs=6, reset_monitors=True)) == (1, 6)


def test_a_run_that_ends_with_its_first_penalised_batches_keeps_a_checkpoint(tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, monitor="val_loss")
    pretrain = PretrainCallback(epochs=2, reset_monitors=True)
    trainer(pretrain, keep, max_steps=7).fit(Toy(RISING), rows(), rows())
    assert Path(keep.best_model_path).is_file()


@pytest.mark.parametrize("mode", ["min", "max"])
def test_several_checkpoints_and_either_mode(tmp_path: Path, mode: str) -> None:
    sign = 1 if mode == "min" else -1
    keep = ModelCheckpoint(tmp_path, monitor="val_loss", mode=mode, save_top_k=2, filename="{epoch}")
    toy = Toy([sign * value for value in RISING])
    trainer(PretrainCallback(epochs=2, reset_monitors=True), keep, max_epochs=6).fit(toy, rows(), rows())
    assert {path.name for path in tmp_path.glob("*.ckpt")} == {"epoch=4.ckpt", "epoch=5.ckpt"}
    assert epoch_of(keep) == 4


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists")
@pytest.mark.parametrize("kept", [2, 3, 5])
def test_scores_are_forgotten_once_in_a_resumed_run(tmp_path: Path, kept: int) -> None:
    def made() -> tuple[PretrainCallback, ModelCheckpoint, ModelCheckpoint]:
        best = ModelCheckpoint(tmp_path, monitor="val_loss")
        last = ModelCheckpoint(tmp_path / "last", filename="last", enable_version_counter=False)
        return PretrainCallback(epochs=2, reset_monitors=True), best, last

    trainer(*made(), max_epochs=kept).fit(Toy(RISING), rows(), rows())
    resumed = made()
    trainer(*resumed, max_epochs=6).fit(
        Toy(RISING), rows(), rows(), ckpt_path=tmp_path / "last" / "last.ckpt"
    )
    assert epoch_of(resumed[1]) == 4


class Plateau(Toy):
    """A learning rate that falls when the loss does not."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}


def test_the_learning_rate_does_not_fall_when_the_penalty_comes_on() -> None:
    runner = trainer(PretrainCallback(epochs=2, reset_monitors=True), max_epochs=4)
    runner.fit(Plateau(RISING), rows(), rows())
    assert runner.optimizers[0].param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(
    ("callback", "eta", "pretrain"),
    [
        (EarlyStopping("val_objective"), 1.0, {}),
        (EarlyStopping("val_loss"), 0.0, {}),
        (EarlyStopping("val_loss"), 1.0, {"epochs": 0}),
        (PenalisedCheckpoint(monitor="val_acc"), 1.0, {}),
    ],
)
def test_no_warning_where_epochs_are_comparable(
    callback: Callback, eta: float, pretrain: dict[str, Any], tmp_path: Path
) -> None:
    """A warning would fail this test."""
    module = FairRFModule(2, {"age": [0], "zip": [1]}, backbone=Linear, eta=eta)
    options = {"max_epochs": 2, "default_root_dir": tmp_path}
    trainer(PretrainCallback(**pretrain), callback, **options).fit(module, rows(), rows())


@pytest.mark.parametrize("monitor", ["val_loss", "val_acc", "val_eo_gap"])
def test_every_metric_without_the_penalty_is_named(monitor: str, tmp_path: Path) -> None:
    module, keep = FairRFModule(backbone=Linear), ModelCheckpoint(tmp_path, monitor=monitor)
    with pytest.warns(UserWarning, match=rf"ModelCheckpoint\(monitor='{monitor}'\): this metric {BLIND}"):
        trainer(PretrainCallback(), keep, max_epochs=2).fit(module, PeopleData())


class Gaps(Toy):
    """Logs a gap and a share of positive decisions as told."""

    def __init__(self, gaps: list[float], shares: list[float]) -> None:
        super().__init__()
        self.gaps, self.shares = gaps, shares

    def validation_step(self, batch: dict[str, Tensor]) -> None:
        values = {"val_eo_gap": self.gaps, "val_positive_share": self.shares}
        logged = {name: value[self.current_epoch] for name, value in values.items()}
        self.log_dict(logged, batch_size=len(batch["target"]))


def test_the_fairest_checkpoint_is_one_of_a_penalised_model_that_decides(tmp_path: Path) -> None:
    """Epoch 0 is pretraining, epoch 2 gives everyone the same decision; of the others, epoch 3 is fairest."""
    preset = yaml.safe_load(
        (Path(__file__).parents[2] / "callbacks" / "keep_fairest.yaml").read_text("utf-8")
    )
    assert preset["class_path"] == "fairrf_lightning.callbacks.PenalisedCheckpoint"
    keep = PenalisedCheckpoint(tmp_path, **preset["init_args"])
    toy = Gaps([0.0, 0.3, 0.0, 0.2, 0.4], [0.5, 0.5, 1.0, 0.5, 0.5])
    trainer(PretrainCallback(epochs=1), keep, max_epochs=5).fit(toy, rows(), rows())
    assert epoch_of(keep) == 3
    assert len(list(tmp_path.glob("fairest-*.ckpt"))) == 1


class PhaseOfValidation(Callback):
    def __init__(self) -> None:
        self.seen: list[bool] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self.seen.append(in_pretraining(trainer, pl_module))


@pytest.mark.parametrize(("eta", "expected"), [(1.0, [True, True, False]), (0.0, [False] * 3)])
def test_in_pretraining_is_a_question_of_penalised_batches(eta: float, expected: list[bool]) -> None:
    phase = PhaseOfValidation()
    trainer(PretrainCallback(epochs=2), phase, max_epochs=3).fit(Toy(eta=eta), rows(), rows())
    assert phase.seen == expected


@pytest.mark.slow
def test_the_command_line_chooses_no_epoch_of_pretraining(cli: Any, tmp_path: Path) -> None:
    """With accuracy as the monitor, an epoch of pretraining would win."""
    cli(
        "fit --data synthetic --data.n_rows 2000 --model.eta 20 --trainer.max_epochs 4 "
        "--pretrain.epochs 2 --checkpoint.monitor val_acc"
    )
    (chosen,) = tmp_path.glob("lightning_logs/version_0/checkpoints/best.ckpt")
    assert int(torch.load(chosen, weights_only=True)["epoch"]) >= 2
