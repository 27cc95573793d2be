"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path`` and rename it to ``path`` if the block succeeds.

    The temporary file is synced to disk before the rename, so that a crash leaves either the previous
    file or the new one. If the block raises, the previous file stays and the temporary one is deleted.

    Args:
        path: The file to write. Its folder must exist.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with replacing(target) as unfinished:
    ...     _ = unfinished.write_text("all of it")
    >>> target.read_text()
    'all of it'
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    unfinished = Path(name)
    try:
        # mkstemp makes files private; a written file has the permissions that open() would give.
        unfinished.chmod(0o666 & ~_umask())
        yield unfinished
        _sync(unfinished, os.O_RDWR)  # Windows syncs no file that is open for reading only
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    with suppress(OSError):  # not every file system can sync a folder
        _sync(path.parent, os.O_RDONLY)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
