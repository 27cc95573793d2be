"""The command ``correct``: of a checkpoint, or of the scores of any model, streamed in constant memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import torch
from torch import Tensor

from fairrf_lightning.audit.predictions import PROBABILITIES, column_names, is_parquet, read_batches
from fairrf_lightning.callbacks.run_files import PREDICTED
from fairrf_lightning.certificate import certify_rows
from fairrf_lightning.certificate.knowledge import Knowledge, read_knowledge
from fairrf_lightning.checkpoints import WholeFileIO
from fairrf_lightning.cli.parsing import DataOverrides, call, takes_options_of
from fairrf_lightning.cli.tables import print_lines, print_table
from fairrf_lightning.correct import CorrectionResult, correct, correct_rows
from fairrf_lightning.correction import Correction, Goal
from fairrf_lightning.datamodules import TableDataModule
from fairrf_lightning.datamodules.columns import TableSpec, check_column, make_frame, numbers
from fairrf_lightning.datamodules.files import read_file
from fairrf_lightning.datamodules.sensitive import RANDOMIZED
from fairrf_lightning.errors import InputError, check_output, writing_file
from fairrf_lightning.estimate import ScoredRows
from fairrf_lightning.files import replacing
from fairrf_lightning.membership import find_membership
from fairrf_lightning.messages import first_upper, quiet_lightning, shell_command
from fairrf_lightning.survey import Survey

CORRECTED = "corrected.ckpt"
_MAX_SAMPLE = 200_000  # rows on which the strength is chosen and the result is measured
_RESULTS = ("corrected_probability", "corrected_decision")


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
    """Correct the decisions of a finished run towards a fairness goal, without S in its data.

    Give one of --survey, --proxies and --column. For the scores of another model:
    correct --predictions scores.csv (see correct --predictions --help).

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


@takes_options_of(correct, "source", "survey", "sensitive", "trust", "data_options")
def correct_scores_command(
    predictions: Path,
    *,
    survey: Path | None = None,
    sensitive: str | None = None,
    prob: str | None = None,
    target: str = "target",
    positive: str | None = None,
    columns: Sequence[str] = (),
    out: Path | None = None,
    **options: Any,
) -> CorrectionResult:
    """Correct the scores of any model towards a fairness goal, without S.

    Give one of --survey, --proxies and --column. Files of any size are streamed.

    Args:
        predictions: CSV or Parquet file with scores, true classes and columns that describe a person.
        survey: People whose S is known, with the same columns and the model's score of each.
        sensitive: Column of S in the survey; by default the only one that the scores do not have.
        prob: Column of scores from 0 to 1; by default prob or probability.
        target: Column of true classes; rows without one are corrected, but not used to choose.
        positive: Value of the true class that is the positive one; by default 1 or true.
        columns: Columns that describe a person; by default those that survey and scores share.
        out: File to write, CSV or Parquet; by default corrected_NAME next to the scores.
        options: Passed on to :func:`correct_scores`.

    Example:
        correct --predictions scores.csv --survey survey.csv --sensitive gender --goal dp=0.10
    """
    path = out or predictions.with_name(f"corrected_{predictions.name.removesuffix('.gz')}")
    file = ScoresFile.find(
        predictions, survey, prob=prob, target=target, positive=positive, columns=columns, sensitive=sensitive
    )
    _check_output(path, predictions)
    found, data = correct_scores(file, survey, sensitive, **options)
    _print_correction(found, data.feature_names, options["proxies"])
    if found.correction is not None:
        with writing_file("--out", path):
            rows = write_corrected(file, data, found.correction, path)
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


@dataclass(frozen=True)
class ScoresFile:
    """A file of scores.

    Args:
        path: CSV or Parquet file with scores, true classes and the columns that describe a person.
        prob: Column of the probability of the positive class.
        target: Column of the true class; a cell may be empty.
        positive: Value of the true class that is the positive one; by default 1 or true.
        features: Columns that describe a person.
    """

    path: Path
    prob: str
    target: str
    positive: str | None
    features: tuple[str, ...]

    @classmethod
    def find(
        cls,
        path: Path,
        survey: Path | None,
        *,
        prob: str | None,
        target: str,
        positive: str | None,
        columns: Sequence[str],
        sensitive: str | None,
    ) -> ScoresFile:
        """Find the columns; by default a person is described by the columns that survey and scores share.

        Raises:
            InputError: If a column does not exist or is S, or no column describes a person.
        """
        if sensitive in columns:
            raise InputError(f"--columns {sensitive}: this is S, which must not be used to decide.")
        found = column_names(path)
        prob = prob or next((name for name in PROBABILITIES if name in found), PROBABILITIES[0])
        for option, name in (("prob", prob), ("target", target), *(("columns", one) for one in columns)):
            check_column(f"--{option}", name, found)
        asked = found if survey is None else column_names(survey)
        taken = {prob, target, sensitive, *_RESULTS, *PROBABILITIES, *PREDICTED}
        features = tuple(columns) or tuple(name for name in found if name in asked and name not in taken)
        if not features:
            raise InputError(
                f"{path}: it shares no column with {survey or 'the statistics'} that describes a person. "
                "Membership is estimated from such columns: join them to the scores.\n"
                "`predict` writes no such columns: give its checkpoint to `correct`, without --predictions."
            )
        return cls(path, prob, target, positive, features)

    def probabilities(self, table: pa.Table) -> Tensor:
        """Return the scores of rows of the file."""
        probs = torch.from_numpy(numbers(self.prob, table.column(self.prob)).copy())
        if not bool(((probs >= 0) & (probs <= 1)).all()):
            raise InputError(
                f"{self.path}: column '{self.prob}': expected a probability (0 to 1) in every row."
            )
        return probs

    def sample(self, folder: Path, seed: int = 0) -> tuple[TableDataModule, Tensor]:
        """Return the labelled rows, or a random sample of them, as data, and their scores.

        The sample is the rows with the smallest random keys, so that all rows have the same chance.
        """
        rng = np.random.default_rng(seed)
        kept: pa.Table | None = None
        for batch in read_batches(self.path):
            part = batch.select([*self.features, self.prob, self.target])
            part = part.append_column("key", pa.array(rng.random(batch.num_rows)))
            labelled = make_frame(part, {self.target: "category"}, TableSpec())[self.target].notna()
            part = part.filter(pa.array(labelled.to_numpy()))
            kept = part if kept is None else pa.concat_tables([kept, part], promote_options="permissive")
            if kept.num_rows > 2 * _MAX_SAMPLE:
                kept = _smallest(kept)
        if kept is None or not kept.num_rows:
            raise InputError(f"{self.path}: no row has a true class in '{self.target}'.")
        kept = _smallest(kept)
        probs = self.probabilities(kept)
        file, rows = folder / "sample", kept.drop_columns(["key", self.prob])
        if is_parquet(self.path):
            pq.write_table(rows, file)
        else:  # the cells of a CSV file are text, some of which stands for numbers
            arrow_csv.write_csv(rows, file)
        data = TableDataModule(
            str(file),
            target=self.target,
            positive=self.positive,
            related=[self.features[0]],
            split=(0.2, 0.4, 0.4),
            seed=seed,
        )
        with quiet_lightning():
            data.setup()
        return data, probs


