"""Rows to audit, and what an audit writes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairrf_lightning.audit import Scores, audit


def read_audit() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("audit/audit.json").read_text(encoding="utf-8"))
    return found


def write_predictions(rows: int = 2000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    race = rng.choice(["a", "b", "c"], rows)
    prob = rng.beta(2 + (race == "a"), 3)
    table = pd.DataFrame({"prob": prob, "target": (rng.random(rows) < prob).astype(int), "race": race})
    table["sex"] = rng.choice(["f", "m"], rows)
    table["other"] = rng.beta(2, 3, rows)
    table["decision"] = (prob >= 0.4).astype(int)
    table.loc[:49, "race"] = None
    table.to_csv("p.csv", index=False)
    table.to_parquet("p.parquet")
    return table


def draw(rows: int = 3000, seed: int = 0) -> tuple[Any, Any, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    attributes = pd.DataFrame(
        {"race": rng.choice(["a", "b", "c"], rows), "sex": rng.choice(["f", "m"], rows)}
    )
    probs = np.round(rng.beta(2, 2 + (attributes["race"] == "a"), rows), 3)  # with ties
    return (rng.random(rows) < probs).astype(int), probs, attributes


def audited(
    target: Any, probs: Any, attributes: pd.DataFrame, groups: Sequence[str] = (), **options: Any
) -> dict[str, Any]:
    return audit(Scores.of_arrays(target, probs, attributes), groups, **options).to_dict()


def grouping(result: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in result["groupings"] if one["name"] == name)
    return found
