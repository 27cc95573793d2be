"""Choosing a setting: means over seeds, eligibility, the choice within an accuracy budget, the Pareto front.

With rare labels a large eta ends in a model that makes the same decision for everyone. Its gaps are 0 and
its accuracy is within any budget, so accuracy alone cannot exclude it. A model whose kept epoch is one of
pretraining is a vanilla model, whatever its eta. Neither is eligible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.setting import SETTING_COLUMNS, is_vanilla, setting_name
from fairrf_lightning.metrics.decisions import COLLAPSE_RULE, SAME_DECISION, has_collapsed, is_constant
from fairrf_lightning.notices import NEVER_ON

# "without S", "with S", or the name of a column to minimise.
ChoiceRule: TypeAlias = str

ACCURACY = "val_acc"
BALANCED = "val_balanced_acc"
SHARE = "val_positive_share"
STEPS = "method_steps"
# Numbers of a setting's models: all, with the same decision for every validation row, and without a single
# step of penalty or adversary.
MODELS, CONSTANT, IDLE = "models", "constant_models", "idle_models"
_GAPS = ["val_eo_gap", "val_dp_gap"]
_MAX_NAMED = 5


def summarise(results: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation over seeds of each setting's metrics.

    Settings that differ in any option are different settings.

    Returns:
        One row per setting: its options, ``<metric>``, ``<metric>_std``, and the numbers of ``models``, of
        ``constant_models``, which make the same decision for every validation row, and of
        ``idle_models``, in which neither penalty nor adversary had a step.
    """
    metrics = [name for name in results.columns if name.startswith(("val_", "test_", "lambda/"))]
    if missing := [name for name in (*SETTING_COLUMNS, ACCURACY, SHARE, STEPS) if name not in results]:
        raise InputError(
            f"the results have no column {missing[0]}: an earlier version wrote them; train them again."
        )
    idle = (results[STEPS] == 0) & ((results["eta"] > 0) | (results["adversary_lr"] > 0))
    flags = {CONSTANT: results[SHARE].map(is_constant), IDLE: idle}
    grouped = results.assign(**flags).groupby(SETTING_COLUMNS, sort=False, dropna=False)
    counts = {MODELS: grouped.size(), **{name: grouped[name].sum() for name in flags}}
    spread = grouped[metrics].std(ddof=1).add_suffix("_std")
    means = grouped[metrics].mean().assign(**counts)
    return means.join(spread).copy().reset_index()  # a copy is not fragmented


class Eligible(NamedTuple):
    """The settings within the accuracy budget that may be chosen, and the others with the reason."""

    settings: pd.DataFrame
    rejected: list[str]


def reference(summary: pd.DataFrame) -> pd.Series | None:
    """Return the vanilla setting to compare others with, or ``None``.

    It is the most accurate one on validation; one with a constant model only if all have one.
    """
    vanilla = summary[is_vanilla(summary)]
    if vanilla.empty:
        return None
    sound = vanilla[vanilla[CONSTANT] == 0]
    candidates = vanilla if sound.empty else sound
    return candidates.sort_values(ACCURACY, kind="stable").iloc[-1]


def eligible(
    summary: pd.DataFrame,
    vanilla: pd.Series | None,
    max_accuracy_loss: float = math.inf,
    name_of: Callable[[pd.Series], str] = setting_name,
) -> Eligible:
    """Return the settings of a summary that may be chosen.

    The vanilla setting is always eligible itself. Without it there is no budget, and a collapse is recognised
    by constant models only. ``name_of`` names a rejected row.
    """
    lowest = -math.inf if vanilla is None else vanilla[ACCURACY] - max_accuracy_loss
    affordable = summary[summary[ACCURACY] >= lowest]
    others = affordable if vanilla is None else affordable.drop(index=vanilla.name, errors="ignore")
    rejected = {
        index: f"{name_of(row)}: {reason}"
        for index, row in others.iterrows()
        if (reason := _reason_against(row, vanilla))
    }
    return Eligible(affordable.drop(index=list(rejected)), list(rejected.values()))


