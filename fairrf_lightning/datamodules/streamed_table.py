"""A streamed table with all that is known about it: its parts, labels, groups and encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from fairrf_lightning.datamodules.encoder_fit import EncoderFit
from fairrf_lightning.datamodules.encoding import TableEncoder
from fairrf_lightning.datamodules.groups import group_ids
from fairrf_lightning.datamodules.labels import check_group_names, label_codes
from fairrf_lightning.datamodules.parquet_directory import ParquetDirectory
from fairrf_lightning.datamodules.parquet_rows import PARTS, ParquetRows, scan
from fairrf_lightning.datamodules.quarantine import check_stand_ins
from fairrf_lightning.datamodules.table_columns import infer_kinds, kinds_of, report_dropped
from fairrf_lightning.datamodules.table_spec import TableSpec


@dataclass(frozen=True)
class StreamedTable:
    """The rows of a Parquet directory.

    Args:
        rows: The rows by part, encoded.
        counts: Their number by row group and part.
        group_values: All values of S.
    """

    rows: ParquetRows
    counts: list[list[int]]
    group_values: list[str] = field(default_factory=list)

    @classmethod
    def learn(
        cls,
        path: Path,
        spec: TableSpec,
        related: Sequence[str],
        *,
        positive: object,
        seed: int,
        split: tuple[float, float, float],
    ) -> StreamedTable:
        """Learn the encoding from the training rows, in one pass over the files."""
        directory = ParquetDirectory(path)
        columns = directory.empty_table.column_names
        spec.check(columns, related)
        kinds = infer_kinds(directory.empty_table, spec.features(columns), spec, typed=True)
        fit = EncoderFit(kinds, spec)
        found = scan(directory, kinds, spec, seed=seed, split=split, fit=fit)
        codes = label_codes(str(spec.target), found.label_values, positive)
        if found.validation is not None and not spec.include_sensitive:
            check_stand_ins(found.validation[list(kinds)], found.validation[spec.sensitive])
        rows = ParquetRows(directory, spec, fit.encoder(related), seed, split, codes)
        return cls(rows, found.counts, found.group_values)

    @classmethod
    def restore(cls, path: Path, spec: TableSpec, state: Mapping[str, Any]) -> StreamedTable:
        """Take over the encoding of a checkpoint; a pass is needed only if the files are others."""
        directory = ParquetDirectory(path)
        encoder = TableEncoder.from_state(state["encoder"])
        seed, split = state["seed"], tuple(state["split"])
        rows = ParquetRows(directory, spec, encoder, seed, split, state["label_codes"])
        if directory.checksum == state["checksum"] and spec.sensitive == state["sensitive"]:
            return cls(rows, state["counts"], state["group_values"])
        found = scan(directory, kinds_of(encoder), spec, seed=seed, split=split)
        return cls(rows, found.counts, found.group_values)

    @classmethod
    def for_prediction(cls, path: Path, spec: TableSpec, encoder: TableEncoder) -> StreamedTable:
        """Take all rows; they need neither target nor S."""
        rows = ParquetRows(ParquetDirectory(path), spec, encoder)
        groups = rows.directory.row_groups
        counts = [[group.num_rows] for group in groups]
        if spec.missing == "drop":
            counts = [[sum(len(block["row"]) for block in rows.read(g, "all", ("row",)))] for g in groups]
            report_dropped(rows.directory.num_rows, int(np.sum(counts)), spec, labelled=False)
        return cls(rows, counts)

    def comparing(self, groups: Sequence[str] | Literal["all"]) -> StreamedTable:
        """Return the table with ids for these groups of S."""
        if self.rows.spec.sensitive is None:
            return self
        check_group_names(self.rows.spec.sensitive, self.group_values, chosen=groups != "all")
        _, names = group_ids(pd.Series(self.group_values, name=self.rows.spec.sensitive), groups)
        return replace(self, rows=replace(self.rows, group_names=names))

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each part."""
        return dict(zip(PARTS, np.sum(self.counts, axis=0).tolist(), strict=True))

    def counts_of(self, part: str) -> list[int]:
        """Return the rows of a part in each row group."""
        column = 0 if part == "all" else PARTS.index(part)
        return [count[column] for count in self.counts]
