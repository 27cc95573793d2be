"""Facts of one run: from its folder alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.metrics.decisions import is_constant
from fairrf_lightning.report.facts import Data, Estimate, Gap, Path, Training
from fairrf_lightning.report.run_folder import RunFolder, read_checkpoint


def measured(metrics: pd.DataFrame, scope: str) -> tuple[str, Estimate | None, list[Gap]]:
    """Return the split, accuracy and gaps that were logged last; the test split if it was tested."""
    for stage, words in (("test", "test split"), ("val", "validation split, last epoch")):
        name = f"{stage}_acc"
        rows = metrics[metrics[name].notna()] if name in metrics else pd.DataFrame()
        if len(rows):
            last = rows.iloc[-1]
            gaps = [
                Gap(label, scope, _estimate(last, f"{stage}_{key}"))
                for key, label in ((gap.key, gap.label) for gap in GAPS.values())
                if f"{stage}_{key}" in last.index and pd.notna(last[f"{stage}_{key}_low"])
            ]
            return words, _estimate(last, name), gaps
    return "no split", None, []


def has_same_decision(metrics: pd.DataFrame) -> bool:
    """Return whether the decisions on the split that was logged last were all the same."""
    for name in ("test_positive_share", "val_positive_share"):
        shares = metrics[name].dropna().tolist() if name in metrics else []
        if shares:
            return is_constant(float(shares[-1]))
    return False


def training(run: RunFolder) -> Training | None:
    """Return the paths of lambda and of the penalties, if they were logged to ``metrics.csv``."""
    metrics = run.metrics
    weights, penalties = (list(_paths(metrics, f"{name}/")) for name in ("lambda", "penalty"))
    if not weights and not penalties:
        return None
    checkpoint = run.best_checkpoint
    chosen = None if checkpoint is None else int(read_checkpoint(checkpoint).get("epoch", -1))
    monitor = (run.config.get("checkpoint") or {}).get("monitor")
    rule = f"the best {monitor}" if monitor else "the last epoch"
    return Training(weights, penalties, chosen, rule)


def data_facts(run: RunFolder) -> Data | None:
    """Return what ``run.json`` says of the data; ``None`` for a data module of another kind."""
    record = run.record
    if "columns" not in record:
        return None
    sensitive = record["sensitive"]
    return Data(
        name=run.data_name,
        rows=record["rows"],
        columns=_by_owner(record["columns"], _table_columns(run)),
        related=list(record["related"]),
        sensitive=sensitive,
        groups=record["groups"],
        use_of_sensitive=_use_of_sensitive(record),
    )


def data_of(module: TabularDataModule) -> Data:
    """Return what a data module says of itself."""
    options = ("sensitive", "include_sensitive", "expose_sensitive")
    return Data(
        name=str(getattr(module, "name", type(module).__name__)),
        rows=module.split_sizes,
        columns=_by_owner(module.feature_names, list(module.encoder.owners)),
        related=list(module.related),
        sensitive=module.sensitive,
        groups=module.group_names,
        use_of_sensitive=_use_of_sensitive({name: getattr(module, name) for name in options}),
    )


def configuration(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that are set, by their full names."""
    return {name: str(value) for name, value in _flat(config) if value is not None}


def _estimate(row: pd.Series, name: str) -> Estimate:
    return Estimate(*(float(row.get(key, float("nan"))) for key in (name, f"{name}_low", f"{name}_high")))


def _paths(metrics: pd.DataFrame, prefix: str) -> Iterator[Path]:
    for column in metrics.columns:
        if str(column).startswith(prefix):
            rows = metrics[metrics[column].notna()].drop_duplicates("epoch", keep="last")
            name = str(column).removeprefix(prefix)
            yield Path(name, rows["epoch"].astype(int).tolist(), rows[column].astype(float).tolist())


def _table_columns(run: RunFolder) -> list[str]:
    """Return the table's own columns, which the checkpoint keeps."""
    if run.best_checkpoint is None:
        return []
    state = read_checkpoint(run.best_checkpoint).get(str(run.record.get("data")), {})
    return list(state.get("columns", ()))


def _by_owner(encoded: Sequence[str], columns: Sequence[str]) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {name: [] for name in columns}
    for name in encoded:
        owner = next((of for of in columns if name == of or name.startswith(f"{of}=")), name.split("=")[0])
        owners.setdefault(owner, []).append(name)
    return {owner: names for owner, names in owners.items() if names}


def _use_of_sensitive(record: Mapping[str, Any]) -> str:
    sensitive = record["sensitive"]
    if sensitive is None:
        return "The data have no sensitive attribute."
    if record["include_sensitive"]:
        return f"{sensitive} is an input of the model."
    if record["expose_sensitive"]:
        return f"{sensitive} was seen by the penalty in training; it is no input of the model."
    return f"{sensitive} was not seen in training; validation and test rows have it for the gaps only."


def _flat(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(config, Mapping) and config:
        for key, value in config.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, config
