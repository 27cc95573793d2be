"""What a validation or test epoch measures, for each model of a stack."""

from __future__ import annotations

import torch
from torch import Tensor

from fairrf_lightning.metrics.counts import reduce_rates
from fairrf_lightning.metrics.decisions import decision_summary
from fairrf_lightning.metrics.evaluation import FeaturePenalties
from fairrf_lightning.penalty import RelatedFeaturePenalty

_CONDITIONS = {"dp": ("all",), "eo": ("positives",), "eodds": ("positives", "negatives")}


class StackedMetrics:
    """Loss, penalty, accuracy and fairness gaps of ``(S, P)`` models, by the formulas of ``metrics``.

    Args:
        penalty: The penalty of the stack.
        num_groups: Number of groups of the sensitive attribute.
    """

    def __init__(self, penalty: RelatedFeaturePenalty, num_groups: int) -> None:
        self._penalty = penalty
        self._num_groups = num_groups
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._related = FeaturePenalties(self._penalty).to(self._penalty.weights.device)
        self._rows = 0
        self._loss: Tensor | float = 0.0
        self._decided: dict[str, Tensor | int] = dict.fromkeys(("tp", "fp", "tn", "fn"), 0)
        self._counts: Tensor | float = 0.0
        self._sums: dict[str, Tensor | float] = {"hard": 0.0, "prob": 0.0}

    def update(self, loss: Tensor, logits: Tensor, batch: dict[str, Tensor]) -> None:
        """Add a batch; ``loss`` ``(S, P)`` is the mean over its rows, ``logits`` are ``(S, P, N)``."""
        target = batch["target"]
        probs = self._penalty.probabilities(logits)
        hard = probs >= 0.5
        self._rows += target.shape[-1]
        self._loss = self._loss + loss.double() * target.shape[-1]
        self._count_decisions(hard, target.unsqueeze(1) > 0.5)
        self._related.update(probs, related_of(batch).unsqueeze(1), target.unsqueeze(1))
        if "groups" not in batch:
            return
        cells = self._cells(target, batch["groups"])
        self._counts = self._counts + cells.sum(1)
        for mode, values in (("hard", hard), ("prob", probs)):
            sums = values.double() @ cells.flatten(2)
            self._sums[mode] = self._sums[mode] + sums.view(*sums.shape[:2], *cells.shape[2:])

    def compute(self) -> dict[str, Tensor]:
        """Return ``(S, P)`` by name, and ``penalty/<feature>``."""
        by_feature = self._related.compute().view_as(self._penalty.weights)  # torchmetrics squeezes
        loss, total = torch.as_tensor(self._loss) / self._rows, self._penalty.total(by_feature)
        objective = loss + self._penalty.objective(by_feature)
        values = {"loss": loss, "penalty": total, "objective": objective}
        values |= decision_summary(**{name: torch.as_tensor(n) for name, n in self._decided.items()})
        for mode, sums in self._sums.items() if isinstance(self._counts, Tensor) else ():
            suffix = "" if mode == "hard" else "_prob"
            rates = self._rates(torch.as_tensor(sums))
            for name, conditions in _CONDITIONS.items():
                chosen = torch.stack([rates[condition] for condition in conditions], dim=-2)
                values[f"{name}_gap{suffix}"] = reduce_rates(chosen, "gap")
                values[f"{name}_mean_deviation{suffix}"] = reduce_rates(chosen, "mean_deviation")
        names = (f"penalty/{name}" for name in self._penalty.feature_names)
        return values | dict(zip(names, by_feature.unbind(-1), strict=True))

    def _count_decisions(self, hard: Tensor, positive: Tensor) -> None:
        cells = {
            "tp": hard & positive,
            "fp": hard & ~positive,
            "tn": ~hard & ~positive,
            "fn": ~hard & positive,
        }
        self._decided = {name: self._decided[name] + cell.sum(-1) for name, cell in cells.items()}

    def _cells(self, target: Tensor, groups: Tensor) -> Tensor:
        """Return which rows are positives and negatives of each group, ``(S, N, 2, G)``."""
        in_group = groups.unsqueeze(-1) == torch.arange(self._num_groups, device=groups.device)
        positive = target.unsqueeze(-1) > 0.5
        return torch.stack([in_group & positive, in_group & ~positive], dim=-2).double()

    def _rates(self, sums: Tensor) -> dict[str, Tensor]:
        counts = torch.as_tensor(self._counts).unsqueeze(1)
        positives, negatives = (sums / counts).unbind(-2)
        return {"all": sums.sum(-2) / counts.sum(-2), "positives": positives, "negatives": negatives}


def related_of(batch: dict[str, Tensor]) -> Tensor:
    """Return the columns that the penalty is on, ``(S, N, C)``: beside the inputs, or these."""
    return batch["related"] if "related" in batch else batch["inputs"]
