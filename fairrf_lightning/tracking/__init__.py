"""Weights & Biases: a logger that never blocks, a report of each run, and a dashboard."""

from fairrf_lightning.tracking.wandb import WandbLogger, WandbReport

__all__ = ["WandbLogger", "WandbReport"]
