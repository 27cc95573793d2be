"""The parts of :class:`~fairrf_lightning.report.facts.Facts` beside what was measured, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Tone: TypeAlias = Literal["good", "mixed", "bad", "unknown"]


@dataclass(frozen=True)
class Point:
    """One setting, as a mean over seeds.

    Args:
        series: The method.
        label: The setting in a few words.
        accuracy: Its accuracy.
        gaps: Gaps by name.
        spread: Standard deviations over seeds by the same names, and ``accuracy``.
        mark: ``chosen`` for the setting that is taken, else empty or a few words.
        is_single: One model, not a mean over seeds, and so no part of the front.
    """

    series: str
    label: str
    accuracy: float
    gaps: Mapping[str, float]
    spread: Mapping[str, float] = field(default_factory=dict)
    mark: str = ""
    is_single: bool = False


@dataclass(frozen=True)
class Front:
    """Settings in the plane of accuracy and gap.

    Args:
        title: Of the figure.
        points: The settings.
        rule: How the chosen one was chosen.
    """

    title: str
    points: Sequence[Point]
    rule: str = ""


@dataclass(frozen=True)
class Path:
    """A feature's value over the epochs."""

    feature: str
    epochs: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True)
class Training:
    """Lambda and the penalty R of each related feature over training.

    Args:
        weights: Paths of lambda.
        penalties: Paths of R on the validation split.
        chosen_epoch: The epoch whose checkpoint was chosen.
        rule: How it was chosen.
    """

    weights: Sequence[Path]
    penalties: Sequence[Path]
    chosen_epoch: int | None = None
    rule: str = ""


@dataclass(frozen=True)
class CertifiedGap:
    """What is certain of dDP without S; shares between 0 and 1.

    Args:
        mode: Of decisions, ``hard``, or of probabilities, ``prob``.
        low: Least possible rate of the group minus that of all others.
        high: Largest possible.
        by_method: Bounds of dDP by what they make use of.
        population: Bound of dDP for the population of the rows.
        measured: The truth, where the data tell S after all.
    """

    mode: str
    low: float
    high: float
    by_method: Mapping[str, float]
    population: float | None = None
    measured: float | None = None

    @property
    def bound(self) -> float:
        """The largest dDP that is possible."""
        return max(self.high, -self.low)


@dataclass(frozen=True)
class Certificate:
    """What holds of dDP without S.

    Args:
        claim: The certified sentence.
        group: The group that is compared with all others.
        source: Where the correlations are known from.
        gaps: The bounds, of decisions and of probabilities.
        correlations: Limits of each column's correlation with S.
        share: Limits of the group's share.
        statements: The certificate in plain words.
        adds_nothing: Whether the bound on the decisions follows from the share of S alone.
    """

    claim: str
    group: str
    source: str
    gaps: Sequence[CertifiedGap]
    correlations: Mapping[str, tuple[float, float]]
    share: tuple[float, float]
    statements: Sequence[str] = ()
    adds_nothing: bool = False


@dataclass(frozen=True)
class Data:
    """The data set and its columns.

    Args:
        name: The data set.
        rows: Rows of each part.
        columns: Input columns of the model, grouped by the column of the table.
        related: Related features.
        sensitive: The sensitive attribute, if the data have it.
        groups: Its groups.
        use_of_sensitive: What the model saw of it.
    """

    name: str
    rows: Mapping[str, int]
    columns: Mapping[str, Sequence[str]]
    related: Sequence[str]
    sensitive: str | None
    groups: Sequence[str]
    use_of_sensitive: str


@dataclass(frozen=True)
class Absent:
    """Why a section has no facts, and the command that gives them."""

    reason: str
    command: str = ""


@dataclass(frozen=True)
class Verdict:
    """The headline: its tone, one sentence, and what supports it."""

    tone: Tone
    title: str
    sentences: Sequence[str] = ()
