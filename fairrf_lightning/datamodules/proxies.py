"""Published statistics about S: its share and its correlations with columns, from a YAML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fairrf_lightning.errors import InputError, did_you_mean

_KEYS = ("share", "correlations", "group")


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
    content = _load(str(path))
    if unknown := sorted(set(content) - set(_KEYS)):
        raise InputError(f"{path}: {unknown[0]} is not known; {did_you_mean(unknown[0], _KEYS)}")
    correlations = content.get("correlations")
    if not isinstance(correlations, dict) or not correlations:
        raise InputError(
            f"{path}: correlations is missing: expected a line for each column whose correlation with S is "
            "known, such as 'age: -0.09' or 'relationship=Wife: [0.28, 0.33]'."
        )
    for name in correlations:
        _check_name(str(path), str(name), columns)
    limits = {str(name): _correlation(str(path), name, value) for name, value in correlations.items()}
    if "share" not in content:
        raise InputError(f"{path}: share is missing: expected the share of people with S = 1, such as 0.33.")
    share = _limits(str(path), "share", content["share"])
    if not 0 < share[0] <= share[1] < 1:
        raise InputError(f"{path}: share {content['share']}: expected a number between 0 and 1.")
    return Proxies(limits, share, str(content.get("group", "S = 1")))


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
