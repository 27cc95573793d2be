"""A plain Lightning script for a table; tabular_after.py is the same file with FairRF's two callbacks."""

import torch
from lightning import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Timer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback

# Column 0 is age, column 1 says who has a manual job, the others skill and noise. The sensitive attribute,
# `group`, is nowhere in the inputs; it is used after training only, to measure.
COLUMNS = 8


def make_table(rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, labels and groups; age, job and the label are associated with the group."""
    generator = torch.Generator().manual_seed(seed)
    group = torch.randint(2, (rows,), generator=generator)
    inputs = torch.randn(rows, COLUMNS, generator=generator)
    inputs[:, 0] += group
    inputs[:, 1] = (inputs[:, 1] + group > 0.5).float()
    score = inputs[:, 4] + inputs[:, 5] + 1.2 * (group - 0.5) + torch.randn(rows, generator=generator)
    return inputs, (score > 0).float(), group


class Classifier(LightningModule):
    """An MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(COLUMNS, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Return the task loss."""
        inputs, target = batch
        logits = self.net(inputs).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(logits, target)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    """Train, then measure on fresh rows."""
    seed_everything(0, verbose=False)
    inputs, target, _ = make_table(6000, seed=1)
    loader = DataLoader(TensorDataset(inputs, target), batch_size=200, shuffle=True)
    model = Classifier()
    callbacks: list[Callback] = [
        Timer(duration="00:00:10:00"),
        PretrainCallback(epochs=1),
        LambdaUpdateCallback(penalty=RelatedFeaturePenalty({"age": [0], "job": [1]}, eta=1.5), module="net"),
    ]
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=6,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    trainer.fit(model, loader)

    inputs, target, group = make_table(20000, seed=2)
    with torch.no_grad():
        decision = model.net(inputs).squeeze(1) > 0
    accuracy = (decision == target.bool()).float().mean()
    gap = (decision[group == 1].float().mean() - decision[group == 0].float().mean()).abs()
    print(f"accuracy {accuracy:.3f}, demographic parity gap {gap:.3f}")


if __name__ == "__main__":
    main()
