"""Gaps of decisions on rows without S, estimated with a survey."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.penalty_columns import is_survey
from fairrf_lightning.errors import InputError
from fairrf_lightning.functional import PoweredRates, fit_logistic, powered_rates
from fairrf_lightning.membership import Membership, by_group
from fairrf_lightning.messages import first_upper
from fairrf_lightning.metrics.counts import GAPS, Gap
from fairrf_lightning.metrics.intervals import normal_quantile, student_quantile
from fairrf_lightning.survey import Survey

NOTHING_CHANGED = "no gap detected: nothing was changed"
ACT_ABOVE = 0.02  # smaller gaps are left alone
_ERRORS = 1.64  # as are gaps below this many standard errors
_GAPS_TRIED = 1001  # as lower limits
_SLACK = 0.5  # standard errors by which a difference that seems smaller may still be the gap
_MIN_ERROR = 1e-9  # of decisions that are the same for all


@dataclass(frozen=True)
class GapEstimate:
    """An estimated gap with its interval."""

    value: float
    low: float
    high: float
    standard_error: float  # of the difference behind it

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def check_probabilities(name: str, values: Tensor) -> None:
    """Raise unless values lie between 0 and 1, without missing ones."""
    if not bool(((values >= 0) & (values <= 1)).all()):
        raise InputError(f"{name}: expected probabilities, from 0 to 1, without missing values.")


@dataclass(frozen=True)
class ScoredRows:
    """Rows without S, with the scores of a model.

    Args:
        scores: Probabilities of the positive class, or decisions 0 or 1, ``(N,)``.
        inputs: Encoded inputs ``(N, D)``.
        target: True classes ``(N,)``; without them only dDP is estimated.
        rows: Row numbers in the table ``(N,)``, so that surveyed people among them are recognised.
    """

    scores: Tensor
    inputs: Tensor
    target: Tensor | None = None
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        parts = (self.scores, self.inputs, self.target, self.rows)
        if len({len(part) for part in parts if part is not None}) > 1:
            raise InputError("rows: expected as many scores, inputs, labels and row numbers.")
        check_probabilities("scores", self.scores)

    @classmethod
    def of(
        cls, data: TabularDataModule, part: str, score: Callable[[Mapping[str, Tensor]], Tensor]
    ) -> ScoredRows:
        """Return the rows of ``train``, ``val`` or ``test``, with a function that scores a batch of them."""
        batches = [(batch, score(batch)) for batch in data.rows_of(part)]
        inputs, target, rows = (
            torch.cat([batch[key] for batch, _ in batches]) for key in ("inputs", "target", "row")
        )
        return cls(torch.cat([scores for _, scores in batches]), inputs, target, rows)

    @property
    def decisions(self) -> Tensor:
        """Decisions at 0.5, ``(N,)``."""
        return self.scores >= 0.5

    def measured(self, gaps: Mapping[str, GapEstimate]) -> Measured:
        """Return accuracy and share of positive decisions next to gaps that were estimated."""
        right = torch.tensor(torch.nan) if self.target is None else self.decisions == (self.target > 0.5)
        return Measured(float(right.double().mean()), float(self.decisions.double().mean()), gaps)


@dataclass(frozen=True)
class Measured:
    """Accuracy, share of positive decisions and estimated gaps on rows without S.

    Args:
        accuracy: Share of right decisions; NaN without labels.
        positive_share: Share of positive decisions.
        gaps: Estimate of each gap by its key, of :func:`estimate_gaps`; empty without a survey, because
            published statistics see only a part of a gap.
    """

    accuracy: float
    positive_share: float
    gaps: Mapping[str, GapEstimate]


@torch.no_grad()
def estimate_gaps(
    pool: ScoredRows,
    survey: Survey,
    survey_decisions: Tensor,
    membership: Membership,
    *,
    level: float = 0.95,
) -> dict[str, GapEstimate]:
    """Estimate the gaps of decisions in the population that the rows and the survey were drawn from.

    The estimates are prediction powered (see :mod:`fairrf_lightning.functional.membership`) and account for
    randomised answers.

    Args:
        pool: Rows without S.
        survey: The surveyed people.
        survey_decisions: The model's decisions on them, ``(n,)``.
        membership: Membership; from this survey or from elsewhere.
        level: Confidence level of the intervals.

    Returns:
        An estimate for each key of :data:`GAPS`; only for ``dp_gap`` if labels are missing, or if the survey
        has too few people of a class and group.

    Raises:
        InputError: If the survey and the membership have different groups.
    """
    if survey.group_names != membership.group_names:
        raise InputError(
            f"survey and membership have different groups: {', '.join(survey.group_names)}, and "
            f"{', '.join(membership.group_names)}."
        )
    gaps = [gap for gap in GAPS.values() if pool.target is not None or not gap.needs_labels]
    return {
        gap.key: _estimate(list(_rates(gap, pool, survey, survey_decisions, membership)), level)
        for gap in gaps
        if survey.can_estimate(gap)
    }


@torch.no_grad()
def linear_gap(data: TabularDataModule, survey: str | Path | Survey, *, gap: str = "dp_gap") -> GapEstimate:
    """Estimate the gap that a logistic regression without a penalty has, before other models are trained.

    Raises:
        InputError: If the survey cannot be used, or has no labels and the gap needs them.
    """
    if not isinstance(survey, Survey):
        survey = Survey.read(survey, data)
    if not survey.can_estimate(GAPS[gap]):
        raise InputError(
            f"survey: without labels, or with few people of a class and group, there is no {GAPS[gap].label}."
        )
    train = list(data.rows_of("train"))
    inputs, target = (torch.cat([batch[key] for batch in train]) for key in ("inputs", "target"))
    weights = fit_logistic(inputs, target, 1.0)

    def decide(inputs: Tensor) -> Tensor:
        return inputs.double() @ weights[:-1] + weights[-1] >= 0

    pool = ScoredRows.of(data, "val", lambda batch: decide(batch["inputs"]))
    return estimate_gaps(pool, survey, decide(survey.inputs), Membership.from_survey(survey, data))[gap]


def no_gap_lines(data: TabularDataModule, act_above: float, gap: str = "dp_gap") -> list[str]:
    """Return why the survey that the penalty uses gives no reason to train.

    The result is empty if the survey shows a gap. It is also empty without a survey: nothing is known then.
    """
    if data.membership is None or not is_survey(data.membership):
        return []
    found = linear_gap(data, data.membership, gap=gap)
    if is_detected(found, act_above):
        return []
    rule, model = detection_rule(act_above), "A logistic regression without a penalty"
    return [
        f"{first_upper(NOTHING_CHANGED)}.",
        f"{model} has an estimated {GAPS[gap].label} of {found} on the validation rows; {rule}.",
        "A larger survey narrows the interval; `fit` trains a single model all the same.",
    ]


def is_detected(found: GapEstimate, act_above: float = ACT_ABOVE) -> bool:
    """Return whether an estimated gap is large enough, and certain enough, to act on."""
    return found.value > max(_ERRORS * found.standard_error, act_above)


def detection_rule(act_above: float) -> str:
    """Return the condition of :func:`is_detected` as text."""
    return f"expected more than max({_ERRORS} standard errors, {act_above:g})"


def _rates(
    gap: Gap, pool: ScoredRows, survey: Survey, survey_decisions: Tensor, membership: Membership
) -> Iterator[PoweredRates]:
    """Yield the rates of each condition of a gap."""
    given_target = gap.needs_labels and membership.knows_labels
    # A surveyed person among the rows must not be predicted by a model that has seen the answer.
    values = membership.probabilities(
        pool.inputs, pool.target if given_target else None, rows=pool.rows, survey=survey
    ).double()
    fitted = by_group(membership.cross_fitted(survey, survey.target if given_target else None)).double()
    for classes in gap.classes:
        masks = {}
        if gap.needs_labels and pool.target is not None and survey.target is not None:
            masks = {
                "mask": (pool.target > 0.5) == bool(classes[0]),
                "survey_mask": (survey.target > 0.5) == bool(classes[0]),
            }
        yield powered_rates(
            pool.decisions,
            values,
            survey_decisions,
            fitted,
            survey.indicators,
            num_models=len(membership.coefficients),
            **masks,
        )


def _estimate(conditions: list[PoweredRates], level: float) -> GapEstimate:
    """Return the largest difference over conditions and pairs of groups, with its interval."""
    pairs = list(combinations(range(len(conditions[0].rates)), 2))
    found = torch.tensor(
        [rates.difference(*pair) for rates in conditions for pair in pairs], dtype=torch.float64
    )
    size, error, freedom = found[:, 0].abs(), found[:, 1], found[:, 2]
    low, high = gap_limits(size, error * student_quantile(level, freedom) / normal_quantile(level), level)
    return GapEstimate(float(size.max()), low, high, float(error[size.argmax()]))


def gap_limits(size: Tensor, error: Tensor, level: float) -> tuple[float, float]:
    """Return the limits of the largest of several absolute differences, given their standard errors.

    The upper limit is that of the signed differences. It can hardly miss a gap below two standard errors,
    nor one that several differences share. So the lower limit has the rest of the error probability: it is
    the smallest gap with which sizes like these are not too rare.
    """
    z, error = normal_quantile(level), error.clamp(min=_MIN_ERROR)
    gaps = size.max() * torch.linspace(0, 1, _GAPS_TRIED, dtype=size.dtype).unsqueeze(-1)
    # A difference that looks clearly smaller than the gap is taken to be smaller.
    true = gaps.minimum(size + _SLACK * error) / error
    too_large = gaps / error + ((size - gaps) / error).amax(-1, keepdim=True)
    above = torch.special.ndtr(true - too_large) + torch.special.ndtr(-true - too_large)
    too_small = (gaps / error - z).clamp(min=0)
    below = torch.special.ndtr(too_small - true) - torch.special.ndtr(-too_small - true)
    possible = above.sum(-1) + below.prod(-1) >= 1 - level
    return float(gaps[possible].min()), float((size + z * error).max().clamp(max=1))
