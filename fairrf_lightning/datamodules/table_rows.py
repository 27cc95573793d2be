"""The rows of a table in memory: those to learn from and measure on, or those to predict."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from fairrf_lightning.datamodules.encoding import TableEncoder
from fairrf_lightning.datamodules.table_columns import (
    infer_kinds,
    kept_rows,
    kinds_of,
    make_frame,
    report_dropped,
)
from fairrf_lightning.datamodules.table_files import RawTable
from fairrf_lightning.datamodules.table_spec import TableSpec, check_columns


def labelled_rows(
    raw: RawTable, spec: TableSpec, encoder: TableEncoder | None, beside: Sequence[str] = ()
) -> pd.DataFrame:
    """Return inputs, target and S of the rows that have a label.

    Args:
        raw: The table as read.
        spec: Meaning of its columns.
        encoder: Says which columns are inputs, if it has been learned before.
        beside: Columns to return as categories, whether or not they are inputs.
    """
    columns = raw.table.column_names
    if encoder is None:
        kinds = infer_kinds(raw.table, spec.features(columns), spec, typed=raw.typed)
    else:
        kinds = kinds_of(encoder)
        check_columns(kinds, columns)
    features = list(kinds)
    kinds |= {name: "category" for name in (spec.target, spec.sensitive, *beside) if name is not None}
    frame = make_frame(raw.table, kinds, spec)
    kept = kept_rows(frame, features, spec, labelled=True)
    report_dropped(len(kept), int(kept.sum()), spec)
    return frame[kept].reset_index(drop=True)


def rows_to_predict(raw: RawTable, spec: TableSpec, encoder: TableEncoder) -> dict[str, Tensor]:
    """Return the encoded inputs of all rows, and their numbers in the table."""
    kinds = kinds_of(encoder)
    check_columns(kinds, raw.table.column_names)
    frame = make_frame(raw.table, kinds, spec)
    kept = kept_rows(frame, list(kinds), spec, labelled=False)
    report_dropped(len(kept), int(kept.sum()), spec, labelled=False)
    return {"inputs": encoder.transform(frame[kept]), "row": torch.from_numpy(kept.nonzero()[0])}
