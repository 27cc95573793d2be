"""How much more or less accurate one model is than another on the same rows, with its interval.

A gap closes easily at the cost of right decisions, so a comparison of gaps alone would mislead.
"""

from __future__ import annotations

from typing import Any

from fairrf_lightning.audit.cells import CellCounts
from fairrf_lightning.audit.figures import plain, ratio
from fairrf_lightning.audit.gaps import NO_DIFFERENCE
from fairrf_lightning.metrics.paired import paired_difference_interval

MORE_ACCURATE = "more accurate, beyond noise"
LESS_ACCURATE = "less accurate, beyond noise"


def accuracy_difference(cells: CellCounts, level: float) -> dict[str, Any] | None:
    """Return the first model's accuracy minus the second's on all rows.

    ``None`` for a single model, or without true labels.

    Args:
        cells: All counts.
        level: Confidence level.
    """
    if cells.num_models < 2 or not cells.has_labels:
        return None
    negatives, positives = cells.rows.sum(0).tolist()
    accepted_alone = (cells.positive - cells.both).sum(1)  # (models, classes)
    # Of the negatives a model is alone in the right if it is the other one that accepts.
    right_alone = [int(accepted_alone[model, 1] + accepted_alone[1 - model, 0]) for model in (0, 1)]
    both_accept = cells.both.sum(0)
    both_right = int(both_accept[1] + negatives - accepted_alone[:, 0].sum() - both_accept[0])
    rows = negatives + positives
    low, high = paired_difference_interval(right_alone[0], right_alone[1], rows, level)
    verdict = MORE_ACCURATE if low > 0 else LESS_ACCURATE if high < 0 else NO_DIFFERENCE
    return {
        "value": plain(ratio(right_alone[0] - right_alone[1], rows)),
        "low": plain(low),
        "high": plain(high),
        "verdict": verdict,
        "both_right": both_right,
        "only_first_right": right_alone[0],
        "only_second_right": right_alone[1],
        "both_wrong": rows - both_right - sum(right_alone),
    }
