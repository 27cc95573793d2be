"""A directory of Parquet files as one table that is never in memory as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fairrf_lightning.datamodules.table_columns import check_plain, make_frame
from fairrf_lightning.datamodules.table_files import check_names, first_line
from fairrf_lightning.datamodules.table_spec import Kind, TableSpec, check_column
from fairrf_lightning.errors import InputError

_ROWS_AT_ONCE = 1 << 15
_BUFFER_BYTES = 1 << 18  # else a reader holds the whole row group, compressed


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
    """The Parquet files below a directory, in the order of their names.

    Args:
        path: The directory; files and folders whose names begin with ``.`` or ``_`` are not read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._schemas: dict[str, pa.Schema] = {}
        self.files = sorted(
            file.relative_to(path).as_posix()
            for file in path.rglob("*.parquet")
            if file.is_file() and not any(part[0] in "._" for part in file.relative_to(path).parts)
        )
        if not self.files:
            raise InputError(f"path: the directory {path} holds no file whose name ends in .parquet")

    @cached_property
    def row_groups(self) -> list[RowGroup]:
        """All row groups that have rows."""
        groups, offset = [], 0
        for file in self.files:
            opened = self._open(file)
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
        """The columns of the first file, without rows."""
        schema = self._open(self.files[0]).schema_arrow
        check_names(self.path / self.files[0], schema.names)
        return schema.empty_table()

    @cached_property
    def checksum(self) -> str:
        """A checksum of the names and sizes of the files."""
        sizes = [f"{file} {(self.path / file).stat().st_size}" for file in self.files]
        return hashlib.sha256("\n".join(sizes).encode()).hexdigest()

    def read(
        self,
        group: RowGroup,
        kinds: Mapping[str, Kind],
        spec: TableSpec,
        chosen: NDArray[np.bool_] | None = None,
    ) -> Iterator[tuple[NDArray[np.int64], pd.DataFrame]]:
        """Yield the chosen rows of a row group in parts: their numbers in the group, their columns."""
        schema = self._schemas[group.file]
        texts = [name for name, kind in kinds.items() if kind == "category"]
        for name in kinds:
            check_column(str(self.path / group.file), name, schema.names)
        for name in texts:
            check_plain(name, schema.field(name).type)
        file = self._open(group.file, texts)
        start = 0
        try:
            for batch in file.iter_batches(
                _ROWS_AT_ONCE, row_groups=[group.index], columns=list(kinds), use_threads=False
            ):
                numbers = np.arange(start, start + batch.num_rows)
                start += batch.num_rows
                if chosen is not None:
                    mask = chosen[numbers]
                    numbers, batch = numbers[mask], batch.filter(pa.array(mask))  # noqa: PLW2901
                yield numbers, make_frame(pa.Table.from_batches([batch]), kinds, spec)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.path / group.file} cannot be read: {first_line(error)}") from error

    def _open(self, file: str, texts: Sequence[str] = ()) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(
                self.path / file, read_dictionary=list(texts), buffer_size=_BUFFER_BYTES, pre_buffer=False
            )
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.path / file} cannot be read: {first_line(error)}") from error


def uniform_of_rows(seed: int, group: RowGroup) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each row that follows from seed, file and row number alone.

    Each number is a hash (splitmix64), so rows keep theirs when files are added or row groups cut anew.
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
