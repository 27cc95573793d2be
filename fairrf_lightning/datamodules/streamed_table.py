"""A streamed table with all that is known about it: its parts, labels, groups and encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairrf_lightning.datamodules.encoder_fit import EncoderFit
from fairrf_lightning.datamodules.encoding import TableEncoder
from fairrf_lightning.datamodules.labels import check_group_names, label_codes
from fairrf_lightning.datamodules.parquet_directory import ParquetDirectory
from fairrf_lightning.datamodules.parquet_rows import PARTS, ParquetRows, scan
from fairrf_lightning.datamodules.table_columns import infer_kinds, kinds_of, report_dropped
from fairrf_lightning.datamodules.table_spec import TableSpec


@dataclass(frozen=True)
class StreamedTable:
    """The rows of a Parquet directory and their number by row group and part."""

    rows: ParquetRows
    counts: list[list[int]]

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
        if spec.sensitive is not None:
            check_group_names(spec.sensitive, found.group_names)
        encoder = fit.encoder(related)
        return cls(ParquetRows(directory, spec, encoder, seed, split, codes, found.group_names), found.counts)

    @classmethod
    def restore(cls, path: Path, spec: TableSpec, state: Mapping[str, Any]) -> StreamedTable:
        """Take over the encoding of a checkpoint; a pass is needed only if the files are others."""
        directory = ParquetDirectory(path)
        encoder = TableEncoder.from_state(state["encoder"])
        seed, split = state["seed"], tuple(state["split"])
        counts, groups = state["counts"], state["group_names"]
        if directory.checksum != state["checksum"] or spec.sensitive != state["sensitive"]:
            found = scan(directory, kinds_of(encoder), spec, seed=seed, split=split)
            counts, groups = found.counts, found.group_names
        return cls(ParquetRows(directory, spec, encoder, seed, split, state["label_codes"], groups), counts)

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

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each part."""
        return dict(zip(PARTS, np.sum(self.counts, axis=0).tolist(), strict=True))

    def counts_of(self, part: str) -> list[int]:
        """Return the rows of a part in each row group."""
        column = 0 if part == "all" else PARTS.index(part)
        return [count[column] for count in self.counts]
