"""The result of an audit as plain values, and its files.

``audit.json`` (schema 1) holds::

    schema, level, threshold, min_rows, rows
    labels      whether the rows have true labels; without them only rows, selection_rate,
                mean_probability and dDP are numbers, and all else is null
    notices     what to read first: all decisions are the same, no labels, a penalty that never acted
    source      {kind: checkpoint | predictions, path, against, data, split}
    overall     figures of all rows, see below
    against     the same of the other model, without AUC and calibration, or null
    accuracy_difference  null, or {value, low, high, verdict; both_right, only_first_right,
                only_second_right, both_wrong}: accuracy minus the other model's on the same rows
                (Tango, at level), and the counts of rows behind it
    groupings   list of {name, attributes, unknown_rows, groups, gaps}
      groups    list of {name, estimable} + figures: rows, positives, base_rate; accuracy, selection_rate,
                true_positive_rate, false_positive_rate, each with _low and _high (Wilson, at level);
                mean_probability, auc, auc_error, calibration_error, of models with probabilities
      gaps      list of {gap: dDP | dEO | dEOdds, mode: hard | prob, estimable, left_out: [group names],
                value, low, high, bounds: [smallest, largest] or null, against: null or
                {value, low, high, difference, difference_low, difference_high, verdict, bounds,
                difference_bounds: outer ones, [smallest, largest] or null}}

A number that cannot be estimated is null. ``audit_groups.csv`` has a line for each group; a name in it that
a spreadsheet program would take for a formula has an apostrophe in front (``fairrf_lightning/files.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairrf_lightning.audit.accuracy import accuracy_difference
from fairrf_lightning.audit.cells import CellCounts
from fairrf_lightning.audit.figures import group_figures, groupings
from fairrf_lightning.audit.gaps import grouping_gaps
from fairrf_lightning.audit.notices import notices
from fairrf_lightning.errors import writing_to
from fairrf_lightning.files import write_csv, write_text

SCHEMA = 1


def audit(
    cells: CellCounts,
    attributes: list[str],
    *,
    source: Mapping[str, Any],
    compared: dict[str, list[str]] | None = None,
    level: float = 0.95,
    threshold: float = 0.5,
    min_rows: int = 10,
    of_models: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the audit of counted predictions, as ``audit.json`` holds it.

    Args:
        cells: Counts of the predictions.
        attributes: Sensitive attributes, in the order of the cells' values.
        source: What was audited.
        compared: Values of an attribute that are compared; by default all.
        level: Confidence level of all intervals.
        threshold: Probability from which on a decision was positive.
        min_rows: A group with fewer rows is not estimable.
        of_models: Notices about the models, which join those of the rows.
    """
    every = np.arange(len(cells.names))
    result = {
        "schema": SCHEMA,
        "level": level,
        "threshold": threshold,
        "min_rows": min_rows,
        "rows": int(cells.rows.sum()),
        "labels": cells.has_labels,
        "source": dict(source),
        "overall": group_figures(cells, every, level=level),
        "against": group_figures(cells, every, model=1, level=level) if cells.num_models == 2 else None,
        "accuracy_difference": accuracy_difference(cells, level),
        "groupings": [
            {
                "name": grouping.name,
                "attributes": list(grouping.attributes),
                "unknown_rows": int(cells.rows[grouping.unknown].sum()),
                "groups": [
                    {"name": name, "estimable": bool(cells.rows[chosen].sum() >= min_rows)}
                    | group_figures(cells, chosen, level=level)
                    for name, chosen in grouping.groups.items()
                ],
                "gaps": list(grouping_gaps(cells, grouping, level, min_rows)),
            }
            for grouping in groupings(cells, attributes, compared or {})
        ],
    }
    return result | {"notices": [*notices(result), *of_models]}


def write_audit(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``audit.json`` and ``audit_groups.csv``, each as a whole, and return their paths."""
    lines = [
        {"grouping": grouping["name"], **group}
        for grouping in result["groupings"]
        for group in grouping["groups"]
    ]
    paths = [folder / "audit.json", folder / "audit_groups.csv"]
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(paths[0], json.dumps(result, indent=2, allow_nan=False) + "\n")
        write_csv(pd.DataFrame(lines), paths[1])
    return paths
