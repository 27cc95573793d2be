"""What was measured of a model, and of the one it is compared with, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Change: TypeAlias = Literal[
    "fairer, beyond noise", "no difference shown", "less fair, beyond noise", "not estimable"
]
AccuracyChange: TypeAlias = Literal[
    "more accurate, beyond noise", "no difference shown", "less accurate, beyond noise", "not estimable"
]


@dataclass(frozen=True)
class Estimate:
    """A share between 0 and 1, or a difference of two, with its 95 % interval.

    Args:
        value: The estimate; NaN where the rows do not allow one.
        low: Lower end of the interval; NaN if it is not known.
        high: Upper end.
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def is_known(self) -> bool:
        """Whether there is an estimate."""
        return not math.isnan(self.value)

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return not (math.isnan(self.low) or math.isnan(self.high))


@dataclass(frozen=True)
class Gap:
    """A fairness gap.

    Args:
        name: ``dEO``, ``dDP`` or ``dEOdds``.
        scope: What it is about: an attribute, or a data set.
        estimate: The model's gap.
        mode: Of decisions, ``hard``, or of probabilities, ``prob``.
        other: The gap of the model that it is compared with.
        difference: The model's gap minus the other's.
        note: A few words, such as why it is not estimable.
    """

    name: str
    scope: str
    estimate: Estimate
    mode: str = "hard"
    other: Estimate | None = None
    difference: Estimate | None = None
    note: str = ""

    @property
    def change(self) -> Change | None:
        """What the interval of the difference allows to say; ``None`` without another model."""
        if self.difference is None:
            return None
        if not self.difference.has_interval:
            return "not estimable"
        if self.difference.high < 0:
            return "fairer, beyond noise"
        return "less fair, beyond noise" if self.difference.low > 0 else "no difference shown"


@dataclass(frozen=True)
class GroupRates:
    """Rates of one group.

    Args:
        scope: The attribute.
        group: The group's name.
        rows: How many rows it has.
        rates: Estimates by the name of the rate.
        note: A few words, such as why it is not estimable.
    """

    scope: str
    group: str
    rows: int
    rates: Mapping[str, Estimate]
    note: str = ""


@dataclass(frozen=True)
class AccuracyAgainst:
    """What fairness costs, or does not: the accuracy beside that of another model.

    Args:
        other: The other model's accuracy.
        difference: The model's accuracy minus the other's.
    """

    other: Estimate
    difference: Estimate

    @property
    def change(self) -> AccuracyChange:
        """What the interval of the difference allows to say."""
        if not self.difference.has_interval:
            return "not estimable"
        if self.difference.low > 0:
            return "more accurate, beyond noise"
        return "less accurate, beyond noise" if self.difference.high < 0 else "no difference shown"
