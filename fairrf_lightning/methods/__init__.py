"""The paper's baselines: options of the same parts where that is enough, else a part of their own."""

from fairrf_lightning.methods.arl import ARLModule
from fairrf_lightning.methods.ksmote import KSMOTE

__all__ = ["KSMOTE", "ARLModule"]
