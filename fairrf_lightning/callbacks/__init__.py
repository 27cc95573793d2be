"""Plug-in callbacks: pretraining, the update of lambda, and the report for W&B."""

from fairrf_lightning.callbacks.checkpointing import PenalisedCheckpoint
from fairrf_lightning.callbacks.lambda_update import LambdaUpdateCallback
from fairrf_lightning.callbacks.pretrain import PretrainCallback
from fairrf_lightning.callbacks.wandb_report import WandbReport

__all__ = ["LambdaUpdateCallback", "PenalisedCheckpoint", "PretrainCallback", "WandbReport"]
