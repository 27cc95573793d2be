"""Ranks columns by their association with S and with the label, and proposes related features.

The measure of association is the same for numbers and categories: the root of the share of the other
column's variation that is explained linearly, where the variation of categories is that of their 0/1
columns. Between a number and two groups it is the absolute correlation, between categories and two groups
Cramer's V; with more groups large ones count for more. Chance alone explains a little, so its expectation is
subtracted, as Bergsma (2013) does for Cramer's V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_numeric_dtype
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.columns import check_column
from fairrf_lightning.datamodules.leakage import SUSPICIOUS_ASSOCIATION
from fairrf_lightning.datamodules.loader import split_rows
from fairrf_lightning.datamodules.sensitive import read_audit_sample
from fairrf_lightning.datamodules.table import TableDataModule
from fairrf_lightning.errors import InputError, check_at_least

Advice: TypeAlias = Literal["take", "noise", "unclear", "weak", "costly", "stand-in"]
_Array: TypeAlias = NDArray[np.float64]

_MAX_ROWS = 2000  # rows that the measure is computed on; enough for two digits
_MAX_CATEGORIES = 30
_MIN_SAMPLE = 20
_DRAWS = 1000
_ALPHA = 0.05
_WORDS: dict[Advice, str] = {
    "take": "take",
    "noise": "no: chance?",
    "unclear": "no: unclear",
    "weak": "no: weak",
    "costly": "no: mostly the label",
    "stand-in": "no: is S, drop it",
}


@dataclass(frozen=True)
class Association:
    """Association of a column with S or with the label, from 0 to 1.

    Args:
        value: The measure, without the part expected by chance.
        low: Lower limit of its 95 % interval; above 0 exactly if the p value, not corrected, is below 0.05.
        high: Upper limit.
        p_value: Probability of as much in shuffled rows (chi-square with their moments), corrected for the
            number of columns (Holm).
    """

    value: float
    low: float
    high: float
    p_value: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Proposal:
    """A column, its association with S and with the label, and the advice.

    Args:
        name: The column.
        sensitive: Its association with S; ``None`` if S is not known.
        target: Its association with the label, if there is one.
        advice: ``take``; ``noise``: its interval contains 0; ``unclear``: it does not, but chance alone gives
            such an interval too often among this many columns (Holm); ``weak``: beyond noise, but below the
            minimum association; ``costly``: far more associated with the label than with S; ``stand-in``:
            almost determines S, and should not be an input. ``None`` if S is not known.
    """

    name: str
    sensitive: Association | None
    target: Association | None
    advice: Advice | None


@dataclass(frozen=True)
class Suggestion:
    """A ranking of columns, and the data behind it.

    Args:
        proposals: The columns in order.
        target: Name of the label.
        sensitive: Name of S; ``None`` if S is not known, in which case nothing is proposed.
        joint: Association of S with all proposed columns together.
        source: Source of S.
        rows: Number of rows with a known S that were used.
        is_input: Whether S is a column of the user's table that would be an input of the model.
    """

    proposals: Sequence[Proposal]
    target: str
    sensitive: str | None = None
    joint: float = 0.0
    source: str = ""
    rows: int = 0
    is_input: bool = False

    @property
    def related(self) -> list[str]:
        """The columns to take as related features."""
        return [one.name for one in self.proposals if one.advice == "take"]

    def __repr__(self) -> str:
        return f"Suggestion(related={self.related}, sensitive={self.sensitive!r}, rows={self.rows:,})"

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{escape(line)}</p>" for line in self.statements())
        return f"{self.table().to_html(index=False)}{lines}"

    def table(self) -> pd.DataFrame:
        """Return the columns with their associations and the advice."""
        names = {"column": [one.name for one in self.proposals]}
        target = {f"with {self.target}": [str(one.target or "-") for one in self.proposals]}
        if self.sensitive is None:
            return pd.DataFrame(names | target)
        sensitive = {f"with {self.sensitive}": [str(one.sensitive or "-") for one in self.proposals]}
        advice = {"related?": [_WORDS[one.advice] if one.advice else "-" for one in self.proposals]}
        return pd.DataFrame(names | sensitive | target | advice)

    def statements(self) -> Iterator[str]:
        """Yield what the ranking shows, in plain words."""
        if self.sensitive is None:
            yield _WITHOUT_SENSITIVE.format(target=self.target)
            return
        yield f"{self.sensitive} is known from {self.source}."
        yield (
            "0: no association; 1: fully determined. The part expected by chance is subtracted. 'chance?': "
            "the interval contains 0, so no association is shown, which does not rule one out."
        )
        if unclear := self._named("unclear"):
            yield (
                f"'unclear': {unclear}. The interval leaves out 0, but it is one of {len(self.proposals)}, "
                "and chance alone gives such an interval among this many too often. Use more rows to decide."
            )
        if stand_ins := self._named("stand-in"):
            yield f"Almost determines {self.sensitive}: {stand_ins}. Take it out of the data."
        if not self.related:
            yield self._nothing_proposed()
            return
        yield (
            f"Together the proposed columns have an association of {self.joint:.2f} with {self.sensitive} in "
            "these rows; a penalty on them cannot act on the rest."
        )
        taken = [(one.name, one.target, one.sensitive) for one in self.proposals if one.advice == "take"]
        costly = [name for name, label, s in taken if label and s and label.value > s.value]
        if costly:
            yield (
                f"These are more associated with {self.target} than with {self.sensitive}; leave them out "
                f"first if accuracy suffers: {', '.join(costly)}."
            )

    def _named(self, advice: Advice) -> str:
        return ", ".join(one.name for one in self.proposals if one.advice == advice)

    def _nothing_proposed(self) -> str:
        """Return the largest association that the rows allow if no column is proposed."""
        shown = f"No column is proposed from these {self.rows:,} rows."
        others = [one for one in self.proposals if one.advice != "stand-in"]
        highs = [(one.sensitive.high, one.name) for one in others if one.sensitive]
        if not highs:
            return shown
        high, name = max(highs, key=lambda pair: pair[0])
        return (
            f"{shown} That is not evidence that no column is related to {self.sensitive}: by the intervals "
            f"an association of up to {high:.2f} ({name}) is possible."
        )


_WITHOUT_SENSITIVE = (
    "Without S it cannot be known which columns are related to it, how strongly, or whether leaving one "
    "out matters: no column is proposed. A penalty on columns that are strongly associated with {target} "
    "costs more accuracy. Choose by knowledge of the domain (censuses and surveys publish such "
    "correlations), or collect S for a few hundred people, then run suggest again with --audit_sample and "
    "--sensitive. If S is a column of the data, name it by --sensitive."
)


def suggest(
    data: TabularDataModule,
    *,
    audit_sample: str | Path | None = None,
    sensitive: str | None = None,
    min_association: float = 0.1,
    max_ratio: float = 3.0,
    seed: int = 0,
) -> Suggestion:
    """Rank the columns of a table by their association with S and with the label.

    Without ``audit_sample`` and ``sensitive`` S is not known, and nothing is proposed.

    Args:
        data: The data; they need not be set up.
        audit_sample: CSV or Parquet file of rows where S is known.
        sensitive: Column of S: in the sample, or else in the data, whose validation rows are then used.
        min_association: Minimum association with S of a related feature.
        max_ratio: Maximum ratio of label association to S association. A penalty on columns beyond it
            costs much accuracy for little fairness.
        seed: Seed of the shuffles, and of the rows if there are many.

    Raises:
        InputError: If an option is out of range, or a file or a column cannot be used.
    """
    check_at_least(0, seed=seed)
    if not 0 <= min_association <= 1:
        raise InputError(f"--min_association {min_association}: expected a number from 0 to 1.")
    if not max_ratio > 0:
        raise InputError(f"--max_ratio {max_ratio}: expected a positive number.")
    if isinstance(data, TableDataModule) and data.is_streamed:
        raise InputError(f"suggest reads one file, not a directory ({data.path}): name one of its files.")
    data.prepare_data()
    table = data.read()
    features = [name for name in table.columns if name not in {data.target, data.sensitive, sensitive}]
    target = associations({name: table[name] for name in features}, table[data.target], seed)
    if audit_sample is not None:
        sample = read_audit_sample(audit_sample, data, sensitive, "suggest", features=features)
        known, source, sensitive = sample.frame, sample.source, sample.sensitive
        if len(known) < _MIN_SAMPLE:
            raise InputError(
                f"--audit_sample {audit_sample}: {len(known)} rows where {sensitive} is known, expected "
                f"{_MIN_SAMPLE} or more."
            )
    elif sensitive is not None:
        known, source = _from_validation_rows(data, table, sensitive)
    else:
        ranked = sorted(target, key=lambda name: -target[name].value)
        return Suggestion([Proposal(name, None, target[name], None) for name in ranked], data.target)
    columns = {name: known[name] for name in features if name in known and name != sensitive}
    proposals = propose(associations(columns, known[sensitive], seed), target, min_association, max_ratio)
    taken = {one.name: columns[one.name] for one in proposals if one.advice == "take"}
    return Suggestion(
        proposals,
        data.target,
        sensitive,
        joint=joint_association(taken, known[sensitive]) if taken else 0.0,
        source=source,
        rows=min(int(known[sensitive].notna().sum()), _MAX_ROWS),
        is_input=isinstance(data, TableDataModule) and data.sensitive is None and sensitive in table.columns,
    )


def propose(
    sensitive: Mapping[str, Association],
    target: Mapping[str, Association],
    min_association: float = 0.1,
    max_ratio: float = 3.0,
) -> list[Proposal]:
    """Advise on each column, in descending order of its association with S."""

    def advise(name: str) -> Advice:
        one, label = sensitive[name], target.get(name)
        if one.value > SUSPICIOUS_ASSOCIATION:
            return "stand-in"
        if one.p_value > _ALPHA:
            return "unclear" if one.low > 0 else "noise"
        if one.value < min_association:
            return "weak"
        return "costly" if label is not None and label.value > max_ratio * one.value else "take"

    ranked = sorted(sensitive, key=lambda name: -sensitive[name].value)
    return [Proposal(name, sensitive[name], target.get(name), advise(name)) for name in ranked]


def _from_validation_rows(
    data: TabularDataModule, table: pd.DataFrame, sensitive: str
) -> tuple[pd.DataFrame, str]:
    check_column("--sensitive", sensitive, [name for name in table.columns if name != data.target])
    # S of the training rows is not used.
    rows = split_rows(len(table), data.split, data.seed or 0)["val"]
    part = table.iloc[rows.numpy()].reset_index(drop=True)
    return part, f"the {len(part):,} validation rows"


def associations(
    columns: Mapping[str, pd.Series[Any]], other: pd.Series[Any], seed: int = 0
) -> dict[str, Association]:
    """Return the association of each column with another one, on the rows where that is known."""
    rng = np.random.default_rng(seed)
    known = np.flatnonzero(other.notna().to_numpy())
    if len(known) > _MAX_ROWS:
        known = np.sort(rng.choice(known, _MAX_ROWS, replace=False))
    groups = _indicators(other.iloc[known])
    if groups.shape[1] < 2:
        raise InputError(
            f"'{other.name}' has a single value in {len(known):,} rows: no association can be measured."
        )
    size = len(known)
    shuffles = np.array([rng.permutation(size) for _ in range(_DRAWS)])
    shuffled = np.stack([column[shuffles] for column in groups.T])
    found = {name: _measure(design(column.iloc[known]), groups, shuffled) for name, column in columns.items()}
    return _holm(found)


def joint_association(columns: Mapping[str, pd.Series[Any]], other: pd.Series[Any]) -> float:
    """Return the association of all columns together with another one."""
    known = other.notna().to_numpy()
    matrix = np.column_stack([design(column[known]) for column in columns.values()])
    groups = _indicators(other[known])
    basis = _orthonormal(matrix)
    return _corrected(_explained(basis, groups), basis.shape[1], len(groups))


def design(column: pd.Series[Any]) -> _Array:
    """Return a column as numbers: its values and a 0/1 column of missing ones, or 0/1 for each category."""
    if is_numeric_dtype(column) and not isinstance(column.dtype, pd.CategoricalDtype):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        missing = ~np.isfinite(values)
        filled = np.where(missing, np.median(values[~missing]) if (~missing).any() else 0.0, values)
        largest = np.abs(filled).max()
        return np.column_stack([filled / largest if largest else filled, missing.astype(np.float64)])
    return _indicators(column)


def _indicators(column: pd.Series[Any]) -> _Array:
    codes, values = pd.factorize(column, use_na_sentinel=False, sort=False)
    if len(values) > _MAX_CATEGORIES:  # the rest is one category
        rank = np.argsort(np.argsort(-np.bincount(codes), kind="stable"), kind="stable")
        codes = np.minimum(rank[codes], _MAX_CATEGORIES - 1)
    return np.eye(int(codes.max()) + 1)[codes]


def _orthonormal(matrix: _Array) -> _Array:
    """Return an orthonormal basis of the centred columns."""
    centred = matrix - matrix.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    basis: _Array = left[:, sizes > 1e-9 * max(1.0, float(sizes.max(initial=0.0)))]
    return basis


def _explained(basis: _Array, groups: _Array) -> float:
    """Return the share of the groups' variation that the columns behind a basis explain."""
    share = groups.mean(axis=0)
    return float(((basis.T @ groups) ** 2).sum() / (len(groups) * (share * (1 - share)).sum()))


