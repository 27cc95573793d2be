"""Synthetic people with a known ground truth; needs no file and no network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.options import check_at_least
from fairrf_lightning.datamodules.population import Population
from fairrf_lightning.errors import InputError

_CORRELATIONS = {
    "height": (0.6, 0.2),
    "income": (0.5, 0.4),
    "hours": (0.4, 0.3),
    "skill": (0.0, 0.5),
    "practice": (0.0, 0.3),
    "lottery": (0.0, 0.0),
}


class SyntheticDataModule(TabularDataModule):
    """Synthetic: people whose label is biased by a hidden group, with features correlated as you like.

    Datasheet:

    - Origin: drawn from :class:`~fairrf_lightning.datamodules.population.Population`, which documents
      the distribution and knows the best possible predictions; nobody real is in it.
    - Rows: 20,000 by default. The same options give the same table.
    - Label: ``label``, 40 % by default: 25 % of group a and 55 % of group b.
    - S: ``group``, a and b.
    - Related features: by default all that are correlated with S, ``height``, ``income``, ``hours``.
    - Known flaws: real data are not this tidy. Given S and label the features are independent and
      normal; there are no categories and no missing values.

    Args:
        n_rows: Number of people.
        correlations: Name of each feature, with its correlation with S (group b being 1) and with the
            label; by default three that are related to S and three that are not.
        base_rate: Share of positive labels.
        bias: How much larger the share of positive labels is in group b than in group a.
        group_share: Share of group b.
        label_noise: Share of the labels that is flipped at random.
        table_seed: Seed of the people; ``seed`` is that of the split.
        kwargs: Options of :class:`TabularDataModule`.
    """

    name = "synthetic"
    target = "label"
    sensitive = "group"
    table_options = (
        "n_rows",
        "correlations",
        "base_rate",
        "bias",
        "group_share",
        "label_noise",
        "table_seed",
    )

    def __init__(
        self,
        *,
        n_rows: int = 20_000,
        correlations: dict[str, tuple[float, float]] | None = None,
        base_rate: float = 0.4,
        bias: float = 0.3,
        group_share: float = 0.5,
        label_noise: float = 0.0,
        table_seed: int = 0,
        **kwargs: Any,
    ) -> None:
        check_at_least(1, n_rows=n_rows)
        check_at_least(0, table_seed=table_seed)
        self.n_rows = n_rows
        self.correlations = dict(_CORRELATIONS if correlations is None else correlations)
        self.base_rate = base_rate
        self.bias = bias
        self.group_share = group_share
        self.label_noise = label_noise
        self.table_seed = table_seed
        if taken := {self.sensitive, self.target} & self.correlations.keys():
            raise InputError(f"correlations: {', '.join(sorted(taken))} cannot be the name of a feature")
        self.columns = (*self.population.correlations, self.sensitive)
        self.default_related = tuple(name for name, (with_s, _) in self.correlations.items() if with_s)
        super().__init__(**kwargs)

    @property
    def population(self) -> Population:
        """The distribution that the people are drawn from: the ground truth."""
        return Population(self.correlations, self.base_rate, self.bias, self.group_share, self.label_noise)

    def read(self) -> pd.DataFrame:
        """Draw the people."""
        features, groups, labels = self.population.sample(self.n_rows, self.table_seed)
        names = pd.Categorical(np.where(groups == 1, "b", "a"), categories=["a", "b"])
        features[self.sensitive] = names
        features[self.target] = labels.astype(int)
        return features
