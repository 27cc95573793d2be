"""Runs a function on several ranks, in processes that are forked: importing torch again takes seconds."""

from __future__ import annotations

import logging
import os
import socket
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes


def run_on_ranks(function: Callable[[int], Any], folder: Path, ranks: int = 2, timeout: float = 240) -> Any:
    """Call ``function(ranks)`` on each rank, as under torchrun; return what it returns on rank zero."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = (function, ranks, port, folder / "rank_zero.pt")
    started: Any = start_processes(_run, arguments, ranks, join=False, start_method="fork")  # type: ignore[no-untyped-call]
    deadline = time.monotonic() + timeout
    while not started.join(timeout=1):
        if time.monotonic() > deadline:  # ranks that disagree wait for each other for half an hour
            for process in started.processes:
                process.kill()
            raise TimeoutError(f"the ranks did not end within {timeout} seconds")
    return torch.load(folder / "rank_zero.pt", weights_only=True)


def _run(rank: int, function: Callable[[int], Any], ranks: int, port: int, path: Path) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "tests",
    }
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    found = function(ranks)
    if rank == 0:
        torch.save(found, path)
