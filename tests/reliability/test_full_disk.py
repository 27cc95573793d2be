"""A full disk, on a real small file system: the previous checkpoint stays, and the run can be resumed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fairrf_lightning.checkpoints import WholeFileIO, load_checkpoint
from tests.conftest import Refused
from tests.reliability.conftest import DATA, QUICK
from tests.reliability.runs import TRAIN, differ

FIT = " ".join(["fit", *DATA, *QUICK, "--model.lr 0.03 --pretrain.epochs 0 --checkpoint.dirpath small"])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 400 KiB; a checkpoint of the small run has about 50."""
    disk = tmp_path / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"a full disk cannot be tried here: {error}")
    if mounted.returncode:
        pytest.skip(f"a full disk cannot be tried here, mounting is not permitted: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)  # noqa: S607 - wherever the system has it


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1024)):
                pass
        except OSError:
            return filler
    raise AssertionError


def test_a_full_disk_keeps_the_previous_checkpoint_and_the_run_resumes(
    trained: Path, small_disk: Path, cli: Callable[[str], None], refused: Refused
) -> None:
    cli(f"{FIT} --trainer.max_epochs 1")
    before = {path.name: path.read_bytes() for path in small_disk.iterdir()}
    assert sorted(before) == ["best.ckpt", "last.ckpt"]
    filler = fill(small_disk)
    error = refused(f"{FIT} --ckpt_path small/last.ckpt")
    assert "No space left on device" in error
    assert "the previous file is kept" in error
    filler.unlink()
    assert {path.name: path.read_bytes() for path in small_disk.iterdir()} == before
    cli(f"{FIT} --ckpt_path small/last.ckpt")
    for name in before:
        wanted = load_checkpoint(trained / "lightning_logs/version_0/checkpoints" / name)
        assert not list(differ(load_checkpoint(small_disk / name), wanted))


def test_a_write_that_fails_leaves_no_part_of_a_file(small_disk: Path) -> None:
    path = small_disk / "model.ckpt"
    writer = WholeFileIO()
    writer.save_checkpoint({"state_dict": {"a": torch.ones(1000)}}, path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="No space left on device"):
        writer.save_checkpoint({"state_dict": {"a": torch.ones(1_000_000)}}, path)
    assert path.read_bytes() == before
    assert [found.name for found in small_disk.iterdir()] == ["model.ckpt"]


def test_logs_that_cannot_be_written_are_one_error(small_disk: Path, refused: Refused) -> None:
    (small_disk / "lightning_logs").mkdir()
    fill(small_disk)
    message = refused(f"{FIT} --checkpoint.dirpath other --trainer.default_root_dir small")
    assert "cannot be written to (No space left on device)" in message
    assert "--ckpt_path" in message


def test_a_full_disk_behind_the_output_is_one_error(cli: Callable[[str], None]) -> None:
    del cli  # an empty folder
    command = [sys.executable, str(TRAIN), *f"{FIT} --trainer.max_epochs 1".split()]
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 2
    assert "error: the output cannot be written to (No space left on device)" in run.stderr
    assert "Traceback" not in run.stderr
