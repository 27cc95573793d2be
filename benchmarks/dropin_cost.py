"""Cost of the two callbacks: step time of a module with them over the same module without.

    python benchmarks/dropin_cost.py

Trains a plain LightningModule in turn without and with ``PretrainCallback`` and ``LambdaUpdateCallback``,
at batch 512 with 100 columns and 3 related features (12 columns), and prints the median of the ratios of
neighbouring fits.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import TensorBatches

COLUMNS, BATCH = 100, 512
RELATED = {"age": [0], "relationship": list(range(1, 7)), "marital-status": list(range(7, 12))}


class Foreign(LightningModule):
    """A user's module without FairRF."""

    def __init__(self, hidden: tuple[int, ...]) -> None:
        super().__init__()
        widths = (COLUMNS, *hidden)
        layers = [
            layer
            for width, following in pairwise(widths)
            for layer in (nn.Linear(width, following), nn.ReLU(), nn.Dropout(0.1))
        ]
        self.net = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the task loss."""
        logits = self.net(batch["inputs"]).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(logits, batch["target"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


class StepTimes(Callback):
    """Notes the time from one training batch to the next, by the given clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.times: list[float] = []
        self._last: float | None = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave out what goes on between epochs."""
        del trainer, pl_module
        self._last = None

    def on_train_batch_end(self, *_: object, **__: object) -> None:
        """Note the time since the last batch."""
        now = self._clock()
        if self._last is not None:
            self.times.append(now - self._last)
        self._last = now


def step_time(
    hidden: tuple[int, ...], callbacks: list[Callback], batches: int, clock: Callable[[], float]
) -> float:
    """Return the step time of a short fit, in seconds: the fastest tenth, which other work disturbs least."""
    torch.manual_seed(0)
    inputs = torch.randn(BATCH * batches, COLUMNS)
    target = (inputs[:, :12].sum(1) + torch.randn(len(inputs)) > 0).float()
    times = StepTimes(clock)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        callbacks=[*callbacks, times],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Foreign(hidden), TensorBatches({"inputs": inputs, "target": target}, BATCH, shuffle=True))
    return statistics.quantiles(times.times[batches // 4 :], n=10)[0]


def step_times(
    hidden: tuple[int, ...], batches: int, repeats: int, clock: Callable[[], float]
) -> Iterator[tuple[float, float]]:
    """Yield step times without and with the callbacks, measured one after the other."""
    for _ in range(repeats):
        penalty = RelatedFeaturePenalty(RELATED, eta=0.6)
        attached = [PretrainCallback(epochs=0), LambdaUpdateCallback(penalty=penalty, module="net")]
        yield step_time(hidden, [], batches, clock), step_time(hidden, attached, batches, clock)


def main() -> None:
    """Print a line for each size of the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="CPU time, on a machine that has other work to do")
    args = parser.parse_args()
    clock = time.process_time if args.cpu else time.perf_counter
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for hidden in ((64, 32), (512, 512, 256)):
        pairs = list(step_times(hidden, args.batches, args.repeats, clock))
        without, attached = (statistics.median(times) for times in zip(*pairs, strict=True))
        found = sorted(after / before for before, after in pairs)
        name = "MLP " + "-".join(map(str, hidden))
        print(
            f"{name}: {1e3 * without:.2f} ms without, {1e3 * attached:.2f} ms with; "
            f"median ratio {statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
