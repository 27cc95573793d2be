"""Numbers and verdicts in words, the same on the page and on the model card."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from fairrf_lightning.audit.result import (
    FAIRER,
    LESS_ACCURATE,
    LESS_FAIR,
    NO_DIFFERENCE,
    NOT_ESTIMABLE,
    nothing_to_compare,
    unknown_statements,
)
from fairrf_lightning.messages import DASH, first_upper, listing, number_text, percent, points
from fairrf_lightning.metrics.counts import GAPS, Mode
from fairrf_lightning.metrics.decisions import has_collapsed
from fairrf_lightning.report.facts import (
    AccuracyAgainst,
    Dependence,
    Estimate,
    MeasuredGap,
    Tone,
    Training,
    Verdict,
)

if TYPE_CHECKING:
    from fairrf_lightning.certificate import Certificate

MODES: dict[Mode, str] = {"hard": "decisions", "prob": "probabilities"}
NO_GROUPS = "The data do not say which group a row belongs to, so no gap can be measured."
# A limitation of every model of this package.
LINEAR_ONLY = (
    "FairRF removes linear dependence on the related features that were named, or on estimated membership. "
    "It cannot act on others."
)
_GAPS_BY_LABEL = {gap.label: gap for gap in GAPS.values()}
_RATES = {(0, 1): "selection rates", (1,): "true positive rates", (0,): "false positive rates"}
_MIN_RARER_SHARE, _MIN_BALANCED_ACC = 0.05, 0.55  # below both, gaps have no room to be large
_MAX_SENTENCES = 6  # with more gaps, those that show nothing share one sentence


def now() -> str:
    """Return the date and time in UTC."""
    return f"{datetime.now(timezone.utc):%d %B %Y, %H:%M UTC}"


def interval(estimate: Estimate, digits: int = 1, *, signed: bool = False) -> str:
    """Return the limits of an interval, times 100.

    >>> interval(Estimate(0.02, 0.01, 0.064))
    '1.0 to 6.4'
    """
    if not estimate.has_interval:
        return NOT_ESTIMABLE
    return " to ".join(number_text(100 * end, digits, signed=signed) for end in (estimate.low, estimate.high))


def number(estimate: Estimate | None, digits: int = 2, *, signed: bool = False) -> str:
    """Return the estimate times 100, for a table with the unit in its heading."""
    if estimate is None or not estimate.is_known:
        return DASH
    return number_text(100 * estimate.value, digits, signed=signed)


def is_gap(label: str) -> bool:
    """Return whether a label names a gap between groups, shown in percentage points."""
    return label in _GAPS_BY_LABEL


def gap_name(label: str) -> str:
    """Return a gap's name in sentences.

    >>> gap_name("dEO")
    'equal opportunity gap'
    """
    return _GAPS_BY_LABEL[label].name


def gap_definition(label: str) -> str:
    """Return how a gap is computed.

    >>> gap_definition("dEOdds")
    'the largest difference of the true positive rates or of the false positive rates between two groups'
    """
    return f"the largest difference of the {_rates(label, ' or of the ')} between two groups"


def comparison_verdict(
    gaps: Sequence[MeasuredGap], other: str, accuracy: Estimate | None, against: AccuracyAgainst | None
) -> Verdict:
    """Return whether the decisions are fairer than the other model's, and the cost in accuracy."""
    gaps = [gap for gap in gaps if gap.mode == "hard" and gap.difference is not None]
    changes = {_name(gap, gaps): gap.change for gap in gaps}
    fairer = [name for name, change in changes.items() if change == FAIRER]
    less = [name for name, change in changes.items() if change == LESS_FAIR]
    tone: Tone = "mixed"
    if fairer and less:
        title = f"Fairer than {other} in {listing(fairer)}, but less fair in {listing(less)}"
    elif fairer:
        cost = _cost(against)
        tone = "mixed" if cost else "good"  # whether it is worth the cost is the reader's decision
        title = f"Fairer than {other}, beyond noise" + _in(fairer, changes) + cost
    elif less:
        tone, title = "bad", f"Less fair than {other}, beyond noise" + _in(less, changes)
    elif set(changes.values()) == {NOT_ESTIMABLE}:
        tone, title = "unknown", f"Whether it is fairer than {other} cannot be estimated"
    else:
        title = f"No difference in fairness from {other} shown"
    sentences = [*_largest(gaps), *_differences(gaps), *accuracy_sentences(accuracy, against)]
    return Verdict(tone, title + _remaining(gaps), sentences)