def _corrected(explained: float, rank: int, size: int) -> float:
    """Return the measure without the part expected by chance."""
    left = explained - rank / (size - 1)
    return float(np.sqrt(np.clip(left, 0.0, 1.0))) if left > 1e-12 else 0.0  # less is rounding


def _measure(matrix: _Array, groups: _Array, shuffled: _Array) -> Association:
    """Measure a column; one distribution gives test and interval, so that they agree."""
    basis = _orthonormal(matrix)
    size, rank = basis.shape
    explained = _explained(basis, groups)
    share = groups.mean(axis=0)
    by_chance = ((shuffled @ basis) ** 2).sum(axis=(0, 2)) / (size * (share * (1 - share)).sum())
    value = _corrected(explained, rank, size)
    squared, chance = float(_squared_angle(explained)), _squared_angle(by_chance)
    mean, variance = float(chance.mean()), float(chance.var())
    if variance < 1e-12 * mean**2 or not rank:  # a constant, or as many categories as rows
        return Association(value, 0.0, 1.0 if rank else 0.0, 1.0)
    # The chi-square distribution with the mean and variance of the shuffles.
    freedom = 2 * mean**2 / variance
    statistic = freedom * squared / mean
    spread = max(1.0, _variance(basis, groups) * freedom / (4 * mean * squared)) if squared else 1.0
    low, high = (
        float(np.sin(min(np.sqrt(effect * mean / freedom), np.pi / 2)))
        for effect in effect_limits(statistic, freedom, spread)
    )
    return Association(value, min(low, value), max(high, value), float(chi2.sf(statistic, freedom)))


