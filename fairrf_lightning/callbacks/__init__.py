"""Plug-in callbacks: pretraining, the update of lambda, checkpoints of penalised epochs, corrections."""

from fairrf_lightning.callbacks.checkpointing import PenalisedCheckpoint
from fairrf_lightning.callbacks.correction import CorrectionCallback
from fairrf_lightning.callbacks.dropin.inspection import inspect
from fairrf_lightning.callbacks.dropin.side_channel import WithRelated
from fairrf_lightning.callbacks.lambda_update import LambdaUpdateCallback
from fairrf_lightning.callbacks.pretrain import PretrainCallback

__all__ = [
    "CorrectionCallback",
    "LambdaUpdateCallback",
    "PenalisedCheckpoint",
    "PretrainCallback",
    "WithRelated",
    "inspect",
]
