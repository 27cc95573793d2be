from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from fairrf_lightning.datamodules import TensorBatches
from fairrf_lightning.errors import InputError
from tests.ranks import run_on_ranks
from tests.trainers import quiet_trainer

rows = st.integers(1, 60)
sizes = st.integers(1, 9)
worlds = st.integers(1, 5)
seeds = st.integers(0, 2**32 - 1)


def numbered(num_rows: int) -> dict[str, Tensor]:
    return {"inputs": torch.arange(num_rows), "target": torch.arange(num_rows) * 2}


def seen(loader: TensorBatches) -> list[list[int]]:
    return [batch["inputs"].tolist() for batch in loader]


@given(rows, sizes, worlds, seeds, st.integers(0, 100))
def test_ranks_together_train_on_the_batches_of_one_process(
    num_rows: int, batch_size: int, world: int, seed: int, epoch: int
) -> None:
    if num_rows < world:
        return
    whole = batch_size * world if num_rows >= batch_size * world else num_rows - num_rows % world
    single = TensorBatches(numbered(num_rows), whole, shuffle=True, seed=seed)
    single.set_epoch(epoch)
    ranks = []
    for rank in range(world):
        loader = TensorBatches(
            numbered(num_rows), batch_size, shuffle=True, seed=seed, rank=rank, world_size=world
        )
        loader.set_epoch(epoch)
        ranks.append(seen(loader))
        assert len(loader) == len(ranks[-1])
    assert len({len(row) for batches in ranks for row in batches}) == 1
    together = [sorted(chain(*parts)) for parts in zip(*ranks, strict=True)]
    assert together == [sorted(batch) for batch in seen(single)]
    rows_seen = list(chain(*together))
    assert len(rows_seen) == len(set(rows_seen)) > num_rows - whole


@given(st.integers(0, 60), sizes, worlds)
def test_each_row_is_evaluated_once(num_rows: int, batch_size: int, world: int) -> None:
    found: list[int] = []
    for rank in range(world):
        loader = TensorBatches(numbered(num_rows), batch_size, rank=rank, world_size=world)
        batches = seen(loader)
        assert len(batches) == len(loader) >= 1
        found += chain(*batches)
    assert sorted(found) == list(range(num_rows))


@given(rows, sizes, seeds, st.integers(0, 5), st.data())
def test_resumed_loader_goes_on(
    num_rows: int, batch_size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    first = TensorBatches(numbered(num_rows), batch_size, shuffle=True, seed=seed)
    first.set_epoch(epoch)
    done = data.draw(st.integers(0, len(first)))
    batches = iter(first)
    for _ in range(done):
        next(batches)
    state = first.state_dict()
    rest = [batch["inputs"].tolist() for batch in batches]

    second = TensorBatches(numbered(num_rows), batch_size, shuffle=True, seed=seed)
    second.load_state_dict(state)
    assert second.state_dict() == state
    second.set_epoch(epoch)
    assert seen(second) == rest
    second.set_epoch(epoch + 1)
    assert len(seen(second)) == len(second)


def test_order_changes_with_epoch_and_seed_only() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        loader = TensorBatches(numbered(50), 10, shuffle=True, seed=seed)
        loader.set_epoch(epoch)
        return seen(loader)

    orders = [order(seed, epoch) for seed in (0, 1, 2**32 - 1) for epoch in (0, 1, 2)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])
    assert order(1, 2) == orders[5]


