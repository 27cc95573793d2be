"""Which setting of a grid to take: by a rule without S, and for comparison by one with S."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.eligibility import (
    ACCURACY,
    Eligible,
    eligible,
    means_over_seeds,
    reference,
    why_not,
)
from fairrf_lightning.experiments.setting import SETTING_COLUMNS, setting_name
from fairrf_lightning.metrics.decisions import COLLAPSE_RULE


@dataclass(frozen=True)
class Recommendation:
    """Rows of :func:`summarise`.

    Args:
        without_s: The largest eta whose validation accuracy is within the budget; in a grid of ARL, the
            adversary with the highest validation accuracy.
        with_s: The smallest ``dEO + dDP`` on validation within the same budget; it needs S there, and
            is ``None`` where no gap is known.
        vanilla: The vanilla setting that others were compared with, if there is one.
        rejected: Settings that could have been chosen by their accuracy but have collapsed or are
            vanilla models, with the reason.
    """

    without_s: pd.Series
    with_s: pd.Series | None
    vanilla: pd.Series | None
    rejected: list[str]

    @property
    def is_vanilla(self) -> bool:
        """Whether the vanilla setting itself is recommended."""
        return self.vanilla is not None and bool(self.without_s.name == self.vanilla.name)


def summarise(results: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation over seeds of each setting's measures.

    Columns are the options of the setting, ``<measure>``, ``<measure>_std``, and the numbers of ``models``,
    of ``constant_models``, which give every validation row the same decision, and of ``idle_models``,
    which neither penalty nor adversary had a step in.
    """
    measures = [name for name in results.columns if name.startswith(("val_", "test_", "lambda/"))]
    means = means_over_seeds(results, SETTING_COLUMNS, measures)
    grouped = results.groupby(SETTING_COLUMNS, sort=False, dropna=False)[measures]
    return means.join(grouped.std(ddof=1).add_suffix("_std").reset_index(drop=True))


def recommend(summary: pd.DataFrame, max_accuracy_loss: float = 0.01) -> Recommendation:
    """Choose among the settings that have not collapsed, within a budget of validation accuracy.

    Args:
        summary: What :func:`summarise` returned; a grid of eta needs a vanilla setting in it.
        max_accuracy_loss: How much lower than that of vanilla the mean validation accuracy may be.

    Raises:
        InputError: If eta was turned up and there is no vanilla setting to compare with.
    """
    vanilla = reference(summary)
    if strength_option(summary) == "adversary_lr":
        return _most_accurate_adversary(summary, vanilla, max_accuracy_loss)
    if vanilla is None:
        raise InputError("the budget of accuracy is relative to eta 0: add 0 to the etas.")
    within = eligible(summary, vanilla, max_accuracy_loss)
    affordable: Any = within.settings[within.settings["adversary_lr"] == 0]
    strongest = affordable[affordable["eta"] == affordable["eta"].max()]
    without_s = strongest.loc[_mean_penalty(strongest).idxmin()]
    with_s, rejected = _smallest_gaps(within.settings), _named(summary, within.rejected)
    return Recommendation(without_s, with_s, vanilla, rejected)


def strength_option(summary: pd.DataFrame) -> str:
    """Return what turns up the method of a grid: ``"eta"``, or ``"adversary_lr"`` for ARL alone."""
    has_adversary = "adversary_lr" in summary and summary["adversary_lr"].any()
    return "adversary_lr" if has_adversary and not summary["eta"].any() else "eta"


def choice_rule(summary: pd.DataFrame, max_accuracy_loss: float) -> str:
    """Return how the recommended setting is chosen, as the end of a sentence and further ones."""
    rule = (
        f"by the largest eta that keeps mean validation accuracy within {max_accuracy_loss:g} of eta 0; "
        "of its betas the smallest mean penalty."
    )
    if strength_option(summary) == "adversary_lr":
        rule = "by the highest mean validation accuracy of the adversaries."
    return f"{rule} A setting is eligible only with a {COLLAPSE_RULE}."


def _most_accurate_adversary(
    summary: pd.DataFrame, vanilla: pd.Series | None, max_accuracy_loss: float
) -> Recommendation:
    adversaries: Any = summary[summary["adversary_lr"] > 0]
    reasons = {index: why_not(row, vanilla) for index, row in adversaries.iterrows()}
    rejected = {index: reason for index, reason in reasons.items() if reason}
    sound = adversaries.drop(index=list(rejected))
    within = Eligible(sound, rejected) if vanilla is None else eligible(summary, vanilla, max_accuracy_loss)
    if sound.empty and vanilla is not None:
        without_s = vanilla
    else:
        candidates = adversaries if sound.empty else sound
        without_s = candidates.loc[candidates[ACCURACY].idxmax()]
    return Recommendation(without_s, _smallest_gaps(within.settings), vanilla, _named(summary, rejected))


def _smallest_gaps(settings: Any) -> pd.Series | None:
    gaps = settings.reindex(columns=["val_eo_gap", "val_dp_gap"]).sum(axis=1, skipna=False)
    return settings.loc[gaps.idxmin()] if gaps.notna().any() else None


def _named(summary: pd.DataFrame, rejected: dict[Any, str]) -> list[str]:
    return [f"{setting_name(summary.loc[index])}: {reason}" for index, reason in rejected.items()]


def _mean_penalty(summary: pd.DataFrame) -> pd.Series:
    """Return the mean of the related features' R on validation: S-free, and the same for all beta."""
    columns = [name for name in summary.columns if name.startswith("val_penalty/")]
    return summary[[name for name in columns if not name.endswith("_std")]].mean(axis=1)
