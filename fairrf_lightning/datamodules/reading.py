"""What the readers of the data files share."""

from __future__ import annotations

import pandas as pd
from lightning.pytorch.utilities import rank_zero_info


def text_as_categories(table: pd.DataFrame) -> pd.DataFrame:
    """Give text columns the categories of the whole table: a model's width must not depend on the split."""
    text = table.select_dtypes(exclude="number").columns
    return table.astype(dict.fromkeys(text, "category"))


def keep_rows(table: pd.DataFrame, keep: pd.Series[bool], reason: str) -> pd.DataFrame:
    """Return the rows to keep, numbered anew, and print how many were dropped and why."""
    kept = table[keep].reset_index(drop=True)
    if dropped := len(table) - len(kept):
        rank_zero_info(f"Data: dropped {dropped:,} of {len(table):,} rows: {reason}.")
    return kept
