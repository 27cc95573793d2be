"""The notices of an audit: what a reader must know before any number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairrf_lightning.metrics.decisions import SAME_DECISION, is_constant

NO_LABELS = (
    "No true labels: selection rates and dDP are measured; accuracy, true and false positive rates, AUC, "
    "calibration, dEO and dEOdds are not applicable. If the file has labels, name their column by --target."
)


def notices(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield that all decisions are the same, and that labels are absent.

    Args:
        result: An audit, as ``audit.json`` has it.
    """
    for key, words in (("overall", SAME_DECISION), ("against", f"of the other model: {SAME_DECISION}")):
        if has_same_decision(result.get(key)):
            yield f"{words[0].upper()}{words[1:]}."
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


def has_labels(result: Mapping[str, Any]) -> bool:
    """Return whether the rows have true labels; older audits always had them."""
    return bool(result.get("labels", True))
