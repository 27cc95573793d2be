"""Finds inputs that give the sensitive attribute away, by their values or by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from pandas.api.types import is_numeric_dtype

from fairrf_lightning.errors import InputError

_Codes: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
SUSPICIOUS_ASSOCIATION = 0.95
_MIN_ROWS = 20  # with fewer, a column of two values matches S by chance too easily
# Characteristics protected by the laws against discrimination of the EU, the UK and the US, with common
# German, French and Spanish names. Age is left out: it is the most usual related feature. Words that
# mean something else as often, such as faith, origin or foreign, count in a phrase only.
_CHARACTERISTICS = (
    r"sex|sexe|sexo|genders?|genero|género|geschlecht|(?:fe)?males?|trans ?gender|non ?binary|pronouns?",
    r"sexuality|sexual ?orientation|lgbtq?",
    r"races?|racial|raza|rasse|skin ?colou?r|ethnic|ethnie|etnia|ethnicit(?:y|ies)|hispanic|latin[oa]",
    r"caste|tribe|tribal|indigenous|aboriginal",
    r"religions?|religious|religión|konfession|creed",
    r"disabled|disabilit(?:y|ies)|handicap(?:ped|é)?|behinderung|discapacidad",
    r"nationalit(?:y|ies)|nationalität|nationalité|nacionalidad|staatsangehörigkeit|citizenship",
    r"national ?origin|country ?of ?(?:origin|birth)|(?:native|birth) ?country|place ?of ?birth|birth ?place",
    r"foreigner|foreign ?(?:born|worker)|im?migrant|immigration|migration ?background|refugee",
    r"(?:native|first) ?language|mother ?tongue",
    r"marital|marital ?status|civil ?status|married|familienstand|pregnant|pregnancy|maternity",
)
_PATTERN = re.compile(rf"\b(?:{'|'.join(_CHARACTERISTICS)})\b")


def check_leakage(inputs: pd.DataFrame, sensitive: pd.Series[Any]) -> None:
    """Raise if a column recodes S one to one, and warn if one almost determines it.

    Columns are not checked with fewer than 20 rows with a known S, or with a single group.

    Args:
        inputs: Columns that the model is to see, of validation and test rows, where S is legal.
        sensitive: S of the same rows, missing where it is not known.

    Raises:
        InputError: If a column is a copy or a one-to-one recoding of S.
    """
    known = sensitive.notna().to_numpy()
    hidden = sensitive[known]
    if len(hidden) < _MIN_ROWS or hidden.nunique() < 2:
        rank_zero_info(
            f"Data: {len(hidden)} rows with a known '{sensitive.name}' are too few to search the inputs for "
            "copies of it."
        )
        return
    for name in inputs.columns:
        column = inputs.loc[known, name]
        if is_recoding(column, hidden):
            raise InputError(
                f"column '{name}' is the sensitive attribute '{sensitive.name}' in other words: on all "
                f"{len(hidden):,} held-out rows where it is known, each value of one stands for one "
                f"value of the other. Take '{name}' out of the data (in a table of your own name it in "
                "drop), or set include_sensitive to true if the model is meant to see "
                f"'{sensitive.name}'."
            )
        if (strength := association(column, hidden)) > SUSPICIOUS_ASSOCIATION:
            rank_zero_warn(
                f"column '{name}' almost determines the sensitive attribute '{sensitive.name}' (association "
                f"{strength:.3f} on the held-out rows), and the model sees it. Take '{name}' out of the "
                "data (in a table of your own name it in drop), or name it in related, so that the penalty "
                "acts on it."
            )


def is_recoding(column: pd.Series[Any], other: pd.Series[Any]) -> bool:
    """Return whether each value of one column, missing included, stands for one value of the other.

    >>> is_recoding(pd.Series([1, 2, 1]), pd.Series(["f", "m", "f"]))
    True
    """
    codes, other_codes = _codes(column), _codes(other)
    pairs = len(np.unique(_pair_codes(codes, other_codes)))
    return bool(pairs == codes.max() + 1 == other_codes.max() + 1)


def association(column: pd.Series[Any], sensitive: pd.Series[Any]) -> float:
    """Return the strength of association of a column with S, from 0 to 1.

    This is Cramer's V, corrected for its bias (Bergsma 2013), so that a column of unique names gives 0.
    For numbers it is the larger of that and the correlation ratio, which for two groups is
    the absolute correlation.
    """
    strength = _cramers_v(_codes(column), _codes(sensitive))
    if is_numeric_dtype(column):
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
        finite = np.isfinite(numbers)
        strength = max(strength, _correlation_ratio(numbers[finite], sensitive[finite]))
    return strength


def _codes(column: pd.Series[Any]) -> _Codes:
    codes: _Codes = pd.factorize(column, use_na_sentinel=False)[0]
    return codes


def _pair_codes(codes: _Codes, other: _Codes) -> _Codes:
    pairs: _Codes = codes * (other.max() + 1) + other
    return pairs


def _cramers_v(codes: _Codes, other: _Codes) -> float:
    pairs, counts = np.unique(_pair_codes(codes, other), return_counts=True)
    rows, columns = np.bincount(codes), np.bincount(other)
    expected = rows[pairs // len(columns)] * columns[pairs % len(columns)]
    total, levels = len(codes), np.array([len(rows), len(columns)])
    shrunk = (levels - (levels - 1) ** 2 / (total - 1)).min() - 1
    if shrunk <= 0:
        return 0.0
    phi_squared = (counts**2 / expected).sum() - 1 - np.prod(levels - 1) / (total - 1)
    return float(np.sqrt(max(phi_squared, 0.0) / shrunk))


def _correlation_ratio(numbers: np.ndarray[Any, Any], groups: pd.Series[Any]) -> float:
    if not len(numbers) or np.ptp(numbers) == 0:
        return 0.0
    scaled = pd.Series(numbers / np.abs(numbers).max())  # squares of huge numbers are infinite
    means = scaled.groupby(groups.to_numpy()).transform("mean")
    return float(np.sqrt(means.var(ddof=0) / scaled.var(ddof=0)))


def protected_names(columns: Iterable[str]) -> list[str]:
    """Return the columns whose names have a word that stands for a protected characteristic.

    Case, digits, underscores and the like do not matter, and ``camelCase`` is two words.

    >>> protected_names(["Sex", "is_female", "maritalStatus", "race-2", "sussex", "embrace", "age"])
    ['Sex', 'is_female', 'maritalStatus', 'race-2']
    """
    return [name for name in columns if _PATTERN.search(_as_words(name))]


def protected_inputs_notice(columns: Iterable[str]) -> str | None:
    """Return one line that names such columns and says what to do; ``None`` without such columns."""
    found = protected_names(columns)
    if not found:
        return None
    names = ", ".join(repr(name) for name in found)
    subject, it = (f"columns {names} are inputs", "them")
    if len(found) == 1:
        subject, it = f"column {names} is an input", "it"
    return (
        f"{subject} of the model, and protected by name. To leave {it} out: --data.drop, or --data.sensitive "
        f"to measure gaps by it as well. To penalise {it}: --data.related."
    )


def _as_words(name: str) -> str:
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return " ".join(re.findall(r"[^\W\d_]+", apart)).lower()
