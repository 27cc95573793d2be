"""Knowledge about S: its share and its correlations with columns, from a file or from a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fairrf_lightning.certificate.bound import Array, Box
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.columns import TableSpec, check_column, make_frame
from fairrf_lightning.datamodules.encoding import TableEncoder
from fairrf_lightning.datamodules.files import read_file
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.metrics.intervals import wilson_interval

_MIN_ROWS = 100
_MIN_EACH = 10  # rows of a group; and half of the rows off a column's most frequent value
_DRAWS = 2000


@dataclass(frozen=True)
class Knowledge:
    """Limits of the correlations of S with columns, and of its share.

    Args:
        names: Encoded columns, such as ``age`` and ``relationship=Wife``.
        box: Limits of their correlations with S, in the same order.
        share: Limits of the share of rows with S = 1.
        group: Name of the group with S = 1.
        source: File that this is known from.
        level: Confidence at which all limits hold together; ``None`` if they are taken as given.
    """

    names: list[str]
    box: Box
    share: tuple[float, float]
    group: str
    source: str
    level: float | None = None


def read_knowledge(path: str, columns: Sequence[str]) -> Knowledge:
    """Read a file with ``share``, ``correlations`` and optionally ``group``.

    Args:
        path: YAML file; each value is a number or ``[low, high]``.
        columns: Encoded columns that may be named.
    """
    content = _load(path)
    if unknown := sorted(set(content) - {"share", "correlations", "group"}):
        choices = did_you_mean(unknown[0], ("share", "correlations", "group"))
        raise InputError(f"{path}: {unknown[0]} is not known; {choices}")
    correlations = content.get("correlations")
    if not isinstance(correlations, dict) or not correlations:
        raise InputError(
            f"{path}: correlations is missing: expected a line for each column whose correlation with S is "
            "known, such as 'age: -0.09' or 'relationship=Wife: [0.28, 0.33]'."
        )
    names = [str(name) for name in correlations]
    for name in names:
        _check_name(path, name, columns)
    limits = [_correlation(path, name, value) for name, value in correlations.items()]
    low, high = np.array(limits, dtype=np.float64).T
    if "share" not in content:
        raise InputError(f"{path}: share is missing: expected the share of people with S = 1, such as 0.33.")
    share = _limits(path, "share", content["share"])
    if not 0 < share[0] <= share[1] < 1:
        raise InputError(f"{path}: share {content['share']}: expected a number between 0 and 1.")
    return Knowledge(names, Box(low, high), share, str(content.get("group", "S = 1")), path)


def knowledge_template(columns: Sequence[str]) -> str:
    """Return the text of a file for :func:`read_knowledge` with the widest limits, to be filled in.

    Args:
        columns: Encoded columns whose correlation with S may be known.
    """
    limits = yaml.safe_dump(
        {"correlations": {name: [-1.0, 1.0] for name in columns}},
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
    )
    return (
        "# Replace the limits by what a census or a survey says; leave out what is not known.\n"
        "group: S = 1            # a name for the group\n"
        "share: [0.01, 0.99]     # the group's share of people\n"
        "# Each column's correlation with S, from -1 to 1: a number or [low, high].\n"
        f"{limits}"
    )


def sampled_knowledge(
    path: str,
    data: TabularDataModule,
    features: Sequence[str],
    *,
    sensitive: str,
    group: str | None,
    level: float,
) -> Knowledge:
    """Estimate correlations and share from rows where S is known.

    Args:
        path: CSV or Parquet file with the columns ``features`` and ``sensitive``.
        data: The data, whose encoding is used.
        features: Features of the data, whose encoded columns are used.
        sensitive: The column of S.
        group: The value of S that counts as 1; by default the first of two.
        level: Level at which all intervals hold together.
    """
    for name in features:
        check_column("columns", name, data.encoder.owners)
    whole = data.encoder
    encoder = TableEncoder(
        scales={name: scale for name, scale in whole.scales.items() if name in features},
        categories={name: found for name, found in whole.categories.items() if name in features},
        fills={name: fill for name, fill in whole.fills.items() if name in features},
        indicators=[name for name in whole.indicators if name in features],
    )
    raw = read_file(Path(path))
    kinds = encoder.kinds
    for name in (*kinds, sensitive):
        check_column(f"--audit_sample {path}", name, raw.table.column_names)
    spec: TableSpec = getattr(data, "spec", TableSpec())
    frame = make_frame(raw.table, kinds | {sensitive: "category"}, spec)
    kept = spec.kept_rows(frame, list(kinds), labelled=False)
    spec.report_dropped(len(kept), int(kept.sum()), labelled=False)
    frame = frame[kept & frame[sensitive].notna().to_numpy()]
    group = chosen_group(sorted(frame[sensitive].unique()), group, sensitive)
    columns = encoder.transform(frame).double().numpy()
    member = np.asarray(frame[sensitive] == group, dtype=np.float64)
    box, share = sample_box(columns, member, level)
    source = f"{path} ({len(frame):,} rows)"
    return Knowledge(encoder.columns, box, share, group, source, level)


def sample_box(
    columns: Array, sensitive: Array, level: float = 0.96, seed: int = 0
) -> tuple[Box, tuple[float, float]]:
    """Estimate intervals of S's correlations with the columns and of its share, together at ``level``.

    The share gets a quarter of the error and Wilson's interval. The correlations get intervals
    ``tanh(atanh(r) -+ c se)`` with standard errors from the bootstrap and one factor ``c`` for all, which is
    such that the largest deviation over the columns stays below it (the bootstrap of the maximum). A
    column that hardly varies in the sample gets the interval [-1, 1].

    Args:
        columns: Columns ``(n, K)`` of the sampled rows.
        sensitive: S of them, 0 or 1.
        level: Level at which all intervals hold together.
        seed: Seed of the bootstrap.
    """
    counts = int(sensitive.sum()), int(len(sensitive) - sensitive.sum())
    if len(sensitive) < _MIN_ROWS or min(counts) < _MIN_EACH:
        raise InputError(
            f"audit sample: {counts[0]} rows of the group and {counts[1]} others, expected at least "
            f"{_MIN_ROWS} in all and {_MIN_EACH} of each. A few hundred give a useful bound."
        )
    low, high = wilson_interval(counts[0], len(sensitive), 1 - (1 - level) / 4)
    share = float(low), float(high)
    box = Box(np.full(columns.shape[1], -1.0), np.full(columns.shape[1], 1.0))
    usable = np.flatnonzero(_minority(columns) >= 2 * _MIN_EACH)
    if len(usable):
        found = _bootstrap_limits(columns[:, usable], sensitive, 1 - (1 - level) * 3 / 4, seed)
        box.low[usable], box.high[usable] = found
    return box, share


def _minority(columns: Array) -> Array:
    """Return the number of rows without a column's most frequent value."""
    frequent = [np.unique(column, return_counts=True)[1].max() for column in columns.T]
    return len(columns) - np.array(frequent, dtype=np.float64)


