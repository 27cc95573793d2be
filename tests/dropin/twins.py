"""Modules that know nothing of FairRF, and twins with the penalty written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from fairrf_lightning import RelatedFeaturePenalty
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules import TensorBatches
from tests.trainers import quiet_trainer

RELATED = {"age": [0], "zip": [2, 1], "job": [4]}
ROWS, COLUMNS, BATCH = 330, 6, 16  # 20 batches an epoch


class Foreign(LightningModule):
    """A user's classifier. ``fair_term`` is the line that the hand-written twin has and this one has not."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(COLUMNS, 8), nn.Tanh(), nn.Linear(8, outputs))

    def fair_term(self, logits: Tensor, batch: dict[str, Tensor]) -> Tensor | float:
        return 0.0

    def task(self, logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        if logits.ndim == 2 and logits.shape[1] > 1:
            return nn.functional.cross_entropy(logits, batch["target"].long())
        return nn.functional.binary_cross_entropy_with_logits(logits.flatten(), batch["target"].to(logits))

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        logits = self.net(batch["inputs"])
        return self.task(logits, batch) + self.fair_term(logits, batch)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def by_hand(foreign: type[Foreign], penalty: RelatedFeaturePenalty, **options: Any) -> Foreign:
    """Return the same module with the penalty written into its training step."""

    class ByHand(foreign):  # type: ignore[misc, valid-type]
        def fair_term(self, logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
            related = batch.get("metadata", batch["inputs"])
            fair: Tensor = self.fairness(logits, related, batch["target"])
            return fair

    module: Foreign = ByHand(**options)
    module.fairness = penalty
    return module


def table(**more: Tensor) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, COLUMNS, generator=generator)
    noise = torch.randn(ROWS, generator=generator)
    return {"inputs": inputs, "target": (inputs.sum(1) + noise > 0).float(), **more}


def fit(module: LightningModule, *callbacks: Callback, **options: Any) -> Trainer:
    """Train for 60 steps, of which the first 20 without the penalty."""
    data = options.pop("data", None)
    data = TensorBatches(table(), BATCH, shuffle=True, seed=1) if data is None else data
    ckpt_path, validation = options.pop("ckpt_path", None), options.pop("validation", None)
    trainer = quiet_trainer(callbacks=list(callbacks), **{"max_steps": 60} | options)
    trainer.fit(module, data, validation, ckpt_path=ckpt_path)
    return trainer


def make_penalty(**options: Any) -> RelatedFeaturePenalty:
    settings: dict[str, Any] = {"related": RELATED, "eta": 2.0}
    return RelatedFeaturePenalty(**settings | options)


def own_callbacks(**attached: Any) -> list[Callback]:
    return [PretrainCallback(epochs=1), LambdaUpdateCallback(beta=0.2, every_n_steps=10, **attached)]


def trained(
    foreign: type[Foreign] = Foreign,
    *,
    module: dict[str, Any] | None = None,
    penalty: dict[str, Any] | None = None,
    attach: dict[str, Any] | None = None,
    prepare: Callable[[Foreign], object] = id,
    callbacks: Callable[[], list[Callback]] = list,
    **options: Any,
) -> tuple[Foreign, Foreign, RelatedFeaturePenalty, RelatedFeaturePenalty]:
    """Train the foreign module with the callbacks attached, and its twin with the penalty by hand."""
    module, attached, held = module or {}, make_penalty(**penalty or {}), make_penalty(**penalty or {})
    dropin, twin = foreign(**module), by_hand(foreign, held, **module)
    prepare(dropin)
    prepare(twin)
    # In the other order than in the README: the penalty is found wherever it is.
    own = own_callbacks(penalty=attached, **{"module": "net"} | (attach or {}))[::-1]
    fit(dropin, *callbacks(), *own, **_fresh(options))
    fit(twin, *callbacks(), *own_callbacks(), **_fresh(options))
    return dropin, twin, attached, held


def _fresh(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value() if name in ("data", "plugins") else value for name, value in options.items()}


def assert_same(result: tuple[Foreign, Foreign, RelatedFeaturePenalty, RelatedFeaturePenalty]) -> None:
    """Weights and lambda have the same bits; the penalty did something; nothing is left behind."""
    dropin, twin, attached, held = result
    assert not torch.allclose(
        attached.weights, torch.full((len(attached.weights),), 1 / len(attached.weights))
    )
    assert torch.equal(attached.weights, held.weights)
    expected = {name: value for name, value in twin.state_dict().items() if "fairness" not in name}
    assert list(dropin.state_dict()) == list(expected)
    for name, value in dropin.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert_untouched(dropin)


def assert_untouched(module: LightningModule) -> None:
    assert "backward" not in module.__dict__
    assert not any(part._forward_hooks for part in module.modules())
