"""Membership as a column that only the penalty sees: from a survey, published statistics or a column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from fairrf_lightning.errors import InputError

if TYPE_CHECKING:
    from fairrf_lightning.datamodules.base import TabularDataModule
    from fairrf_lightning.membership import Membership

_SURVEYS = (".csv", ".csv.gz", ".parquet")
_NAMES = {"survey": "survey without labels", "correlations": "YAML file", "column": "column"}
_STATISTICS = (".yaml", ".yml")


def is_column(membership: str) -> bool:
    """Return whether the option names a column of the table, not a file.

    >>> is_column("p_female"), is_column("survey.csv")
    (True, False)
    """
    return not membership.lower().endswith((*_SURVEYS, *_STATISTICS))


def is_survey(membership: str) -> bool:
    """Return whether the option names a file of a survey."""
    return membership.lower().endswith(_SURVEYS)


@dataclass(frozen=True)
class MembershipColumns:
    """Membership of all rows, scaled so that its covariance with a prediction is the gap of that.

    The gap is dDP, or dEO for membership among the positives and their covariance.

    Args:
        estimate: Estimate of membership, which holds no answer of a survey; ``None`` for a column.
        column: Column of the table that holds ``P(S = 1 | x)``.
        share: Mean of that column on the training rows.
    """

    estimate: Membership | None
    column: str = ""
    share: float = 0.5

    @classmethod
    def make(cls, membership: str, data: TabularDataModule, train: pd.DataFrame) -> MembershipColumns:
        """Estimate membership.

        Args:
            membership: The option: a file or a column.
            data: The data, with encoder and rows.
            train: The training rows of the table.

        Raises:
            InputError: If the file or the column cannot be used.
        """
        if not is_column(membership):
            return cls(_estimate(membership, data))
        share = float(_probabilities(membership, train).mean())
        if not 0 < share < 1:
            raise InputError(
                f"membership: column '{membership}' is {share:g} in all rows; it shows no groups."
            )
        return cls(None, membership, share)

    @classmethod
    def from_state(cls, state: Mapping[str, Any] | None) -> MembershipColumns | None:
        """Restore what :meth:`state` returned."""
        from fairrf_lightning.membership import Membership  # noqa: PLC0415 - it imports the data modules

        if state is None:
            return None
        if state["estimate"] is None:
            return cls(None, state["column"], state["share"])
        tensors = {k: torch.tensor(v) if isinstance(v, list) else v for k, v in state["estimate"].items()}
        return cls(Membership.from_state(tensors))

    def state(self) -> dict[str, Any]:
        """Return plain values, which can be compared, for the checkpoint."""
        found = None
        if self.estimate is not None:
            values = self.estimate.state_dict().items()
            found = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in values}
        return {"estimate": found, "column": self.column, "share": self.share}

    @property
    def source(self) -> str:
        """``survey``, ``correlations`` or ``column``."""
        return "column" if self.estimate is None else self.estimate.source

    def matrix(self, inputs: Tensor, table: pd.DataFrame, *, positives: bool = False) -> Tensor:
        """Return ``(g - q) / (q (1 - q))`` of all rows: one column for two groups, one per group for more.

        Args:
            inputs: Encoded inputs.
            table: The table, with the column of probabilities.
            positives: Whether g is ``P(S | x, y = 1)`` and q the share among the positives.

        Raises:
            InputError: If membership among the positives is not known.
        """
        if positives:
            self.check_positives()
        if self.estimate is None:
            values, share = _probabilities(self.column, table), torch.tensor([1 - self.share, self.share])
        else:
            share = self.estimate.label_share if positives else self.estimate.share
            values = self.estimate(inputs, torch.ones(len(inputs)) if positives else None)
        if values.ndim == 1:
            values, share = values[:, None], share[1:]
        return ((values - share) / (share * (1 - share))).float()

    def check_positives(self) -> None:
        """Raise if membership among the positives is not known."""
        if self.estimate is None or not self.estimate.knows_labels:
            raise InputError(
                f"--model.given positives: membership from a {_NAMES[self.source]} says nothing about the "
                "positives alone.\nGive a survey that has labels of both classes as --data.membership, or "
                "leave out --model.given."
            )


def _estimate(path: str, data: TabularDataModule) -> Membership:
    from fairrf_lightning.membership import find_membership  # noqa: PLC0415 - it imports the data modules

    if not Path(path).is_file():
        raise InputError(f"membership: there is no file {path}.")
    found, _ = find_membership(data, survey=path) if is_survey(path) else find_membership(data, proxies=path)
    return found


def _probabilities(name: str, table: pd.DataFrame) -> Tensor:
    values = pd.to_numeric(table[name].astype("object"), errors="coerce").to_numpy(dtype="float32")
    found = torch.from_numpy(values)
    if not bool(((found >= 0) & (found <= 1)).all()):
        raise InputError(f"membership: column '{name}' has cells that are no probabilities, from 0 to 1.")
    return found
