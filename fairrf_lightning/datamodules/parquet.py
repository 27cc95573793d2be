"""Directories of Parquet files, on a local disk or in remote storage, which are read in parts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as arrow_dataset
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs

from fairrf_lightning.datamodules.columns import Kind, TableSpec, check_column, check_scalar_type, make_frame
from fairrf_lightning.datamodules.files import check_names
from fairrf_lightning.datamodules.loader import SplitShares
from fairrf_lightning.errors import InputError, first_line
from fairrf_lightning.files import is_address

_ROWS_AT_ONCE = 1 << 17
_BUFFER_BYTES = 1 << 18  # else a reader holds the whole row group, compressed
_GCS_RETRY_SECONDS = 60  # the default of Google's client is 15 minutes
_AWS_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_GCS_CREDENTIALS = ("GOOGLE_APPLICATION_CREDENTIALS",)
_DENIED = (
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY_ID",
    "SIGNATURE",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "OAUTH2",
)
_STORAGE_ERRORS: tuple[type[Exception], ...] = (pa.ArrowException, OSError, ImportError, ValueError)
_NO_SUPPORT = ("without", "not built with", "Unable to load", "Install ", "Protocol not known")


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
        self.is_remote = is_address(self.path)
        self._schemas: dict[str, pa.Schema] = {}
        self._versions: dict[str, Any] = {}
        self._storage_errors = _STORAGE_ERRORS
        if self.is_remote and (address := urlsplit(self.path)).password is not None:
            raise InputError(
                f"path: the address of {address.hostname} holds a secret, which checkpoints would keep. "
                "Give credentials by the environment or by the configuration files of the storage."
            )
        found = self._sizes()
        self.files = sorted(file for file in found if _is_parquet(PurePosixPath(file)))
        if not self.files:
            raise InputError(f"path: the directory {self.path} holds no file whose name ends in .parquet")
        sizes = [f"{file} {found[file]}" for file in self.files]
        self.checksum = hashlib.sha256("\n".join(sizes).encode()).hexdigest()  # of names and sizes
        self._partitions = self._read_partitions()

    @cached_property
    def row_groups(self) -> list[RowGroup]:
        """All row groups that have rows."""
        groups, offset = [], 0
        for file in self.files:
            with self._open_parquet(file) as opened:
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
        with self._open_parquet(self.files[0]) as opened:
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
        with self._open_parquet(group.file, self._texts(group.file, columns, kinds)) as file:
            for batch in file.iter_batches(
                _ROWS_AT_ONCE, row_groups=[group.index], columns=columns, use_threads=False
            ):
                numbers = np.arange(start, start + batch.num_rows)
                start += batch.num_rows
                if chosen is not None:
                    mask = chosen[numbers]
                    numbers, batch = numbers[mask], batch.filter(pa.array(mask))  # noqa: PLW2901
                yield numbers, make_frame(self._with_partitions(group.file, batch), kinds, spec)
        with self._open_file(group.file):
            pass  # it has not changed
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
    def _open_parquet(self, file: str, texts: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
        # Remote ranges are fetched together; a local reader would hold the whole row group, compressed.
        options = (
            {"pre_buffer": True} if self.is_remote else {"buffer_size": _BUFFER_BYTES, "pre_buffer": False}
        )
        with self._open_file(file) as source:
            opened = pq.ParquetFile(source, read_dictionary=list(texts), **options)
            check_names(f"{self.path}/{file}", [*opened.schema_arrow.names, *self._partitions])
            yield opened

    @cached_property
    def _root(self) -> tuple[fs.FileSystem, str]:
        if not self.is_remote:
            return fs.LocalFileSystem(), str(Path(self.path).absolute())
        if self.path.startswith(("http://", "https://")):
            raise InputError(f"path: {self.path} is a download: give it by url and sha256.")
        address = self.path
        if address.startswith(("gs://", "gcs://")) and "retry_limit_seconds" not in address:
            address += f"{'&' if '?' in address else '?'}retry_limit_seconds={_GCS_RETRY_SECONDS}"
        try:
            system, root = fs.FileSystem.from_uri(address)
        except pa.ArrowInvalid:  # an address that Arrow does not know
            from fsspec.core import url_to_fs  # noqa: PLC0415 - seldom needed

            self._storage_errors = (Exception,)  # each of its storages raises errors of its own
            try:
                found, root = url_to_fs(address)
            except ValueError as error:
                raise ImportError(first_line(error)) from error
            system = fs.PyFileSystem(fs.FSSpecHandler(found))
        return system, root.rstrip("/")

    def _sizes(self) -> dict[str, int]:
        """Return the files below the folder, or the file itself, with their sizes in bytes."""
        with self._explained(self.path):
            system, root = self._root
            itself = system.get_file_info(root)
            if itself.is_file:
                self._root = system, str(Path(root).parent)
                return {itself.base_name: itself.size}
            found = system.get_file_info(fs.FileSelector(root, recursive=True))
        return {info.path[len(root) + 1 :]: info.size for info in found if info.is_file}

    def _read_partitions(self) -> dict[str, pa.Array]:
        """Return the columns of partitioned folders (``year=2024/``): one value per file, typed by Arrow."""
        if not any("=" in Path(file).parent.as_posix() for file in self.files):
            return {}
        with self._explained(self.path):
            system, root = self._root
            paths = [f"{root}/{file}" for file in self.files]
            found = arrow_dataset.dataset(
                paths, filesystem=system, format="parquet", partitioning="hive", partition_base_dir=root
            )
            folders = {
                part.path: arrow_dataset.get_partition_keys(part.partition_expression)
                for part in found.get_fragments()
            }
        names = dict.fromkeys(name for folder in folders.values() for name in folder)
        return {
            name: pa.array([folders[path].get(name) for path in paths], found.schema.field(name).type)
            for name in sorted(names, key=found.schema.names.index)
        }

    @contextmanager
    def _open_file(self, file: str) -> Iterator[pa.NativeFile]:
        """Open a file; raise if it cannot be read, or is not the one that was first opened."""
        with self._explained(f"{self.path}/{file}"):
            system, root = self._root
            with system.open_input_file(f"{root}/{file}") as source:
                version = source.metadata()  # of an object: size, time, ETag
                if not version:
                    info = system.get_file_info(f"{root}/{file}")
                    version = (info.size, info.mtime_ns)
                if self._versions.setdefault(file, version) != version:
                    raise InputError(
                        f"{self.path}/{file} has changed since the run began, so its rows are not those that "
                        "were counted.\nTrain again on files that stay as they are."
                    )
                yield source

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except self._storage_errors as error:
            # pyarrow calls a file in GCS that it cannot open closed, without the reason.
            ours = isinstance(error, ValueError) and not isinstance(error, pa.ArrowException)
            if ours and "closed file" not in str(error):
                raise
            raise InputError(_explanation(what, error, is_remote=self.is_remote)) from error


def _is_parquet(file: PurePosixPath) -> bool:
    return file.suffix == ".parquet" and not any(part[0] in "._" for part in file.parts)


def parts_of_rows(group: RowGroup, seed: int, split: SplitShares) -> NDArray[np.int8]:
    """Return 0, 1 or 2 for the rows of a row group: train, val or test."""
    uniform, train, val = uniform_of_rows(seed, group), split[0], split[0] + split[1]
    return np.add(uniform >= train, uniform >= val, dtype=np.int8)


def uniform_of_rows(seed: int, group: RowGroup) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each row that depends on seed, file and row number only.

    Each number is a hash (splitmix64), so rows keep theirs when files are added or row groups change.
    """
    digest = hashlib.sha256(f"{seed} {group.file}".encode()).digest()
    key = np.uint64(int.from_bytes(digest[:8], "little"))
    mixed = np.arange(group.first_row + 1, group.first_row + 1 + group.num_rows, dtype=np.uint64)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed += key
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    mixed >>= np.uint64(11)
    return mixed.astype(np.float64) * 2.0**-53


