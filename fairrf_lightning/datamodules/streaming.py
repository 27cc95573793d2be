"""A loader that streams a Parquet directory: over ranks and workers each row comes exactly once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from fairrf_lightning.datamodules.loader import EpochBatches, mixed_generator
from fairrf_lightning.datamodules.parquet import RowGroup, StreamedTable
from fairrf_lightning.errors import InputError

Rows = dict[str, Tensor]
T = TypeVar("T")

_OPEN_ROW_GROUPS = 4
_ROWS_IN_TURN = 1 << 14


class StreamedBatches(EpochBatches):
    """Yields batches of the rows of a part, read from disk as training goes on.

    An epoch concatenates all row groups, with ``shuffle`` in an order drawn from ``(seed, epoch)``, and
    cuts them into one stretch for each reader (a worker of a rank); lengths differ by at most one
    row. A reader draws from a few row groups in turn, shuffles within its buffer, and spreads its
    rows evenly over its batches. So each row comes exactly once in an epoch over all ranks, all
    ranks have the same number of batches, and their sizes differ by no more than one row.

    A resumed run reads the rows of its epoch again up to its position, without training on them.

    Args:
        table: The rows.
        part: ``train``, ``val``, ``test``, or ``all`` for prediction.
        keys: Tensors that a batch carries.
        batch_size: Maximum number of rows in a batch of this rank.
        shuffle: Draw a new order in each epoch, as for training.
        buffer_size: Rows among which a reader shuffles.
        seed: Seed of the order.
        rank: Number of this process.
        world_size: Number of processes that share the rows.
        num_workers: Reading processes of this rank; 0 reads in a thread.
    """

    def __init__(
        self,
        table: StreamedTable,
        part: str,
        keys: tuple[str, ...],
        batch_size: int,
        *,
        shuffle: bool = False,
        buffer_size: int = 1 << 17,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.table = table
        self.part = part
        self.counts = table.counts_of(part)
        self.keys = keys
        self.shuffle = shuffle
        self.buffer_size = max(buffer_size, batch_size)
        self.seed = seed
        self.rank = rank
        self.num_workers = num_workers
        self.num_readers = world_size * max(1, num_workers)
        total = sum(self.counts)
        if shuffle and total < self.num_readers:
            raise InputError(f"{total} training rows are too few for {self.num_readers} readers")
        smallest, largest = total // self.num_readers, -(-total // self.num_readers)
        # no training batch may be empty, whatever the batch size
        self._batches_per_reader = max(1, -(-largest // batch_size))
        if shuffle:
            self._batches_per_reader = min(self._batches_per_reader, smallest)

    def __len__(self) -> int:
        return self._batches_per_reader * max(1, self.num_workers)

    def _batches(self, first: int) -> Iterator[Rows]:
        if self.num_workers == 0:
            blocks = prefetched(self._blocks(self.rank))
            return islice(self._cut(blocks, self.rank), first, None)
        # The clients of remote storage have threads, which a forked process would lack.
        start = "spawn" if self.table.directory.is_remote else None
        loader = DataLoader(
            _WorkerBatches(self), batch_size=None, num_workers=self.num_workers, multiprocessing_context=start
        )
        return islice(loader, first, None)

    def reader_batches(self, worker: int) -> Iterator[Rows]:
        """Yield the batches of one worker of this rank."""
        reader = self.rank * self.num_workers + worker
        return self._cut(self._blocks(reader), reader)

    def _cut(self, blocks: Iterator[Rows], reader: int) -> Iterator[Rows]:
        start, stop = self._stretch(reader)
        block, position = self.table.empty(self.part, self.keys), 0
        for number in range(self._batches_per_reader):
            ends = [(stop - start) * n // self._batches_per_reader for n in (number, number + 1)]
            needed = ends[1] - ends[0]
            pieces = [_slice(block, position, position + needed)]
            while (needed := needed - _length(pieces[-1])) > 0:
                block, position = next(blocks, {}), 0
                if not block:
                    raise InputError(f"{self.table.directory.path} has lost rows since training began")
                pieces.append(_slice(block, 0, needed))
            position += _length(pieces[-1])
            yield self.table.batch(pieces[0] if len(pieces) == 1 else _joined(pieces))

    def _stretch(self, reader: int) -> tuple[int, int]:
        total = sum(self.counts)
        return reader * total // self.num_readers, (reader + 1) * total // self.num_readers

    def _blocks(self, reader: int) -> Iterator[Rows]:
        """Yield large blocks of rows: in order, or shuffled within the buffer."""
        pieces = [self._read(*piece) for piece in self._pieces(*self._stretch(reader))]
        if not self.shuffle:
            for piece in pieces:
                yield from piece
            return
        generator = mixed_generator(self.seed, self.epoch, reader)
        buffer: list[Rows] = []
        for block in _in_turn(map(_small_blocks, pieces), _OPEN_ROW_GROUPS):
            buffer.append(block)
            if sum(map(_length, buffer)) >= self.buffer_size:
                yield _shuffled(buffer, generator)
                buffer = []
        if buffer:
            yield _shuffled(buffer, generator)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[RowGroup, int, int]]:
        """Yield the row groups of a stretch, with the first and last row of the part to take there."""
        order = list(range(len(self.counts)))
        if self.shuffle:
            order = torch.randperm(len(order), generator=mixed_generator(self.seed, self.epoch)).tolist()
        passed = 0
        for index in order:
            low, high = max(start - passed, 0), min(stop - passed, self.counts[index])
            passed += self.counts[index]
            if low < high:
                yield self.table.directory.row_groups[index], low, high

    def _read(self, group: RowGroup, start: int, stop: int) -> Iterator[Rows]:
        passed = 0
        for block in self.table.read(group, self.part, self.keys):
            taken = _slice(block, max(start - passed, 0), max(stop - passed, 0))
            passed += _length(block)
            if _length(taken):
                yield taken
            if passed > stop:  # else the reader goes on to the end, where it checks the file
                return


class _WorkerBatches(IterableDataset[Rows]):
    """The batches of the worker process that iterates."""

    def __init__(self, batches: StreamedBatches) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Rows]:
        worker = get_worker_info()
        return self.batches.reader_batches(worker.id if worker else 0)


def _in_turn(iterators: Iterable[Iterator[Rows]], at_once: int) -> Iterator[Rows]:
    """Yield from a few iterators in turn; the next one takes the place of one that has ended."""
    waiting = iter(iterators)
    active = deque(islice(waiting, at_once))
    while active:
        iterator = active.popleft()
        item = next(iterator, None)
        if item is not None:
            yield item
            active.append(iterator)
        else:
            active.extend(islice(waiting, 1))


def _small_blocks(blocks: Iterator[Rows]) -> Iterator[Rows]:
    """Yield the rows of a row group that a thread reads, a few at a time so that row groups mix."""
    for block in prefetched(blocks):
        for start in range(0, _length(block), _ROWS_IN_TURN):
            yield _slice(block, start, start + _ROWS_IN_TURN)


def _length(rows: Rows) -> int:
    return len(rows["numbers"])


def _slice(rows: Rows, start: int, stop: int) -> Rows:
    return {key: tensor[start:stop] for key, tensor in rows.items()}


def _joined(blocks: list[Rows]) -> Rows:
    return {key: torch.cat([block[key] for block in blocks]) for key in blocks[0]}


def _shuffled(blocks: list[Rows], generator: torch.Generator) -> Rows:
    """Return the rows of all blocks in a random order; each is copied once."""
    order = torch.randperm(sum(map(_length, blocks)), generator=generator)
    places = torch.split_with_sizes(order, [_length(block) for block in blocks])
    mixed = {}
    for key, tensor in blocks[0].items():
        mixed[key] = tensor.new_empty(len(order), *tensor.shape[1:])
        for block, place in zip(blocks, places, strict=True):
            mixed[key].index_copy_(0, place, block[key])
    return mixed


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """Yield the items of an iterator that a thread keeps one item ahead; its errors are raised here.

    >>> list(prefetched(iter("abc")))
    ['a', 'b', 'c']
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        following = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item
