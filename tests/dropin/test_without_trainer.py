"""The penalty without Lightning's Trainer: a plain loop and Fabric, where lambda is updated by one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor

from fairrf_lightning.callbacks import LambdaUpdateCallback
from fairrf_lightning.datamodules import TensorBatches
from tests.dropin.twins import Foreign, by_hand, fit, make_penalty, table
from tests.ranks import run_on_ranks

STEPS, EVERY, BETA = 40, 10, 0.05
pytestmark = pytest.mark.filterwarnings("ignore:.*collapsed onto.*")


def batches(world: int = 1, rank: int = 0) -> TensorBatches:
    return TensorBatches(table(), 330 // world, rank=rank, world_size=world)


def plain_loop() -> dict[str, Tensor]:
    module, penalty = Foreign(), make_penalty()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for step in range(STEPS):
        (batch,) = batches()
        logits = module.net(batch["inputs"])
        loss = module.task(logits, batch) + penalty(logits, batch["inputs"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % EVERY == 0:
            penalty.update_weights(BETA)
    return {"lambda": penalty.weights, **module.net.state_dict()}


def fabric_loop(world: int) -> dict[str, Tensor]:
    fabric = Fabric(accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto")
    fabric.launch()
    net, penalty = Foreign().net, make_penalty()
    model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters(), lr=0.01))
    for step in range(STEPS):
        (batch,) = batches(world, fabric.global_rank)
        logits = model(batch["inputs"])
        loss = Foreign().task(logits, batch) + penalty(logits, batch["inputs"])
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        if (step + 1) % EVERY == 0:
            penalty.update_weights(BETA)
    return {"lambda": penalty.weights, **net.state_dict()}


def same(found: dict[str, Tensor], expected: dict[str, Tensor], atol: float) -> None:
    assert not torch.allclose(expected["lambda"], torch.full((3,), 1 / 3), atol=0.01)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=atol)


def test_a_plain_loop_trains_the_bits_of_the_callback() -> None:
    penalty: Any = make_penalty()
    module = by_hand(Foreign, penalty)
    fit(module, LambdaUpdateCallback(BETA, EVERY), data=batches(), max_steps=STEPS)
    same(plain_loop(), {"lambda": penalty.weights, **module.net.state_dict()}, 0.0)


def test_fabric_trains_the_bits_of_a_plain_loop() -> None:
    same(fabric_loop(1), plain_loop(), 0.0)


@pytest.mark.filterwarnings("ignore")
def test_fabric_on_two_ranks_trains_as_one(tmp_path: Path) -> None:
    same(run_on_ranks(fabric_loop, tmp_path), plain_loop(), 1e-6)
