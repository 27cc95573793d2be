"""The figures of each group: accuracy, AUC, rates and calibration, from the counts of its cells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fairrf_lightning.audit.cells import CellCounts, Ints
from fairrf_lightning.metrics.intervals import wilson_interval

NAN = float("nan")
# Figures that need no true labels; all others are not applicable without them.
_WITHOUT_LABELS = {"rows", "selection_rate", "selection_rate_low", "selection_rate_high", "mean_probability"}


@dataclass(frozen=True)
class Grouping:
    """Groups by one attribute or several, as sets of cells.

    Args:
        attributes: Names of the attributes.
        groups: Cells of each group that is compared, by name.
        unknown: Cells of rows whose group is not known.
    """

    attributes: tuple[str, ...]
    groups: dict[str, Ints]
    unknown: Ints

    @property
    def name(self) -> str:
        """The attributes in one word."""
        return " x ".join(self.attributes)


def groupings(cells: CellCounts, attributes: list[str], compared: dict[str, list[str]]) -> Iterator[Grouping]:
    """Yield a grouping for each attribute and, if there are several, one for their intersections."""
    places: list[tuple[int, ...]] = [(index,) for index in range(len(attributes))]
    if len(attributes) > 1:
        places.append(tuple(range(len(attributes))))
    for chosen in places:
        groups: dict[str, list[int]] = {}
        unknown = []
        for number, values in enumerate(cells.names):
            known = [(attributes[place], values[place]) for place in chosen]
            if any(v is not None and v not in compared.get(name, [v]) for name, v in known):
                continue  # a group that is known and not compared
            if any(value is None for _, value in known):
                unknown.append(number)
            else:
                groups.setdefault(_group_name([str(value) for _, value in known]), []).append(number)
        named = {name: np.array(groups[name]) for name in sorted(groups)}
        yield Grouping(tuple(attributes[place] for place in chosen), named, np.array(unknown, dtype=np.int64))


def _group_name(values: list[str]) -> str:
    """Return the values in one name; quotes keep ("a, b", "c") and ("a", "b, c") apart.

    >>> _group_name(["a, b", "c"])
    '"a, b", c'
    """
    if len(values) == 1:
        return values[0]
    quoted = [json.dumps(v, ensure_ascii=False) if "," in v or '"' in v else v for v in values]
    return ", ".join(quoted)


def group_figures(
    cells: CellCounts, chosen: Ints, model: int = 0, *, level: float = 0.95
) -> dict[str, float | None]:
    """Return the figures of one group; ``None`` where there are no rows, or no labels, to compute one from.

    Args:
        cells: All counts.
        chosen: Cells of the group.
        model: 0, or 1 for the second model, which has no AUC and no calibration error.
        level: Confidence level of the rates' intervals.
    """
    (negatives, positives), decided = cells.rows[chosen].sum(0), cells.positive[model, chosen].sum(0)
    rows = positives + negatives
    counts = {
        "accuracy": (decided[1] + negatives - decided[0], rows),
        "selection_rate": (decided.sum(), rows),
        "true_positive_rate": (decided[1], positives),
        "false_positive_rate": (decided[0], negatives),
    }
    figures: dict[str, float] = {"rows": rows, "positives": positives, "base_rate": ratio(positives, rows)}
    for name, (part, whole) in counts.items():
        low, high = (limit.item() for limit in wilson_interval(float(part), float(whole), level))
        figures |= {name: ratio(part, whole), f"{name}_low": low, f"{name}_high": high}
    if cells.has_probs:
        figures["mean_probability"] = ratio(cells.sums[model, chosen].sum(), rows)
        if model == 0:
            figures["auc"], figures["auc_error"] = auc(cells, chosen)
            figures["calibration_error"] = calibration_error(cells, chosen)
    known = _WITHOUT_LABELS if not cells.has_labels else figures
    return {name: plain(value) if name in known else None for name, value in figures.items()}


def auc(cells: CellCounts, chosen: Ints) -> tuple[float, float]:
    """Return the area under the ROC curve, and how far it may be off because scores were binned."""
    _, negatives, positives = cells.scores(chosen)
    pairs = float(negatives.sum()) * float(positives.sum())
    if not pairs:
        return NAN, NAN
    below = np.cumsum(negatives) - negatives
    area = float((positives * (below + negatives / 2)).sum() / pairs)
    tied = float((positives.astype(float) * negatives).sum() / pairs)
    return area, 0.0 if cells.is_exact else tied / 2


def calibration_error(cells: CellCounts, chosen: Ints) -> float:
    """Return the expected calibration error over ten equal bins of the probability."""
    counts, sums = cells.bin_rows[chosen].sum(0), cells.bin_sums[chosen].sum((0, 1))
    if not counts.sum():
        return NAN
    return float(np.abs(sums - counts[1]).sum() / counts.sum())


def plain(value: float) -> float | None:
    """Return a plain number for JSON, ``None`` for NaN."""
    number = value.item() if isinstance(value, np.generic) else value
    return None if number != number else number  # noqa: PLR0124 - NaN


def ratio(part: float, whole: float) -> float:
    """Return a share, NaN of nothing."""
    return float(part / whole) if whole else NAN
