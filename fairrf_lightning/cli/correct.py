"""The command ``correct``: of a checkpoint, or of the scores of any model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairrf_lightning.checkpoints import WholeFileIO
from fairrf_lightning.cli.correct_scores import ScoresFile, bound_lines, correct_scores, write_corrected
from fairrf_lightning.cli.parsing import DataOverrides, call
from fairrf_lightning.cli.tables import print_lines, print_table
from fairrf_lightning.correct import CorrectionResult, correct
from fairrf_lightning.errors import InputError, check_writable, writing_to
from fairrf_lightning.messages import shell_command

CORRECTED = "corrected.ckpt"


def run_correct(args: Sequence[str]) -> Any:
    """Run ``correct`` with the arguments behind its name."""
    of_scores = any(arg.partition("=")[0] == "--predictions" for arg in args)
    return call(correct_scores_command if of_scores else correct_command, args, "correct")


def correct_command(
    checkpoint: Path,
    *,
    data: DataOverrides,
    survey: Path | None = None,
    proxies: Path | None = None,
    column: str | None = None,
    sensitive: str | None = None,
    group: str | None = None,
    goal: str | None = None,
    max_accuracy_loss: float = 0.005,
    act_above: float = 0.02,
    out: Path | None = None,
    trust: Sequence[str] = (),
) -> CorrectionResult:
    """Correct the decisions of a finished run towards a fairness goal, without S in its data.

    Give one of --survey, --proxies and --column. For the scores of another model:
    correct --predictions scores.csv (see correct --predictions --help).

    Args:
        checkpoint: Checkpoint or folder of a run.
        data: Options of the data that differ from those in training, such as --data.path new.csv.
        survey: People whose S is known: a form of survey draw, or a table with the input columns.
        proxies: YAML file of S's share and its correlations with columns.
        column: Input column that holds the probability of S = 1.
        sensitive: Column of S in the survey; by default that of the data.
        group: Value that means S = 1; all others are compared with it.
        goal: Such as dp=0.10 or eo=0.05; dp or eo alone is the smallest gap within the budget. Default: dp.
        max_accuracy_loss: Accuracy that may be lost on the validation rows.
        act_above: With a survey, act only if the estimated gap exceeds this and 1.64 standard errors.
        out: Checkpoint to write; by default corrected.ckpt next to the given one.
        trust: Import paths of your own classes that the checkpoint may use.

    Example:
        correct lightning_logs/version_0 --survey survey.csv --goal dp=0.10
        correct best.ckpt --proxies proxies.yaml --max_accuracy_loss 0.01
    """
    run = data.load(checkpoint, trust)
    path = out or run.path.with_name(CORRECTED)
    _check_output(path, run.path)
    found = correct(
        run,
        survey=survey,
        proxies=proxies,
        column=column,
        sensitive=sensitive,
        group=group,
        goal=goal,
        max_accuracy_loss=max_accuracy_loss,
        act_above=act_above,
    )
    print_correction(found)
    print_lines(*bound_lines(found, run.data.feature_names, proxies))
    if found.correction is None:
        return found
    with writing_to(f"--out {path}", "name a file in another folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        WholeFileIO().save_checkpoint(found.checkpoint(), path)
    print_lines(f"Wrote {path}, which test, predict, audit and report accept.")
    _print_next(path, survey, sensitive, group, trust)
    return found


def correct_scores_command(
    predictions: Path,
    *,
    survey: Path | None = None,
    proxies: Path | None = None,
    column: str | None = None,
    sensitive: str | None = None,
    group: str | None = None,
    prob: str | None = None,
    target: str = "target",
    positive: str | None = None,
    columns: Sequence[str] = (),
    goal: str | None = None,
    max_accuracy_loss: float = 0.005,
    act_above: float = 0.02,
    out: Path | None = None,
) -> CorrectionResult:
    """Correct the scores of any model towards a fairness goal, without S.

    Give one of --survey, --proxies and --column. Files of any size are streamed.

    Args:
        predictions: CSV or Parquet file with scores, true classes and columns that describe a person.
        survey: People whose S is known, with the same columns and the model's score of each.
        proxies: YAML file of S's share and its correlations with columns.
        column: Column that holds the probability of S = 1.
        sensitive: Column of S in the survey; by default the only one that the scores do not have.
        group: Value that means S = 1; all others are compared with it.
        prob: Column of scores from 0 to 1; by default prob or probability.
        target: Column of true classes; rows without one are corrected, but not used to choose.
        positive: Value of the true class that is the positive one; by default 1 or true.
        columns: Columns that describe a person; by default those that survey and scores share.
        goal: Such as dp=0.10 or eo=0.05; dp or eo alone is the smallest gap within the budget. Default: dp.
        max_accuracy_loss: Accuracy that may be lost.
        act_above: With a survey, act only if the estimated gap exceeds this and 1.64 standard errors.
        out: File to write, CSV or Parquet; by default corrected_NAME next to the scores.

    Example:
        correct --predictions scores.csv --survey survey.csv --sensitive gender --goal dp=0.10
    """
    path = out or predictions.with_name(f"corrected_{predictions.name.removesuffix('.gz')}")
    file = ScoresFile.find(
        predictions,
        survey=survey,
        prob=prob,
        target=target,
        positive=positive,
        columns=columns,
        sensitive=sensitive,
    )
    _check_output(path, predictions)
    found, data = correct_scores(
        file,
        survey=survey,
        proxies=proxies,
        column=column,
        sensitive=sensitive,
        group=group,
        goal=goal,
        max_accuracy_loss=max_accuracy_loss,
        act_above=act_above,
    )
    print_correction(found)
    print_lines(*bound_lines(found, data.feature_names, proxies))
    if found.correction is not None:
        with writing_to(f"--out {path}", "name a file in another folder"):
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = write_corrected(file, data, found.correction, path)
        print_lines(f"Wrote {path}: {rows:,} rows with corrected_probability and corrected_decision.")
    return found


def print_correction(found: CorrectionResult) -> None:
    """Print the table, what stopped the correction, and the warnings."""
    print_table(found.table(), title=f"Correction by {found.source}")
    lines = [f"{line[:1].upper()}{line[1:]}." for line in found.statements()]
    print_lines(*lines, *(f"warning: {line}." for line in found.warnings()))


def _print_next(
    path: Path, survey: Path | None, sensitive: str | None, group: str | None, trust: Sequence[str]
) -> None:
    named = ("--trust", ",".join(trust)) if trust else ()
    groups = [part for pair in (("--sensitive", sensitive), ("--group", group)) if pair[1] for part in pair]
    commands: list[tuple[str | Path, ...]] = [("test", path), ("predict", path)]
    if survey is not None:
        commands.append(("audit", path, "--survey", survey, *map(str, groups), *named))
    print_lines("Next:", *(f"  {shell_command(*command)}" for command in commands))


def _check_output(path: Path, source: Path) -> None:
    """Raise before the work if the checkpoint cannot be written."""
    if path.is_dir():
        raise InputError(f"--out {path}: this is a folder; name a file in it, such as {CORRECTED}.")
    if path.absolute() == source.absolute():
        raise InputError(f"--out {path}: this is the uncorrected file, which is kept; name another one.")
    with writing_to(f"--out {path}", "name a file in another folder"):
        check_writable(path.parent)
