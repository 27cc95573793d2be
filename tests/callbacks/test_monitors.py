"""Checkpoints, early stopping and schedulers that compare epochs across the end of pretraining."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor

from fairrf_lightning import FairRFModule
from fairrf_lightning.backbones import Linear
from fairrf_lightning.callbacks import PenalisedCheckpoint, PretrainCallback
from fairrf_lightning.run_state import in_pretraining
from tests.callbacks.test_pretrain import Toy, rows, trainer
from tests.test_module import PeopleData

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


@pytest.mark.filterwarnings("ignore:The dirpath has changed", "ignore:Checkpoint directory .* exists")
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
    torch.manual_seed(0)
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
