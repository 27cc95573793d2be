"""The states of the metrics keep their precision and can be updated in any mode."""

from pathlib import Path

import torch
from lightning import Trainer

from fairrf_lightning import FairRFModule
from fairrf_lightning.datamodules import SyntheticDataModule
from fairrf_lightning.metrics.evaluation import EvaluationMetrics
from fairrf_lightning.penalty import RelatedFeaturePenalty


def test_sums_of_a_bf16_model_are_not_rounded() -> None:
    rows, batches = 1000, 9
    penalty = RelatedFeaturePenalty({"age": [0]})
    draw = torch.Generator().manual_seed(0)
    inputs, target = torch.randn(rows, 1, generator=draw), torch.arange(rows) % 2.0
    logits = inputs[:, 0].bfloat16()
    converted = EvaluationMetrics(penalty).to(dtype=torch.bfloat16)
    exact = EvaluationMetrics(penalty)
    for number in range(batches):
        for metrics in (converted, exact):
            loss = torch.tensor(0.3 + number / 100)
            metrics.update(loss, logits, inputs.bfloat16(), target, groups=None)
    assert converted.loss.weight == rows * batches
    assert converted.compute() == exact.compute()


def test_a_model_can_be_validated_before_it_is_fitted(tmp_path: Path) -> None:
    module, data = FairRFModule(eta=0.3), SyntheticDataModule(n_rows=400, seed=0)
    trainer = Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    before = trainer.validate(module, data, verbose=False)[0]
    trainer.fit(module, data)
    assert trainer.callback_metrics["val_loss"] < before["val_loss"]
