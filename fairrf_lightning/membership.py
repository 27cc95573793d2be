"""Membership: an estimate of the probability of each group given the inputs, without S in training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import pandas as pd
import torch
from torch import Tensor, nn

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.columns import check_column
from fairrf_lightning.datamodules.sensitive import read_proxies
from fairrf_lightning.errors import InputError, check_choice
from fairrf_lightning.functional import fit_logistic, ridge_membership
from fairrf_lightning.messages import percent
from fairrf_lightning.survey import Survey

Source: TypeAlias = Literal["correlations", "survey", "column"]

FOLDS = 5
_BUFFERS = ("coefficients", "share", "label_coefficients", "label_share")
_STRENGTHS = torch.logspace(-3, 0, 7, dtype=torch.float64).tolist()
_MAX_EXPLAINED = 1.02  # of the variance of S; above 1 by the rounding of published correlations
_MAX_BEYOND = 0.1  # correlation with a direction of the columns, beyond its standard deviation


class Membership(nn.Module):
    """Probability of each group given the inputs, ``g_k(x) = P(S = k | x)``.

    Make one with :meth:`from_survey`, :meth:`from_correlations` or :meth:`from_column`. It holds fitted
    coefficients only, never an answer of a survey.

    Args:
        coefficients: Weights and, last, the intercept, of each fold and group: ``(F, G, D + 1)``, with one
            "group" for two groups.
        share: Share of each group ``(G,)``.
        source: Source of the estimate.
        group_names: Names of the groups; with two groups the second one is S = 1.
        label_coefficients: The same with the label as an additional input, ``(F, G, D + 2)``.
        label_share: Share of each group among the positives, ``(G,)``.
        digest: Digest of the survey that this was fitted on.
    """

    coefficients: Tensor
    label_coefficients: Tensor
    share: Tensor
    label_share: Tensor

    def __init__(
        self,
        coefficients: Tensor,
        share: Tensor,
        source: Source,
        group_names: tuple[str, ...] = ("S = 0", "S = 1"),
        *,
        label_coefficients: Tensor | None = None,
        label_share: Tensor | None = None,
        digest: str = "",
    ) -> None:
        super().__init__()
        check_choice("source", source, get_args(Source))
        self.source: Source = source
        self.group_names = group_names
        self.digest = digest
        found = (coefficients, share, label_coefficients, label_share)
        for name, value in zip(_BUFFERS, found, strict=True):
            self.register_buffer(name, torch.empty(0) if value is None else value.float())

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self.group_names)

    @property
    def n_features(self) -> int:
        """Number of input columns."""
        return self.coefficients.shape[-1] - 1

    @property
    def knows_labels(self) -> bool:
        """Whether ``P(S | x, y)`` is known, which equal opportunity needs."""
        return bool(self.label_coefficients.numel())

    def forward(self, inputs: Tensor, target: Tensor | None = None) -> Tensor:
        """Return ``P(S = 1 | x)``, ``(N,)``, for two groups and ``P(S = k | x)``, ``(N, G)``, for more.

        With the true or supposed classes ``target``, it is ``P(S | x, y)``.

        Raises:
            InputError: If the number of columns differs, or labels are given but were not surveyed.
        """
        return self._reduced(self._of_folds(inputs, target).mean(0))

    def probabilities(
        self,
        inputs: Tensor,
        target: Tensor | None = None,
        *,
        rows: Tensor | None = None,
        survey: Survey | None = None,
    ) -> Tensor:
        """Return the probability of each group, ``(N, G)``, also for two groups.

        With the survey and row numbers in the table, ``(N,)``, surveyed people among the rows are predicted
        by models that have not seen their answers.
        """
        values = self._of_folds(inputs, target)
        found = values.mean(0)
        folds = None if survey is None else self._folds(survey)
        if rows is not None and folds is not None and survey is not None and survey.rows is not None:
            places = torch.from_numpy(pd.Index(survey.rows.numpy()).get_indexer(pd.Index(rows.numpy())))
            seen = (places >= 0).nonzero().flatten()
            found[seen] = values[folds[places[seen]], seen]
        return by_group(self._reduced(found))

    def cross_fitted(self, survey: Survey, target: Tensor | None = None) -> Tensor:
        """Return membership of the surveyed people, as :meth:`forward`, by models without their answers.

        Correlations, columns and models of another survey have not seen any answer.
        """
        values, folds = self._of_folds(survey.inputs, target), self._folds(survey)
        own = values.mean(0) if folds is None else values[folds, torch.arange(len(survey))]
        return self._reduced(own)

    def _folds(self, survey: Survey) -> Tensor | None:
        """Return the folds of the surveyed people; ``None`` if this was not fitted on their answers."""
        names = self.group_names
        if self.digest != survey.digest or set(names) != set(survey.group_names):
            return None
        ids = torch.tensor([names.index(name) for name in survey.group_names])  # another order, if any
        return folds_of(ids[survey.groups.long()])

    def _reduced(self, values: Tensor) -> Tensor:
        return values.squeeze(-1) if self.num_groups == 2 else values / values.sum(-1, keepdim=True)

    def _of_folds(self, inputs: Tensor, target: Tensor | None) -> Tensor:
        """Return the values of each fold's model, ``(F, N, G)`` or ``(F, N, 1)``."""
        if inputs.shape[-1] != self.n_features:
            raise InputError(
                f"inputs have {inputs.shape[-1]} columns, but membership was estimated for {self.n_features}."
            )
        coefficients = self.coefficients
        if target is not None:
            if not self.knows_labels:
                raise InputError(
                    f"equal opportunity needs membership given the label, which does not follow from the "
                    f"{self.source}: give a survey with labels."
                )
            coefficients = self.label_coefficients
            inputs = torch.cat([inputs, target.to(inputs).unsqueeze(-1)], -1)
        design = nn.functional.pad(inputs.to(coefficients), (0, 1), value=1.0)
        values = design @ coefficients.mT
        if self.source == "survey":
            return values.sigmoid()
        # A linear predictor of S may leave [0, 1]; limited to it, its covariance with S would be too small.
        return values.clamp(0, 1) if self.source == "column" else values

    @classmethod
    def from_survey(cls, survey: Survey, data: TabularDataModule) -> Membership:
        """Estimate membership from a survey, by logistic regression on all inputs.

        The strength of the L2 penalty is chosen by the log loss of five folds. The estimate is the mean of
        the models that leave out one fold each, so that :meth:`cross_fitted` needs no further fit. The shares
        are those of the training rows of the data.

        Raises:
            InputError: If the survey's inputs are not those of the data.
        """
        if survey.inputs.shape[-1] != data.n_features:
            raise InputError(
                f"survey: its inputs have {survey.inputs.shape[-1]} columns, but the data have "
                f"{data.n_features}. Read the survey with Survey.read(path, data), which encodes it."
            )
        found = cls(
            _fit_folds(survey, survey.inputs),
            torch.full((survey.num_groups,), torch.nan),
            "survey",
            survey.group_names,
            label_coefficients=_fit_with_labels(survey, data),
            digest=survey.digest,
        )
        found.set_shares(data)
        return found

    @classmethod
    def from_correlations(
        cls, share: float, correlations: Mapping[str, float], data: TabularDataModule, group: str = "S = 1"
    ) -> Membership:
        """Estimate membership from published statistics: the best linear predictor of S.

        Args:
            share: Share of people with S = 1.
            correlations: Correlation of S with encoded columns, such as ``age`` and ``relationship=Wife``.
            data: The data; its training rows give the correlations of the columns with each other.
            group: Name of the group with S = 1.

        Raises:
            InputError: If a column does not exist, or no S can have such a share or such correlations.
        """
        if not 0 < share < 1 or not correlations:
            found = f"share = {share}, {len(correlations)} correlations"
            raise InputError(f"{found}: expected a number between 0 and 1, and one correlation or more.")
        names = data.feature_names
        for name, value in correlations.items():
            check_column("correlations", name, names)
            if not -1 <= value <= 1:
                raise InputError(f"correlations: {name}: {value}: expected a correlation, from -1 to 1.")
        columns = torch.tensor([names.index(name) for name in correlations])
        mean, covariance = _train_moments(data, columns)
        spread = covariance.diagonal().clamp(min=0).sqrt()
        varies = spread > 1e-6
        spread = spread.where(varies, 1.0)
        corr = covariance / spread / spread[:, None]
        known = torch.tensor(list(correlations.values()), dtype=torch.float64).where(varies, 0.0)
        weights = ridge_membership(share, known, corr)
        _check_possible(weights, known, corr, share)
        coefficients = torch.zeros(1, 1, len(names) + 1, dtype=torch.float64)
        coefficients[0, 0, columns] = weights / spread
        coefficients[0, 0, -1] = share - (weights * mean / spread).sum()
        shares = torch.tensor([1 - share, share])
        return cls(coefficients, shares, "correlations", (f"not {group}", group))

    @classmethod
    def from_column(cls, name: str, data: TabularDataModule, group: str = "S = 1") -> Membership:
        """Take membership from a column of the table that holds ``P(S = 1 | x)``, such as BISG computes.

        Args:
            name: A numeric input column.
            data: The data; the encoding is undone.
            group: Name of the group with S = 1.

        Raises:
            InputError: If there is no such numeric column, or its values are not probabilities.
        """
        check_column("membership", name, data.encoder.owners)
        if name not in data.encoder.scales:
            raise InputError(f"membership: column '{name}' holds categories; expected probabilities.")
        mean, spread = data.encoder.scales[name]
        place = data.encoder.owners[name][0]
        coefficients = torch.zeros(1, 1, data.n_features + 1, dtype=torch.float64)
        coefficients[0, 0, place], coefficients[0, 0, -1] = spread, mean
        if not 0 < mean < 1:
            raise InputError(f"membership: column '{name}' has the mean {mean:g}; expected probabilities.")
        found = cls(coefficients, torch.tensor([torch.nan] * 2), "column", (f"not {group}", group))
        found.set_shares(data)
        return found

    @torch.no_grad()
    def set_shares(self, data: TabularDataModule) -> None:
        """Set the shares of the groups to those that membership has on the training rows."""
        total = positive = torch.zeros(self.num_groups, dtype=torch.float64)
        for batch in data.rows_of("train"):
            total = total + self.probabilities(batch["inputs"]).double().sum(0)
            if self.knows_labels:
                inputs = batch["inputs"][batch["target"] > 0.5]
                positive = positive + self.probabilities(inputs, torch.ones(len(inputs))).double().sum(0)
        self.share = (total / total.sum()).to(self.share)
        if self.knows_labels:
            self.label_share = (positive / positive.sum()).to(self.share)

    def get_extra_state(self) -> dict[str, Any]:
        """Return source and names, part of the ``state_dict``."""
        return {"source": self.source, "group_names": list(self.group_names), "digest": self.digest}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore source and names."""
        check_choice("source", state["source"], get_args(Source))
        self.source, self.group_names = state["source"], tuple(map(str, state["group_names"]))
        self.digest = str(state["digest"])

    @classmethod
    def from_state(cls, state: Mapping[str, Any], prefix: str = "") -> Membership:
        """Make the module of a ``state_dict``.

        Raises:
            InputError: If the state is damaged.
        """
        found = {name: state[prefix + name] for name in _BUFFERS}
        extra = state[f"{prefix}_extra_state"]
        num_groups = len(extra["group_names"])
        width = 1 if num_groups == 2 else num_groups
        labelled = found["label_coefficients"]
        fits = [found["coefficients"]] + ([labelled] if labelled.numel() else [])
        if any(fit.ndim != 3 or fit.shape[1] != width for fit in fits) or len(found["share"]) != num_groups:
            raise InputError(
                "the checkpoint's estimate of membership is damaged: its shapes do not match its groups. "
                "Restore it from a copy, or correct again."
            )
        names, digest = tuple(extra["group_names"]), str(extra["digest"])
        return cls(**found, source=extra["source"], group_names=names, digest=digest)


def find_membership(
    data: TabularDataModule,
    *,
    survey: str | Path | Survey | None = None,
    proxies: str | Path | None = None,
    column: str | None = None,
    sensitive: str | None = None,
    group: str | None = None,
) -> tuple[Membership, Survey | None]:
    """Return membership by the source that is given, and the survey if it is one.

    The options are those of :func:`~fairrf_lightning.correct.correct`.

    Raises:
        InputError: If not exactly one source is given, or it cannot be used.
    """
    if sum(part is not None for part in (survey, proxies, column)) != 1:
        raise InputError("give one of --survey, --proxies and --column: the knowledge about S.")
    if survey is not None:
        if not isinstance(survey, Survey):
            survey = Survey.read(survey, data, sensitive=sensitive, group=group)
        return Membership.from_survey(survey, data), survey
    if proxies is not None:
        known = read_proxies(proxies, data.feature_names)
        return Membership.from_correlations(known.mean_share, known.correlations, data, known.group), None
    return Membership.from_column(str(column), data, group or "S = 1"), None


def by_group(membership: Tensor) -> Tensor:
    """Return membership in each group, ``(N, G)``, of ``P(S = 1 | x)``, ``(N,)``, or of ``(N, G)`` itself."""
    return torch.stack([1 - membership, membership], -1) if membership.ndim == 1 else membership


def folds_of(groups: Tensor) -> Tensor:
    """Return the fold of each person, 0 to 4: random, with each group spread evenly."""
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(0))
    by_answer = order[groups[order].argsort(stable=True)]
    folds = torch.empty(len(groups), dtype=torch.int64)
    folds[by_answer] = torch.arange(len(groups)) % FOLDS
    return folds


def _fit_with_labels(survey: Survey, data: TabularDataModule) -> Tensor | None:
    """Return the coefficients with the label as an input; ``None`` unless there are people of both classes.

    Positives matter most here and may be few: both classes have the same total weight, and columns are
    standardised, so that the penalty does not shrink rare categories more than others.
    """
    if survey.target is None:
        return None
    positive = survey.target > 0.5
    share = float(positive.double().mean())
    if share in (0.0, 1.0):
        return None
    _, covariance = _train_moments(data, torch.arange(data.n_features))
    spread = covariance.diagonal().clamp(min=0).sqrt()
    scale = torch.cat([spread.where(spread > 1e-3, 1.0), torch.tensor([0.5], dtype=torch.float64)])
    inputs = torch.cat([survey.inputs.double(), positive.double()[:, None]], -1) / scale
    weights = torch.where(positive, 0.5 / share, 0.5 / (1 - share))
    found = _fit_folds(survey, inputs, weights)
    return torch.cat([found[..., :-1] / scale, found[..., -1:]], -1)


def _fit_folds(survey: Survey, inputs: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the coefficients of each fold's model, ``(F, G, D + 1)``; ``(F, 1, D + 1)`` for two groups."""
    folds = folds_of(survey.groups)
    wanted = [1] if survey.num_groups == 2 else list(range(survey.num_groups))
    weights = torch.ones(len(survey), dtype=torch.float64) if weights is None else weights
    fits = [_fit_one(survey, inputs, survey.groups == group, folds, weights) for group in wanted]
    return torch.stack(fits, 1)


