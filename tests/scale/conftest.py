"""Two hosts, and the run on two processes of one host that theirs is compared with."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.hosts import Host, two_hosts
from fairrf_lightning.checkpoints import load_checkpoint
from tests.reliability.runs import (
    CHECKPOINTS,
    QUIET,
    SMALL,
    TRAIN,
    assert_same_metrics,
    differ,
    start,
    wait,
)

EPOCHS = "--trainer.max_epochs=40"
LAST = CHECKPOINTS / "last.ckpt"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    with two_hosts(tmp_path / "hosts") as made:
        yield made


@pytest.fixture(scope="package")
def on_one_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on two processes of this machine; return their folder."""
    folder = tmp_path_factory.mktemp("one_host")
    process = start(
        [str(TRAIN), *SMALL, EPOCHS, "--trainer.devices=2", "--trainer.strategy=ddp", *QUIET], folder
    )
    code, printed = wait(process, folder)
    assert code == 0, printed
    return folder


def wait_for_checkpoint(host: Host) -> None:
    deadline = time.monotonic() + 120
    while not (host.work / LAST).is_file():
        assert time.monotonic() < deadline, host.output
        time.sleep(0.01)


def copy_last(source: Host, target: Host) -> None:
    """Copy the checkpoint of a run that was stopped: each host needs it under the same path."""
    assert load_checkpoint(source.work / LAST)["epoch"] < 39, "stopped too late"
    (target.work / CHECKPOINTS).mkdir(parents=True)
    shutil.copy(source.work / LAST, target.work / LAST)


def assert_resumed_as(host: Host, whole: Path) -> None:
    """Assert that a resumed run ended as an uninterrupted one."""
    for name in ("best.ckpt", "last.ckpt"):
        found, wanted = (load_checkpoint(folder / CHECKPOINTS / name) for folder in (host.work, whole))
        assert not list(differ(found, wanted)), name
    assert_same_metrics(host.work, whole)
