"""Corrects the decisions of any classifier towards a fairness goal, with membership in place of S."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from fairrf_lightning.errors import InputError, check_at_least, did_you_mean
from fairrf_lightning.estimate import (
    ACT_ABOVE,
    GapEstimate,
    ScoredRows,
    check_probabilities,
    estimate_gaps,
    is_detected,
)
from fairrf_lightning.functional import (
    PathPoint,
    corrected_scores,
    correction_costs,
    correction_path,
    fit_logistic,
)
from fairrf_lightning.membership import Membership, by_group
from fairrf_lightning.metrics.counts import GAPS, Gap
from fairrf_lightning.metrics.decisions import decision_summary, has_collapsed
from fairrf_lightning.survey import Survey

StoppedBy: TypeAlias = Literal["goal", "budget", "collapse", "end"]

_STEPS = 5000  # of the path from no correction to equal rates: each changes 1 / 5000 of the decisions or one
_ROUNDING = 1e-12
_GOALS = {"dp": "dp_gap", "eo": "eo_gap"}


@dataclass(frozen=True)
class Goal:
    """A fairness goal.

    Args:
        gap: Key of the gap: ``dp_gap`` or ``eo_gap``.
        limit: Largest gap that is wanted; 0 asks for the smallest one within the accuracy budget.
        max_accuracy_loss: The accuracy budget.
        act_above: With a survey, act only if the estimated gap exceeds this and 1.64 standard errors.

    >>> Goal.parse("dp=0.10")
    Goal(gap='dp_gap', limit=0.1, max_accuracy_loss=0.005, act_above=0.02)
    >>> Goal.parse(None).limit
    0.0
    """

    gap: str = "dp_gap"
    limit: float = 0.0
    max_accuracy_loss: float = 0.005
    act_above: float = ACT_ABOVE

    def __post_init__(self) -> None:
        if self.gap not in _GOALS.values() or not 0 <= self.limit < 1:
            raise InputError(
                f"goal {self.gap} = {self.limit}: expected dp or eo, and a gap from 0 to below 1."
            )
        check_at_least(0, act_above=self.act_above)
        loss = self.max_accuracy_loss
        if not 0 <= loss < 1:
            raise InputError(
                f"max_accuracy_loss = {loss}: expected a number from 0 to below 1, such as 0.005."
            )

    @classmethod
    def parse(
        cls, text: str | Goal | None, max_accuracy_loss: float = 0.005, act_above: float = ACT_ABOVE
    ) -> Goal:
        """Read ``dp=0.10``, ``eo=0.05``, or ``dp`` and ``eo`` for the smallest gap within the budget.

        Raises:
            InputError: If the text is no goal, or if a ``Goal`` is given next to another budget.
        """
        if isinstance(text, Goal):
            if (max_accuracy_loss, act_above) not in (
                (cls.max_accuracy_loss, cls.act_above),
                (text.max_accuracy_loss, text.act_above),
            ):
                raise InputError(
                    f"max_accuracy_loss = {max_accuracy_loss} and act_above = {act_above} next to {text}: "
                    "give them to the Goal."
                )
            return text
        name, equals, limit = ("dp" if text is None else text).partition("=")
        if name not in _GOALS:
            raise InputError(f"--goal {text}: expected dp=0.10 or eo=0.05; {did_you_mean(name, _GOALS)}")
        if equals and not re.fullmatch(r"0?\.\d+|0", limit.strip()):
            raise InputError(f"--goal {text}: expected a gap from 0 to below 1, such as {name}=0.10.")
        return cls(_GOALS[name], float(limit or 0), max_accuracy_loss, act_above)

    @property
    def definition(self) -> Gap:
        """The gap's entry in :data:`GAPS`."""
        return GAPS[self.gap]

    @property
    def positives(self) -> bool:
        """Whether the rates of the positives are compared."""
        return self.gap == "eo_gap"

    def labels(self, num_rows: int) -> Tensor | None:
        """Return the supposed classes that membership is given by: 1, or nothing for demographic parity."""
        return torch.ones(num_rows) if self.positives else None


