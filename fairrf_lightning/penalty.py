"""The fairness loss as a plain ``nn.Module``, exact over the ranks of a distributed run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairrf_lightning.errors import DivergedError, InputError, check_choice
from fairrf_lightning.functional import (
    STATISTICS,
    Moments,
    Rule,
    Statistic,
    batch_moments,
    lambda_cost,
    merge_moments,
    penalties_from_moments,
    solve_lambda,
)

Given: TypeAlias = Literal["all", "positives"]

UPDATE_INTERVAL = 50  # default number of optimiser steps between updates of lambda
_MAX_PENDING = 64


class _GatherRanks(torch.autograd.Function):
    """Stack a tensor over the ranks, with gradient.

    The backward pass sums over ranks: each rank's loss depends on every rank's part, and DDP divides
    the sum of the parameter gradients by the number of ranks again.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:  # noqa: ARG004 - autograd's signature
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # noqa: ARG004 - autograd's signature
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[dist.get_rank()]


class RelatedFeaturePenalty(nn.Module):
    """``eta * sum_j lambda_j R_j``: the association of the prediction with the related features.

    In training under ``torch.distributed`` the covariance is over the rows of all ranks; the mean of the
    ranks' own penalties would be another number, because ``|cov|`` is not linear. For the same reason
    accumulated batches are not one large batch: each part has a penalty of its own.
    Computed in float32 or wider even under autocast; lambda stays float32 in any precision.

    Args:
        related: Column numbers of the input for each related feature.
        eta: Weight of the penalty, 0 or more; 0 is the vanilla model. For stacked models a tensor
            ``(...)``, with predictions ``(..., N)``.
        statistic: ``"covariance"``, or ``"correlation"``, which is invariant to the scale of the predictions.
        given: ``"all"`` rows (demographic parity) or the ``"positives"`` (equal opportunity).
        initial_weights: lambda to start from, by feature name; ``1 / K`` each when ``None``.
        from_logits: Whether predictions are logits (``(N,)``, ``(N, 1)`` or ``(N, 2)``) or the
            probabilities of the positive class.
        feature_mask: Features that each stacked model penalises, boolean ``(..., K)``; all when ``None``.
            The others keep a lambda of 0.

    >>> penalty = RelatedFeaturePenalty({"age": [0], "relationship": [1, 2]}, eta=0.5)
    >>> inputs = torch.tensor([[1.0, 0.0, 1.0], [-1.0, 1.0, 0.0]])
    >>> penalty(torch.tensor([2.0, -2.0]), inputs)
    tensor(0.1904)
    >>> penalty.weights
    tensor([0.5000, 0.5000])

    Attributes:
        enabled: Whether the penalty is on; ``PretrainCallback`` switches it.
        beta: Weight of ``|lambda|^2`` that lambda is solved with; ``None`` while lambda is fixed.
        rule: The rule that lambda is solved by. ``LambdaUpdateCallback`` sets both.
    """

    weights: Tensor
    columns: Tensor
    column_feature: Tensor
    feature_mask: Tensor | None

    def __init__(
        self,
        related: Mapping[str, Sequence[int]],
        eta: float | Tensor = 0.3,
        statistic: Statistic = "covariance",
        given: Given = "all",
        initial_weights: Mapping[str, float] | None = None,
        *,
        from_logits: bool = True,
        feature_mask: Tensor | None = None,
    ) -> None:
        super().__init__()
        _check_related(related)
        check_choice("statistic", statistic, STATISTICS)
        check_choice("given", given, get_args(Given))
        if isinstance(eta, Tensor):
            self.register_buffer("eta", eta, persistent=False)
        else:
            self.eta: float | Tensor = eta
        values = torch.as_tensor(eta)
        if not bool(((values >= 0) & values.isfinite()).all()):
            raise InputError(f"eta = {eta!r}: expected 0 (no penalty) or a positive number.")
        self.feature_names = list(related)
        self._related = {name: list(feature) for name, feature in related.items()}
        self.statistic: Statistic = statistic
        self.given: Given = given
        self.from_logits = from_logits
        self.enabled = True
        columns = [c for feature in related.values() for c in feature]
        self._last_column = max(columns)
        column_feature = [j for j, feature in enumerate(related.values()) for _ in feature]
        start = _initial_weights(self.feature_names, initial_weights).expand(*values.shape, -1).clone()
        self._initial = start if feature_mask is None else _masked(start, feature_mask)
        self.register_buffer("weights", self._initial.clone())
        self.register_buffer("columns", torch.tensor(columns), persistent=False)
        self.register_buffer("column_feature", torch.tensor(column_feature), persistent=False)
        self.register_buffer("feature_mask", feature_mask, persistent=False)
        self.reset()

    def reset(self) -> None:
        """Return to the initial lambda; drop the rows and counters of earlier fits.

        The callbacks and FairRFModule call this at the start of each fit that does not resume.
        """
        self.weights = self._initial.to(self.weights.device, copy=True)
        self.beta: float | Tensor | None = None
        self.rule: Rule = "kkt"
        self._pending: list[Tensor] = []
        self._counts: Any = [0, 0]  # penalised steps and updates; see hold_in

    @property
    def penalised_steps(self) -> int:
        """Number of training batches so far with the penalty on."""
        return int(self._counts[0])

    @property
    def updates(self) -> int:
        """Number of updates of lambda so far."""
        return int(self._counts[1])

    @property
    def is_wanted(self) -> bool:
        """Whether ``eta`` is positive (for any model of a stack)."""
        return bool(torch.as_tensor(self.eta).any())

    def forward(self, preds: Tensor, inputs: Tensor, target: Tensor | None = None) -> Tensor:
        """Return the penalty, a scalar (``(...)`` for stacked models).

        Args:
            preds: Logits or probabilities, see ``from_logits``.
            inputs: The rows' inputs ``(N, D)``; the related columns are taken from them.
            target: Labels ``(N,)``, required for ``given="positives"``.
        """
        if not self.enabled or (isinstance(self.eta, float | int) and self.eta == 0):
            return self.weights.new_zeros(self.weights.shape[:-1])
        moments = self.moments(self.probabilities(preds), inputs, target)
        if self.training and dist.is_available() and dist.is_initialized():
            moments = merge_moments(_GatherRanks.apply(moments.pack()))  # type: ignore[no-untyped-call]
        if self.training:
            self._remember(moments)
        return self.total(self.penalties(moments))

    def probabilities(self, preds: Tensor) -> Tensor:
        """Return the probability of the positive class, ``(..., N)``, in float32 or wider."""
        preds = preds.to(torch.promote_types(preds.dtype, torch.float32))
        if self.weights.ndim == 1 and preds.ndim == 2:
            if preds.shape[1] not in (1, 2):
                raise InputError(
                    f"predictions of shape {tuple(preds.shape)}: expected (N,), (N, 1) or (N, 2); "
                    "FairRF is for two classes."
                )
            if preds.shape[1] == 1:
                preds = preds.squeeze(1)
            else:
                preds = preds[:, 1] - preds[:, 0] if self.from_logits else preds[:, 1]
        return preds.sigmoid() if self.from_logits else preds

    def moments(self, probs: Tensor, inputs: Tensor, target: Tensor | None = None) -> Moments:
        """Return the moments of these rows (of this rank)."""
        if self.given == "positives" and target is None:
            raise InputError("given='positives' needs the labels: call penalty(preds, inputs, target).")
        mask = None
        if self.given == "positives" and target is not None:
            mask = (target.flatten() if self.weights.ndim == 1 else target) > 0.5
        self.check_inputs(inputs)
        related = inputs.index_select(-1, self.columns)
        return batch_moments(probs, related, mask, squares=STATISTICS[self.statistic].needs_squares)

    def check_inputs(self, inputs: Tensor) -> None:
        """Raise :class:`InputError` unless the inputs have all related columns."""
        last = inputs.shape[-1] - 1
        if last < self._last_column:
            beyond = {name: columns for name, columns in self._related.items() if max(columns) > last}
            raise InputError(
                f"related = {beyond}: the inputs have columns 0 to {last}. Correct the numbers, or give the "
                "penalty inputs that have these columns."
            )

    def penalties(self, moments: Moments) -> Tensor:
        """Return ``R`` of each feature, ``(..., K)``."""
        return penalties_from_moments(moments, self.column_feature, len(self.feature_names), self.statistic)

    def total(self, penalties: Tensor) -> Tensor:
        """Return ``eta * sum_j lambda_j R_j``."""
        return self.eta * (self.weights * penalties).sum(-1)

    @torch.no_grad()
    def objective(self, penalties: Tensor) -> Tensor:
        """Return the penalty's part of the objective that epochs are compared by.

        While lambda is learned, this is ``eta * min (sum_j lambda_j R_j + beta |lambda|^2)`` over lambda, a
        function of ``R`` alone, so that epochs with different lambda are comparable. The rule
        ``worst_case`` takes the maximum of ``sum_j lambda_j R_j - beta |lambda|^2`` instead. With a fixed
        lambda it is :meth:`total`.
        """
        if self.beta is None:
            return self.total(penalties)
        return self.eta * lambda_cost(penalties, self.beta, self.rule, self.feature_mask)

    @torch.no_grad()
    def pending_penalties(self) -> Tensor | None:
        """Return ``R`` of the rows since the last update of lambda, ``(..., K)``; ``None`` without rows."""
        if not self._pending:
            return None
        return self.penalties(merge_moments(torch.stack(self._pending)))

    @torch.no_grad()
    def update_weights(self, beta: float | Tensor, rule: Rule = "kkt") -> Tensor | None:
        """Solve for lambda from the rows since the last update; return their ``R``, ``None`` without rows.

        Raises:
            DivergedError: If ``R`` is not finite.
        """
        penalties = self.pending_penalties()
        if penalties is None:
            return None
        if not bool(penalties.isfinite().all()):
            values = dict(zip(self.feature_names, penalties.movedim(-1, 0).tolist(), strict=True))
            raise DivergedError(
                f"the penalties {values} are not finite, so lambda cannot be solved for: "
                "the predictions have diverged. Lower the learning rate or clip gradients."
            )
        # Out of place: autograd may still hold the old weights between forward and backward.
        self.weights = solve_lambda(penalties, beta, rule, self.feature_mask).to(self.weights.dtype)
        self._pending = []
        self._counts[1] += 1
        return penalties

    @torch.no_grad()
    def _remember(self, moments: Moments) -> None:
        self._counts[0] += 1
        # Merged rarely: merging in each step would cost more than the penalty itself.
        self._pending.append(moments.pack().detach())
        if len(self._pending) == _MAX_PENDING:
            self._pending = [merge_moments(torch.stack(self._pending)).pack()]

    def hold_in(self, weights: Tensor, counts: Tensor) -> None:
        """Copy lambda and the counters into these tensors, and hold them there until the next reset.

        Args:
            weights: Tensor of the shape of lambda, on the CPU.
            counts: Whole numbers: penalised steps and updates.
        """
        weights.copy_(self.weights)
        counts.copy_(torch.tensor([self.penalised_steps, self.updates]))
        if self.weights.device == weights.device:
            self.weights, self._counts = weights, counts

    def get_extra_state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs in addition to lambda, part of the ``state_dict``."""
        pending = torch.stack(self._pending) if self._pending else self.weights.new_empty(0)
        return {
            "pending": pending,
            "penalised_steps": self.penalised_steps,
            "updates": self.updates,
            "beta": 0.0 if self.beta is None else self.beta,
            "worst_case": self.rule == "worst_case",
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Resume from the state of a checkpoint.

        Raises:
            InputError: If the state is damaged.
        """
        counters = (state["penalised_steps"], state["updates"])
        if not isinstance(state["pending"], Tensor) or not all(type(count) is int for count in counters):
            raise InputError("the checkpoint's state of the penalty is damaged: restore it from a copy.")
        self._pending = list(state["pending"].to(self.weights.device))
        self._counts = [state["penalised_steps"], state["updates"]]
        fixed = not torch.as_tensor(state["beta"]).any()
        self.beta, self.rule = (
            None if fixed else state["beta"],
            "worst_case" if state["worst_case"] else "kkt",
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RelatedFeaturePenalty:  # noqa: FBT001, FBT002 - nn.Module's signature
        kept = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in kept.items():
            moved = self._buffers[name]
            if moved is not None and moved.dtype != buffer.dtype:
                # `.to(bfloat16)` may move the module but must not round lambda.
                self._buffers[name] = buffer.to(moved.device)
        self._pending = [moments.to(self.weights.device) for moments in self._pending]
        return self


def _check_related(related: Mapping[str, Sequence[int]]) -> None:
    if not related:
        raise InputError("related = {}: expected at least one related feature with its columns.")
    for name, columns in related.items():
        if not columns or any(not isinstance(c, int) or c < 0 for c in columns):
            raise InputError(
                f"related[{name!r}] = {columns!r}: expected the feature's column numbers, 0 or more."
            )


def _masked(weights: Tensor, feature_mask: Tensor) -> Tensor:
    weights = weights.where(feature_mask, 0.0)
    if feature_mask.shape != weights.shape or not bool((weights.sum(-1) > 0).all()):
        raise InputError(
            f"feature_mask of shape {tuple(feature_mask.shape)}: expected {tuple(weights.shape)}, with a "
            "feature of positive weight for each model."
        )
    return weights / weights.sum(-1, keepdim=True)


def _initial_weights(names: list[str], given: Mapping[str, float] | None) -> Tensor:
    if given is None:
        return torch.full((len(names),), 1 / len(names))
    weights = torch.tensor([given.get(name, float("nan")) for name in names])
    on_simplex = bool((weights >= 0).all()) and abs(float(weights.sum()) - 1) < 1e-4
    if set(given) != set(names) or not on_simplex:
        raise InputError(
            f"initial_weights = {dict(given)}: expected a weight of 0 or more for each of "
            f"{', '.join(names)}, adding up to 1."
        )
    return weights / weights.sum()
