"""The files of a run next to its checkpoints: ``config.yaml``, ``run.json`` and ``predictions.csv``."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Collection, Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch.distributed as dist
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from fairrf_lightning.callbacks.lambda_update import LambdaUpdateCallback
from fairrf_lightning.errors import InputError, diverged, writing_to
from fairrf_lightning.files import write_csv, write_text

PREDICTED = ("row", "probability", "uncorrected_probability", "decision")  # columns of predictions

if TYPE_CHECKING:
    from jsonargparse import Namespace

_PACKAGES = ("fairrf-lightning", "torch", "lightning", "torchmetrics", "numpy", "pandas", "jsonargparse")


class RunRecord(SaveConfigCallback):
    """Writes ``config.yaml`` and ``run.json`` next to the logs and checkpoints of each run."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace) -> None:
        super().__init__(parser, config, save_to_log_dir=False)

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write both files for ``fit``; other commands write no run."""
        directory = run_directory(trainer)
        if stage != "fit" or directory is None:
            return
        directory.mkdir(parents=True, exist_ok=True)
        config = _resolved(self.config, trainer)
        self.parser.save(
            config, str(directory / "config.yaml"), skip_none=False, overwrite=True, multifile=False
        )
        record = {
            "seed": self.config.get("seed_everything"),
            "versions": package_versions(),
            **describe_data(trainer),
        }
        _write(directory / "run.json", record)


def add_to_record(trainer: Trainer, **facts: Any) -> None:
    """Add facts to the run's ``run.json``, if it has one."""
    directory = run_directory(trainer)
    if directory is None or not (path := directory / "run.json").is_file():
        return
    _write(path, json.loads(path.read_text(encoding="utf-8")) | facts)


def _write(path: Path, record: dict[str, Any]) -> None:
    with writing_to(path, "its folder must be writable"):
        write_text(path, json.dumps(record, indent=2) + "\n")


def _resolved(config: Namespace, trainer: Trainer) -> Namespace:
    """Return the config with defaults that depend on the data replaced by their values."""
    config = config.clone()
    data: Any = getattr(trainer, "datamodule", None)
    options = config.get("data.init_args") or {}
    if "batch_size" in options and options["batch_size"] is None and hasattr(data, "batch_size"):
        options["batch_size"] = data.batch_size
    for callback in getattr(trainer, "callbacks", []):
        if isinstance(callback, LambdaUpdateCallback) and callback.every_n_steps == "auto":
            config["lambda_update.every_n_steps"] = callback.update_interval
        if isinstance(callback, LambdaUpdateCallback) and callback.penalty is not None:
            config["lambda_update.beta"] = None  # it replaces the built-in callback, whose beta has no effect
    return config


def run_directory(trainer: Trainer) -> Path | None:
    """Return the folder of this run, which contains the folder of its checkpoints."""
    if not trainer.loggers:
        return None
    logger = trainer.loggers[0]
    # As ModelCheckpoint does: W&B's log_dir is shared by all runs.
    number = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
    return Path(logger.save_dir or trainer.default_root_dir) / str(logger.name) / number


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on."""
    return {"python": platform.python_version()} | {package: version(package) for package in _PACKAGES}


def describe_data(trainer: Trainer) -> dict[str, Any]:
    """Return rows, columns and their roles; empty for a data module that is not ours."""
    data: Any = getattr(trainer, "datamodule", None)
    if not hasattr(data, "feature_names"):
        return {}
    return {
        "data": type(data).__name__,
        "rows": data.split_sizes,
        "columns": data.feature_names,
        "related": data.related_columns,
        "membership": getattr(data, "membership_source", None),
        "sensitive": data.sensitive,
        "include_sensitive": data.include_sensitive,
        "expose_sensitive": data.expose_sensitive,
        "remove_related": data.remove_related,
        "ksmote": None if data.ksmote is None else asdict(data.ksmote),
        "groups": data.group_names,
    }


class PredictionWriter(Callback):
    """Writes one line per row: its number in the table, its probability and the decision.

    Label (``target``, 0 or 1) and sensitive attribute are added where the data have them, so that ``audit``
    can read the file.

    Args:
        path: The CSV file to write. An existing file is replaced once the new one is complete; if it has
            columns that predictions of this run lack, it is kept, and prediction stops.
    """

    def __init__(self, path: str = "predictions.csv") -> None:
        if Path(path).is_dir():
            raise InputError(f"predictions.path = {path}: this is a directory; name a file.")
        self.path = Path(path)
        self._frames: list[pd.DataFrame] = []

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any, **__: Any
    ) -> None:
        if not isinstance(outputs, dict):
            raise InputError("predictions are written only for a model whose predict_step returns a dict.")
        frame = pd.DataFrame(dict(_columns(outputs)))
        if not self._frames:
            sensitive = getattr(getattr(trainer, "datamodule", None), "sensitive", None)
            _check_replaceable(self.path, {*frame.columns, *PREDICTED, "target", sensitive})
        self._frames.append(frame)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the ranks' rows and write them in the table's order."""
        mine = pd.concat(self._frames, ignore_index=True) if self._frames else pd.DataFrame()
        self._frames = []
        parts: list[Any] = [mine]
        if trainer.world_size > 1:
            parts = [None] * trainer.world_size
            dist.all_gather_object(parts, mine)
        whole = pd.concat(parts, ignore_index=True)
        _check_finite(whole)
        if trainer.is_global_zero:
            self._write(whole, getattr(trainer, "datamodule", None))

    def _write(self, frame: pd.DataFrame, data: Any) -> None:
        if "row" in frame:
            frame = frame.sort_values("row", ignore_index=True)[["row", *frame.columns.drop("row")]]
            if hasattr(data, "known_columns"):
                known = data.known_columns(frame["row"].to_numpy())
                frame = frame.join(known[[name for name in known if name not in frame]])
        with writing_to(self.path, "name another file by --predictions.path"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_csv(frame, self.path)
        rank_zero_info(f"Wrote {len(frame):,} predictions to {self.path}")


def _check_replaceable(path: Path, written: Collection[str | None]) -> None:
    """Raise if a file exists and has columns that are not written, such as groups that a user added."""
    if not path.is_file() or not path.stat().st_size:
        return
    try:
        present = pd.read_csv(path, nrows=0).columns
        added = [name for name in present if re.sub(r"_\d+$", "", name) not in written]
    except ValueError:
        raise InputError(
            f"{path}: this file is no CSV file; name another one by --predictions.path."
        ) from None
    if added:
        raise InputError(
            f"{path}: this file has the column '{added[0]}', which would be lost. Name another file by "
            "--predictions.path, or remove this one."
        )


def _columns(outputs: dict[str, Tensor]) -> Iterator[tuple[str, Any]]:
    """Yield the columns of predictions; those of several classes are numbered."""
    for name, values in outputs.items():
        if values.ndim == 1:
            yield name, values.cpu().numpy()
        else:
            yield from ((f"{name}_{place}", one.cpu().numpy()) for place, one in enumerate(values.unbind(1)))


def _check_finite(frame: pd.DataFrame) -> None:
    for name in frame.columns:
        values = frame[name].to_numpy()
        if values.dtype.kind == "f" and (bad := int((~np.isfinite(values)).sum())):
            raise diverged(f"{name} of {bad:,} of {len(frame):,} rows (nothing is written)")
