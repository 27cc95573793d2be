"""Records the predictions of a submodule or of a method, without changes to the module's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from lightning import LightningModule
from torch import Tensor, nn

from fairrf_lightning.callbacks.dropin.batch_parts import BatchPart, batch_part, described, tensors_of
from fairrf_lightning.callbacks.dropin.wrapped_method import WrappedMethod
from fairrf_lightning.errors import InputError, nearest

_MAX_NAMES = 20  # of submodules in an error


class Recorded(NamedTuple):
    """A call of the module.

    Attributes:
        preds: The prediction. In a training batch it requires grad.
        inputs: The first tensor that the module was called with.
        direct: Whether ``forward`` was called by its name, without hooks.
    """

    preds: Tensor
    inputs: Tensor | None
    direct: bool


class PredictionTap:
    """Records the predictions of a submodule between :meth:`open` and :meth:`pop`.

    In a training batch, outputs that do not require grad, such as a teacher's, are not recorded.

    Args:
        name: Name of the submodule, as in ``named_modules()``, or of a method, such as
            ``"model.shared_step"``; ``None``: the LightningModule's ``forward``.
        prediction: Which part of the output is the prediction; ``None``: all of it.
    """

    def __init__(self, name: str | None, prediction: BatchPart | None = None) -> None:
        self.name = name
        self.prediction = prediction
        self._recording = False
        self._training = True
        self._calls: list[Recorded] = []
        self._stale = False
        self._rejected = ""
        self._without_grad = False

    def open(self, *, training: bool = True) -> None:
        """Record from now on, in a batch of training or of validation."""
        self.close()
        self._recording = True
        self._training = training

    def close(self) -> None:
        """Stop recording and drop what was recorded."""
        self._recording = self._stale = False
        self._calls = []

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing within this context."""
        recording, self._recording = self._recording, False
        try:
            yield
        finally:
            self._recording = recording

    def mark_stale(self) -> None:
        """Let the next prediction replace the recorded ones: they belong to an earlier backward pass."""
        self._stale = True

    def record(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, *, direct: bool = False
    ) -> None:
        """Record a call of the submodule."""
        if not self._recording:
            return
        preds = self._selected(output)
        if preds is None:
            return
        if self._training and not preds.requires_grad:
            self._without_grad = True
            return
        if self._calls and self._calls[-1].direct and not direct:
            self._calls.pop()  # the same call, seen in forward: hooks may change the output
        if self._stale:
            self._calls, self._stale = [], False
        tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        self._calls.append(Recorded(preds, next(tensors, None), direct))

    def _selected(self, output: Any) -> Tensor | None:
        # DDP and similar strategies also call the LightningModule around training_step: that is a loss.
        if self.prediction is not None:
            try:
                output = batch_part(output, self.prediction, "prediction", "the output")
            except InputError as error:
                self._rejected = f" ({error})"
                return None
        if isinstance(output, Tensor) and output.ndim:
            return output
        self._rejected = f" (It was, and returned {_no_prediction(output)}.)"
        return None

    def pop(self) -> list[Recorded]:
        """Return the calls since the last call of this method, and drop them."""
        calls, self._calls = self._calls, []
        return calls

    def nothing_recorded(self, pl_module: LightningModule) -> InputError:
        """Return the error for a backward pass without a prediction."""
        called = "self(...)" if self.name is None else f"module = {self.name!r}"
        if self._without_grad:
            return InputError(
                f"the prediction of {called} does not require grad, so the penalty could not change the "
                "model: it is computed under torch.no_grad or inside reentrant checkpointing, detached, or "
                "of frozen weights only. Enable gradients, or set module= to another submodule: "
                f"{_names(pl_module)}."
            )
        return InputError(
            f"no prediction was captured: {called} was not called before the backward pass.{self._rejected} "
            "Set module= to the submodule whose output is the logits of the batch, or to a method such as "
            f"'shared_step': fairrf_lightning.callbacks.inspect(module, batch) shows them. It has: "
            f"{_names(pl_module)}."
        )


def _no_prediction(output: Any) -> str:
    if isinstance(output, Tensor):
        return "a tensor without rows, which is no prediction"
    kind = f"a {type(output).__name__}, which is no prediction"
    rows = [path for path, tensor in tensors_of(output) if tensor.ndim and tensor.requires_grad]
    if not rows:
        return kind
    return f"{kind}; its tensors are {described(output)}: add prediction={rows[-1]!r}"


def watch_calls(
    pl_module: LightningModule, name: str | None, record: Callable[..., None]
) -> list[Callable[[], object]]:
    """Hook a submodule or wrap a method; return the functions that undo it.

    Args:
        pl_module: The module.
        name: As in :class:`PredictionTap`.
        record: Called as ``record(args, kwargs, output)`` after each call; after one of a submodule's
            ``forward`` by its name, which runs no hooks, with ``direct=True``.
    """
    owner, method = _find(pl_module, name)
    if method is not None:
        return [_after(owner, method, record)]
    hook: Callable[..., None] = _Hook(record, owner)
    compiled = owner._compiled_call_impl is not None  # noqa: SLF001 - torch has no public way to ask
    if compiled:
        # module.compile() compiles the hooks as well, and dynamo fails on this one.
        hook = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    undo: list[Callable[[], object]] = [owner.register_forward_hook(hook, with_kwargs=True).remove]
    if not compiled and not hasattr(owner, "_orig_mod"):  # the attribute of a compiled copy
        undo.append(_after(owner, "forward", partial(record, direct=True)))
    return undo


def _after(owner: Any, name: str, record: Callable[..., None]) -> Callable[[], None]:
    def around(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = method(*args, **kwargs)
        record(args, kwargs, output)
        return output

    return WrappedMethod(owner, name, around).remove


class _Hook:
    """The forward hook. Copies and pickles of the module get one that does nothing."""

    def __init__(self, record: Callable[..., None], module: nn.Module) -> None:
        self._record = record
        self._module = module

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if module is self._module:
            self._record(args, kwargs, output)

    def __reduce__(self) -> tuple[type[partial[None]], tuple[Callable[..., None]]]:
        return partial, (_no_op,)


def _no_op(*_: Any) -> None:
    """Do nothing."""


def _find(pl_module: LightningModule, name: str | None) -> tuple[Any, str | None]:
    """Return a submodule and ``None``, or the owner of a method and the method's name."""
    if name is None:
        return pl_module, None
    modules: dict[str, nn.Module] = dict(pl_module.named_modules(remove_duplicate=False))
    if name in modules and name:
        return modules[name], None
    path, _, method = name.rpartition(".")
    owner: Any = pl_module
    for step in path.split(".") if path else []:
        owner = getattr(owner, step, None)
    if method and callable(getattr(owner, method, None)):
        return owner, method
    raise InputError(
        f"module = {name!r}: {type(pl_module).__name__} has no such submodule or method; "
        f"{nearest(name, modules)}It has: {_names(pl_module)}."
    )


def _names(pl_module: LightningModule) -> str:
    names = [repr(name) for name, _ in pl_module.named_modules() if name]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return (", ".join(names[:_MAX_NAMES]) or "no submodule") + more
