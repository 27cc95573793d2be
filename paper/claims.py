"""Claims about FairRF, each with an outcome that is computed from the results.

``CLAIMS`` are those of the paper's text, ``CHECKS`` what we hold FairRF to beyond them. An entry of either
table is a sentence, the parts of the evaluation that it needs, and a function that judges it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from scipy import stats

from fairrf_lightning.experiments.choose import ChoiceRule, Interval, difference, mean_interval
from fairrf_lightning.experiments.setting import SETTING_COLUMNS
from paper.choose import affordable_choices, choose, is_eligible
from paper.numbers import BUDGET, CASE_STUDY

Outcome: TypeAlias = Literal[
    "reproduced", "not reproduced", "not testable", "too few to say", "holds", "fails"
]
Measured: TypeAlias = tuple[str, Outcome]
# Of the results and a data set: the number in words and the outcome, or ``None`` without the runs it needs.
Judge: TypeAlias = Callable[..., Measured | None]

RULE = (
    "Each measured number is a mean with its 95 % interval over seeds. A claim is reproduced if the interval "
    "lies wholly on the claimed side of 0, unless the claim names another rule."
)
_MAX_LOSS_IN_PAPER = 0.024  # the largest loss of accuracy in the paper's own tables
_MAX_BACKBONE_LOSS = 0.03
_LEVEL = 0.05
_ACCURACY_RANGE = (0.82, 0.853)  # where fronts on Adult are compared
_NOTHING_ELIGIBLE = "no setting is within the budget of accuracy without having collapsed"


class Claim(NamedTuple):
    """A sentence about a data set that results can support or contradict."""

    section: str
    text: str  # the paper's words, shortened
    parts: frozenset[str]  # of the evaluation, which it needs
    data: str
    judge: Judge


class Finding(NamedTuple):
    """A claim after it was judged, with the number that supports it or does not."""

    section: str
    claim: str
    measured: str
    outcome: Outcome


def judge(results: pd.DataFrame, claims: Sequence[Claim]) -> list[Finding]:
    """Return the findings that the results allow.

    Args:
        results: One row per model, as :func:`paper.reproduce.train` returns them.
        claims: ``CLAIMS`` or ``CHECKS``.
    """
    available = set(results["part"])
    judged = [(claim, claim.judge(results, claim.data)) for claim in claims if claim.parts <= available]
    return [Finding(claim.section, claim.text, *measured) for claim, measured in judged if measured]


def _reproduced(measured: str, *, holds: bool) -> Measured:
    return measured, "reproduced" if holds else "not reproduced"


def _holds(measured: str, *, holds: bool) -> Measured:
    return measured, "holds" if holds else "fails"


def _below_zero(interval: Interval, prefix: str = "change ") -> Measured:
    return _reproduced(f"{prefix}{interval}", holds=interval.high < 0)


def _runs(results: pd.DataFrame, part: str, data: str, method: str) -> pd.DataFrame:
    """Return the runs of a method, or of all variants whose name starts with it, S out of the inputs."""
    of = results[(results["part"] == part) & (results["data"] == data) & ~results["include_sensitive"]]
    return of[of["method"].str.startswith(method)]


def _vanilla(results: pd.DataFrame, part: str, data: str) -> pd.DataFrame:
    vanilla = _runs(results, part, data, "vanilla")
    return vanilla[vanilla["backbone"] == "mlp"]


def _chosen(results: pd.DataFrame, part: str, data: str, method: str) -> pd.DataFrame:
    runs = _runs(results, part, data, method)
    return choose(runs, _vanilla(results, part, data), BUDGET[data], "with S")


def _change(results: pd.DataFrame, data: str, measure: str, method: str = "fairrf") -> Interval:
    return difference(_chosen(results, data, data, method), _vanilla(results, data, data), measure)


# RQ1: FairRF against the vanilla model and the baselines, on the three data sets.


def _fairer(results: pd.DataFrame, data: str, gap: str) -> Measured:
    return _below_zero(_change(results, data, f"test_{gap}"))


def _accuracy_kept(results: pd.DataFrame, data: str, is_small: Callable[[Interval], bool]) -> Measured:
    change = _change(results, data, "test_acc")
    return _reproduced(f"change {change}", holds=is_small(change))


def _arl_trades_gaps(results: pd.DataFrame, data: str) -> Measured | None:
    if _runs(results, data, data, "arl").empty:
        return None
    eo, dp = (_change(results, data, f"test_{gap}", "arl") for gap in ("eo_gap", "dp_gap"))
    return _reproduced(f"dEO {eo}, dDP {dp}", holds=eo.high < 0 and dp.low > 0)


def _steadier(results: pd.DataFrame, data: str, other: str) -> Measured | None:
    if _runs(results, data, data, other).empty:
        return None
    fair, runs = _chosen(results, data, data, "fairrf"), _chosen(results, data, data, other)
    if len(runs) < 3:
        return None
    ratio = float(fair["test_eo_gap"].var(ddof=1) / runs["test_eo_gap"].var(ddof=1))
    below = stats.f.cdf(ratio, len(fair) - 1, len(runs) - 1) < _LEVEL
    return _reproduced(f"ratio of variances {ratio:.2f} (F test at 5 %)", holds=below)


_RQ1: dict[str, Judge] = {
    "FairRF is fairer than vanilla on {data} (eo_gap)": partial(_fairer, gap="eo_gap"),
    "FairRF is fairer than vanilla on {data} (dp_gap)": partial(_fairer, gap="dp_gap"),
    "no significant drop of accuracy on {data} (rule: the interval reaches 0)": partial(
        _accuracy_kept, is_small=lambda change: change.high >= 0
    ),
    f"accuracy on {{data}} drops by less than {_MAX_LOSS_IN_PAPER:g}, the most that the paper's own tables "
    f"lose (rule: the interval is above -{_MAX_LOSS_IN_PAPER:g})": partial(
        _accuracy_kept, is_small=lambda change: change.low > -_MAX_LOSS_IN_PAPER
    ),
    "ARL improves equal opportunity but worsens demographic parity on {data}": _arl_trades_gaps,
    "FairRF's dEO deviates less between runs than arl's on {data}": partial(_steadier, other="arl"),
    "FairRF's dEO deviates less between runs than ksmote's on {data}": partial(_steadier, other="ksmote"),
}


# RQ2: inaccurate, missing and fixed knowledge of the related features.


def _still_fairer(results: pd.DataFrame, data: str, method: str) -> Measured:
    """Compare each drawn set of features, with a setting of its own, with the vanilla model."""
    vanilla = _vanilla(results, "ablation", data)
    runs = _runs(results, "ablation", data, method)
    chosen = [choose(of, vanilla, BUDGET[data], "with S") for _, of in runs.groupby("method")]
    return _below_zero(difference(pd.concat(chosen, ignore_index=True), vanilla, "test_eo_gap"))


def _learning_pays(results: pd.DataFrame, data: str) -> Measured:
    fair, fixed = (_chosen(results, "ablation", data, method) for method in ("fairrf", "fix_lambda"))
    change, gain = (difference(fair, fixed, measure) for measure in ("test_eo_gap", "test_acc"))
    return _reproduced(f"dEO {change}, accuracy {gain}", holds=change.high < 0 and gain.low > 0)


def _better_than_one(results: pd.DataFrame, data: str) -> Measured:
    fair, one = (_chosen(results, "ablation", data, method) for method in ("fairrf", "top_1"))
    return _below_zero(difference(fair, one, "test_eo_gap"))


_RQ2: dict[str, Judge] = {
    "one feature wrong: still fairer than vanilla on {data} (dEO)": partial(_still_fairer, method="noisy"),
    "random features: still fairer than vanilla on {data} (dEO)": partial(_still_fairer, method="random"),
    "all features: still fairer than vanilla on {data} (dEO)": partial(_still_fairer, method="constrain_all"),
    "learning lambda beats Fix-lambda in dEO and accuracy on {data}": _learning_pays,
    "moderate improvement over Top-1 on {data} (dEO)": _better_than_one,
}


# RQ3: eta and beta on Adult; slopes are fitted per seed.


def _slope(
    results: pd.DataFrame, data: str, measure: str, option: str, *, at_largest_eta: bool = False
) -> Measured:
    grid = results[(results["part"] == "sensitivity") & (results["data"] == data)]
    if at_largest_eta:
        grid = grid[grid["eta"] == grid["eta"].max()]
    slopes = [np.polyfit(of[option], of[measure], 1)[0] for _, of in grid.groupby("seed")]
    return _below_zero(mean_interval(slopes), prefix="")


_RQ3: dict[str, Judge] = {
    "larger eta: fairer (slope of dDP over eta)": partial(_slope, measure="test_dp_gap", option="eta"),
    "larger eta: accuracy drops (slope over eta)": partial(_slope, measure="test_acc", option="eta"),
    "smaller beta needs a larger eta (slope of dDP over beta)": partial(
        _slope, measure="test_dp_gap", option="beta"
    ),
    "larger beta: accuracy drops faster at large eta (slope over beta at the largest eta)": partial(
        _slope, measure="test_acc", option="beta", at_largest_eta=True
    ),
}


# FairRF on logistic regression and the SVM.


def _backbone_improves(results: pd.DataFrame, data: str, name: str) -> Measured:
    of = results[(results["part"] == "backbones") & (results["data"] == data) & (results["backbone"] == name)]
    vanilla = of[of["method"] == "vanilla"]
    fair = choose(of[of["method"] == "fairrf"], vanilla, BUDGET[data], "with S")
    change, loss = (difference(fair, vanilla, measure) for measure in ("test_eo_gap", "test_acc"))
    good = change.high < 0 and loss.low > -_MAX_BACKBONE_LOSS
    return _reproduced(f"dEO {change}, accuracy {loss}", holds=good)


_BACKBONES: dict[str, Judge] = {
    f"{name} on {{data}}: dEO improves for little accuracy (rule: its interval is below 0, that of accuracy "
    f"above -{_MAX_BACKBONE_LOSS:g})": partial(_backbone_improves, name=name)
    for name in ("linear", "svm")
}


# Case study: rank correlation of lambda with the features' correlations.


def _lambda_follows(results: pd.DataFrame, data: str, other: str, sign: int) -> Measured | None:
    runs = results[(results["part"] == "case-study") & (results["data"] == data)]
    if runs.empty:
        return None
    smallest_beta = runs[runs["beta"] == runs["beta"].min()]
    features = list(CASE_STUDY[data])
    weights = smallest_beta[[f"lambda/{name}" for name in features]].mean()
    known = smallest_beta[[f"{other}/{name}" for name in features]].mean()
    if len(set(weights.round(6))) == 1:
        return "lambda is even", "not testable"
    return _rank(weights, known, sign)


def _rank(weights: pd.Series, known: pd.Series, sign: int) -> Measured:
    rank = stats.spearmanr(weights, known)
    measured = f"rank correlation {float(rank.statistic):+.2f} over {len(weights)} features"
    if 2 / math.factorial(len(weights)) > _LEVEL:  # not even a perfect one is beyond chance
        return measured, "too few to say"
    holds = sign * float(rank.statistic) > 0 and float(rank.pvalue) < _LEVEL
    return _reproduced(f"{measured} (p {float(rank.pvalue):.3f}; rule: below {_LEVEL:g})", holds=holds)


_CASE_STUDY: dict[str, Judge] = {
    "lambda is small for features that predict Y ({data})": partial(_lambda_follows, other="rho_y", sign=-1),
    "lambda is large for features associated with S ({data})": partial(
        _lambda_follows, other="rho_s", sign=1
    ),
}


# Beyond the paper: no baseline dominates FairRF on Adult.


def _not_dominated(results: pd.DataFrame, data: str, method: str) -> Measured | None:
    """A baseline dominates if it has a setting that no FairRF setting matches, beyond noise."""
    runs = _runs(results, data, data, "")
    if runs.empty:
        return None
    settings, points = (
        [of for _, of in runs[runs["method"] == name].groupby(SETTING_COLUMNS, dropna=False)]
        for name in ("fairrf", method)
    )
    low, high = _ACCURACY_RANGE
    inside = [of for of in points if low <= of["test_acc"].mean() <= high]
    measured = f"{len(inside)} of {len(points)} settings have accuracy {low:g} to {high:g}"
    if not inside:
        return measured, "not testable"
    return _holds(measured, holds=all(any(_matches(fair, other) for fair in settings) for other in inside))


def _matches(fair: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Return whether a setting is as accurate as another and no worse in one gap, within intervals."""
    accurate = difference(fair, other, "test_acc").high >= 0
    gaps = (difference(fair, other, f"test_{gap}") for gap in ("eo_gap", "dp_gap"))
    return accurate and any(gap.low <= 0 for gap in gaps)


