"""An epoch of ``fit`` on Adult as shipped, against a bare PyTorch loop and stock Lightning.

Three ways to train FairRF with the MLP 64-32 and batches of 512, which take turns:

- shipped: ``train.py fit --data adult`` with all its defaults: shuffled batches, lambda updates, validation
  with gaps and intervals, two checkpoints and a log in each epoch;
- bare: a PyTorch loop over batches that were cut once, with fused Adam and a minimal penalty by hand, and no
  validation;
- stock: Lightning with ``DataLoader(TensorDataset)``, Adam, a progress bar, a penalty that loops over the
  columns, and a validation that logs the loss.

Prints the medians of the ratios of neighbouring measurements, with their quartiles.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fairrf_lightning.backbones import MLP
from fairrf_lightning.cli.fit import run_lightning_cli
from fairrf_lightning.datamodules import AdultDataModule, TensorBatches

BATCH, ETA = 512, 0.6
Clock = Callable[[], float]


class EpochStarts(Callback):
    """Notes the time at the start of each epoch: an epoch lasts until the next one starts."""

    clock: Clock = time.process_time
    times: list[float] = []  # noqa: RUF012 - the command line makes the callback

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the time."""
        del trainer, pl_module
        EpochStarts.times.append(EpochStarts.clock())


def _epoch_time(starts: list[float]) -> float:
    """Return the median of all epochs but the first, which warms up, in seconds."""
    return statistics.median([after - before for before, after in pairwise(starts)][1:])


@contextlib.contextmanager
def _started(clock: Clock) -> Iterator[list[float]]:
    """Yield the starts of the epochs within the block, and hide what is printed."""
    EpochStarts.clock, EpochStarts.times = clock, []  # type: ignore[method-assign]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield EpochStarts.times


def shipped_epoch(epochs: int, clock: Clock = time.process_time) -> float:
    """Return the seconds of an epoch of the command ``fit --data adult``."""
    with tempfile.TemporaryDirectory() as folder, _started(clock) as starts:
        options = {
            "max_epochs": epochs + 2,
            "default_root_dir": folder,
            "callbacks": f"{__name__}.EpochStarts",
        }
        given = [text for name, value in options.items() for text in (f"--trainer.{name}", str(value))]
        run_lightning_cli(["fit", "--data", "adult", *given])
    return _epoch_time(starts)


def bare_epoch(data: AdultDataModule, epochs: int, clock: Clock = time.process_time) -> float:
    """Return the seconds of an epoch of the bare loop."""
    tensors, (columns, weights) = training_tensors(data), related_columns(data)
    batches = list(zip(tensors["inputs"].split(BATCH)[:-1], tensors["target"].split(BATCH)[:-1], strict=True))
    net = MLP(data.n_features)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    starts = [clock()]
    for _ in range(epochs + 1):
        for inputs, target in batches:
            logits = net(inputs)
            probs, related = logits.sigmoid(), inputs[:, columns]
            covariances = (probs - probs.mean()) @ (related - related.mean(0)) / len(probs)
            penalty = ETA * (weights * covariances.abs()).sum()
            optimizer.zero_grad()
            (nn.functional.binary_cross_entropy_with_logits(logits, target) + penalty).backward()
            optimizer.step()
        starts.append(clock())
    return _epoch_time(starts)


class Stock(LightningModule):
    """FairRF as a first version would be written."""

    def __init__(self, data: AdultDataModule) -> None:
        super().__init__()
        self.net = MLP(data.n_features)
        self.related = data.related_columns

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Return the loss, with a penalty column by column."""
        inputs, target = batch
        logits = self.net(inputs)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target)
        probs = logits.sigmoid()
        for columns in self.related.values():
            for column in columns:
                values = inputs[:, column]
                covariance = ((probs - probs.mean()) * (values - values.mean())).mean()
                loss = loss + ETA / len(self.related) * covariance.abs()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor]) -> None:
        """Log the loss."""
        inputs, target = batch
        self.log("val_loss", nn.functional.binary_cross_entropy_with_logits(self.net(inputs), target))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def stock_epoch(data: AdultDataModule, epochs: int, clock: Clock = time.process_time) -> float:
    """Return the seconds of an epoch of stock Lightning."""
    parts = training_tensors(data), _tensors(data.val_dataloader())
    rows, held_out = (TensorDataset(part["inputs"], part["target"]) for part in parts)
    with tempfile.TemporaryDirectory() as folder, _started(clock) as starts:
        trainer = Trainer(
            accelerator="cpu", max_epochs=epochs + 2, callbacks=[EpochStarts()], default_root_dir=folder
        )
        loader = DataLoader(rows, BATCH, shuffle=True, drop_last=True)
        trainer.fit(Stock(data), loader, DataLoader(held_out, BATCH))
    return _epoch_time(starts)


def adult() -> AdultDataModule:
    """Return Adult, ready to train."""
    data = AdultDataModule(seed=0)
    data.prepare_data()
    data.setup("fit")
    return data


def training_tensors(data: AdultDataModule) -> dict[str, Tensor]:
    """Return all training rows."""
    return _tensors(data.train_dataloader())


def related_columns(data: AdultDataModule) -> tuple[Tensor, Tensor]:
    """Return the related columns, and the weight of each with a fixed lambda."""
    features = data.related_columns.values()
    weights = [1 / len(features) for feature in features for _ in feature]
    return torch.tensor([column for feature in features for column in feature]), torch.tensor(weights)


def _tensors(loader: object) -> dict[str, Tensor]:
    assert isinstance(loader, TensorBatches)  # noqa: S101 - Adult is held in memory
    return loader.tensors


def main() -> None:
    """Print the epochs of each round, and the median ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=6, help="timed epochs of each way in a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="wall time; CPU time by default")
    args = parser.parse_args()
    clock = time.perf_counter if args.wall else time.process_time
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    data = adult()
    rounds = []
    for _ in range(args.rounds):
        bare = bare_epoch(data, args.epochs, clock)
        times = shipped_epoch(args.epochs, clock), bare, stock_epoch(data, args.epochs, clock)
        rounds.append(times)
        print("ms per epoch: shipped {:.0f}, bare {:.0f}, stock {:.0f}".format(*(1e3 * t for t in times)))
    ratios = {
        "shipped to bare": [shipped / bare for shipped, bare, _ in rounds],
        "stock to shipped": [stock / shipped for shipped, _, stock in rounds],
    }
    for name, found in ratios.items():
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{name}: {middle:.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    import fit_speed  # the command line finds the callback by this name

    fit_speed.main()
