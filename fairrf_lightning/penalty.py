"""The fairness loss as a plain ``nn.Module``, exact over the ranks of a distributed run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairrf_lightning.errors import DivergedError, InputError, check_choice
from fairrf_lightning.functional import (
    PROBABILITY_WIDTH,
    STATISTICS,
    Moments,
    Rule,
    Statistic,
    batch_moments,
    fourier_frequencies,
    lambda_cost,
    merge_moments,
    penalties_from_moments,
    solve_lambda,
    weighted_covariances,
)
from fairrf_lightning.related import (
    Categorical,
    Columns,
    Declared,
    by_number,
    check_codes,
    check_declared,
    check_known_rows,
    check_means,
    check_spreads,
    check_values,
    encode,
    names_in,
    numbers_of,
)

Given: TypeAlias = Literal["all", "positives"]
Output: TypeAlias = Literal["softmax", "sigmoid", "probability", "regression"]
MissingValues: TypeAlias = Literal["raise", "skip"]

UPDATE_INTERVAL = 50  # default number of optimiser steps between updates of lambda
_MAX_PENDING = 64
_CHECKED_BATCHES = 10  # at the start of a fit, for predictions and columns that are not what they seem
_WIDE = (torch.float32, torch.float64)


class _GatherRanks(torch.autograd.Function):
    """Stack a tensor over the ranks, with gradient.

    The backward pass sums over ranks: each rank's loss depends on every rank's part, and DDP divides
    the sum of the parameter gradients by the number of ranks again.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:  # noqa: ARG004 - autograd's signature
        return _gather_ranks(part)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # noqa: ARG004 - autograd's signature
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[dist.get_rank()]


def _gather_ranks(part: Tensor) -> Tensor:
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part.contiguous())
    return torch.stack(parts)