def _reason_against(row: pd.Series, vanilla: pd.Series | None) -> str:
    if row[IDLE]:
        what = NEVER_ON if row["eta"] else "the adversary never stepped"
        return f"{row[IDLE]:g} of {row[MODELS]:g} models are vanilla ones: {what} before the kept epoch ended"
    if row[CONSTANT]:
        return f"{row[CONSTANT]:g} of {row[MODELS]:g} models give everyone the same decision"
    if vanilla is None or not has_collapsed(row[BALANCED], row[SHARE], vanilla[BALANCED], vanilla[SHARE]):
        return ""
    return f"{_decisions(row)}; the vanilla model has {_decisions(vanilla)}"


def _decisions(row: pd.Series) -> str:
    return f"balanced accuracy {row[BALANCED]:.3f} and {100 * row[SHARE]:.1f} % positive decisions"


def preferred(settings: pd.DataFrame, rule: ChoiceRule) -> pd.Series | None:
    """Return the row that the rule prefers; ``None`` if there is no row, or the rule's metric is unknown.

    Args:
        settings: One row per setting, usually the eligible ones.
        rule: ``"without S"``: the strongest penalty, that is the largest eta; among equals the smallest
            mean penalty, or without any penalty the highest validation accuracy. ``"with S"``, as in the
            paper: the smallest sum of dEO and dDP on validation. Otherwise the column to minimise;
            among equals the highest validation accuracy.
    """
    if rule == "without S":
        first, second = -settings["eta"], _mean_penalty(settings).where(settings["eta"] > 0)
    else:
        names = _GAPS if rule == "with S" else [rule]
        first = second = settings.reindex(columns=names).sum(axis=1, skipna=False)
    keys = pd.DataFrame({"first": first, "second": second, "third": -settings[ACCURACY]})
    order = keys[keys["first"].notna()].sort_values(["first", "second", "third"], kind="stable")
    return None if order.empty else settings.loc[order.index].iloc[0]


def most_accurate(settings: pd.DataFrame) -> pd.Series:
    """Return the row with the highest validation accuracy, the first one if there are several."""
    return settings.sort_values(ACCURACY, ascending=False, kind="stable").iloc[0]


def _mean_penalty(summary: pd.DataFrame) -> pd.Series:
    """Return the mean of the related features' R on validation: S-free, and comparable for all beta."""
    columns = [name for name in summary.columns if name.startswith("val_penalty/")]
    return summary[[name for name in columns if not name.endswith("_std")]].mean(axis=1)


@dataclass(frozen=True)
class Recommendation:
    """Rows of :func:`summarise`.

    Args:
        without_s: The largest eta whose validation accuracy is within the budget; in a grid of ARL, the
            adversary with the highest validation accuracy.
        with_s: The smallest ``dEO + dDP`` on validation within the same budget; it needs S there, and
            is ``None`` where no gap is known.
        vanilla: The vanilla setting that others were compared with, if there is one.
        rejected: Settings within the budget that have collapsed or are vanilla models, with the reason.
    """

    without_s: pd.Series
    with_s: pd.Series | None
    vanilla: pd.Series | None
    rejected: list[str]

    @property
    def is_vanilla(self) -> bool:
        """Whether the vanilla setting itself is recommended."""
        return self.vanilla is not None and bool(self.without_s.name == self.vanilla.name)


