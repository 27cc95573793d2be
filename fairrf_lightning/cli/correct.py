"""The command ``correct``: of a checkpoint, or of the scores of any model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fairrf_lightning.certificate import certify_rows
from fairrf_lightning.certificate.knowledge import Knowledge, read_knowledge
from fairrf_lightning.checkpoints import WholeFileIO
from fairrf_lightning.cli.parsing import DataOverrides, call, takes_options_of
from fairrf_lightning.cli.tables import print_lines, print_table
from fairrf_lightning.correct import CorrectionResult, correct, correct_scores
from fairrf_lightning.correction import Correction
from fairrf_lightning.errors import InputError, check_output, writing_file
from fairrf_lightning.messages import first_upper, shell_command

CORRECTED = "corrected.ckpt"


def run_correct(args: Sequence[str]) -> Any:
    """Run ``correct`` with the arguments behind its name."""
    of_scores = any(arg.partition("=")[0] == "--predictions" for arg in args)
    return call(correct_scores_command if of_scores else correct_command, args, "correct")


@takes_options_of(correct, "source", "trust", "data_options")
def correct_command(
    checkpoint: Path,
    *,
    data: DataOverrides,
    out: Path | None = None,
    trust: Sequence[str] = (),
    **options: Any,
) -> CorrectionResult:
    """Correct the decisions of a finished run towards a fairness goal.

    The sensitive attribute (S) need not be in its data. Give one of --survey, --proxies and --column. For
    the scores of another model: correct --predictions scores.csv (see correct --predictions --help).

    Args:
        checkpoint: Checkpoint or folder of a run.
        data: Options of the data that differ from those in training, such as --data.path new.csv.
        out: Checkpoint to write; by default corrected.ckpt next to the given one.
        trust: Import paths of your own classes that the checkpoint may use.
        options: Passed on to :func:`correct`.

    Example:
        correct lightning_logs/version_0 --survey survey.csv --goal dp=0.10
        correct best.ckpt --proxies proxies.yaml --max_accuracy_loss 0.01
    """
    run = data.load(checkpoint, trust)
    path = out or run.path.with_name(CORRECTED)
    _check_output(path, run.path)
    found = correct(run, **options)
    _print_correction(found, run.data.feature_names, options["proxies"])
    if found.correction is not None:
        with writing_file("--out", path):
            WholeFileIO().save_checkpoint(found.checkpoint(), path)
        print_lines(f"Wrote {path}, which test, predict, audit and report accept.")
        print_lines("Next:", *(f"  {command}" for command in _next_commands(path, options, trust)))
    return found


@takes_options_of(correct_scores, "predictions")
def correct_scores_command(predictions: Path, *, out: Path | None = None, **options: Any) -> CorrectionResult:
    """Correct the scores of any model towards a fairness goal.

    The sensitive attribute (S) of the rows need not be known. Give one of --survey, --proxies and --column.
    Files of any size are streamed.

    Args:
        predictions: CSV or Parquet file with scores, true classes and columns that describe a person.
        out: File to write, CSV or Parquet; by default corrected_NAME next to the scores.
        options: Passed on to :func:`correct_scores`.

    Example:
        correct --predictions scores.csv --survey survey.csv --sensitive gender --goal dp=0.10
    """
    path = out or predictions.with_name(f"corrected_{predictions.name.removesuffix('.gz')}")
    _check_output(path, predictions)
    scores = correct_scores(predictions, **options)
    found = scores.result
    _print_correction(found, scores.data.feature_names, options["proxies"])
    if found.correction is not None:
        with writing_file("--out", path):
            rows = scores.write(path)
        print_lines(f"Wrote {path}: {rows:,} rows with corrected_probability and corrected_decision.")
    return found


def _check_output(path: Path, source: Path) -> None:
    """Raise before the work if the result cannot be written."""
    check_output("--out", path, CORRECTED)
    if path.absolute() == source.absolute():
        raise InputError(f"--out {path}: this is the uncorrected file, which is kept; name another one.")


def _print_correction(found: CorrectionResult, names: Sequence[str], proxies: str | Path | None) -> None:
    """Print the table, what stopped the correction, the warnings and, for statistics, certified bounds."""
    print_table(found.table(), title=f"Correction by {found.source}")
    print_lines(
        *(f"{first_upper(line)}." for line in found.statements()),
        *(f"warning: {line}." for line in found.warnings()),
    )
    if proxies is not None and found.correction is not None:
        print_lines(*_bound_lines(found, found.correction, read_knowledge(str(proxies), names), names))


@torch.no_grad()
def _bound_lines(
    found: CorrectionResult, correction: Correction, known: Knowledge, names: Sequence[str]
) -> Iterator[str]:
    """Yield the certified bounds of the gap before and after: correlations alone give no estimate of it."""
    test = found.test
    columns = test.inputs[:, [list(names).index(name) for name in known.names]]
    bounds = {}
    for name, probs in (("before", test.scores), ("after", correction(test.scores, test.inputs))):
        bounds[name] = certify_rows(probs, columns, known).rows["hard"].bound
        rows = f"dDP of the {len(test.scores):,} test rows is at most"
        yield f"{name}: {rows} {bounds[name]:.3f} (certified, decisions)."
    if bounds["after"] > bounds["before"]:
        yield "The bound is the worst case: it may rise while the gap falls."


def _next_commands(path: Path, options: Mapping[str, Any], trust: Sequence[str]) -> Iterator[str]:
    yield shell_command("test", path)
    yield shell_command("predict", path)
    if options["survey"] is not None:
        given = {name: options[name] for name in ("survey", "sensitive", "group")}
        given["trust"] = ",".join(trust)
        pairs = ((f"--{name}", str(value)) for name, value in given.items() if value)
        yield shell_command("audit", path, *(part for pair in pairs for part in pair))
