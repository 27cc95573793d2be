"""The cost of the network: steps and collectives on two hosts, measured and calculated.

Makes two hosts on this machine (``hosts.py``, which needs root), trains FairRF on both, and then times the
collectives of a step alone; the fastest tenth counts. Repeats this with the network limited to a number of
megabits per second. The calculation is ``step of one process + moments gathered + gradients summed``, where
the gradients take ``8 * 2 (r - 1) / r * bytes / bandwidth`` seconds on a limited network of ``r`` hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from benchmarks.hosts import Host, limit_bandwidth, two_hosts
from benchmarks.two_processes import step_seconds, train

_LIMITS = (None, 1000, 100)
_REPEATS = 30
_TIMEOUT_SECONDS = 900


def on_host(batch_size: int, steps: int) -> None:
    """Train as one of two hosts, then time the collectives; the first host writes the results."""
    warnings.simplefilter("ignore")
    module = train(Path("seconds.json"), batch_size, steps, 2, num_nodes=2, devices=1, strategy="ddp")
    gradients = sum(parameter.numel() for parameter in module.parameters())
    moments = torch.zeros(module.penalty.moments_shape)
    parts = [torch.zeros_like(moments) for _ in range(2)]
    found = {
        "gradient_bytes": 4 * gradients,
        "moment_bytes": 4 * moments.numel(),
        "gather_ms": _fastest_ms(lambda: dist.all_gather(parts, moments)),
        "sum_gradients_ms": _fastest_ms(lambda: dist.all_reduce(torch.zeros(gradients))),
    }
    if dist.get_rank() == 0:
        step = 1000 * json.loads(Path("seconds.json").read_text("utf-8"))["wall"]
        Path("found.json").write_text(json.dumps(found | {"step_ms": step}), encoding="utf-8")
    dist.destroy_process_group()  # its threads must not outlive the interpreter


def _fastest_ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        dist.barrier()
        start = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.quantiles(times, n=10)[0]


def _run(hosts: tuple[Host, Host], batch_size: int, steps: int, port: int) -> dict[str, Any]:
    address = {"MASTER_ADDR": hosts[0].name, "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "two_hosts"}
    command = [sys.executable, os.path.abspath(__file__), "--on_host"]  # noqa: PTH100 - as it was started
    command += [f"--batch_size={batch_size}", f"--steps={steps}"]
    sizes = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    ranks = [{"RANK": str(rank), "GROUP_RANK": str(rank)} for rank in range(2)]
    started = [
        host.start(command, **address, **sizes, **rank) for host, rank in zip(hosts, ranks, strict=True)
    ]
    for host, process in zip(hosts, started, strict=True):
        if process.wait(timeout=_TIMEOUT_SECONDS):
            raise RuntimeError(f"{host.name} failed:\n{host.output[-2000:]}")
    found: dict[str, Any] = json.loads((hosts[0].work / "found.json").read_text("utf-8"))
    return found


def measure(batch_size: int = 512, steps: int = 60) -> list[dict[str, Any]]:
    """Measure with each limit of the network; return one dict per limit, times in ms."""
    results = []
    with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder)) as hosts:
        for number, limit in enumerate(_LIMITS):
            for host in hosts:
                limit_bandwidth(host, limit)
            one = 1000 * step_seconds(1, batch_size, steps)["wall"]
            found = _run(hosts, batch_size, steps, 29500 + number)
            gradients = found["sum_gradients_ms"]
            if limit is not None:
                gradients = 8 * found["gradient_bytes"] / (1000 * limit)  # 2 (r - 1) / r is 1 for two hosts
            calculated = one + found["gather_ms"] + gradients
            results.append({"megabits": limit, "one_ms": one, "calculated_ms": calculated, **found})
    return results


def main() -> None:
    """Measure and print, or be one of the hosts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--on_host", action="store_true", help="used by this script")
    options = parser.parse_args()
    if options.on_host:
        on_host(options.batch_size, options.steps)
        return
    table = Table("Mbit/s", "one process", "gather", "sum gradients", "calculated", "measured")
    for row in measure(options.batch_size, options.steps):
        parts = ("one_ms", "gather_ms", "sum_gradients_ms", "calculated_ms", "step_ms")
        table.add_row(str(row["megabits"] or "no limit"), *(f"{row[part]:.2f}" for part in parts))
    console = Console()
    console.print(table)
    console.print(
        f"ms per step; gradients {row['gradient_bytes']:,} bytes, moments {row['moment_bytes']:,} bytes"
    )


if __name__ == "__main__":
    main()
