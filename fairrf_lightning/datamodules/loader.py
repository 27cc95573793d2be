"""Rows in memory: their split into parts, and a loader of batches that are slices of tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TypeAlias, TypedDict

import numpy as np
import torch
from torch import Tensor

from fairrf_lightning.errors import InputError, check_at_least
from fairrf_lightning.penalty import UPDATE_INTERVAL

PARTS = ("train", "val", "test")
SplitShares: TypeAlias = tuple[float, float, float]
_MAX_BATCH_SIZE = 512
_MIN_BATCH_SIZE = 16
_MIN_BATCHES = 6  # per epoch; the smallest published data set, COMPAS, has six batches of 512


class Order(TypedDict):
    """Arguments that loaders have in common: the order of the rows, and which of them are this rank's."""

    shuffle: bool
    seed: int
    rank: int
    world_size: int


class EpochBatches(ABC):
    """Batches in a new order for each epoch, which a run can resume mid-epoch.

    Lightning sets the epoch, and saves and restores the position with the checkpoint.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._batches_seen = 0
        self._resume_at = 0

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches that this rank yields in an epoch."""

    @abstractmethod
    def _batches(self, first: int) -> Iterator[dict[str, Tensor]]:
        """Yield the batches of this epoch, from number ``first`` on."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Yield the batches of this epoch, after a resume from the first one not yet seen."""
        # A generator runs from its first next() on: Lightning sets the epoch after calling iter().
        first, self._resume_at = self._resume_at, 0
        for number, batch in enumerate(self._batches(first), start=first + 1):
            self._batches_seen = number
            yield batch

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """Lead Lightning to ``set_epoch``: it looks for ``loader.batch_sampler.sampler``."""
        return SimpleNamespace(sampler=self)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the epoch to come; a resume position of another epoch is discarded."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._batches_seen = self._resume_at = 0

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, the number of its batches that were seen, and the number of all."""
        return {"epoch": self.epoch, "batches_seen": self._batches_seen, "batches": len(self)}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Make the next iteration over the saved epoch start after the batches already seen."""
        batches = state_dict.get("batches", len(self))
        if batches != len(self) and 0 < state_dict["batches_seen"] < batches:
            raise InputError(
                f"the checkpoint was saved within an epoch of {batches} batches; now there are {len(self)}.\n"
                "Resume with the batch size, the rows and the number of processes that it was trained with."
            )
        self.epoch = state_dict["epoch"]
        self._batches_seen = self._resume_at = state_dict["batches_seen"]


class TensorBatches(EpochBatches):
    """Yield dicts of row slices of equally long tensors, without any Python code per row.

    With ``shuffle`` (training), an epoch is a permutation drawn from ``(seed, epoch)`` and cut into
    global batches of ``batch_size * world_size`` rows; rank ``r`` takes rows ``r::world_size`` of
    each. The ranks together therefore see exactly the batches of one process with a
    ``world_size`` times larger ``batch_size``. Rows that do not fill the last global batch are left
    out until the next epoch shuffles them in.

    Without ``shuffle`` (evaluation), each row comes exactly once over all ranks, in order and
    without padding; a rank without rows yields one empty batch, because Lightning would skip that
    rank's loop and the other ranks would wait for it forever.

    Args:
        tensors: Tensors by the names that batches carry, all with the same number of rows.
        batch_size: Rows in a batch of this rank.
        shuffle: Draw a new order in each epoch, as for training.
        seed: Seed of the order.
        rank: Number of this process.
        world_size: Number of processes that share the rows.

    Example:
        >>> loader = TensorBatches({"inputs": torch.arange(5)}, batch_size=2)
        >>> [batch["inputs"].tolist() for batch in loader]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__()
        rows = {len(tensor) for tensor in tensors.values()}
        if len(rows) != 1:
            sizes = {name: len(tensor) for name, tensor in tensors.items()}
            raise InputError(f"tensors must have the same number of rows, not {sizes}")
        check_at_least(1, batch_size=batch_size)
        self.tensors = dict(tensors)
        self.num_rows = rows.pop()
        if shuffle and self.num_rows < world_size:
            raise InputError(f"{self.num_rows} training rows are too few for {world_size} processes")
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        if self.shuffle:
            return self.num_rows // self._global_batch_size
        rows_of_rank = len(range(self.rank, self.num_rows, self.world_size))
        return max(1, -(-rows_of_rank // self.batch_size))

    def _batches(self, first: int) -> Iterator[dict[str, Tensor]]:
        return self._shuffled(first) if self.shuffle else self._in_order(first)

    @property
    def _global_batch_size(self) -> int:
        whole = self.batch_size * self.world_size
        return whole if self.num_rows >= whole else self.num_rows - self.num_rows % self.world_size

    def _shuffled(self, first: int) -> Iterator[dict[str, Tensor]]:
        order = torch.randperm(self.num_rows, generator=mixed_generator(self.seed, self.epoch))
        size = self._global_batch_size
        for start in range(first * size, len(self) * size, size):
            rows = order[start : start + size][self.rank :: self.world_size]
            yield {name: tensor.index_select(0, rows) for name, tensor in self.tensors.items()}

    def _in_order(self, first: int) -> Iterator[dict[str, Tensor]]:
        mine = {name: t[self.rank :: self.world_size] for name, t in self.tensors.items()}
        for number in range(first, len(self)):
            rows = slice(number * self.batch_size, (number + 1) * self.batch_size)
            yield {name: tensor[rows] for name, tensor in mine.items()}


def mixed_generator(*numbers: int) -> torch.Generator:
    """Return a generator seeded by all ``numbers``."""
    # torch's generator uses 32 bits of its seed only: mix the numbers into them
    mixed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    return torch.Generator().manual_seed(mixed)


def default_batch_size(rows: int) -> int:
    """Return the largest power of two, from 16 to 512, that makes at least six batches of the rows.

    >>> [default_batch_size(rows) for rows in (22_611, 3_086, 1_000, 500, 20)]
    [512, 512, 128, 64, 16]
    """
    size = _MAX_BATCH_SIZE
    while size > _MIN_BATCH_SIZE and size * _MIN_BATCHES > rows:
        size //= 2
    return size


def default_update_interval(rows: int) -> int:
    """Return the optimiser steps between updates of lambda: 50, or fewer in proportion to the batch size.

    >>> [default_update_interval(rows) for rows in (22_611, 3_086, 1_000, 500, 20)]
    [50, 50, 12, 6, 1]
    """
    return UPDATE_INTERVAL * default_batch_size(rows) // _MAX_BATCH_SIZE


def check_split(split: Sequence[float]) -> None:
    """Raise unless the split is three positive shares of a whole."""
    # an unordered comparison with NaN is false, hence "not all"
    if len(split) != len(PARTS) or not all(share > 0 for share in split) or round(sum(split), 6) != 1:
        raise InputError(
            f"split must be three positive shares (train, validation, test) that add up to 1, "
            f"such as [0.5, 0.2, 0.3], not {list(split)}"
        )


def split_rows(num_rows: int, split: SplitShares, seed: int) -> dict[str, Tensor]:
    """Return the row numbers of ``train``, ``val`` and ``test``, drawn by the seed.

    >>> [len(rows) for rows in split_rows(45222, (0.5, 0.2, 0.3), seed=0).values()]
    [22611, 9044, 13567]
    """
    train, val = (round(share * num_rows) for share in split[:2])
    if min(train, val, num_rows - train - val) < 1:
        raise InputError(f"{num_rows} rows are too few for a split into {list(split)}")
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed))
    return dict(zip(PARTS, order.tensor_split((train, train + val)), strict=True))
