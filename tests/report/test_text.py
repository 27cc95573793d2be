"""What the headline says follows from the intervals."""

from dataclasses import replace

import pytest

from fairrf_lightning.messages import DASH, percent, points
from fairrf_lightning.report.facts import (
    AccuracyAgainst,
    Estimate,
    Facts,
    History,
    MeasuredGap,
    Tone,
    Training,
)
from fairrf_lightning.report.text import (
    comparison_verdict,
    gaps_verdict,
    several_gaps,
    unmeasured_verdict,
)

NAN = float("nan")
LESS, SAME, MORE = (-0.06, -0.02), (-0.04, 0.01), (0.01, 0.05)
UNKNOWN = (NAN, NAN)
SMALL, LARGE = (0.02, 0.0, 0.06), (0.13, 0.1, 0.15)


def compared(name: str, ends: tuple[float, float], scope: str = "sex") -> MeasuredGap:
    middle = sum(ends) / 2
    return MeasuredGap(
        name, scope, Estimate(0.1 + middle), other=Estimate(0.1), difference=Estimate(middle, *ends)
    )


def against(*ends: float) -> AccuracyAgainst:
    return AccuracyAgainst(Estimate(0.85), Estimate(-0.01, *ends))


def without_size(title: str) -> str:
    return title.partition("; its largest gap is ")[0]


@pytest.mark.parametrize(
    ("ends", "tone", "title"),
    [
        ((LESS, LESS), "good", "Fairer than vanilla, beyond noise"),
        ((LESS, SAME), "good", "Fairer than vanilla, beyond noise, in dEO"),
        ((SAME, SAME), "mixed", "No difference in fairness from vanilla shown"),
        ((SAME, UNKNOWN), "mixed", "No difference in fairness from vanilla shown"),
        ((MORE, MORE), "bad", "Less fair than vanilla, beyond noise"),
        ((SAME, MORE), "bad", "Less fair than vanilla, beyond noise, in dDP"),
        ((LESS, MORE), "mixed", "Fairer than vanilla in dEO, but less fair in dDP"),
        ((UNKNOWN, UNKNOWN), "unknown", "Whether it is fairer than vanilla cannot be estimated"),
    ],
)
def test_a_comparison(ends: tuple[tuple[float, float], ...], tone: Tone, title: str) -> None:
    gaps = [compared(name, of) for name, of in zip(("dEO", "dDP"), ends, strict=True)]
    verdict = comparison_verdict(gaps, "vanilla", Estimate(0.84), against(NAN, NAN))
    assert (verdict.tone, without_size(verdict.title)) == (tone, title)
    assert verdict.sentences[-1] == "Accuracy is 84.0 % against 85.0 %: \N{MINUS SIGN}1.0 points."
    if UNKNOWN in ends:
        assert "dDP is not estimable." in verdict.sentences


@pytest.mark.parametrize(
    ("accuracy", "tone", "cost", "says"),
    [
        ((-0.016, -0.004), "mixed", "; it costs 1.0 points of accuracy", "less accurate, beyond noise"),
        ((-0.03, 0.01), "good", "", "no difference shown"),
        ((0.004, 0.02), "good", "", "more accurate, beyond noise"),
    ],
)
def test_fairness_that_costs_accuracy_says_so(
    accuracy: tuple[float, float], tone: Tone, cost: str, says: str
) -> None:
    gaps = [compared("dEO", LESS), compared("dDP", SAME)]
    verdict = comparison_verdict(gaps, "vanilla", Estimate(0.84), against(*accuracy))
    title = f"Fairer than vanilla, beyond noise, in dEO{cost}"
    assert (verdict.tone, without_size(verdict.title)) == (tone, title)
    assert "points (95 % interval" in verdict.sentences[-1]
    assert verdict.sentences[-1].endswith(f"), {says}.")
    unfair = comparison_verdict([compared("dEO", MORE)], "vanilla", Estimate(0.84), against(*accuracy))
    assert (unfair.tone, without_size(unfair.title)) == ("bad", "Less fair than vanilla, beyond noise")


