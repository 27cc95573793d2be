"""At the end of a fit, the penalties of its first and last epoch are reported."""

from __future__ import annotations

import logging
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer

from fairrf_lightning import FairRFModule, RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import TensorBatches
from fairrf_lightning.functional import feature_penalties
from tests.dropin.twins import RELATED, Foreign, fit, own_callbacks, table
from tests.ranks import run_on_ranks

pytestmark = pytest.mark.filterwarnings("ignore:.*collapsed onto.*")
OWNER, COLUMNS = torch.tensor([0, 1, 1, 2]), [0, 2, 1, 4]


def reported(caplog: pytest.LogCaptureFixture) -> list[tuple[str, float, float]]:
    (line,) = [record.message for record in caplog.records if "with the prediction" in record.message]
    found = re.findall(r"(\w+) ([0-9]\.[0-9]+) -> ([0-9]\.[0-9]+)", line)
    return [(name, float(first), float(last)) for name, first, last in found]


class Seen(Callback):
    """Keeps the predictions and inputs of each epoch."""

    def __init__(self) -> None:
        self.epochs: list[list[tuple[Any, Any]]] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.epochs.append([])
        net = pl_module.net if hasattr(pl_module, "net") else pl_module.backbone
        self.hook = net.register_forward_hook(
            lambda _, args, output: self.epochs[-1].append((args[0], output.detach()))
        )

    def on_train_epoch_end(self, *_: Any) -> None:
        self.hook.remove()

    def penalties(self, epoch: int) -> list[float]:
        inputs, logits = (torch.cat(part) for part in zip(*self.epochs[epoch], strict=True))
        found = feature_penalties(logits.flatten().sigmoid().double(), inputs[:, COLUMNS].double(), OWNER, 3)
        return [round(value, 4) for value in found.tolist()]


@pytest.mark.parametrize("kind", ["foreign", "FairRFModule"])
def test_first_and_last_epoch_are_reported(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The first epoch is pretraining, without the penalty: it is measured as well."""
    module: Any = Foreign()
    attached: dict[str, Any] = {"penalty": RelatedFeaturePenalty(RELATED, eta=5.0), "module": "net"}
    if kind == "FairRFModule":
        module, attached = FairRFModule(6, RELATED, eta=5.0, lr=0.01), {}
    seen = Seen()
    with caplog.at_level(logging.INFO):
        fit(module, *own_callbacks(**attached), seen, max_steps=-1, max_epochs=6)
    values = reported(caplog)
    assert [name for name, *_ in values] == list(RELATED)
    assert [first for _, first, _ in values] == pytest.approx(seen.penalties(0), abs=1e-4)
    assert [last for *_, last in values] == pytest.approx(seen.penalties(-1), abs=1e-4)
    penalty = attached.get("penalty") or module.penalty
    assert penalty.observer is None


def test_a_penalty_that_rises_is_named_without_alarm(caplog: pytest.LogCaptureFixture) -> None:
    weak = RelatedFeaturePenalty(RELATED, eta=1e-6)
    with caplog.at_level(logging.INFO):
        fit(Foreign(), *own_callbacks(penalty=weak, module="net"), max_steps=-1, max_epochs=3)
    assert all(last > first for _, first, last in reported(caplog))
    assert ". It rises as a model learns; compare with eta 0." in caplog.text


def test_a_resumed_run_does_not_compare_with_an_untrained_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    update = partial(LambdaUpdateCallback, module="net")
    weak = partial(RelatedFeaturePenalty, RELATED, eta=1e-6)
    begun = fit(Foreign(), update(penalty=weak()), max_steps=-1, max_epochs=2)
    begun.save_checkpoint(tmp_path / "2.ckpt")
    caplog.clear()
    with caplog.at_level(logging.INFO):
        fit(Foreign(), update(penalty=weak()), max_steps=-1, max_epochs=5, ckpt_path=tmp_path / "2.ckpt")
    assert "first -> last of 3 epochs since it was resumed" in caplog.text
    assert "It rises" not in caplog.text


def test_a_penalty_that_falls_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    strong = RelatedFeaturePenalty({"age": [0]}, eta=20.0)
    callbacks = [PretrainCallback(epochs=3), LambdaUpdateCallback(penalty=strong, module="net")]
    with caplog.at_level(logging.INFO):
        fit(Foreign(), *callbacks, max_steps=-1, max_epochs=12)
    ((_, first, last),) = reported(caplog)
    assert last < first / 2
    assert "It rises" not in caplog.text


def test_one_epoch_is_reported_without_a_comparison(caplog: pytest.LogCaptureFixture) -> None:
    update = LambdaUpdateCallback(penalty=RelatedFeaturePenalty(RELATED), module="net", every_n_steps=None)
    with caplog.at_level(logging.INFO):
        fit(Foreign(), update, max_steps=3)
    assert len([r for r in caplog.records if "the only epoch: age 0." in r.message]) == 1
    assert "It rises" not in caplog.text


def ranks(world: int) -> dict[str, torch.Tensor]:
    import os  # noqa: PLC0415 - of this process

    penalty = RelatedFeaturePenalty(RELATED, eta=2.0)
    rank = int(os.environ.get("RANK", "0"))
    data = TensorBatches(table(), 32 // world, shuffle=True, seed=1, rank=rank, world_size=world)
    pretrain, update = own_callbacks(penalty=penalty, module="net")
    ends = Ends(update)
    options: dict[str, Any] = {"strategy": "ddp" if world > 1 else "auto", "max_epochs": 3, "max_steps": -1}
    fit(Foreign(), pretrain, update, ends, data=data, devices=world, **options)
    return {"first": ends.first, "last": ends.last}


class Ends(Callback):
    def __init__(self, update: Any) -> None:
        self.update = update

    def on_train_end(self, *_: Any) -> None:
        (measured,) = self.update._measured
        self.first, self.last = measured.first, measured.last


@pytest.mark.filterwarnings("ignore")
def test_two_ranks_report_the_numbers_of_one(tmp_path: Path) -> None:
    one, two = ranks(1), run_on_ranks(ranks, tmp_path)
    torch.testing.assert_close(two, one, rtol=0, atol=1e-6)
