"""Related columns that travel with the batches of a module that must not see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor
from torch.utils.data import Dataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.pin_memory import pin_memory

from fairrf_lightning.callbacks.dropin.wrapped_method import WrappedMethod
from fairrf_lightning.errors import InputError

_HOOK = "_on_before_batch_transfer"  # Lightning calls it on each batch, before any hook of the user


@dataclass
class RelatedItem:
    """An item of a data set, with its related columns and, if they have some, their names."""

    item: Any
    related: Any
    names: list[str] | None = None

    def __getitem__(self, key: object) -> Any:
        raise InputError(
            "a collate_fn got the items of WithRelated: give the loader collate_fn=WithRelated.collate(own)."
        )


@dataclass
class RelatedBatch:
    """A batch of a loader, with the related columns of its rows.

    ``LambdaUpdateCallback`` hands ``batch`` on and keeps ``related``, a tensor ``(N, C)``.
    """

    batch: Any
    related: Any
    names: list[str] | None = None

    def __getitem__(self, key: object) -> Any:
        raise InputError(
            "this batch has related columns that nobody took out: train it with "
            "LambdaUpdateCallback(penalty=...), or take batch.batch."
        )

    def pin_memory(self) -> RelatedBatch:
        """Return the batch in pinned memory, for ``DataLoader(pin_memory=True)``."""
        batch, related = pin_memory(self.batch), pin_memory(self.related)  # type: ignore[no-untyped-call]
        return RelatedBatch(batch, related, self.names)


class WithRelated(Dataset[RelatedItem]):
    """A data set with related columns that the module does not see.

    ``LambdaUpdateCallback`` takes the columns out of each batch before the module, its hooks and other
    callbacks receive it, so a strict ``x, y = batch`` stays as it is.

    Args:
        dataset: The data set, with a length; its items stay as they are.
        columns: The related columns in the order of the data set: a tensor, an array or a DataFrame of
            numbers, ``(N, C)`` or ``(N,)``. ``RelatedFeaturePenalty({"age": [0]})`` counts in it; the
            columns of a DataFrame also have names: ``{"age": "age"}``.

    >>> rows = [(torch.zeros(3), 0), (torch.ones(3), 1)]
    >>> WithRelated(rows, torch.tensor([[30.0], [40.0]]))[1].related
    tensor([40.])
    """

    def __init__(self, dataset: Dataset[Any] | Sequence[Any], columns: Any) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise InputError(
                f"WithRelated({type(dataset).__name__}): expected a data set with a length and items; yield "
                "RelatedItem(item, related) from an iterable data set of your own."
            )
        self.dataset = dataset
        self.columns = _numbers(columns)
        self.related_names = [str(name) for name in columns] if hasattr(columns, "columns") else None
        if len(self.columns) != len(dataset):
            found = f"{len(dataset)} rows, the related columns have {len(self.columns)}"
            raise InputError(f"the data set has {found}.")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> RelatedItem:
        return RelatedItem(self.dataset[index], self.columns[index], self.related_names)

    def __getitems__(self, indices: list[int]) -> list[RelatedItem]:
        """Return several items, in the data set's own way if it has one."""
        fetch = getattr(self.dataset, "__getitems__", None)
        items = fetch(indices) if fetch else [self.dataset[index] for index in indices]
        return [
            RelatedItem(item, self.columns[i], self.related_names)
            for item, i in zip(items, indices, strict=True)
        ]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":  # while it is unpickled there is no data set yet
            raise AttributeError(name)
        return getattr(self.dataset, name)

    @staticmethod
    def collate(collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[RelatedItem]], RelatedBatch]:
        """Return a ``collate_fn`` for a loader whose project has one of its own."""
        return partial(_collate, collate_fn)


def _collate(collate_fn: Callable[[list[Any]], Any], items: list[RelatedItem]) -> RelatedBatch:
    batch = collate_fn([part.item for part in items])
    return RelatedBatch(batch, default_collate([part.related for part in items]), items[0].names)


def _collate_default(items: list[RelatedItem], *, collate_fn_map: Any = None) -> RelatedBatch:
    del collate_fn_map
    return _collate(default_collate, items)


default_collate_fn_map[RelatedItem] = _collate_default


def _numbers(columns: Any) -> Tensor:
    if isinstance(columns, Tensor):
        return columns
    try:
        return torch.from_numpy(np.array(columns))
    except (TypeError, ValueError):
        raise InputError("the related columns are not all numbers: encode them before.") from None


class SideChannel:
    """Takes the related columns out of each batch of a module; several callbacks share one.

    Args:
        pl_module: The module whose batches are changed.

    Attributes:
        related: The related columns of the current batch; ``None`` if it has no side channel.
        names: Their names, if they have some.
    """

    def __init__(self, pl_module: LightningModule) -> None:
        self.related: Any = None
        self.names: list[str] | None = None
        self._users = 0
        self._wrapped = WrappedMethod(pl_module, _HOOK, self._take)

    def _take(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        batch, *rest = args
        self.related = self.names = None
        if isinstance(batch, RelatedBatch):
            batch, self.related, self.names = batch.batch, batch.related, batch.names
        return method(batch, *rest, **kwargs)

    @classmethod
    def of(cls, pl_module: LightningModule) -> SideChannel:
        """Return the module's side channel; :meth:`release` it as often."""
        wrapped = vars(pl_module).get(_HOOK)
        while isinstance(wrapped, WrappedMethod):
            channel = getattr(wrapped.around, "__self__", None)
            if isinstance(channel, cls):
                break
            wrapped = wrapped.inner
        else:
            channel = cls(pl_module)
        channel._users += 1
        return channel

    def release(self) -> None:
        """Restore the module, if no other callback uses the channel."""
        self._users -= 1
        if not self._users:
            self.related = None
            self._wrapped.remove()
