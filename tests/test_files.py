from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairrf_lightning.cli import main
from fairrf_lightning.files import replacing, without_formula, write_csv, write_text


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


FORMULAS = [
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3+cmd|' /C calc'!A0",
    "@SUM(1)",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    "\N{FULLWIDTH EQUALS SIGN}1+1",
]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_gets_an_apostrophe(text: str) -> None:
    assert without_formula(text) == f"'{text}"


@pytest.mark.parametrize("value", ["-0.5", "+3", "-1e-3", "-.5", "a=b", "a-b", "", -0.5, 3, None, True])
def test_numbers_and_plain_names_stay(value: object) -> None:
    assert without_formula(value) == value


def test_a_table_keeps_its_numbers(tmp_path: Path) -> None:
    frame = pd.DataFrame({"=name": ["=a", "b", "-7"], "value": [-0.5, np.nan, -1e-9], "count": [1, 2, 3]})
    write_csv(frame, tmp_path / "t.csv")
    found = pd.read_csv(tmp_path / "t.csv")
    assert list(found["'=name"]) == ["'=a", "b", "-7"]
    pd.testing.assert_frame_equal(found[["value", "count"]], frame[["value", "count"]])
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_numbers_of_single_precision_keep_their_digits(tmp_path: Path) -> None:
    write_csv(pd.DataFrame({"probability": np.array([0.1, 0.7], dtype=np.float32)}), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text().split() == ["probability", "0.1", "0.7"]


@pytest.mark.usefixtures("cli")
def test_groups_of_an_audit_are_no_formulas() -> None:
    rows = pd.DataFrame({"prob": [0.2, 0.8] * 60, "target": [0, 1] * 60, "=race": FORMULAS[:4] * 30})
    rows.to_csv("p.csv", index=False)
    main(["audit", "--predictions", "p.csv", "--groups", "=race"])
    found = pd.read_csv("audit/audit_groups.csv", dtype=str)
    assert sorted(found["name"]) == sorted(f"'{name}" for name in FORMULAS[:4])
    assert set(found["grouping"]) == {"'=race"}
    assert found["selection_rate"].astype(float).between(0, 1).all()
    cells = (
        cell for line in Path("audit/audit_groups.csv").read_text().splitlines() for cell in line.split(",")
    )
    assert not [cell for cell in cells if cell.strip('"').startswith(("=", "+", "@"))]
