"""Related columns that the module does not see: its own strict unpacking of the batch stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from lightning import LightningModule
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fairrf_lightning.callbacks import LambdaUpdateCallback, WithRelated
from fairrf_lightning.callbacks.dropin.side_channel import RelatedItem
from fairrf_lightning.errors import InputError
from tests.dropin.test_bit_identical import METADATA
from tests.dropin.twins import (
    BATCH,
    Foreign,
    assert_same,
    assert_untouched,
    by_hand,
    fit,
    make_penalty,
    own_callbacks,
    table,
)
from tests.ranks import run_on_ranks

pytestmark = pytest.mark.filterwarnings("ignore:.*collapsed onto.*")


class Strict(Foreign):
    """Unpacks ``x, y = batch`` as lightning-hydra-template does, in each hook that gets the batch."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits

    def model_step(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        x, y = batch
        logits = self.forward(x)
        return self.task(logits, {"target": y}), (logits > 0).long(), y

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.model_step(batch)[0]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.model_step(batch)[0])

    test_step = validation_step

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        _, _ = batch

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        return x, y


class WithMetadata(Foreign):
    """The twin: it has the related columns in its batches, and the penalty in its loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y, metadata = batch
        return super().training_step({"inputs": x, "target": y, "metadata": metadata}, batch_idx)


def rows() -> TensorDataset:
    return TensorDataset(*table().values())


def loader(data: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, BATCH, shuffle=True, generator=torch.Generator().manual_seed(2), **options)


def fit_strict(data: Any, **options: Any) -> tuple[Strict, Any]:
    module, penalty = Strict(), make_penalty()
    fit(module, *own_callbacks(penalty=penalty), data=data, **options)
    return module, penalty


@pytest.mark.parametrize("workers", [0, 2])
def test_same_bits_as_a_module_with_the_columns_in_its_batches(workers: int) -> None:
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    module, penalty = fit_strict(loader(WithRelated(rows(), METADATA), **options))
    held = make_penalty()
    twin = by_hand(WithMetadata, held)
    fit(twin, *own_callbacks(), data=loader(TensorDataset(*table().values(), METADATA), **options))
    assert_same((module, twin, penalty, held))
    assert "_on_before_batch_transfer" not in vars(module)


def test_validation_and_test_get_the_plain_batch() -> None:
    both = WithRelated(rows(), METADATA)
    module, penalty = Strict(), make_penalty()
    callback = LambdaUpdateCallback(penalty=penalty)
    trainer = fit(module, callback, data=loader(both), validation=DataLoader(both, 50), max_epochs=1)
    assert "val_penalty" in trainer.callback_metrics
    trainer.test(module, DataLoader(both, 50), verbose=False)
    trainer.validate(module, DataLoader(rows(), 50), verbose=False)
    assert_untouched(module)


def own_collate(items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


def test_a_collate_fn_of_the_project() -> None:
    data = WithRelated(rows(), METADATA)
    _, penalty = fit_strict(loader(data, collate_fn=WithRelated.collate(own_collate)), max_steps=22)
    _, expected = fit_strict(loader(data), max_steps=22)
    assert penalty.weights.equal(expected.weights)
    with pytest.raises(InputError, match=r"WithRelated\.collate\(own\)"):
        fit_strict(loader(data, collate_fn=own_collate))


class Stream(IterableDataset[RelatedItem]):
    def __iter__(self) -> Any:
        return (
            RelatedItem(row, related)
            for row, related in zip(zip(*table().values(), strict=True), METADATA, strict=True)
        )


def test_an_iterable_data_set_yields_related_items() -> None:
    _, penalty = fit_strict(DataLoader(Stream(), BATCH), max_steps=22)
    assert penalty.penalised_steps == 1
    with pytest.raises(InputError, match="expected a data set with a length"):
        WithRelated(Stream(), METADATA)


def test_without_the_callback_the_module_does_not_train_on_a_wrong_batch() -> None:
    with pytest.raises(InputError, match="nobody took out"):
        fit(Strict(), data=loader(WithRelated(rows(), METADATA)))


def test_columns_are_checked() -> None:
    with pytest.raises(InputError, match="330 rows, the related columns have 329"):
        WithRelated(rows(), METADATA[1:])
    with pytest.raises(InputError, match="not all numbers"):
        WithRelated(rows(), pd.DataFrame({"job": ["a"] * 330}))
    named = WithRelated(rows(), pd.DataFrame({"age": range(330)}))
    assert [item.related.item() for item in named.__getitems__([3, 5])] == [3, 5]
    assert named.tensors[0].equal(table()["inputs"])


def ranks(world: int) -> dict[str, Any]:
    module: LightningModule = Strict()
    penalty = make_penalty()
    data = DataLoader(WithRelated(rows(), METADATA), 330 // world, num_workers=world - 1)
    options: dict[str, Any] = {"devices": world, "num_nodes": 1, "max_steps": 40}
    options["strategy"] = "ddp" if world > 1 else "auto"
    # Lightning's sampler shuffles the rows under DDP; all of them are in each step.
    callbacks = [LambdaUpdateCallback(0.02, 10, penalty=penalty)]
    fit(module, *callbacks, data=data, **options)
    return {"lambda": penalty.weights, **module.state_dict()}


@pytest.mark.filterwarnings("ignore")
def test_two_ranks_with_lightnings_sampler_and_workers_train_as_one(tmp_path: Path) -> None:
    one, two = ranks(1), run_on_ranks(ranks, tmp_path)
    assert not torch.allclose(one["lambda"], torch.full((3,), 1 / 3), atol=0.01)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=0, atol=1e-6)
