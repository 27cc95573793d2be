"""The project's model; not a word of fairness."""

import torch
from lightning import LightningModule
from torch import Tensor, nn


class Classifier(LightningModule):
    """An MLP with two logits.

    Args:
        hidden: Width of the hidden layer.
        lr: Learning rate.
    """

    def __init__(self, hidden: int = 32, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        self.body = nn.Sequential(nn.Linear(6, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, 2)

    def forward(self, rows: Tensor) -> Tensor:
        """Return two logits a row."""
        logits: Tensor = self.head(self.body(rows))
        return logits

    def training_step(self, batch: list[Tensor]) -> dict[str, Tensor]:
        """Return the task loss."""
        rows, label = batch
        return {"loss": nn.functional.cross_entropy(self(rows), label)}

    def validation_step(self, batch: list[Tensor]) -> None:
        """Log accuracy."""
        rows, label = batch
        self.log("val_acc", (self(rows).argmax(1) == label).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)