# ARL, with the adversary that is the most accurate on validation.


def _arl_change(results: pd.DataFrame, data: str, measure: str) -> Interval | None:
    arl, vanilla = (_runs(results, data, data, method) for method in ("arl", "vanilla"))
    if arl.empty:
        return None
    return difference(choose(arl, vanilla, BUDGET[data], "without S"), vanilla, measure)


def _arl_accuracy(results: pd.DataFrame, data: str) -> Measured | None:
    change = _arl_change(results, data, "test_acc")
    return change and _holds(str(change), holds=change.low > -0.01 and change.high < 0.01)


def _arl_worst_group(results: pd.DataFrame, data: str) -> Measured | None:
    auc = _arl_change(results, data, "test_worst_group_auc")
    if auc is None:
        return None
    shown = f"{1000 * auc.mean:+.2f} [{1000 * auc.low:+.2f}, {1000 * auc.high:+.2f}] thousandths"
    return _holds(shown, holds=auc.high >= 0)


# COMPAS: a setting that trains without S, chosen on validation and judged on test.


def _chosen_beforehand(results: pd.DataFrame, data: str, rule: ChoiceRule) -> Measured | None:
    runs, vanilla = (_runs(results, "ablation", data, method) for method in ("", "vanilla"))
    if runs.empty:
        return None
    settings = affordable_choices(runs, vanilla, BUDGET[data], rule)
    if not settings:
        return _NOTHING_ELIGIBLE, "fails"
    # With S: the sum of both gaps. Without S: accuracy, all being within the budget. The cost of a penalty
    # is the only S-free sign of its effect; eta is not comparable between methods.
    measures = ["val_acc"] if rule == "without S" else ["val_eo_gap", "val_dp_gap"]
    best = min(settings, key=lambda name: float(settings[name][measures].mean().sum()))
    return _compas_target(best, settings[best], vanilla)


