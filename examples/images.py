"""An image classifier with related metadata in a dict batch: the gap with FairRF's callbacks and without.

The images are made here: a bar, upright or lying, in noise; how bright a corner is gives the group away.
The batch carries age and region of the person and the image. The former are not inputs of the network: FairRF
reads them from the batch, by ``inputs="metadata"``. The group is used after training only, to measure.
"""

import logging
import warnings

import torch
from lightning import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.metrics import DemographicParityGap

SIZE = 12


class Bars(Dataset[dict[str, Tensor]]):
    """Noisy images of a bar with a label, and metadata of whoever is behind them.

    Args:
        rows: Number of images.
        seed: Seed of all of them.
    """

    def __init__(self, rows: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.group = torch.randint(2, (rows,), generator=generator)
        lying = torch.rand(rows, generator=generator) < 0.35 + 0.3 * self.group
        image = torch.randn(rows, 1, SIZE, SIZE, generator=generator)
        image[lying, :, SIZE // 2, :] += 0.5
        image[~lying, :, :, SIZE // 2] += 0.5
        image[:, :, :3, :3] += self.group.view(-1, 1, 1, 1)
        age = self.group + 0.7 * torch.randn(rows, generator=generator)
        north = (torch.rand(rows, generator=generator) < 0.25 + 0.5 * self.group).float()
        self.label = lying.float()
        self.image, self.metadata = image, torch.stack([age, north], dim=1)

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"image": self.image[row], "label": self.label[row], "metadata": self.metadata[row]}


class Network(LightningModule):
    """A small CNN, written without fairness in mind."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Linear(200, 1)

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the task loss."""
        logits = self.head(self.features(batch["image"]))
        return nn.functional.binary_cross_entropy_with_logits(logits.squeeze(1), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def fair_callbacks() -> list[Callback]:
    """Return the two callbacks: the prediction is what ``head`` gives, the metadata are in the batch."""
    penalty = RelatedFeaturePenalty({"age": [0], "region": [1]}, eta=3.0)
    return [
        PretrainCallback(epochs=1),
        LambdaUpdateCallback(penalty=penalty, module="head", inputs="metadata", every_n_steps=20),
    ]


def train(callbacks: list[Callback]) -> tuple[float, float]:
    """Train on 3000 images; return accuracy and demographic parity gap on 4000 others."""
    seed_everything(0, verbose=False)
    model = Network()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=6,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(Bars(3000, seed=1), batch_size=128, shuffle=True))
    test = Bars(4000, seed=2)
    with torch.no_grad():
        probs = model.head(model.features(test.image)).squeeze(1).sigmoid()
    gap = DemographicParityGap(num_groups=2)
    gap.update(probs, test.label.long(), test.group)
    return float(((probs > 0.5) == test.label.bool()).float().mean()), float(gap.compute())


def main() -> None:
    """Train both ways and print both lines."""
    warnings.filterwarnings("ignore", message=".*many workers.*")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for name, callbacks in (("without", []), ("with", fair_callbacks())):
        accuracy, gap = train(callbacks)
        print(f"{name} FairRF: accuracy {accuracy:.3f}, demographic parity gap {gap:.3f}")


if __name__ == "__main__":
    main()
