"""Membership as a column that only the penalty sees: from a survey, published statistics or a column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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

    It holds coefficients, never an answer of a survey. Plain values, for the checkpoint.

    Args:
        source: ``survey``, ``correlations`` or ``column``.
        share: Share of each group.
        group_names: Names of the groups.
        coefficients: Those of :class:`~fairrf_lightning.membership.Membership`, as nested lists.
        column: Column of the table that holds the probabilities.
        label_coefficients: Coefficients with the label as an additional input; empty without labels.
        label_share: Share of each group among the positives.
    """

    source: Literal["survey", "correlations", "column"]
    share: list[float]
    group_names: list[str]
    coefficients: list[Any]
    column: str = ""
    label_coefficients: list[Any] = field(default_factory=list)
    label_share: list[float] = field(default_factory=list)

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
        if is_column(membership):
            share = float(_probabilities(membership, train).mean())
            if not 0 < share < 1:
                raise InputError(
                    f"membership: column '{membership}' is {share:g} in all rows; it shows no groups."
                )
            return cls("column", [1 - share, share], ["S = 0", "S = 1"], [], membership)
        found = _estimate(membership, data)
        return cls(
            found.source,
            found.share.tolist(),
            list(found.group_names),
            found.coefficients.tolist(),
            label_coefficients=found.label_coefficients.tolist(),
            label_share=found.label_share.tolist(),
        )

    @classmethod
    def from_state(cls, state: Mapping[str, Any] | None) -> MembershipColumns | None:
        """Restore what :meth:`state` returned."""
        return None if state is None else cls(**state)

    def state(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

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
        share = torch.tensor(self.label_share if positives else self.share)
        if self.source == "column":
            values = _probabilities(self.column, table)
        else:
            values = self._membership()(inputs, torch.ones(len(inputs)) if positives else None)
        if values.ndim == 1:
            values, share = values[:, None], share[1:]
        return ((values - share) / (share * (1 - share))).float()

    def check_positives(self) -> None:
        """Raise if membership among the positives is not known."""
        if not self.label_share:
            raise InputError(
                f"--model.given positives: membership from a {_NAMES[self.source]} says nothing about the "
                "positives alone.\nGive a survey that has labels of both classes as --data.membership, or "
                "leave out --model.given."
            )

    def _membership(self) -> Membership:
        from fairrf_lightning.membership import Membership  # noqa: PLC0415 - it imports the data modules

        return Membership(
            torch.tensor(self.coefficients),
            torch.tensor(self.share),
            self.source,
            tuple(self.group_names),
            label_coefficients=torch.tensor(self.label_coefficients),
            label_share=torch.tensor(self.label_share),
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