def correct_scores(
    file: ScoresFile,
    survey: Path | None,
    sensitive: str | None,
    *,
    proxies: str | Path | None,
    column: str | None,
    group: str | None,
    goal: str | None,
    max_accuracy_loss: float,
    act_above: float,
) -> tuple[CorrectionResult, TableDataModule]:
    """Choose and measure a correction on a sample of the scores, and return it with the sample."""
    wanted = Goal.parse(goal, max_accuracy_loss, act_above)
    with tempfile.TemporaryDirectory() as folder:
        data, probs = file.sample(Path(folder))
        if survey is not None and sensitive is None:
            new = set(column_names(survey)) - {*column_names(file.path), RANDOMIZED}
            sensitive = new.pop() if len(new) == 1 else None
        membership, people = find_membership(
            data, survey=survey, proxies=proxies, column=column, sensitive=sensitive, group=group
        )
        asked = None if survey is None or people is None else _survey_probs(file.prob, survey, people)
        val, test = (ScoredRows.of(data, part, lambda batch: probs[batch["row"]]) for part in ("val", "test"))
        return correct_rows(val, test, membership, people, asked, goal=wanted), data


def _survey_probs(prob: str, survey: Path, people: Survey) -> Tensor:
    """Return the model's scores of the surveyed people."""
    table = read_file(survey).table
    if prob not in table.column_names:
        raise InputError(
            f"--survey {survey}: it lacks the column '{prob}', the model's score of each person, "
            "without which the gap cannot be estimated. Score the surveyed people with the same model."
        )
    known = make_frame(table, {people.name: "category"}, TableSpec())[people.name].notna()
    probs = torch.from_numpy(numbers(prob, table.column(prob))[known.to_numpy()].copy())
    if len(probs) != len(people) or not bool(((probs >= 0) & (probs <= 1)).all()):
        raise InputError(f"--survey {survey}: column '{prob}': expected a probability of each person.")
    return probs


@torch.no_grad()
def write_corrected(file: ScoresFile, data: TableDataModule, correction: Correction, out: Path) -> int:
    """Write all columns with the corrected scores and decisions, whole or not at all.

    Returns:
        The number of rows.
    """
    rows = 0
    with replacing(out) as unfinished, _writer(unfinished, parquet=out.suffix == ".parquet") as write:
        for batch in read_batches(file.path):
            frame = make_frame(batch, data.encoder.kinds, data.spec)
            probs = file.probabilities(batch)
            scores = correction(probs, data.encoder.transform(frame))
            kept = [name for name in batch.column_names if name not in _RESULTS]
            table = batch.select(kept).append_column(_RESULTS[0], pa.array(scores.numpy()))
            write(table.append_column(_RESULTS[1], pa.array((scores >= 0.5).to(torch.int8).numpy())))
            rows += batch.num_rows
    return rows


@contextmanager
def _writer(path: Path, *, parquet: bool) -> Iterator[Any]:
    """Yield a function that appends a table to a CSV or Parquet file."""
    writers: list[Any] = []

    def write(table: pa.Table) -> None:
        if not writers:
            kind = pq.ParquetWriter if parquet else arrow_csv.CSVWriter
            writers.append(kind(str(path), table.schema))
        writers[0].write_table(table)

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()


def _smallest(table: pa.Table) -> pa.Table:
    """Return the rows with the smallest keys, in their order."""
    if table.num_rows <= _MAX_SAMPLE:
        return table
    keys = table.column("key").to_numpy()
    return table.take(np.sort(np.argpartition(keys, _MAX_SAMPLE)[:_MAX_SAMPLE]))
