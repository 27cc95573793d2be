"""The callbacks in chemprop: a message-passing network on made-up molecules.

Its training step calls ``predictor.train_step`` and unpacks the batch strictly; the related column comes
through ``WithRelated``. Trains without a penalty, with the callbacks, and with a penalty in a subclass.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from chemprop import nn
from chemprop.data import MoleculeDatapoint, MoleculeDataset
from chemprop.data.collate import collate_batch
from chemprop.models import MPNN
from lightning.pytorch import Trainer, seed_everything
from torch.utils.data import DataLoader

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback, WithRelated
from tests.foreign.measures import PRETRAINING_EPOCHS, StepTimes, by_hand, report

ROWS, ETA, BATCH, EPOCHS = 512, 5.0, 64, 16


def molecules() -> tuple[MoleculeDataset, torch.Tensor, torch.Tensor]:
    """Return chains of atoms, a number related to oxygen, and labels that depend on oxygen and nitrogen."""
    torch.manual_seed(0)
    oxygen, nitrogen = torch.randint(2, (2, ROWS)).bool()
    length = torch.randint(2, 6, (ROWS,))
    related = oxygen.float() - 0.5 + 0.3 * torch.randn(ROWS)
    label = (oxygen.float() + nitrogen.float() + 0.4 * torch.randn(ROWS) > 1).float()
    chains = [
        "C" * int(n) + ("O" if o else "") + "C" + ("N" if a else "")
        for n, o, a in zip(length, oxygen, nitrogen, strict=True)
    ]
    points = [MoleculeDatapoint.from_smi(c, [float(y)]) for c, y in zip(chains, label, strict=True)]
    return MoleculeDataset(points), related, label


class ByHand(MPNN):  # type: ignore[misc] # not installed here
    """Has the penalty in its training step, where the last column of the batch is the related one."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Do what chemprop's training step does, and add the penalty."""
        del batch_idx
        batch, related = batch
        bmg, atoms, extra, targets, weights, lower, upper = batch
        preds = self.predictor.train_step(self.fingerprint(bmg, atoms, extra))
        mask = targets.isfinite()
        loss: torch.Tensor = self.criterion(preds, targets.nan_to_num(nan=0.0), mask, weights, lower, upper)
        if self.current_epoch < PRETRAINING_EPOCHS:
            return loss
        return loss + ETA * by_hand(preds.sigmoid().flatten(), related)


def collate_by_hand(items: list[Any]) -> tuple[Any, torch.Tensor]:
    """Return chemprop's batch and the related column."""
    return collate_batch([item.item for item in items]), torch.stack([item.related for item in items])


def callbacks() -> list[Any]:
    """Return what a user adds, next to ``WithRelated``."""
    penalty = RelatedFeaturePenalty({"related": [0]}, eta=ETA)
    return [
        PretrainCallback(epochs=PRETRAINING_EPOCHS),
        LambdaUpdateCallback(penalty=penalty, module="predictor.train_step", every_n_steps=10),
    ]


def train(name: str, network: type[MPNN], added: list[Any]) -> None:
    """Train and print the measurements over all rows."""
    data, related, label = molecules()
    options: dict[str, Any] = {"collate_fn": collate_batch}
    rows: Any = data
    if name != "without":
        rows = WithRelated(data, related)
        options["collate_fn"] = collate_by_hand if network is ByHand else WithRelated.collate(collate_batch)
    seed_everything(0, verbose=False)
    model = network(nn.BondMessagePassing(d_h=32, depth=2), nn.MeanAggregation(), nn.BinaryClassificationFFN(
        input_dim=32, hidden_dim=32
    ), init_lr=1e-3, max_lr=5e-3, final_lr=1e-3)  # fmt: skip
    times = StepTimes()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        callbacks=[*added, times],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    generator = torch.Generator().manual_seed(0)
    trainer.fit(model, DataLoader(rows, BATCH, shuffle=True, generator=generator, **options))
    with torch.no_grad():
        whole = collate_batch([data[i] for i in range(ROWS)])
        probs = model.eval()(whole.bmg).flatten()
    report(name, probs, related, label, times.median)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    train("without", MPNN, [])
    train("callbacks", MPNN, callbacks())
    train("by hand", ByHand, [])
