"""What the group fairness gaps share: per-group sums, their gap, interval and rates.

Each metric counts, for each group, rows and predicted positives (``mode="hard"``) or adds up
the predicted probabilities (``mode="prob"``). The counts are summed over batches and processes, so
the result depends neither on the batch size nor on which groups a batch holds. A group without the
rows it needs gives NaN and a warning, never 0. ``gap_interval.py`` describes the intervals.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import rank_zero_warn
from torchmetrics.utilities.plot import _AX_TYPE, _PLOT_OUT_TYPE

from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.metrics import intervals
from fairrf_lightning.metrics.gap_interval import RateSample, gap_interval

Reduction = Literal["gap", "mean_deviation"]
Mode = Literal["hard", "prob"]


def rate_gap(rates: Tensor, reduction: Reduction) -> Tensor:
    """Return the gap between groups, the largest one of the conditions: ``(..., C, G)`` to ``(...)``."""
    if reduction == "gap":
        return (rates.amax(-1) - rates.amin(-1)).amax(-1)
    return (rates - rates.mean(-1, keepdim=True)).abs().mean(-1).amax(-1)


class RateGap(Metric):
    """Sums per condition and group; a child says which rows each condition is about."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    counts: Tensor
    sums: Tensor
    squares: Tensor
    _conditions: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        num_groups: int = 2,
        reduction: Reduction = "gap",
        mode: Mode = "hard",
        threshold: float = 0.5,
        *,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check_arguments(num_groups, reduction, mode, threshold)
        self.num_groups = num_groups
        self.reduction: Reduction = reduction
        self.mode: Mode = mode
        self.threshold = threshold
        self.validate_args = validate_args
        zeros = torch.zeros(len(self._conditions), num_groups, dtype=torch.long)
        self.add_state("counts", zeros, dist_reduce_fx="sum")
        self.add_state("sums", zeros if mode == "hard" else zeros.double(), dist_reduce_fx="sum")
        if mode == "prob":
            self.add_state("squares", zeros.double(), dist_reduce_fx="sum")
        # A MetricCollection merges for good the metrics whose states agree after the first batch,
        # which a batch of positives or without known groups brings about by chance.
        name = f"{type(self).__name__}_threshold"
        self.add_state(name, torch.tensor(float(threshold)), dist_reduce_fx="max")

    @staticmethod
    @abstractmethod
    def _select(target: Tensor) -> Tensor:
        """Return which rows each condition is about, ``(C, N)``."""

    def update(self, preds: Tensor, target: Tensor, groups: Tensor) -> None:
        """Add a batch.

        Args:
            preds: Probabilities of the positive class, or 0/1 decisions, ``(N,)``.
            target: True classes 0 or 1, ``(N,)``.
            groups: Group ids 0 to ``num_groups - 1``, or -1 where the group is unknown, ``(N,)``.
        """
        if self.validate_args:
            _check_batch(preds, target, groups, self.num_groups)
        ids = torch.arange(self.num_groups, device=groups.device).unsqueeze(1)
        rows = self._select(target).unsqueeze(1) & (groups == ids)
        self.counts = self.counts + rows.sum(-1)
        if self.mode == "hard":
            self.sums = self.sums + (rows & (preds >= self.threshold)).sum(-1)
            return
        values = torch.where(rows, preds.detach().double(), 0.0)
        self.sums = self.sums + values.sum(-1)
        self.squares = self.squares + values.square().sum(-1)

    def compute(self) -> Tensor:
        """Return the gap, NaN if a group lacks the rows it needs."""
        counts, sums, _ = self._read()
        self._warn_of_empty(counts)
        return rate_gap(sums / counts, self.reduction)

    def rates(self) -> Tensor:
        """Return the rate of each group, NaN for a group without rows.

        Under DDP this is a collective operation: call it on every process.
        """
        counts, sums, _ = self._read_synced()
        return (sums / counts).squeeze(0)

    def totals(self) -> tuple[Tensor, Tensor]:
        """Return rows and predicted positives (their summed probability in prob mode), ``(C, G)`` each.

        Under DDP this is a collective operation: call it on every process.
        """
        counts, sums, _ = self._read_synced()
        return counts, sums

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return a confidence interval for the gap, from the sums alone.

        ``gap_interval.py`` describes the method and ``docs/audit.md`` gives the coverage, for two groups
        exactly. For ``"mean_deviation"`` of three or more groups the interval is of another kind and
        conservative: MOVER limits of patterns of signs, Bonferroni-corrected.

        Under DDP this is a collective operation: call it on every process.

        Args:
            level: Confidence level between 0 and 1.

        Returns:
            Low and high; both NaN where the gap or a variance cannot be estimated.
        """
        counts, sums, squares = (state.cpu() for state in self._read_synced())
        if self.reduction == "mean_deviation" and self.num_groups > 2:
            return self._mean_deviation_interval(counts, sums, squares, level)
        sample = RateSample.of_sums(counts, sums, squares if self.mode == "prob" else None)
        low, high = gap_interval(sample, level)
        scale = 0.5 if self.reduction == "mean_deviation" else 1.0
        return low * scale, high * scale

    def _mean_deviation_interval(
        self, counts: Tensor, sums: Tensor, squares: Tensor, level: float
    ) -> tuple[Tensor, Tensor]:
        contrasts = intervals.mean_deviation_contrasts(self.num_groups)
        level = intervals.bonferroni_level(level, len(self._conditions) * len(contrasts))
        if self.mode == "hard":
            limits = intervals.wilson_interval(sums, counts, level)
        else:
            limits = intervals.mean_interval(counts, sums, squares, level)
        low, high = intervals.max_contrast_interval(sums / counts, *limits, contrasts)
        return low.amax(), high.amax()

    def plot(self, val: Tensor | list[Tensor] | None = None, ax: _AX_TYPE | None = None) -> _PLOT_OUT_TYPE:
        """Plot one value or several.

        Args:
            val: Results of ``forward`` or ``compute``; the current result by default.
            ax: Matplotlib axes to draw into; new ones by default.
        """
        return self._plot(val, ax)

    def _read(self) -> tuple[Tensor, ...]:
        squares = self.squares if self.mode == "prob" else self.sums
        device = "cpu" if self.device.type == "mps" else self.device  # MPS has no float64
        return tuple(state.to(device).double() for state in (self.counts, self.sums, squares))

    def _read_synced(self) -> tuple[Tensor, ...]:
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn,
            should_sync=self._to_sync,
            should_unsync=self._should_unsync,
        ):
            return self._read()

    def _warn_of_empty(self, counts: Tensor) -> None:
        missing = [
            f"{condition} in group {group}"
            for condition, row in zip(self._conditions, counts.tolist(), strict=True)
            for group, count in enumerate(row)
            if not count
        ]
        if missing and self.update_called:
            rank_zero_warn(
                f"{type(self).__name__} is NaN: there are no {', no '.join(missing)}. "
                "Add such rows, or lower num_groups if the group does not exist.",
                UserWarning,
            )


def _check_arguments(num_groups: int, reduction: str, mode: str, threshold: float) -> None:
    if num_groups <= 1:
        raise InputError(f"num_groups is {num_groups}, expected 2 or more: a gap compares groups")
    if reduction not in get_args(Reduction):
        raise InputError(f"unknown reduction {reduction!r}; {did_you_mean(reduction, get_args(Reduction))}")
    if mode not in get_args(Mode):
        raise InputError(f"unknown mode {mode!r}; {did_you_mean(mode, get_args(Mode))}")
    if not 0 <= threshold <= 1:
        raise InputError(
            f"threshold is {threshold}, expected a probability in [0, 1]: turn a threshold on "
            "logits into one on probabilities by the sigmoid"
        )


def _check_batch(preds: Tensor, target: Tensor, groups: Tensor, num_groups: int) -> None:
    shapes = [tuple(tensor.shape) for tensor in (preds, target, groups)]
    if preds.ndim != 1 or len(set(shapes)) > 1:
        raise InputError(
            f"preds, target and groups have shapes {', '.join(map(str, shapes))}, expected one and "
            "the same shape (N,): squeeze or index them first"
        )
    if not preds.numel():
        return
    if groups.is_floating_point():
        raise InputError(
            f"groups has dtype {groups.dtype}, expected integer ids: encode the groups as "
            f"0 to {num_groups - 1} and pass groups.long()"
        )
    ids = groups.long()
    _check_values("preds", preds, (preds >= 0) & (preds <= 1), "[0, 1]: apply a sigmoid to logits")
    _check_values("target", target, (target == 0) | (target == 1), "0 or 1: encode the classes so")
    _check_values(
        "groups",
        groups,
        (ids >= -1) & (ids < num_groups),
        f"0 to {num_groups - 1}, or -1 for unknown: re-encode the ids or raise num_groups",
    )


def _check_values(name: str, values: Tensor, valid: Tensor, expected: str) -> None:
    if not valid.all():
        raise InputError(f"{name} holds {values[~valid][0].item()}, expected {expected}")
