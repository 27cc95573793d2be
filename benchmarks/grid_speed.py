"""A grid as one model against the same models in turn, on Adult: model-epochs a second.

Three ways to train FairRF with an MLP 64-32, batch 512: the stack of 125 models; bare PyTorch loops (sliced
tensors, fused Adam) one model after the other; stock Lightning fits (DataLoader over a TensorDataset, Adam,
progress bar, one logged loss) one after the other. All with the same penalty and lambda updates, without
validation. The three take turns within each round, so that other load on the machine hits them alike; only
the ratios mean anything. Epochs are timed, not the start of a fit, which favours the ones in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.backbones import MLP
from fairrf_lightning.callbacks import LambdaUpdateCallback
from fairrf_lightning.datamodules import AdultDataModule, TensorBatches
from fairrf_lightning.experiments import Schedule, Setting, Stack

ETAS, BETAS, SEEDS = (0.2, 0.25, 0.3, 0.35, 0.4), (0.4, 0.5, 0.6, 0.7, 0.8), range(5)
BATCH, UPDATE_EVERY = 512, 50


class EpochTimer(Callback):
    """Gathers the seconds of each training epoch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del trainer, pl_module
        self._start = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        del trainer, pl_module
        self.seconds.append(time.perf_counter() - self._start)


class StockModule(LightningModule):
    """FairRF as a tutorial would write it."""

    def __init__(self, data: AdultDataModule, dropout: float) -> None:
        super().__init__()
        self.net = MLP(data.n_features, dropout=dropout)
        self.penalty = RelatedFeaturePenalty(data.related_columns, eta=0.3)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        inputs, target = batch
        logits = self.net(inputs)
        penalty: Tensor = self.penalty(logits, inputs)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target) + penalty
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def stack_rate(dropout: float, epochs: int) -> float:
    """Return the model-epochs a second of the stack."""
    settings = [Setting(eta=eta, beta=beta, dropout=dropout) for eta in ETAS for beta in BETAS]
    stack = Stack(AdultDataModule, settings, SEEDS, Schedule(epochs=epochs + 1, pretrain_epochs=0))
    timer = EpochTimer()
    stack.fit([timer], select=False, limit_val_batches=0)
    return len(settings) * len(SEEDS) / statistics.median(timer.seconds[1:])


def bare_rate(data: AdultDataModule, dropout: float, epochs: int) -> float:
    """Return the model-epochs a second of a bare loop."""
    tensors = training_tensors(data)
    net = MLP(data.n_features, dropout=dropout)
    penalty = RelatedFeaturePenalty(data.related_columns, eta=0.3)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    seconds = []
    for _ in range(epochs + 1):
        start = time.perf_counter()
        order = torch.randperm(len(tensors["target"]))
        for step in range(len(order) // BATCH):
            rows = order[step * BATCH : (step + 1) * BATCH]
            inputs, target = tensors["inputs"][rows], tensors["target"][rows]
            logits = net(inputs)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, target)
            optimizer.zero_grad()
            (loss + penalty(logits, inputs)).backward()
            optimizer.step()
            if step % UPDATE_EVERY == UPDATE_EVERY - 1:
                penalty.update_weights(0.5)
        seconds.append(time.perf_counter() - start)
    return 1 / statistics.median(seconds[1:])


def stock_rate(data: AdultDataModule, dropout: float, epochs: int) -> float:
    """Return the model-epochs a second of a stock Lightning fit."""
    tensors = training_tensors(data)
    dataset = TensorDataset(tensors["inputs"], tensors["target"])
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True)
    timer = EpochTimer()
    trainer = Trainer(
        max_epochs=epochs + 1,
        callbacks=[timer, LambdaUpdateCallback(0.5, UPDATE_EVERY)],
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(StockModule(data, dropout), loader)
    return 1 / statistics.median(timer.seconds[1:])


def training_tensors(data: AdultDataModule) -> dict[str, Tensor]:
    """Return all training rows."""
    loader = data.train_dataloader()
    assert isinstance(loader, TensorBatches)  # noqa: S101 - Adult is held in memory
    return loader.tensors


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Hide progress bars and hints."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def main() -> None:
    """Print the rates of each round and the median ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs of the stack in a round")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    os.environ["PYTHONWARNINGS"] = "ignore"
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data = AdultDataModule(seed=0)
    ways: dict[str, Callable[[], float]] = {
        "stack": lambda: stack_rate(args.dropout, args.epochs),
        "bare": lambda: bare_rate(data, args.dropout, 20 * args.epochs),
        "stock": lambda: stock_rate(data, args.dropout, 8 * args.epochs),
    }
    ratios: dict[str, list[float]] = {"bare": [], "stock": []}
    for _ in range(args.rounds):
        with silence():
            rates = {name: measure() for name, measure in ways.items()}
        print("model-epochs/s:", ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items()), flush=True)
        for name, found in ratios.items():
            found.append(rates["stack"] / rates[name])
    for name, found in ratios.items():
        low, middle, high = min(found), statistics.median(found), max(found)
        print(f"stack / {name}: {middle:.1f} (rounds: {low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
