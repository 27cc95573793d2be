"""Refuse options of a data module that cannot work, with what to do instead."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from inspect import Parameter, signature

import torch
from torch import Tensor

from fairrf_lightning.errors import InputError, did_you_mean

_PARTS = ("train", "val", "test")


def check_at_least(minimum: int, **options: int | None) -> None:
    """Refuse options below ``minimum``; ``None`` stands for an option not given."""
    for name, value in options.items():
        if value is not None and value < minimum:
            raise InputError(f"{name} must be at least {minimum}, not {value}")


def check_split(split: Sequence[float]) -> None:
    """Refuse anything but three positive shares of a whole."""
    # an unordered comparison with NaN is false, hence "not all"
    if len(split) != len(_PARTS) or not all(share > 0 for share in split) or round(sum(split), 6) != 1:
        raise InputError(
            f"split must be three positive shares (train, validation, test) that add up to 1, "
            f"such as [0.5, 0.2, 0.3], not {list(split)}"
        )


def check_related(
    related: Sequence[str], columns: Collection[str], sensitive: str | None, *, include_sensitive: bool
) -> None:
    """Refuse related features that are not in the data, or that are S itself."""
    if not related:
        raise InputError("related is empty: name at least one feature that is related to S")
    for name in related:
        if name not in columns:
            raise InputError(f"related: there is no column '{name}'; {did_you_mean(name, columns)}")
    if len(set(related)) < len(related):
        raise InputError(f"related names a feature twice: {', '.join(related)}")
    if sensitive in related and not include_sensitive:
        raise InputError(
            f"related: '{sensitive}' is the sensitive attribute and no input of the model; "
            "leave it out, or set include_sensitive to true"
        )


def split_sizes(num_rows: int, split: Sequence[float]) -> list[int]:
    """Return the rows of each part; the last takes what rounding leaves.

    >>> split_sizes(45222, (0.5, 0.2, 0.3))
    [22611, 9044, 13567]
    """
    train, val = (round(share * num_rows) for share in split[:2])
    sizes = [train, val, num_rows - train - val]
    if min(sizes) < 1:
        raise InputError(f"{num_rows} rows are too few for a split into {list(split)}")
    return sizes


def split_rows(num_rows: int, split: tuple[float, float, float], seed: int) -> dict[str, Tensor]:
    """Return the row numbers of ``train``, ``val`` and ``test``, drawn by the seed."""
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed))
    train, val, _ = split_sizes(num_rows, split)
    parts = order.tensor_split((train, train + val))
    return dict(zip(("train", "val", "test"), parts, strict=True))


def argument_names(made: type) -> list[str]:
    """Return the names of all arguments of a class, sorted, those of its base classes included.

    >>> class Base:
    ...     def __init__(self, seed=0): ...
    >>> class Table(Base):
    ...     def __init__(self, path, **kwargs): ...
    >>> argument_names(Table)
    ['path', 'seed']
    """
    unnamed = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    constructors = [vars(owner)["__init__"] for owner in made.__mro__[:-1] if "__init__" in vars(owner)]
    parameters = [list(signature(made).parameters.values())[1:] for made in constructors]  # without self
    return sorted({found.name for some in parameters for found in some if found.kind not in unnamed})
