"""Finds the related columns and the labels in a batch whose layout is the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from fairrf_lightning.errors import InputError, did_you_mean

# The function comes before the string: jsonargparse takes the first that fits, and an import path is both.
BatchPart: TypeAlias = int | Callable[[Any], Tensor] | str

_ADVICE = (
    "Say where the batch has the related columns: inputs='metadata' (a key), inputs=2 (an index), or a "
    "function of the batch."
)


def batch_part(batch: Any, part: BatchPart, argument: str) -> Tensor:
    """Return the part of a batch that ``part`` names.

    Args:
        batch: What the data loader gave, on the module's device.
        part: An index into a tuple batch, a key of a dict batch (or the name of an attribute), or a
            function of the batch.
        argument: The argument's name in messages.
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
        f"{argument} = {part!r}: not to be found in a batch of type {type(batch).__name__}. Give a key of a "
        "dict batch, an index into a tuple batch, or a function of the batch."
    )


def related_rows(inputs: Tensor | None, given: BatchPart | None, preds: Tensor) -> Tensor:
    """Return the inputs as ``(N, D)``, on the device of the predictions, whose rows they have to be."""
    source = "the first tensor handed to the module" if given is None else f"inputs = {given!r}"
    if inputs is None:
        raise InputError(f"the module was not called with a tensor of rows. {_ADVICE}")
    inputs = inputs.unsqueeze(1) if inputs.ndim == 1 else inputs
    if inputs.ndim != 2:
        shape = tuple(inputs.shape)
        raise InputError(f"{source} has shape {shape}: expected rows of columns, (N, D). {_ADVICE}")
    if len(inputs) != len(preds):
        rows = f"{len(inputs)} rows and the prediction {len(preds)}"
        raise InputError(f"{source} has {rows}: expected the same rows. {_ADVICE}")
    return inputs.to(preds.device)


def check_batch_size(preds: Tensor, world_size: int) -> None:
    """Raise :class:`InputError` if a training batch has one row: a covariance needs two."""
    if len(preds) * world_size < 2:
        raise InputError(
            "a batch of one row: a covariance needs two. Take a larger batch_size; if this is the last batch "
            "of an epoch, DataLoader(drop_last=True) leaves it out."
        )