def _variance(basis: _Array, groups: _Array) -> float:
    """Return the variance of the squared angle by the infinitesimal jackknife.

    Rare groups in rare categories make it larger than for columns without an association.
    """
    size = len(groups)
    share = groups.mean(axis=0)
    apart, scores = groups - share, basis * np.sqrt(size)
    variation = (share * (1 - share)).sum()
    common = scores.T @ apart / size
    explained = (common**2).sum() / variation
    if not 0 < explained < 1 - 1e-9:
        return 0.0
    fitted = scores @ common
    adds = (2 * (fitted * apart).sum(axis=1) - (fitted**2).sum(axis=1)) / variation - explained
    adds -= explained * (apart @ (1 - 2 * share)) / variation
    slope = np.arcsin(np.sqrt(explained)) / np.sqrt(explained * (1 - explained))
    return float(slope**2 * (adds**2).mean() / size)


def _squared_angle(explained: float | _Array) -> _Array:
    """Return the square of the angle whose sine is the measure: there the noise is the same for all sizes."""
    angle: _Array = np.arcsin(np.sqrt(np.clip(explained, 0.0, 1.0)))
    return angle**2


def _holm(found: Mapping[str, Association]) -> dict[str, Association]:
    """Return the associations with p values corrected by Holm's method."""
    order = sorted(found, key=lambda key: found[key].p_value)
    steps = [min(1.0, (len(found) - rank) * found[name].p_value) for rank, name in enumerate(order)]
    corrected = dict(zip(order, accumulate(steps, max), strict=True))
    return {name: replace(one, p_value=corrected[name]) for name, one in found.items()}


