"""The results of the evidence for prior knowledge: methods of the tables, comparisons, fronts and targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.prior_knowledge_methods import MAIN_BUDGET, MATCHED_BUDGETS
from fairrf_lightning.experiments.choose import Interval, mean_interval

GAP_LABELS = {"dp_gap": "dDP", "eo_gap": "dEO"}
TITLES = {
    "adult": "Adult",
    "compas": "COMPAS",
    "lsac": "LSAC",
    "dutch": "Dutch census",
    "law_bar": "Law school, bar exam",
    "synthetic": "Synthetic people",
}


class Row(NamedTuple):
    """A method of the tables: its label, and its values in the columns of the results."""

    label: str
    method: str
    knowledge: str
    aim: str = "dp"  # the gap that the method lowers


SECTIONS: dict[str, tuple[Row, ...]] = {
    "names of related features only": (
        Row("FairRF, default eta", "fairrf_default", "names"),
        Row("FairRF, tuned", "fairrf", "names"),
        Row("RemoveR", "remove_r", "names", ""),
        Row("ARL", "arl", "names", ""),
    ),
    "published share and correlations": (
        Row("correction", "correction", "correlations"),
        Row("FairRF, then correction", "fairrf_correction", "correlations"),
        Row("membership in training", "membership", "correlations"),
    ),
    "a survey": (
        Row("correction, 100 people", "correction", "survey of 100"),
        Row("**correction, 400 people**", "correction", "survey of 400"),
        Row("correction, 2,000 people", "correction", "survey of 2,000"),
        Row("correction for dEO, 100 people", "correction", "survey of 100", "eo"),
        Row("**correction for dEO, 400 people**", "correction", "survey of 400", "eo"),
        Row("correction for dEO, 2,000 people", "correction", "survey of 2,000", "eo"),
        Row("FairRF, then correction, 400 people", "fairrf_correction", "survey of 400"),
        Row("membership in training, 100 people", "membership", "survey of 100"),
        Row("membership in training, 400 people", "membership", "survey of 400"),
        Row("membership in training, 2,000 people", "membership", "survey of 2,000"),
        Row("fairret on proxy labels, 400 people", "fairret", "survey of 400"),
    ),
    "upper limits, which use S": (
        Row("correction, S of all training rows", "correction", "all training S"),
        Row("correction for dEO, S of all training rows", "correction", "all training S", "eo"),
        Row("ConstrainS, S of all training rows", "constrain_s", "all training S"),
        Row("thresholds per group, S at prediction", "correction", "S at prediction"),
        Row("thresholds per group for dEO, S at prediction", "correction", "S at prediction", "eo"),
    ),
}
STORY_ROWS = (
    Row("I know only\nthe names\n(FairRF)", "fairrf", "names"),
    Row("I have published\nstatistics\n(correction)", "correction", "correlations"),
    Row("I can survey\n400 people\n(correction)", "correction", "survey of 400"),
    Row("I can survey\n400 people\n(correction for dEO)", "correction", "survey of 400", "eo"),
)
FRONT_ROWS = (
    Row("FairRF", "fairrf", "names"),
    Row("correction, correlations", "correction", "correlations"),
    Row("correction, 400 people", "correction", "survey of 400"),
    Row("correction for dEO, 400 people", "correction", "survey of 400", "eo"),
    Row("membership in training, 400 people", "membership", "survey of 400"),
    Row("fairret on proxy labels, 400 people", "fairret", "survey of 400"),
    Row("correction, all training S", "correction", "all training S"),
    Row("thresholds per group (see S)", "correction", "S at prediction"),
)


class Results:
    """The results of one data set: one row per seed, method, knowledge, aim and budget."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        by_method = (
            frame.sort_values("seed").set_index("seed").groupby(["method", "knowledge", "aim", "budget"])
        )
        runs: dict[Any, pd.DataFrame] = dict(iter(by_method))
        self.vanilla = runs["vanilla", "nothing", "", 0.0]
        self._runs = {key: of for key, of in runs.items() if len(of) == len(self.vanilla)}

    def _key(self, row: Row, budget: float) -> tuple[str | float, ...]:
        key = (*row[1:], budget)
        return key if key in self._runs else (*row[1:], float("inf"))

    def has(self, row: Row, budget: float = MAIN_BUDGET) -> bool:
        """Return whether every seed of a method was run, within a budget or without one."""
        return self._key(row, budget) in self._runs

    def runs(self, row: Row, budget: float) -> pd.DataFrame:
        """Return the runs of a method within a budget, by seed."""
        return self._runs[self._key(row, budget)]

    def reference(self, row: Row) -> pd.DataFrame:
        """Return the unconstrained model that a method starts from."""
        is_logistic = row.method in ("eg", "logistic_correction")
        return self._runs["logistic", "nothing", "", 0.0] if is_logistic else self.vanilla

    @property
    def budgets(self) -> list[float]:
        """The budgets of the fronts, increasing."""
        finite = self.frame.loc[np.isfinite(self.frame["budget"]), "budget"]
        return sorted(set(finite) - {0.0})

    def points(self, row: Row, budget: float) -> Interval:
        """Return the change of accuracy in points."""
        return scaled(mean_interval(self.runs(row, budget)["acc"] - self.reference(row)["acc"]), 100)

    def change(self, row: Row, budget: float, gap: str) -> Interval:
        """Return the change of a gap in per cent of the mean gap of the unconstrained model."""
        runs, reference = self.runs(row, budget), self.reference(row)
        return scaled(mean_interval(runs[gap] - reference[gap]), 100 / reference[gap].mean())

    def against(
        self, row: Row, other: Row, budget: float, column: str, other_budget: float | None = None
    ) -> Interval:
        """Return the mean paired difference of two methods, within the same budget unless given."""
        one, two = self.runs(row, budget), self.runs(other, other_budget or budget)
        return mean_interval((one[column] - two[column]).dropna())


