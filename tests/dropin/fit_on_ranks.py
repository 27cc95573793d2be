"""Started by test_ranks.py under torchrun: trains on all ranks, rank 0 saves weights and lambda."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fairrf_lightning.datamodules import TensorBatches
from tests.dropin.training_steps import Forward, Manual
from tests.dropin.twins import Foreign, by_hand, fit, make_penalty, own_callbacks, table

GLOBAL_BATCH = 32
Result = dict[str, torch.Tensor]


class Sharded(Foreign):
    """Its net is sharded over the ranks by FSDP2, where there are ranks."""

    def configure_model(self) -> None:
        if self.device_mesh is not None:
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


def _train(module: Foreign, world: int, attach_to: str | None = "net", **options: Any) -> Result:
    held = getattr(module, "fairness", None)
    penalty = held or make_penalty()
    attach = {} if held else {"penalty": penalty, "module": attach_to}
    rank = int(os.environ.get("RANK", "0"))
    data = TensorBatches(table(), GLOBAL_BATCH // world, shuffle=True, seed=1, rank=rank, world_size=world)
    fit(module, *own_callbacks(**attach), data=data, devices=world, num_nodes=1, **options)
    weights = {name: _whole(value) for name, value in module.net.state_dict().items()}
    return {"lambda": penalty.weights, **weights}


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def train_all(world: int) -> dict[str, Result]:
    """Train each kind of module."""
    ddp: dict[str, Any] = {"strategy": "ddp" if world > 1 else "auto"}
    fsdp = ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1) if world > 1 else "auto"
    return {
        "plain": _train(Foreign(), world, **ddp),
        "by hand": _train(by_hand(Foreign, make_penalty()), world, **ddp),
        "own forward": _train(Forward(), world, None, **ddp),
        "manual": _train(Manual(), world, **ddp),
        "accumulation": _train(Foreign(), world, accumulate_grad_batches=3, **ddp),
        "double": _train(Foreign(), world, precision="64-true", **ddp),
        "fsdp": _train(Sharded(), world, strategy=fsdp),
    }


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    results = train_all(int(os.environ["WORLD_SIZE"]))
    if os.environ["RANK"] == "0":
        torch.save(results, sys.argv[1])


if __name__ == "__main__":
    main()
