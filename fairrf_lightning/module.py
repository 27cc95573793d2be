"""FairRF as a LightningModule: any backbone, its task loss, and the penalty."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable, ReduceLROnPlateau
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from fairrf_lightning.backbones import MLP, Backbone, build_backbone, find_backbone
from fairrf_lightning.errors import InputError, diverged
from fairrf_lightning.functional import Statistic
from fairrf_lightning.metrics.evaluation import EvaluationMetrics
from fairrf_lightning.penalty import Given, RelatedFeaturePenalty
from fairrf_lightning.presets import class_path
from fairrf_lightning.run_state import start_fresh

if TYPE_CHECKING:
    from fairrf_lightning.correction import Correction


class FairRFModule(LightningModule):
    """Trains a classifier with the FairRF penalty (the paper's Eq. 9).

    Batches are dicts with ``inputs``, ``target`` and, outside training, ``groups``, or tuples in that
    order. A dict may also have ``related``: columns for the penalty that the model does not see. Without
    ``n_features`` and ``related`` both are taken from the data module.

    Logs ``train_loss`` (task loss), ``train_penalty`` and ``lambda/<feature>``; on validation ``val_loss``,
    ``val_penalty``, ``val_objective`` (the default monitor of the checkpoint), ``val_acc``, ``val_dp_gap``,
    ``val_eo_gap``, ``val_eodds_gap``, with ``_low`` and ``_high`` ends of 95 % intervals, and
    ``penalty/<feature>``; on test the same with ``test_``.

    ``val_objective`` is ``val_loss`` plus :meth:`RelatedFeaturePenalty.objective`: a function of the
    validation predictions alone, so that epochs with different lambda are comparable. With a fixed
    lambda it is ``val_loss + val_penalty``.

    Losses, penalties and metrics may have leading dimensions, so that a subclass can train several models
    at once: its backbone returns logits ``(..., N)`` and has a ``task_loss`` of shape ``(...)``.

    Each fit starts fresh, with the initial lambda. A fit that resumes from a checkpoint, or a second fit
    of the same Trainer, continues.

    Args:
        n_features: Number of input columns.
        related: Column numbers of the inputs for each related feature.
        penalty_columns: Number of columns that batches carry under ``related``, which the numbers in
            ``related`` then refer to; by default they refer to the inputs.
        backbone: Takes the number of input columns and returns a module that maps inputs to logits;
            or such a module itself, or the name of one of this package: ``mlp``, ``linear`` or ``svm``.
        eta: Weight of the penalty; 0 is the vanilla model. ``None`` is 0.3, or on the command line the
            data set's recommended value.
        statistic: ``"covariance"``, or ``"correlation"``, which is invariant to the scale of the predictions.
        given: ``"all"`` rows (demographic parity) or the ``"positives"`` (equal opportunity).
        initial_weights: lambda to start from, by feature name; ``1 / K`` each when ``None``.
        lr: Learning rate of the default optimiser, Adam (fused where available); ``Tuner.lr_find`` sets it.
        optimizer: Another optimiser: a callable of the parameters.
        lr_scheduler: A scheduler: a callable of the optimiser, stepped every epoch.
        num_groups: Number of groups of the sensitive attribute in validation and test batches.
        num_classes: Number of classes. For more than two, the backbone returns logits ``(N, num_classes)``:
            it is called with ``outputs=num_classes`` if it has this argument. The loss is the cross entropy,
            and the gaps are the largest of all classes.
        classes: Classes to penalise, of more than two; all when ``None``.

    Attributes:
        results: Metrics of the last validation or test epoch, by name without ``val_`` or ``test_``.
        correction: Correction of the decisions by membership in groups, or ``None``. With one, the module
            returns corrected logits; checkpoints keep it.
    """

    backbone: nn.Module
    penalty: RelatedFeaturePenalty
    val_metrics: EvaluationMetrics
    test_metrics: EvaluationMetrics

    def __init__(
        self,
        n_features: int | None = None,
        related: dict[str, list[int]] | None = None,
        *,
        penalty_columns: int | None = None,
        backbone: Backbone = MLP,
        eta: float | None = None,
        statistic: Statistic = "covariance",
        given: Given = "all",
        initial_weights: dict[str, float] | None = None,
        lr: float = 1e-3,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        num_groups: int | None = None,
        num_classes: int = 2,
        classes: list[int] | None = None,
    ) -> None:
        super().__init__()
        modules = ["backbone", "penalty"] if isinstance(backbone, nn.Module) else []
        self.save_hyperparameters(ignore=modules)
        self._drop_unsafe_hparams()
        if optimizer is not None:
            del self.hparams["lr"]  # unused, so Tuner.lr_find should raise
        _check_classes(num_classes, classes, given)
        self.num_classes = num_classes
        if not lr > 0:
            raise InputError(f"lr = {lr!r}: expected a positive learning rate.")
        self._make_backbone = None if isinstance(backbone, nn.Module) else find_backbone(backbone)
        if isinstance(backbone, nn.Module):
            self.backbone = backbone
        self._make_optimizer = optimizer
        self._make_scheduler = lr_scheduler
        self._resumed_rng: tuple[Tensor, list[Tensor]] | None = None
        self._resumed_sums: Tensor | None = None
        self.correction: Correction | None = None
        self.results: dict[str, Tensor] = {}
        self._make_penalty = partial(
            RelatedFeaturePenalty,
            eta=0.3 if eta is None else eta,
            statistic=statistic,
            given=given,
            initial_weights=initial_weights,
            output="softmax",
            classes=classes,
        )
        # Fail fast on invalid options, before the data are fetched.
        self._make_penalty({name: [0] for name in initial_weights or ["any"]})
        self._train_sums: Tensor | None = None
        if n_features is not None and related is not None:
            self._build(n_features, related, num_groups or 2, penalty_columns)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of the rows, corrected if there is a correction."""
        logits: Tensor = self.backbone(inputs)
        if self.correction is None:
            return logits
        corrected: Tensor = self.correction(self.penalty.probabilities(logits), inputs)
        return corrected.logit()

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning notes the hook that runs, 30 times per step, and nn.Module is slow to set an attribute.
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Restore the weights, and the correction if there is one."""
        self.correction = None
        if any(name.startswith("correction.") for name in state_dict):
            from fairrf_lightning.correction import Correction  # noqa: PLC0415 - imports pandas

            self.correction = Correction.from_state(state_dict).to(self.device)
        return super().load_state_dict(state_dict, *args, **kwargs)

    def setup(self, stage: str) -> None:
        """Build what depends on the data, unless it was given; start fresh in each fit."""
        self.adapt_to(getattr(self.trainer, "datamodule", None))
        if stage == "fit":
            start_fresh(self.trainer, [self.penalty])

    def adapt_to(self, data: LightningDataModule | None) -> None:
        """Build backbone and penalty for the columns of a data module, unless they exist.

        ``setup`` calls this. Call it yourself before ``fit`` if a callback copies the module earlier, as
        weight averaging does.

        Raises:
            InputError: If neither the module nor the data know the columns.
        """
        if hasattr(self, "penalty"):
            self._compare_groups_of(data)
        else:
            self._build_for(data)
        if data is not None and hasattr(data, "penalise_positives"):
            data.penalise_positives(positives=self.penalty.given == "positives")

    def _build_for(self, data: LightningDataModule | None) -> None:
        if data is None or not hasattr(data, "n_features") or not hasattr(data, "related_columns"):
            raise InputError(
                "FairRFModule does not know its columns: give n_features=... and "
                "related={'age': [0], ...}, or a data module with the attributes n_features and "
                "related_columns."
            )
        num_groups = getattr(data, "num_groups", 2)
        width = getattr(data, "penalty_columns", None)
        self._build(data.n_features, data.related_columns, num_groups, width)

    def _build(
        self, n_features: int, related: Mapping[str, list[int]], num_groups: int, width: int | None
    ) -> None:
        of, last = ("inputs", n_features - 1) if width is None else ("batches' related columns", width - 1)
        if beyond := {name: cols for name, cols in related.items() if max(cols, default=0) > last}:
            raise InputError(f"related = {beyond}: the {of} have columns 0 to {last}.")
        self.penalty = self._make_penalty(related)
        if self.num_classes > 2:
            chosen = self.hparams["classes"]
            self.penalty.num_outputs = len(chosen) if chosen else self.num_classes
        if self._make_backbone is not None:
            self.backbone = build_backbone(self._make_backbone, n_features, self.num_classes)
        columns = {name: list(cols) for name, cols in related.items()}
        self.hparams.update(n_features=n_features, related=columns, penalty_columns=width)
        self.build_metrics(num_groups)

    def build_metrics(self, num_groups: int) -> None:
        self.val_metrics = self.make_metrics("val", num_groups).to(self.device)
        self.test_metrics = self.make_metrics("test", num_groups).to(self.device)
        self.hparams.update(num_groups=num_groups)

    def make_metrics(self, stage: str, num_groups: int) -> EvaluationMetrics:
        """Return the metrics of ``"val"`` or ``"test"``; override this to measure something else."""
        return EvaluationMetrics(self.penalty, num_groups, self.num_classes)

    def on_validation_start(self) -> None:
        self._compare_groups_of(getattr(self.trainer, "datamodule", None))
        self.val_metrics.reset()  # an interrupted epoch leaves rows behind

    def on_test_start(self) -> None:
        self._compare_groups_of(getattr(self.trainer, "datamodule", None))
        self.test_metrics.reset()

    def _compare_groups_of(self, data: LightningDataModule | None) -> None:
        # A checkpoint can be tested on other groups than it was trained with. Our data modules know theirs
        # once their part of the checkpoint is restored; on_test_start asks again.
        if getattr(data, "awaits_checkpoint", False):
            return
        num_groups = getattr(data, "num_groups", self.hparams["num_groups"])
        if num_groups != self.hparams["num_groups"]:
            self.build_metrics(num_groups)

    def _drop_unsafe_hparams(self) -> None:
        # Classes and functions would make the checkpoint unreadable with weights_only=True. From the
        # command line these hyper-parameters are plain values and stay.
        for name in ("backbone", "optimizer", "lr_scheduler"):
            if callable(self.hparams.get(name)):
                del self.hparams[name]

    def unpack(self, batch: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return inputs, target and groups of a dict or tuple batch; the target may be empty at predict."""
        if isinstance(batch, Mapping):
            inputs: Tensor = batch["inputs"]
            return inputs, batch.get("target", inputs.new_empty(0)), batch.get("groups")
        if isinstance(batch, Tensor):
            return batch, batch.new_empty(0), None
        inputs, target, groups = (*batch, None, None)[:3]
        return inputs, inputs.new_empty(0) if target is None else target, groups

    def task_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss over the rows: the backbone's own, or cross entropy."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.num_classes > 2:
            return nn.functional.cross_entropy(logits, target.long())
        target = target.to(logits.dtype)
        own = getattr(self.backbone, "task_loss", None)
        if own is not None:
            loss: Tensor = own(logits, target)
            return loss
        return nn.functional.binary_cross_entropy_with_logits(single_logit(logits), target)

    def training_step(self, batch: Any) -> Tensor:
        inputs, target, _ = self.unpack(batch)
        logits = self(inputs)
        loss = self.task_loss(logits, target)
        penalty: Tensor = self.penalty(logits, self.related_of(batch, inputs), target)
        self.add_train_losses(loss, penalty)
        return (loss + penalty).sum()

    def add_train_losses(self, loss: Tensor, penalty: Tensor) -> None:
        """Add the losses of a batch to the sums that are logged at the end of the epoch."""
        # self.log in each step would cost as much as the step.
        sums = torch.stack([loss, penalty.to(loss), torch.ones_like(loss)]).detach()
        self._train_sums = sums if self._train_sums is None else self._train_sums + sums

    def on_train_epoch_end(self) -> None:
        if self._train_sums is not None:
            loss, penalty, steps = self._train_sums
            self.log_dict({"train_loss": loss / steps, "train_penalty": penalty / steps}, sync_dist=True)
            self._train_sums = None
        self.log_results(self._lambda_values())

    def validation_step(self, batch: Any) -> None:
        self._evaluate(batch, self.val_metrics)

    def test_step(self, batch: Any) -> None:
        self._evaluate(batch, self.test_metrics)

    def _evaluate(self, batch: Any, metrics: EvaluationMetrics) -> None:
        inputs, target, groups = self.unpack(batch)
        logits = self(inputs)
        self.check_predictions(logits)
        related = self.related_of(batch, inputs)
        metrics.update(self.task_loss(logits, target), logits, related, target, groups)

    def check_predictions(self, logits: Tensor) -> None:
        """Raise :class:`DivergedError` if a prediction is NaN."""
        if bool(logits.isnan().any()):
            raise diverged("NaN among the predictions of an evaluation")

    def related_of(self, batch: Any, inputs: Tensor) -> Tensor:
        """Return the related columns of a batch: its ``related``, or the inputs."""
        if self.hparams["penalty_columns"] is None:
            return inputs
        if not isinstance(batch, Mapping) or "related" not in batch:
            raise InputError(
                "the related columns are not among the inputs of this model, and the batch does not have "
                "them: give batches with the key 'related'."
            )
        related: Tensor = batch["related"]
        return related

    def on_validation_epoch_end(self) -> None:
        values, penalties = self.val_metrics.compute()
        self.val_metrics.reset()
        self.results = values | penalties
        self.log_results({f"val_{name}": value for name, value in values.items()} | penalties)

    def on_test_epoch_end(self) -> None:
        values, penalties = self.test_metrics.compute()
        self.test_metrics.reset()
        self.results = values | penalties
        logged = self.results | self._lambda_values()
        self.log_results({f"test_{name}": value for name, value in logged.items()})

    def _lambda_values(self) -> dict[str, Tensor]:
        weights = zip(self.penalty.feature_names, self.penalty.weights.unbind(-1), strict=True)
        return {f"lambda/{name}": weight for name, weight in weights}

    def log_results(self, values: dict[str, Tensor]) -> None:
        """Log values that are equal on all ranks."""
        # The maximum of equal values is exact, their mean is not.
        shown = {"val_loss", "val_acc", "val_dp_gap", "val_eo_gap"}
        for name, value in values.items():
            self.log(name, value, prog_bar=name in shown, sync_dist=True, reduce_fx="max")

    def predict_step(self, batch: Any) -> dict[str, Tensor]:
        """Return probability and decision of each row: of the positive class, or of each class."""
        inputs = self.unpack(batch)[0]
        probability = self.penalty.probabilities(self(inputs))
        decision = (probability >= 0.5).long() if probability.ndim == 1 else probability.argmax(-1)
        result = {"probability": probability, "decision": decision}
        if self.correction is not None:
            result["uncorrected_probability"] = self.penalty.probabilities(self.backbone(inputs))
        return result | ({"row": batch["row"]} if isinstance(batch, Mapping) and "row" in batch else {})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the random states and the sums of an unfinished epoch, so that a resumed run is identical.

        The classes of model and data are saved for :func:`fairrf_lightning.load.load_run`.
        """
        data = None if self._trainer is None else getattr(self.trainer, "datamodule", None)
        classes = {"model": type(self), "data": type(data), "backbone": self._make_backbone}
        checkpoint["class_paths"] = {
            name: class_path(kind) for name, kind in classes.items() if isinstance(kind, type)
        }
        checkpoint["rng_state"] = {
            "cpu": self._of_all_ranks(torch.get_rng_state()),
            "cuda": torch.cuda.get_rng_state_all(),
        }
        checkpoint["train_sums"] = None if self._train_sums is None else self._of_all_ranks(self._train_sums)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Read this rank's random state and sums; they are restored only if training resumes."""
        states, sums = checkpoint.get("rng_state"), checkpoint.get("train_sums")
        self._resumed_rng = self._resumed_sums = None
        if states is not None:
            self._resumed_rng = self._of_this_rank(states["cpu"]), list(states["cuda"])
            torch.Generator().set_state(self._resumed_rng[0])  # raises if it is malformed
        if sums is not None:
            self._resumed_sums = self._of_this_rank(sums)

    def on_train_start(self) -> None:
        """Restore the random state and sums of the checkpoint, if there was one."""
        if self.correction is not None:
            raise InputError(
                "a corrected model cannot be trained: resume from the checkpoint before the correction."
            )
        if self._resumed_rng is not None:
            cpu, cuda = self._resumed_rng
            torch.set_rng_state(cpu)
            if len(cuda) == torch.cuda.device_count():
                torch.cuda.set_rng_state_all(cuda)
        self._train_sums = None if self._resumed_sums is None else self._resumed_sums.to(self.device)
        self._resumed_rng = self._resumed_sums = None
        self.penalty.equal_ranks = type(self) is FairRFModule  # a subclass may weight its loss by rank

    def on_train_end(self) -> None:
        self.penalty.equal_ranks = False

    def _of_all_ranks(self, value: Tensor) -> Tensor:
        # Ranks draw different dropout masks as soon as their batches differ in size.
        gathered: Any = value if self._trainer is None else self.all_gather(value.to(self.device))
        states: Tensor = gathered.reshape(-1, len(value)).cpu()
        return states

    def _of_this_rank(self, values: Tensor) -> Tensor:
        values = values if values.ndim > 1 else values[None]
        return values[self.global_rank if self.global_rank < len(values) else 0].clone()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return Adam, or the optimiser and the scheduler that were given."""
        if self._make_optimizer is not None:
            optimizer = self._make_optimizer(self.parameters())
        else:
            fused = self._may_fuse() and self.device.type in ("cpu", "cuda")
            optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams["lr"], fused=fused)
        if self._make_scheduler is None:
            return optimizer
        scheduler = self._make_scheduler(optimizer)
        monitor = scheduler.monitor if isinstance(scheduler, ReduceLROnPlateau) else None
        config = {"scheduler": scheduler} | ({"monitor": monitor} if monitor else {})
        return {"optimizer": optimizer, "lr_scheduler": config}  # type: ignore[return-value]

    def _may_fuse(self) -> bool:
        # Under mixed precision Lightning cannot clip the gradients of a fused optimiser.
        precision, clips = self.trainer.precision, bool(self.trainer.gradient_clip_val)
        return precision != "16-mixed" and not (precision == "bf16-mixed" and clips)


def _check_classes(num_classes: int, classes: list[int] | None, given: Given) -> None:
    if num_classes < 2:
        raise InputError(f"num_classes = {num_classes}: expected 2 or more.")
    if classes is not None and (num_classes == 2 or max(classes, default=0) >= num_classes):
        raise InputError(f"classes = {classes}: expected some of more than two classes, below num_classes.")
    if num_classes > 2 and given == "positives":
        raise InputError("given = 'positives' is for two classes: there is no positive one among more.")


def single_logit(logits: Tensor) -> Tensor:
    """Return one logit per row, ``(N,)``, of logits ``(N,)``, ``(N, 1)`` or ``(N, 2)``."""
    if logits.ndim == 1:
        return logits
    return logits[:, -1] - logits[:, 0] if logits.shape[1] == 2 else logits[:, 0]
