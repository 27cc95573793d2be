"""Parts of a batch, or of a module's output, by picklable paths such as ``"0.payload.amount"``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

from torch import Tensor, promote_types, stack

from fairrf_lightning.errors import InputError, did_you_mean

# The function comes before the string: jsonargparse takes the first that fits, and an import path is both.
BatchPart: TypeAlias = int | Callable[[Any], Any] | str

_MAX_DEPTH = 6  # of a batch that is searched for tensors
_MAX_TENSORS = 12  # in an error


def batch_part(batch: Any, part: BatchPart, argument: str, of: str = "the batch") -> Tensor:
    """Return a tensor of a batch or of an output.

    Args:
        batch: A batch of the data loader, or what a module returned.
        part: An index, a key, the name of an attribute, or a path of these (``"0.payload.amount"``). The
            index of a tensor is one of its columns. Or a function of the batch.
        argument: The argument's name in errors.
        of: The words for ``batch`` in errors.

    Raises:
        InputError: If there is no such part, or if it is not a tensor.
    """
    given = f"{argument} = {part!r}"
    found = part(batch) if callable(part) else _follow(batch, str(part), given, of)
    if not isinstance(found, Tensor):
        raise InputError(
            f"{given}: expected a tensor there, found {type(found).__name__}. "
            f"{of.capitalize()} has: {described(batch)}."
        )
    return found


def named_columns(batch: Any, part: BatchPart | None, names: list[str]) -> Tensor | None:
    """Return columns of a batch that has a key for each, ``(N, C)``; ``None`` if it has no such keys.

    Args:
        batch: A batch of the data loader.
        part: Where the batch has the columns; ``None``: the batch itself.
        names: The columns.

    Raises:
        InputError: If one of several columns is missing, or if a column is not a tensor of rows.
    """
    found = batch
    if part is not None:
        found = (
            part(batch) if callable(part) else _follow(batch, str(part), f"inputs = {part!r}", "the batch")
        )
    if not isinstance(found, Mapping) or (part is None and not any(name in found for name in names)):
        return None
    columns = [_column(found, name) for name in names]
    if len({len(column) for column in columns}) > 1:
        raise InputError(f"the related columns have different numbers of rows: {described(found)}.")
    dtype = columns[0].dtype
    for column in columns:
        dtype = promote_types(dtype, column.dtype)
    return stack([column.to(dtype) for column in columns], dim=1)


def _column(batch: Mapping[str, Any], name: str) -> Tensor:
    if name not in batch:
        raise InputError(f"the batch has no related column {name!r}; {did_you_mean(name, map(str, batch))}.")
    column = batch[name]
    if isinstance(column, Tensor) and (column.ndim == 1 or (column.ndim == 2 and column.shape[1] == 1)):
        return column.flatten()
    kind = f"a tensor {tuple(column.shape)}" if isinstance(column, Tensor) else type(column).__name__
    raise InputError(f"the related column {name!r} of the batch is {kind}: expected a tensor (N,) or (N, 1).")


def _follow(value: Any, path: str, given: str, of: str) -> Any:
    if isinstance(value, Mapping) and path in value:  # a key may have a dot
        return value[path]
    done: list[str] = []
    for step in path.split("."):
        try:
            value = _step(value, step)
        except LookupError:
            where = f"{'.'.join(done)!r} of {of}" if done else of
            raise InputError(f"{given}: {where} has no {step!r}; {_known(value, step)}.") from None
        done.append(step)
    return value


def _step(value: Any, step: str) -> Any:
    index = int(step) if step.removeprefix("-").isdigit() else None
    if isinstance(value, Tensor) and (index is None or value.ndim < 2):
        raise LookupError
    if isinstance(value, Tensor):
        return value[:, index]
    if isinstance(value, Mapping):
        return value[step] if step in value else value[index]
    if index is not None and isinstance(value, Sequence) and not isinstance(value, str):
        return value[index]
    try:
        return getattr(value, step)
    except AttributeError:
        raise LookupError from None


def _known(value: Any, step: str) -> str:
    if isinstance(value, Mapping):
        return did_you_mean(step, map(str, value))
    if isinstance(value, Tensor):
        return f"it is a tensor {tuple(value.shape)}"
    if isinstance(value, Sequence):
        return f"it has parts 0 to {len(value) - 1}"
    return f"it is of type {type(value).__name__}"


def tensors_of(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a batch or of an output, with their paths."""
    if isinstance(value, Tensor):
        yield path, value
    elif depth < _MAX_DEPTH:
        for name, part in _children(value):
            yield from tensors_of(part, f"{path}.{name}" if path else name, depth + 1)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(name), part) for name, part in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from ((str(number), part) for number, part in enumerate(value))
    elif is_dataclass(value):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))
    elif not isinstance(value, type) and hasattr(value, "__dict__"):
        yield from ((name, part) for name, part in vars(value).items() if not name.startswith("_"))


def described(batch: Any) -> str:
    """Return the tensors of a batch with their shapes, for an error.

    >>> import torch
    >>> described({"x": torch.zeros(4, 2), "info": [torch.zeros(4)]})
    "'x' (4, 2), 'info.0' (4,)"
    """
    found = [f"{_literal(path)} {tuple(tensor.shape)}" for path, tensor in tensors_of(batch)]
    more = f" and {len(found) - _MAX_TENSORS} more" if len(found) > _MAX_TENSORS else ""
    return (", ".join(found[:_MAX_TENSORS]) or "no tensor") + more


def _literal(path: str) -> str:
    return path if path.isdigit() else repr(path)


def likely_inputs(batch: Any, rows: int, columns: int) -> str | None:
    """Return the path, as Python code, of the first tensor with enough rows and columns; else ``None``."""
    for path, tensor in tensors_of(batch):
        if path and tensor.ndim == 2 and len(tensor) == rows and tensor.shape[1] >= columns:
            return _literal(path)
    return None


def comes_from(tensor: Tensor, batch: Any) -> bool:
    """Return whether a tensor is one of the batch's, a view of one, or a copy with the same values."""
    parts = [part for _, part in tensors_of(batch)]
    if any(part is tensor or _storage(part) == _storage(tensor) for part in parts):
        return True
    # A hidden layer may start as the identity: equal values of a layer with weights prove nothing.
    return not tensor.requires_grad and any(_equal(part, tensor) for part in parts)


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):  # a tensor without storage, such as one of torch.func
        return id(tensor)


def _equal(part: Tensor, tensor: Tensor) -> bool:
    if part.shape != tensor.shape:
        return False
    part = part.to(tensor.device)
    return part.equal(tensor.to(part.dtype)) and tensor.equal(part.to(tensor.dtype))
