"""Steps of training on one or more processes, with a backbone that works some ms in each step.

Each process has one thread. The time of a step is that of the fastest tenth of the steps, because other work
on the machine only slows them down.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
import warnings
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy

from fairrf_lightning import FairRFModule
from fairrf_lightning.backbones import MLP
from fairrf_lightning.callbacks import LambdaUpdateCallback
from fairrf_lightning.datamodules import SyntheticDataModule

_WARM_UP_STEPS = 10
_HIDDEN = (384, 384)


class StepTimes(Callback):
    """Measures the times between the ends of consecutive steps; rank 0 writes their 10 % quantiles to a file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ends: dict[str, list[float]] = {"cpu": [], "wall": []}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        """Note the times."""
        del trainer, pl_module
        self._ends["cpu"].append(time.process_time())
        self._ends["wall"].append(time.perf_counter())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the quantiles."""
        del pl_module
        if trainer.is_global_zero:
            found = {
                clock: statistics.quantiles([b - a for a, b in pairwise(ends[_WARM_UP_STEPS:])], n=10)[0]
                for clock, ends in self._ends.items()
            }
            self._path.write_text(json.dumps(found), encoding="utf-8")


def train(
    path: Path, batch_size: int, steps: int, processes: int = 1, eta: float = 0.7, **options: Any
) -> FairRFModule:
    """Train FairRF for some steps; rank 0 writes the CPU and the wall time of a step to a file.

    Args:
        path: The file.
        batch_size: Rows per process and step.
        steps: Number of steps.
        processes: Number of processes that train together, wherever they are.
        eta: Weight of the penalty; 0 leaves it out.
        options: Options of the Trainer that place the processes.
    """
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps,
        callbacks=[*([LambdaUpdateCallback(beta=0.5)] if eta else []), StepTimes(path)],
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    rows = batch_size * processes * steps * 2  # half of the rows are for training: one epoch
    module = FairRFModule(backbone=partial(MLP, hidden=_HIDDEN, dropout=0.0), eta=eta)
    trainer.fit(module, SyntheticDataModule(n_rows=rows, batch_size=batch_size))
    return module


def step_seconds(processes: int, batch_size: int, steps: int, eta: float = 0.7) -> dict[str, float]:
    """Return ``cpu`` and ``wall``, the times of a step on one or more processes of this machine.

    Args:
        processes: Number of processes.
        batch_size: Rows per process and step.
        steps: Number of steps.
        eta: Weight of the penalty; 0 leaves it out.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo would look up the host's own name
    forked = DDPStrategy(start_method="fork", process_group_backend="gloo", timeout=timedelta(minutes=5))
    placed = {"devices": processes, "strategy": forked if processes > 1 else "auto"}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "seconds.json"
        train(path, batch_size, steps, processes, eta, **placed)
        found: dict[str, float] = json.loads(path.read_text("utf-8"))
        return found
