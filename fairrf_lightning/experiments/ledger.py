"""Each claim of the paper's text with a verdict that is computed from the results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
from scipy import stats

from fairrf_lightning.experiments.choose import choose
from fairrf_lightning.experiments.comparison import Interval, difference, mean_interval
from fairrf_lightning.experiments.paper import BUDGET, CASE_STUDY

Verdict: TypeAlias = Literal[
    "reproduced", "not reproduced", "not testable", "too few to say", "holds", "fails"
]

RULE = (
    "Each measured number is a mean with its 95 % interval over seeds. A claim is reproduced if the interval "
    "lies wholly on the claimed side of 0, unless the claim names another rule."
)
_PAPER_LOSS = 0.024  # the largest loss of accuracy in the paper's own tables
_BACKBONE_LOSS = 0.03
_LEVEL = 0.05


@dataclass(frozen=True)
class Finding:
    """A claim, what was measured, and whether it holds.

    Args:
        question: The research question or section that it belongs to.
        claim: The paper's words, shortened.
        measured: The figure with its interval.
        verdict: Whether the figure bears the claim out, beyond noise.
    """

    question: str
    claim: str
    measured: str
    verdict: Verdict


def _below_zero(interval: Interval) -> Verdict:
    return "reproduced" if interval.high < 0 else "not reproduced"


def _runs(results: pd.DataFrame, part: str, data: str, method: str) -> pd.DataFrame:
    of = results[(results["part"] == part) & (results["data"] == data) & ~results["include_sensitive"]]
    return of[of["method"].str.startswith(method)]


def _chosen(results: pd.DataFrame, part: str, data: str, method: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the chosen runs of a method, and those of the vanilla model."""
    vanilla = _runs(results, part, data, "vanilla")
    vanilla = vanilla[vanilla["backbone"] == "mlp"]
    return choose(_runs(results, part, data, method), vanilla, BUDGET[data], "with S"), vanilla


def rq1(results: pd.DataFrame) -> Iterator[Finding]:
    """FairRF against the vanilla model and the baselines, on the three data sets."""
    for data in ("adult", "compas", "lsac"):
        fair, vanilla = _chosen(results, data, data, "fairrf")
        for gap in ("eo_gap", "dp_gap"):
            change = difference(fair, vanilla, f"test_{gap}")
            claim = f"FairRF is fairer than vanilla on {data} ({gap})"
            yield Finding("RQ1", claim, f"change {change}", _below_zero(change))
        yield from _loss_of_accuracy(difference(fair, vanilla, "test_acc"), data)
        if not _runs(results, data, data, "arl").empty:
            arl, _ = _chosen(results, data, data, "arl")
            lower, higher = (difference(arl, vanilla, f"test_{gap}") for gap in ("eo_gap", "dp_gap"))
            both = lower.high < 0 and higher.low > 0
            measured = f"dEO {lower}, dDP {higher}"
            claim = f"ARL improves equal opportunity but worsens demographic parity on {data}"
            yield Finding("RQ1", claim, measured, "reproduced" if both else "not reproduced")
        yield from _steadiness(results, data, fair)


def _loss_of_accuracy(change: Interval, data: str) -> Iterator[Finding]:
    claims = {
        f"no significant drop of accuracy on {data} (rule: the interval reaches 0)": change.high >= 0,
        f"accuracy on {data} drops by less than {_PAPER_LOSS:g}, the most that the paper's own tables lose "
        f"(rule: the interval is above -{_PAPER_LOSS:g})": change.low > -_PAPER_LOSS,
    }
    for claim, holds in claims.items():
        yield Finding("RQ1", claim, f"change {change}", "reproduced" if holds else "not reproduced")


def _steadiness(results: pd.DataFrame, data: str, fair: pd.DataFrame) -> Iterator[Finding]:
    for other in ("arl", "ksmote"):
        if _runs(results, data, data, other).empty:
            continue
        runs, _ = _chosen(results, data, data, other)
        if len(runs) < 3:
            continue
        ratio = float(fair["test_eo_gap"].var(ddof=1) / runs["test_eo_gap"].var(ddof=1))
        below = stats.f.cdf(ratio, len(fair) - 1, len(runs) - 1) < 0.05
        claim = f"FairRF's dEO deviates less between runs than {other}'s on {data}"
        measured = f"ratio of variances {ratio:.2f} (F test at 5 %)"
        yield Finding("RQ1", claim, measured, "reproduced" if below else "not reproduced")


def rq2(results: pd.DataFrame) -> Iterator[Finding]:
    """Inaccurate, missing and fixed knowledge of the related features."""
    for data in ("adult", "compas"):
        fair, vanilla = _chosen(results, "ablation", data, "fairrf")
        variants = {
            "noisy": "one feature wrong",
            "random": "random features",
            "constrain_all": "all features",
        }
        for method, words in variants.items():
            change = difference(_each_chosen(results, data, method, vanilla), vanilla, "test_eo_gap")
            claim = f"{words}: still fairer than vanilla on {data} (dEO)"
            yield Finding("RQ2", claim, f"change {change}", _below_zero(change))
        fixed, _ = _chosen(results, "ablation", data, "fix_lambda")
        change, gain = difference(fair, fixed, "test_eo_gap"), difference(fair, fixed, "test_acc")
        both: Verdict = "reproduced" if change.high < 0 and gain.low > 0 else "not reproduced"
        claim = f"learning lambda beats Fix-lambda in dEO and accuracy on {data}"
        yield Finding("RQ2", claim, f"dEO {change}, accuracy {gain}", both)
        one, _ = _chosen(results, "ablation", data, "top_1")
        change = difference(fair, one, "test_eo_gap")
        claim = f"moderate improvement over Top-1 on {data} (dEO)"
        yield Finding("RQ2", claim, f"change {change}", _below_zero(change))


