"""Files about S: people whose S is known, and published statistics.

A file of people has the table's input columns, or the row ids of ``survey draw``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
import yaml
from numpy.typing import NDArray

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.columns import Kind, TableSpec, check_column, infer_kinds, make_frame
from fairrf_lightning.datamodules.files import read_file
from fairrf_lightning.errors import InputError, check_at_least, check_choice, did_you_mean
from fairrf_lightning.messages import quiet_lightning

# Columns of a form of `survey draw`, next to that of S.
ROW, TABLE, RANDOMIZED = "row", "table", "randomized"
_FORM = (ROW, TABLE, RANDOMIZED)
_MAX_RANDOMIZED = 0.9
_PUBLISHED = ("share", "correlations", "group")  # keys of a file of published statistics


@dataclass(frozen=True)
class Sample:
    """People whose S is known.

    Args:
        frame: Their features, S as categories, and the label if the file has it; S is never missing.
        sensitive: Column of S.
        source: File and number of people, for texts.
        rows: Row ids in the table; ``None`` if the file has the input columns instead.
        randomized: Probability that an answer was replaced by a fair coin.
        unanswered: Number of lines without an answer.
    """

    frame: pd.DataFrame = field(repr=False)
    sensitive: str
    source: str
    rows: NDArray[np.int64] | None = field(default=None, repr=False)
    randomized: float = 0.0
    unanswered: int = 0


def read_sample(
    path: str | Path,
    data: TabularDataModule,
    sensitive: str | None = None,
    *,
    option: str,
    features: Sequence[str] | None = None,
    kinds: Mapping[str, Kind] | None = None,
) -> Sample:
    """Read people whose S is known; lines without S are left out.

    Args:
        path: CSV or Parquet file with a column of S, and either the table's input columns or the columns
            ``row`` and ``table`` that ``survey draw`` writes.
        data: The data.
        sensitive: Column of S; by default that of the data, or else the only column of the file that the
            data do not have.
        option: The option that named the file, for errors.
        features: Columns to return. All of them must be there if ``kinds`` is given, else at least one.
        kinds: Kind of each feature; by default inferred from the file.

    Raises:
        InputError: If the file cannot be read, or its columns are not those that are needed.
    """
    named = f"{option} {path}"
    try:
        raw = read_file(Path(path))
    except InputError as error:
        raise InputError(f"{option} {error}") from error
    columns = raw.table.column_names
    features = list(kinds or ()) if features is None else list(features)
    sensitive = sensitive or data.sensitive or _only_new_column(named, columns, data)
    check_column(named, sensitive, columns)
    spec: TableSpec = getattr(data, "spec", TableSpec())
    answers = make_frame(raw.table, {sensitive: "category"}, spec)
    known = answers[sensitive].notna().to_numpy()
    if {ROW, TABLE} <= set(columns):
        table = _read_table(named, data)
        rows = _form_rows(named, raw.table, known, table[data.target])
        wanted = [name for name in (*features, data.target) if name in table and name != sensitive]
        frame = table[wanted].iloc[rows].reset_index(drop=True)
    else:
        rows = None
        shared = [name for name in features if name in columns and name != sensitive]
        if not shared:
            raise InputError(f"{named}: it shares no column with the data, which have {', '.join(features)}.")
        for name in features if kinds is not None else ():
            check_column(named, name, columns)
        kinds = kinds or infer_kinds(raw.table, shared, spec, typed=raw.typed)
        label: dict[str, Kind] = {data.target: "category"} if data.target in columns else {}
        frame = make_frame(raw.table, {name: kinds[name] for name in shared} | label, spec)
        kept = spec.kept_rows(frame, shared, labelled=False, report=True)
        frame, known = frame[known & kept].reset_index(drop=True), known & kept
    frame = frame.assign(**{sensitive: answers[sensitive][known].array.remove_unused_categories()})
    return Sample(
        frame,
        sensitive,
        f"{path} ({len(frame):,} rows)",
        rows,
        _randomized(named, raw.table),
        int(answers[sensitive].isna().sum()),
    )


def read_audit_sample(
    path: str | Path,
    data: TabularDataModule,
    sensitive: str | None,
    command: str,
    *,
    features: Sequence[str] | None = None,
    kinds: Mapping[str, Kind] | None = None,
) -> Sample:
    """Read people whose S is known for a command that needs true answers; S has to be named.

    The arguments are those of :func:`read_sample`, and the name of the command.

    Raises:
        InputError: If S is not named, answers are randomised, or the file cannot be used.
    """
    if not (sensitive or data.sensitive):
        raise InputError("--audit_sample: name its column of S by --sensitive.")
    sample = read_sample(path, data, sensitive, option="--audit_sample", features=features, kinds=kinds)
    if sample.randomized:
        raise InputError(
            f"{sample.source}: its answers are randomised ({sample.randomized:g}), which {command} does not "
            "account for. correct and audit --survey do."
        )
    return sample


def draw_form(
    data: TabularDataModule,
    people: int,
    sensitive: str | None = None,
    *,
    columns: Sequence[str] = (),
    split: Literal["all", "train", "val", "test"] = "all",
    randomized: float = 0.0,
    seed: int = 0,
) -> pd.DataFrame:
    """Draw people at random, without replacement, and return a form to fill in.

    Args:
        data: The data; they need not be set up unless ``split`` is given.
        people: Number of people.
        sensitive: Name of the empty column for S; by default the sensitive attribute of the data.
        columns: Columns of the table to copy, for example one by which a person is found.
        split: Rows to draw from.
        randomized: Probability that an answer is replaced by a fair coin, to be recorded in the form.
        seed: Seed of the draw.

    Raises:
        InputError: If there are not as many rows, or a column does not exist or is not to be copied.
    """
    sensitive = sensitive_column(data, sensitive)
    check_choice("split", split, ("all", "train", "val", "test"))
    check_randomized(randomized)
    check_at_least(0, seed=seed)
    table = _read_table("survey draw", data)
    rows = np.arange(len(table))
    if split != "all":
        rows = torch.cat([batch["row"] for batch in data.rows_of(split)]).numpy()
    if not 1 <= people <= len(rows):
        raise InputError(f"{people} people: expected 1 to {len(rows):,}, the number of {split} rows.")
    taken = {ROW, TABLE, RANDOMIZED, sensitive, data.sensitive}
    if wrong := next((name for name in columns if name in taken), None):
        raise InputError(f"--columns {wrong}: this column is not copied into a form; leave it out.")
    chosen = np.sort(np.random.default_rng(seed).choice(rows, people, replace=False))
    form = pd.DataFrame({ROW: chosen, TABLE: table_digest(table[data.target])})
    if columns:
        with quiet_lightning():
            copied = data.read_columns(columns).iloc[chosen].reset_index(drop=True)
        form = pd.concat([form, copied], axis=1)
    if randomized:
        form[RANDOMIZED] = randomized
    return form.assign(**{sensitive: ""})


def check_randomized(randomized: float) -> None:
    """Raise unless a probability of randomised response can be used."""
    if not 0 <= randomized <= _MAX_RANDOMIZED:
        raise InputError(
            f"--randomized {randomized}: expected a probability from 0 to {_MAX_RANDOMIZED}, such as 0.25."
        )


def sensitive_column(data: TabularDataModule, named: str | None) -> str:
    """Return the name of the column of S in a form: the one that is named, or that of the data."""
    name = named or data.sensitive
    if name is None:
        raise InputError("survey draw: name the column to fill in by --sensitive, such as gender.")
    return name


def count_answers(path: Path, sensitive: str) -> int:
    """Return the number of answers in a form; 0 if the file has no such column."""
    table = read_file(path).table
    if sensitive not in table.column_names:
        return 0
    return int(make_frame(table, {sensitive: "category"}, TableSpec())[sensitive].notna().sum())


def table_digest(target: pd.Series[Any]) -> str:
    """Return a digest of the labels in the order of the rows, by which a form recognises its table."""
    return hashlib.sha256(target.to_numpy(dtype=np.uint8).tobytes()).hexdigest()[:12]


def _only_new_column(named: str, columns: Sequence[str], data: TabularDataModule) -> str:
    """Return the only column of a file that is neither one of the data nor of a form."""
    known = {*data.encoder.owners, data.target, *_FORM}
    new = [name for name in columns if name not in known]
    if len(new) != 1:
        found = f"{', '.join(new[:10])} are" if new else "no column is"
        raise InputError(f"{named}: {found} not in the data; name the column of S by --sensitive.")
    return new[0]


def _form_rows(
    named: str, form: pa.Table, known: NDArray[np.bool_], target: pd.Series[Any]
) -> NDArray[np.int64]:
    """Return the row ids of the answered lines of a form.

    Raises:
        InputError: If the form was drawn from another table, or its ids are not those of rows.
    """
    if {str(value) for value in form.column(TABLE).unique().to_pylist()} != {table_digest(target)}:
        raise InputError(
            f"{named}: the form was drawn from another table, so its row ids are those of other people. "
            "Name the table that it was drawn from, or draw a new form."
        )
    rows = pd.to_numeric(pd.Series(form.column(ROW).to_pylist()), errors="coerce")
    wrong = rows.isna() | (rows % 1 != 0) | ~rows.between(0, len(target) - 1)
    if wrong.any() or rows.duplicated().any():
        found = "not every line has the id of a row" if wrong.any() else "a person is there twice"
        raise InputError(f"{named}: column '{ROW}': {found}. Only fill in the answers of a form.")
    return rows[known].to_numpy(dtype=np.int64)


def _read_table(named: str, data: TabularDataModule) -> pd.DataFrame:
    if data.is_streamed:
        raise InputError(
            f"{named}: {getattr(data, 'path', data)} is a directory, whose rows have no ids; name one of its "
            "files, or write the input columns into the survey."
        )
    data.prepare_data()
    with quiet_lightning():  # the table was described before
        return data.read()


def _randomized(named: str, table: pa.Table) -> float:
    """Return the probability that an answer was replaced by a fair coin, as the form records it."""
    if RANDOMIZED not in table.column_names:
        return 0.0
    values: set[Any] = {str(value) for value in table.column(RANDOMIZED).unique().to_pylist()}
    try:
        (value,) = {float(value) for value in values}
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise InputError(
            f"{named}: column '{RANDOMIZED}': {', '.join(sorted(values)[:5])}; expected one probability from "
            "0 to below 1 in every line."
        )
    return value


@dataclass(frozen=True)
class Proxies:
    """Published statistics about S.

    Args:
        limits: Lowest and highest possible correlation of S with each encoded column.
        share: Lowest and highest possible share of rows with S = 1.
        group: Name of the group with S = 1.
    """

    limits: Mapping[str, tuple[float, float]]
    share: tuple[float, float]
    group: str

    @property
    def correlations(self) -> dict[str, float]:
        """The middle of the limits of each correlation."""
        return {name: (low + high) / 2 for name, (low, high) in self.limits.items()}

    @property
    def mean_share(self) -> float:
        """The middle of the limits of the share."""
        return sum(self.share) / 2


def read_proxies(path: str | Path, columns: Sequence[str]) -> Proxies:
    """Read a file with ``share``, ``correlations`` and optionally ``group``.

    Args:
        path: YAML file; each value is a number or ``[low, high]``.
        columns: Encoded columns that may be named.

    Raises:
        InputError: If the file cannot be read, or a name or a number in it cannot be used.
    """
    content = _load(path)
    if unknown := sorted(set(content) - set(_PUBLISHED)):
        raise InputError(f"{path}: {unknown[0]} is not known; {did_you_mean(unknown[0], _PUBLISHED)}")
    correlations = content.get("correlations")
    if not isinstance(correlations, dict) or not correlations:
        raise InputError(
            f"{path}: correlations is missing: expected a line for each column whose correlation with S is "
            "known, such as 'age: -0.09' or 'relationship=Wife: [0.28, 0.33]'."
        )
    limits = {}
    for name, value in correlations.items():
        _check_name(path, str(name), columns)
        limits[str(name)] = low, high = _limits(path, name, value)
        if low < -1 or high > 1:
            raise InputError(f"{path}: {name}: {value!r}: expected a correlation, from -1 to 1.")
    if "share" not in content:
        raise InputError(f"{path}: share is missing: expected the share of people with S = 1, such as 0.33.")
    share = _limits(path, "share", content["share"])
    if not 0 < share[0] <= share[1] < 1:
        raise InputError(f"{path}: share {content['share']}: expected a number between 0 and 1.")
    return Proxies(limits, share, str(content.get("group", "S = 1")))


def _load(path: str | Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--proxies {path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"--proxies {path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"--proxies {path}: expected the keys share and correlations.")
    return content


def _check_name(path: str | Path, name: str, columns: Sequence[str]) -> None:
    if name in columns:
        return
    if dummies := [column for column in columns if column.startswith(f"{name}=")]:
        raise InputError(
            f"{path}: {name} is a column of categories, each of which has its own correlation with S: name "
            f"them, such as {', '.join(dummies[:3])}."
        )
    raise InputError(f"{path}: the model has no column {name}; {did_you_mean(name, columns)}")


def _limits(path: str | Path, name: str, value: Any) -> tuple[float, float]:
    pair = value if isinstance(value, list) else [value, value]
    numbers = [part for part in pair if isinstance(part, (int, float)) and not isinstance(part, bool)]
    if len(numbers) != 2 or len(pair) != 2 or not numbers[0] <= numbers[1]:
        raise InputError(
            f"{path}: {name}: {value!r}: expected a number, or [low, high] with the lower first."
        )
    return float(numbers[0]), float(numbers[1])
