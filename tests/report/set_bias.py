"""A callback that sets the last bias of saved weights: to NaN, or so large that everyone is accepted."""

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer


class SetBias(Callback):
    """Sets the last bias of the backbone in each checkpoint.

    Args:
        value: The bias, as text: ``nan`` is no number to YAML.
    """

    def __init__(self, value: str) -> None:
        self.value = float(value)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        del trainer, pl_module
        state = checkpoint["state_dict"]
        *_, name = (name for name in state if name.startswith("backbone.") and name.endswith(".bias"))
        state[name] = torch.full_like(state[name], self.value)


def with_bias(value: str) -> str:
    """Return the options of ``fit`` that set it."""
    return f"--trainer.callbacks+=tests.report.set_bias.SetBias --trainer.callbacks.value={value}"
