"""Train in two processes whose module logs the share of positive decisions of each rank's own rows."""

from __future__ import annotations

import torch
from lightning import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fairrf_lightning.callbacks import PenalisedCheckpoint


class OwnShares(LightningModule):
    """On rank 0 every decision is negative, on rank 1 half of them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(2, 1)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        loss: Tensor = self.net(batch[0]).square().mean()
        return loss

    def validation_step(self, batch: list[Tensor]) -> None:
        del batch
        self.log("val_positive_share", 0.5 * self.global_rank)
        self.log("val_gap", 1.0, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    """Train for an epoch."""
    rows = DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2)
    keep = PenalisedCheckpoint("kept", monitor="val_gap", filename="fairest")
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp_fork",
        max_epochs=1,
        callbacks=[keep],
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(OwnShares(), rows, rows)


if __name__ == "__main__":
    main()
