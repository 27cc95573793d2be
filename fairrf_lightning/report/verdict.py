"""The headline in plain words, from the intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fairrf_lightning.metrics.decisions import SAME_DECISION
from fairrf_lightning.report.facts import AccuracyAgainst, Certificate, Estimate, Gap, Tone, Training, Verdict
from fairrf_lightning.report.wording import GAP_SUBJECT, interval, listing, percent, points

_MOST_SENTENCES = 6  # with more gaps, those that show nothing share one sentence


def comparison_verdict(
    gaps: Sequence[Gap], other: str, accuracy: Estimate | None, against: AccuracyAgainst | None
) -> Verdict:
    """Say whether decisions are fairer than the other model's, and at what cost, by the intervals."""
    gaps = [gap for gap in gaps if gap.mode == "hard" and gap.difference is not None]
    changes = {_name(gap, gaps): gap.change for gap in gaps}
    by_change = {
        change: [name for name, of in changes.items() if of == change] for change in changes.values()
    }
    fairer, less = by_change.get("fairer, beyond noise", []), by_change.get("less fair, beyond noise", [])
    tone: Tone = "mixed"
    if fairer and less:
        title = f"Fairer than {other} in {listing(fairer)}, but less fair in {listing(less)}"
    elif fairer:
        cost = _cost(against)
        tone = "mixed" if cost else "good"  # whether it is worth the cost is not for us to say
        title = f"Fairer than {other}, beyond noise" + _in(fairer, changes) + cost
    elif less:
        tone, title = "bad", f"Less fair than {other}, beyond noise" + _in(less, changes)
    elif set(by_change) == {"not estimable"}:
        tone, title = "unknown", f"Whether it is fairer than {other} cannot be estimated"
    else:
        title = f"No difference in fairness from {other} shown"
    sentences = [*_largest(gaps), *_differences(gaps), *_accuracy(accuracy, against)]
    return Verdict(tone, title + _remaining(gaps), sentences)


def gaps_verdict(gaps: Sequence[Gap], accuracy: Estimate | None) -> Verdict:
    """Say which gaps of decisions are shown by their intervals, and how large the others may be."""
    gaps = [gap for gap in gaps if gap.mode == "hard"]
    known = [gap for gap in gaps if gap.estimate.has_interval]
    shown = [gap for gap in known if gap.estimate.low > 0]
    sentences = [*_sizes(gaps), *_accuracy(accuracy, None)]
    if not known:
        return Verdict("unknown", "The gaps between groups are not estimable from these rows", sentences)
    if not shown:
        most = max(gap.estimate.high for gap in known)
        title = f"No gap between groups is shown; up to {points(most)} are possible"
        return Verdict("mixed", title, sentences)  # absence of evidence is nothing in favour
    worst = max(shown, key=lambda gap: gap.estimate.value)
    scope = f" of {worst.scope}" if len({gap.scope for gap in gaps}) > 1 else ""
    title = f"A gap remains: {GAP_SUBJECT[worst.name]}{scope} differ by {points(worst.estimate.value)}"
    return Verdict("mixed", title, sentences)


def same_decision_verdict(accuracy: Estimate | None, against: AccuracyAgainst | None = None) -> Verdict:
    """Return the headline of a model that decides on all rows in the same way: its gaps are not named."""
    title = f"{SAME_DECISION[0].upper()}{SAME_DECISION[1:]}"
    return Verdict("unknown", title, _accuracy(accuracy, against))


def empty_comparison_verdict(
    gaps: Sequence[Gap], other: str, accuracy: Estimate | None, against: AccuracyAgainst | None
) -> Verdict:
    """Return the headline of a comparison with a model that decides on all rows in the same way."""
    title = f"{other} gives everyone the same decision; a comparison with its gaps of 0 means nothing"
    hard = [gap for gap in gaps if gap.mode == "hard"]
    return Verdict("unknown", title, [*_sizes(hard), *_accuracy(accuracy, against)])


def unmeasured_verdict(
    accuracy: Estimate | None,
    training: Training | None,
    certificate: Certificate | None,
    against: AccuracyAgainst | None = None,
) -> Verdict:
    """Return the headline where S is not known."""
    sentences = ["The data do not say which group a row belongs to, so no gap can be measured."]
    sentences += list(_penalties(training))
    sentences += _accuracy(accuracy, against)
    if certificate is not None and not certificate.adds_nothing:
        return Verdict("mixed", certificate.claim, sentences)
    if certificate is not None:
        sentences.append(f"{certificate.claim}.")
    else:
        sentences.append("A certificate may bound the gap without S: the section on it says how to get one.")
    return Verdict("unknown", "Fairness to groups is not measured here", sentences)


