"""The callbacks in pytorch-tabular: its model, data module and Trainer stay as they are.

Trains without a penalty, with the callbacks, and with a penalty written into a copy of its training step.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from pytorch_tabular import TabularModel
from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig
from pytorch_tabular.models import CategoryEmbeddingModelConfig
from pytorch_tabular.models.base_model import BaseModel

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from tests.foreign.measures import PRETRAINING_EPOCHS, StepTimes, by_hand, people, report

ETA = 5.0


def callbacks() -> list[Any]:
    """Return what a user adds."""
    penalty = RelatedFeaturePenalty({"age": [0]}, eta=ETA, output="softmax")
    return [
        PretrainCallback(epochs=PRETRAINING_EPOCHS),
        LambdaUpdateCallback(penalty=penalty, prediction="logits", inputs="continuous", every_n_steps=10),
    ]


def step_by_hand(self: Any, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
    """Do what ``BaseModel.training_step`` does, and add the penalty."""
    del batch_idx
    output, _ = self.forward_pass(batch)
    loss: torch.Tensor = self.calculate_loss(output, batch["target"], tag="train")
    self.calculate_metrics(batch["target"], output["logits"], tag="train")
    if self.current_epoch < PRETRAINING_EPOCHS:
        return loss
    return loss + ETA * by_hand(output["logits"].softmax(1)[:, 1], batch["continuous"][:, 0])


def train(name: str, added: list[Any]) -> None:
    """Train and print the measurements over all rows."""
    table, times = people(), StepTimes()
    model = TabularModel(
        data_config=DataConfig(target=["label"], continuous_cols=["age", "other"], num_workers=0),
        model_config=CategoryEmbeddingModelConfig(task="classification", layers="32-16", seed=1),
        optimizer_config=OptimizerConfig(),
        trainer_config=TrainerConfig(
            max_epochs=20,
            batch_size=256,
            accelerator="cpu",
            progress_bar="none",
            checkpoints=None,
            early_stopping=None,
            load_best=False,
            trainer_kwargs={"enable_model_summary": False},
        ),
        verbose=False,
        suppress_lightning_logger=True,
    )
    model.fit(train=table, validation=table, callbacks=[*added, times])
    found = model.predict(table)
    (column,) = [name for name in found.columns if name.endswith("1_probability")]
    probs, age, label = (torch.tensor(v.to_numpy()) for v in (found[column], table["age"], table["label"]))
    report(name, probs, age, label, times.median)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    train("without", [])
    train("callbacks", callbacks())
    BaseModel.training_step = step_by_hand
    train("by hand", [])
