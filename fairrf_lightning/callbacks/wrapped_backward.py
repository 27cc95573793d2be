"""Stands in the place of a module's ``backward``, and can be taken out again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from lightning import LightningModule
from torch import Tensor


class WrappedBackward:
    """``LightningModule.backward`` on the instance, with a changed loss.

    Several may wrap one module, the later around the earlier; they can be removed in any order, since
    Lightning tears callbacks down in the order in which it set them up.

    Args:
        pl_module: The module, which is wrapped at once.
        change: Takes the loss, returns the one to go backward from.
        during: Makes the context of the backward pass.
    """

    def __init__(
        self,
        pl_module: LightningModule,
        change: Callable[[Tensor], Tensor],
        during: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._module = pl_module
        self._change = change
        self._during = during
        # The user's own on the instance, or another wrapper; else the class has it.
        self.inner: Any = pl_module.__dict__.get("backward")
        pl_module.backward = self  # type: ignore[method-assign]

    def __call__(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        inner = self.inner or partial(type(self._module).backward, self._module)
        loss = self._change(loss)
        with self._during():
            inner(loss, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> WrappedBackward:
        return self  # a copy of the module must not copy the trainer and all

    def remove(self) -> None:
        """Leave the module as if this wrapper had never been."""
        outer: Any = self._module.__dict__.get("backward")
        if outer is self:
            del self._module.backward
            if self.inner is not None:
                self._module.backward = self.inner
            return
        while isinstance(outer, WrappedBackward):
            inner = outer.inner
            if inner is self:
                outer.inner = self.inner
            outer = inner
