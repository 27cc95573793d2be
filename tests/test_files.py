from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import pytest

from fairrf_lightning.files import replacing, write_text


def test_a_failed_write_keeps_the_previous_file_and_leaves_no_other(tmp_path: Path) -> None:
    write_text(tmp_path / "notes.txt", "before")

    with pytest.raises(OSError, match="full"):
        _fill_the_disk(tmp_path / "notes.txt")

    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "before"


def test_the_temporary_file_is_next_to_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/nonexistent")

    with replacing(tmp_path / "notes.txt") as unfinished:
        assert unfinished.parent == tmp_path


def test_a_file_is_synced_as_windows_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows refuses to sync a file that is open for reading only."""
    sync = os.fsync

    def sync_as_windows(handle: int) -> None:
        if not fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_RDWR:
            raise OSError(9, "Bad file descriptor")
        sync(handle)

    monkeypatch.setattr(os, "fsync", sync_as_windows)
    write_text(tmp_path / "notes.txt", "text")
    assert (tmp_path / "notes.txt").read_text() == "text"


def test_a_written_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "other.txt").touch()
    write_text(tmp_path / "notes.txt", "text")

    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("notes.txt", "other.txt")}
    assert len(modes) == 1


def _fill_the_disk(path: Path) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text("half of")
        raise OSError("disk full")
