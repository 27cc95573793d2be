"""The gaps of a grouping with their intervals, bounds for unknown groups, and a verdict on two models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairrf_lightning.audit.cells import CellCounts, Ints
from fairrf_lightning.audit.figures import Grouping, plain
from fairrf_lightning.audit.missing import gap_bounds
from fairrf_lightning.metrics.intervals import RateSample, gap_interval
from fairrf_lightning.metrics.paired import (
    decision_correlation,
    gap_difference_interval,
    mean_correlation,
)

FAIRER = "fairer, beyond noise"
LESS_FAIR = "less fair, beyond noise"
NO_DIFFERENCE = "no difference shown"
NOT_ESTIMABLE = "not estimable"
NOT_APPLICABLE = "not applicable"  # without true labels

# The classes of the rows that each condition of a gap is about.
CONDITIONS = {"dDP": ((0, 1),), "dEO": ((1,),), "dEOdds": ((1,), (0,))}
_EMPTY = {"value": None, "low": None, "high": None, "bounds": None, "against": None}


def grouping_gaps(
    cells: CellCounts, grouping: Grouping, level: float, min_rows: int
) -> Iterator[dict[str, Any]]:
    """Yield each gap in each mode as plain values.

    Args:
        cells: All counts.
        grouping: The groups to compare.
        level: Confidence level.
        min_rows: A group with fewer rows of a condition is left out of the gap, and named.
    """
    modes = ["hard", "prob"] if cells.has_probs else ["hard"]
    for gap, classes in CONDITIONS.items():
        if needs_labels(gap) and not cells.has_labels:
            for mode in modes:
                yield {"gap": gap, "mode": mode, "estimable": False, "left_out": [], **_EMPTY}
            continue
        chosen = _condition_rows(cells.rows, grouping, classes)
        enough = (chosen >= min_rows).all(0)
        names = np.array(list(grouping.groups), dtype=object)
        kept = Grouping(
            grouping.attributes, {name: grouping.groups[name] for name in names[enough]}, grouping.unknown
        )
        for mode in modes:
            yield {
                "gap": gap,
                "mode": mode,
                "estimable": bool(enough.sum() >= 2),
                "left_out": names[~enough].tolist(),
                **_gap(cells, kept, classes, mode, level),
            }


def needs_labels(gap: str) -> bool:
    """Return whether a gap compares rows of one true class, so that it needs true labels."""
    return CONDITIONS[gap] != ((0, 1),)


def _gap(
    cells: CellCounts, grouping: Grouping, classes: tuple[tuple[int, ...], ...], mode: str, level: float
) -> dict[str, Any]:
    if len(grouping.groups) < 2:
        return dict(_EMPTY)
    samples = [_sample(cells, grouping, classes, mode, model) for model in range(cells.num_models)]
    low, high = gap_interval(samples[0], level)
    found: dict[str, Any] = _EMPTY | {
        name: plain(v.item()) for name, v in (("value", samples[0].gap), ("low", low), ("high", high))
    }
    bounds = []
    if len(grouping.unknown) and mode == "hard":
        bounds = [_bounds(cells, grouping, classes, model) for model in range(cells.num_models)]
        found["bounds"] = bounds[0]
    if cells.num_models == 2:
        correlation = _correlation(cells, grouping, classes, mode)
        found["against"] = _against(samples, correlation, level) | _difference_bounds(bounds)
    return found


def _difference_bounds(bounds: list[list[float]]) -> dict[str, list[float] | None]:
    """Return the other model's bounds and those of the difference: one's least minus the other's most.

    These are outer bounds, since no membership need give both at once.
    """
    if not bounds:
        return {"bounds": None, "difference_bounds": None}
    (low, high), (other_low, other_high) = bounds
    return {"bounds": [other_low, other_high], "difference_bounds": [low - other_high, high - other_low]}


def may_turn(against: Mapping[str, Any]) -> bool:
    """Whether the rows of unknown group, all known, might not leave the verdict as it is."""
    bounds = against.get("difference_bounds")  # files of older audits do not have it
    if bounds is None:
        return False
    verdict = against["verdict"]
    return bool((verdict == FAIRER and bounds[1] >= 0) or (verdict == LESS_FAIR and bounds[0] <= 0))


def _against(samples: list[RateSample], correlation: Tensor, level: float) -> dict[str, Any]:
    low, high = gap_interval(samples[1], level)
    difference = samples[0].gap - samples[1].gap
    limits = gap_difference_interval(samples[0], samples[1], correlation, level)
    values = {"value": samples[1].gap, "low": low, "high": high, "difference": difference}
    values |= {"difference_low": limits[0], "difference_high": limits[1]}
    verdict = verdict_of(limits[0].item(), limits[1].item())
    return {name: plain(value.item()) for name, value in values.items()} | {"verdict": verdict}


def verdict_of(low: float, high: float) -> str:
    """Return in words what an interval of the difference of two gaps shows.

    >>> verdict_of(-0.2, -0.1), verdict_of(-0.1, 0.1), verdict_of(0.1, 0.2)
    ('fairer, beyond noise', 'no difference shown', 'less fair, beyond noise')
    """
    if low != low or high != high:  # noqa: PLR0124 - NaN
        return NOT_ESTIMABLE
    return FAIRER if high < 0 else LESS_FAIR if low > 0 else NO_DIFFERENCE


def _condition_rows(
    array: np.ndarray[Any, Any], grouping: Grouping, classes: tuple[tuple[int, ...], ...]
) -> np.ndarray[Any, Any]:
    """Sum an array ``(cells, 2)`` over the rows of each condition and group: ``(C, G)``."""
    return np.array(
        [[array[group][:, list(of)].sum() for group in grouping.groups.values()] for of in classes]
    )


def _sample(
    cells: CellCounts, grouping: Grouping, classes: tuple[tuple[int, ...], ...], mode: str, model: int
) -> RateSample:
    def summed(array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(_condition_rows(array, grouping, classes)).double()

    if mode == "hard":
        return RateSample.of_sums(summed(cells.rows), summed(cells.positive[model]))
    return RateSample.of_sums(summed(cells.rows), summed(cells.sums[model]), summed(cells.squares[model]))


def _correlation(
    cells: CellCounts, grouping: Grouping, classes: tuple[tuple[int, ...], ...], mode: str
) -> Tensor:
    def summed(array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(_condition_rows(array, grouping, classes)).double()

    rows = summed(cells.rows)
    if mode == "hard":
        first, second = (summed(cells.positive[model]) for model in (0, 1))
        return decision_correlation(summed(cells.both), first, second, rows)
    means = [summed(cells.sums[model]) / rows for model in (0, 1)]
    spreads = [summed(cells.squares[model]) / rows - means[model].square() for model in (0, 1)]
    return mean_correlation(summed(cells.products) / rows - means[0] * means[1], spreads[0], spreads[1])


def _bounds(
    cells: CellCounts, grouping: Grouping, classes: tuple[tuple[int, ...], ...], model: int
) -> list[float]:
    """Return the smallest and the largest gap that the rows of unknown group allow."""
    rows = _condition_rows(cells.rows, grouping, classes)
    positives = _condition_rows(cells.positive[model], grouping, classes)

    def unknown(array: Ints, of: tuple[int, ...]) -> int:
        return int(array[grouping.unknown][:, list(of)].sum())

    found = [
        gap_bounds(n, x, unknown(cells.rows, of), unknown(cells.positive[model], of))
        for n, x, of in zip(rows, positives, classes, strict=True)
    ]
    return [max(low for low, _ in found), max(high for _, high in found)]
