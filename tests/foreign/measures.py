"""What each script measures and prints: association with the related feature, accuracy, and time per step."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import Callback
from torch import Tensor

PRETRAINING_EPOCHS = 2


def people(rows: int = 2000) -> pd.DataFrame:
    """Return rows whose label depends on age and on another column."""
    random = np.random.default_rng(0)
    age, other = random.normal(size=rows), random.normal(size=rows)
    label = (age + 2 * other + random.normal(size=rows) > 0).astype(int)
    return pd.DataFrame({"age": age, "other": other, "label": label})


class StepTimes(Callback):
    """Notes the CPU time from one training batch to the next, in milliseconds."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._last: float | None = None

    def on_train_epoch_start(self, *_: Any) -> None:
        """Leave out what goes on between epochs."""
        self._last = None

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Note the time since the last batch."""
        now = time.process_time()
        if self._last is not None:
            self._times.append(1e3 * (now - self._last))
        self._last = now

    @property
    def median(self) -> float:
        """Median time of the later half of the steps, in which the penalty is on."""
        return statistics.median(self._times[len(self._times) // 2 :])


def by_hand(probs: Tensor, age: Tensor) -> Tensor:
    """Return |cov|: the penalty of one related feature, written independently of the package."""
    return ((probs - probs.mean()) * (age - age.mean())).mean().abs()


def report(name: str, probs: Tensor, age: Tensor, label: Tensor, step: float) -> None:
    """Print the measurements of one training run."""
    accuracy = ((probs > 0.5) == (label > 0.5)).float().mean()
    covariance = by_hand(probs.to(torch.float64), age.to(torch.float64))
    print(f"{name}: covariance {covariance:.4f}, accuracy {accuracy:.3f}, {step:.2f} ms per step", flush=True)