def test_all_tensors_of_a_batch_hold_the_same_rows() -> None:
    for batch in TensorBatches(numbered(20), 6, shuffle=True):
        assert torch.equal(batch["inputs"] * 2, batch["target"])


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        ({"a": torch.ones(2), "b": torch.ones(3)}, {}, "same number of rows"),
        ({"a": torch.ones(2)}, {"batch_size": 0}, "batch_size = 0: expected 1"),
        ({"a": torch.ones(2)}, {"shuffle": True, "world_size": 3}, "too few"),
    ],
)
def test_refuses(tensors: dict[str, Tensor], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TensorBatches(tensors, **{"batch_size": 1, **options})


class Recorder(LightningModule):
    """A linear model that notes its training batches and can break down at a given step."""

    def __init__(self, break_at: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(1, 1)
        self.break_at = break_at
        self.batches: list[list[float]] = []

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        if self.global_step == self.break_at:
            raise RuntimeError("power cut")
        self.batches.append(batch["inputs"].flatten().tolist())
        loss: Tensor = (self.net(batch["inputs"]).squeeze(1) - batch["target"]).square().mean()
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None: ...

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.1)


def run(
    model: Recorder, folder: Path, checkpoints: dict[str, Any], *, validate: bool, **options: Any
) -> list[float]:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "inputs": torch.randn(22, 1, generator=generator),
        "target": torch.randn(22, generator=generator),
    }
    ckpt_path = options.pop("ckpt_path", None)
    trainer = quiet_trainer(
        default_root_dir=folder,
        callbacks=[ModelCheckpoint(folder, filename="{step}", save_top_k=-1, **checkpoints)],
        limit_val_batches=1 if validate else 0,
        **options,
        enable_checkpointing=True,
    )
    train = TensorBatches(tensors, 4, shuffle=True, seed=3)
    trainer.fit(model, train, TensorBatches(tensors, 22), ckpt_path=ckpt_path)
    return [p.item() for p in model.parameters()]


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize(
    ("checkpoints", "kept", "break_at", "length"),
    [
        ({"every_n_train_steps": 3}, 6, 8, {"max_epochs": 4}),  # within the second epoch
        ({"every_n_train_steps": 3}, 3, 3, {"max_epochs": 4}),  # within the first epoch
        ({"every_n_train_steps": 5}, 10, 12, {"max_epochs": 4}),  # at the last batch of an epoch
        ({"every_n_epochs": 1}, 10, 11, {"max_epochs": 4}),  # after an epoch
        ({"save_on_train_epoch_end": True}, 10, 11, {"max_epochs": 4}),
        # with max_steps, Lightning 2.6 itself miscounts epochs after an epoch-end checkpoint
        ({"every_n_train_steps": 3}, 6, 8, {"max_steps": 18}),
    ],
)
def test_interrupted_training_ends_like_the_uninterrupted(  # noqa: PLR0917 - parametrised
    tmp_path: Path,
    checkpoints: dict[str, Any],
    kept: int,
    break_at: int,
    length: dict[str, int],
    validate: bool,  # noqa: FBT001 - parametrised
) -> None:
    whole, first, second = Recorder(), Recorder(break_at), Recorder()
    final = run(whole, tmp_path / "whole", checkpoints, validate=validate, **length)
    with pytest.raises(RuntimeError, match="power cut"):
        run(first, tmp_path / "first", checkpoints, validate=validate, **length)
    ckpt_path = tmp_path / "first" / f"step={kept}.ckpt"
    resumed = run(second, tmp_path / "second", checkpoints, validate=validate, ckpt_path=ckpt_path, **length)
    assert second.batches == whole.batches[kept:]
    assert resumed == final


class SeenRows(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.seen: dict[str, list[list[int]]] = {"train": [], "val": [], "test": []}

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        self.seen["train"].append(batch["row"].tolist())
        found: Tensor = self.net(batch["row"].float()[:, None]).mean()
        return found

    def validation_step(self, batch: dict[str, Tensor]) -> None:
        self.seen["val"].append(batch["row"].tolist())

    def test_step(self, batch: dict[str, Tensor]) -> None:
        self.seen["test"].append(batch["row"].tolist())
        self.log("rows", float(len(batch["row"])), reduce_fx="sum", sync_dist=True, batch_size=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def see_rows(ranks: int, folder: Path) -> None:
    module = SeenRows()
    trainer = quiet_trainer(devices=ranks, strategy="ddp", max_epochs=2, num_sanity_val_steps=0)

    def loader(rows: int, **options: Any) -> TensorBatches:
        tensors = {"row": torch.arange(rows)}
        return TensorBatches(tensors, 3, rank=trainer.global_rank, world_size=trainer.world_size, **options)

    trainer.fit(module, loader(20, shuffle=True, seed=5), loader(10))
    trainer.test(module, loader(1), verbose=False)
    (folder / f"{trainer.global_rank}.json").write_text(json.dumps(module.seen))


def test_two_processes_share_the_rows_and_do_not_hang(tmp_path: Path) -> None:
    run_on_ranks(lambda ranks: see_rows(ranks, tmp_path), tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]

    single = TensorBatches({"inputs": torch.arange(20)}, 6, shuffle=True, seed=5)
    expected = seen(single)
    single.set_epoch(1)
    expected += seen(single)
    batches = zip(ranks[0]["train"], ranks[1]["train"], strict=True)
    assert [sorted(a + b) for a, b in batches] == [sorted(batch) for batch in expected]
    assert [ranks[0]["val"], ranks[1]["val"]] == [[[0, 2, 4], [6, 8]] * 2, [[1, 3, 5], [7, 9]] * 2]
    assert [ranks[0]["test"], ranks[1]["test"]] == [[[0]], [[]]]
