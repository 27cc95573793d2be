"""Related features in the columns of a batch: their declaration, encoding and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from fairrf_lightning.errors import InputError, did_you_mean

_MAX_CODES = 50
_MIN_ROWS_PER_CODE = 2
_SPREADS = (0.1, 10.0)  # of a column, between which the kernel of "hsic" is of use
_MISSING_ADVICE = (
    "Fill in such values, or give RelatedFeaturePenalty(..., missing='skip') to leave these rows out of the "
    "penalty."
)


@dataclass(frozen=True)
class Categorical:
    """A column of category codes, which the penalty encodes one-hot.

    Args:
        column: Column number of the codes, or the column's name.
        num_categories: Number of categories; codes run from 0 to ``num_categories - 1``.
    """

    column: int | str
    num_categories: int

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) and not (isinstance(self.column, int) and self.column >= 0):
            raise InputError(
                f"Categorical(column={self.column!r}): expected a column number, 0 or more, or a name."
            )
        if not isinstance(self.num_categories, int) or self.num_categories < 2:
            raise InputError(f"num_categories = {self.num_categories!r}: expected 2 or more categories.")

    def encode(self, inputs: Tensor, name: str) -> Tensor:
        """Return one column per category, ``(..., N, num_categories)``.

        Raises:
            InputError: If a code is not one of the categories.
        """
        codes = inputs[..., int(self.column)]
        one_hot = codes.unsqueeze(-1) == torch.arange(self.num_categories, device=codes.device)
        finite = codes.isfinite()
        known = one_hot.any(-1) | ~finite  # a missing code is a missing value of each column
        if not bool(known.all()):
            row = int((~known).flatten().nonzero()[0])
            raise InputError(
                f"related feature {name!r}, column {self.column}, row {row} of the batch: the code is "
                f"{codes.flatten()[row].item()}, expected 0 to {self.num_categories - 1}. Correct it, or "
                "raise num_categories."
            )
        encoded = one_hot.to(inputs.dtype if inputs.is_floating_point() else torch.float32)
        return encoded.masked_fill(~finite.unsqueeze(-1), torch.nan)


Columns: TypeAlias = Categorical | Sequence[int]


def numbers_of(columns: Columns) -> list[int]:
    """Return the column number behind each encoded column.

    >>> numbers_of([3, 4]), numbers_of(Categorical(3, num_categories=2))
    ([3, 4], [3, 3])
    """
    if isinstance(columns, Categorical):
        return [int(columns.column)] * columns.num_categories
    return list(columns)


# A feature as it is declared: by column numbers, or by the names of columns.
Declared: TypeAlias = Categorical | Sequence[int] | str | Sequence[str]


def names_in(related: Mapping[str, Declared]) -> list[str]:
    """Return the names of the columns, each once; nothing if the columns are given by number.

    >>> names_in({"age": "age", "job": Categorical("job", 3), "place": ["zip", "city"]})
    ['age', 'job', 'zip', 'city']

    Raises:
        InputError: If some columns have names and others numbers.
    """
    columns = [column for feature in related.values() for column in _declared_columns(feature)]
    names = [column for column in columns if isinstance(column, str)]
    if names and len(names) < len(columns):
        raise InputError(f"related = {dict(related)}: give all columns by name or all by number.")
    return list(dict.fromkeys(names))


def by_number(related: Mapping[str, Declared], names: Sequence[str]) -> dict[str, Columns]:
    """Return the features with the numbers of their columns.

    >>> by_number({"age": "age", "job": Categorical("job", 3)}, ["job", "age"])
    {'age': [1], 'job': Categorical(column=0, num_categories=3)}

    Raises:
        InputError: If there is no column of that name, or more than one.
    """
    numbers: dict[str, Columns] = {}
    for name, feature in related.items():
        found = [_number(column, names, name) for column in _declared_columns(feature)]
        if isinstance(feature, Categorical):
            numbers[name] = Categorical(found[0], feature.num_categories)
        else:
            numbers[name] = found
    return numbers


def _declared_columns(feature: Declared) -> list[int | str]:
    if isinstance(feature, Categorical):
        return [feature.column]
    return [feature] if isinstance(feature, str) else list(feature)


def _number(column: int | str, names: Sequence[str], feature: str) -> int:
    if isinstance(column, int):
        return column
    if names.count(column) == 1:
        return names.index(column)
    known = did_you_mean(column, names) if column not in names else "several columns have this name"
    raise InputError(f"related[{feature!r}]: there is no one column {column!r}; {known}.")


def encode(inputs: Tensor, related: Mapping[str, Columns]) -> Tensor:
    """Return the columns of all features, one-hot where they are categorical, ``(..., N, C)``."""
    parts = [
        columns.encode(inputs, name) if isinstance(columns, Categorical) else inputs[..., list(columns)]
        for name, columns in related.items()
    ]
    dtype = torch.promote_types(inputs.dtype, torch.float32)
    return torch.cat([part.to(dtype) for part in parts], dim=-1)


def check_declared(related: Mapping[str, Declared]) -> None:
    """Raise :class:`InputError` unless each feature has columns."""
    if not related:
        raise InputError("related = {}: expected at least one related feature with its columns.")
    for name, columns in related.items():
        if isinstance(columns, Categorical):
            continue
        known = (isinstance(c, str) or (isinstance(c, int) and c >= 0) for c in columns)
        if not columns or not all(known):
            raise InputError(
                f"related[{name!r}] = {columns!r}: expected the feature's column numbers, 0 or more, or "
                "their names."
            )


def check_values(columns: Tensor, related: Mapping[str, Columns], mask: Tensor | None) -> None:
    """Raise :class:`InputError` if a related column is NaN or infinite, with feature, column and row.

    Args:
        columns: The encoded columns ``(..., N, C)``.
        related: Their features.
        mask: Rows that count ``(..., N)``; all when ``None``.
    """
    bad = ~columns.isfinite()
    if mask is not None:
        bad = bad & mask.unsqueeze(-1)
    if not bool(bad.any()):
        return
    *_, row, place = bad.nonzero()[0].tolist()
    raise InputError(
        f"{_column(related, place)}, row {row} of the batch: the value is {columns[bad][0].item()}, so "
        f"the penalty is not a number. {_MISSING_ADVICE}"
    )


def check_means(means: Tensor, related: Mapping[str, Columns]) -> None:
    """Raise :class:`InputError` if the means ``(..., C)`` of related columns are not finite in each model."""
    bad = ~means.isfinite().reshape(-1, means.shape[-1]).all(0)
    if bool(bad.any()):
        per_column = len(bad) // sum(len(numbers_of(feature)) for feature in related.values())
        raise InputError(
            f"{_column(related, int(bad.nonzero()[0]) // per_column)}: a value is NaN or infinite, in a "
            f"batch of another process or since the last update of lambda. {_MISSING_ADVICE}"
        )


def check_known_rows(columns: Tensor, related: Mapping[str, Columns]) -> None:
    """Raise :class:`InputError` if each row of the encoded columns has a missing value."""
    known = columns.isfinite()
    if len(known) and not bool(known.all(-1).any()):
        raise InputError(
            f"{_column(related, int(known.sum(-2).argmin()))}: with missing='skip' no row of the first batch "
            "is left for the penalty. Leave this feature out, or fill in its values."
        )


def check_spreads(columns: Tensor, related: Mapping[str, Columns]) -> str | None:
    """Return a warning about encoded columns whose standard deviation is far from 1, the kernel's width."""
    if columns.shape[-2] < 2:
        return None
    spreads = columns.float().std(-2).reshape(-1, columns.shape[-1]).amax(0)
    outside = (spreads > _SPREADS[1]) | ((spreads < _SPREADS[0]) & (spreads > 0))
    if not bool(outside.any()):
        return None
    place = int(outside.nonzero()[0])
    return (
        f"statistic='hsic': {_column(related, place)} has a standard deviation of "
        f"{spreads[place].item():.3g}, and the kernel's width is 1. Standardise the columns."
    )