def recommend(summary: pd.DataFrame, max_accuracy_loss: float = 0.01) -> Recommendation:
    """Choose among the eligible settings of a grid.

    Args:
        summary: Table from :func:`summarise`; a grid of eta needs a vanilla setting in it.
        max_accuracy_loss: Maximum loss of mean validation accuracy against the vanilla setting.

    Raises:
        InputError: If the grid varies eta and has no vanilla setting to compare with.
    """
    vanilla = reference(summary)
    within = eligible(summary, vanilla, max_accuracy_loss)
    if strength_option(summary) == "adversary_lr":
        adversaries = summary[summary["adversary_lr"] > 0]
        sound = eligible(adversaries, vanilla)
        fallback = most_accurate(adversaries) if vanilla is None else vanilla
    elif vanilla is None:
        raise InputError("the accuracy budget is relative to eta 0: add 0 to the etas.")
    else:
        without = within.settings[within.settings["adversary_lr"] == 0]
        sound, fallback = within._replace(settings=without), vanilla
    best = preferred(sound.settings, "without S")
    without_s = fallback if best is None else best
    return Recommendation(without_s, preferred(within.settings, "with S"), vanilla, sound.rejected)


def strength_option(summary: pd.DataFrame) -> str:
    """Return the option that a grid varies: ``"eta"``, or ``"adversary_lr"`` for ARL alone."""
    has_adversary = "adversary_lr" in summary and summary["adversary_lr"].any()
    return "adversary_lr" if has_adversary and not summary["eta"].any() else "eta"


def choice_rule(summary: pd.DataFrame, max_accuracy_loss: float) -> str:
    """Return the rule of :func:`recommend` as the end of a sentence and further ones."""
    rule = (
        f"by the largest eta that keeps mean validation accuracy within {max_accuracy_loss:g} of eta 0; "
        "of its betas the smallest mean penalty."
    )
    if strength_option(summary) == "adversary_lr":
        rule = "by the highest mean validation accuracy of the adversaries."
    return f"{rule} A setting is eligible only with a {COLLAPSE_RULE}."


class Interval(NamedTuple):
    """A mean over seeds and its 95 % t-interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the mean and the ends, signed."""
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def mean_interval(values: Iterable[float], level: float = 0.95) -> Interval:
    """Return the t-interval of a mean over seeds; NaN for a single seed."""
    from scipy import stats  # noqa: PLC0415 - slow to import

    array = np.array(list(values), dtype=float)
    mean = float(array.mean())
    if len(array) < 2:
        return Interval(mean, float("nan"), float("nan"))
    radius = float(stats.t.ppf((1 + level) / 2, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array)))
    return Interval(mean, mean - radius, mean + radius)


def difference(runs: pd.DataFrame, baseline: pd.DataFrame, measure: str) -> Interval:
    """Return the mean of ``runs - baseline`` over their common seeds, which share their splits."""
    pairs = runs.groupby("seed")[measure].mean() - baseline.groupby("seed")[measure].mean()
    return mean_interval(pairs.dropna())


def setting_warning(row: pd.Series) -> str:
    """Return the warning that a setting's gaps carry no information, or an empty text."""
    if row[CONSTANT] == row[MODELS] or is_constant(row.get("test_positive_share", float("nan"))):
        return SAME_DECISION
    if row[CONSTANT]:
        return f"in {row[CONSTANT]:g} of {row[MODELS]:g} models: {SAME_DECISION}"
    return ""


def rejection_lines(rejected: Sequence[str]) -> list[str]:
    """Return one line per rejected setting, and only the number of those after the first five."""
    lines = [f"Rejected: {reason}." for reason in rejected]
    more = len(lines) - _MAX_NAMED
    return lines if more <= 0 else [*lines[:_MAX_NAMED], f"Rejected: {more} more settings."]


def pareto_front(accuracy: pd.Series, gap: pd.Series) -> list[int]:
    """Return the positions of the points that no other point beats in both, by increasing gap.

    >>> pareto_front(pd.Series([0.80, 0.85, 0.84]), pd.Series([0.02, 0.05, 0.06]))
    [0, 1]
    """
    front: list[int] = []
    best = float("-inf")
    order = pd.DataFrame({"gap": gap.to_numpy(), "loss": -accuracy.to_numpy()}).sort_values(["gap", "loss"])
    for position, loss in order["loss"].items():
        if -loss > best:
            front.append(int(str(position)))
            best = -loss
    return front
