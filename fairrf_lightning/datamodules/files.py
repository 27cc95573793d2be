"""Reads a CSV or Parquet file as it is, without guessing types, and converts CSV to Parquet."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pooch
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from lightning.pytorch.utilities import rank_zero_info

from fairrf_lightning.datamodules.columns import MISSING_VALUES, NUMERIC_TEXTS, TextValues, check_column
from fairrf_lightning.errors import InputError, first_line, writing_to
from fairrf_lightning.files import replacing
from fairrf_lightning.messages import shell_command

_BLOCK_BYTES = 1 << 24  # the longest line that can be read
_MAX_COPIED_BYTES = 32 << 20
_LARGE_BYTES = 1 << 28
_MEMORY_PER_BYTE = 5  # at least, see benchmarks/csv_memory.py; each category takes more
_MAX_GZIP_RATIO = 1032
_PARQUET_MAGIC = b"PAR1"
_GZIP_MAGIC = b"\x1f\x8b"
_UTF16_MAGIC = (b"\xff\xfe", b"\xfe\xff")
_EXCEL_MAGIC = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")

Progress = Callable[[int, int], None]  # bytes read, bytes of the file


class RawTable(NamedTuple):
    """A table as read; ``typed`` if its text columns hold text, which those of a CSV file may not."""

    table: pa.Table
    typed: bool
    checksum: str


def read_file(path: Path, encoding: str | None = None, delimiter: str = ",") -> RawTable:
    """Read a CSV file, which may be compressed by gzip, or a Parquet file."""
    announce_large(path, encoding, delimiter)
    typed = _first_bytes(path) == _PARQUET_MAGIC
    table = _read_parquet(path) if typed else pa.concat_tables(CsvFile(path, encoding, delimiter).blocks())
    return RawTable(table, typed, str(pooch.file_hash(str(path))))


def _read_parquet(path: Path) -> pa.Table:
    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is a damaged Parquet file: {first_line(error)}") from error
    check_names(path, table.column_names)
    if not table.num_rows:
        raise _no_rows(path, table.num_columns)
    return table


class CsvFile:
    """The cells of a CSV file as text, in blocks of rows.

    Args:
        path: The file, which may be compressed by gzip.
        encoding: Its encoding; by default UTF-8, with or without byte order mark.
        delimiter: Separator of the cells.

    Raises:
        InputError: If it is not a CSV file, or its first line does not name the columns.
    """

    def __init__(self, path: Path, encoding: str | None = None, delimiter: str = ",") -> None:
        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise InputError(f"delimiter must be one ASCII character such as ',' or ';', not {delimiter!r}")
        self.path, self.encoding, self.delimiter = path, encoding, delimiter
        self._start = _first_bytes(path)
        if self._start == _PARQUET_MAGIC:
            raise InputError(f"{path} is a Parquet file already: give its directory as path.")
        if self._start in _EXCEL_MAGIC:
            raise InputError(
                f"{path} is an Excel workbook or another archive, not a CSV file. "
                "Save the sheet as CSV (UTF-8) and give that file."
            )
        self._header: list[str] = []
        with self._reader() as (reader, _):
            self._header = reader.schema.names
        self.names = self._named_columns()

    def blocks(self, progress: Progress | None = None) -> Iterator[pa.Table]:
        """Yield the columns that have a name, some rows at a time; call ``progress`` in between."""
        rows, size = 0, self.path.stat().st_size
        with self._reader() as (reader, file):
            for batch in reader:
                table = pa.Table.from_batches([batch]).select(list(self.names))
                self._check_text(table, rows)
                rows += batch.num_rows
                yield table.rename_columns(list(self.names.values()))
                if progress is not None:
                    progress(file.tell(), size)
        if not rows:
            raise _no_rows(self.path, len(self.names))

    def _named_columns(self) -> dict[int, str]:
        """Return number and name, without outer blanks, of each column that has a name."""
        named = {number: name.strip() for number, name in enumerate(self._header) if name.strip()}
        if unnamed := len(self._header) - len(named):
            rank_zero_info(f"Data: {unnamed} column(s) of {self.path} have no name and are left out.")
        check_names(self.path, list(named.values()))
        if len(named) == 1 and (hint := self._delimiter_hint()):
            raise InputError(f"{self.path} has one column only{hint}")
        return named

    @contextmanager
    def _reader(self) -> Iterator[tuple[arrow_csv.CSVStreamingReader, pa.NativeFile]]:
        """Open the file, and explain the errors of Arrow."""
        if self.encoding is None and self._start[:2] in _UTF16_MAGIC:
            raise self._other_encoding("it has the byte order mark of utf-16")
        types = dict.fromkeys(self._header, pa.string())  # cells stay the text that they are
        try:
            with pa.OSFile(str(self.path)) as file:
                yield (
                    arrow_csv.open_csv(
                        self._utf8(file),
                        arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
                        arrow_csv.ParseOptions(
                            delimiter=self.delimiter,
                            newlines_in_values=True,
                            # An empty line of a file with a single column is a missing value.
                            ignore_empty_lines=len(self._header) != 1,
                        ),
                        arrow_csv.ConvertOptions(column_types=types),
                    ),
                    file,
                )
        except UnicodeError as error:
            raise self._other_encoding(str(error)) from None
        except pa.ArrowException as error:
            head = self._head()
            if "UTF8" in str(error) or "\N{REPLACEMENT CHARACTER}" in head[:-1]:
                raise self._other_encoding(first_line(error)) from None
            if "\0" in head:
                raise self._has_nul(head.partition("\0")[0].count("\n") + 1) from None
            if "cannot infer number of columns" in str(error) or "Empty CSV" in str(error):
                raise InputError(
                    f"{self.path} is empty or a single line: expected a line of column names, then the rows"
                ) from None
            raise InputError(f"{self.path}: {first_line(error)}{self._delimiter_hint()}") from error
        except OSError as error:
            kind = "is a damaged gzip file" if self._start[:2] == _GZIP_MAGIC else "cannot be read"
            raise InputError(f"{self.path} {kind}: {first_line(error)}") from error

    def _utf8(self, file: pa.NativeFile) -> pa.NativeFile:
        content = pa.CompressedInputStream(file, "gzip") if self._start[:2] == _GZIP_MAGIC else file
        if self.encoding is None:
            return content
        try:
            decoded = pa.transcoding_input_stream(content, self.encoding, "utf-8")
        except LookupError:
            raise InputError(
                f"encoding: '{self.encoding}' is not known; common ones: utf-8, cp1252, utf-16"
            ) from None
        # A thread of Arrow that still holds Python's decoder when the program ends would abort it.
        small = self.path.stat().st_size <= _MAX_COPIED_BYTES
        return pa.BufferReader(decoded.read()) if small else decoded

    def _check_text(self, table: pa.Table, rows: int) -> None:
        """Raise if a name, or a cell of a block that begins after ``rows`` rows, has a NUL character."""
        for name, column in zip(table.column_names, table.columns, strict=True):
            row = pc.index(pc.match_substring(column, "\0"), pa.scalar(value=True)).as_py()
            if row >= 0 or "\0" in name:
                raise self._has_nul(rows + row + 2)

    def _has_nul(self, row: int) -> InputError:
        return InputError(
            f"{self.path} has a NUL character in row {row}: the file is damaged, no text, or in another "
            "encoding (option encoding, for example utf-16)"
        )

    def _other_encoding(self, found: str) -> InputError:
        hint = "utf-16" if self._start[:2] in _UTF16_MAGIC else "cp1252 (Windows)"
        return InputError(
            f"{self.path} is not encoded in {self.encoding or 'utf-8'} ({found}); say by the option "
            f"encoding what it is in, for example {hint}"
        )

    def _delimiter_hint(self) -> str:
        """Return a question if the first line seems to have another delimiter."""
        line, _, _ = self._head().partition("\n")
        found = [mark for mark in ";\t|," if mark in line]
        if self.delimiter in line or not found:
            return ""
        return f"; are its columns separated by {found[0]!r}? Then set the option delimiter"

    def _head(self) -> str:
        """Return the beginning of the file, or nothing if it cannot be read."""
        with suppress(OSError, UnicodeError), pa.OSFile(str(self.path)) as file:
            return str(self._utf8(file).read(1 << 16), errors="replace")
        return ""


def _first_bytes(path: Path) -> bytes:
    """Return the bytes that tell the format of a file."""
    try:
        with path.open("rb") as file:
            return file.read(4)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def check_names(path: Path | str, names: list[str]) -> None:
    """Raise if a table has two columns of one name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(
            f"{path} has more than one column '{twice[0]}': keep one of them and rename or remove the others"
        )


