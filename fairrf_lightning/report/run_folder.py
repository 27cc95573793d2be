"""What a run of ``fit`` left in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fairrf_lightning.callbacks.best_checkpoint import BEST, LAST, BestCheckpoint
from fairrf_lightning.checkpoint_file import load_checkpoint
from fairrf_lightning.errors import InputError


class RunFolder:
    """The files of a run, each as far as it is there.

    Args:
        path: The folder that ``fit`` wrote, such as ``lightning_logs/version_0``.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise InputError(f"{path}: there is no such folder; name that of a run or of a grid.")
        if not (self.path / "config.yaml").is_file():
            raise InputError(
                f"{path}: no config.yaml in it, so it is not the folder of a run. "
                "fit writes one, such as lightning_logs/version_0."
            )
        self.config: dict[str, Any] = _read(self.path / "config.yaml", yaml.safe_load)
        self.record: dict[str, Any] = {}
        if (self.path / "run.json").is_file():
            self.record = _read(self.path / "run.json", json.loads)

    @property
    def metrics(self) -> pd.DataFrame:
        """What CSVLogger wrote; empty with another logger."""
        file = self.path / "metrics.csv"
        return pd.read_csv(file) if file.is_file() and file.stat().st_size else pd.DataFrame()

    @property
    def best_checkpoint(self) -> Path | None:
        """The checkpoint to use: the best one, else the last, if any is left.

        A resumed run writes to the folder of the run that it resumes.
        """
        named = (self.config.get("checkpoint") or {}).get("dirpath")
        folder = Path(named) if named and Path(named).is_dir() else self.path / "checkpoints"
        best, last = folder / BEST, folder / LAST
        if best.is_file():
            return best
        if last.is_file():
            chosen = folder / Path(_chosen_path(last)).name
            return chosen if chosen.is_file() else last
        return max(folder.glob("*.ckpt"), key=lambda file: file.stat().st_mtime, default=None)

    @property
    def data_name(self) -> str:
        """The data set's short name, such as ``adult``."""
        class_path = str((self.config.get("data") or {}).get("class_path", ""))
        return class_path.rpartition(".")[2].removesuffix("DataModule").lower() or "unknown"


def read_checkpoint(path: Path) -> Mapping[str, Any]:
    """Return a checkpoint's plain values and tensors."""
    return load_checkpoint(path, option="")


def _chosen_path(last: Path) -> str:
    states = read_checkpoint(last).get("callbacks", {})
    # The built-in callback first, as in `fit`: one of the user's may have chosen by S.
    for key in sorted(states, key=lambda key: not key.startswith(BestCheckpoint.__qualname__)):
        if isinstance(states[key], dict) and states[key].get("best_model_path"):
            return str(states[key]["best_model_path"])
    return last.name


def _read(path: Path, load: Any) -> dict[str, Any]:
    try:
        found = load(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected named values, found {type(found).__name__}.")
    return found