class RelatedFeaturePenalty(nn.Module):
    """``eta * sum_j lambda_j R_j``: the association of the prediction with the related features.

    In training under ``torch.distributed`` the covariance is over the rows of all ranks; the mean of the
    ranks' own penalties would be another number, because ``|cov|`` is not linear. For the same reason
    accumulated batches are not one large batch: each part has a penalty of its own.
    Computed in float32 or wider even under autocast; lambda stays float32 in any precision.

    Args:
        related: Column numbers of the input for each related feature, or a :class:`Categorical` for a column
            of category codes, which is encoded one-hot. Or the names of columns (``{"age": "age"}``), once
            :meth:`name_columns` has been told the names; ``LambdaUpdateCallback`` does that.
        eta: Weight of the penalty, 0 or more; 0 is the vanilla model. For stacked models a tensor
            ``(...)``, with predictions ``(..., N)``.
        statistic: ``"covariance"``; ``"correlation"``, which is invariant to the scale of the predictions; or
            ``"hsic"``, the root of the Hilbert-Schmidt independence criterion with Gaussian kernels, which
            sees non-linear dependence. Its kernels expect standardised columns.
        given: ``"all"`` rows (demographic parity) or the ``"positives"`` (equal opportunity).
        initial_weights: lambda to start from, by feature name; ``1 / K`` each when ``None``.
        output: Meaning of the predictions. ``"softmax"``: logits of classes, ``(N, P)``, or one logit of two
            classes, ``(N,)`` or ``(N, 1)``. ``"sigmoid"``: logits of one label or of ``P`` labels.
            ``"probability"``: probabilities, of the positive class or of all classes. ``"regression"``:
            numbers. ``None`` takes ``(N,)`` and ``(N, 1)`` as logits and raises for other shapes.
        classes: Classes (or labels, or other outputs) to penalise, of several; all when ``None``. The
            penalties of several outputs are added up. With two classes only the second is penalised.
        missing: ``"raise"`` an error if a related column is NaN or infinite, or ``"skip"`` such rows.
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
        equal_ranks: Whether all ranks give the penalty the same weight in their losses. If so, only the
            forward pass communicates. :class:`~.FairRFModule` sets it while it trains.
        column_names: Names of the related columns; empty if they are given by number.
        named: Names of the inputs' columns that :meth:`name_columns` was given; ``None`` before that.
        observer: Called with the moments of each training batch, whether the penalty is on or off.
    """

    weights: Tensor
    columns: Tensor
    column_feature: Tensor
    feature_mask: Tensor | None
    classes: Tensor | None
    frequencies: Tensor | None

    def __init__(
        self,
        related: Mapping[str, Declared],
        eta: float | Tensor = 0.3,
        statistic: Statistic = "covariance",
        given: Given = "all",
        initial_weights: Mapping[str, float] | None = None,
        *,
        output: Output | None = None,
        classes: Sequence[int] | None = None,
        missing: MissingValues = "raise",
        feature_mask: Tensor | None = None,
    ) -> None:
        super().__init__()
        check_declared(related)
        check_choice("statistic", statistic, STATISTICS)
        check_choice("given", given, get_args(Given))
        check_choice("missing", missing, get_args(MissingValues))
        if output is not None:
            check_choice("output", output, get_args(Output))
        _check_numbers(eta, classes)
        if isinstance(eta, Tensor):
            self.register_buffer("eta", eta, persistent=False)
        else:
            self.eta: float | Tensor = eta
        models = torch.as_tensor(eta).shape
        self.feature_names = list(related)
        self.column_names = names_in(related)  # of the related columns, if they are given by name
        self._declared = dict(related)
        self.statistic: Statistic = statistic
        self.given: Given = given
        self.output: Output | None = output
        self.missing: MissingValues = missing
        self.num_outputs: int | None = None  # penalised outputs, once more than one is known
        self.enabled = True
        self.equal_ranks = False
        # The common case, which is computed in fewer operations: all rows count, for one model.
        self._is_simple = statistic == "covariance" and given == "all" and missing == "raise" and not models
        self._scales: tuple[object, tuple[Tensor, ...]] | None = None
        self.observer: Callable[[Moments], None] | None = None
        self._encodes = any(isinstance(feature, Categorical) for feature in related.values())
        start = _initial_weights(self.feature_names, initial_weights).expand(*models, -1).clone()
        self._initial = start if feature_mask is None else _masked(start, feature_mask)
        self.register_buffer("weights", self._initial.clone())
        self.register_buffer("columns", torch.empty(0, dtype=torch.long), persistent=False)
        self.name_columns(self.column_names)
        self.named: list[str] | None = None if self.column_names else []
        column_feature = [j for j, feature in enumerate(self.related.values()) for _ in numbers_of(feature)]
        self._one_column_each = column_feature == list(range(len(self.feature_names)))
        self.register_buffer("column_feature", torch.tensor(column_feature), persistent=False)
        self.register_buffer("feature_mask", feature_mask, persistent=False)
        chosen = None if classes is None else torch.tensor(list(classes))
        self.register_buffer("classes", chosen, persistent=False)
        if count := STATISTICS[statistic].num_frequencies:
            # Saved, so that a resumed run does not depend on how the generator of its torch draws them.
            self.register_buffer("frequencies", fourier_frequencies(count))
        else:
            self.frequencies = None
        self.reset()

    def reset(self) -> None:
        """Return to the initial lambda; drop the rows and counters of earlier fits.

        The callbacks and FairRFModule call this at the start of each fit that does not resume.
        """
        self.weights = self._initial.to(self.weights.device, copy=True)
        self.beta: float | Tensor | None = None
        self.rule: Rule = "kkt"
        self._pending: list[Moments] = []
        self._counts: Any = [0, 0]  # penalised steps and updates; see hold_in
        self._checks_left = _CHECKED_BATCHES
        self._seems_probability = True

    def name_columns(self, names: Sequence[str]) -> None:
        """Find related columns that were given by name.

        Args:
            names: The names of the columns of the inputs, in their order.

        Raises:
            InputError: If a related column is not among them.
        """
        self.related: dict[str, Columns] = by_number(self._declared, names)
        columns = [c for feature in self.related.values() for c in numbers_of(feature)]
        self._first_column, self._last_column, self._width = columns[0], max(columns), len(columns)
        self._neighbours = columns == list(range(columns[0], columns[0] + len(columns)))
        self.columns = torch.tensor(columns, device=self.columns.device)
        self.named = list(names)

    @property
    def num_columns(self) -> int:
        """Number of columns that the inputs must have at least."""
        return self._last_column + 1

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
            preds: Logits, probabilities or numbers, ``(N,)`` or ``(N, P)``: see ``output``.
            inputs: The rows' inputs ``(N, D)``; the related columns are taken from them.
            target: Labels ``(N,)``, required for ``given="positives"``.
        """
        wanted = isinstance(self.eta, Tensor) or self.eta != 0
        checks = wanted and not torch.compiler.is_compiling()  # a check would break the graph
        if checks and self.training and self._checks_left:  # even while pretraining keeps the penalty off
            self._check_batch(preds, inputs)
        if not self.enabled or not wanted:
            if self.observer is not None and self.training:
                with torch.no_grad():
                    self.observer(self._moments_of_ranks(preds, inputs, target))
            return self.weights.new_zeros(self.weights.shape[:-1])
        value, moments = self._total_and_moments(preds, inputs, target)
        if self.training:
            self._remember(moments)
        # Only on the CPU: another device would have to be waited for. There, update_weights finds it.
        if checks and value.device.type == "cpu" and not _is_finite(value):
            self._check_related_values(moments, inputs, target)
        return value

    def _total_and_moments(
        self, preds: Tensor, inputs: Tensor, target: Tensor | None
    ) -> tuple[Tensor, Moments]:
        """Return the penalty, and the moments without a graph."""
        over_ranks = self.training and _is_distributed()
        # All ranks have to take the same way, also one without rows: they communicate on it.
        simple = self.equal_ranks if over_ranks else bool(preds.shape[0])
        if simple and self._is_simple and preds.ndim == 1 and not isinstance(self.eta, Tensor):
            related, dtype = self.related_columns(inputs), preds.dtype
            alike = related.dtype == dtype and related.ndim == 2 and not related.requires_grad
            if alike and dtype in _WIDE and not torch.is_autocast_enabled(preds.device.type):
                if over_ranks:
                    return self._total_over_ranks(self.probabilities(preds), related)
                is_logit = self.output not in ("probability", "regression")
                numbers = self.eta, preds.shape[0]
                eta, rows = numbers if torch.compiler.is_compiling() else self._scales_of(*numbers, dtype)
                weights = self._lambda_of_columns(dtype) * eta / rows
                return weighted_covariances(preds, related, weights, is_logit=is_logit)
        moments = self._moments_of_ranks(preds, inputs, target)
        value = self._total_of_columns(STATISTICS[self.statistic].score(moments).abs())
        return value, moments.detach()

    def _total_over_ranks(self, probs: Tensor, related: Tensor) -> tuple[Tensor, Moments]:
        """Return the penalty of the rows of all ranks, and their moments; only the forward pass communicates.

        The gradient by this rank's predictions follows from the merged moments. It is that of
        ``_GatherRanks``, the sum over the ranks, if they weight their losses alike: ``equal_ranks``.
        """
        moments = merge_moments(_gather_ranks(batch_moments(probs.detach(), related, squares=False).pack()))
        covariances = STATISTICS["covariance"].score(moments)
        weights = self._column_weights(probs.dtype)
        by_column = (
            covariances.sgn() * weights * (dist.get_world_size() / torch.as_tensor(moments.rows).clamp(min=1))
        )
        gradient = (related - moments.mean_related).mv(by_column)
        change = (probs - probs.detach()).dot(gradient)  # 0, with this gradient
        return covariances.abs().dot(weights) + change, moments

    def _scales_of(self, eta: float, rows: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return ``eta`` and the number of rows as tensors: with Python numbers operations take longer."""
        key = (eta, rows, dtype)
        if self._scales is not None and self._scales[0] == key:
            return self._scales[1]
        # On the CPU they work with tensors of any device.
        scales = torch.tensor([eta, rows], dtype=dtype, device="cpu").unbind()
        if type(scales[0]) is Tensor:  # not one of a trace
            self._scales = key, scales
        return scales

    def _moments_of_ranks(self, preds: Tensor, inputs: Tensor, target: Tensor | None) -> Moments:
        moments = self.moments(self.probabilities(preds), inputs, target)
        if self.training and _is_distributed():
            return merge_moments(_GatherRanks.apply(moments.pack()))  # type: ignore[no-untyped-call]
        return moments

    def probabilities(self, preds: Tensor) -> Tensor:
        """Return what is penalised, in float32 or wider: probabilities, or the numbers of a regression.

        Returns:
            ``(..., N)``: of the positive class, the label or the number. ``(..., N, P)`` of more than two
            classes, or several labels or numbers.
        """
        preds = preds.to(torch.promote_types(preds.dtype, torch.float32))
        if preds.ndim == self.weights.ndim:
            return preds if self.output in ("probability", "regression") else preds.sigmoid()
        if preds.ndim != self.weights.ndim + 1 or not preds.shape[-1]:
            raise InputError(f"predictions of shape {tuple(preds.shape)}: expected (N,), (N, 1) or (N, P).")
        if preds.shape[-1] == 1:
            return self.probabilities(preds.squeeze(-1))
        return self._of_outputs(preds)

    def _of_outputs(self, preds: Tensor) -> Tensor:
        outputs = preds.shape[-1]
        if self.output is None:
            raise InputError(
                f"predictions of shape {tuple(preds.shape)} may be {outputs} classes, labels or numbers: "
                "give RelatedFeaturePenalty(..., output='softmax') for logits of classes, 'sigmoid' for "
                "logits of labels, 'probability' or 'regression'."
            )
        if self.classes is not None and int(self.classes.max()) >= outputs:
            raise InputError(f"classes = {self.classes.tolist()}: the predictions have 0 to {outputs - 1}.")
        if outputs == 2 and self.classes is None:
            if self.output == "softmax":
                return (preds[..., 1] - preds[..., 0]).sigmoid()
            if self.output == "probability":
                return preds[..., 1]
        if self.output == "softmax":
            return preds.softmax(-1)
        return preds.sigmoid() if self.output == "sigmoid" else preds

    def moments(self, probs: Tensor, inputs: Tensor, target: Tensor | None = None) -> Moments:
        """Return the moments of these rows (of this rank).

        Args:
            probs: What :meth:`probabilities` returns.
            inputs: The rows' inputs ``(..., N, D)``.
            target: Labels ``(..., N)``, required for ``given="positives"``.
        """
        related = self.related_columns(inputs)
        mask = self._mask(related, target)
        if probs.ndim > self.weights.ndim:
            probs = (probs if self.classes is None else probs.index_select(-1, self.classes)).mT
            self.num_outputs = probs.shape[-2]
            related = related if related.ndim == 2 else related.unsqueeze(-3)
            mask = mask if mask is None or mask.ndim == 1 else mask.unsqueeze(-2)
        width = 1.0 if self.output == "regression" else PROBABILITY_WIDTH
        return STATISTICS[self.statistic].moments(probs, related, mask, self.frequencies, width)

    @property
    def moments_shape(self) -> tuple[int, ...]:
        """Shape of the packed moments, as far as the number of outputs is known."""
        count = STATISTICS[self.statistic].num_frequencies
        outputs = () if self.num_outputs is None else (self.num_outputs,)
        width = 3 + 3 * len(self.column_feature) * max(1, count)
        return (*self.weights.shape[:-1], *outputs, *((count,) if count else ()), width)

    def _mask(self, related: Tensor, target: Tensor | None) -> Tensor | None:
        mask = None
        if self.given == "positives":
            if target is None:
                raise InputError("given='positives' needs the labels: call penalty(preds, inputs, target).")
            mask = (target.flatten() if self.weights.ndim == 1 else target) > 0.5
        if self.missing == "skip":
            known = related.isfinite().all(-1)
            mask = known if mask is None else mask & known
        return mask

    def related_columns(self, inputs: Tensor) -> Tensor:
        """Return the related columns of the inputs, encoded, ``(..., N, C)``; neighbours without a copy."""
        self.check_inputs(inputs)
        if self._encodes:
            return encode(inputs, self.related)
        if self._neighbours:
            return inputs.narrow(-1, self._first_column, self._width)
        return inputs.index_select(-1, self.columns)

    def check_inputs(self, inputs: Tensor) -> None:
        """Raise :class:`InputError` unless the inputs have all related columns."""
        last = inputs.shape[-1] - 1
        if self.named is None:
            raise InputError(
                f"related columns by name ({', '.join(self.column_names)}), but the inputs' columns have no "
                "names: call penalty.name_columns([...]), or give column numbers."
            )
        if self.named and last + 1 != len(self.named):
            raise InputError(
                f"the inputs have {last + 1} columns, and there are {len(self.named)} names of columns: "
                "expected one name for each. Give inputs with these columns, or column numbers."
            )
        if last < self._last_column:
            beyond = {name: cols for name, cols in self.related.items() if max(numbers_of(cols)) > last}
            raise InputError(
                f"related = {beyond}: the inputs have columns 0 to {last}. Correct the numbers, or give the "
                "penalty inputs that have these columns."
            )

    def penalties(self, moments: Moments) -> Tensor:
        """Return ``R`` of each feature, ``(..., K)``."""
        features = len(self.feature_names)
        penalties = penalties_from_moments(moments, self.column_feature, features, self.statistic)
        return penalties.sum(-2) if penalties.ndim > self.weights.ndim else penalties

    def total(self, penalties: Tensor) -> Tensor:
        """Return ``eta * sum_j lambda_j R_j``."""
        return self.eta * (self.weights * penalties).sum(-1)

    def _total_of_columns(self, scores: Tensor) -> Tensor:
        """Return :meth:`total` of absolute column scores ``(..., C)``; quicker in a training step."""
        weights = self._column_weights(scores.dtype)
        if scores.ndim > self.weights.ndim:
            scores = scores.sum(-2)  # over the outputs
        # Not `@`, which autocast would round.
        return scores.dot(weights) if scores.ndim == 1 else (scores * weights).sum(-1)

    def _column_weights(self, dtype: torch.dtype) -> Tensor:
        eta = self.eta.unsqueeze(-1) if isinstance(self.eta, Tensor) else self.eta
        return self._lambda_of_columns(dtype) * eta

    def _lambda_of_columns(self, dtype: torch.dtype) -> Tensor:
        weights = self.weights.to(dtype)
        return weights if self._one_column_each else weights.index_select(-1, self.column_feature)

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
        return self.penalties(merge_moments(Moments.pack_all(self._pending)))

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
            self._check_related_values(merge_moments(Moments.pack_all(self._pending)))
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

    def _remember(self, moments: Moments) -> None:
        self._counts[0] += 1
        # Merged rarely: merging in each step would cost more than the penalty itself.
        self._pending.append(moments)
        if self.observer is not None:
            self.observer(moments)
        if len(self._pending) == _MAX_PENDING:
            self._pending = [merge_moments(Moments.pack_all(self._pending))]

    def _check_batch(self, preds: Tensor, inputs: Tensor) -> None:
        """Raise or warn about predictions and columns that are not what the penalty takes them for."""
        first = self._checks_left == _CHECKED_BATCHES
        self._checks_left -= 1
        if first:
            self._check_columns(inputs)
        if self.output == "probability" and first:
            _check_probabilities(
                preds, two_classes=self.classes is None and preds.ndim == self.weights.ndim + 1
            )
        if self.output is None and self._seems_probability:
            self._seems_probability = bool(((preds >= 0) & (preds <= 1)).all())
            # Logits of an untrained model may lie there by chance, but not those of ten batches.
            last = not self._checks_left or _ends_in_a_probability(preds)
            if self._seems_probability and last:
                self._seems_probability = False  # one warning
                warnings.warn(
                    "all predictions lie in [0, 1], although logits are expected: if they are probabilities, "
                    "give RelatedFeaturePenalty(..., output='probability').",
                    stacklevel=3,
                )

    def _check_columns(self, inputs: Tensor) -> None:
        related = self.related_columns(inputs)
        if self.missing == "skip":
            check_known_rows(related, self.related)
        found = [check_codes(inputs, self.related)]
        if self.frequencies is not None:
            found.append(check_spreads(related, self.related))
        for message in filter(None, found):
            warnings.warn(message, stacklevel=4)

    def _check_related_values(
        self, moments: Moments, inputs: Tensor | None = None, target: Tensor | None = None
    ) -> None:
        """Raise :class:`InputError` if the moments are not finite because of a related column."""
        if inputs is not None:
            related = self.related_columns(inputs)
            check_values(related, self.related, self._mask(related, target))
        check_means(moments.mean_related, self.related)

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
        pending = Moments.pack_all(self._pending) if self._pending else self.weights.new_empty(0)
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
        self._pending = [Moments.unpack(part) for part in state["pending"].to(self.weights.device)]
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


