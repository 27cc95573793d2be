"""Everything that the page and the model card say, as plain values.

Readers of run folders, grids, audits and certificates fill :class:`Facts`; the page and the card are
written from it alone, so that they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fairrf_lightning.report.fact_parts import (
    Absent,
    Certificate,
    CertifiedGap,
    Data,
    Front,
    Path,
    Point,
    Tone,
    Training,
    Verdict,
)
from fairrf_lightning.report.measured_parts import AccuracyAgainst, Change, Estimate, Gap, GroupRates

__all__ = [
    "SECTIONS",
    "Absent",
    "AccuracyAgainst",
    "Certificate",
    "CertifiedGap",
    "Change",
    "Data",
    "Estimate",
    "Facts",
    "Front",
    "Gap",
    "GroupRates",
    "Path",
    "Point",
    "Tone",
    "Training",
    "Verdict",
]

SECTIONS = {
    "gaps": "Gaps between groups",
    "groups": "Rates of each group",
    "comparison": "Against another model",
    "front": "Accuracy against fairness",
    "training": "How training went",
    "certificate": "Certificate without S",
    "data": "Data and columns",
    "configuration": "Configuration",
    "versions": "Versions",
}


@dataclass(frozen=True)
class Facts:
    """All facts of one report.

    Args:
        title: What the report is about.
        subject: The model or models in a few words.
        split: The rows that the figures are from.
        made: When the report was written.
        verdict: The headline.
        notices: What the reader must know before any number, such as that the penalty never acted.
        accuracy: The model's accuracy.
        other: The name of the model that it is compared with.
        accuracy_against: The accuracy next to that model's.
        absent: Why a section is empty, for each that is.
        notes: What the reader should know of the figures.
    """

    title: str
    subject: str
    split: str
    made: str
    verdict: Verdict
    accuracy: Estimate | None = None
    other: str = ""
    accuracy_against: AccuracyAgainst | None = None
    gaps: Sequence[Gap] = ()
    groups: Sequence[GroupRates] = ()
    fronts: Sequence[Front] = ()
    training: Training | None = None
    certificate: Certificate | None = None
    data: Data | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, Absent] = field(default_factory=dict)
    notes: Sequence[str] = ()
    notices: Sequence[str] = ()

    def has(self, section: str) -> bool:
        """Whether there are facts for one of :data:`SECTIONS`."""
        names = {"comparison": "other", "front": "fronts"}
        return bool(getattr(self, names.get(section, section)))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; NaN becomes ``None``, as JSON has it."""
        plain: dict[str, Any] = _without_nan(asdict(self))
        plain["absent"] = {name: why for name, why in plain["absent"].items() if not self.has(name)}
        return plain


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
