"""What is kept with a run: its config, and a record of versions, data and columns."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning import LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, SaveConfigCallback

_PACKAGES = ("fairrf-lightning", "torch", "lightning", "torchmetrics", "numpy", "pandas", "jsonargparse")


class RunRecord(SaveConfigCallback):
    """Writes ``config.yaml`` and ``run.json`` beside the logs and checkpoints of each run."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace) -> None:
        super().__init__(parser, config, save_to_log_dir=False)

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write both files; ``validate``, ``test`` and ``predict`` leave no run behind."""
        del pl_module
        directory = run_directory(trainer)
        if stage != "fit" or directory is None:
            return
        directory.mkdir(parents=True, exist_ok=True)
        self.parser.save(
            self.config, str(directory / "config.yaml"), skip_none=False, overwrite=True, multifile=False
        )
        record = {
            "seed": self.config.get("seed_everything"),
            "versions": package_versions(),
            **describe_data(trainer),
        }
        (directory / "run.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def run_directory(trainer: Trainer) -> Path | None:
    """Return the folder of this run, the one that the checkpoints' folder is in."""
    if not trainer.loggers:
        return None
    logger = trainer.loggers[0]
    # As ModelCheckpoint does: W&B's log_dir is shared by all runs.
    number = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
    return Path(logger.save_dir or trainer.default_root_dir) / str(logger.name) / number


def package_versions() -> dict[str, str]:
    """Return the versions that figures depend on."""
    return {"python": platform.python_version()} | {package: version(package) for package in _PACKAGES}


def describe_data(trainer: Trainer) -> dict[str, Any]:
    """Return what is known of the data: rows, columns and their roles; nothing of a foreign data module."""
    data: Any = getattr(trainer, "datamodule", None)
    if not hasattr(data, "feature_names"):
        return {}
    return {
        "data": type(data).__name__,
        "rows": data.split_sizes,
        "columns": data.feature_names,
        "related": data.related_columns,
        "sensitive": data.sensitive,
        "include_sensitive": data.include_sensitive,
        "expose_sensitive": data.expose_sensitive,
        "remove_related": data.remove_related,
        "ksmote": None if data.ksmote is None else asdict(data.ksmote),
        "groups": data.group_names,
    }
