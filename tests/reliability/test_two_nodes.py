"""Two nodes without a shared disk: each has a folder of its own, and both test the same checkpoint."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.reliability.runs import CHECKPOINTS, QUIET, SMALL, TRAIN, start, wait


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_chosen_checkpoint_reaches_both_nodes(tmp_path: Path) -> None:
    command = [
        str(TRAIN),
        *SMALL,
        "--trainer.max_epochs=2",
        "--trainer.num_nodes=2",
        "--trainer.devices=1",
        *QUIET,
    ]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    folders = [tmp_path / "node_0", tmp_path / "node_1"]
    nodes = [start(command, folder, NODE_RANK=str(rank), **address) for rank, folder in enumerate(folders)]
    ended = [wait(node, folder) for node, folder in zip(nodes, folders, strict=True)]
    for code, printed in ended:
        assert code == 0, printed
    assert "Test split" in ended[0][1]
    assert sorted(path.name for path in (folders[0] / CHECKPOINTS).iterdir()) == ["best.ckpt", "last.ckpt"]
    assert not list(folders[1].rglob("*.ckpt"))
