"""Weights & Biases: a logger that never blocks, and a dashboard."""

from fairrf_lightning.tracking.wandb_logger import WandbLogger

__all__ = ["WandbLogger"]
