"""What is known of S: its share and its correlations with columns, from a file or a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fairrf_lightning.certificate.audit_sample import sample_box
from fairrf_lightning.certificate.dual import Box
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.columns import TableSpec, check_column, make_frame
from fairrf_lightning.datamodules.encoding import TableEncoder
from fairrf_lightning.datamodules.files import read_file
from fairrf_lightning.errors import InputError, did_you_mean


@dataclass(frozen=True)
class Proxies:
    """Where the correlations of S with columns lie, and its share.

    Args:
        names: Encoded columns, such as ``age`` and ``relationship=Wife``.
        box: Limits of their correlations with S, in the same order.
        share: Limits of the share of rows with S = 1.
        group: What S = 1 means.
        source: Where this is known from.
        level: Confidence at which all limits hold together; ``None`` if they are taken as given.
    """

    names: list[str]
    box: Box
    share: tuple[float, float]
    group: str
    source: str
    level: float | None = None


def read_proxies(path: str, columns: Sequence[str]) -> Proxies:
    """Read a file of ``share``, ``correlations`` and, if wanted, ``group``.

    Args:
        path: YAML file; each figure is a number or ``[low, high]``.
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
    return Proxies(names, Box(low, high), share, str(content.get("group", "S = 1")), path)


def proxies_template(columns: Sequence[str]) -> str:
    """Return a file for :func:`read_proxies` that claims next to nothing, to be filled in.

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


def sample_proxies(
    path: str,
    data: TabularDataModule,
    features: Sequence[str],
    *,
    sensitive: str,
    group: str | None,
    level: float,
) -> Proxies:
    """Estimate correlations and share from rows where S is known.

    Args:
        path: CSV or Parquet file with the columns ``features`` and ``sensitive``.
        data: Says how columns are encoded.
        features: Features of the data, whose encoded columns are used.
        sensitive: The column of S.
        group: The value of S that counts as 1; by default the first of two.
        level: Level at which all intervals hold together.
    """
    encoder = part_of(data.encoder, features)
    raw = read_file(Path(path))
    kinds = encoder.kinds
    for name in (*kinds, sensitive):
        check_column(f"--audit-sample {path}", name, raw.table.column_names)
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
    return Proxies(encoder.columns, box, share, group, source, level)


def part_of(encoder: TableEncoder, features: Sequence[str]) -> TableEncoder:
    """Return the encoder of some of the features."""
    for name in features:
        check_column("columns", name, encoder.owners)
    return TableEncoder(
        scales={name: scale for name, scale in encoder.scales.items() if name in features},
        categories={name: found for name, found in encoder.categories.items() if name in features},
        fills={name: fill for name, fill in encoder.fills.items() if name in features},
        indicators=[name for name in encoder.indicators if name in features],
    )


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