def test_the_sentences_have_sizes_intervals_and_scopes() -> None:
    gaps = [compared("dEO", LESS), compared("dEO", SAME, "race")]
    verdict = comparison_verdict(gaps, "vanilla", None, None)
    assert without_size(verdict.title) == "Fairer than vanilla, beyond noise, in dEO (sex)"
    minus = "\N{MINUS SIGN}"
    assert verdict.sentences[1].startswith(f"dEO (sex) from 10.0 points to 6.0 points: {minus}4.0 points")
    assert verdict.sentences[1].endswith(f"(95 % interval {minus}6.0 to {minus}2.0), fairer, beyond noise.")


@pytest.mark.parametrize("change", [LESS, SAME, MORE])
def test_a_comparison_does_not_hide_the_gap_that_remains(change: tuple[float, float]) -> None:
    size = Estimate(0.41, 0.38, 0.44)
    large = MeasuredGap("dDP", "sex", size, other=Estimate(0.4), difference=Estimate(0, *change))
    verdict = comparison_verdict([compared("dEO", change), large], "vanilla", None, None)
    assert verdict.title.endswith("; its largest gap is 41.0 points")
    expected = "The largest gap of this model is dDP: 41.0 points (95 % interval 38.0 to 44.0)."
    assert verdict.sentences[0] == expected


@pytest.mark.parametrize(
    ("estimates", "tone", "title"),
    [
        ([SMALL, LARGE], "mixed", "A gap remains: the selection rates differ by 13.0 points"),
        ([SMALL, SMALL], "mixed", "No gap between groups is shown; up to 6.0 points are possible"),
        ([(NAN, NAN, NAN)], "unknown", "The gaps between groups are not estimable"),
    ],
)
def test_gaps_alone(estimates: list[tuple[float, float, float]], tone: Tone, title: str) -> None:
    gaps = [
        MeasuredGap(name, "sex", Estimate(*of)) for name, of in zip(("dEO", "dDP"), estimates, strict=False)
    ]
    verdict = gaps_verdict(gaps, None)
    assert verdict.tone == tone
    assert verdict.title.startswith(title)


def test_without_s_the_penalties_and_a_certificate_are_what_is_known(facts: Facts) -> None:
    training = Training([], [History("age", [0, 1], [0.3, 0.1])], chosen_epoch=1)
    verdict = unmeasured_verdict(Estimate(0.8), training, None)
    assert verdict.tone == "unknown"
    assert "penalty on age is 0.100 on validation; the largest in training was 0.300" in verdict.sentences[1]
    claimed = unmeasured_verdict(None, None, facts.certificate)
    expected = "Without S, dDP of decisions is certified to be at most 20.0 points, if the given numbers hold"
    assert claimed.title == expected


def test_numbers_that_are_not_known_are_dashes() -> None:
    assert percent(NAN) == points(NAN) == DASH


def test_many_gaps_that_show_nothing_share_a_sentence() -> None:
    scopes = ("sex", "race", "age", "job")
    gaps = [compared(name, SAME, scope) for scope in scopes for name in ("dEO", "dDP")]
    gaps[0] = compared("dEO", LESS)
    sentences = comparison_verdict(gaps, "vanilla", None, None).sentences
    assert len(sentences) == 3
    assert sentences[2].startswith("No difference is shown in dDP (sex), dEO (race), ")
    alone = [MeasuredGap(gap.name, gap.scope, Estimate(*SMALL)) for gap in gaps]
    alone[0] = MeasuredGap("dEO", "sex", Estimate(*LARGE))
    sentences = gaps_verdict(alone, None).sentences
    assert len(sentences) == 2
    assert sentences[1].startswith("No gap is shown in dDP (sex), ")
    assert "8 intervals" in several_gaps(alone)[0]
    assert several_gaps(alone[:3]) == []
    both = [replace(gap, mode=mode, other=gap.estimate) for gap in alone for mode in ("hard", "prob")]
    assert "32 intervals" in several_gaps(both)[0], "as many as the forest plot has"
