"""The callbacks in deeptab: its scikit-learn estimator builds module, data and Trainer itself.

Trains without a penalty, with the callbacks, and with a penalty written into a copy of its training step.
"""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import torch
from deeptab.configs import MLPConfig, PreprocessingConfig, TrainerConfig
from deeptab.models import MLPClassifier
from deeptab.training.lightning_module import TaskModel
from lightning.pytorch import seed_everything

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from tests.foreign.measures import PRETRAINING_EPOCHS, StepTimes, by_hand, people, report

ETA, EPOCHS = 10.0, 20


def callbacks() -> list[Any]:
    """Return what a user adds; the batch is ``((numbers, categories, embeddings), labels)``."""
    penalty = RelatedFeaturePenalty({"age": [0]}, eta=ETA, output="sigmoid")
    return [
        PretrainCallback(epochs=PRETRAINING_EPOCHS),
        LambdaUpdateCallback(penalty=penalty, inputs="0.0.0", every_n_steps=10),
    ]


def step_by_hand(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
    """Do what ``TaskModel.training_step`` does for this model, and add the penalty."""
    del batch_idx
    data, labels = batch
    preds = self(*data)
    loss: torch.Tensor = self.compute_loss(preds, labels)
    self.log("train_loss", loss, on_step=True, on_epoch=True, batch_size=len(labels))
    if self.current_epoch < PRETRAINING_EPOCHS:
        return loss
    return loss + ETA * by_hand(preds.sigmoid().flatten(), data[0][0].flatten())


def train(name: str, added: list[Any]) -> None:
    """Train and print the measurements over all rows."""
    table, times = people(), StepTimes()
    inputs, label = table[["age", "other"]], table["label"]
    seed_everything(0, verbose=False)
    model = MLPClassifier(
        model_config=MLPConfig(layer_sizes=[32, 16], dropout=0.0),
        preprocessing_config=PreprocessingConfig(numerical_method="standardization"),
        trainer_config=TrainerConfig(max_epochs=EPOCHS, batch_size=256, patience=EPOCHS, lr=0.01),
        random_state=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        model.fit(
            inputs,
            label,
            checkpoint_path=folder,
            monitor="train_loss_epoch",
            callbacks=[*added, times],
            logger=False,
            enable_progress_bar=False,
            accelerator="cpu",
        )
    probs = torch.tensor(model.predict_proba(inputs)[:, 1])
    report(name, probs, torch.tensor(table["age"]), torch.tensor(label), times.median)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    train("without", [])
    train("callbacks", callbacks())
    TaskModel.training_step = step_by_hand
    train("by hand", [])
