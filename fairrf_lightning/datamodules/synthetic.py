"""Synthetic people with a known ground truth; needs no file and no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError, check_at_least

_Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

_CASES = ((0, 0), (0, 1), (1, 0), (1, 1))  # S and label
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

    - Origin: drawn from :class:`Population`, which documents the distribution and computes the best
      possible predictions; no real person is in it.
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


@dataclass(frozen=True)
class Population:
    """People with a binary S, a label that is biased by S, and features that follow both.

    S is 1 with probability ``group_share``. The label y is 1 with probability ``base_rate`` over all
    people, and with a probability that is larger by ``bias`` where S = 1 than where S = 0. A feature
    is ``x = u s + v t + w e``, where s and t are S and y standardised and e is normal noise of its
    own; u, v and w follow from the wanted correlations ``rho(x, S)`` and ``rho(x, y)`` and from
    ``rho(S, y)``, so that x has mean 0 and variance 1 and the correlations hold exactly. Not all
    triples of correlations exist: Theorem 1 of the paper says which. Finally a share
    ``label_noise`` of the labels, drawn at random, is flipped.

    Args:
        correlations: ``rho(x, S)`` and ``rho(x, y)`` of each feature, y before the noise.
        base_rate: Share of positive labels, before the noise.
        bias: Difference of the base rates, the demographic parity gap of the labels before the noise.
        group_share: Share of the people with S = 1.
        label_noise: Share of the labels that is flipped.
    """

    correlations: Mapping[str, tuple[float, float]]
    base_rate: float = 0.4
    bias: float = 0.3
    group_share: float = 0.5
    label_noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("base_rate", "group_share"):
            if not 0 < (share := getattr(self, name)) < 1:
                raise InputError(f"{name} must be a share between 0 and 1, not {share}")
        if not 0 <= self.label_noise < 0.5:
            raise InputError(f"label_noise must be at least 0 and less than 0.5, not {self.label_noise}")
        if not all(0 < rate < 1 for rate in self.base_rates):
            low, high = self.base_rates
            raise InputError(
                f"bias = {self.bias} gives the groups base rates of {low:.3g} and {high:.3g}: both must "
                "lie between 0 and 1; take a bias nearer to 0"
            )
        for name in self.correlations:
            self._loadings(name)

    @property
    def base_rates(self) -> tuple[float, float]:
        """Probability of a positive label where S is 0 and where S is 1, before the noise."""
        low = self.base_rate - self.group_share * self.bias
        return low, low + self.bias

    @property
    def label_correlation(self) -> float:
        """Correlation of S and the label, before the noise."""
        return self.bias * float(np.sqrt(_variance(self.group_share) / _variance(self.base_rate)))

    def sample(self, num_rows: int, seed: int) -> tuple[pd.DataFrame, _Array, _Array]:
        """Draw people: their features, S and labels."""
        draw = np.random.default_rng(seed)
        groups = (draw.random(num_rows) < self.group_share).astype(float)
        labels = (draw.random(num_rows) < np.take(self.base_rates, groups.astype(int))).astype(float)
        features = {}
        for name in self.correlations:
            noise = draw.standard_normal(num_rows)
            features[name] = self._mean(name, groups, labels) + self._loadings(name)[2] * noise
        flipped = draw.random(num_rows) < self.label_noise
        return pd.DataFrame(features), groups, np.where(flipped, 1 - labels, labels)

    def probabilities(self, features: pd.DataFrame) -> _Array:
        """Return the probability of a positive label given the features: no model does better."""
        weights = np.zeros((len(features), 2))
        log_likelihood = np.stack([self._log_likelihood(features, *case) for case in _CASES])
        likelihood = np.exp(log_likelihood - log_likelihood.max(axis=0))
        for (group, label), likely in zip(_CASES, likelihood, strict=True):
            share = self.group_share if group else 1 - self.group_share
            rate = self.base_rates[group] if label else 1 - self.base_rates[group]
            weights[:, label] += share * rate * likely
        clean: _Array = weights[:, 1] / weights.sum(axis=1)
        return self.label_noise + (1 - 2 * self.label_noise) * clean

    def _log_likelihood(self, features: pd.DataFrame, group: int, label: int) -> _Array:
        total = np.zeros(len(features))
        for name in self.correlations:
            distance = features[name].to_numpy() - self._mean(name, np.array(group), np.array(label))
            total -= (distance / self._loadings(name)[2]) ** 2 / 2
        return total

    def _mean(self, name: str, groups: _Array, labels: _Array) -> _Array:
        u, v, _ = self._loadings(name)
        s = (groups - self.group_share) / np.sqrt(_variance(self.group_share))
        t = (labels - self.base_rate) / np.sqrt(_variance(self.base_rate))
        mean: _Array = u * s + v * t
        return mean

    def _loadings(self, name: str) -> tuple[float, float, float]:
        with_s, with_y = self.correlations[name]
        between = self.label_correlation
        v = (with_y - with_s * between) / (1 - between**2)
        u = with_s - v * between
        rest = 1 - u * with_s - v * with_y
        if not rest > 0:
            raise InputError(
                f"correlations: '{name}' cannot have correlations of {with_s} with S and {with_y} with the "
                f"label, whose own correlation is {between:.3f} (Theorem 1 of the paper); take them nearer "
                "to 0, or change bias"
            )
        return u, v, float(np.sqrt(rest))


def _variance(share: float) -> float:
    return share * (1 - share)
