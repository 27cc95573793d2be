"""The rows of a Parquet directory, part by part, as encoded tensors; and the pass that learns how."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairrf_lightning.datamodules.encoder_fit import EncoderFit
from fairrf_lightning.datamodules.encoding import TableEncoder
from fairrf_lightning.datamodules.labels import labels
from fairrf_lightning.datamodules.parquet_directory import ParquetDirectory, RowGroup, uniform_of_rows
from fairrf_lightning.datamodules.table_columns import kept_rows, kinds_of, make_frame, report_dropped
from fairrf_lightning.datamodules.table_spec import Kind, TableSpec
from fairrf_lightning.errors import InputError

PARTS = ("train", "val", "test")
_SAMPLED_ROWS = 50_000  # training rows; medians are those of a sample
_MOST_VALUES = 1000  # of a label or of S; more are a mistake, told after the pass


@dataclass(frozen=True)
class ParquetRows:
    """Encoded rows of the parts of a Parquet directory.

    Each row belongs to train, val or test by a hash of seed, file and row number: nothing is copied,
    and whoever reads a row group knows the parts of its rows. Part ``all`` is for prediction.

    Args:
        directory: The files.
        spec: Meaning of the columns.
        encoder: Made from the training rows.
        seed: Seed of the split.
        split: Shares of the parts.
        label_codes: 0 or 1 for each value of the target.
        group_names: Groups of S, the position being the id.
    """

    directory: ParquetDirectory
    spec: TableSpec
    encoder: TableEncoder
    seed: int = 0
    split: tuple[float, float, float] = (0.5, 0.2, 0.3)
    label_codes: dict[str, int] = field(default_factory=dict)
    group_names: list[str] = field(default_factory=list)

    def read(self, group: RowGroup, part: str, keys: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
        """Yield the rows of a row group that belong to ``part``, in several pieces."""
        kinds = self._kinds(part, keys)
        chosen = None if part == "all" else parts_of_rows(group, self.seed, self.split) == PARTS.index(part)
        for numbers, frame in self.directory.read(group, kinds, self.spec, chosen):
            kept = kept_rows(frame, list(self.encoder.owners), self.spec, labelled=part != "all")
            if not kept.all():
                numbers, frame = numbers[kept], frame[kept]  # noqa: PLW2901
            yield self._tensors(numbers + group.offset, frame, keys)

    def empty(self, part: str, keys: tuple[str, ...]) -> dict[str, Tensor]:
        """Return a batch without rows."""
        frame = make_frame(self.directory.empty_table, self._kinds(part, keys), self.spec)
        return self._tensors(np.arange(0), frame, keys)

    def _kinds(self, part: str, keys: tuple[str, ...]) -> dict[str, Kind]:
        extra = _extra_kinds(self.spec, labelled=part != "all", grouped="groups" in keys)
        return kinds_of(self.encoder) | extra

    def _tensors(
        self, rows: NDArray[np.int64], frame: pd.DataFrame, keys: tuple[str, ...]
    ) -> dict[str, Tensor]:
        tensors = {"inputs": self.encoder.transform(frame)}
        if "row" in keys:
            tensors["row"] = torch.from_numpy(rows)
        if "target" in keys and self.spec.target is not None:
            values = labels(self.spec.target, frame[self.spec.target].array, self.label_codes)
            tensors["target"] = torch.from_numpy(values)
        if "groups" in keys and self.spec.sensitive is not None:
            column = frame[self.spec.sensitive].array
            ids = pd.Index(self.group_names).get_indexer(column.categories)
            tensors["groups"] = torch.from_numpy(np.append(ids, -1)[column.codes].astype(np.int64))
        return tensors


@dataclass
class ParquetScan:
    """What one pass over all rows finds.

    Args:
        counts: Rows of each row group that belong to each of the three parts (of part ``all``: one).
        label_values: Values of the target.
        group_values: Values of S, sorted.
        validation: A sample of the validation rows, where S is legal, if there is S.
    """

    counts: list[list[int]]
    label_values: list[str]
    group_values: list[str]
    validation: pd.DataFrame | None


def scan(
    directory: ParquetDirectory,
    kinds: dict[str, Kind],
    spec: TableSpec,
    *,
    seed: int,
    split: tuple[float, float, float],
    fit: EncoderFit | None = None,
) -> ParquetScan:
    """Read all rows once: count those of each part, and let ``fit`` learn from the training rows."""
    everything = kinds | _extra_kinds(spec, labelled=True, grouped=True)
    sampled_share = _SAMPLED_ROWS / max(1, directory.num_rows * split[0])
    counts = np.zeros((len(directory.row_groups), len(PARTS)), dtype=np.int64)
    values: dict[str, set[str]] = {name: set() for name in (spec.target, spec.sensitive) if name is not None}
    validation: list[pd.DataFrame] = []
    for index, group in enumerate(directory.row_groups):
        parts = parts_of_rows(group, seed, split)
        sampled = uniform_of_rows(seed + 1, group) < sampled_share
        for numbers, frame in directory.read(group, everything, spec):
            for name, found in values.items():
                if len(found) <= _MOST_VALUES:
                    found.update(frame[name].array.categories)
            part = np.where(kept_rows(frame, list(kinds), spec, labelled=True), parts[numbers], -1)
            counts[index] += np.bincount(part + 1, minlength=len(PARTS) + 1)[1:]
            if fit is not None:
                fit.update(frame[part == 0], sampled[numbers[part == 0]])
            if fit is not None and spec.sensitive is not None:
                validation.append(frame[(part == 1) & sampled[numbers]])
    report_dropped(directory.num_rows, int(counts.sum()), spec)
    _check_counts(counts, split)
    label_values, group_values = (sorted(values.get(str(name), ())) for name in (spec.target, spec.sensitive))
    seen = pd.concat(validation, ignore_index=True) if validation else None
    return ParquetScan(counts.tolist(), label_values, group_values, seen)


def parts_of_rows(group: RowGroup, seed: int, split: tuple[float, float, float]) -> NDArray[np.int64]:
    """Return 0, 1 or 2 for the rows of a row group: train, val or test."""
    return np.searchsorted(np.cumsum(split)[:2], uniform_of_rows(seed, group), side="right")


def _extra_kinds(spec: TableSpec, *, labelled: bool, grouped: bool) -> dict[str, Kind]:
    names = [spec.target if labelled else None, spec.sensitive if grouped else None]
    return {name: "category" for name in names if name is not None}


def _check_counts(counts: NDArray[np.int64], split: tuple[float, float, float]) -> None:
    sizes = dict(zip(PARTS, counts.sum(axis=0).tolist(), strict=True))
    if not all(sizes.values()):
        raise InputError(f"there are too few rows for a split into {list(split)}: {sizes}")
