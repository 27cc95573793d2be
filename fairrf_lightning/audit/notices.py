"""The notices of an audit: what a reader must know before any number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairrf_lightning.metrics.decisions import SAME_DECISION, is_constant, nearly_constant

NO_LABELS = (
    "No true labels: selection rates and dDP are measured; accuracy, true and false positive rates, AUC, "
    "calibration, dEO and dEOdds are not applicable. If the file has labels, name their column by --target."
)


def notices(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield that all or almost all decisions are the same, and that labels are absent.

    Args:
        result: An audit, as ``audit.json`` has it.
    """
    for key, whose in (("overall", ""), ("against", "of the other model: ")):
        figures = result.get(key)
        if words := SAME_DECISION if has_same_decision(figures) else _nearly_same(figures):
            line = f"{whose}{words}."
            yield f"{line[0].upper()}{line[1:]}"
    if not has_labels(result):
        yield NO_LABELS
    elif result["overall"].get("base_rate") in (0, 1):
        yield (
            f"Every true label is {result['overall']['base_rate']:g}: if these are not real labels, "
            "accuracy, calibration, dEO and dEOdds mean nothing; --target '' leaves them out."
        )


def has_same_decision(figures: Mapping[str, Any] | None) -> bool:
    """Return whether a model decides on all rows in the same way."""
    rate = (figures or {}).get("selection_rate")
    return rate is not None and is_constant(rate)


def _nearly_same(figures: Mapping[str, Any] | None) -> str | None:
    names = ("selection_rate", "true_positive_rate", "false_positive_rate")
    share, hits, false_alarms = ((figures or {}).get(name) for name in names)
    if share is None or hits is None or false_alarms is None:
        return None
    return nearly_constant(share, (hits + 1 - false_alarms) / 2)


def has_labels(result: Mapping[str, Any]) -> bool:
    """Return whether the rows have true labels; older audits always had them."""
    return bool(result.get("labels", True))