def _fit_one(survey: Survey, inputs: Tensor, answers: Tensor, folds: Tensor, weights: Tensor) -> Tensor:
    """Return the coefficients of each fold's model for one group, ``(F, D + 1)``, with the best strength."""
    out = folds == torch.arange(FOLDS)[:, None]
    best, least, fitted = torch.empty(0), torch.inf, None
    for strength in _STRENGTHS:
        fitted = fit_logistic(
            inputs,
            answers,
            strength,
            weights=weights * ~out,
            randomized=survey.randomized,
            num_groups=survey.num_groups,
            start=fitted,
        )
        logits = inputs.double() @ fitted[:, :-1].T + fitted[:, -1]
        member = logits[torch.arange(len(folds)), folds].sigmoid()
        reported = (1 - survey.randomized) * member + survey.randomized / survey.num_groups
        loss = float(nn.functional.binary_cross_entropy(reported, answers.double(), weights))
        if not best.numel() or loss < least:
            best, least = fitted, loss
    return best


def _train_moments(data: TabularDataModule, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of encoded columns on the training rows, in float64."""
    count, total = 0, torch.zeros(len(columns), dtype=torch.float64)
    squares = torch.zeros(len(columns), len(columns), dtype=torch.float64)
    for batch in data.rows_of("train"):
        values = batch["inputs"][:, columns].double()
        count, total, squares = count + len(values), total + values.sum(0), squares + values.T @ values
    mean = total / count
    return mean, squares / count - mean[:, None] * mean


def _check_possible(weights: Tensor, known: Tensor, corr: Tensor, share: float) -> None:
    advice = "\nTake all of them, and the share, from the same source."
    explained = float(weights @ corr @ weights) / (share * (1 - share))
    if explained > _MAX_EXPLAINED:
        raise InputError(
            f"correlations: no S can have them: together they explain {percent(explained, 0)} of its "
            f"variance on the training rows.{advice}"
        )
    # A weighted sum of columns that hardly varies cannot have a covariance with S.
    variances, directions = torch.linalg.eigh(corr)
    beyond = (directions.T @ known).abs() - variances.clamp(min=0).sqrt()
    if float(beyond.max()) > _MAX_BEYOND:
        raise InputError(f"correlations: no S can have them: they contradict each other.{advice}")
