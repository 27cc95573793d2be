"""Several real processes give the answer of one."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fairrf_lightning import FairRFModule
from fairrf_lightning.backbones import MLP
from fairrf_lightning.callbacks import LambdaUpdateCallback, PenalisedCheckpoint, PretrainCallback
from fairrf_lightning.datamodules import AdultDataModule, TableDataModule
from fairrf_lightning.penalty import Given
from tests.ranks import run_on_ranks
from tests.trainers import quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning, about processes, workers and loggers

GLOBAL_BATCH = 256
CASES: list[tuple[Any, Given]] = [
    ("64-true", "all"),
    ("64-true", "positives"),
    ("32-true", "all"),
    ("bf16-mixed", "all"),
]
Result = dict[str, Any]


def train(devices: int, precision: Any, given: Given) -> Result:
    """Take 50 optimiser steps on Adult; return weights, lambda and test metrics."""
    seed_everything(1, verbose=False)
    data = AdultDataModule(batch_size=GLOBAL_BATCH // devices)
    module = FairRFModule(backbone=partial(MLP, dropout=0.0), eta=0.6, given=given)
    trainer = quiet_trainer(
        devices=devices,
        precision=precision,
        max_steps=50,
        callbacks=[PretrainCallback(steps=5), LambdaUpdateCallback(beta=0.05, every_n_steps=10)],
    )
    trainer.fit(module, data)
    weights = {name: value.cpu() for name, value in module.backbone.state_dict().items()}
    metrics = trainer.test(module, data, verbose=False)[0]
    assert trainer.world_size == devices
    return {
        "weights": weights,
        "lambda": module.penalty.weights,
        "metrics": metrics,
        "rows": data.split_sizes["test"],
    }


def train_all(devices: int) -> dict[str, Result]:
    """Train each case once."""
    return {f"{precision} {given}": train(devices, precision, given) for precision, given in CASES}


@pytest.fixture(scope="module")
def one() -> dict[str, Result]:
    return train_all(1)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    found: dict[str, Result] = run_on_ranks(train_all, tmp_path_factory.mktemp("ddp"))
    return found


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize(
    ("precision", "given", "tolerance"),
    [
        ("64-true", "all", 1e-6),
        ("64-true", "positives", 1e-6),
        ("32-true", "all", 1e-5),
        ("bf16-mixed", "all", 1e-2),
    ],
)
def test_two_ranks_train_as_one_process_with_twice_the_batch(
    one: dict[str, Result], two: dict[str, Result], precision: str, given: str, tolerance: float
) -> None:
    _same_training(one[f"{precision} {given}"], two[f"{precision} {given}"], tolerance)
    if precision == "64-true":
        _same_metrics(one[f"{precision} {given}"], two[f"{precision} {given}"])


def _same_training(one: Result, two: Result, tolerance: float) -> None:
    assert distance(one["weights"], two["weights"]) < tolerance
    torch.testing.assert_close(one["lambda"], two["lambda"], rtol=0, atol=tolerance)
    assert one["lambda"].dtype == torch.float32
    assert not torch.allclose(one["lambda"], torch.full((3,), 1 / 3)), "lambda was never updated"


def _same_metrics(one: Result, two: Result) -> None:
    # An odd number of rows: a sampler that pads would change every one of these.
    assert one["rows"] % 2 == 1
    counted = ("_gap", "_acc", "_share")
    exact = [name for name in one["metrics"] if any(part in name for part in counted)]
    assert len(exact) == 14
    assert {name: one["metrics"][name] for name in exact} == {name: two["metrics"][name] for name in exact}
    assert one["metrics"]["test_objective"] == pytest.approx(two["metrics"]["test_objective"], abs=1e-6)


def test_bf16_mixed_trains_like_fp32_within_its_precision(one: dict[str, Result]) -> None:
    full, mixed = one["32-true all"], one["bf16-mixed all"]
    assert distance(full["weights"], mixed["weights"]) < 2e-2
    torch.testing.assert_close(full["lambda"], mixed["lambda"], rtol=0, atol=1e-2)
    for name in ("test_acc", "test_dp_gap", "test_objective"):
        assert full["metrics"][name] == pytest.approx(mixed["metrics"][name], abs=1e-2)


def forked() -> DDPStrategy:
    """Return DDP that starts its processes itself; ranks that disagree do not wait for half an hour."""
    return DDPStrategy(start_method="fork", process_group_backend="gloo", timeout=timedelta(seconds=60))


def untrained_metrics(devices: int, precision: Any, path: Path) -> dict[str, float]:
    """Validate two rows on one rank or on three, and fit for an epoch."""
    seed_everything(0, verbose=False)
    data = TableDataModule(
        str(path), target="hired", related=["age"], sensitive="sex", split=(0.6, 0.2, 0.2), seed=0
    )
    trainer = quiet_trainer(
        strategy=forked() if devices > 1 else "auto",
        devices=devices,
        precision=precision,
        max_epochs=1,
        num_sanity_val_steps=0,
    )
    untrained = trainer.validate(FairRFModule(eta=0.5), data, verbose=False)[0]
    assert data.split_sizes["val"] == 2
    trainer.fit(FairRFModule(eta=0.5), data)
    assert trainer.callback_metrics["val_objective"].isfinite()
    return dict(untrained)


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_a_rank_without_validation_rows_joins_in_the_sums_of_the_others(
    precision: str, tmp_path: Path
) -> None:
    path = tmp_path / "people.csv"
    rows = (f"{n * n % 7},{n},{'fm'[n % 2]},{n % 3 % 2}" for n in range(10))
    path.write_text("\n".join(["age,zip,sex,hired", *rows]))
    one, three = (untrained_metrics(devices, precision, path) for devices in (1, 3))
    assert three["val_penalty"] > 0
    assert three == pytest.approx(one, nan_ok=True)


class OwnShares(LightningModule):
    """On rank 0 every decision is negative, on rank 1 half of them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(2, 1)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        loss: Tensor = self.net(batch[0]).square().mean()
        return loss

    def validation_step(self, batch: list[Tensor]) -> None:
        self.log("val_positive_share", 0.5 * self.global_rank)
        self.log("val_gap", 1.0, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_ranks_with_other_shares_keep_one_checkpoint(tmp_path: Path) -> None:
    """All ranks keep the same checkpoint, whatever each of them logs."""
    rows = DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2)
    keep = PenalisedCheckpoint(tmp_path / "kept", monitor="val_gap", filename="fairest")
    options: dict[str, Any] = {"max_epochs": 1, "logger": False, "enable_progress_bar": False}
    trainer = Trainer(accelerator="cpu", devices=2, strategy=forked(), callbacks=[keep], **options)
    trainer.fit(OwnShares(), rows, rows)
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["fairest.ckpt"]
