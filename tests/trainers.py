"""A Lightning trainer for tests: on the CPU, without logs, checkpoints and output unless asked for."""

from functools import partial

from lightning import Trainer

quiet_trainer = partial(
    Trainer,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
