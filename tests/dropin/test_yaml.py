"""The attached penalty can be configured from YAML and the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonargparse import ArgumentParser
from torch import Tensor

from fairrf_lightning.callbacks import LambdaUpdateCallback


def ages(batch: dict[str, Tensor]) -> Tensor:
    return batch["age"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [("metadata", "metadata"), ("2", 2), ("tests.dropin.test_yaml.ages", ages), ("null", None)],
)
def test_where_the_related_columns_are(given: str, expected: Any) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(LambdaUpdateCallback, "callback")
    penalty = (
        "{class_path: fairrf_lightning.RelatedFeaturePenalty, init_args: {related: {age: [0]}, eta: 0.5}}"
    )
    config = parser.parse_args([f"--callback.penalty={penalty}", f"--callback.inputs={given}"])
    callback = parser.instantiate_classes(config).callback
    assert callback.penalty.eta == 0.5
    assert callback.penalty.feature_names == ["age"]
    assert callback._attachment.rows.inputs == expected


_OWN = """
import torch
from lightning import LightningModule

class Own(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(6, 1)

    def training_step(self, batch):
        logits = self.net(batch["inputs"]).squeeze(1)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch["target"].float())

    def validation_step(self, batch):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""


def test_a_module_of_the_users_own_without_a_test_on_our_command_line(
    cli: Callable[[str], None],
) -> None:
    Path("own_module_of_a_user.py").write_text(_OWN)
    options = "--data.n_rows 2000 --trainer.max_epochs 2 --trainer.enable_progress_bar false"
    attached = "--lambda_update.penalty RelatedFeaturePenalty --lambda_update.module net"
    command = f"fit --data synthetic --model own_module_of_a_user.Own {options} {attached}"
    cli(command + ' --lambda_update.penalty.related {"age":[0]}')
    (metrics,) = Path("lightning_logs").glob("version_0/metrics.csv")
    assert "penalty/age" in metrics.read_text()
