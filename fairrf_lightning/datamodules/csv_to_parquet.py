"""Convert a CSV file of any size to a directory of Parquet files, which is streamed in training.

The cells stay the text that they are in the file, and the file notes which columns hold numbers only. So
a column has the same kind, numbers and categories as if the CSV file were read into memory.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import IO

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import Progress

from fairrf_lightning.datamodules.table_columns import NUMERIC_TEXTS, TextValues
from fairrf_lightning.datamodules.table_files import (
    PARQUET_MAGIC,
    check_no_nul,
    clean_names,
    csv_error,
    csv_options,
    decoding,
)
from fairrf_lightning.datamodules.table_spec import MISSING_VALUES, check_column
from fairrf_lightning.errors import InputError, writing_to
from fairrf_lightning.files import replacing
from fairrf_lightning.option_parser import OptionParser

_Seen = Callable[[int], None]


def csv_to_parquet(
    path: Path,
    out: Path,
    *,
    encoding: str | None = None,
    delimiter: str = ",",
    missing_values: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> Path:
    """Convert a CSV file, which may be compressed by gzip, in memory that does not grow with the file.

    Args:
        path: The CSV file.
        out: The directory to write to; it must not hold Parquet files yet.
        encoding: Encoding of the file; by default UTF-8, with or without byte order mark.
        delimiter: Separator of the cells.
        missing_values: Cells that count as missing, as in :class:`TableDataModule`.
        categorical: Columns to take as categories, whatever they look like.
        drop: Columns to leave out.

    Returns:
        The Parquet file in ``out``.

    Raises:
        InputError: If the file cannot be read, or a column holds numbers in most cells but not in all.
    """
    if any(out.rglob("*.parquet")):
        raise InputError(f"{out} holds Parquet files already: name another directory, or remove them.")
    missing = MISSING_VALUES if missing_values is None else ("", *missing_values)
    source = _CsvFile(path, encoding, delimiter)
    for option, names in (("categorical", categorical), ("drop", drop)):
        for name in names:
            check_column(option, name, list(source.names.values()))
    source.names = {number: name for number, name in source.names.items() if name not in drop}
    found = {name: TextValues(missing) for name in source.names.values() if name not in categorical}
    for table in source.blocks("finding the numbers"):
        for name, values in found.items():
            values.update(table.column(name))
    numeric = [name for name, values in found.items() if values.kind(name) == "number"]
    schema = pa.schema([(name, pa.string()) for name in source.names.values()])
    schema = schema.with_metadata({NUMERIC_TEXTS: json.dumps(numeric)})
    with writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
        target = out / f"{path.name.partition('.')[0]}.parquet"
        with replacing(target) as unfinished, pq.ParquetWriter(unfinished, schema) as writer:
            for table in source.blocks("writing"):
                writer.write_table(table.replace_schema_metadata(schema.metadata))
    return target


def run_to_parquet(args: list[str]) -> None:
    """Run the command ``to_parquet``."""
    parser = OptionParser(prog="to_parquet", description="Convert a large CSV file, so that it is streamed.")
    add = parser.add_argument
    add("path", type=Path, help="CSV file, which may be compressed by gzip.")
    add("out", type=Path, help="Directory to write to.")
    add("--encoding", help="Encoding of the file; UTF-8 by default.")
    add("--delimiter", default=",", help="Separator of the cells.")
    add("--missing_values", nargs="*", help="Cells that count as missing; empty ones, NA, NaN by default.")
    add("--categorical", nargs="*", default=[], help="Columns to take as categories.")
    add("--drop", nargs="*", default=[], help="Columns to leave out.")
    written = csv_to_parquet(**vars(parser.parse_args(args)))
    rows = pq.read_metadata(written).num_rows
    folder = written.parent
    print(f"{rows:,} rows are in {folder}. Train on them: --data table --data.path {quote(str(folder))}")  # noqa: T201


class _CsvFile:
    """The text cells of a CSV file, block by block.

    Args:
        path: The file.
        encoding: Its encoding.
        delimiter: Separator of the cells.
    """

    def __init__(self, path: Path, encoding: str | None, delimiter: str) -> None:
        self.path, self.encoding = path, encoding
        with self._text(lambda _: None) as file:
            lines = io.TextIOWrapper(file, encoding="utf-8", newline="")
            self.header, self.options = csv_options(path, lines, delimiter)
        with self._text(lambda _: None) as file, self._explained():
            names = arrow_csv.open_csv(pa.PythonFile(file, "r"), *self.options).schema.names
        self.names = clean_names(path, names, delimiter)

    def blocks(self, what: str) -> Iterator[pa.Table]:
        """Yield the named columns of some rows, with a progress bar on stderr."""
        rows = 0
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(f"{self.path.name}: {what}", total=self.path.stat().st_size)
            with self._text(lambda position: progress.update(task, completed=position)) as file:
                for batch in self._batches(file):
                    rows += batch.num_rows
                    table = pa.Table.from_batches([batch]).select(list(self.names))
                    yield table.rename_columns(list(self.names.values()))
        if not rows:
            raise InputError(f"{self.path} has {len(self.names)} columns, but no rows")

    def _batches(self, file: IO[bytes]) -> Iterator[pa.RecordBatch]:
        with self._explained():
            yield from arrow_csv.open_csv(pa.PythonFile(file, "r"), *self.options)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except pa.ArrowException as error:
            raise InputError(csv_error(self.path, error, self.header)) from error

    @contextmanager
    def _text(self, seen: _Seen) -> Iterator[IO[bytes]]:
        try:
            with self.path.open("rb") as raw:
                start = raw.read(4)
                raw.seek(0)
                if start == PARQUET_MAGIC:
                    raise InputError(f"{self.path} is a Parquet file already: give its directory as path.")
                is_packed = start.startswith(b"\x1f\x8b")
                content: IO[bytes] = gzip.open(raw) if is_packed else raw  # type: ignore[assignment]  # noqa: SIM115
                with io.BufferedReader(_Utf8(self.path, content, raw, self.encoding, seen)) as file:
                    yield file
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"path: {self.path} cannot be read: {error}") from error


class _Utf8(io.RawIOBase):
    """A text file in UTF-8, whatever its encoding; checks its characters on the way.

    Args:
        path: The file, for messages.
        content: Its bytes, unpacked.
        raw: The file as it is on disk, for its position.
        encoding: Its encoding.
        seen: Called with the position in the file on disk.
    """

    def __init__(
        self, path: Path, content: IO[bytes], raw: IO[bytes], encoding: str | None, seen: _Seen
    ) -> None:
        self._path, self._content, self._raw, self._encoding, self._seen = path, content, raw, encoding, seen
        self._start: bytes | None = None
        with decoding(path, encoding, b""):
            self._decoder = codecs.getincrementaldecoder(encoding or "utf-8-sig")()
        self._pending = b""
        self._lines = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._pending:
            chunk = self._content.read(1 << 20)
            first, self._start = self._start is None, self._start or chunk[:2]
            with decoding(self._path, self._encoding, self._start):
                text = self._decoder.decode(chunk, final=not chunk)
            text = text.removeprefix("\ufeff") if first else text
            check_no_nul(self._path, text, self._lines)
            self._lines += text.count("\n")
            self._pending = text.encode()
            self._seen(self._raw.tell())
            if not chunk:
                break
        taken, self._pending = self._pending[: len(buffer)], self._pending[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)
