"""The values that a report shows: sources fill :class:`Facts`, and sections are made from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fairrf_lightning.audit.result import LESS_ACCURATE, MORE_ACCURATE, verdict_of
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.metrics.counts import Mode

if TYPE_CHECKING:
    from fairrf_lightning.certificate import Certificate

Tone: TypeAlias = Literal["good", "mixed", "bad", "unknown"]


@dataclass(frozen=True)
class Estimate:
    """A share between 0 and 1, or a difference of two, with its 95 % interval; NaN where not estimable."""

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


def estimate(of: Any, name: str, low: str = "", high: str = "") -> Estimate:
    """Return a number and its limits (``<name>_low``, ``<name>_high``) of a mapping or a row of a table."""
    keys = (name, low or f"{name}_low", high or f"{name}_high")
    return Estimate(*(math.nan if of.get(key) is None else float(of[key]) for key in keys))


@dataclass(frozen=True)
class MeasuredGap:
    """A fairness gap of one model, and of the model that it is compared with.

    Args:
        name: Label of the gap, such as ``dEO``.
        scope: The attribute that defines the groups, or a data set.
        estimate: The model's gap.
        mode: ``hard`` for decisions, ``prob`` for probabilities.
        other: The compared model's gap.
        difference: The model's gap minus the compared model's.
        note: A few words, such as why it is not estimable.
    """

    name: str
    scope: str
    estimate: Estimate
    mode: Mode = "hard"
    other: Estimate | None = None
    difference: Estimate | None = None
    note: str = ""

    @property
    def change(self) -> str | None:
        """Verdict of the interval of the difference; ``None`` without another model."""
        return None if self.difference is None else verdict_of(self.difference.low, self.difference.high)


@dataclass(frozen=True)
class MeasuredGroup:
    """Rates of one group of the attribute ``scope``, by the name of the rate."""

    scope: str
    group: str
    rows: int
    rates: Mapping[str, Estimate]
    note: str = ""


@dataclass(frozen=True)
class AccuracyAgainst:
    """The compared model's accuracy, and the model's accuracy minus it."""

    other: Estimate
    difference: Estimate

    @property
    def change(self) -> str:
        """Verdict of the interval of the difference."""
        return verdict_of(self.difference.low, self.difference.high, LESS_ACCURATE, MORE_ACCURATE)


@dataclass(frozen=True)
class Dependence:
    """The penalty R of a related feature on the reported rows, and that of the compared model."""

    feature: str
    value: float
    other: float | None = None


@dataclass(frozen=True)
class Point:
    """One setting of the method ``series``, as a mean over seeds.

    Args:
        series: The method.
        label: The setting in a few words.
        accuracy: Its accuracy.
        gaps: Gaps by name.
        spread: Standard deviations over seeds by the same names, and ``accuracy``.
        mark: ``chosen`` for the setting that is recommended, else empty or a few words.
        is_single: One model rather than a mean over seeds, and therefore not part of the front.
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
    """Settings by accuracy and gap, and the rule by which one of them was chosen."""

    title: str
    points: Sequence[Point]
    rule: str = ""


@dataclass(frozen=True)
class History:
    """A related feature's value at each epoch."""

    feature: str
    epochs: Sequence[int]
    values: Sequence[float]

    def at(self, epoch: int | None) -> float | None:
        """Return the value at an epoch; ``None`` where it was not logged."""
        return next((value for e, value in zip(self.epochs, self.values, strict=True) if e == epoch), None)


@dataclass(frozen=True)
class Training:
    """Lambda and the validation penalty R of each related feature, and how the checkpoint was chosen."""

    weights: Sequence[History]
    penalties: Sequence[History]
    chosen_epoch: int | None = None
    rule: str = ""


@dataclass(frozen=True)
class DataFacts:
    """The data set: its rows by split, its inputs by column, its related features and groups.

    With estimated membership in place of related features, ``membership`` is its source.
    """

    name: str
    rows: Mapping[str, int]
    columns: Mapping[str, Sequence[str]]
    related: Sequence[str]
    sensitive: str | None
    groups: Sequence[str]
    use_of_sensitive: str
    membership: str | None = None


def data_facts(data: TabularDataModule) -> DataFacts:
    """Return the facts of a data module that has been set up."""
    options = ("sensitive", "include_sensitive", "expose_sensitive")
    return DataFacts(
        name=data.display_name,
        rows=data.split_sizes,
        columns=by_column(data.feature_names, list(data.encoder.owners)),
        related=list(data.related) if data.membership_source is None else [],
        sensitive=data.sensitive,
        groups=data.group_names,
        use_of_sensitive=use_of_sensitive({name: getattr(data, name) for name in options}),
        membership=data.membership_source,
    )


def data_name(name: str, path: object = None) -> str:
    """Return the name of a data set; the name of the file for the user's own.

    >>> data_name("table", "data/people.csv")
    'people.csv'
    """
    return Path(str(path)).name if path and name == "table" else name


def by_column(inputs: Sequence[str], columns: Sequence[str]) -> dict[str, list[str]]:
    """Return the model's inputs by the column that they encode."""
    found: dict[str, list[str]] = {name: [] for name in columns}
    for name in inputs:
        column = next((of for of in columns if name == of or name.startswith(f"{of}=")), name.split("=")[0])
        found.setdefault(column, []).append(name)
    return {column: names for column, names in found.items() if names}


def use_of_sensitive(options: Mapping[str, Any]) -> str:
    """Return how training used the sensitive attribute."""
    sensitive = options["sensitive"]
    if sensitive is None:
        return "The data have no sensitive attribute."
    if options["include_sensitive"]:
        return f"{sensitive} is an input of the model."
    if options["expose_sensitive"]:
        return f"{sensitive} was used by the penalty in training; it is not an input of the model."
    return f"{sensitive} was not used in training; validation and test rows have it for the gaps only."


@dataclass(frozen=True)
class Absent:
    """Why a section has no facts, and the command that provides them."""

    reason: str
    command: str = ""


@dataclass(frozen=True)
class Verdict:
    """The headline: its tone, one sentence, and the sentences that support it."""

    tone: Tone
    title: str
    sentences: Sequence[str] = ()


@dataclass(frozen=True)
class Facts:
    """All facts of one report.

    Args:
        title: What the report is about.
        subject: The model in a few words.
        split: The rows that the numbers were measured on.
        made: Date of the report.
        verdict: The headline.
        notices: What the reader must know before any number.
        other: Name of the compared model.
        absent: Why a section is empty; an empty section without a reason is left out.
        next_steps: What would make fairness measurable, for data without groups.
        limits: Limitations, in addition to those of every report.
    """

    title: str
    subject: str
    split: str
    made: str
    verdict: Verdict
    notices: Sequence[str] = ()
    accuracy: Estimate | None = None
    positive_share: Estimate | None = None
    other: str = ""
    other_positive_share: Estimate | None = None
    accuracy_against: AccuracyAgainst | None = None
    gaps: Sequence[MeasuredGap] = ()
    groups: Sequence[MeasuredGroup] = ()
    dependences: Sequence[Dependence] = ()
    fronts: Sequence[Front] = ()
    training: Training | None = None
    certificate: Certificate | None = None
    data: DataFacts | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, Absent] = field(default_factory=dict)
    next_steps: Sequence[Absent] = ()
    limits: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with ``None`` for NaN."""
        certified = None if self.certificate is None else self.certificate.to_dict()
        plain: dict[str, Any] = _without_nan(asdict(replace(self, certificate=None)))
        return plain | {"certificate": certified}


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
