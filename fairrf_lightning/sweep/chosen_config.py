"""The chosen setting as a file that ``fit --config`` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fairrf_lightning.experiments.setting import Schedule, Setting
from fairrf_lightning.files import write_text

_CLASSES = {"mlp": "MLP", "linear": "Linear", "svm": "LinearSVM"}


def fit_config(data: dict[str, Any], setting: Setting, schedule: Schedule, seed: int) -> dict[str, Any]:
    """Return the options of ``fit`` that train the very model that the sweep has measured.

    Args:
        data: ``class_path`` and ``init_args`` of the data module.
        setting: The setting.
        schedule: How long and how fast to train.
        seed: Seed of the initial weights.
    """
    backbone: dict[str, Any] = {"class_path": f"fairrf_lightning.backbones.{_CLASSES[setting.backbone]}"}
    if setting.backbone == "mlp":
        backbone["init_args"] = {"hidden": list(setting.hidden), "dropout": setting.dropout}
    model = {
        "backbone": backbone,
        "eta": setting.eta,
        "statistic": setting.statistic,
        "given": setting.given,
        "lr": schedule.lr,
    }
    update: dict[str, Any] = {"beta": setting.beta, "every_n_steps": None}
    if setting.every_n_steps is not None:
        update |= {"every_n_steps": setting.every_n_steps, "rule": setting.rule}
    return {
        "seed_everything": seed,
        "trainer": {"max_epochs": schedule.epochs},
        "pretrain": {"epochs": schedule.pretrain_epochs},
        "lambda_update": update,
        "model": {"class_path": "fairrf_lightning.FairRFModule", "init_args": model},
        "data": data,
    }


def write_config(config: dict[str, Any], path: Path, comment: str) -> None:
    """Write the options as YAML, with a line of comment above them."""
    write_text(path, f"# {comment}\n{yaml.safe_dump(config, sort_keys=False)}")
