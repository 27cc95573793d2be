"""The paper's baselines: options of the same parts where that is enough, else a part of their own."""

from fairrf_lightning.datamodules.penalty_columns import KSMOTE
from fairrf_lightning.methods.arl import ARLModule

__all__ = ["KSMOTE", "ARLModule"]
