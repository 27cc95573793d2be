"""``correct --predictions``: corrects the scores of any model, streamed in constant memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
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
from fairrf_lightning.certificate import certify_rows
from fairrf_lightning.certificate.knowledge import read_knowledge
from fairrf_lightning.correct import CorrectionResult, correct_rows
from fairrf_lightning.correction import Correction
from fairrf_lightning.datamodules import TableDataModule
from fairrf_lightning.datamodules.columns import TableSpec, check_column, make_frame, numbers
from fairrf_lightning.datamodules.files import read_file
from fairrf_lightning.datamodules.sensitive import RANDOMIZED
from fairrf_lightning.errors import InputError
from fairrf_lightning.estimate import ScoredRows
from fairrf_lightning.files import replacing
from fairrf_lightning.membership import find_membership
from fairrf_lightning.quiet import quiet_lightning
from fairrf_lightning.survey import Survey

_MAX_SAMPLE = 200_000  # rows on which the strength is chosen and the result is measured
_PREDICTED = ("row", *PROBABILITIES, "uncorrected_probability", "decision")  # written by `predict`
_RESULTS = ("corrected_probability", "corrected_decision")


@dataclass(frozen=True)
class ScoresFile:
    """A file of scores.

    Args:
        path: CSV or Parquet file with scores, true classes and the columns that describe a person.
        prob: Column of the probability of the positive class.
        target: Column of the true class; a cell may be empty.
        features: Columns that describe a person.
        positive: Value of the true class that is the positive one; by default 1 or true.
    """

    path: Path
    prob: str
    target: str
    features: tuple[str, ...]
    positive: str | None = None

    @classmethod
    def find(
        cls,
        path: Path,
        *,
        survey: Path | None,
        prob: str | None = None,
        target: str = "target",
        positive: str | None = None,
        columns: Sequence[str] = (),
        sensitive: str | None = None,
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
        taken = {prob, target, sensitive, *_RESULTS, *_PREDICTED}
        features = tuple(columns) or tuple(name for name in found if name in asked and name not in taken)
        if not features:
            raise InputError(
                f"{path}: it shares no column with {survey or 'the statistics'} that describes a person. "
                "Membership is estimated from such columns: join them to the scores.\n"
                "`predict` writes no such columns: give its checkpoint to `correct`, without --predictions."
            )
        return cls(path, prob, target, features, positive)

    def batches(self) -> Iterator[pa.Table]:
        """Yield all columns of the file in batches."""
        return read_batches(self.path)

    def sample(self, folder: Path, seed: int = 0) -> tuple[TableDataModule, Tensor]:
        """Return the labelled rows, or a random sample of them, as data, and their scores.

        The sample is the rows with the smallest random keys, so that all rows have the same chance.
        """
        rng = np.random.default_rng(seed)
        kept: pa.Table | None = None
        for batch in self.batches():
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
        probs = _probabilities(self, kept)
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
    *,
    survey: Path | None,
    proxies: Path | None,
    column: str | None,
    sensitive: str | None,
    group: str | None,
    **options: Any,
) -> tuple[CorrectionResult, TableDataModule]:
    """Choose and measure a correction on a sample of the scores, and return it with the sample."""
    with tempfile.TemporaryDirectory() as folder:
        data, probs = file.sample(Path(folder))
        if survey is not None and sensitive is None:
            sensitive = _new_column(file, survey)
        membership, people = find_membership(
            data, survey=survey, proxies=proxies, column=column, sensitive=sensitive, group=group
        )
        asked = None if survey is None or people is None else _survey_probs(file, survey, people)
        val, test = (ScoredRows.of(data, part, lambda batch: probs[batch["row"]]) for part in ("val", "test"))
        return correct_rows(val, test, membership, people, asked, **options), data


@torch.no_grad()
def bound_lines(found: CorrectionResult, names: Sequence[str], proxies: str | Path | None) -> list[str]:
    """Return the certified bounds of the gap before and after: correlations alone give no estimate of it.

    Args:
        found: The correction.
        names: Names of the encoded columns.
        proxies: YAML file of the statistics; without it there are no bounds.
    """
    if found.correction is None or proxies is None:
        return []
    test, corrected = found.test, found.correction(found.test.scores, found.test.inputs)
    known = read_knowledge(str(proxies), names)
    columns = test.inputs[:, [list(names).index(name) for name in known.names]]
    before, after = (
        certify_rows(probs, columns, known).rows["hard"].bound for probs in (test.scores, corrected)
    )
    rows = f"dDP of the {len(test.scores):,} test rows is at most"
    lines = [
        f"{name}: {rows} {bound:.3f} (certified, decisions)."
        for name, bound in (("before", before), ("after", after))
    ]
    if after > before:
        lines.append("The bound is the worst case: it may rise while the gap falls.")
    return lines


def _new_column(file: ScoresFile, survey: Path) -> str | None:
    """Return the only column of the survey that the scores do not have."""
    new = set(column_names(survey)) - {*column_names(file.path), RANDOMIZED}
    return new.pop() if len(new) == 1 else None


def _survey_probs(file: ScoresFile, survey: Path, people: Survey) -> Tensor:
    """Return the model's scores of the surveyed people."""
    table = read_file(survey).table
    if file.prob not in table.column_names:
        raise InputError(
            f"--survey {survey}: it lacks the column '{file.prob}', the model's score of each person, "
            "without which the gap cannot be estimated. Score the surveyed people with the same model."
        )
    known = make_frame(table, {people.name: "category"}, TableSpec())[people.name].notna()
    probs = torch.from_numpy(numbers(file.prob, table.column(file.prob))[known.to_numpy()].copy())
    if len(probs) != len(people) or not bool(((probs >= 0) & (probs <= 1)).all()):
        raise InputError(f"--survey {survey}: column '{file.prob}': expected a probability of each person.")
    return probs


@torch.no_grad()
def write_corrected(file: ScoresFile, data: TableDataModule, correction: Correction, out: Path) -> int:
    """Write all columns with the corrected scores and decisions, whole or not at all.

    Returns:
        The number of rows.
    """
    rows = 0
    with replacing(out) as unfinished, _writer(unfinished, parquet=out.suffix == ".parquet") as write:
        for batch in file.batches():
            frame = make_frame(batch, data.encoder.kinds, data.spec)
            probs = _probabilities(file, batch)
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


def _probabilities(file: ScoresFile, table: pa.Table) -> Tensor:
    probs = torch.from_numpy(numbers(file.prob, table.column(file.prob)).copy())
    if not bool(((probs >= 0) & (probs <= 1)).all()):
        raise InputError(f"{file.path}: column '{file.prob}': expected a probability (0 to 1) in every row.")
    return probs
