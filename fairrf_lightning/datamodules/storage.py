"""Files of a folder on a local disk or in remote storage, through ``pyarrow.fs`` and fsspec."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.dataset as arrow_dataset
from pyarrow import fs

from fairrf_lightning.errors import InputError, first_line
from fairrf_lightning.files import is_address

_GCS_RETRY_SECONDS = 60  # the default of Google's client is 15 minutes
_AWS_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_DENIED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE", "PERMISSION_DENIED", "UNAUTHENTICATED")
_NO_SUPPORT = ("without", "not built with", "Unable to load", "Install ", "Protocol not known")


class Storage:
    """The folder that a path or an address names.

    Args:
        path: Local path, or an address such as ``s3://bucket/folder``.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_remote = is_address(path)
        self._versions: dict[str, Any] = {}
        if self.is_remote and urlsplit(path).password is not None:
            raise InputError(
                f"path: the address of {urlsplit(path).hostname} holds a secret, which checkpoints would "
                "keep. Give credentials by the environment or by the configuration files of the storage."
            )

    @cached_property
    def _opened(self) -> tuple[fs.FileSystem, str]:
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

            try:
                found, root = url_to_fs(address)
            except ValueError as error:
                raise ImportError(first_line(error)) from error
            system = fs.PyFileSystem(fs.FSSpecHandler(found))
        return system, root.rstrip("/")

    def sizes(self) -> dict[str, int]:
        """Return the files below the folder, or the file itself, with their sizes in bytes."""
        with self._explained(self.path):
            system, root = self._opened
            itself = system.get_file_info(root)
            if itself.is_file:
                self._opened = system, str(Path(root).parent)
                return {itself.base_name: itself.size}
            found = system.get_file_info(fs.FileSelector(root, recursive=True))
        return {info.path[len(root) + 1 :]: info.size for info in found if info.is_file}

    def partitions(self, files: Sequence[str]) -> dict[str, pa.Array]:
        """Return the columns of partitioned folders (``year=2024/``): one value per file, typed by Arrow."""
        if not any("=" in Path(file).parent.as_posix() for file in files):
            return {}
        with self._explained(self.path):
            system, root = self._opened
            paths = [f"{root}/{file}" for file in files]
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
    def open(self, file: str) -> Iterator[pa.NativeFile]:
        """Open a file for reading.

        Raises:
            InputError: If it cannot be read, or is not the same file as when it was first opened.
        """
        with self._explained(f"{self.path}/{file}"):
            system, root = self._opened
            with system.open_input_file(f"{root}/{file}") as source:
                self._check_version(file, source)
                yield source

    def check_unchanged(self, file: str) -> None:
        """Raise if a file is not the same as when it was first opened."""
        with self.open(file):
            pass

    def _check_version(self, file: str, source: pa.NativeFile) -> None:
        version = source.metadata()  # of an object: size, time, ETag
        if not version:
            system, root = self._opened
            info = system.get_file_info(f"{root}/{file}")
            version = (info.size, info.mtime_ns)
        if self._versions.setdefault(file, version) != version:
            raise InputError(
                f"{self.path}/{file} has changed since the run began, so its rows are not those that were "
                "counted.\nTrain again on files that stay as they are."
            )

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, ImportError) as error:
            raise InputError(_explanation(what, error, is_remote=self.is_remote)) from error


def _explanation(what: str, error: Exception, *, is_remote: bool) -> str:
    text = first_line(error)
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
    if isinstance(error, FileNotFoundError):
        return f"path: {what} does not exist."
    return f"{what} cannot be read: {text}\nA run that this has ended can resume from its last checkpoint."


def _credentials_advice(scheme: str) -> str:
    found = any(name in os.environ for name in _AWS_CREDENTIALS) or Path("~/.aws").expanduser().exists()
    if scheme == "s3" and not found:
        return "There are no credentials in AWS_ACCESS_KEY_ID, AWS_PROFILE or ~/.aws."
    return "The credentials in force must be allowed to list the folder and to read its files."
