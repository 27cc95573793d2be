"""Simulated samples, and how often intervals contain the truth in them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairrf_lightning.metrics.intervals import RateSample

DRAWS = 2000


def coverage(low: Tensor, high: Tensor, truth: float) -> float:
    return ((low <= truth + 1e-6) & (truth - 1e-6 <= high)).double().mean().item()


def sample(successes: np.ndarray[tuple[int, ...], np.dtype[np.int64]], totals: list[int]) -> RateSample:
    counts = torch.tensor(totals, dtype=torch.float32).expand(len(successes), 1, len(totals))
    return RateSample(torch.from_numpy(successes).float().unsqueeze(1) / counts, counts)
