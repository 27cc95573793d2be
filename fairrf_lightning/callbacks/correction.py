"""Corrects the decisions of the trained model when ``fit`` ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from fairrf_lightning.correction import Correction, Goal, check_goal, fit_if_detected
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.estimate import ACT_ABOVE, GapEstimate, ScoredRows
from fairrf_lightning.membership import Membership, find_membership
from fairrf_lightning.module import FairRFModule, single_logit
from fairrf_lightning.survey import Survey

MembershipFunction: TypeAlias = Callable[[Tensor], Tensor]


class CorrectionCallback(Callback):
    """Corrects the decisions of the trained model at the end of ``fit``, on the validation rows without S.

    With :class:`FairRFModule` and its data, give a survey, published statistics or a column. The module then
    has the correction: its logits are corrected, and ``trainer.save_checkpoint`` keeps it. Checkpoints that
    were written during ``fit`` are not corrected; the command ``correct`` corrects one of these.

    With another module, give ``membership``. Its code and its outputs stay as they are: take decisions from
    :meth:`decide`. ``forward`` maps inputs to logits, and validation batches have inputs and target, as a
    tuple or under these names.

    Args:
        survey: People whose S is known, or a file of them.
        proxies: YAML file of S's share and its correlations with columns.
        column: Input column that holds ``P(S = 1 | x)``.
        membership: Function of the inputs: ``P(S = 1 | x)``, ``(N,)``, or ``P(S = k | x)``, ``(N, G)``; for
            equal opportunity given y = 1.
        sensitive: Column of S in the survey; by default that of the data.
        group: Value of S that counts as S = 1.
        goal: ``"dp=0.10"``, ``"eo=0.05"``; without a number the smallest gap within the budget.
        max_accuracy_loss: Maximum loss of validation accuracy.
        act_above: With a survey, act only if the estimated gap exceeds this and 1.64 standard errors.

    Attributes:
        correction: The correction; ``None`` before the end of ``fit``, and if no gap was detected.
        detected: The gap that the survey shows before the correction; ``None`` without a survey.
    """

    def __init__(
        self,
        survey: str | Path | Survey | None = None,
        *,
        proxies: str | Path | None = None,
        column: str | None = None,
        membership: MembershipFunction | None = None,
        sensitive: str | None = None,
        group: str | None = None,
        goal: str | None = None,
        max_accuracy_loss: float = 0.005,
        act_above: float = ACT_ABOVE,
    ) -> None:
        if sum(part is not None for part in (survey, proxies, column, membership)) != 1:
            raise InputError("CorrectionCallback: give one of survey, proxies, column and membership.")
        self.goal = Goal.parse(goal, max_accuracy_loss, act_above)
        self.membership = membership
        self._source: dict[str, Any] = {"survey": survey, "proxies": proxies, "column": column}
        self._source |= {"sensitive": sensitive, "group": group}
        self.correction: Correction | None = None
        self.detected: GapEstimate | None = None
        self._known: tuple[Membership, Survey | None] | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Fail fast on what cannot be corrected."""
        if stage != "fit":
            return
        if trainer.world_size > 1:
            raise InputError(
                "CorrectionCallback works in one process, because a rank sees a part of the validation rows "
                "only. Leave it out and run `correct` on the checkpoint."
            )
        data = getattr(trainer, "datamodule", None)
        own = isinstance(pl_module, FairRFModule) and isinstance(data, TabularDataModule)
        if self.membership is None and not own:
            raise InputError(
                "CorrectionCallback: a survey, proxies or a column need FairRFModule with a data module of "
                "this package. For other modules, give membership, a function of the inputs."
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Train without a correction, also in a second fit; fail fast on files that cannot be used."""
        self.correction = self.detected = None
        if isinstance(pl_module, FairRFModule):
            pl_module.correction = None
        if self.membership is None:
            self._known = find_membership(trainer.datamodule, **self._source)  # type: ignore[attr-defined]
            check_goal(self.goal, *self._known)

    @torch.no_grad()
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Choose the correction, and give it to a FairRFModule."""
        was_training = pl_module.training
        pl_module.eval()
        if self._known is not None:
            self._correct_own(*self._known, trainer.datamodule, pl_module)  # type: ignore[attr-defined]
        else:
            self._correct_foreign(trainer.val_dataloaders, pl_module)
        pl_module.train(was_training)
        rank_zero_info(f"Correction: {self._summary()}")

    def decide(self, probs: Tensor, inputs: Tensor) -> Tensor:
        """Return the decisions 0 or 1: corrected ones, or uncorrected ones if there is no correction.

        Args:
            probs: Uncorrected probabilities of the positive class ``(N,)``.
            inputs: Inputs of membership ``(N, D)``.
        """
        if self.correction is not None and self.membership is not None:
            return self.correction.decide(probs, self.membership(inputs))
        scores = probs if self.correction is None else self.correction(probs, inputs)
        return (scores >= 0.5).long()

    def _correct_own(
        self, membership: Membership, survey: Survey | None, data: TabularDataModule, module: LightningModule
    ) -> None:
        self.correction, self.detected = fit_if_detected(
            ScoredRows.of(data, "val", lambda batch: _probabilities(module, batch["inputs"])),
            membership,
            survey,
            None if survey is None else _probabilities(module, survey.inputs),
            goal=self.goal,
        )
        if isinstance(module, FairRFModule) and self.correction is not None:
            module.correction = self.correction.to(module.device)

    def _correct_foreign(self, loader: Iterable[Any] | None, module: LightningModule) -> None:
        if loader is None or self.membership is None:
            raise InputError(
                "CorrectionCallback: the strength is chosen on validation rows; give a loader of them."
            )
        parts = [_inputs_and_target(batch) for batch in loader]
        inputs, target = (torch.cat(part) for part in zip(*parts, strict=True))
        self.correction = Correction.fit(
            _probabilities(module, inputs),
            self.membership(inputs),
            target=target.flatten(),
            goal=self.goal,
        )

    def _summary(self) -> str:
        label = self.goal.definition.label
        if self.correction is None or self.correction.outcome is None:
            return f"no gap detected ({label} {self.detected}): nothing was changed."
        done = self.correction.outcome
        return (
            f"{label} {done.gap_before:.3f} -> {done.gap_after:.3f} by membership, accuracy "
            f"{done.accuracy_before:.4f} -> {done.accuracy_after:.4f} on {done.num_rows:,} validation rows "
            f"(stopped by: {done.stopped_by})."
        )


def _probabilities(module: LightningModule, inputs: Tensor) -> Tensor:
    logits: Tensor = module(inputs.to(module.device))
    return single_logit(logits).double().sigmoid().cpu()


def _inputs_and_target(batch: Any) -> tuple[Tensor, Tensor]:
    found = (batch.get("inputs"), batch.get("target")) if isinstance(batch, Mapping) else tuple(batch)[:2]
    if len(found) != 2 or not all(isinstance(part, Tensor) for part in found):
        raise InputError(
            "CorrectionCallback: expected validation batches (inputs, target), or dicts with these keys."
        )
    return found[0].cpu(), found[1].cpu()
