"""A table that is streamed from a Parquet directory, never in memory as a whole, and its loader."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from fairrf_lightning.datamodules.columns import (
    Kind,
    TableSpec,
    check_group_names,
    group_ids,
    infer_kinds,
    label_codes,
    labels,
    make_frame,
)
from fairrf_lightning.datamodules.encoding import EncoderFit, TableEncoder
from fairrf_lightning.datamodules.leakage import check_leakage
from fairrf_lightning.datamodules.loader import PARTS, EpochBatches, SplitShares, mixed_generator
from fairrf_lightning.datamodules.parquet import ParquetDirectory, RowGroup, parts_of_rows, uniform_of_rows
from fairrf_lightning.errors import InputError

Rows = dict[str, Tensor]
T = TypeVar("T")

_SAMPLED_ROWS = 50_000  # training rows; medians are those of a sample
_MAX_VALUES = 1000  # of a label or of S; with more, an error follows the scan
_OPEN_ROW_GROUPS = 4
_ROWS_IN_TURN = 1 << 14


@dataclass(frozen=True)
class StreamedTable:
    """The encoded rows of a directory, by part.

    Each row belongs to train, val or test by a hash of seed, file and row number: nothing is copied,
    and a reader of a row group can compute the parts of its rows. Part ``all`` is for prediction.

    Args:
        directory: The files.
        spec: Roles of the columns.
        encoder: Learned from the training rows.
        counts: Number of rows by row group and part.
        seed: Seed of the split.
        split: Shares of the parts.
        label_codes: 0 or 1 for each value of the target.
        group_values: All values of S.
        group_names: Groups of S that are compared; the position is the id.
    """

    directory: ParquetDirectory
    spec: TableSpec
    encoder: TableEncoder
    counts: list[list[int]]
    seed: int = 0
    split: SplitShares = (0.5, 0.2, 0.3)
    label_codes: dict[str, int] = field(default_factory=dict)
    group_values: list[str] = field(default_factory=list)
    group_names: list[str] = field(default_factory=list)

    @classmethod
    def learn(
        cls,
        path: str,
        spec: TableSpec,
        related: Sequence[str],
        *,
        positive: object,
        seed: int,
        split: SplitShares,
    ) -> StreamedTable:
        """Learn the encoding from the training rows, in one pass over the files."""
        directory = ParquetDirectory(path)
        columns = directory.empty_table.column_names
        spec.check(columns, related)
        kinds = infer_kinds(directory.empty_table, spec.features(columns), spec, typed=True)
        fit = EncoderFit(kinds, spec)
        found = scan(directory, kinds, spec, seed=seed, split=split, fit=fit)
        codes = label_codes(str(spec.target), found.label_values, positive)
        if found.validation is not None and not spec.include_sensitive:
            check_leakage(found.validation[list(kinds)], found.validation[spec.sensitive])
        return cls(
            directory, spec, fit.encoder(related), found.counts, seed, split, codes, found.group_values
        )

    @classmethod
    def restore(cls, path: str, spec: TableSpec, state: Mapping[str, Any]) -> StreamedTable:
        """Restore the encoding of a checkpoint; other files than those of training are scanned."""
        directory = ParquetDirectory(path)
        encoder = TableEncoder.from_state(state["encoder"])
        seed, split = state["seed"], tuple(state["split"])
        counts, group_values = state["counts"], state["group_values"]
        if directory.checksum != state["checksum"] or spec.sensitive != state["sensitive"]:
            found = scan(directory, encoder.kinds, spec, seed=seed, split=split)
            counts, group_values = found.counts, found.group_values
        return cls(directory, spec, encoder, counts, seed, split, state["label_codes"], group_values)

    @classmethod
    def for_prediction(cls, path: str, spec: TableSpec, encoder: TableEncoder) -> StreamedTable:
        """Take all rows; they need neither target nor S."""
        directory = ParquetDirectory(path)
        groups = directory.row_groups
        table = cls(directory, spec, encoder, [[group.num_rows] for group in groups])
        if spec.missing != "drop":
            return table
        counts = [[sum(len(block["row"]) for block in table.read(g, "all", ("row",)))] for g in groups]
        spec.report_dropped(directory.num_rows, int(np.sum(counts)), labelled=False)
        return replace(table, counts=counts)

    def comparing(self, groups: Sequence[str] | Literal["all"]) -> StreamedTable:
        """Return the table with ids for these groups of S."""
        if self.spec.sensitive is None:
            return self
        check_group_names(self.spec.sensitive, self.group_values, chosen=groups != "all")
        _, names = group_ids(pd.Series(self.group_values, name=self.spec.sensitive), groups)
        return replace(self, group_names=names)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of rows of each part."""
        return dict(zip(PARTS, np.sum(self.counts, axis=0).tolist(), strict=True))

    def counts_of(self, part: str) -> list[int]:
        """Return the number of rows of a part in each row group."""
        column = 0 if part == "all" else PARTS.index(part)
        return [count[column] for count in self.counts]

    def read(self, group: RowGroup, part: str, keys: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
        """Yield the rows of a row group that belong to ``part``, in several blocks."""
        kinds = self._kinds(part, keys)
        chosen = None if part == "all" else parts_of_rows(group, self.seed, self.split) == PARTS.index(part)
        for numbers, frame in self.directory.read(group, kinds, self.spec, chosen):
            kept = self.spec.kept_rows(frame, list(self.encoder.owners), labelled=part != "all")
            if not kept.all():
                numbers, frame = numbers[kept], frame[kept]  # noqa: PLW2901
            yield self._tensors(numbers + group.offset, frame, keys)

    def batch(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return rows as the model takes them; until they are a batch, their categories are numbers."""
        others = {key: value for key, value in rows.items() if key not in ("numbers", "columns")}
        return {"inputs": self.encoder.expand(rows["numbers"], rows["columns"]), **others}

    def empty(self, part: str, keys: tuple[str, ...]) -> dict[str, Tensor]:
        """Return a block without rows."""
        frame = make_frame(self.directory.empty_table, self._kinds(part, keys), self.spec)
        return self._tensors(np.arange(0), frame, keys)

    def _kinds(self, part: str, keys: tuple[str, ...]) -> dict[str, Kind]:
        extra = _extra_kinds(self.spec, labelled=part != "all", grouped="groups" in keys)
        return self.encoder.kinds | extra

    def _tensors(
        self, rows: NDArray[np.int64], frame: pd.DataFrame, keys: tuple[str, ...]
    ) -> dict[str, Tensor]:
        numbers, columns = self.encoder.compact(frame)
        tensors = {"numbers": numbers, "columns": columns}
        if "row" in keys:
            tensors["row"] = torch.from_numpy(rows)
        if "target" in keys and self.spec.target is not None:
            values = labels(self.spec.target, frame[self.spec.target].array, self.label_codes)
            tensors["target"] = torch.from_numpy(values)
        if "groups" in keys and self.spec.sensitive is not None:
            column = frame[self.spec.sensitive].array
            ids = pd.Index(self.group_names).get_indexer(column.categories)
            tensors["groups"] = torch.from_numpy(np.append(ids, -1)[column.codes].astype(np.int64))
        return tensors


class Scan(NamedTuple):
    """Result of one pass over all rows.

    Args:
        counts: Number of rows by row group and part.
        label_values: Values of the target, sorted.
        group_values: Values of S, sorted.
        validation: A sample of the validation rows, where S is legal, if there is S.
    """

    counts: list[list[int]]
    label_values: list[str]
    group_values: list[str]
    validation: pd.DataFrame | None


def scan(
    directory: ParquetDirectory,
    kinds: dict[str, Kind],
    spec: TableSpec,
    *,
    seed: int,
    split: SplitShares,
    fit: EncoderFit | None = None,
) -> Scan:
    """Read all rows once: count those of each part, and let ``fit`` learn from the training rows."""
    everything = kinds | _extra_kinds(spec, labelled=True, grouped=True)
    sampled_share = _SAMPLED_ROWS / max(1, directory.num_rows * split[0])
    counts = np.zeros((len(directory.row_groups), len(PARTS)), dtype=np.int64)
    values: dict[str, set[str]] = {name: set() for name in (spec.target, spec.sensitive) if name is not None}
    validation: list[pd.DataFrame] = []
    for index, group in enumerate(directory.row_groups):
        parts = parts_of_rows(group, seed, split)
        sampled = uniform_of_rows(seed + 1, group) < sampled_share
        for numbers, frame in directory.read(group, everything, spec):
            for name, found in values.items():
                if len(found) <= _MAX_VALUES:
                    found.update(frame[name].array.categories)
            part = np.where(spec.kept_rows(frame, list(kinds), labelled=True), parts[numbers], -1)
            counts[index] += np.bincount(part + 1, minlength=len(PARTS) + 1)[1:]
            if fit is not None:
                fit.update(frame[part == 0], sampled[numbers[part == 0]])
            if fit is not None and spec.sensitive is not None:
                validation.append(frame[(part == 1) & sampled[numbers]])
    spec.report_dropped(directory.num_rows, int(counts.sum()))
    sizes = dict(zip(PARTS, counts.sum(axis=0).tolist(), strict=True))
    if not all(sizes.values()):
        raise InputError(f"there are too few rows for a split into {list(split)}: {sizes}")
    label_values, group_values = (sorted(values.get(str(name), ())) for name in (spec.target, spec.sensitive))
    seen = pd.concat(validation, ignore_index=True) if validation else None
    return Scan(counts.tolist(), label_values, group_values, seen)


def _extra_kinds(spec: TableSpec, *, labelled: bool, grouped: bool) -> dict[str, Kind]:
    names = [spec.target if labelled else None, spec.sensitive if grouped else None]
    return {name: "category" for name in names if name is not None}


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
        batches: Iterable[Rows] = self.reader_batches(0)
        if self.num_workers:
            # The clients of remote storage have threads, which a forked process would lack.
            start = "spawn" if self.table.directory.is_remote else None
            batches = DataLoader(
                _WorkerBatches(self),
                batch_size=None,
                num_workers=self.num_workers,
                multiprocessing_context=start,
            )
        return islice(batches, first, None)

    def reader_batches(self, worker: int) -> Iterator[Rows]:
        """Yield the batches of one worker of this rank."""
        reader, total = self.rank * max(1, self.num_workers) + worker, sum(self.counts)
        start, stop = (total * number // self.num_readers for number in (reader, reader + 1))
        blocks = prefetched(self._blocks(start, stop, reader))
        block, position = self.table.empty(self.part, self.keys), 0
        for number in range(self._batches_per_reader):
            low, high = ((stop - start) * n // self._batches_per_reader for n in (number, number + 1))
            needed = high - low
            pieces = [_slice(block, position, position + needed)]
            while (needed := needed - _length(pieces[-1])) > 0:
                block, position = next(blocks, {}), 0
                if not block:
                    raise InputError(f"{self.table.directory.path} has lost rows since training began")
                pieces.append(_slice(block, 0, needed))
            position += _length(pieces[-1])
            if len(pieces) > 1:
                pieces = [{key: torch.cat([piece[key] for piece in pieces]) for key in block}]
            yield self.table.batch(pieces[0])

    def _blocks(self, start: int, stop: int, reader: int) -> Iterator[Rows]:
        """Yield large blocks of rows: in order, or shuffled within the buffer."""
        pieces = [self._read(*piece) for piece in self._pieces(start, stop)]
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


def _shuffled(blocks: list[Rows], generator: torch.Generator) -> Rows:
    """Return the rows of all blocks in a random order."""
    places = torch.randperm(sum(map(_length, blocks)), generator=generator)
    order = torch.empty_like(places).scatter_(0, places, torch.arange(len(places)))
    return {key: torch.cat([block[key] for block in blocks]).index_select(0, order) for key in blocks[0]}


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
