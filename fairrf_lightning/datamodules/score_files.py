"""Reads files of scores of any size, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from fairrf_lightning.datamodules.files import CsvFile
from fairrf_lightning.errors import InputError, first_line

PROBABILITIES = ("prob", "probability")  # `predict` writes the second
_BATCH_ROWS = 1 << 18
_BLOCK_BYTES = 1 << 24


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a CSV or Parquet file."""
    with reading(path):
        if is_parquet(path):
            return list(pq.read_schema(path).names)
        with arrow_csv.open_csv(path, csv_options()) as reader:
            return list(reader.schema.names)


def read_batches(path: Path) -> Iterator[pa.Table]:
    """Yield all columns of a Parquet file, or those of a CSV file as text, some rows at a time."""
    with reading(path):
        yield from parquet_batches(path) if is_parquet(path) else CsvFile(path).blocks()


def parquet_batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield columns of a Parquet file, some rows at a time."""
    with pq.ParquetFile(path, pre_buffer=False) as file:  # or pyarrow would hold the whole file
        for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
            yield pa.Table.from_batches([batch])


def csv_options() -> Any:
    """Return how CSV files are read: some rows at a time, by one thread."""
    return arrow_csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False)


def is_parquet(path: Path) -> bool:
    """Return whether a file is a Parquet file."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong when a file is read into an InputError that names it."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file or folder.")
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {first_line(error)}{_advice(error)}") from error


def _advice(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in text:
        return "; save the file as UTF-8 (it may be cp1252, as Windows writes it)."
    if "conversion error to double" in text:
        return "; expected numbers such as 0.25 in the columns of probabilities."
    return ""
