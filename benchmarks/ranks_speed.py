"""Two processes against one: the same global batches of Adult, with a backbone of some work per step.

Prints rows per second, by wall time and by the CPU time of the busiest process. On a machine with other load
only the latter means anything; it leaves out the time in which a process waits for the other.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import torch
from lightning import Callback, LightningModule, Trainer

from fairrf_lightning import FairRFModule
from fairrf_lightning.backbones import MLP
from fairrf_lightning.callbacks import LambdaUpdateCallback
from fairrf_lightning.datamodules import AdultDataModule

GLOBAL_BATCH = 1024


class RankTimes(Callback):
    """Writes the time of an epoch's training steps, of each process, into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._times: list[tuple[float, float]] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the start."""
        del trainer, pl_module
        self._start = time.perf_counter(), time.process_time()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the wall time and the CPU time."""
        del pl_module
        wall, cpu = self._start
        self._times.append((time.perf_counter() - wall, time.process_time() - cpu))
        times = [statistics.median(part) for part in zip(*self._times[1:] or self._times, strict=True)]
        (self._folder / f"{trainer.global_rank}.json").write_text(json.dumps(times), encoding="utf-8")


def epoch_times(ranks: int, hidden: tuple[int, ...] = (512, 512), epochs: int = 3) -> tuple[float, float]:
    """Return the wall time and the CPU time of an epoch's steps, in seconds, of the slowest process."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            devices=ranks,
            strategy="ddp_fork" if ranks > 1 else "auto",
            max_epochs=epochs + 1,
            callbacks=[LambdaUpdateCallback(), RankTimes(Path(folder))],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
        )
        backbone = functools.partial(MLP, hidden=hidden, dropout=0)
        trainer.fit(FairRFModule(backbone=backbone), AdultDataModule(batch_size=GLOBAL_BATCH // ranks))
        found = [json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).iterdir()]
    wall, cpu = (max(part) for part in zip(*found, strict=True))
    return wall, cpu


def main() -> None:
    """Print the times of each round, and the median speed-ups."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 512])
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    ratios: list[tuple[float, float]] = []
    for _ in range(args.rounds):
        (wall, cpu), (wall2, cpu2) = (epoch_times(ranks, tuple(args.hidden)) for ranks in (1, 2))
        ratios.append((wall / wall2, cpu / cpu2))
        print(f"one process {wall:.2f} s ({cpu:.2f} s CPU), two {wall2:.2f} s ({cpu2:.2f} s CPU)", flush=True)
    by_wall, by_cpu = (statistics.median(part) for part in zip(*ratios, strict=True))
    print(f"two processes to one: {by_wall:.2f} times as fast by wall time, {by_cpu:.2f} by CPU time")


if __name__ == "__main__":
    main()