LOGISTIC_ROWS = (
    Row("ExponentiatedGradient on proxy labels", "eg", "survey of 400"),
    Row("correction of the logistic regression", "logistic_correction", "survey of 400"),
)
FAIRRF = Row("FairRF, tuned", "fairrf", "names")


def scaled(interval: Interval, factor: float) -> Interval:
    """Return an interval in another unit."""
    return Interval(*(factor * value for value in interval))


def points_text(found: Interval, digits: int = 2, unit: str = "") -> str:
    """Return a change as text, by default one of accuracy in points."""
    mean, low, high = (f"{value:+.{digits}f}" for value in found)
    return f"{mean}{unit} ({low} to {high})"


def percent_text(found: Interval) -> str:
    """Return a change of a gap as text."""
    return points_text(found, 0, " %")


def paired_text(found: Interval) -> str:
    """Return a paired difference of a gap as text; bold where the interval excludes 0."""
    text = points_text(found, 3)
    return f"**{text}**" if found.low > 0 or found.high < 0 else text


def front(found: Results, row: Row, gap: str) -> tuple[list[float], list[float]]:
    """Return mean accuracy changes in points and mean gaps of the vanilla model and of each budget."""
    runs = [found.runs(row, budget) for budget in found.budgets if found.has(row, budget)]
    base = found.reference(row)
    losses = [0.0, *(100 * (run["acc"] - base["acc"]).mean() for run in runs)]
    return losses, [base[gap].mean(), *(run[gap].mean() for run in runs)]


def hypervolume(found: Results, row: Row, gap: str, max_loss: float = 2.0) -> float:
    """Return the share of the rectangle below the vanilla gap that a front covers, up to a loss in points."""
    changes, gaps = front(found, row, gap)
    start = gaps[0]
    covered, lowest, position = 0.0, start, 0.0
    for change, value in sorted(zip(changes, gaps, strict=True), reverse=True):
        loss = min(max(-change, 0.0), max_loss)
        covered += (loss - position) * (start - lowest)
        position, lowest = loss, min(lowest, value)
    return (covered + (max_loss - position) * (start - lowest)) / (max_loss * start)


class Target(NamedTuple):
    """A target, the numbers that decide on it, and whether it is met."""

    text: str
    measured: str
    met: bool | None  # ``None`` if it was not run

    @property
    def outcome(self) -> str:
        """Return the outcome as a word."""
        return "not run" if self.met is None else "pass" if self.met else "**fail**"


SURVEY_400 = Row("survey of 400", "correction", "survey of 400")
PUBLISHED = Row("published correlations", "correction", "correlations")
SURVEY_400_EO = Row("survey of 400, for dEO", "correction", "survey of 400", "eo")