def gaps_verdict(gaps: Sequence[MeasuredGap], accuracy: Estimate | None) -> Verdict:
    """Return which gaps of the decisions their intervals show, and how large the others may be."""
    gaps = [gap for gap in gaps if gap.mode == "hard"]
    known = [gap for gap in gaps if gap.estimate.has_interval]
    shown = [gap for gap in known if gap.estimate.low > 0]
    sentences = [*_sizes(gaps), *accuracy_sentences(accuracy, None)]
    if not known:
        return Verdict("unknown", "The gaps between groups are not estimable from these rows", sentences)
    if not shown:
        largest = max(gap.estimate.high for gap in known)
        title = f"No gap between groups is shown; up to {points(largest)} are possible"
        return Verdict("mixed", title, sentences)  # absence of evidence does not favour the model
    worst = max(shown, key=lambda gap: gap.estimate.value)
    scope = f" by {worst.scope}" if len({gap.scope for gap in gaps}) > 1 else ""
    rates = f"the {_rates(worst.name, ' or the ')}{scope}"
    return Verdict("mixed", f"A gap remains: {rates} differ by {points(worst.estimate.value)}", sentences)


def no_information_verdict(
    reason: str, accuracy: Estimate | None, against: AccuracyAgainst | None = None
) -> Verdict:
    """Return the headline of a model whose decisions are (almost) all the same; its gaps are not named."""
    return Verdict("unknown", first_upper(reason), accuracy_sentences(accuracy, against))


def with_collapse(
    verdict: Verdict, model: tuple[float, float], compared: tuple[float, float], other: str
) -> Verdict:
    """Return the verdict with another headline if the model decides almost the same for everyone.

    The gaps of such a model are small by construction. ``model`` and ``compared`` are the share of positive
    decisions and the balanced accuracy, NaN without another model.
    """
    (share, balanced), (other_share, other_balanced) = model, compared
    words = f"{percent(share)} of decisions are positive and balanced accuracy is {balanced:.2f}"
    if balanced < other_balanced and has_collapsed(balanced, share, other_balanced, other_share):
        title = (
            f"Its decisions have collapsed: {words}, against {percent(other_share)} and {other_balanced:.2f} "
            f"of {other}. Gaps say little"
        )
    elif min(share, 1 - share) < _MIN_RARER_SHARE and balanced < _MIN_BALANCED_ACC:
        title = f"It hardly distinguishes people: {words}. Gaps say little"
    else:
        return verdict
    return replace(verdict, tone="unknown", title=title)


def with_groups(verdict: Verdict, result: Mapping[str, Any]) -> Verdict:
    """Add which groups the rates differ between, and how rows of unknown group may change the gaps."""
    sentences = [
        line
        for grouping in result["groupings"]
        for line in (*_extremes(grouping), *unknown_statements(grouping))
    ]
    return replace(verdict, sentences=[*verdict.sentences, *sentences])


def _extremes(grouping: Mapping[str, Any]) -> Iterator[str]:
    if why := nothing_to_compare(grouping):
        yield why
        return
    groups = [of for of in grouping["groups"] if of["estimable"] and "selection_rate" in of]
    rates = {of["name"]: float(of["selection_rate"]) for of in groups}
    if len(rates) > 1:
        most, least = max(rates, key=rates.__getitem__), min(rates, key=rates.__getitem__)
        yield (
            f"Selection rates by {grouping['name']}: highest for {most} ({percent(rates[most])}), lowest "
            f"for {least} ({percent(rates[least])})."
        )


def empty_comparison_verdict(
    gaps: Sequence[MeasuredGap], other: str, accuracy: Estimate | None, against: AccuracyAgainst | None
) -> Verdict:
    """Return the headline of a comparison with a model that gives everyone the same decision."""
    title = f"{other} gives everyone the same decision; a comparison with its gaps of 0 means nothing"
    hard = [gap for gap in gaps if gap.mode == "hard"]
    return Verdict("unknown", title, [*_sizes(hard), *accuracy_sentences(accuracy, against)])


def unmeasured_verdict(
    accuracy: Estimate | None,
    training: Training | None,
    certificate: Certificate | None,
    *,
    against: AccuracyAgainst | None = None,
    dependences: Sequence[Dependence] = (),
    other: str = "",
) -> Verdict:
    """Return the headline where the sensitive attribute is not known."""
    measured = [
        f"Dependence on {of.feature} (penalty R) is {of.value:.3f}"
        + ("." if of.other is None else f", {other} has {of.other:.3f}.")
        for of in dependences
    ]
    title = "Fairness to groups is not measured here"
    if lower := [of.feature for of in dependences if of.other is not None and of.value < of.other]:
        title = f"Depends less on {listing(lower)} than {other}; fairness to groups is not measured here"
    sentences = [NO_GROUPS, *(measured or _penalties(training)), *accuracy_sentences(accuracy, against)]
    if certificate is not None and not certificate.rows["hard"].adds_nothing:
        return Verdict("mixed", certificate.claim, sentences)
    if certificate is not None:
        sentences.append(f"{certificate.claim}.")
    return Verdict("unknown", title, sentences)


def without_headline(notices: Iterable[str], verdict: Verdict) -> list[str]:
    """Return each notice once, without one that the headline already states."""
    headline = _start(verdict.title)
    return [line for line in dict.fromkeys(notices) if _start(line) != headline]


