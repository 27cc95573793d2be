"""The number of rows with a known sensitive attribute that an audit needs for an interval of a given width.

With a pilot (an ``audit.json``, or shares and rates of the groups) samples of each size are simulated, and
the answer is the smallest size at which the mean width of the gap's interval is as small as requested.
Without rates it is the worst case: for two groups, a rate of one half in both. With more groups several may
tie for the largest and for the smallest rate, which widens the interval; the hardest of a few simulated
patterns is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fairrf_lightning.audit.result import read_audit
from fairrf_lightning.datamodules.sensitive import check_randomized
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.load import Run, evaluate, load_run
from fairrf_lightning.messages import level_text
from fairrf_lightning.metrics.intervals import RateSample, gap_interval, normal_quantile
from fairrf_lightning.survey import MIN_PEOPLE

_SAMPLES = 100
_HARDEST_GAP = 1.5  # in widths of the interval: beyond noise, but with rates near one half
_MAX_ROWS = 10**9
_PILOT_COLUMNS = {"dDP": ("rows", "selection_rate"), "dEO": ("positives", "true_positive_rate")}


@dataclass(frozen=True, repr=False)
class SampleSize:
    """Number of rows with a known S that give a gap an interval of a given mean width.

    ``group_rows`` are the rows of each group that count for the gap. ``rates`` of the groups were assumed;
    ``None`` is the worst case. ``grouping`` is that of the pilot.
    """

    rows: int
    group_rows: tuple[int, ...]
    width: float
    gap: str
    level: float
    rates: tuple[float, ...] | None
    grouping: str = ""

    def __repr__(self) -> str:
        """Return the result as a sentence."""
        how = "at the hardest rates found by simulation" if len(self.group_rows) > 2 else "whatever the rates"
        if self.rates is not None:
            how = "at rates " + ", ".join(f"{rate:.3f}" for rate in self.rates)
        gap = f"{self.gap} by {self.grouping}" if self.grouping else self.gap
        return (
            f"{self.rows:,} rows with a known S give {gap} a {level_text(self.level)} interval of width "
            f"{self.width:g} ({how}).\nRows that count for {self.gap}, by group: "
            f"{', '.join(f'{rows:,}' for rows in self.group_rows)}."
        )

    def _repr_html_(self) -> str:
        return "".join(f"<p>{escape(line)}</p>" for line in repr(self).splitlines())


def sample_size(
    width: float,
    *,
    gap: str = "dDP",
    shares: Sequence[float] = (0.5, 0.5),
    rates: Sequence[float] | None = None,
    base_rates: Sequence[float] | None = None,
    pilot: Path | None = None,
    grouping: str = "",
    level: float = 0.95,
) -> SampleSize:
    """Return how many rows with a known S an audit needs.

    Args:
        width: Mean width of the interval, such as 0.05.
        gap: ``dDP`` or ``dEO``.
        shares: Share of each group.
        rates: Selection rates of the groups (true positive rates for dEO); by default the worst case.
        base_rates: Share of target 1 in each group, for dEO; by default 0.5.
        pilot: An ``audit.json`` to take shares and rates from.
        grouping: Grouping of the pilot, such as ``race``; by default its first.
        level: Confidence level.

    Raises:
        InputError: If an argument is out of range or the pilot cannot be used.

    >>> sample_size(0.1).rows
    1537
    """
    if not 0 < width < 1:
        raise InputError(f"--width {width}: expected a width between 0 and 1, such as 0.05.")
    if gap not in _PILOT_COLUMNS:
        raise InputError(f"--gap {gap}: no such gap; {did_you_mean(gap, _PILOT_COLUMNS)}")
    if pilot is None:
        counted, known = _given(gap, shares, rates, base_rates)
        grouping = ""
    else:
        counted, known, grouping = _from_pilot(pilot, gap, grouping)
    rows = worst_case(width, counted, level) if known is None else rows_needed(width, counted, known, level)
    by_group = tuple(math.ceil(rows * share) for share in counted)
    return SampleSize(rows, by_group, width, gap, level, None if known is None else tuple(known), grouping)


@dataclass(frozen=True, repr=False)
class SurveyPlan:
    """Number of people whose answers give an estimated gap an interval of a given width.

    ``assumed`` is what the number rests on, in words.
    """

    people: int
    width: float
    gap: str
    level: float
    assumed: str

    def __repr__(self) -> str:
        """Return the result as a sentence."""
        return (
            f"{self.people:,} answers give {self.gap} a {level_text(self.level)} interval of width about "
            f"{self.width:g} ({self.assumed})."
        )

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>"


def plan_survey(
    width: float,
    *,
    gap: Literal["dDP", "dEO"] = "dDP",
    ckpt_path: str | Path | Run | None = None,
    shares: Sequence[float] = (0.5, 0.5),
    selected: float | None = None,
    base_rate: float | None = None,
    explained: float = 0.0,
    randomized: float = 0.0,
    level: float = 0.95,
    trust: Sequence[str] = (),
) -> SurveyPlan:
    """Return how many people a survey needs if the gap is estimated from it (prediction powered).

    The error comes from ``(S - g)(d - mean d)``, where g is the probability of S given the inputs. So the
    rows that :func:`sample_size` gives are multiplied by the variances of the decision d and of S - g,
    relative to the worst case.

    Args:
        width: Width of the interval, between 0 and 1.
        gap: ``dDP`` or ``dEO``.
        ckpt_path: Checkpoint or run folder, to take selected and base_rate from its validation rows.
        shares: Share of each group; by default equal shares.
        selected: Share of positive decisions (for dEO, among target 1); by default 0.5, the worst case.
        base_rate: Share of people with target 1, for dEO; by default 0.5.
        explained: Share of the variance of S that the inputs explain; 0 is the worst case.
        randomized: Probability that an answer is replaced by a fair coin.
        level: Confidence level.
        trust: Import paths of your own classes that the checkpoint may use.

    Raises:
        InputError: If an argument is out of range.

    >>> plan_survey(0.1).people, plan_survey(0.1, selected=0.2, explained=0.4).people
    (1537, 591)
    """
    if ckpt_path is not None:
        run = ckpt_path if isinstance(ckpt_path, Run) else load_run(ckpt_path, trust=trust)
        rows = evaluate(run, "val")
        positive = rows.target == 1
        decided = (rows.probabilities >= 0.5)[positive if gap == "dEO" else slice(None)]
        selected = round(decided.double().mean().item(), 3) if selected is None else selected
        base_rate = round(positive.double().mean().item(), 3) if base_rate is None else base_rate
    selected, base_rate = (0.5 if value is None else value for value in (selected, base_rate))
    for name, value in (("selected", selected), ("base_rate", base_rate)):
        if not 0 < value < 1:
            raise InputError(f"--{name} {value}: expected a share between 0 and 1.")
    if not 0 <= explained < 1:
        raise InputError(f"--explained {explained}: expected a share from 0 to below 1.")
    check_randomized(randomized)
    worst = sample_size(width, gap=gap, shares=shares, base_rates=[base_rate] * len(shares), level=level)
    share, groups = min(shares), len(shares)
    answered = (1 - randomized) * share + randomized / groups
    variance = answered * (1 - answered) / (1 - randomized) ** 2 / (share * (1 - share)) - explained
    people = math.ceil(worst.rows * 4 * selected * (1 - selected) * variance)
    words = [f"positive decisions {selected:g}", f"smallest group {share:g}"]
    words += [f"target 1 {base_rate:g}"] if gap == "dEO" else []
    words += [f"inputs explain {explained:g} of S"] + ([f"randomised {randomized:g}"] if randomized else [])
    return SurveyPlan(max(people, MIN_PEOPLE), width, gap, level, "; ".join(words))


def rows_needed(width: float, shares: Sequence[float], rates: Sequence[float], level: float = 0.95) -> int:
    """Return how many labelled rows give a gap an interval of a mean width of at most ``width``.

    ``shares`` of the groups may sum to less than 1, as rows with target 0 do not count for dEO.
    """
    low, high = 0, math.ceil(_normal_rows(width, shares, level) / 64)
    while mean_width(high, shares, rates, level) > width:
        low, high = high, 2 * high
        if high > _MAX_ROWS:
            raise InputError(f"--width {width}: more than {_MAX_ROWS:,} rows would be needed.")
    while high - low > max(1, high // 200):
        middle = (low + high) // 2
        wide = mean_width(middle, shares, rates, level) > width
        low, high = (middle, high) if wide else (low, middle)
    return high


def worst_case(width: float, shares: Sequence[float], level: float = 0.95) -> int:
    """Return the number of rows that is enough for any rates.

    For two groups it follows from the normal approximation. For more it is approximate: rates between the
    simulated patterns may give a slightly wider interval (``benchmarks/labels_worst_case.py``).
    """
    rows = _normal_rows(width, shares, level)
    if len(shares) == 2:
        return rows
    widths = (mean_width(rows, shares, rates, level) for rates in _tied_rates(width, shares))
    return math.ceil(rows * max(1.0, *(found / width for found in widths)) ** 2)


def mean_width(rows: int, shares: Sequence[float], rates: Sequence[float], level: float) -> float:
    """Return the mean width of the interval over simulated samples of a number of rows."""
    counts = np.maximum(np.round(rows * np.asarray(shares)), 1).astype(np.int64)
    successes = np.random.default_rng(0).binomial(counts, rates, size=(_SAMPLES, len(counts)))
    total = torch.from_numpy(counts).double().expand(_SAMPLES, 1, -1)
    sample = RateSample(torch.from_numpy(successes).double().unsqueeze(1) / total, total)
    low, high = gap_interval(sample, level)
    return float((high - low).mean())


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


def _given(
    gap: str, shares: Sequence[float], rates: Sequence[float] | None, base_rates: Sequence[float] | None
) -> tuple[list[float], list[float] | None]:
    if len(shares) < 2 or not sum(shares) <= 1 + 1e-6 or min(shares) <= 0:
        raise InputError(f"--shares {_text(shares)}: expected two or more positive shares that sum to 1.")
    counted = list(shares)
    if gap == "dEO":
        base = [0.5] * len(counted) if base_rates is None else list(base_rates)
        _check_rates("base_rates", base, len(counted))
        if min(base) <= 0:
            raise InputError(f"--base_rates {_text(base)}: expected shares above 0.")
        counted = [share * rate for share, rate in zip(counted, base, strict=True)]
    if rates is not None:
        _check_rates("rates", rates, len(counted))
    return counted, None if rates is None else list(rates)


def _check_rates(option: str, rates: Sequence[float], groups: int) -> None:
    if len(rates) != groups or not all(0 <= rate <= 1 for rate in rates):
        raise InputError(f"--{option} {_text(rates)}: expected a number between 0 and 1 for each group.")


def _text(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


def _from_pilot(pilot: Path, gap: str, name: str) -> tuple[list[float], list[float], str]:
    """Return the shares and rates of the groups, and the name of their grouping."""
    found = read_audit(pilot)
    if "num_classes" in found:
        raise InputError(
            f"--pilot {pilot}: an audit of {found['num_classes']} classes, expected two; give --shares and "
            "--rates of one class instead."
        )
    groupings, min_rows = {one["name"]: one for one in found["groupings"]}, found["min_rows"]
    name = name or next(iter(groupings))
    if name not in groupings:
        raise InputError(f"--grouping {name}: no such grouping; {did_you_mean(name, groupings)}")
    rows, rate = _PILOT_COLUMNS[gap]
    labelled = groupings[name]["groups"]
    if any(group[rows] is None for group in labelled):
        raise InputError(f"--pilot {pilot}: it has no true labels, which --gap {gap} needs.")
    # The audit leaves smaller groups out of the gap as well.
    groups = [group for group in labelled if group[rows] >= min_rows]
    if len(groups) < 2:
        raise InputError(f"--pilot {pilot}: there are not two groups with {min_rows} or more {rows}.")
    total = sum(group["rows"] for group in labelled)
    # A rate of exactly 0 or 1 in a small pilot is not one in the population.
    rates = [(group[rate] * group[rows] + 0.5) / (group[rows] + 1) for group in groups]
    return [group[rows] / total for group in groups], rates, name