def _column(related: Mapping[str, Columns], place: int) -> str:
    """Return the feature and the column number of an encoded column, for an error."""
    columns = [(name, number) for name, feature in related.items() for number in numbers_of(feature)]
    return "related feature {!r}, column {}".format(*columns[place])


def check_codes(inputs: Tensor, related: Mapping[str, Columns]) -> str | None:
    """Return a warning about the first feature whose column may be category codes.

    Such a column has three or more whole values, from 0 or 1 without gaps, each in several rows.

    Raises:
        InputError: If the inputs are integers, so that such a column is certain to hold codes or counts.
    """
    for name, columns in related.items():
        if isinstance(columns, Categorical) or len(columns) > 1:
            continue
        values, counts = torch.unique(inputs[..., columns[0]].detach().float(), return_counts=True)
        codes = torch.arange(len(values), device=values.device)
        contiguous = bool((values == codes).all() or (values == codes + 1).all())
        if 3 <= len(values) <= _MAX_CODES and contiguous and int(counts.min()) >= _MIN_ROWS_PER_CODE:
            return _codes_warning(inputs, name, columns[0], int(values[-1]))
    return None


def _codes_warning(inputs: Tensor, name: str, column: int, largest: int) -> str:
    fix = f"{{{name!r}: Categorical({column}, num_categories={largest + 1})}}"
    if inputs.is_floating_point():
        return (
            f"related feature {name!r}: column {column} has the whole values up to {largest} only. If "
            f"these are category codes, encode them: {fix}. If they are numbers, this is fine."
        )
    raise InputError(
        f"related feature {name!r}: column {column} has dtype {inputs.dtype} and values up to {largest}. "
        f"Category codes are not numbers: encode them one-hot, {fix}; or give inputs.float() if they are "
        "numbers."
    )
