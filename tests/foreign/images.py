"""The callbacks in lightly: its ``FinetuneClassifier`` on made-up images.

The module is of the ``pytorch_lightning`` namespace, calls ``self.forward`` by its name, and takes images and
targets from the batch; the related column comes through ``WithRelated``.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

# torchvision of the package index is built for CUDA; next to torch for CPUs its operators are missing, and
# its import fails. None of them is used here.
if not torch.cuda.is_available():
    missing: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        missing.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lightly.utils.benchmarking.linear_classifier import FinetuneClassifier
from pytorch_lightning import Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback, WithRelated
from tests.foreign.measures import PRETRAINING_EPOCHS, StepTimes, by_hand, report

ROWS, ETA, BATCH, EPOCHS = 512, 5.0, 64, 16


def pictures() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return images with a bright upper half or left half, a number related to the first, and labels."""
    torch.manual_seed(0)
    upper, left = torch.randint(2, (2, ROWS)).float()
    images = 0.3 * torch.randn(ROWS, 3, 8, 8)
    images[:, :, :4] += upper.reshape(-1, 1, 1, 1)
    images[:, :, :, :4] += left.reshape(-1, 1, 1, 1)
    related = upper - 0.5 + 0.3 * torch.randn(ROWS)
    label = (upper + left + 0.4 * torch.randn(ROWS) > 1).long()
    return images, related, label


class ByHand(FinetuneClassifier):  # type: ignore[misc] # not installed here
    """Has the penalty in its training step."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits, and keep them."""
        logits: torch.Tensor = super().forward(images)
        self.logits = logits
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Do what lightly's training step does, and add the penalty; the related column comes last."""
        loss: torch.Tensor = super().training_step(batch, batch_idx)
        if self.current_epoch < PRETRAINING_EPOCHS:
            return loss
        return loss + ETA * by_hand(self.logits.softmax(1)[:, 1], batch[-1])


def callbacks() -> list[Any]:
    """Return what a user adds, next to ``WithRelated``."""
    penalty = RelatedFeaturePenalty({"related": [0]}, eta=ETA, output="softmax")
    return [
        PretrainCallback(epochs=PRETRAINING_EPOCHS),
        LambdaUpdateCallback(penalty=penalty, every_n_steps=10),
    ]


def train(name: str, classifier: type[FinetuneClassifier], added: list[Any]) -> None:
    """Train and print the measurements over all rows."""
    images, related, label = pictures()
    rows: Any = TensorDataset(images, label)
    if classifier is ByHand:
        rows = TensorDataset(images, label, related)
    elif added:
        rows = WithRelated(rows, related)
    seed_everything(0, verbose=False)
    features = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten())
    model = classifier(
        features, batch_size_per_device=BATCH, lr=0.1, feature_dim=288, num_classes=2, topk=(1,)
    )
    times = StepTimes()
    watching: list[Any] = [*added, times]  # callbacks of the namespace `lightning`
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        callbacks=watching,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    generator = torch.Generator().manual_seed(0)
    trainer.fit(model, DataLoader(rows, BATCH, shuffle=True, generator=generator))
    with torch.no_grad():
        probs = model.eval()(images).softmax(1)[:, 1]
    report(name, probs, related, label, times.median)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    train("without", FinetuneClassifier, [])
    train("callbacks", FinetuneClassifier, callbacks())
    train("by hand", ByHand, [])
