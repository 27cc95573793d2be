"""Matches recorded predictions with the related columns and labels of the same rows."""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor

from fairrf_lightning.callbacks.dropin.batch_parts import (
    BatchPart,
    batch_part,
    comes_from,
    described,
    likely_inputs,
    named_columns,
)
from fairrf_lightning.callbacks.dropin.prediction import Recorded
from fairrf_lightning.callbacks.dropin.side_channel import SideChannel
from fairrf_lightning.errors import InputError
from fairrf_lightning.penalty import RelatedFeaturePenalty


class RowMatcher:
    """Finds the related columns and labels of the recorded predictions.

    Related columns come from the batch: from ``inputs``, from its side channel, or from the tensor that the
    module was called with, which must be part of the batch.

    Args:
        penalty: The penalty, which knows the related columns.
        module: Name of the submodule or method that predicts, for errors.
        inputs: Where the batch has the related columns.
        target: Where the batch has the labels.

    Attributes:
        batch: The current batch.
    """

    def __init__(
        self,
        penalty: RelatedFeaturePenalty,
        module: str | None,
        inputs: BatchPart | None,
        target: BatchPart | None,
    ) -> None:
        self.inputs = inputs
        self.target = target
        self.batch: Any = None
        self._channel: SideChannel | None = None
        self._names: list[str] | None = None
        self._penalty = penalty
        self._module = module
        self._from_batch = False

    def start(self, names: list[str] | None = None) -> None:
        """Check again, at the start of a fit, where the related columns come from.

        Args:
            names: Names of the columns that the data module declares, if it does.
        """
        self._from_batch = False
        self._names = names

    def open_channel(self, pl_module: LightningModule) -> None:
        """Take related columns that a data set has added out of the module's batches."""
        self.close_channel()
        self._channel = SideChannel.of(pl_module)

    def close_channel(self) -> None:
        """Restore the module's batches."""
        if self._channel is not None:
            self._channel.release()
            self._channel = None

    def match(self, calls: list[Recorded]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return predictions, inputs and labels of the same rows.

        Raises:
            InputError: If there are no related columns, or if they have other rows.
        """
        preds = calls[0].preds if len(calls) == 1 else torch.cat([call.preds for call in calls])
        _check_shape(preds)
        inputs = self._checked(self._inputs(calls), preds, len(calls))
        target = None if self.target is None else batch_part(self.batch, self.target, "target")
        return preds, inputs, target

    def _inputs(self, calls: list[Recorded]) -> Tensor:
        related, names = self._declared()
        if self._penalty.column_names:
            self._name_columns(names)
        if related is not None:
            return related
        return self._passed(calls) if self.inputs is None else batch_part(self.batch, self.inputs, "inputs")

    def _declared(self) -> tuple[Tensor | None, list[str] | None]:
        """Return the columns of the side channel or of a batch with a key for each, and their names."""
        if self.inputs is None and self._channel is not None and self._channel.related is not None:
            return self._channel.related, self._channel.names
        wanted = self._penalty.column_names
        found = named_columns(self.batch, self.inputs, wanted) if wanted else None
        return found, self._names if found is None else wanted

    def _name_columns(self, names: list[str] | None) -> None:
        if names is None:
            raise InputError(
                f"related columns by name ({', '.join(self._penalty.column_names)}): expected a batch with a "
                "key for each, WithRelated(dataset, DataFrame), or a data module with feature_names. Give "
                f"column numbers instead. The batch has: {described(self.batch)}."
            )
        if names != self._penalty.named:
            self._penalty.name_columns(names)

    def _passed(self, calls: list[Recorded]) -> Tensor:
        passed = [call.inputs for call in calls if call.inputs is not None]
        if len(passed) != len(calls) or len({part.shape[1:] for part in passed}) != 1:
            raise InputError(f"{self._called} was not called with a tensor of rows. {self._fix(calls)}")
        if not self._from_batch:
            for part in passed:
                if not comes_from(part, self.batch):
                    raise InputError(
                        f"{self._called} was called with a tensor {tuple(part.shape)} that is not part of "
                        f"the batch, so column numbers such as those of {self._penalty.feature_names[0]!r} "
                        f"would mean hidden units. {self._fix(calls)}"
                    )
            self._from_batch = True
        return passed[0] if len(passed) == 1 else torch.cat(passed)

    @property
    def _called(self) -> str:
        return "self(...)" if self._module is None else f"module = {self._module!r}"

    def _fix(self, calls: list[Recorded]) -> str:
        """Return the argument to add, and the tensors of the batch."""
        rows = sum(len(call.preds) for call in calls)
        likely = likely_inputs(self.batch, rows, self._penalty.num_columns)
        advice = f"add inputs={likely}" if likely else "add inputs= with the part that has these columns"
        return (
            f"Related columns come from the batch: {advice}, or a function of the batch. The batch has: "
            f"{described(self.batch)}."
        )

    def _checked(self, inputs: Tensor, preds: Tensor, calls: int) -> Tensor:
        """Return the inputs as ``(N, D)``, on the device of the predictions."""
        source = "the tensor passed to the module" if self.inputs is None else f"inputs = {self.inputs!r}"
        inputs = inputs.unsqueeze(1) if inputs.ndim == 1 else inputs
        if inputs.ndim != 2:
            raise InputError(
                f"{source} has shape {tuple(inputs.shape)}: expected rows of columns, (N, D). The batch "
                f"has: {described(self.batch)}; choose one by inputs=."
            )
        if len(inputs) != len(preds):
            several = f" of {calls} calls" if calls > 1 else ""
            raise InputError(
                f"{source} has {len(inputs)} rows and the prediction {len(preds)}{several}: expected the "
                "same rows. Let inputs= be a function of the batch that returns them. The batch has: "
                f"{described(self.batch)}."
            )
        self._penalty.check_inputs(inputs)
        return inputs.to(preds.device)


def _check_shape(preds: Tensor) -> None:
    if preds.ndim > 2:
        raise InputError(
            f"predictions of shape {tuple(preds.shape)}: expected (N,), (N, 1) or (N, P). Set module= to the "
            "submodule whose output is the logits of the batch, or select a part of it: prediction=0 is "
            "its first column."
        )
