"""``predict`` writes a CSV of probabilities and decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch.distributed as dist
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from fairrf_lightning.csv_files import write_csv
from fairrf_lightning.errors import InputError, diverged, writing_to


class PredictionWriter(Callback):
    """Writes one line per row: the row's number in the table, its probability, the decision.

    Args:
        path: The CSV to write; an existing file is replaced, at the end, as a whole.
    """

    def __init__(self, path: str = "predictions.csv") -> None:
        if Path(path).is_dir():
            raise InputError(f"predictions.path = {path}: this is a directory; name a file.")
        self.path = Path(path)
        self._frames: list[pd.DataFrame] = []

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any, **__: Any
    ) -> None:
        del trainer, pl_module
        if not isinstance(outputs, dict):
            raise InputError("predictions can be written only of a model whose predict_step returns a dict.")
        columns = {name: values.cpu().numpy() for name, values in outputs.items()}
        self._frames.append(pd.DataFrame(columns))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002 - Lightning's hook
        """Gather the ranks' rows and write them in the table's order."""
        mine = pd.concat(self._frames, ignore_index=True)
        self._frames = []
        parts: list[Any] = [mine]
        if trainer.world_size > 1:
            parts = [None] * trainer.world_size
            dist.all_gather_object(parts, mine)
        whole = pd.concat(parts, ignore_index=True)
        _check_finite(whole)
        if trainer.is_global_zero:
            self._write(whole)

    def _write(self, frame: pd.DataFrame) -> None:
        if "row" in frame:
            frame = frame.sort_values("row")[["row", *frame.columns.drop("row")]]
        with writing_to(self.path, "name another file by --predictions.path"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_csv(frame, self.path)
        rank_zero_info(f"Wrote {len(frame):,} predictions to {self.path}")


def _check_finite(frame: pd.DataFrame) -> None:
    for name in frame.columns:
        values = frame[name].to_numpy()
        if values.dtype.kind == "f" and (bad := int((~np.isfinite(values)).sum())):
            raise diverged(f"{name} of {bad:,} of {len(frame):,} rows (nothing is written)")
