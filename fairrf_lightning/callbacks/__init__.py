"""Plug-in callbacks: pretraining, the update of lambda, checkpoints of penalised epochs, corrections."""

from fairrf_lightning.callbacks.checkpointing import PenalisedCheckpoint
from fairrf_lightning.callbacks.correction import CorrectionCallback
from fairrf_lightning.callbacks.inspection import inspect
from fairrf_lightning.callbacks.lambda_update import LambdaUpdateCallback
from fairrf_lightning.callbacks.pretrain import PretrainCallback
from fairrf_lightning.callbacks.side_channel import WithRelated

__all__ = [
    "CorrectionCallback",
    "LambdaUpdateCallback",
    "PenalisedCheckpoint",
    "PretrainCallback",
    "WithRelated",
    "inspect",
]
