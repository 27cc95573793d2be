"""Cost of the penalty in a training step, next to a penalty written by hand and to no penalty.

    python benchmarks/dropin_cost.py

Takes steps of an MLP 64-32 at batch 512, in turn without a penalty, with a minimal one written by hand (one
matrix product, plain autograd, a fixed lambda) and with this package's. First in a plain loop with
``RelatedFeaturePenalty``, then in Lightning with the two callbacks attached. Prints the medians of the ratios
of neighbouring measurements.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import TensorBatches

BATCH, ETA, BETA, INTERVAL, STATISTICS = 512, 0.6, 0.5, 50, ("covariance", "correlation")
Clock = Callable[[], float]
Penalty = Callable[[Tensor, Tensor], Tensor]


def by_hand(columns: int) -> Penalty:
    """Return the minimal penalty on the first columns."""
    chosen, weights = torch.arange(columns), torch.full((columns,), 1 / columns)

    def penalty(logits: Tensor, inputs: Tensor) -> Tensor:
        probs, related = logits.sigmoid(), inputs[:, chosen]
        covariances = (probs - probs.mean()) @ (related - related.mean(0)) / len(probs)
        return ETA * (weights * covariances.abs()).sum()

    return penalty


def packaged(columns: int, statistic: str) -> Penalty:
    """Return the package's penalty on the first columns, with its updates of lambda."""
    penalty = RelatedFeaturePenalty({f"x{c}": [c] for c in range(columns)}, eta=ETA, statistic=statistic)

    def updated(logits: Tensor, inputs: Tensor) -> Tensor:
        if penalty.penalised_steps % INTERVAL == INTERVAL - 1:
            penalty.update_weights(BETA)
        value: Tensor = penalty(logits, inputs)
        return value

    return updated


def network(columns: int) -> nn.Sequential:
    """Return the MLP 64-32."""
    torch.manual_seed(0)
    layers = (nn.Linear(columns, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    return nn.Sequential(*layers, nn.Flatten(0))


def rows_of(count: int, columns: int) -> dict[str, Tensor]:
    """Return random rows."""
    inputs = torch.randn(count, columns)
    return {"inputs": inputs, "target": (inputs[:, :5].sum(1) + torch.randn(count) > 0).float()}


def plain_steps(columns: int, penalty: Penalty | None) -> Callable[[], None]:
    """Return a function that takes one training step in plain PyTorch."""
    net, rows = network(columns), rows_of(BATCH, columns)
    optimizer = torch.optim.Adam(net.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        logits = net(rows["inputs"])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, rows["target"])
        whole = loss if penalty is None else loss + penalty(logits, rows["inputs"])
        whole.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def step_time(step: Callable[[], None], steps: int, clock: Clock) -> float:
    """Return the mean time of a few steps, in seconds."""
    start = clock()
    for _ in range(steps):
        step()
    return (clock() - start) / steps


class Classifier(LightningModule):
    """A user's module, without a penalty or with one written into its training step."""

    def __init__(self, columns: int, penalty: Penalty | None) -> None:
        super().__init__()
        self.net, self.fairness = network(columns), penalty

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the loss."""
        logits = self.net(batch["inputs"])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["target"])
        return loss if self.fairness is None else loss + self.fairness(logits, batch["inputs"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), fused=True)


class StepTimes(Callback):
    """Notes the time from one training batch to the next, by the given clock."""

    def __init__(self, clock: Clock) -> None:
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


def fit_time(
    columns: int, penalty: Penalty | None, callbacks: Sequence[Callback], batches: int, clock: Clock
) -> float:
    """Return the step time of a short fit, in seconds: the fastest tenth, which other work disturbs least."""
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
    rows = TensorBatches(rows_of(BATCH * batches, columns), BATCH, shuffle=True)
    trainer.fit(Classifier(columns, penalty), rows)
    return statistics.quantiles(times.times[batches // 4 :], n=10)[0]


def attached(columns: int) -> list[Callback]:
    """Return the two callbacks with a penalty on the first columns."""
    penalty = RelatedFeaturePenalty({f"x{c}": [c] for c in range(columns)}, eta=ETA)
    return [PretrainCallback(epochs=0), LambdaUpdateCallback(BETA, INTERVAL, penalty=penalty, module="net")]


def ratio(times: Iterable[tuple[float, ...]], over: int, under: int) -> str:
    """Return the median ratio of two measurements, with its quartiles."""
    low, middle, high = statistics.quantiles([row[over] / row[under] for row in times], n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def report(name: str, times: list[tuple[float, ...]]) -> None:
    """Print one line of ratios: by hand to without, ours to without, ours to by hand."""
    without = 1e3 * statistics.median(row[0] for row in times)
    print(
        f"{name}: {without:.2f} ms without; by hand {ratio(times, 1, 0)} times, "
        f"ours {ratio(times, 2, 0)} times; ours to by hand {ratio(times, 2, 1)}",
        flush=True,
    )


def main() -> None:
    """Print a line for each number of related columns, in a plain loop and in Lightning."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--batches", type=int, default=100, help="training steps in each fit")
    parser.add_argument("--columns", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="wall time; CPU time by default")
    args = parser.parse_args()
    clock = time.perf_counter if args.wall else time.process_time
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for columns in args.columns:
        width = max(100, columns)
        for statistic in STATISTICS:
            penalties = (None, by_hand(columns), packaged(columns, statistic))
            steps = [plain_steps(width, penalty) for penalty in penalties]
            times = [tuple(step_time(step, 25, clock) for step in steps) for _ in range(args.repeats + 2)]
            report(f"{columns} columns, {statistic}, plain loop", times[1:])
    for columns in args.columns[:1]:
        kinds = ((None, list), (by_hand(columns), list), (None, lambda n=columns: attached(n)))
        fits = [
            tuple(fit_time(max(100, columns), hand, make(), args.batches, clock) for hand, make in kinds)
            for _ in range(max(2, args.repeats // 4))
        ]
        report(f"{columns} columns, drop-in, Lightning", fits)


if __name__ == "__main__":
    main()
