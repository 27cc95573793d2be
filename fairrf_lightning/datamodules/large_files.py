"""Memory that a large CSV file needs, announced before it is read."""

from __future__ import annotations

import sys
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_info

from fairrf_lightning.errors import InputError
from fairrf_lightning.printed_command import shell_command

if sys.platform != "win32":
    import resource

_LARGE_BYTES = 1 << 28
_MEMORY_PER_BYTE = 5  # at least, see benchmarks/csv_memory.py; each category takes more
_GZIP_MAGIC, _PARQUET_MAGIC = b"\x1f\x8b", b"PAR1"


def announce_large(path: Path, encoding: str | None = None, delimiter: str = ",") -> None:
    """Print what reading a large CSV file takes and the command that has it streamed instead.

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
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(4)
        if start == _PARQUET_MAGIC:
            return 0
        if not start.startswith(_GZIP_MAGIC) or size < 8:
            return size
        file.seek(-4, 2)  # the unpacked size, modulo 4 GiB
        return max(size, int.from_bytes(file.read(4), "little"))


def available_memory() -> int | None:
    """Return the bytes that this process may still take; ``None`` if the system does not tell."""
    limits = [limit for limit in (_free_memory(), _control_group(), _address_space()) if limit is not None]
    return min(limits, default=None)


def _free_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _control_group() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        most, used = (
            (folder / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current")
        )
        return max(0, int(most) - int(used))
    except (OSError, ValueError):  # "max": no limit
        return None


def _address_space() -> int | None:
    if sys.platform == "win32":
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        used = 0
    return max(0, limit - used)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
