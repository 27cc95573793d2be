"""Two nodes without a shared disk: each has a folder of its own, and both test the same checkpoint."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from fairrf_lightning.checkpoints import load_checkpoint
from tests.reliability.runs import CHECKPOINTS, QUIET, SMALL, TRAIN, start, wait


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_on_nodes(folders: list[Path], *args: str) -> str:
    """Run ``fit`` on two nodes; return what the first one has printed."""
    # Nodes that disagree wait for each other: not for half an hour.
    strategy = ["--trainer.strategy=DDPStrategy", "--trainer.strategy.timeout=0:02:00"]
    command = [str(TRAIN), *SMALL, *args, "--trainer.num_nodes=2", "--trainer.devices=1", *strategy, *QUIET]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    nodes = [start(command, folder, NODE_RANK=str(rank), **address) for rank, folder in enumerate(folders)]
    ended = [wait(node, folder) for node, folder in zip(nodes, folders, strict=True)]
    for code, printed in ended:
        assert code == 0, printed
    return ended[0][1]


@pytest.mark.slow
def test_the_chosen_checkpoint_reaches_both_nodes(tmp_path: Path) -> None:
    folders = [tmp_path / "node_0", tmp_path / "node_1"]
    assert "Test split" in run_on_nodes(folders, "--trainer.max_epochs=2")
    assert sorted(path.name for path in (folders[0] / CHECKPOINTS).iterdir()) == ["best.ckpt", "last.ckpt"]
    assert not list(folders[1].rglob("*.ckpt"))

    # To resume, the second node needs last.ckpt alone; where the best checkpoint is, the first node knows.
    (folders[1] / CHECKPOINTS).mkdir(parents=True)
    shutil.copy(folders[0] / CHECKPOINTS / "last.ckpt", folders[1] / CHECKPOINTS)
    resumed = run_on_nodes(folders, "--trainer.max_epochs=6", f"--ckpt_path={CHECKPOINTS / 'last.ckpt'}")
    assert "Test split" in resumed
    assert load_checkpoint(folders[0] / CHECKPOINTS / "last.ckpt")["epoch"] == 5