def _check_numbers(eta: float | Tensor, classes: Sequence[int] | None) -> None:
    values = torch.as_tensor(eta)
    if not bool(((values >= 0) & values.isfinite()).all()):
        raise InputError(f"eta = {eta!r}: expected 0 (no penalty) or a positive number.")
    if classes is not None and (not classes or any(not isinstance(c, int) or c < 0 for c in classes)):
        raise InputError(f"classes = {classes!r}: expected numbers of outputs, 0 or more, or null for all.")


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _is_finite(value: Tensor) -> bool:
    return math.isfinite(value.item()) if value.ndim == 0 else bool(value.isfinite().all())


def _ends_in_a_probability(preds: Tensor) -> bool:
    """Return whether a sigmoid or a softmax made the predictions, with views of it at most in between."""
    node: Any = preds.grad_fn
    for _ in range(3):
        name = "" if node is None else str(node.name())
        if "Sigmoid" in name or "Softmax" in name:
            return "Log" not in name
        if not name.startswith(("Squeeze", "View", "Select", "Slice", "Reshape", "Unsafe", "Flatten")):
            return False
        node = node.next_functions[0][0]
    return False


def _check_probabilities(preds: Tensor, *, two_classes: bool) -> None:
    if not bool(((preds >= 0) & (preds <= 1)).all()):
        raise InputError(
            "output = 'probability': a prediction is outside [0, 1]. Give 'softmax' or 'sigmoid' for logits, "
            "or 'regression' for numbers."
        )
    if two_classes and preds.shape[-1] == 2 and bool(((preds.sum(-1) - 1).abs() > 0.01).any()):
        raise InputError(
            f"output = 'probability': the rows of predictions {tuple(preds.shape)} do not add up to 1, so "
            "these are not two classes. Give classes=[0, 1] to penalise both outputs, or one of them."
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
