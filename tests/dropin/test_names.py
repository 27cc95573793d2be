"""Related columns by name train the bits of the same columns by number."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from fairrf_lightning import Categorical, RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, WithRelated
from fairrf_lightning.datamodules import TensorBatches
from fairrf_lightning.errors import InputError
from tests.dropin.test_side_channel import Strict, rows
from tests.dropin.twins import BATCH, Foreign, fit, own_callbacks, table

pytestmark = pytest.mark.filterwarnings("ignore:.*collapsed onto.*")
NAMES = ["age", "city", "zip", "height", "pay", "job"]
JOBS = torch.arange(330) % 3
NUMBERS: dict[str, Any] = {"age": [0], "place": [2, 1], "job": Categorical(5, num_categories=3)}
BY_NAME: dict[str, Any] = {"age": "age", "place": ["zip", "city"], "job": Categorical("job", 3)}


def with_jobs() -> Tensor:
    return torch.cat([table()["inputs"][:, :5], JOBS[:, None]], dim=1)


class Rows(LightningDataModule):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.feature_names = names

    def train_dataloader(self) -> Any:
        return batches()


def batches(**more: Tensor) -> TensorBatches:
    return TensorBatches(table() | {"inputs": with_jobs()} | more, BATCH, shuffle=True, seed=1)


def trained(
    related: dict[str, Any], data: Any, foreign: type[Foreign] = Foreign, **attach: Any
) -> list[Tensor]:
    penalty, module = RelatedFeaturePenalty(related, eta=2.0), foreign()
    fit(module, *own_callbacks(penalty=penalty, **{"module": "net"} | attach), data=data, max_steps=40)
    assert penalty.updates
    return [penalty.weights, *module.state_dict().values()]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert all(a.equal(b) for a, b in zip(found, expected, strict=True))


@pytest.fixture(scope="module")
def by_number() -> list[Tensor]:
    return trained(NUMBERS, batches())


def test_a_key_for_each_column(by_number: list[Tensor]) -> None:
    columns = dict(zip(NAMES, with_jobs().T, strict=True)) | {"job": JOBS, "age": with_jobs()[:, :1]}
    assert_same(trained(BY_NAME, batches(**columns)), by_number)


def test_a_data_module_with_names(by_number: list[Tensor]) -> None:
    assert_same(trained(BY_NAME, Rows(NAMES)), by_number)
    assert_same(trained(BY_NAME, Rows(NAMES), inputs="inputs"), by_number)


def test_the_columns_of_a_data_frame() -> None:
    frame = pd.DataFrame(with_jobs().numpy(), columns=NAMES)[::-1].iloc[:, ::-1]

    def loader(columns: Any) -> DataLoader[Any]:
        return DataLoader(WithRelated(rows(), columns), BATCH)

    named = trained(BY_NAME, loader(frame), Strict, module=None)
    assert_same(named, trained(NUMBERS, loader(frame[NAMES].to_numpy()), Strict, module=None))


@pytest.mark.parametrize(
    ("related", "data", "message"),
    [
        ({"age": "agee"}, Rows(NAMES), r"no one column 'agee'; did you mean 'age'\?"),
        ({"age": "pay"}, Rows([*NAMES[:5], "pay"]), "several columns have this name"),
        ({"age": "age"}, Rows(NAMES[:5]), "6 columns, and there are 5 names"),
        ({"age": "age"}, None, "expected a batch with a key for each.*'inputs'"),
        (
            {"age": "age", "job": "jbo"},
            batches(age=JOBS, job=JOBS),
            "no related column 'jbo'; did you mean 'job'",
        ),
        ({"age": "age"}, batches(age=with_jobs()), r"'age' of the batch is a tensor \(16, 6\)"),
    ],
)
def test_unknown_names_are_refused(related: dict[str, Any], data: Any, message: str) -> None:
    callback = LambdaUpdateCallback(penalty=RelatedFeaturePenalty(related), module="net")
    with pytest.raises(InputError, match=message):
        fit(Foreign(), callback, data=data)


def test_names_in_a_loop_of_ones_own() -> None:
    logits, inputs = torch.randn(16), with_jobs()[:16]
    penalty = RelatedFeaturePenalty(BY_NAME)
    with pytest.raises(InputError, match=r"call penalty\.name_columns"):
        penalty(logits, inputs)
    penalty.name_columns(NAMES)
    assert penalty(logits, inputs).equal(RelatedFeaturePenalty(NUMBERS)(logits, inputs))


def test_names_and_numbers_are_not_mixed() -> None:
    with pytest.raises(InputError, match="all columns by name or all by number"):
        RelatedFeaturePenalty({"age": "age", "job": [1]})