@dataclass(frozen=True)
class CorrectionFit:
    """Choice of the strength of a correction, on rows without S.

    Gaps are estimated by membership; ``_before`` is of the uncorrected decisions.

    Args:
        stopped_by: ``goal``: the goal is reached; ``budget``: the accuracy budget or, ``collapse``, the guard
            against collapse allowed no more; ``end``: the rates are as equal as membership can make them.
    """

    stopped_by: StoppedBy
    gap_before: float
    gap_after: float
    accuracy_before: float
    accuracy_after: float
    share_before: float
    share_after: float
    num_rows: int


class Correction(nn.Module):
    """Decision thresholds that depend on membership: the most accurate decisions under a limit on a gap.

    ``p`` becomes ``p - sum_k m_k g_k / (2 q_k)``, with a factor p in the sum for equal opportunity, and
    decisions are positive from 0.5. Make one with :meth:`fit`. The state is plain: multipliers, shares and,
    if there is one, the coefficients of membership.

    Args:
        multipliers: Multiplier m of each group ``(G,)``; 0 changes nothing.
        share: Share q of each group ``(G,)``; for equal opportunity, among the positives.
        membership: Estimate of membership, needed to correct from inputs.

    >>> probs, member = torch.tensor([0.45, 0.6, 0.55, 0.9]), torch.tensor([0.9, 0.8, 0.2, 0.1])
    >>> correction = Correction(torch.tensor([0.1, -0.1]), torch.tensor([0.5, 0.5]))
    >>> correction.decide(probs, member)
    tensor([1, 1, 0, 1])
    """

    multipliers: Tensor
    share: Tensor
    membership: Membership | None

    def __init__(
        self,
        multipliers: Tensor,
        share: Tensor,
        goal: Goal | None = None,
        *,
        membership: Membership | None = None,
        outcome: CorrectionFit | None = None,
    ) -> None:
        super().__init__()
        self.goal = goal or Goal()
        self.outcome = outcome
        self.membership = membership
        self.register_buffer("multipliers", multipliers.float())
        self.register_buffer("share", share.float())

    @classmethod
    def fit(
        cls,
        probs: Tensor,
        membership: Tensor,
        *,
        target: Tensor,
        goal: str | Goal | None = None,
        max_accuracy_loss: float = 0.005,
        estimate: Membership | None = None,
    ) -> Correction:
        """Choose the smallest strength that reaches the goal within the accuracy budget, without S.

        If the goal is out of reach, or there is no goal, it is the smallest gap within the budget.

        Args:
            probs: Probabilities of the positive class on held-out rows, ``(N,)``.
            membership: Membership on these rows, ``(N,)`` for two groups or ``(N, G)``; for equal opportunity
                ``P(S | x, y = 1)``.
            target: True classes 0 or 1, ``(N,)``.
            goal: Such as ``"dp=0.10"`` or ``"eo=0.05"``. Without a number it is the smallest gap within the
                budget; the default is ``"dp"``.
            max_accuracy_loss: Maximum loss of accuracy against the uncorrected decisions, as expected from
                the probabilities, recalibrated on these rows. The measured loss is noisier: it may exceed
                the maximum by one standard error.
            estimate: The module that gave these values, so that the correction works from inputs.

        Raises:
            InputError: If the parts do not match.
        """
        wanted = Goal.parse(goal, max_accuracy_loss)
        probs, values, labels = probs.double(), by_group(membership).double(), target > 0.5
        _check_rows(probs, values, labels)
        mask = labels if wanted.positives else None
        share = values.mean(0) if mask is None else values[mask].mean(0)
        if estimate is not None:
            share = (estimate.label_share if wanted.positives else estimate.share).double()
        costs = correction_costs(probs, values, share, positives=wanted.positives)
        path = correction_path(probs, costs, values, mask, flips=max(1, len(probs) // _STEPS))
        multipliers, outcome = _choose(path, labels, _expected_accuracy(probs, labels), wanted)
        return cls(multipliers, share, wanted, membership=estimate, outcome=outcome)

    def scores(self, probs: Tensor, membership: Tensor) -> Tensor:
        """Return corrected scores in (0, 1), at least 0.5 exactly where the decision is positive."""
        values = by_group(membership).to(self.share.device, torch.promote_types(probs.dtype, torch.float32))
        costs = correction_costs(probs, values, self.share.to(values), positives=self.goal.positives)
        return corrected_scores(probs, costs, self.multipliers.to(values))

    def decide(self, probs: Tensor, membership: Tensor) -> Tensor:
        """Return the corrected decisions, 0 or 1."""
        check_probabilities("probs", probs)
        return (self.scores(probs, membership) >= 0.5).long()

    def forward(self, probs: Tensor, inputs: Tensor) -> Tensor:
        """Return the corrected scores of rows, ``(N,)``.

        Raises:
            InputError: If the correction was fitted on values of membership, not on an estimate.
        """
        return self.scores(probs, self._estimate()(inputs, self.goal.labels(len(inputs))))

    def survey_scores(self, probs: Tensor, survey: Survey) -> Tensor:
        """Return corrected scores of surveyed people, none of which depends on the person's own answer."""
        return self.scores(probs, self._estimate().cross_fitted(survey, self.goal.labels(len(survey))))

    def _estimate(self) -> Membership:
        if self.membership is None:
            raise InputError("this correction has no estimate of membership: give the values to scores().")
        return self.membership

    def get_extra_state(self) -> dict[str, Any]:
        """Return goal and outcome, part of the ``state_dict``."""
        return {"goal": asdict(self.goal), "outcome": None if self.outcome is None else asdict(self.outcome)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore goal and outcome."""
        self.goal = Goal(**state["goal"])
        self.outcome = None if state["outcome"] is None else CorrectionFit(**state["outcome"])

    @classmethod
    def from_state(cls, state: Mapping[str, Any], prefix: str = "correction.") -> Correction:
        """Make a module of the shapes of a ``state_dict``, which is to be loaded next.

        Raises:
            InputError: If the state is damaged.
        """
        inner = f"{prefix}membership."
        has_membership = any(name.startswith(inner) for name in state)
        membership = Membership.from_state(state, inner) if has_membership else None
        multipliers, share = state[f"{prefix}multipliers"], state[f"{prefix}share"]
        num_groups = len(share) if membership is None else membership.num_groups
        if not multipliers.shape == share.shape == (num_groups,) or not bool(multipliers.isfinite().all()):
            raise InputError(
                f"the checkpoint's correction is damaged: multipliers {multipliers.tolist()}, expected "
                f"{num_groups} numbers. Restore it from a copy, or correct again."
            )
        return cls(multipliers, share, membership=membership)


@torch.no_grad()
def fit_if_detected(
    val: ScoredRows,
    membership: Membership,
    survey: Survey | None = None,
    survey_probs: Tensor | None = None,
    *,
    goal: Goal,
) -> tuple[Correction | None, GapEstimate | None]:
    """Fit a correction on labelled rows, unless a survey shows no gap.

    Returns:
        The correction, ``None`` if no gap was detected, and the estimated gap, ``None`` without a survey.

    Raises:
        InputError: If the rows cannot be used, or the membership does not serve the goal.
    """
    check_goal(goal, membership, survey)
    detected = None
    if survey is not None and survey_probs is not None:
        detected = estimate_gaps(val, survey, survey_probs >= 0.5, membership)[goal.gap]
        if not is_detected(detected, goal.act_above):
            return None, detected
    if val.target is None:
        raise InputError("the strength is chosen by accuracy: rows with labels are needed.")
    # Surveyed people among the rows are recognised, so that no person is corrected by their own answer.
    labels = goal.labels(len(val.inputs))
    values = membership.probabilities(val.inputs, labels, rows=val.rows, survey=survey)
    return Correction.fit(val.scores, values, target=val.target, goal=goal, estimate=membership), detected


def check_goal(goal: Goal, membership: Membership, survey: Survey | None) -> None:
    """Raise if equal opportunity is asked for without labels of enough surveyed people."""
    if not goal.positives or (
        membership.knows_labels and (survey is None or survey.can_estimate(GAPS[goal.gap]))
    ):
        return
    if survey is not None and survey.target is not None:
        raise InputError(
            "--goal eo: the survey has too few positives of a group. Survey more people, or use --goal dp."
        )
    reason = "the survey has no labels" if survey is not None else f"the {membership.source} has no labels"
    raise InputError(
        f"--goal eo: equal opportunity needs membership among the positives, and {reason}. Add the label "
        "to the survey, or use --goal dp."
    )


def _check_rows(probs: Tensor, values: Tensor, labels: Tensor) -> None:
    if not (probs.ndim == labels.ndim == 1 and len(probs) == len(values) == len(labels) and len(probs)):
        raise InputError(
            f"probs {tuple(probs.shape)}, membership {tuple(values.shape)}, target {tuple(labels.shape)}: "
            "expected one value of each per row."
        )
    check_probabilities("probs", probs)
    if not bool(values.isfinite().all()):
        raise InputError("membership: expected numbers without missing values.")
    if labels.all() or not labels.any():
        raise InputError("target: all rows have one class; the strength is chosen on rows of both.")


class _Summary(NamedTuple):
    point: PathPoint
    accuracy: float
    balanced: float
    share: float
    gap: float
    expected: float

    @classmethod
    def of(cls, point: PathPoint, labels: Tensor, gains: Tensor) -> _Summary:
        tp = (point.decisions & labels).sum()
        fp, positives = point.decisions.sum() - tp, labels.sum()
        tn, fn = len(labels) - positives - fp, positives - tp
        found = decision_summary(tp.double(), fp.double(), tn.double(), fn.double())
        return cls(
            point,
            accuracy=float(found["acc"]),
            balanced=float(found["balanced_acc"]),
            share=float(found["positive_share"]),
            gap=float(point.rates.max() - point.rates.min()),
            expected=float((gains * point.decisions).mean()),
        )


def _expected_accuracy(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the expected gain of accuracy by a positive decision, ``2 p - 1``, with recalibrated p."""
    logits = probs.clamp(1e-6, 1 - 1e-6).logit()[:, None]
    slope, intercept = fit_logistic(logits, labels, 1e3)
    calibrated: Tensor = (slope * logits[:, 0] + intercept).sigmoid()
    return 2 * calibrated - 1


def _is_within(budget: float, first: _Summary, found: _Summary) -> bool:
    """Return whether the accuracy budget allows decisions that differ from the first ones.

    The expected loss has little noise, so that its largest allowed value is hardly optimistic. It is wrong
    for probabilities that recalibration does not repair, which the measured loss shows.
    """
    changed = (found.point.decisions != first.point.decisions).double()
    measured = first.accuracy - found.accuracy
    variance = max(float(changed.mean()) - measured**2, 0.0)  # of paired differences -1, 0 and 1
    loss = max(first.expected - found.expected, measured - math.sqrt(variance / len(changed)))
    return loss <= budget + _ROUNDING


def _choose(
    path: Iterator[PathPoint], labels: Tensor, gains: Tensor, goal: Goal
) -> tuple[Tensor, CorrectionFit]:
    """Follow the path to the goal or the first point that is not allowed; return the best multipliers."""
    points = (_Summary.of(point, labels, gains) for point in path)
    first = best = next(points)  # the uncorrected decisions
    stopped: StoppedBy = "end"
    for found in chain([first], points):
        if not _is_within(goal.max_accuracy_loss, first, found):
            stopped = "budget"
            break
        if found is not first and has_collapsed(found.balanced, found.share, first.balanced, first.share):
            stopped = "collapse"
            break
        if found.gap < best.gap:
            best = found
        if goal.limit and found.gap <= goal.limit:
            stopped = "goal"
            break
    return best.point.multipliers, CorrectionFit(
        stopped_by=stopped,
        gap_before=first.gap,
        gap_after=best.gap,
        accuracy_before=first.accuracy,
        accuracy_after=best.accuracy,
        share_before=first.share,
        share_after=best.share,
        num_rows=len(labels),
    )
