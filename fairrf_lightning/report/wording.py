"""How numbers and names are put into words, the same on the page and on the card."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.report.facts import Estimate

GAP_WORDS = {gap.label: gap.name for gap in GAPS.values()}
GAP_MEANING = {
    "dEO": "largest minus smallest share of true positives that are accepted",
    "dDP": "largest minus smallest share of accepted rows",
    "dEOdds": "the larger gap of true and of false positive rates",
}
# What a gap is about, for a sentence: "the shares of ... differ by".
GAP_SUBJECT = {
    "dEO": "the true positive rates",
    "dDP": "the selection rates",
    "dEOdds": "the true or the false positive rates",
}
NOT_ESTIMABLE = "not estimable"
# What no report of our own models leaves out.
LINEAR_ONLY = (
    "FairRF removes linear dependence on the related features that were named; it cannot know others."
)
NONE = "\N{EN DASH}"


def percent(value: float, digits: int = 1) -> str:
    """Return a share as a percentage.

    >>> percent(0.8523)
    '85.2 %'
    """
    return NONE if math.isnan(value) else f"{100 * value:.{digits}f} %"


def points(value: float, digits: int = 1, *, signed: bool = False) -> str:
    """Return a difference of shares in percentage points.

    >>> points(0.0154, signed=True)
    '+1.5 points'
    """
    if math.isnan(value):
        return NONE
    return f"{_number(100 * value, digits, signed=signed)} points"


def interval(estimate: Estimate, digits: int = 1, *, signed: bool = False) -> str:
    """Return the ends of an interval, times 100.

    >>> interval(Estimate(0.02, 0.01, 0.064))
    '1.0 to 6.4'
    """
    if not estimate.has_interval:
        return NOT_ESTIMABLE
    ends = (_number(100 * end, digits, signed=signed) for end in (estimate.low, estimate.high))
    return " to ".join(ends)


def limits(low: float, high: float) -> str:
    """Return the limits of a correlation or a share, as one number where they are the same.

    >>> limits(0.1, 0.3)
    '0.100 to 0.300'
    """
    ends = dict.fromkeys(_number(end, 3, signed=False) for end in (low, high))
    return " to ".join(ends)


def number(estimate: Estimate, digits: int = 2, *, signed: bool = False) -> str:
    """Return the estimate times 100, for a table whose heading has the unit."""
    return _number(100 * estimate.value, digits, signed=signed) if estimate.is_known else NONE


def listing(names: Iterable[str]) -> str:
    """Return names as a sentence has them.

    >>> listing(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _number(value: float, digits: int, *, signed: bool) -> str:
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")  # no minus nought
    return text.replace("-", "\N{MINUS SIGN}")