def _explanation(what: str, error: Exception, *, is_remote: bool) -> str:
    text = first_line(error).replace("I/O operation on closed file", "the storage did not send the file")
    scheme = what.partition("://")[0]
    if not is_remote:
        return f"{what} cannot be read: {text}"
    if any(part in str(error) for part in _NO_SUPPORT):
        needs = "Java and Hadoop (JAVA_HOME, HADOOP_HOME, CLASSPATH)" if scheme == "hdfs" else "a package"
        return f"path: {what}: reading {scheme}:// needs {needs} that this installation lacks: {text}"
    if "NO_SUCH_BUCKET" in text:
        return f"path: {what}: there is no such bucket."
    if isinstance(error, PermissionError) or any(part in text.upper() for part in _DENIED):
        return f"path: {what}: access is denied.\n{_credentials_advice(scheme)}"
    if isinstance(error, FileNotFoundError) or "No such file" in text:  # of GCS, it is a plain OSError
        return f"path: {what} does not exist."
    return f"{what} cannot be read: {text}\nA run that this has ended can resume from its last checkpoint."


def _credentials_advice(scheme: str) -> str:
    if scheme == "s3" and not _has_credentials(_AWS_CREDENTIALS, "~/.aws"):
        return "There are no credentials in AWS_ACCESS_KEY_ID, AWS_PROFILE or ~/.aws."
    if scheme in {"gs", "gcs"} and not _has_credentials(_GCS_CREDENTIALS, "~/.config/gcloud"):
        return "There are no credentials in GOOGLE_APPLICATION_CREDENTIALS or of gcloud."
    return "The credentials in force must be allowed to list the folder and to read its files."


def _has_credentials(variables: Sequence[str], folder: str) -> bool:
    return any(name in os.environ for name in variables) or Path(folder).expanduser().exists()
