"""Shows where someone else's module predicts and what its batches hold, with the callbacks to paste."""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from fairrf_lightning.callbacks.dropin.batch_parts import comes_from, tensors_of
from fairrf_lightning.callbacks.dropin.prediction import watch_calls
from fairrf_lightning.callbacks.dropin.side_channel import RelatedBatch
from fairrf_lightning.errors import InputError
from fairrf_lightning.messages import quiet_lightning

_MAX_WIDTH = 2  # of an output that is a prediction


@dataclass(frozen=True)
class ModuleOutput:
    """A tensor that a submodule returned in one training step.

    Attributes:
        module: Name of the submodule; ``None`` for the LightningModule's ``forward``.
        prediction: Path of the tensor in the output; ``None`` if it is the whole output.
        shape: Its shape.
        has_grad: Whether it requires grad, as a prediction must.
        of_batch: Whether the submodule was called with a tensor of the batch.
    """

    module: str | None
    prediction: str | None
    shape: tuple[int, ...]
    has_grad: bool
    of_batch: bool


@dataclass(frozen=True)
class Inspection:
    """One training step: the outputs in the order in which they were made, and the parts of the batch.

    Attributes:
        outputs: The tensors that submodules returned.
        parts: Path and shape of each tensor of the batch.
    """

    outputs: list[ModuleOutput]
    parts: dict[str, tuple[int, ...]]

    @property
    def suggested(self) -> ModuleOutput | None:
        """The likely prediction: the last output with the rows of the batch.

        Outputs of one or two columns come first: a wider one may be a hidden layer.
        """
        rows = {shape[0] for shape in self.parts.values() if shape}
        likely = [o for o in self.outputs if o.has_grad and o.shape[:1] and o.shape[0] in rows]
        likely = [o for o in likely if len(o.shape) <= 2]
        narrow = [o for o in likely if _width(o) <= _MAX_WIDTH]
        chosen = narrow or likely
        return chosen[-1] if chosen else None

    @property
    def code(self) -> str:
        """The two callbacks, ready to paste; the related columns are to be replaced."""
        found = self.suggested
        if found is None:
            return "# No output has the batch's rows, (N,) or (N, P): choose module= and prediction=."
        rows = found.shape[0]
        wide = [path for path, shape in self.parts.items() if len(shape) == 2 and shape[0] == rows]
        arguments = ["penalty=penalty"]
        arguments += [] if found.module is None else [f'module="{found.module}"']
        arguments += [] if found.prediction is None else [f'prediction="{found.prediction}"']
        if not found.of_batch and wide:
            arguments.append(f'inputs="{wide[0]}"')
        output, note = "", ""
        if _width(found) > 1:
            output = ', output="softmax"'
            note = f'# softmax: {_width(found)} classes; "sigmoid" for labels, "regression" for numbers\n'
        return (
            "from fairrf_lightning import RelatedFeaturePenalty\n"
            "from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback\n\n"
            f"{note}"
            f'penalty = RelatedFeaturePenalty({{"age": [0]}}, eta=0.6{output})  # replace by your columns\n'
            f"callbacks = [PretrainCallback(epochs=1), LambdaUpdateCallback({', '.join(arguments)})]"
        )

    def __str__(self) -> str:
        outputs = [
            f"  {'forward of the module' if o.module is None else o.module}"
            f"{'' if o.prediction is None else ' -> ' + o.prediction}: {o.shape}"
            f"{'' if o.has_grad else ', without grad'}"
            for o in self.outputs
        ]
        parts = [f"  {path or 'the batch itself'}: {shape}" for path, shape in self.parts.items()]
        texts = ["Outputs of one training step:", *outputs, "", "Parts of the batch:", *parts]
        return "\n".join([*texts, "", "Callbacks:", self.code])


def _width(output: ModuleOutput) -> int:
    return output.shape[1] if len(output.shape) == 2 else 1


def inspect(module: LightningModule, batch: Any) -> Inspection:
    """Print the outputs of submodules, the parts of a batch, and the callbacks to paste.

    A copy of the module trains one step on the batch; the module itself does not change.

    Args:
        module: A LightningModule.
        batch: One batch of its training loader: ``next(iter(loader))``.

    Returns:
        The same facts, for a program.

    Raises:
        InputError: If the module cannot be copied.
    """
    try:
        copy = deepcopy(module)
    except Exception as error:
        raise InputError(
            f"{type(module).__name__} cannot be copied ({error}): inspect needs a copy."
        ) from error
    batch = batch.batch if isinstance(batch, RelatedBatch) else batch
    seen = _Outputs()
    with quiet_lightning(), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        trainer = Trainer(
            accelerator="cpu",
            max_steps=1,
            limit_val_batches=0,
            callbacks=[seen],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(copy, DataLoader([batch], batch_size=None, collate_fn=_same))  # type: ignore[arg-type]
    parts = {path: tuple(tensor.shape) for path, tensor in tensors_of(batch)}
    found = Inspection(seen.outputs, parts)
    print(found)  # noqa: T201 - the purpose of this function
    return found


def _same(batch: Any) -> Any:
    return batch


class _Outputs(Callback):
    """Records the outputs of all submodules in a training step."""

    def __init__(self) -> None:
        self.outputs: list[ModuleOutput] = []
        self._batch: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, _ in pl_module.named_modules():
            watch_calls(pl_module, name or None, partial(self._record, name or None))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._batch = batch

    def _record(self, name: str | None, args: Any, kwargs: Any, output: Any, *, direct: bool = False) -> None:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        of_batch = bool(tensors) and comes_from(tensors[0], self._batch)
        made = [
            ModuleOutput(name, path or None, tuple(part.shape), part.requires_grad, of_batch)
            for path, part in tensors_of(output)
        ]
        if not direct and self.outputs[-len(made) :] == made:  # the same call, seen in forward
            return
        self.outputs += made
