"""Knowledge about S: its share and its correlations with columns, from a file or from a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import yaml

from fairrf_lightning.certificate.bound import Array, Box
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.columns import check_column
from fairrf_lightning.datamodules.encoding import TableEncoder
from fairrf_lightning.datamodules.sensitive import read_audit_sample, read_proxies
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
    known = read_proxies(path, columns)
    low, high = np.array(list(known.limits.values()), dtype=np.float64).T
    return Knowledge(list(known.limits), Box(low, high), known.share, known.group, path)


def knowledge_template(columns: Sequence[str]) -> str:
    """Return the text of a file for :func:`read_knowledge` with the widest limits, to be filled in."""
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
    sensitive: str | None,
    group: str | None,
    level: float,
) -> Knowledge:
    """Estimate correlations and share from rows where S is known.

    Args:
        path: CSV or Parquet file with the columns ``features`` and ``sensitive``.
        data: The data, whose encoding is used.
        features: Features of the data, whose encoded columns are used.
        sensitive: The column of S; by default that of the data.
        group: The value of S that counts as 1; by default the first of two.
        level: Level at which all intervals hold together.
    """
    for name in features:
        check_column("--columns", name, data.encoder.owners)
    whole = data.encoder
    encoder = TableEncoder(
        scales={name: scale for name, scale in whole.scales.items() if name in features},
        categories={name: found for name, found in whole.categories.items() if name in features},
        fills={name: fill for name, fill in whole.fills.items() if name in features},
        indicators=[name for name in whole.indicators if name in features],
    )
    sample = read_audit_sample(path, data, sensitive, "certify", kinds=encoder.kinds)
    answers = sample.frame[sample.sensitive]
    group = chosen_group(sorted(answers.unique()), group, sample.sensitive)
    columns = encoder.transform(sample.frame).double().numpy()
    member = np.asarray(answers == group, dtype=np.float64)
    box, share = sample_box(columns, member, level)
    return Knowledge(encoder.columns, box, share, group, sample.source, level)


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