def targets(sets: dict[str, Results]) -> Iterator[Target]:
    """Yield the targets of the correction, with the numbers that decide."""
    for row in (PUBLISHED, SURVEY_400):
        text = f"Adult, {row.label}, budget 0.5: dDP at least 38 % lower for at most 0.5 points"
        yield _reduction(sets.get("adult"), row, 0.005, "dp_gap", text=text, limits=(-38, -0.5))
    text = "Adult, survey of 400, correction for dEO: dEO at least 45 % lower for at most 0.25 points"
    yield _reduction(sets.get("adult"), SURVEY_400_EO, 0.0025, "eo_gap", text=text, limits=(-45, -0.25))
    for row in (PUBLISHED, SURVEY_400):
        goal = Row(f"goal dp=0.10, {row.label}", "goal", row.knowledge)
        yield _goal(sets.get("adult"), goal)
    for name in ("law_bar", "dutch"):
        for row in (PUBLISHED, SURVEY_400):
            yield _better(sets.get(name), row, name)


def _reduction(
    found: Results | None, row: Row, budget: float, gap: str, *, text: str, limits: tuple[float, float]
) -> Target:
    if found is None or not found.has(row, budget):
        return Target(text, "", None)
    change, points = found.change(row, budget, gap), found.points(row, budget)
    measured = f"{GAP_LABELS[gap]} {percent_text(change)}; accuracy {points_text(points)} points"
    if gap == "dp_gap":
        measured += f"; on the front at {-limits[1]:g} points: {_at_loss(found, row, -limits[1]):+.0f} %"
    return Target(text, measured, change.mean <= limits[0] and points.mean >= limits[1])


def _at_loss(found: Results, row: Row, loss: float) -> float:
    """Return the change of dDP in per cent at a measured loss in points, interpolated on the mean front."""
    changes, gaps = front(found, row, "dp_gap")
    return 100 * float(np.interp(loss, [-change for change in changes], gaps) / gaps[0] - 1)


def _goal(found: Results | None, row: Row) -> Target:
    text = f"Adult, {row.label}: mean test dDP between 0.085 and 0.115"
    if found is None or not found.has(row):
        return Target(text, "", None)
    gap = mean_interval(found.runs(row, float("inf"))["dp_gap"])
    points = found.points(row, float("inf"))
    measured = f"dDP {gap.mean:.3f} ({gap.low:.3f} to {gap.high:.3f}); accuracy {points_text(points)} points"
    return Target(text, measured, 0.085 <= gap.mean <= 0.115)


def _better(found: Results | None, row: Row, name: str) -> Target:
    text = f"{TITLES[name]}, {row.label}: lower dDP than FairRF at budget 0.5, for no more accuracy"
    if found is None or not (found.has(row) and found.has(FAIRRF)):
        return Target(text, "", None)
    budget = matched_budget(found, row) or min(MATCHED_BUDGETS)
    (gap, points), same = (_minus_fairrf(found, row, each) for each in (budget, MAIN_BUDGET))
    changes = [found.change(row, budget, "dp_gap").mean, found.change(FAIRRF, MAIN_BUDGET, "dp_gap").mean]
    measured = (
        f"with a budget of {100 * budget:g}: dDP {changes[0]:+.0f} %, FairRF {changes[1]:+.0f} %; difference "
        f"{paired_text(gap)}; accuracy minus FairRF's {points_text(points)} points. With the same budget: "
        f"difference {paired_text(same[0])}, accuracy {points_text(same[1])} points"
    )
    return Target(text, measured, gap.high < 0 and points.mean >= 0)


def _minus_fairrf(found: Results, row: Row, budget: float) -> tuple[Interval, Interval]:
    """Return dDP and accuracy in points minus those of FairRF at the main budget."""
    gap, accuracy = (found.against(row, FAIRRF, budget, name, MAIN_BUDGET) for name in ("dp_gap", "acc"))
    return gap, scaled(accuracy, 100)


def matched_budget(found: Results, row: Row) -> float | None:
    """Return the largest budget whose mean test accuracy is not below that of FairRF at the main budget."""
    spent = found.points(FAIRRF, MAIN_BUDGET).mean
    tried = [budget for budget in MATCHED_BUDGETS if found.has(row, budget)]
    return max((budget for budget in tried if found.points(row, budget).mean >= spent), default=None)
