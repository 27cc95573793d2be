"""Plug-in callbacks: pretraining, and the update of lambda."""

from fairrf_lightning.callbacks.lambda_update import LambdaUpdateCallback
from fairrf_lightning.callbacks.pretrain import PretrainCallback

__all__ = ["LambdaUpdateCallback", "PretrainCallback"]
