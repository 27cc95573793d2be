"""KSMOTE: clusters take the place of the groups, and SMOTE balances the classes within each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from fairrf_lightning.errors import InputError, check_at_least
from fairrf_lightning.messages import install_command


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
