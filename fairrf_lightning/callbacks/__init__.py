"""Plug-in callbacks: pretraining, the update of lambda, and checkpoints of penalised epochs."""

from fairrf_lightning.callbacks.checkpointing import PenalisedCheckpoint
from fairrf_lightning.callbacks.lambda_update import LambdaUpdateCallback
from fairrf_lightning.callbacks.pretrain import PretrainCallback

__all__ = ["LambdaUpdateCallback", "PenalisedCheckpoint", "PretrainCallback"]
