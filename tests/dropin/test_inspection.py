"""What ``inspect`` prints can be pasted into a project, and runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fairrf_lightning.callbacks import inspect
from tests.dropin.test_side_channel import Strict
from tests.dropin.test_sources import Encoded, Method
from tests.dropin.training_steps import Forward, TwoOptimisers
from tests.dropin.twins import Foreign, fit, table

BATCH = {name: value[:16] for name, value in table().items()}
PAIR = list(BATCH.values())


class Named(torch.nn.Module):
    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.inner = net

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"hidden": x, "logits": self.inner(x)}


class Several(Foreign):
    def __init__(self) -> None:
        super().__init__(outputs=5)


class NoRows(Foreign):
    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return self.task(self.net(batch["inputs"][:9]), {"target": batch["target"][:9]})


class DictOutput(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.model = Named(self.net)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return self.task(self.model(batch["inputs"])["logits"], batch)


def pairs() -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*table().values()), 16)


@pytest.mark.parametrize(
    ("make", "batch", "arguments"),
    [
        (Foreign, BATCH, 'penalty=penalty, module="net"'),
        (Forward, BATCH, "penalty=penalty"),
        (Encoded, BATCH, 'penalty=penalty, module="net.2", inputs="inputs"'),
        (DictOutput, BATCH, 'penalty=penalty, module="model", prediction="logits"'),
        (Strict, PAIR, "penalty=penalty"),
        (Several, BATCH, 'penalty=penalty, module="net"'),
    ],
)
def test_the_printed_callbacks_run(
    make: type[Foreign], batch: Any, arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = make()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    inspect(module, batch)
    assert all(value.equal(before[name]) for name, value in module.state_dict().items())
    printed = capsys.readouterr().out
    assert "(16, 6)" in printed
    code = printed.partition("Callbacks:\n")[2]
    assert f"LambdaUpdateCallback({arguments})" in code
    assert ('eta=0.6, output="softmax")' in code) == (make is Several)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - this is the point
    fit(module, *names["callbacks"], data=pairs() if batch is PAIR else None, max_steps=25)
    assert names["penalty"].penalised_steps > 0


def test_manual_optimisation_and_outputs_without_a_likely_prediction() -> None:
    assert [output.module for output in inspect(TwoOptimisers(), BATCH).outputs].count("net") == 2
    assert "choose module=" in inspect(NoRows(), BATCH).code
    shapes = {o.module: o.shape for o in inspect(Method(), BATCH).outputs}
    assert shapes == {"net.0": (16, 8), "net.1": (16, 8), "net.2": (16, 1), "net": (16, 1)}
