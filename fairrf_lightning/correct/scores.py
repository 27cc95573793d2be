"""Corrects the scores of any model, streamed in constant memory."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import torch
from torch import Tensor

from fairrf_lightning.callbacks.run_files import PREDICTED
from fairrf_lightning.correct.run import CorrectionResult, correct_rows
from fairrf_lightning.correction import Goal
from fairrf_lightning.datamodules import TableDataModule
from fairrf_lightning.datamodules.columns import TableSpec, check_column, make_frame, numbers
from fairrf_lightning.datamodules.files import read_file
from fairrf_lightning.datamodules.score_files import PROBABILITIES, column_names, is_parquet, read_batches
from fairrf_lightning.datamodules.sensitive import RANDOMIZED
from fairrf_lightning.errors import InputError
from fairrf_lightning.estimate import ACT_ABOVE, ScoredRows
from fairrf_lightning.files import replacing
from fairrf_lightning.membership import find_membership
from fairrf_lightning.messages import quiet_lightning
from fairrf_lightning.survey import Survey

_MAX_SAMPLE = 200_000  # rows on which the strength is chosen and the result is measured
_RESULTS = ("corrected_probability", "corrected_decision")


@dataclass(frozen=True)
class ScoresCorrection:
    """A correction of a file of scores, chosen and measured on a sample of its rows.

    Args:
        result: The correction, with what is known about the decisions before and after it.
        data: The sample.
        file: The file.
    """

    result: CorrectionResult
    data: TableDataModule = field(repr=False)
    file: _ScoresFile = field(repr=False)

    def _repr_html_(self) -> str:
        return self.result._repr_html_()

    @torch.no_grad()
    def write(self, out: str | Path) -> int:
        """Write all rows with corrected scores and decisions, whole or not at all.

        Args:
            out: CSV or Parquet file to write.

        Returns:
            The number of rows.

        Raises:
            InputError: If nothing was changed.
        """
        out, correction = Path(out), self.result.correction
        if correction is None:
            raise InputError(f"there are no corrected scores: {next(self.result.statements())}.")
        rows, writer = 0, None
        kind = pq.ParquetWriter if out.suffix == ".parquet" else arrow_csv.CSVWriter
        with replacing(out) as unfinished, ExitStack() as stack:
            for batch in read_batches(self.file.path):
                frame = make_frame(batch, self.data.encoder.kinds, self.data.spec)
                scores = correction(self.file.probabilities(batch), self.data.encoder.transform(frame))
                kept = [name for name in batch.column_names if name not in _RESULTS]
                table = batch.select(kept).append_column(_RESULTS[0], pa.array(scores.numpy()))
                table = table.append_column(_RESULTS[1], pa.array((scores >= 0.5).to(torch.int8).numpy()))
                writer = writer or stack.enter_context(kind(str(unfinished), table.schema))
                writer.write_table(table)
                rows += batch.num_rows
        return rows


def correct_scores(
    predictions: str | Path,
    *,
    survey: Path | None = None,
    proxies: str | Path | None = None,
    column: str | None = None,
    sensitive: str | None = None,
    group: str | None = None,
    goal: str | None = None,
    max_accuracy_loss: float = 0.005,
    act_above: float = ACT_ABOVE,
    prob: str | None = None,
    target: str = "target",
    positive: str | None = None,
    columns: Sequence[str] = (),
) -> ScoresCorrection:
    """Correct the scores of any model towards a fairness goal, without S.

    Give one of ``survey``, ``proxies`` and ``column``. The correction is chosen and measured on a sample of
    the rows; :meth:`ScoresCorrection.write` applies it to all of them.

    Args:
        predictions: CSV or Parquet file with scores, true classes and columns that describe a person.
        survey: People whose S is known, with the same columns and the model's score of each.
        proxies: YAML file of S's share and its correlations with columns.
        column: Input column that holds the probability of S = 1.
        sensitive: Column of S in the survey; by default the only one that the scores do not have.
        group: Value that means S = 1; all others are compared with it.
        goal: Such as dp=0.10 or eo=0.05; dp or eo alone is the smallest gap within the budget. Default: dp.
        max_accuracy_loss: Accuracy that may be lost on the validation rows.
        act_above: With a survey, act only if the estimated gap exceeds this and 1.64 standard errors.
        prob: Column of scores from 0 to 1; by default prob or probability.
        target: Column of true classes; rows without one are corrected, but not used to choose.
        positive: Value of the true class that is the positive one; by default 1 or true.
        columns: Columns that describe a person; by default those that survey and scores share.

    Raises:
        InputError: If the options contradict each other, or a file cannot be used.
    """
    if sensitive in columns:
        raise InputError(f"--columns {sensitive}: this is S, which must not be used to decide.")
    path = Path(predictions)
    found = column_names(path)
    prob = prob or next((name for name in PROBABILITIES if name in found), PROBABILITIES[0])
    for option, name in (("prob", prob), ("target", target), *(("columns", one) for one in columns)):
        check_column(f"--{option}", name, found)
    features = tuple(columns) or _shared_columns(path, survey, {prob, target, sensitive})
    file = _ScoresFile(path, prob, target, positive, features)
    wanted = Goal.parse(goal, max_accuracy_loss, act_above)
    with tempfile.TemporaryDirectory() as folder:
        data, probs = file.sample(Path(folder))
        if survey is not None and sensitive is None:
            new = set(column_names(survey)) - {*found, RANDOMIZED}
            sensitive = new.pop() if len(new) == 1 else None
        membership, people = find_membership(
            data, survey=survey, proxies=proxies, column=column, sensitive=sensitive, group=group
        )
        asked = None if survey is None or people is None else _survey_probs(file.prob, survey, people)
        val, test = (ScoredRows.of(data, part, lambda batch: probs[batch["row"]]) for part in ("val", "test"))
        result = correct_rows(val, test, membership, people, asked, goal=wanted)
    return ScoresCorrection(result, data, file)


@dataclass(frozen=True)
class _ScoresFile:
    """A file of scores, and its columns by their use."""

    path: Path
    prob: str
    target: str
    positive: str | None
    features: tuple[str, ...]

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


def _shared_columns(path: Path, survey: Path | None, named: Collection[str | None]) -> tuple[str, ...]:
    """Return the columns that describe a person: those that survey and scores share."""
    asked = column_names(path if survey is None else survey)
    taken = {*named, *_RESULTS, *PROBABILITIES, *PREDICTED}
    features = tuple(name for name in column_names(path) if name in asked and name not in taken)
    if not features:
        raise InputError(
            f"{path}: it shares no column with {survey or 'the statistics'} that describes a person. "
            "Membership is estimated from such columns: join them to the scores.\n"
            "`predict` writes no such columns: give its checkpoint to `correct`, without --predictions."
        )
    return features


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


def _smallest(table: pa.Table) -> pa.Table:
    """Return the rows with the smallest keys, in their order."""
    if table.num_rows <= _MAX_SAMPLE:
        return table
    keys = table.column("key").to_numpy()
    return table.take(np.sort(np.argpartition(keys, _MAX_SAMPLE)[:_MAX_SAMPLE]))