def _best_on_test(results: pd.DataFrame, data: str) -> Measured | None:
    runs, vanilla = (_runs(results, "ablation", data, method) for method in ("", "vanilla"))
    if runs.empty:
        return None
    lowest = vanilla["test_acc"].mean() - BUDGET[data]
    settings = runs[runs["method"] != "vanilla"].groupby(SETTING_COLUMNS, dropna=False)
    inside = [of for _, of in settings if of["test_acc"].mean() >= lowest and is_eligible(of, vanilla)]
    if not inside:
        return _NOTHING_ELIGIBLE, "fails"
    best = min(inside, key=lambda of: float(of["test_eo_gap"].mean()))
    return _compas_target(f"{best['method'].iloc[0]}, eta {best['eta'].iloc[0]:g}", best, vanilla)


def _compas_target(name: str, runs: pd.DataFrame, vanilla: pd.DataFrame) -> Measured:
    change = 100 * (runs["test_eo_gap"].mean() / vanilla["test_eo_gap"].mean() - 1)
    loss = 100 * (runs["test_acc"].mean() - vanilla["test_acc"].mean())
    interval = difference(runs, vanilla, "test_eo_gap")
    measured = f"{name}: dEO {change:+.0f} % ({interval}), accuracy {loss:+.1f} points"
    return _holds(measured, holds=bool(change <= -25 and loss >= -2.5))