def without_headline(notices: Iterable[str], verdict: Verdict) -> list[str]:
    """Return the notices, each once, without one that the headline has already."""
    headline = verdict.title.casefold()
    return [line for line in dict.fromkeys(notices) if line.rstrip(".").casefold() != headline]


def several_gaps(gaps: Sequence[Gap]) -> list[str]:
    """Return what to know of many intervals at once, if there are many."""
    count = sum(of is not None and of.has_interval for gap in gaps for of in (gap.estimate, gap.other))
    if count <= 3:
        return []
    return [f"Each of the {count} intervals holds at 95 % by itself; that all hold at once is less sure."]


def _remaining(gaps: Sequence[Gap]) -> str:
    """Return the size of the largest gap for the headline: fairer than another model may still be unfair."""
    sizes = [gap.estimate.value for gap in gaps if gap.estimate.is_known]
    return f"; its largest gap is {points(max(sizes))}" if sizes else ""


def _largest(gaps: Sequence[Gap]) -> Iterator[str]:
    known = [gap for gap in gaps if gap.estimate.is_known]
    if known:
        worst = max(known, key=lambda gap: gap.estimate.value)
        ends = f" (95 % interval {interval(worst.estimate)})" if worst.estimate.has_interval else ""
        yield f"The largest gap of this model is {_name(worst, gaps)}: {points(worst.estimate.value)}{ends}."


def _in(names: Sequence[str], changes: Mapping[str, object]) -> str:
    return "" if len(names) == len(changes) else f", in {listing(names)}"


def _name(gap: Gap, gaps: Sequence[Gap]) -> str:
    several = len({of.scope for of in gaps}) > 1
    return f"{gap.name} ({gap.scope})" if several else gap.name


def _one_by_one(
    gaps: Sequence[Gap], say: Callable[[Gap, str], str], silent: Sequence[Gap], nothing: str
) -> Iterator[str]:
    """Say each gap in a sentence; of many, those that show nothing share one."""
    many = len(gaps) > _MOST_SENTENCES
    for gap in gaps:
        if not many or gap not in silent:
            yield say(gap, _name(gap, gaps))
    if silent and many:
        yield f"{nothing} in {listing(_name(gap, gaps) for gap in silent)}."


def _differences(gaps: Sequence[Gap]) -> Iterator[str]:
    silent = [gap for gap in gaps if gap.change == "no difference shown"]
    return _one_by_one(gaps, _difference, silent, "No difference is shown")


def _difference(gap: Gap, name: str) -> str:
    if gap.difference is None or gap.other is None or not gap.difference.is_known:
        return f"{name} is not estimable."
    ends = f" (95 % interval {interval(gap.difference)})" if gap.difference.has_interval else ""
    sizes = f"from {points(gap.other.value)} to {points(gap.estimate.value)}"
    return f"{name} {sizes}: {points(gap.difference.value, signed=True)}{ends}, {gap.change}."


def _sizes(gaps: Sequence[Gap]) -> Iterator[str]:
    silent = [gap for gap in gaps if gap.estimate.has_interval and gap.estimate.low <= 0]
    return _one_by_one(gaps, _size, silent, "No gap is shown")


def _size(gap: Gap, name: str) -> str:
    if not gap.estimate.has_interval:
        return f"{name} is not estimable{': ' + gap.note if gap.note else ''}."
    found = "a gap beyond noise" if gap.estimate.low > 0 else "no gap shown"
    return f"{name} is {points(gap.estimate.value)} (95 % interval {interval(gap.estimate)}): {found}."


def _accuracy(accuracy: Estimate | None, against: AccuracyAgainst | None) -> list[str]:
    if accuracy is None or not accuracy.is_known:
        return []
    if against is None:
        return [f"Accuracy is {percent(accuracy.value)}."]
    change = against.difference
    says = f"Accuracy is {percent(accuracy.value)} against {percent(against.other.value)}"
    size = points(change.value, signed=True)
    ends = f" (95 % interval {interval(change)}), {against.change}" if change.has_interval else ""
    return [f"{says}: {size}{ends}."]


def _cost(against: AccuracyAgainst | None) -> str:
    if against is None or against.change != "less accurate, beyond noise":
        return ""
    return f"; it costs {points(-against.difference.value)} of accuracy"


def _penalties(training: Training | None) -> Iterator[str]:
    if training is None or training.chosen_epoch is None:
        return
    for path in training.penalties:
        values = dict(zip(path.epochs, path.values, strict=True))
        if training.chosen_epoch in values:
            yield (
                f"The chosen checkpoint's penalty on {path.feature} is {values[training.chosen_epoch]:.3f} "
                f"on validation; its largest in training was {max(path.values):.3f}."
            )
