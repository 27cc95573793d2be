"""``python train.py audit --ckpt_path best.ckpt --data compas --groups race,sex``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from fairrf_lightning.audit.cells import Batch, CellCounts
from fairrf_lightning.audit.checkpoint import evaluate_checkpoint
from fairrf_lightning.audit.predictions import PredictionsFile, column_names
from fairrf_lightning.audit.result import audit, write_audit
from fairrf_lightning.audit.tables import print_audit
from fairrf_lightning.errors import InputError, check_writable, writing_to
from fairrf_lightning.load import EvaluatedRows
from fairrf_lightning.metrics.intervals import normal_quantile
from fairrf_lightning.option_parser import OptionParser
from fairrf_lightning.quiet import quiet_lightning
from fairrf_lightning.report import Facts, write_report_if_installed
from fairrf_lightning.report.sources import REPORTED_LEVEL, audit_facts

_TARGET = "target"
_PROBABILITIES = ("prob", "probability")  # `predict` writes the second


def run_audit(args: Sequence[str]) -> dict[str, Any]:
    """Audit a checkpoint or a file of predictions, print the tables and write ``audit.json``."""
    options, rest = _parser().parse_known_args(list(args))
    _check(options, rest)
    result = (_of_predictions if options.predictions else _of_checkpoint)(options, rest)
    print_audit(result)
    paths = write_audit(result, Path(options.out))
    written, hint = write_report_if_installed(partial(_facts, result), options.out)
    Console().print(f"Wrote {', '.join(map(str, [*paths, *written]))}", highlight=False, soft_wrap=True)
    if options.level != REPORTED_LEVEL:
        hint = f"No report.html: its intervals are at {REPORTED_LEVEL:g}, these at {options.level:g}."
    if hint:
        Console().print(hint, highlight=False, markup=False, soft_wrap=True)
    return result


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        prog="train.py audit",
        description="Measure accuracy and gaps by group, with intervals, of a checkpoint or of predictions.",
        epilog="Of a checkpoint: --ckpt_path, --data and the other options of test.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--groups", default="", help="Sensitive columns, such as race,sex; by default the S of the data.")
    add("--against", help="Another checkpoint on the same rows; of --predictions, the other model's column.")
    add("--split", default="test", help="train, val or test.")
    add("--predictions", help="CSV or Parquet file of predictions of any model.")
    add("--prob", help="Its column of probabilities; by default 'prob' or 'probability', without --decision.")
    add("--decision", help="Its column of decisions; by default the probability against the threshold.")
    add(
        "--target",
        help="Its column of true classes; by default 'target' if there is one. Without true classes ('') "
        "selection rates and dDP are measured, and nothing else.",
    )
    add("--threshold", type=float, default=0.5, help="Probability from which on a decision is positive.")
    add("--level", type=float, default=0.95, help="Confidence level of the intervals of rates and gaps.")
    add("--min_rows", type=int, default=10, help="Groups with fewer rows are not estimable.")
    add("--out", default="audit", help="Folder of audit.json and audit_groups.csv.")
    return parser


def _facts(result: dict[str, Any]) -> Facts | None:
    return audit_facts(result) if result["level"] == REPORTED_LEVEL else None


def _check(options: argparse.Namespace, rest: list[str]) -> None:
    normal_quantile(options.level)
    if not 0 <= options.threshold <= 1:
        raise InputError(f"--threshold {options.threshold}: expected a probability between 0 and 1.")
    if options.min_rows < 1:
        raise InputError(f"--min_rows {options.min_rows}: expected 1 or more.")
    if Path(options.out).is_file():
        raise InputError(f"--out {options.out}: this is a file; name a folder.")
    with writing_to(options.out):  # before the work, which may take long
        check_writable(Path(options.out))
    if not options.predictions and not rest:
        raise InputError("audit needs a model: --ckpt_path and --data, or --predictions file.csv.")


def _of_predictions(options: argparse.Namespace, rest: list[str]) -> dict[str, Any]:
    if rest:
        raise InputError(f"{' '.join(rest)}: not an option of audit --predictions.")
    attributes = _names(options.groups)
    if not attributes:
        raise InputError("--groups is not given: name the sensitive columns of the file, such as race,sex.")
    named = options.target or _TARGET
    if named in attributes:
        raise InputError(
            f"--groups {named}: this column is the true class, not a group of people; name a "
            "sensitive column, or the true class by --target."
        )
    file = PredictionsFile(
        Path(options.predictions),
        _target(options),
        tuple(attributes),
        _prob(options),
        options.decision,
        options.against,
        options.threshold,
    )
    source = {"kind": "predictions", "path": options.predictions, "against": options.against}
    return _audit(file.count(), attributes, options, source | {"data": None, "split": None})


def _target(options: argparse.Namespace) -> str | None:
    """Return the column of true classes that was named, or else the usual one if the file has it."""
    if options.target is not None:
        return str(options.target) or None
    return _TARGET if _TARGET in column_names(Path(options.predictions)) else None


def _prob(options: argparse.Namespace) -> str | None:
    """Return the column of probabilities that was named, or else the usual one of the file."""
    if options.prob or options.decision:
        return options.prob or None
    columns = column_names(Path(options.predictions))
    return next((name for name in _PROBABILITIES if name in columns), _PROBABILITIES[0])


def _of_checkpoint(options: argparse.Namespace, rest: list[str]) -> dict[str, Any]:
    names = _names(options.groups)
    rows = evaluate_checkpoint(rest, options.split, names)
    attributes = [str(name) for name in rows.attributes]
    if not attributes:
        raise InputError("the data name no sensitive attribute: name columns by --groups.")
    notices = rows.run.notices
    probabilities = [rows.probabilities.numpy()]
    if options.against:
        others = [*_without_checkpoint(rest), f"--ckpt_path={options.against}"]
        with quiet_lightning():  # of the same rows all was said
            other = evaluate_checkpoint(others, options.split, names)
        probabilities.append(_same_rows(rows, other))
        notices = [*notices, *other.run.notices]
    cells = count_rows(rows.target.numpy(), np.stack(probabilities), rows.attributes, options.threshold)
    source = {"kind": "checkpoint", "path": rows.checkpoint, "against": options.against}
    source |= {"data": rows.data_name, "split": rows.split}
    return _audit(cells, attributes, options, source, compared=rows.compared, notices=notices)


def _audit(
    cells: CellCounts,
    attributes: list[str],
    options: argparse.Namespace,
    source: dict[str, Any],
    *,
    compared: dict[str, list[str]] | None = None,
    notices: Sequence[str] = (),
) -> dict[str, Any]:
    return audit(
        cells,
        attributes,
        source=source,
        compared=compared,
        level=options.level,
        threshold=options.threshold,
        min_rows=options.min_rows,
        of_models=notices,
    )


def count_rows(
    target: np.ndarray[Any, Any] | None,
    probabilities: np.ndarray[Any, Any],
    attributes: pd.DataFrame,
    threshold: float = 0.5,
) -> CellCounts:
    """Count rows in memory.

    Args:
        target: Classes 0 or 1, ``(N,)``, or ``None`` without true labels.
        probabilities: Of one model or two, ``(models, N)``.
        attributes: Values of the sensitive attributes, one line per row; missing where unknown. A table
            without columns is one group.
        threshold: Decision threshold.

    Raises:
        InputError: If a probability is not a number from 0 to 1.
    """
    if not ((probabilities >= 0) & (probabilities <= 1)).all():  # NaN fails as well
        raise InputError("probabilities: expected numbers from 0 to 1 for every row and model.")
    cells = CellCounts()
    codes: np.ndarray[Any, Any] = np.zeros(len(attributes), np.int64)
    if len(attributes.columns):
        by = attributes.groupby(list(attributes.columns), dropna=False, observed=True)
        codes = by.ngroup().to_numpy()
    first = attributes.iloc[np.unique(codes, return_index=True)[1]]
    numbers = [
        cells.number(tuple(None if pd.isna(value) else str(value) for value in values))
        for values in first.to_numpy(dtype=object)
    ]
    decisions = (probabilities >= threshold).astype(np.int64)
    labels = None if target is None else target.astype(np.int64)
    cells.update(Batch(labels, np.array(numbers)[codes], decisions, probabilities))
    return cells


def _same_rows(rows: EvaluatedRows, other: EvaluatedRows) -> np.ndarray[Any, Any]:
    """Return the other model's probabilities, if they are of the same rows."""
    if not np.array_equal(rows.rows.numpy(), other.rows.numpy()):
        raise InputError(
            f"--against {other.checkpoint}: the {rows.split} rows of the two checkpoints differ; train both "
            "with the same data and seed."
        )
    return other.probabilities.numpy()


def _without_checkpoint(args: list[str]) -> list[str]:
    kept = []
    skip = False
    for arg in args:
        if not skip and not arg.startswith("--ckpt_path"):
            kept.append(arg)
        skip = arg == "--ckpt_path"
    return kept


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.strip("[] ").split(",") if name.strip()))
