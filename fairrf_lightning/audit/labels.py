"""``python train.py labels --width 0.05``: how many rows with a known S an audit needs.

With a pilot (an ``audit.json``, or shares and rates of the groups) samples of each size are simulated,
and the answer is the smallest size at which the interval of the gap is on average as narrow as asked.
Without rates it is the worst case: of two groups a rate of one half in both. Of more groups several may
tie for the largest and for the smallest rate, which makes the interval wider; the hardest of a few such
patterns, simulated, is taken.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.metrics.intervals import RateSample, gap_interval, normal_quantile
from fairrf_lightning.option_parser import OptionParser

_SAMPLES = 100
_HARDEST_GAP = 1.5  # in widths of the interval: beyond noise, but with rates near one half
_MOST = 10**9
_RATES = {"dDP": "selection_rate", "dEO": "true_positive_rate"}


def labels_needed(width: float, shares: Sequence[float], rates: Sequence[float], level: float = 0.95) -> int:
    """Return how many labelled rows give a gap an interval of a mean width of at most ``width``.

    Args:
        width: Width of the interval.
        shares: Share of all labelled rows that is in each group and counts for the gap; may sum to less
            than 1, as rows with target 0 do not count for dEO.
        rates: Rate of positive decisions of each group.
        level: Confidence level.
    """
    low, high = 0, math.ceil(_normal_rows(width, shares, level) / 64)
    while mean_width(high, shares, rates, level) > width:
        low, high = high, 2 * high
        if high > _MOST:
            raise InputError(f"--width {width}: more than {_MOST:,} rows would be needed.")
    while high - low > max(1, high // 200):
        middle = (low + high) // 2
        wide = mean_width(middle, shares, rates, level) > width
        low, high = (middle, high) if wide else (low, middle)
    return high


def worst_case(width: float, shares: Sequence[float], level: float = 0.95) -> int:
    """Return the rows needed whatever the rates.

    Two groups need what the normal approximation says. With more it is approximate, too: rates between the
    simulated patterns may give a slightly wider interval (``benchmarks/labels_worst_case.py``).

    >>> worst_case(0.1, [0.5, 0.5])
    1537
    """
    rows = _normal_rows(width, shares, level)
    if len(shares) == 2:
        return rows
    widths = (mean_width(rows, shares, rates, level) for rates in _tied_rates(width, shares))
    return math.ceil(rows * max(1.0, *(found / width for found in widths)) ** 2)


def _tied_rates(width: float, shares: Sequence[float]) -> Iterator[list[float]]:
    """Yield rates with two, three and more of the smallest groups at the two ends in turn."""
    half = min(_HARDEST_GAP * width, 1.0) / 2
    order = sorted(range(len(shares)), key=lambda group: shares[group])
    rates = [0.5] * len(shares)
    for place, group in enumerate(order):
        rates[group] += half if place % 2 else -half
        if place:
            yield list(rates)


def _normal_rows(width: float, shares: Sequence[float], level: float) -> int:
    """Return the rows that the two smallest groups need at rates of one half, by the normal approximation."""
    smallest = sorted(shares)[:2]
    variance = sum(0.25 / share for share in smallest)
    return math.ceil((2 * normal_quantile(level) / width) ** 2 * variance)


def mean_width(rows: int, shares: Sequence[float], rates: Sequence[float], level: float) -> float:
    """Return the mean width of the interval over simulated samples of so many rows."""
    counts = np.maximum(np.round(rows * np.asarray(shares)), 1).astype(np.int64)
    successes = np.random.default_rng(0).binomial(counts, rates, size=(_SAMPLES, len(counts)))
    total = torch.from_numpy(counts).double().expand(_SAMPLES, 1, -1)
    sample = RateSample(torch.from_numpy(successes).double().unsqueeze(1) / total, total)
    low, high = gap_interval(sample, level)
    return float((high - low).mean())


def run_labels(args: Sequence[str]) -> int:
    """Print how many labelled rows are needed."""
    options = _parser().parse_args(list(args))
    if not 0 < options.width < 1:
        raise InputError(f"--width {options.width}: expected a width between 0 and 1, such as 0.05.")
    shares, rates = _from_pilot(options) if options.pilot else _given(options)
    if rates is None:
        needed = worst_case(options.width, shares, options.level)
        how = "whatever the rates" if len(shares) == 2 else "at the hardest rates found by simulation"
    else:
        needed = labels_needed(options.width, shares, rates, options.level)
        how = "at rates " + ", ".join(f"{rate:.3f}" for rate in rates)
    counts = ", ".join(f"{math.ceil(needed * share):,}" for share in shares)
    Console().print(
        f"{needed:,} rows with a known S give {options.gap} a {100 * options.level:g} % interval of width "
        f"{options.width:g} ({how}).\nOf these, {counts} rows of the groups count for {options.gap}.",
        highlight=False,
        soft_wrap=True,
    )
    return needed


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        prog="train.py labels",
        description="How many rows with a known S an audit needs for an interval of a given width.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--width", type=float, required=True, help="Width of the interval, such as 0.05.")
    add("--gap", choices=sorted(_RATES), default="dDP", help="Which gap.")
    add("--pilot", help="An audit.json, which shares and rates are taken from.")
    add("--grouping", help="Which grouping of the pilot, such as race; by default its first.")
    add("--shares", default="0.5,0.5", help="Shares of the groups.")
    add("--rates", help="Selection rates of the groups (true positive rates for dEO).")
    add("--base_rates", help="Shares of target 1 in each group, for dEO; 0.5 by default.")
    add("--level", type=float, default=0.95, help="Confidence level.")
    return parser


def _given(options: argparse.Namespace) -> tuple[list[float], list[float] | None]:
    shares = _numbers("shares", options.shares, None)
    if len(shares) < 2 or sum(shares) > 1 + 1e-6 or min(shares) <= 0:
        raise InputError(f"--shares {options.shares}: expected two or more positive shares of 1 in all.")
    if options.gap == "dEO":
        base = _numbers("base_rates", options.base_rates or "0.5," * len(shares), len(shares))
        if min(base) <= 0:
            raise InputError(f"--base_rates {options.base_rates}: expected shares above 0.")
        shares = [share * rate for share, rate in zip(shares, base, strict=True)]
    return shares, None if options.rates is None else _numbers("rates", options.rates, len(shares))


def _numbers(name: str, text: str, expected: int | None) -> list[float]:
    try:
        numbers = [float(part) for part in text.strip("[], ").split(",")]
    except ValueError:
        raise InputError(f"--{name} {text}: expected numbers with commas, such as 0.3,0.7.") from None
    if expected not in (None, len(numbers)) or not all(0 <= number <= 1 for number in numbers):
        raise InputError(f"--{name} {text}: expected a number between 0 and 1 for each of the groups.")
    return numbers


def _from_pilot(options: argparse.Namespace) -> tuple[list[float], list[float]]:
    try:
        found: dict[str, Any] = json.loads(Path(options.pilot).read_text(encoding="utf-8"))
        groupings = {grouping["name"]: grouping for grouping in found["groupings"]}
        fewest = int(found["min_rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"--pilot {options.pilot}: this is not an audit.json ({error!r})") from error
    name = options.grouping or next(iter(groupings))
    if name not in groupings:
        raise InputError(f"--grouping {name}: no such grouping; {did_you_mean(name, groupings)}")
    rows = "rows" if options.gap == "dDP" else "positives"
    labelled = groupings[name]["groups"]
    if any(group[rows] is None for group in labelled):
        raise InputError(f"--pilot {options.pilot}: it has no true labels, which --gap {options.gap} needs.")
    # The audit leaves smaller groups out of the gap, too.
    groups = [group for group in labelled if group[rows] >= fewest]
    if len(groups) < 2:
        raise InputError(f"--pilot {options.pilot}: there are not two groups with {fewest} or more {rows}.")
    total = sum(group["rows"] for group in labelled)
    # A rate of exactly 0 or 1 in a small pilot is not one in the population.
    rates = [(group[_RATES[options.gap]] * group[rows] + 0.5) / (group[rows] + 1) for group in groups]
    return [group[rows] / total for group in groups], rates
