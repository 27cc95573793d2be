"""The attached penalty in several real processes trains the weights of one."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import TensorBatches
from tests.dropin.training_steps import Forward, Manual
from tests.dropin.twins import Foreign, by_hand, fit, make_penalty, own_callbacks, table
from tests.ranks import run_on_ranks

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning, about processes and workers
KINDS = ["plain", "own forward", "manual", "accumulation", "double", "fsdp"]
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
    fit(module, *own_callbacks(**attach), data=data, devices=world, num_nodes=1, max_steps=40, **options)
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


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    found: dict[str, Result] = run_on_ranks(train_all, tmp_path_factory.mktemp("ranks"))
    return found


@pytest.fixture(scope="module")
def one() -> dict[str, Result]:
    return train_all(1)


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_train_as_one_process(kind: str, one: dict[str, Result], two: dict[str, Result]) -> None:
    assert not torch.allclose(one[kind]["lambda"], torch.full((3,), 1 / 3), atol=0.01)
    for name, value in one[kind].items():
        torch.testing.assert_close(two[kind][name], value, rtol=0, atol=1e-6)


def test_two_ranks_train_as_by_hand(two: dict[str, Result]) -> None:
    for name, value in two["by hand"].items():
        torch.testing.assert_close(two["plain"][name], value, rtol=0, atol=1e-6)


class Tuples(Foreign):
    """The same for batches of tuples."""

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:  # type: ignore[override]
        return self.loss({"inputs": batch[0], "target": batch[1]})


@pytest.mark.parametrize(
    ("strategy", "fits"), [("ddp_fork", 2), pytest.param("ddp_spawn", 1, marks=pytest.mark.slow)]
)
def test_the_lambda_learned_in_started_processes_comes_back(strategy: str, fits: int) -> None:
    """``ddp_notebook`` is another name of ``ddp_fork``."""
    rows = table()
    data = DataLoader(TensorDataset(rows["inputs"], rows["target"]), batch_size=33)
    penalty, found = make_penalty(), []
    options: dict[str, Any] = {"accelerator": "cpu", "devices": 2, "strategy": strategy, "max_steps": 12}
    for _ in range(fits):
        update = LambdaUpdateCallback(0.2, 4, penalty=penalty, module="net")
        trainer = fit(Tuples(), PretrainCallback(epochs=1), update, data=data, **options)
        logged = [float(trainer.callback_metrics[f"lambda/{name}"]) for name in penalty.feature_names]
        found.append([penalty.weights.tolist(), logged, [penalty.penalised_steps, penalty.updates]])
    weights, logged, counts = found[0]
    assert found == [found[0]] * fits
    assert weights == pytest.approx(logged)
    assert weights != pytest.approx([1 / 3] * 3, abs=1e-3)
    # An epoch has five steps on each rank: seven of twelve have the penalty, four of them make an update.
    assert counts == [7, 1]
