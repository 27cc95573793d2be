"""Listens to a submodule's predictions by a forward hook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from lightning import LightningModule
from torch import Tensor, nn

from fairrf_lightning.errors import InputError

_MOST_NAMES = 20


class Captured(NamedTuple):
    """A prediction that requires grad, and the first tensor that the module was called with."""

    preds: Tensor
    inputs: Tensor | None


class PredictionTap:
    """Keeps the predictions that a submodule makes between :meth:`open` and :meth:`take`.

    Several calls before one backward pass count as one, their rows in the order of the calls. In a
    training batch, outputs that do not require grad are no predictions to be penalised: those of a teacher.

    Args:
        name: Name of the submodule, as in ``named_modules()``; ``None``: the LightningModule itself.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self._listening = False
        self._training = True
        self._calls: list[Captured] = []
        self._aged = False
        self._refused = ""
        self._without_grad = False

    def attach(self, pl_module: LightningModule) -> Callable[[], object]:
        """Hook the submodule; return what removes the hook."""
        module = pl_module if self.name is None else _submodule(pl_module, self.name)
        hook: Callable[..., None] = _Hook(self, module)
        if module._compiled_call_impl is not None:  # noqa: SLF001 - torch has no public way to ask
            # module.compile() takes the hooks along, and dynamo stumbles over this one.
            hook = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
        return module.register_forward_hook(hook, with_kwargs=True).remove

    def open(self, *, training: bool = True) -> None:
        """Listen from now on, to a batch of training or of validation."""
        self.close()
        self._listening = True
        self._training = training

    def close(self) -> None:
        """Stop listening and forget."""
        self._listening = self._aged = False
        self._calls = []

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not listen for a while."""
        listening, self._listening = self._listening, False
        try:
            yield
        finally:
            self._listening = listening

    def age(self) -> None:
        """Let the next prediction replace those at hand: a backward pass has gone by."""
        self._aged = True

    def hear(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Note a call of the submodule."""
        if not self._listening:
            return
        # Under DDP and its like the LightningModule is called around training_step too: that is a loss.
        if not isinstance(output, Tensor) or output.ndim == 0:
            self._refused = f" (It was, and returned {_describe(output)}, which is no prediction.)"
        elif self._training and not output.requires_grad:
            self._without_grad = True
        else:
            if self._aged:
                self._calls, self._aged = [], False
            handed = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
            self._calls.append(Captured(output, next(handed, None)))

    def take(self, pl_module: LightningModule, *, required: bool) -> Captured | None:
        """Return the predictions since the last time, and forget them; an error if they are required."""
        calls, self._calls = self._calls, []
        if not calls:
            if required:
                raise InputError(self._nothing_heard(pl_module))
            return None
        for call in calls:
            _check_shape(call.preds)
        if len(calls) == 1:
            return calls[0]
        inputs = [call.inputs for call in calls if call.inputs is not None]
        same = len(inputs) == len(calls) and len({part.shape[1:] for part in inputs}) == 1
        return Captured(torch.cat([call.preds for call in calls]), torch.cat(inputs) if same else None)

    def _nothing_heard(self, pl_module: LightningModule) -> str:
        called = "self(...)" if self.name is None else f"the submodule {self.name!r}"
        if self._without_grad:
            return (
                f"the prediction of {called} does not require grad, so the penalty could not change the "
                "model: it is computed under torch.no_grad or inside reentrant checkpointing, detached, or "
                "of frozen weights only. Enable gradients, or set module= to another submodule: "
                f"{_names(pl_module)}."
            )
        return (
            f"no prediction was captured: {called} was not called before the backward pass.{self._refused} "
            f"Set module= to the submodule whose output is the logits of the batch, one of: "
            f"{_names(pl_module)}."
        )


class _Hook:
    """The forward hook. Copies and pickles of the module get one that does nothing."""

    def __init__(self, tap: PredictionTap, module: nn.Module) -> None:
        self._tap = tap
        self._module = module

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if module is self._module:
            self._tap.hear(args, kwargs, output)

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return _deaf, ()


def _deaf() -> Callable[..., None]:
    return _ignore


def _ignore(*_: Any) -> None:
    """Do nothing."""


def _submodule(pl_module: LightningModule, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = dict(pl_module.named_modules())
    if name not in modules or not name:
        near = get_close_matches(name, modules, n=2, cutoff=0.5)
        question = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise InputError(
            f"module = {name!r}: {type(pl_module).__name__} has no such submodule; {question}It has: "
            f"{_names(pl_module)}."
        )
    return modules[name]


def _names(pl_module: LightningModule) -> str:
    names = [repr(name) for name, _ in pl_module.named_modules() if name]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return (", ".join(names[:_MOST_NAMES]) or "none") + more


def _describe(output: Any) -> str:
    return "a tensor without rows" if isinstance(output, Tensor) else f"a {type(output).__name__}"


def _check_shape(preds: Tensor) -> None:
    if preds.ndim > 2 or (preds.ndim == 2 and preds.shape[1] not in (1, 2)):
        raise InputError(
            f"predictions of shape {tuple(preds.shape)}: expected (N,), (N, 1) or (N, 2). Set module= to the "
            "submodule whose output is the logits of the batch."
        )