def several_gaps(gaps: Sequence[MeasuredGap]) -> list[str]:
    """Return the caveat on many simultaneous intervals, if there are many."""
    count = sum(of is not None and of.has_interval for gap in gaps for of in (gap.estimate, gap.other))
    if count <= 3:
        return []
    return [f"Each of the {count} intervals holds at 95 % by itself; all of them together hold at less."]


def accuracy_sentences(accuracy: Estimate | None, against: AccuracyAgainst | None) -> list[str]:
    """Return the accuracy, compared with the other model's if there is one."""
    if accuracy is None or not accuracy.is_known:
        return []
    if against is None:
        return [f"Accuracy is {percent(accuracy.value)}."]
    change = against.difference
    ends = f"{_in_brackets(change)}, {against.change}" if change.has_interval else ""
    values = f"{percent(accuracy.value)} against {percent(against.other.value)}"
    return [f"Accuracy is {values}: {points(change.value, signed=True)}{ends}."]


def _in_brackets(estimate: Estimate) -> str:
    """Return the interval in brackets, after a space, or nothing if it is not known."""
    return f" (95 % interval {interval(estimate)})" if estimate.has_interval else ""


def _start(text: str) -> str:
    """Return a sentence up to its first mark; what follows is worded differently in notices."""
    return re.split(r"[,:;.]", text.casefold())[0]


def _rates(label: str, between: str) -> str:
    return between.join(_RATES[classes] for classes in _GAPS_BY_LABEL[label].classes)


def _remaining(gaps: Sequence[MeasuredGap]) -> str:
    """Return the largest gap for the headline: a model fairer than another may still be unfair."""
    sizes = [gap.estimate.value for gap in gaps if gap.estimate.is_known]
    return f"; its largest gap is {points(max(sizes))}" if sizes else ""


def _largest(gaps: Sequence[MeasuredGap]) -> Iterator[str]:
    known = [gap for gap in gaps if gap.estimate.is_known]
    if known:
        worst = max(known, key=lambda gap: gap.estimate.value)
        size = f"{points(worst.estimate.value)}{_in_brackets(worst.estimate)}"
        yield f"The largest gap of this model is {_name(worst, gaps)}: {size}."


def _in(names: Sequence[str], changes: Mapping[str, Any]) -> str:
    return "" if len(names) == len(changes) else f", in {listing(names)}"


def _name(gap: MeasuredGap, gaps: Sequence[MeasuredGap]) -> str:
    return f"{gap.name} ({gap.scope})" if len({of.scope for of in gaps}) > 1 else gap.name


def _one_by_one(
    gaps: Sequence[MeasuredGap],
    sentence: Callable[[MeasuredGap, str], str],
    silent: Sequence[MeasuredGap],
    nothing: str,
) -> Iterator[str]:
    """Yield one sentence per gap; among many, those that show nothing share one."""
    many = len(gaps) > _MAX_SENTENCES
    for gap in gaps:
        if not many or gap not in silent:
            yield sentence(gap, _name(gap, gaps))
    if silent and many:
        yield f"{nothing} in {listing(_name(gap, gaps) for gap in silent)}."


def _differences(gaps: Sequence[MeasuredGap]) -> Iterator[str]:
    silent = [gap for gap in gaps if gap.change == NO_DIFFERENCE]
    return _one_by_one(gaps, _difference, silent, "No difference is shown")


def _difference(gap: MeasuredGap, name: str) -> str:
    if gap.difference is None or gap.other is None or not gap.difference.is_known:
        return f"{name} is not estimable."
    sizes = f"from {points(gap.other.value)} to {points(gap.estimate.value)}"
    change = f"{points(gap.difference.value, signed=True)}{_in_brackets(gap.difference)}"
    return f"{name} {sizes}: {change}, {gap.change}."


def _sizes(gaps: Sequence[MeasuredGap]) -> Iterator[str]:
    silent = [gap for gap in gaps if gap.estimate.has_interval and gap.estimate.low <= 0]
    return _one_by_one(gaps, _size, silent, "No gap is shown")


def _size(gap: MeasuredGap, name: str) -> str:
    if not gap.estimate.has_interval:
        return f"{name} is not estimable{': ' + gap.note if gap.note else ''}."
    found = "a gap beyond noise" if gap.estimate.low > 0 else "no gap shown"
    return f"{name} is {points(gap.estimate.value)}{_in_brackets(gap.estimate)}: {found}."


def _cost(against: AccuracyAgainst | None) -> str:
    if against is None or against.change != LESS_ACCURATE:
        return ""
    return f"; it costs {points(-against.difference.value)} of accuracy"


def _penalties(training: Training | None) -> Iterator[str]:
    if training is None or training.chosen_epoch is None:
        return
    for history in training.penalties:
        if (value := history.at(training.chosen_epoch)) is not None:
            yield (
                f"The chosen checkpoint's penalty on {history.feature} is {value:.3f} on validation; the "
                f"largest in training was {max(history.values):.3f}."
            )