def _each_chosen(results: pd.DataFrame, data: str, method: str, vanilla: pd.DataFrame) -> pd.DataFrame:
    """Return the chosen runs of each drawn set of features."""
    runs = _runs(results, "ablation", data, method)
    chosen = [choose(of, vanilla, BUDGET[data], "with S") for _, of in runs.groupby("method")]
    return pd.concat(chosen, ignore_index=True)


def rq3(results: pd.DataFrame) -> Iterator[Finding]:
    """How eta and beta matter on Adult; slopes are fitted for each seed."""
    grid = results[results["part"] == "sensitivity"]
    strongest = grid[grid["eta"] == grid["eta"].max()]
    claims = {
        "larger eta: fairer (slope of dDP over eta)": _slope(grid, "test_dp_gap", "eta"),
        "larger eta: accuracy drops (slope over eta)": _slope(grid, "test_acc", "eta"),
        "smaller beta needs a larger eta (slope of dDP over beta)": _slope(grid, "test_dp_gap", "beta"),
        "larger beta: accuracy drops faster at large eta (slope over beta at the largest eta)": _slope(
            strongest, "test_acc", "beta"
        ),
    }
    for claim, slope in claims.items():
        yield Finding("RQ3", claim, str(slope), _below_zero(slope))


def _slope(grid: pd.DataFrame, measure: str, option: str) -> Interval:
    return mean_interval([np.polyfit(of[option], of[measure], 1)[0] for _, of in grid.groupby("seed")])


def backbones(results: pd.DataFrame) -> Iterator[Finding]:
    """FairRF on logistic regression and the SVM."""
    for data in ("adult", "compas"):
        for name in ("linear", "svm"):
            of = results[(results["part"] == "backbones") & (results["data"] == data)]
            of = of[of["backbone"] == name]
            vanilla = of[of["method"] == "vanilla"]
            fair = choose(of[of["method"] == "fairrf"], vanilla, BUDGET[data], "with S")
            change, loss = difference(fair, vanilla, "test_eo_gap"), difference(fair, vanilla, "test_acc")
            good = change.high < 0 and loss.low > -_BACKBONE_LOSS
            rule = f"rule: its interval is below 0, that of accuracy above -{_BACKBONE_LOSS:g}"
            claim = f"{name} on {data}: dEO improves for little accuracy ({rule})"
            measured = f"dEO {change}, accuracy {loss}"
            yield Finding("Backbones", claim, measured, "reproduced" if good else "not reproduced")


def case_study(results: pd.DataFrame) -> Iterator[Finding]:
    """What lambda prefers: its rank correlation with the features' correlations."""
    of = results[results["part"] == "case-study"]
    for data, runs in of.groupby("data"):
        loose = runs[runs["beta"] == runs["beta"].min()]
        features = list(CASE_STUDY[str(data)])
        weights = loose[[f"lambda/{name}" for name in features]].mean()
        sides = {
            "rho_y": (-1, "small for features that predict Y"),
            "rho_s": (1, "large for those that tell S"),
        }
        for other, (sign, words) in sides.items():
            known = loose[[f"{other}/{name}" for name in features]].mean()
            if len(set(weights.round(6))) == 1:
                yield Finding("Case study", f"lambda is {words} ({data})", "lambda is even", "not testable")
                continue
            yield Finding("Case study", f"lambda is {words} ({data})", *_rank(weights, known, sign))


def _rank(weights: pd.Series, known: pd.Series, sign: int) -> tuple[str, Verdict]:
    """Return the rank correlation in words, and what it shows about a claimed sign."""
    rank = stats.spearmanr(weights, known)
    measured = f"rank correlation {float(rank.statistic):+.2f} over {len(weights)} features"
    if 2 / math.factorial(len(weights)) > _LEVEL:  # not even a perfect one is beyond chance
        return measured, "too few to say"
    holds = sign * float(rank.statistic) > 0 and float(rank.pvalue) < _LEVEL
    measured = f"{measured} (p {float(rank.pvalue):.3f}; rule: below {_LEVEL:g})"
    return measured, "reproduced" if holds else "not reproduced"


def ledger(results: pd.DataFrame) -> list[Finding]:
    """Return the findings that the parts at hand allow."""
    needed = {rq1: {"adult", "compas", "lsac"}, rq2: {"ablation"}, rq3: {"sensitivity"}}
    needed |= {backbones: {"backbones"}, case_study: {"case-study"}}
    at_hand = set(results["part"])
    return [finding for part, parts in needed.items() if parts <= at_hand for finding in part(results)]
