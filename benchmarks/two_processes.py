"""Two processes against one: rows per second of training, with a backbone that works some ms in each step.

Both train in turn, several times, on one thread per process. Rows per second come from the fastest tenth of
the steps, because other work on the machine only slows them down. Prints the ratio for the same number of
rows per process (the usual way to add processes) and for the same rows per step (the same training, shared
by two processes).
"""

from __future__ import annotations

import json
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
    """Measures the time between the ends of consecutive steps; rank 0 writes their 10 % quantile to a file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ends: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        """Note the time."""
        del trainer, pl_module
        self._ends.append(time.perf_counter())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the quantile."""
        del pl_module
        if trainer.is_global_zero:
            ends = self._ends[_WARM_UP_STEPS:]
            gaps = [later - earlier for earlier, later in pairwise(ends)]
            self._path.write_text(json.dumps(statistics.quantiles(gaps, n=10)[0]), encoding="utf-8")


def train(path: Path, batch_size: int, steps: int, processes: int = 1, **options: Any) -> FairRFModule:
    """Train FairRF for some steps; rank 0 writes the time of a step to a file.

    Args:
        path: The file.
        batch_size: Rows per process and step.
        steps: Number of steps.
        processes: Number of processes that train together, wherever they are.
        options: Options of the Trainer that place the processes.
    """
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps,
        callbacks=[LambdaUpdateCallback(beta=0.5), StepTimes(path)],
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    rows = batch_size * processes * steps * 2  # half of the rows are for training: one epoch
    module = FairRFModule(backbone=partial(MLP, hidden=_HIDDEN, dropout=0.0), eta=0.7)
    trainer.fit(module, SyntheticDataModule(n_rows=rows, batch_size=batch_size))
    return module


def step_seconds(processes: int, batch_size: int, steps: int) -> float:
    """Return the time of a step on one or two processes of this machine."""
    forked = DDPStrategy(start_method="fork", process_group_backend="gloo", timeout=timedelta(minutes=5))
    placed = {"devices": processes, "strategy": forked if processes > 1 else "auto"}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "seconds.json"
        train(path, batch_size, steps, processes, **placed)
        return float(json.loads(path.read_text("utf-8")))


def measure(rounds: int = 5, steps: int = 100, batch_size: int = 512) -> dict[str, Any]:
    """Measure one process and two in turn.

    Returns:
        ``speedup``: rows per second of two processes to those of one, with ``batch_size`` rows each;
        ``speedup_same_training``: the same with half as many rows for each of the two; medians over the
        rounds. ``step_ms``: a step of one process. ``spread``: lowest and highest ``speedup`` of a round.
    """
    ones, same_rows, same_training = [], [], []
    for _ in range(rounds):
        one = step_seconds(1, batch_size, steps)
        ones.append(one)
        same_rows.append(2 * one / step_seconds(2, batch_size, steps))
        same_training.append(one / step_seconds(2, batch_size // 2, steps))
    return {
        "step_ms": 1000 * statistics.median(ones),
        "speedup": statistics.median(same_rows),
        "speedup_same_training": statistics.median(same_training),
        "spread": [min(same_rows), max(same_rows)],
        "rounds": rounds,
        "batch_size": batch_size,
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