def _bootstrap_limits(columns: Array, sensitive: Array, level: float, seed: int) -> tuple[Array, Array]:
    size = len(sensitive)
    weights = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), size=_DRAWS) / size
    scaled = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    estimate = _fisher(np.full((1, size), 1 / size), scaled, sensitive)[0]
    drawn = _fisher(weights, scaled, sensitive)
    error = drawn.std(axis=0)
    # At least the error of Fisher's formula: with few rows in a cell the bootstrap underestimates it.
    error = np.maximum(error, 1 / np.sqrt(size - 3))
    largest = (np.abs(drawn - estimate) / error).max(axis=1)
    factor = float(np.quantile(largest, level, method="higher"))
    return np.tanh(estimate - factor * error), np.tanh(estimate + factor * error)


def _fisher(weights: Array, columns: Array, sensitive: Array) -> Array:
    """Return atanh of the correlations under each of the weights, ``(draws, K)``."""
    share = weights @ sensitive
    mean = weights @ columns
    product = weights @ (columns * sensitive[:, None]) - mean * share[:, None]
    variance = np.maximum(weights @ columns**2 - mean**2, 0.0) * (share * (1 - share))[:, None]
    rho = np.divide(product, np.sqrt(variance), out=np.zeros_like(product), where=variance > 1e-12)
    limited: Array = np.arctanh(np.clip(rho, -1 + 1e-9, 1 - 1e-9))
    return limited


def chosen_group(values: Sequence[str], group: str | None, sensitive: str) -> str:
    """Return the value of S that counts as 1."""
    if len(values) < 2:
        raise InputError(f"{sensitive}: expected at least two groups, found {list(values)}.")
    if group is None and len(values) > 2:
        raise InputError(
            f"{sensitive} has {len(values)} groups: say by --group which one is compared with all others. "
            f"Choices: {', '.join(values)}"
        )
    if group is not None and group not in values:
        raise InputError(f"--group {group}: no such group of {sensitive}; {did_you_mean(group, values)}")
    return values[0] if group is None else group


def _load(path: str) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--proxies {path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"--proxies {path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"--proxies {path}: expected the keys share and correlations.")
    return content


def _check_name(path: str, name: str, columns: Sequence[str]) -> None:
    if name in columns:
        return
    if dummies := [column for column in columns if column.startswith(f"{name}=")]:
        raise InputError(
            f"{path}: {name} is a column of categories, each of which has its own correlation with S: name "
            f"them, such as {', '.join(dummies[:3])}."
        )
    raise InputError(f"{path}: the model has no column {name}; {did_you_mean(name, columns)}")


def _correlation(path: str, name: str, value: Any) -> tuple[float, float]:
    low, high = _limits(path, name, value)
    if low < -1 or high > 1:
        raise InputError(f"{path}: {name}: {value!r}: expected a correlation, from -1 to 1.")
    return low, high


def _limits(path: str, name: str, value: Any) -> tuple[float, float]:
    pair = value if isinstance(value, list) else [value, value]
    numbers = [part for part in pair if isinstance(part, (int, float)) and not isinstance(part, bool)]
    if len(numbers) != 2 or len(pair) != 2 or not numbers[0] <= numbers[1]:
        raise InputError(
            f"{path}: {name}: {value!r}: expected a number, or [low, high] with the lower first."
        )
    return float(numbers[0]), float(numbers[1])
