"""The second objective of a sweep: an S-free measure, or a gap with the user's consent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.experiments.choose import ACCURACY, BALANCED, SHARE
from fairrf_lightning.experiments.stack import Stack
from fairrf_lightning.functional import Statistic
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.metrics.evaluation import FeaturePenalties
from fairrf_lightning.penalty import Given, RelatedFeaturePenalty

S_FREE: dict[str, tuple[Statistic, Given]] = {
    "val_covariance": ("covariance", "all"),
    "val_correlation": ("correlation", "all"),
    "val_covariance_positives": ("covariance", "positives"),
    "val_correlation_positives": ("correlation", "positives"),
}
WITH_S = tuple(f"val_{key}" for key in GAPS)
_CONSENT = "with_s:"


@dataclass(frozen=True)
class Objective:
    """The second objective of a sweep; the first is validation accuracy.

    The S-free ones are the mean of the related features' ``R`` on the validation rows. Statistic and rows
    are the same for all trials, whatever their penalty, so that trials can be compared.

    Args:
        name: Name of the measure, such as ``"val_covariance"`` or ``"val_dp_gap"``.

    >>> Objective.parse("with_s:val_dp_gap").uses_sensitive
    True
    """

    name: str = "val_covariance"

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Return the objective of ``--objective``; a gap needs the prefix ``with_s:``."""
        name = text.removeprefix(_CONSENT)
        if name not in (*S_FREE, *WITH_S):
            choices = [*S_FREE, *(_CONSENT + gap for gap in WITH_S)]
            raise InputError(f"--objective {text}: no such objective; {did_you_mean(text, choices)}")
        if (name in WITH_S) != text.startswith(_CONSENT):
            looks = "looks at S on the validation rows; if you may, say so by"
            advice = looks if name in WITH_S else "does not look at S; write"
            right = f"{_CONSENT}{name}" if name in WITH_S else name
            raise InputError(f"--objective {text}: {name} {advice} --objective {right}")
        return cls(name)

    @property
    def uses_sensitive(self) -> bool:
        """Whether S of the validation rows is used."""
        return self.name in WITH_S

    def check(self, data: TabularDataModule) -> None:
        """Raise if the data lack what is measured, or expose S without consent."""
        if self.uses_sensitive and data.sensitive is None:
            raise InputError(
                f"--objective with_s:{self.name}: the data do not say which group a row belongs to; "
                f"name the column of S, or take an S-free objective: {', '.join(S_FREE)}."
            )
        if data.expose_sensitive and not self.uses_sensitive:
            raise InputError(
                f"expose_sensitive shows S to the penalty, and {self.name} would measure it: "
                f"take one of {', '.join(_CONSENT + gap for gap in WITH_S)}."
            )

    def measure(self, stack: Stack) -> dict[str, Tensor]:
        """Return accuracy, this measure and those of eligibility of a stack's models, ``(S, P)`` each."""
        values = stack.evaluate(["val"])
        if not self.uses_sensitive:
            values[self.name] = self._mean_penalty(stack)
        # Gaps that were not asked for are not kept.
        return {name: values[name] for name in (ACCURACY, self.name, BALANCED, SHARE)}

    @torch.no_grad()
    def _mean_penalty(self, stack: Stack) -> Tensor:
        module, own = stack.module, stack.module.penalty
        statistic, given = S_FREE[self.name]
        features: dict[str, list[int]] = {name: [] for name in own.feature_names}
        for column, owner in zip(own.columns.tolist(), own.column_feature.tolist(), strict=True):
            features[own.feature_names[owner]].append(column)
        common = RelatedFeaturePenalty(features, own.eta, statistic, given).to(module.device)
        metric = FeaturePenalties(common).to(module.device)
        module.eval()
        for rows in stack.data.val_dataloader():
            batch = {name: value.to(module.device) for name, value in rows.items()}
            inputs, target, _ = module.unpack(batch)
            metric.update(own.probabilities(module(inputs)), module.related_of(batch, inputs), target)
        penalties: Tensor = metric.compute()
        return penalties.view_as(own.weights).mean(-1)
