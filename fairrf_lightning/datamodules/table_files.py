"""Read a CSV or Parquet file as it is: no type is guessed and no row is lost on the way."""

from __future__ import annotations

import csv
import gzip
import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from lightning.pytorch.utilities import rank_zero_info

from fairrf_lightning.datamodules.large_files import announce_large
from fairrf_lightning.errors import InputError

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_BLOCK_BYTES = 1 << 24  # the longest line that can be read
PARQUET_MAGIC = b"PAR1"


class RawTable(NamedTuple):
    """A table as read; ``typed`` if its text columns hold text, which those of a CSV file may not."""

    table: pa.Table
    typed: bool
    checksum: str


def read_file(path: Path, encoding: str | None = None, delimiter: str = ",") -> RawTable:
    """Read a CSV file, which may be compressed by gzip, or a Parquet file."""
    try:
        announce_large(path, encoding, delimiter)
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"path: {path} cannot be read: {error.strerror or error}") from error
    checksum = hashlib.sha256(content).hexdigest()
    typed = content.startswith(PARQUET_MAGIC)
    if typed:
        table = _read_parquet(path, content)
    else:
        text = _decode(path, _unzip(path, content), encoding)
        del content  # each copy of a large file counts
        table = _read_csv(path, text, delimiter)
    if not table.num_rows:
        raise InputError(f"{path} has {table.num_columns} columns, but no rows")
    return RawTable(table, typed, checksum)


def check_names(path: Path, names: list[str]) -> None:
    """Refuse a table with two columns of one name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(f"{path} has more than one column '{twice[0]}': rename or remove all but one")


def _read_parquet(path: Path, content: bytes) -> pa.Table:
    try:
        table = pq.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is a damaged Parquet file: {first_line(error)}") from error
    check_names(path, table.column_names)
    return table


def _unzip(path: Path, content: bytes) -> bytes:
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is a damaged gzip file: {error}") from error


def _decode(path: Path, content: bytes, encoding: str | None) -> str:
    with decoding(path, encoding, content[:2]):
        text = content.decode(encoding or "utf-8-sig")
    text = text.removeprefix("\ufeff")
    check_no_nul(path, text)
    if not text.strip():
        raise InputError(_empty(path))
    return text


def _empty(path: Path) -> str:
    return f"{path} is empty: expected a line of column names and a line for each row"


@contextmanager
def decoding(path: Path, encoding: str | None, start: bytes) -> Iterator[None]:
    """Turn the errors of decoding a file, which begins with the bytes ``start``, into advice."""
    try:
        yield
    except LookupError:
        raise InputError(f"encoding: '{encoding}' is not known; common ones: utf-8, cp1252, utf-16") from None
    except UnicodeError as error:
        hint = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "cp1252 (Windows)"
        raise InputError(
            f"{path} is not encoded in {encoding or 'utf-8'} ({error}); say by the option encoding what it "
            f"is in, for example {hint}"
        ) from None


def check_no_nul(path: Path, text: str, lines_before: int = 0) -> None:
    """Raise if a text has a NUL character, which no CSV file has."""
    if (position := text.find("\0")) >= 0:
        line = lines_before + text.count("\n", 0, position) + 1
        raise InputError(
            f"{path} has a NUL character in line {line}: the file is damaged, no text, or in another "
            "encoding (option encoding, for example utf-16)"
        )


class CsvOptions(NamedTuple):
    """Options by which pyarrow reads a CSV file as text."""

    read: arrow_csv.ReadOptions
    parse: arrow_csv.ParseOptions
    convert: arrow_csv.ConvertOptions


def csv_options(path: Path, lines: Iterable[str], delimiter: str) -> tuple[list[str], CsvOptions]:
    """Return the names in the first line of a CSV file, and the options by which it is read."""
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise InputError(f"delimiter must be one ASCII character such as ',' or ';', not {delimiter!r}")
    try:
        header = next(csv.reader(lines, delimiter=delimiter), None)
    except csv.Error as error:
        raise InputError(f"{path}: the line of column names cannot be read: {error}") from error
    if header is None:
        raise InputError(_empty(path))
    return header, CsvOptions(
        arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
        arrow_csv.ParseOptions(
            delimiter=delimiter,
            newlines_in_values=True,
            # an empty line is a missing value where there is but one column
            ignore_empty_lines=len(header) > 1,
        ),
        arrow_csv.ConvertOptions(column_types=dict.fromkeys(header, pa.string())),
    )


def _read_csv(path: Path, text: str, delimiter: str) -> pa.Table:
    # Line by line: io.StringIO would take four bytes for each character of the file.
    lines = (match.group() for match in _LINE.finditer(text))
    header, options = csv_options(path, lines, delimiter)
    content = text.encode()
    del text, lines
    try:
        table = arrow_csv.read_csv(pa.BufferReader(content), *options)
    except pa.ArrowException as error:
        raise InputError(csv_error(path, error, header)) from error
    named = clean_names(path, table.column_names, delimiter)
    return table.select(list(named)).rename_columns(list(named.values()))


def csv_error(path: Path, error: BaseException, header: list[str]) -> str:
    """Return the message for a CSV file that pyarrow cannot read."""
    return f"{path}: {first_line(error)}{_other_delimiter(header)}"


def clean_names(path: Path, names: list[str], delimiter: str) -> dict[int, str]:
    """Return the number and the clean name of each column of a CSV file that has a name."""
    named = {number: name.strip() for number, name in enumerate(names) if name.strip()}
    if unnamed := len(names) - len(named):
        rank_zero_info(f"Data: {unnamed} column(s) of {path} have no name and are left out.")
    check_names(path, list(named.values()))
    if len(named) == 1 and (hint := _other_delimiter(list(named.values()), delimiter)):
        raise InputError(f"{path} has one column only{hint}")
    return named


def _other_delimiter(header: list[str], used: str = "") -> str:
    found = [mark for mark in (";", "\t", "|", ",") if mark != used and any(mark in name for name in header)]
    return f"; are its columns separated by {found[0]!r}? Then set the option delimiter" if found else ""


def first_line(error: BaseException) -> str:
    """Return the telling line of an error of pyarrow."""
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__