_TEXT = "an S-free setting lowers dEO by 25 % for at most 2.5 points of accuracy"
_COMPAS: dict[str, Judge] = {
    f"{_TEXT} (chosen without S on validation)": partial(_chosen_beforehand, rule="without S"),
    f"{_TEXT} (chosen with S on validation)": partial(_chosen_beforehand, rule="with S"),
    "there is an S-free setting that does so (read off the test split, not chosen beforehand)": _best_on_test,
}
_FRONT: dict[str, Judge] = {
    f"{method} does not dominate FairRF": partial(_not_dominated, method=method)
    for method in ("arl", "ksmote", "remove_r", "vanilla")
}
_ARL: dict[str, Judge] = {
    "accuracy within 0.01 of vanilla": _arl_accuracy,
    "worst-group AUC not lower than vanilla's, within the interval": _arl_worst_group,
}


def _claims(
    section: str, parts: Iterable[str], names: Iterable[str], judges: dict[str, Judge]
) -> list[Claim]:
    """Return the claims of a section about each of some data sets."""
    return [
        Claim(section, text.format(data=data), frozenset(parts), data, judged)
        for data in names
        for text, judged in judges.items()
    ]


CLAIMS: tuple[Claim, ...] = (
    *_claims("RQ1", BUDGET, BUDGET, _RQ1),
    *_claims("RQ2", ["ablation"], CASE_STUDY, _RQ2),
    *_claims("RQ3", ["sensitivity"], ["adult"], _RQ3),
    *_claims("Backbones", ["backbones"], CASE_STUDY, _BACKBONES),
    *_claims("Case study", ["case-study"], CASE_STUDY, _CASE_STUDY),
)
CHECKS: tuple[Claim, ...] = (
    *_claims("Adult front", ["adult"], ["adult"], _FRONT),
    *_claims("ARL", ["adult"], ["adult"], _ARL),
    *_claims("COMPAS", ["ablation"], ["compas"], _COMPAS),
)
