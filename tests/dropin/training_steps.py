"""Kinds of training steps that a user's module may have."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.dropin.twins import Foreign


class Regression(Foreign):
    """Predicts a number."""

    def task(self, logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return torch.nn.functional.mse_loss(logits.flatten(), batch["inputs"].sum(1).to(logits))


class Forward(Foreign):
    """Predicts by ``self(...)``."""

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.net(inputs)
        return logits

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        logits = self(batch["inputs"])
        return self.task(logits, batch) + self.fair_term(logits, batch)


class Manual(Foreign):
    """Optimises by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


class SavedLoss(Manual):
    """Its loss is saved by autograd, and looked at after the backward pass."""

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        logits = self.net(batch["inputs"])
        loss = self.task(logits, batch).exp()
        before = loss.item()
        self.manual_backward(loss + self.fair_term(logits, batch))
        assert loss.item() == before
        optimizer.step()


class TwoOptimisers(Manual):
    """A critic and the net; the penalty belongs to the net's backward pass, the second one."""

    shared_forward = False

    def __init__(self) -> None:
        super().__init__()
        self.critic = torch.nn.Linear(1, 1)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        critic, net = cast("list[Any]", self.optimizers())
        logits = self.net(batch["inputs"])
        critic.zero_grad()
        self.manual_backward(self.task(self.critic(logits), batch), retain_graph=self.shared_forward)
        if not self.shared_forward:
            critic.step()
            logits = self.net(batch["inputs"])
        net.zero_grad()
        self.manual_backward(self.task(logits, batch) + self.fair_term(logits, batch))
        net.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.critic, self.net)]


class SharedForward(TwoOptimisers):
    shared_forward = True


class LBFGS(Foreign):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=2)


class ManualLBFGS(Manual):
    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        optimizer: Any = self.optimizers()

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss(batch)
            self.manual_backward(loss)
            return loss

        optimizer.step(closure)

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=2)


class Checkpointed(Foreign):
    """The net runs again in the backward pass."""

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        logits = checkpoint(self.net, batch["inputs"], use_reentrant=False)
        return self.task(logits, batch) + self.fair_term(logits, batch)


class ReturnsDict(Foreign):
    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Any]:
        return {"loss": self.loss(batch), "batch_idx": batch_idx}


class SomeBatchesAreSkipped(Foreign):
    """Every third training step returns None, the first one too, before or after its forward pass."""

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor | None:
        if batch_idx % 3 == 0:
            if batch_idx % 2:
                self.net(batch["inputs"])
            return None
        return self.loss(batch)


class Validated(Foreign):
    """Calls the net with gradients in validation, and a second time without in training."""

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = super().training_step(batch, batch_idx)
        with torch.no_grad():
            self.net(batch["inputs"][:3])
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        with torch.inference_mode(mode=False), torch.enable_grad():
            logits = self.net(batch["inputs"].clone())
        assert logits.requires_grad
        self.log("val_loss", self.task(logits.detach(), batch))