def _no_rows(path: Path, num_columns: int) -> InputError:
    return InputError(f"{path} has {num_columns} columns, but no rows")


def announce_large(path: Path, encoding: str | None = None, delimiter: str = ",") -> None:
    """Print what reading a large CSV file takes, and the command that converts it to be streamed instead.

    Raises:
        InputError: If less memory is available than that.
    """
    size = csv_bytes(path)
    if size < _LARGE_BYTES:
        return
    needed, available = _MEMORY_PER_BYTE * size, available_memory()
    options = ([] if encoding is None else ["--encoding", encoding]) + (
        [] if delimiter == "," else ["--delimiter", delimiter]
    )
    advice = shell_command("to_parquet", path, f"{path.name.partition('.')[0]}_parquet", *options)
    if available is not None and available < needed:
        raise InputError(
            f"{path}: {_gigabytes(size)} of CSV take {_gigabytes(needed)} of memory or more; "
            f"{_gigabytes(available)} are available.\n"
            f"Convert it once to a directory of Parquet files, which is streamed: {advice}\n"
            "Then give that directory as path."
        )
    rank_zero_info(
        f"Data: reading {path}: {_gigabytes(size)} of CSV, which takes some minutes and "
        f"{_gigabytes(needed)} of memory or more. To have it streamed instead, convert it once: {advice}"
    )


def csv_bytes(path: Path) -> int:
    """Return the size of a CSV file when unpacked; 0 for a Parquet file, which is compact."""
    start, size = _first_bytes(path), path.stat().st_size
    if start == _PARQUET_MAGIC:
        return 0
    if not start.startswith(_GZIP_MAGIC) or size < 8:
        return size
    with path.open("rb") as file:
        file.seek(-4, 2)  # the unpacked size, modulo 4 GiB
        unpacked = int.from_bytes(file.read(4), "little")
    return max(size, unpacked) if unpacked <= size * _MAX_GZIP_RATIO else size  # else it is damaged


def available_memory() -> int | None:
    """Return the bytes that this process may still take; ``None`` if the system does not say."""
    limits: list[int] = []
    for limit in (_free_memory, _control_group, _address_space):
        with suppress(ImportError, OSError, ValueError, StopIteration):
            limits.append(max(0, limit()))
    return min(limits, default=None)


def _free_memory() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _control_group() -> int:
    limit, used = (Path("/sys/fs/cgroup", f"memory.{name}").read_text("ascii") for name in ("max", "current"))
    return int(limit) - int(used)  # without a limit the text is "max": ValueError


def _address_space() -> int:
    import resource  # noqa: PLC0415 - Windows has no such module

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        raise ValueError
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return limit - used * resource.getpagesize()


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


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
