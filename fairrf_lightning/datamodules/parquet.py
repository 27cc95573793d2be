"""Directories of Parquet files: a table that is streamed, never in memory as a whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairrf_lightning.datamodules.base import PARTS
from fairrf_lightning.datamodules.columns import (
    MISSING_VALUES,
    NUMERIC_TEXTS,
    Kind,
    TableSpec,
    TextValues,
    check_column,
    check_scalar_type,
    infer_kinds,
    make_frame,
)
from fairrf_lightning.datamodules.encoding import EncoderFit, TableEncoder
from fairrf_lightning.datamodules.files import CsvFile, Progress, check_names
from fairrf_lightning.datamodules.groups import check_group_names, group_ids, label_codes, labels
from fairrf_lightning.datamodules.leakage import check_leakage
from fairrf_lightning.datamodules.storage import Storage
from fairrf_lightning.errors import InputError, writing_to
from fairrf_lightning.files import replacing

SplitShares = tuple[float, float, float]
_ROWS_AT_ONCE = 1 << 17
_BUFFER_BYTES = 1 << 18  # else a reader holds the whole row group, compressed
_SAMPLED_ROWS = 50_000  # training rows; medians are those of a sample
_MAX_VALUES = 1000  # of a label or of S; with more, an error follows the scan


@dataclass(frozen=True)
class RowGroup:
    """The unit in which files are read: row group ``index`` of ``file``.

    Args:
        file: Path relative to the directory.
        index: Number of the row group in the file.
        first_row: Number of its first row in the file.
        offset: Number of its first row in the whole table.
        num_rows: Its rows.
    """

    file: str
    index: int
    first_row: int
    offset: int
    num_rows: int


class ParquetDirectory:
    """The Parquet files below a directory, by name; names that begin with ``.`` or ``_`` are skipped.

    The columns of partitioned folders (``year=2024/``) are columns of the table.

    Args:
        path: Local directory, or the address of a remote directory or file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._storage = Storage(self.path)
        self._schemas: dict[str, pa.Schema] = {}
        found = self._storage.sizes()
        self.files = sorted(file for file in found if _is_parquet(PurePosixPath(file)))
        if not self.files:
            raise InputError(f"path: the directory {self.path} holds no file whose name ends in .parquet")
        sizes = [f"{file} {found[file]}" for file in self.files]
        self.checksum = hashlib.sha256("\n".join(sizes).encode()).hexdigest()  # of names and sizes
        self._partitions = self._storage.partitions(self.files)

    @property
    def is_remote(self) -> bool:
        """Whether the files are in remote storage."""
        return self._storage.is_remote

    @cached_property
    def row_groups(self) -> list[RowGroup]:
        """All row groups that have rows."""
        groups, offset = [], 0
        for file in self.files:
            with self._open(file) as opened:
                self._schemas[file] = opened.schema_arrow
                metadata = opened.metadata
            first_row = 0
            for index in range(metadata.num_row_groups):
                rows = metadata.row_group(index).num_rows
                if rows:
                    groups.append(RowGroup(file, index, first_row, offset + first_row, rows))
                first_row += rows
            offset += first_row
        if not groups:
            raise InputError(f"the Parquet files in {self.path} have no rows")
        return groups

    @property
    def num_rows(self) -> int:
        """Rows of all files."""
        return sum(group.num_rows for group in self.row_groups)

    @cached_property
    def empty_table(self) -> pa.Table:
        """The columns of the first file and of the folders, without rows."""
        with self._open(self.files[0]) as opened:
            schema = opened.schema_arrow
        for name, values in self._partitions.items():
            schema = schema.append(pa.field(name, values.type))
        return schema.empty_table()

    def read(
        self,
        group: RowGroup,
        kinds: Mapping[str, Kind],
        spec: TableSpec,
        chosen: NDArray[np.bool_] | None = None,
    ) -> Iterator[tuple[NDArray[np.int64], pd.DataFrame]]:
        """Yield the chosen rows of a row group in parts: their numbers in the group, their columns.

        Raises:
            InputError: If the file cannot be read, has changed, or ends before its last row.
        """
        columns = [name for name in kinds if name not in self._partitions]
        start = 0
        with self._open(group.file, self._texts(group.file, columns, kinds)) as file:
            for batch in file.iter_batches(
                _ROWS_AT_ONCE, row_groups=[group.index], columns=columns, use_threads=False
            ):
                numbers = np.arange(start, start + batch.num_rows)
                start += batch.num_rows
                if chosen is not None:
                    mask = chosen[numbers]
                    numbers, batch = numbers[mask], batch.filter(pa.array(mask))  # noqa: PLW2901
                yield numbers, make_frame(self._with_partitions(group.file, batch), kinds, spec)
        self._storage.check_unchanged(group.file)
        if start != group.num_rows:
            raise InputError(f"{self.path}/{group.file} ended after {start} of {group.num_rows} rows.")

    def _texts(self, file: str, columns: Sequence[str], kinds: Mapping[str, Kind]) -> list[str]:
        """Return the columns to read as categories; raise if one is not there or cannot be read."""
        schema = self._schemas[file]
        for name in columns:
            check_column(f"{self.path}/{file}", name, schema.names)
        texts = [name for name in columns if kinds[name] == "category"]
        for name in texts:
            check_scalar_type(name, schema.field(name).type)
        return texts

    def _with_partitions(self, file: str, batch: pa.RecordBatch) -> pa.Table:
        table = pa.Table.from_batches([batch])
        number = self.files.index(file) if self._partitions else 0
        for name, values in self._partitions.items():
            table = table.append_column(name, pa.repeat(values[number], batch.num_rows))
        return table

    @contextmanager
    def _open(self, file: str, texts: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
        # Remote ranges are fetched together; a local reader would hold the whole row group, compressed.
        options = (
            {"pre_buffer": True} if self.is_remote else {"buffer_size": _BUFFER_BYTES, "pre_buffer": False}
        )
        with self._storage.open(file) as source:
            opened = pq.ParquetFile(source, read_dictionary=list(texts), **options)
            check_names(f"{self.path}/{file}", [*opened.schema_arrow.names, *self._partitions])
            yield opened


def _is_parquet(file: PurePosixPath) -> bool:
    return file.suffix == ".parquet" and not any(part[0] in "._" for part in file.parts)


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
        encoder = fit.encoder(related)
        return cls(directory, spec, encoder, found.counts, seed, split, codes, found.group_values)

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
        label_values: Values of the target.
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


def parts_of_rows(group: RowGroup, seed: int, split: SplitShares) -> NDArray[np.int64]:
    """Return 0, 1 or 2 for the rows of a row group: train, val or test."""
    uniform, train, val = uniform_of_rows(seed, group), split[0], split[0] + split[1]
    return (uniform >= train).astype(np.int64) + (uniform >= val)


def uniform_of_rows(seed: int, group: RowGroup) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each row that depends on seed, file and row number only.

    Each number is a hash (splitmix64), so rows keep theirs when files are added or row groups change.
    """
    digest = hashlib.sha256(f"{seed} {group.file}".encode()).digest()
    key = np.uint64(int.from_bytes(digest[:8], "little"))
    rows = np.arange(group.first_row, group.first_row + group.num_rows, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = (rows + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + key
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def csv_to_parquet(
    path: Path,
    out: Path,
    *,
    encoding: str | None = None,
    delimiter: str = ",",
    missing_values: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
    progress: Progress | None = None,
) -> Path:
    """Convert a CSV file of any size to a directory of Parquet files, which is streamed in training.

    The cells stay the text that they are, and the metadata list which columns hold numbers only. So a
    column has the same kind, numbers and categories as if the CSV file were read into memory.

    Args:
        path: The CSV file, which may be compressed by gzip.
        out: The directory to write to; it must not hold Parquet files yet.
        encoding: Encoding of the file; by default UTF-8, with or without byte order mark.
        delimiter: Separator of the cells.
        missing_values: Cells that count as missing; by default empty ones, NA, NaN, null and the like.
        categorical: Columns to take as categories, whatever they look like.
        drop: Columns to leave out.
        progress: Called with the bytes read and the bytes of the file, in each of the two passes.

    Returns:
        The Parquet file in ``out``.

    Raises:
        InputError: If the file cannot be read, or a column holds numbers in most cells but not in all.
    """
    if any(out.rglob("*.parquet")):
        raise InputError(f"{out} holds Parquet files already: name another directory, or remove them.")
    missing = MISSING_VALUES if missing_values is None else ("", *missing_values)
    source = CsvFile(path, encoding, delimiter)
    for option, names in (("categorical", categorical), ("drop", drop)):
        for name in names:
            check_column(option, name, list(source.names.values()))
    source.names = {number: name for number, name in source.names.items() if name not in drop}
    found = {name: TextValues(missing) for name in source.names.values() if name not in categorical}
    for table in source.blocks(progress):
        for name, values in found.items():
            values.update(table.column(name))
    numeric = [name for name, values in found.items() if values.kind(name) == "number"]
    schema = pa.schema([(name, pa.string()) for name in source.names.values()])
    schema = schema.with_metadata({NUMERIC_TEXTS: json.dumps(numeric)})
    with writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
        target = out / f"{path.name.partition('.')[0]}.parquet"
        with replacing(target) as unfinished, pq.ParquetWriter(unfinished, schema) as writer:
            for table in source.blocks(progress):
                writer.write_table(table.replace_schema_metadata(schema.metadata))
    return target