def effect_limits(x: float, df: float, spread: float = 1.0) -> tuple[float, float]:
    """Return the 95 % interval of the non-centrality of a chi-square statistic, which is the effect.

    An effect is in the interval if the statistic lies between its quantiles ``lower`` and ``0.95 + lower``.
    ``lower`` is 0 without an effect, so that the interval leaves out 0 exactly if the one-sided test at 5 %
    rejects it, and grows to 0.025: two equal tails. Both quantiles grow with the effect, so the interval
    covers 95 % however ``lower`` grows.

    ``df`` need not be whole. ``spread`` is the ratio of the variance at the observed effect to that without
    an effect; in between it grows evenly, so that the test of no effect is unchanged.
    """
    critical = float(chi2.ppf(1 - _ALPHA, df))

    def below(effect: float) -> float:
        times = 1 + (spread - 1) * min(1.0, effect / x) if x else spread
        return float(ncx2.cdf(x / times, df, effect / times))

    def lower(effect: float) -> float:
        return _ALPHA / 2 * min(1.0, max(0.0, effect / critical - 1))

    low = _root(lambda effect: 1 - _ALPHA + lower(effect) - below(effect))
    high = _root(lambda effect: lower(effect) - below(effect), at_least=critical)
    return low, high


def _root(rises: Callable[[float], float], at_least: float = 0.0) -> float:
    """Return where a rising function crosses 0, or ``at_least`` if it is above 0 there."""
    if rises(at_least) >= 0:
        return at_least
    high = 2 * at_least + 1
    while rises(high) < 0:
        high *= 2
    return float(brentq(rises, at_least, high, xtol=1e-12))
