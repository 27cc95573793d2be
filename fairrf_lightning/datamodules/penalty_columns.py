"""Columns that the penalty sees and the model does not: estimated membership, and clusters (KSMOTE)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from fairrf_lightning.errors import InputError, check_at_least
from fairrf_lightning.messages import install_command

if TYPE_CHECKING:
    from fairrf_lightning.datamodules.base import TabularDataModule
    from fairrf_lightning.membership import Membership

_SURVEYS = (".csv", ".csv.gz", ".parquet")
_NAMES = {"survey": "survey without labels", "correlations": "YAML file", "column": "column"}
_STATISTICS = (".yaml", ".yml")


class PenaltyColumns(NamedTuple):
    """Columns of all rows that the penalty sees and the model does not.

    Args:
        matrix: The columns, ``(N, C)``.
        columns: Column numbers of each feature.
    """

    matrix: Tensor
    columns: dict[str, list[int]]

    @classmethod
    def indicators(cls, name: str, ids: Tensor, number: int) -> PenaltyColumns:
        """Return one 0/1 column per id; id -1 gives zeros."""
        return cls((ids[:, None] == torch.arange(number)).float(), {name: list(range(number))})


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
            from fairrf_lightning.membership import find_membership  # noqa: PLC0415 - it imports the data modules

            if not Path(membership).is_file():
                raise InputError(f"membership: there is no file {membership}.")
            option = "survey" if is_survey(membership) else "proxies"
            return cls(find_membership(data, **{option: membership})[0])
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


def _probabilities(name: str, table: pd.DataFrame) -> Tensor:
    values = pd.to_numeric(table[name].astype("object"), errors="coerce").to_numpy(dtype="float32")
    found = torch.from_numpy(values)
    if not bool(((found >= 0) & (found <= 1)).all()):
        raise InputError(f"membership: column '{name}' has cells that are no probabilities, from 0 to 1.")
    return found


@dataclass(frozen=True)
class KSMOTE:
    """Pseudo groups in place of S, and classes balanced within each (Yan, Kao and Ferrara, CIKM 2020).

    K-means clusters the training rows by their inputs. In each cluster SMOTE adds points between
    neighbours of the smaller class until both classes have the same number of rows. The cluster of a row
    is the related feature of the penalty; it is not an input of the model.

    Args:
        n_clusters: Number of pseudo groups.
        neighbours: Number of nearest neighbours of a row, of its class and cluster, that SMOTE draws points
            towards.
    """

    n_clusters: int = 4
    neighbours: int = 5

    def __post_init__(self) -> None:
        check_at_least(2, n_clusters=self.n_clusters)
        check_at_least(1, neighbours=self.neighbours)

    def cluster(self, inputs: Tensor, train: Tensor, seed: int) -> Tensor:
        """Return the cluster of each row, ``(N,)``.

        Args:
            inputs: Encoded inputs of all rows, ``(N, D)``.
            train: Indices of the training rows, which the clusters are fitted to.
            seed: Seed of the clustering.
        """
        _require("sklearn")
        from sklearn.cluster import KMeans  # noqa: PLC0415 - an optional dependency
        from threadpoolctl import threadpool_limits  # noqa: PLC0415 - scikit-learn's own

        if len(train) < self.n_clusters:
            raise InputError(f"{len(train)} training rows are too few for {self.n_clusters} clusters.")
        with threadpool_limits(1):  # the order of sums depends on the threads, and clusters could differ
            kmeans = KMeans(self.n_clusters, n_init=4, random_state=seed).fit(inputs[train].numpy())
            clusters = kmeans.predict(inputs.numpy())
        return torch.from_numpy(clusters.astype(np.int64))

    def balance(self, rows: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
        """Return the rows and, after those of each cluster, its synthetic ones.

        Args:
            rows: ``inputs`` ``(N, D)``, ``target`` ``(N,)`` and ``related`` ``(N, n_clusters)``, the
                cluster of each row as 0/1 columns.
            seed: Seed of the synthetic rows.
        """
        _require("imblearn")
        clusters = rows["related"].argmax(dim=1)
        parts = []
        for cluster in sorted(set(clusters.tolist())):
            chosen = clusters == cluster
            inputs, target = self._oversample(rows["inputs"][chosen], rows["target"][chosen], seed)
            related = rows["related"][chosen][:1].expand(len(target), -1)
            parts.append({"inputs": inputs, "target": target, "related": related})
        balanced = {key: torch.cat([part[key] for part in parts]) for key in ("inputs", "target", "related")}
        rank_zero_info(
            f"KSMOTE: {len(clusters):,} training rows in {len(parts)} clusters, "
            f"{len(balanced['target']) - len(clusters):,} synthetic rows added to balance the classes."
        )
        return balanced

    def _oversample(self, inputs: Tensor, target: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        from imblearn.over_sampling import SMOTE, RandomOverSampler  # noqa: PLC0415 - an optional dependency
        from threadpoolctl import threadpool_limits  # noqa: PLC0415 - scikit-learn's own

        smaller = int(min(target.sum(), (1 - target).sum()))
        if smaller == 0:
            return inputs, target  # there is no row to start from
        if smaller == 1:
            sampler = RandomOverSampler(random_state=seed)  # a single row has no neighbour: repeat it
        else:
            sampler = SMOTE(k_neighbors=min(self.neighbours, smaller - 1), random_state=seed)
        with threadpool_limits(1):  # which of two equally near neighbours comes first depends on the threads
            new_inputs, new_target = sampler.fit_resample(inputs.numpy(), target.numpy())
        return torch.from_numpy(new_inputs), torch.from_numpy(new_target)


def _require(package: str) -> None:
    if find_spec(package) is None:
        raise InputError(f"KSMOTE: the package {package} is not installed; run: {install_command('methods')}")
