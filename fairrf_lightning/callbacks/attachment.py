"""Attaches a penalty to a LightningModule that does not hold one, without changes to its code.

A forward hook records the predictions of a submodule (:class:`PredictionTap`), and a wrapped ``backward``
adds the penalty to the loss (:class:`WrappedBackward`). :class:`Attachment` matches predictions with related
columns and labels, and :class:`ValidationPenalty` measures the penalty on the validation rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.metrics.evaluation import FeaturePenalties
from fairrf_lightning.penalty import RelatedFeaturePenalty

# The function comes before the string: jsonargparse takes the first that fits, and an import path is both.
BatchPart: TypeAlias = int | Callable[[Any], Tensor] | str

_MAX_NAMES = 20  # of submodules in an error
_INPUTS_HINT = (
    "Say where the batch has the related columns: inputs='metadata' (a key), inputs=2 (an index), or a "
    "function of the batch."
)


class Attachment:
    """Adds a penalty to the loss of a module's backward pass.

    ``LightningModule.backward``, which automatic and manual optimisation both call, is wrapped on the
    instance, where ``loss + penalty`` replaces the loss. The loss that the module returns and logs stays as
    it is. Adding in place (``loss.add_``) would change it, and would break the backward pass of a loss
    that autograd has saved, such as a norm.

    Args:
        penalty: The penalty to add to the loss.
        module: Name of the submodule whose output is the prediction; ``None``: the module's ``forward``.
        inputs: Where the batch has the related columns; ``None``: the first tensor passed to ``module``.
        target: Where the batch has the labels, for ``given="positives"``.
        backward: Number of the backward pass in a training step; ``None``: each one.
    """

    def __init__(
        self,
        penalty: RelatedFeaturePenalty,
        module: str | None,
        inputs: BatchPart | None,
        target: BatchPart | None,
        backward: int | None,
    ) -> None:
        if penalty.given == "positives" and target is None:
            raise InputError(
                "given='positives' needs the labels: say where the batch has them, for example "
                "target='label' or target=1."
            )
        if backward is not None and backward < 0:
            raise InputError(f"backward = {backward}: expected the number of a backward pass, from 0.")
        self.penalty = penalty
        self.inputs = inputs
        self.target = target
        self.backward = backward
        self._tap = PredictionTap(module)
        self._validation = ValidationPenalty(penalty)
        self._undo: list[Callable[[], object]] = []
        self._batch: Any = None
        self._passes = self._max_passes = 0
        self._penalised = False
        self._start_epoch()
        self._share_with_started_processes()

    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hook the submodule and wrap the backward pass."""
        self.detach()
        self._check(trainer, pl_module)
        self.penalty.to(pl_module.device)
        self._validation.start(pl_module.device)
        self._penalised = False
        self._max_passes = 0
        self._start_epoch()
        add = partial(self._with_penalty, trainer=trainer, pl_module=pl_module)
        self._undo = [self._tap.attach(pl_module)]  # first: it raises if there is no such submodule
        # Gradient checkpointing calls the module again during the backward pass; these are no predictions.
        self._undo.append(WrappedBackward(pl_module, add, self._tap.paused).remove)

    def detach(self) -> None:
        """Restore the module."""
        self.end_batch()
        while self._undo:
            self._undo.pop()()

    def _share_with_started_processes(self) -> None:
        # `ddp_spawn`, `ddp_fork` and `ddp_notebook` train in processes that they start. Lightning returns the
        # module's weights from there, but not the state of callbacks. So lambda and the counters are held in
        # memory that is shared with these processes, and rank zero writes there when a fit ends.
        self._shared = self.penalty.weights.detach().cpu().clone(), torch.zeros(2, dtype=torch.long)
        with suppress(RuntimeError):  # a system without shared memory starts no processes either
            for tensor in self._shared:
                tensor.share_memory_()  # type: ignore[no-untyped-call]
        self.penalty.hold_in(*self._shared)

    def return_lambda(self, trainer: Trainer) -> None:
        """Hand lambda and the counters of rank zero to the process that started this one."""
        if trainer.is_global_zero:
            self.penalty.hold_in(*self._shared)

    def start_batch(self, batch: Any) -> None:
        """Record the predictions of a training batch."""
        self._batch = batch
        self._passes = 0
        self._tap.open()

    def end_batch(self) -> None:
        """Stop recording, and release the batch and its graph."""
        self._batch = None
        self._max_passes = max(self._max_passes, self._passes)
        self._tap.close()

    def start_validation_batch(self, batch: Any) -> None:
        """Record the predictions of a validation batch within a fit."""
        if self._undo:
            self._batch = batch
            self._tap.open(training=False)

    def end_validation_batch(self, pl_module: LightningModule) -> None:
        """Add the predictions of this batch to those of the validation epoch."""
        if self._undo:
            with self._validation.noting_problems():
                if (recorded := self._tap.pop(pl_module, required=False)) is not None:
                    self._validation.update(*self._matched(recorded))
            self._batch = None
            self._tap.close()

    def end_validation_epoch(self, trainer: Trainer) -> tuple[Tensor, Tensor] | None:
        """Return the validation penalty and its part of the objective; ``None`` if it is unknown."""
        return self._validation.end_epoch(trainer) if self._undo else None

    def end_epoch(self, pl_module: LightningModule) -> dict[str, Tensor]:
        """Return the values to log.

        Raises:
            InputError: If the penalty has not been part of any backward pass.
        """
        if not self._penalised and (self._max_passes or not pl_module.automatic_optimization):
            why = (
                f"backward = {self.backward}, but a training step had {self._max_passes}, counted from 0."
                if self._max_passes
                else "training_step ran none that Lightning knows of. Call self.manual_backward(loss) in "
                "place of loss.backward()."
            )
            raise InputError(f"the penalty went into no backward pass: {why}")
        names = self.penalty.feature_names
        measured = self.penalty.pending_penalties() if self.measured is None else self.measured
        values = {"train_penalty": self._sum / max(1, self._count)}
        values |= {f"lambda/{name}": weight for name, weight in zip(names, self.penalty.weights, strict=True)}
        if measured is not None:  # else: pretraining
            values |= {f"penalty/{name}": value for name, value in zip(names, measured, strict=True)}
        self._start_epoch()
        return values

    def _start_epoch(self) -> None:
        self._sum, self._count = torch.zeros(()), 0
        self.measured: Tensor | None = None  # R at the epoch's last update of lambda

    def state_dict(self) -> dict[str, Any]:
        """Return lambda and the moments since its last update, as tensors and plain values."""
        return {"features": self.penalty.feature_names, **self.penalty.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the state of a checkpoint.

        Raises:
            InputError: If the checkpoint is of other related features.
        """
        state = dict(state)
        features = state.pop("features")
        if features != self.penalty.feature_names:
            raise InputError(
                f"the checkpoint has a lambda for {', '.join(features)}, the penalty is for "
                f"{', '.join(self.penalty.feature_names)}: resume with the checkpoint's related features."
            )
        self.penalty.load_state_dict(state)

    def _check(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if any(isinstance(part, RelatedFeaturePenalty) for part in pl_module.modules()):
            raise InputError(
                f"{type(pl_module).__name__} holds a RelatedFeaturePenalty of its own, so penalty= would add "
                "a second one: leave penalty= out, LambdaUpdateCallback finds the module's."
            )
        if pl_module.automatic_optimization and self.backward:
            raise InputError(
                f"backward = {self.backward}: with automatic optimisation there is one backward pass in a "
                "training step; leave backward= out."
            )
        if len(trainer.optimizers) > 1 and self.backward is None:
            raise InputError(
                f"{type(pl_module).__name__} has {len(trainer.optimizers)} optimisers: say which backward "
                "pass of a training step the penalty goes into, for example backward=0 for the first "
                "manual_backward."
            )

    def _with_penalty(self, loss: Tensor, trainer: Trainer, pl_module: LightningModule) -> Tensor:
        number, self._passes = self._passes, self._passes + 1
        if self.backward not in (None, number) and not pl_module.automatic_optimization:
            self._tap.mark_stale()
            return loss
        required = not self._penalised or trainer.world_size > 1
        if (recorded := self._tap.pop(pl_module, required=required)) is None:
            return loss
        _check_batch_size(recorded.preds, trainer.world_size)
        preds, inputs, target = self._matched(recorded)
        self._penalised = True
        if not self.penalty.enabled:
            return loss
        penalty = self.penalty(preds, inputs, target)
        self._sum = self._sum.to(penalty.device) + penalty.detach()
        self._count += 1
        return loss + _scaled(penalty, trainer, pl_module)

    def _matched(self, recorded: Recorded) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the predictions with the inputs and labels of the same rows."""
        preds, inputs = recorded
        if self.inputs is not None:
            inputs = batch_part(self._batch, self.inputs, "inputs")
        target = None if self.target is None else batch_part(self._batch, self.target, "target")
        inputs = _related_rows(inputs, self.inputs, preds)
        self.penalty.check_inputs(inputs)
        return preds, inputs, target


def _scaled(penalty: Tensor, trainer: Trainer, pl_module: LightningModule) -> Tensor:
    """Scale the penalty as Lightning has already scaled the loss."""
    if pl_module.automatic_optimization and trainer.accumulate_grad_batches != 1:
        penalty = penalty / trainer.accumulate_grad_batches
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return penalty if scaler is None else scaler.scale(penalty)


class Recorded(NamedTuple):
    """A prediction that requires grad, and the first tensor that the module was called with."""

    preds: Tensor
    inputs: Tensor | None


class PredictionTap:
    """Records the predictions of a submodule between :meth:`open` and :meth:`pop`.

    Several calls before one backward pass count as one, their rows in the order of the calls. In a
    training batch, outputs that do not require grad, such as a teacher's, are not recorded.

    Args:
        name: Name of the submodule, as in ``named_modules()``; ``None``: the LightningModule itself.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self._recording = False
        self._training = True
        self._calls: list[Recorded] = []
        self._stale = False
        self._rejected = ""
        self._without_grad = False

    def attach(self, pl_module: LightningModule) -> Callable[[], object]:
        """Hook the submodule; return the function that removes the hook."""
        module = pl_module if self.name is None else _submodule(pl_module, self.name)
        hook: Callable[..., None] = _Hook(self, module)
        if module._compiled_call_impl is not None:  # noqa: SLF001 - torch has no public way to ask
            # module.compile() compiles the hooks as well, and dynamo fails on this one.
            hook = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
        return module.register_forward_hook(hook, with_kwargs=True).remove

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

    def record(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Record a call of the submodule."""
        if not self._recording:
            return
        # DDP and similar strategies also call the LightningModule around training_step: that is a loss.
        if not isinstance(output, Tensor) or output.ndim == 0:
            found = "a tensor without rows" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            self._rejected = f" (It was, and returned {found}, which is no prediction.)"
        elif self._training and not output.requires_grad:
            self._without_grad = True
        else:
            if self._stale:
                self._calls, self._stale = [], False
            tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
            self._calls.append(Recorded(output, next(tensors, None)))

    def pop(self, pl_module: LightningModule, *, required: bool) -> Recorded | None:
        """Return the predictions since the last call of this method, and drop them.

        Raises:
            InputError: If there is no prediction although one is required, or if its shape is wrong.
        """
        calls, self._calls = self._calls, []
        if not calls:
            if required:
                raise InputError(self._nothing_recorded(pl_module))
            return None
        for call in calls:
            _check_shape(call.preds)
        if len(calls) == 1:
            return calls[0]
        inputs = [call.inputs for call in calls if call.inputs is not None]
        same = len(inputs) == len(calls) and len({part.shape[1:] for part in inputs}) == 1
        return Recorded(torch.cat([call.preds for call in calls]), torch.cat(inputs) if same else None)

    def _nothing_recorded(self, pl_module: LightningModule) -> str:
        called = "self(...)" if self.name is None else f"the submodule {self.name!r}"
        if self._without_grad:
            return (
                f"the prediction of {called} does not require grad, so the penalty could not change the "
                "model: it is computed under torch.no_grad or inside reentrant checkpointing, detached, or "
                "of frozen weights only. Enable gradients, or set module= to another submodule: "
                f"{_names(pl_module)}."
            )
        return (
            f"no prediction was captured: {called} was not called before the backward pass.{self._rejected} "
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
            self._tap.record(args, kwargs, output)

    def __reduce__(self) -> tuple[type[partial[None]], tuple[Callable[..., None]]]:
        return partial, (_no_op,)


def _no_op(*_: Any) -> None:
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
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return (", ".join(names[:_MAX_NAMES]) or "none") + more


def _check_shape(preds: Tensor) -> None:
    if preds.ndim > 2 or (preds.ndim == 2 and preds.shape[1] not in (1, 2)):
        raise InputError(
            f"predictions of shape {tuple(preds.shape)}: expected (N,), (N, 1) or (N, 2). Set module= to the "
            "submodule whose output is the logits of the batch."
        )


def _check_batch_size(preds: Tensor, world_size: int) -> None:
    if len(preds) * world_size < 2:
        raise InputError(
            "a batch of one row: a covariance needs two. Take a larger batch_size; if this is the last batch "
            "of an epoch, DataLoader(drop_last=True) leaves it out."
        )


class WrappedBackward:
    """``LightningModule.backward`` on the instance, with a changed loss.

    Several may wrap one module, the later around the earlier. They can be removed in any order, since
    Lightning tears callbacks down in the order in which it set them up.

    Args:
        pl_module: The module, which is wrapped at once.
        change: Takes the loss and returns the changed loss.
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
        # The user's own on the instance, or another wrapper; otherwise that of the class.
        self.inner: Any = pl_module.__dict__.get("backward")
        pl_module.backward = self  # type: ignore[method-assign]

    def __call__(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        inner = self.inner or partial(type(self._module).backward, self._module)
        loss = self._change(loss)
        with self._during():
            inner(loss, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> WrappedBackward:
        return self  # a copy of the module must not copy the trainer

    def remove(self) -> None:
        """Restore the module's ``backward``, or take this wrapper out of the chain of wrappers."""
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


class ValidationPenalty:
    """The penalty over all rows of a validation epoch, on all ranks.

    There is no value if validation does not call the submodule. If its rows cannot be matched with related
    columns, there is one warning and no value; training can go on.

    Args:
        penalty: The penalty to measure.
    """

    def __init__(self, penalty: RelatedFeaturePenalty) -> None:
        self._penalty = penalty
        self._warned = False
        self.start(torch.device("cpu"))

    def start(self, device: torch.device) -> None:
        """Drop all rows, at the start of a fit."""
        self._rows = FeaturePenalties(self._penalty).to(device)
        self._has_rows = False
        self._problem = ""

    @contextmanager
    def noting_problems(self) -> Iterator[None]:
        """Keep the first error of this epoch's batches instead of raising it."""
        try:
            yield
        except InputError as error:
            self._problem = self._problem or str(error)

    @torch.no_grad()
    def update(self, preds: Tensor, inputs: Tensor, target: Tensor | None) -> None:
        """Add the rows of a batch."""
        self._has_rows = True
        self._rows.update(self._penalty.probabilities(preds), inputs, target)

    @torch.no_grad()
    def end_epoch(self, trainer: Trainer) -> tuple[Tensor, Tensor] | None:
        """Return the penalty and its part of the objective, then drop the rows.

        Under DDP this is a collective operation; a rank may have no rows.
        """
        has_rows = trainer.strategy.reduce_boolean_decision(self._has_rows, all=False)
        sound = trainer.strategy.reduce_boolean_decision(not self._problem, all=True)
        if self._problem and not self._warned:
            self._warned = True
            rank_zero_warn(f"val_penalty is not logged: {self._problem}")
        self._has_rows, self._problem = False, ""
        values = self._rows.compute().reshape(-1) if has_rows and sound else None  # one feature is squeezed
        self._rows.reset()
        return None if values is None else (self._penalty.total(values), self._penalty.objective(values))


def batch_part(batch: Any, part: BatchPart, argument: str) -> Tensor:
    """Return a part of a batch.

    Args:
        batch: A batch of the data loader, on the module's device.
        part: An index into a tuple batch, a key of a dict batch (or the name of an attribute), or a
            function of the batch.
        argument: The argument's name in errors.

    Raises:
        InputError: If the batch has no such part, or if it is not a tensor.
    """
    found = _find(batch, part, argument)
    if not isinstance(found, Tensor):
        raise InputError(f"{argument} = {part!r}: expected a tensor there, found {type(found).__name__}.")
    return found


def _find(batch: Any, part: BatchPart, argument: str) -> Any:
    if callable(part):
        return part(batch)
    if isinstance(batch, Mapping):
        if part in batch:
            return batch[part]
        known = did_you_mean(str(part), map(str, batch))
        raise InputError(f"{argument} = {part!r}: the batch is a dict without this key; {known}")
    if isinstance(part, int) and isinstance(batch, Sequence):
        if -len(batch) <= part < len(batch):
            return batch[part]
        raise InputError(f"{argument} = {part}: the batch has parts 0 to {len(batch) - 1}.")
    if isinstance(part, str) and hasattr(batch, part):
        return getattr(batch, part)
    raise InputError(
        f"{argument} = {part!r}: not found in a batch of type {type(batch).__name__}. Give a key of a "
        "dict batch, an index into a tuple batch, or a function of the batch."
    )


def _related_rows(inputs: Tensor | None, given: BatchPart | None, preds: Tensor) -> Tensor:
    """Return the inputs as ``(N, D)``, on the device of the predictions, for the same rows."""
    source = "the first tensor passed to the module" if given is None else f"inputs = {given!r}"
    if inputs is None:
        raise InputError(f"the module was not called with a tensor of rows. {_INPUTS_HINT}")
    inputs = inputs.unsqueeze(1) if inputs.ndim == 1 else inputs
    if inputs.ndim != 2:
        shape = tuple(inputs.shape)
        raise InputError(f"{source} has shape {shape}: expected rows of columns, (N, D). {_INPUTS_HINT}")
    if len(inputs) != len(preds):
        rows = f"{len(inputs)} rows and the prediction {len(preds)}"
        raise InputError(f"{source} has {rows}: expected the same rows. {_INPUTS_HINT}")
    return inputs.to(preds.device)
