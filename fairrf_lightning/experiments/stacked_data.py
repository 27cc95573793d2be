"""The rows of several seeds, each with its own split and order, as one data module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import torch
from lightning import LightningDataModule
from torch import Tensor

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.loader import EpochBatches, TensorBatches
from fairrf_lightning.errors import InputError

_MAX_NAMED = 4  # in an error
_EVAL_ROWS = 2048  # of each seed at once: the activations of all models are held for them


class StackedBatches:
    """Batches of several loaders side by side: ``inputs`` ``(S, N, D)``, ``target`` ``(S, N)``, ...

    Args:
        loaders: One for each seed, equally long.
    """

    def __init__(self, loaders: Sequence[TensorBatches]) -> None:
        self.loaders = list(loaders)
        if len({len(loader) for loader in self.loaders}) > 1:
            raise InputError("the seeds have different numbers of batches: train them in separate stacks.")

    def __len__(self) -> int:
        return len(self.loaders[0])

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batches in zip(*self.loaders, strict=True):
            yield {name: torch.stack([batch[name] for batch in batches]) for name in batches[0]}

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """Lead Lightning to ``set_epoch``: it looks for ``loader.batch_sampler.sampler``."""
        return SimpleNamespace(sampler=self)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the epoch to come."""
        for loader in self.loaders:
            loader.set_epoch(epoch)


class StackedData(LightningDataModule):
    """One data module for each seed, read side by side.

    Args:
        parts: Data modules of the same table with different seeds.
    """

    def __init__(self, parts: Sequence[TabularDataModule]) -> None:
        super().__init__()
        self.parts = list(parts)
        names = self.parts[0].feature_names
        if any(part.feature_names != names for part in self.parts):
            raise InputError(
                f"the seeds' training rows give different columns: {_differing(self.parts)}.\n"
                "Of a table, --data.drop leaves out a column with rare categories, and --data.min_count sets "
                "how rare a category may be.\n"
                "Of a data module of your own, make text columns categorical in `read`."
            )

    def train_dataloader(self) -> StackedBatches:
        """Return the training batches of all seeds, each in its own order."""
        return StackedBatches([_in_memory(part.train_dataloader()) for part in self.parts])

    def val_dataloader(self) -> StackedBatches:
        """Return the validation rows of all seeds."""
        return StackedBatches([_in_large_batches(part.val_dataloader()) for part in self.parts])

    def test_dataloader(self) -> StackedBatches:
        """Return the test rows of all seeds."""
        return StackedBatches([_in_large_batches(part.test_dataloader()) for part in self.parts])


def _differing(parts: Sequence[TabularDataModule]) -> str:
    """Name a few of the columns that only some of the seeds have."""
    names = [set(part.feature_names) for part in parts]
    differing = sorted(names[0].union(*names) - names[0].intersection(*names))
    return ", ".join(differing[:_MAX_NAMED]) + (", ..." if len(differing) > _MAX_NAMED else "")


def _in_large_batches(loader: EpochBatches) -> TensorBatches:
    return TensorBatches(_in_memory(loader).tensors, _EVAL_ROWS)


def _in_memory(loader: EpochBatches) -> TensorBatches:
    if not isinstance(loader, TensorBatches):
        raise InputError("a grid trains on tables in memory: name a file, not a directory of Parquet files.")
    return loader
