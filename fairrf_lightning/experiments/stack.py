"""Train one stack: settings with one :class:`StackConfig`, each with several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from lightning import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from fairrf_lightning.backbones import BACKBONES, MLP
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.loader import EpochBatches, TensorBatches
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.experiments.setting import Schedule, Setting, StackConfig
from fairrf_lightning.experiments.stacked_module import StackedARLModule, StackedBackbone, StackedModule
from fairrf_lightning.penalty import RelatedFeaturePenalty
from fairrf_lightning.run_state import in_pretraining

MakeData = Callable[..., TabularDataModule]
_MAX_NAMED = 4  # in an error
_EVAL_ROWS = 2048  # of each seed at once: the activations of all models are held for them


class StackedBatches:
    """Batches of several loaders side by side: ``inputs`` ``(S, N, D)``, ``target`` ``(S, 1, N)``, ..."""

    def __init__(self, loaders: Sequence[TensorBatches]) -> None:
        self.loaders = list(loaders)
        if len({len(loader) for loader in self.loaders}) > 1:
            raise InputError("the seeds have different numbers of batches: train them in separate stacks.")

    def __len__(self) -> int:
        return len(self.loaders[0])

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batches in zip(*self.loaders, strict=True):
            stacked = {name: torch.stack([batch[name] for batch in batches]) for name in batches[0]}
            # All tensors except the inputs get a dimension for the settings of a seed.
            yield {name: rows if name == "inputs" else rows.unsqueeze(1) for name, rows in stacked.items()}

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """Lead Lightning to ``set_epoch``: it looks for ``loader.batch_sampler.sampler``."""
        return SimpleNamespace(sampler=self)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the epoch to come."""
        for loader in self.loaders:
            loader.set_epoch(epoch)


class StackedData(LightningDataModule):
    """One data module per seed, read side by side."""

    def __init__(self, parts: Sequence[TabularDataModule]) -> None:
        super().__init__()
        self.parts = list(parts)
        names = self.parts[0].feature_names
        if any(part.feature_names != names for part in self.parts):
            raise InputError(
                f"the seeds' training rows give different columns: {_differing(self.parts)}.\n"
                "For a table, drop a column with rare categories by --data.drop, or raise --data.min_count.\n"
                "For a data module of your own, make text columns categorical in `read`."
            )

    def train_dataloader(self) -> StackedBatches:
        return StackedBatches([_in_memory(part.train_dataloader()) for part in self.parts])

    def val_dataloader(self) -> StackedBatches:
        return StackedBatches([_in_large_batches(part.val_dataloader()) for part in self.parts])

    def test_dataloader(self) -> StackedBatches:
        return StackedBatches([_in_large_batches(part.test_dataloader()) for part in self.parts])


def _differing(parts: Sequence[TabularDataModule]) -> str:
    """Name a few of the columns that only some of the seeds have."""
    names = [set(part.feature_names) for part in parts]
    differing = sorted(names[0].union(*names) - names[0].intersection(*names))
    return ", ".join(differing[:_MAX_NAMED]) + (", ..." if len(differing) > _MAX_NAMED else "")


def _in_large_batches(loader: EpochBatches) -> TensorBatches:
    return TensorBatches(_in_memory(loader).tensors, _EVAL_ROWS)


def _in_memory(loader: EpochBatches) -> TensorBatches:
    if not isinstance(loader, TensorBatches):
        raise InputError("a grid trains on tables in memory: name a file, not a directory of Parquet files.")
    return loader


class KeepBestWeights(Callback):
    """Copies a model's weights and lambda whenever its validation objective is the lowest yet.

    This is what ``ModelCheckpoint(monitor="val_objective")`` does for one model; it does not use S. An
    epoch of pretraining counts only as long as there is no other, except for models without a penalty.
    ``best_epoch`` holds the epochs, ``(S, P)``.
    """

    best_epoch: Tensor

    def __init__(self) -> None:
        self._best: Tensor | None = None  # objectives
        self._kept: dict[str, Tensor] = {}
        self._pretraining = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the epoch that was just validated with the best one so far."""
        if trainer.state.fn == TrainerFn.FITTING and isinstance(pl_module, StackedModule):
            pretraining = in_pretraining(trainer, pl_module)
            if self._pretraining and not pretraining and self._best is not None:
                vanilla = torch.as_tensor(pl_module.penalty.eta) == 0
                self._best = self._best.where(vanilla, torch.inf)
            self._pretraining = pretraining
            self._keep(pl_module, trainer.current_epoch)

    @torch.no_grad()
    def _keep(self, module: StackedModule, epoch: int) -> None:
        objective = module.results["objective"].nan_to_num(nan=torch.inf)
        current = _weights_of(module)
        if self._best is None:
            self._best = objective
            self._kept = {name: weight.clone() for name, weight in current.items()}
            self.best_epoch = torch.full_like(objective, epoch, dtype=torch.long)
            return
        better = objective < self._best
        self._best = objective.where(better, self._best)
        self.best_epoch = self.best_epoch.where(~better, epoch)
        for name, weight in current.items():
            which = better.view(*better.shape, *[1] * (weight.ndim - better.ndim))
            self._kept[name] = weight.where(which, self._kept[name])

    @torch.no_grad()
    def restore(self, module: StackedModule) -> None:
        """Put the kept weights into the module."""
        for name, weight in _weights_of(module).items():
            weight.copy_(self._kept[name])


def _weights_of(module: StackedModule) -> dict[str, Tensor]:
    return dict(module.backbone.named_parameters()) | {"lambda": module.penalty.weights}


class Stack:
    """Settings of one configuration, each trained with each seed, as one LightningModule.

    Args:
        make_data: Returns the data module; called with ``seed=...``, and with
            ``expose_sensitive=True`` where the settings do.
        settings: The settings, all with the same config.
        seeds: Each seed is a split, an order of batches and an initialisation.
        schedule: How long and how fast to train.
    """

    def __init__(
        self,
        make_data: MakeData,
        settings: Sequence[Setting],
        seeds: Sequence[int],
        schedule: Schedule | None = None,
    ) -> None:
        (self.config,) = {setting.stack_config for setting in settings}
        self.settings = list(settings)
        self.seeds = list(seeds)
        self.schedule = schedule or Schedule()
        self.best = KeepBestWeights()
        options = {"expose_sensitive": True} if self.config.expose_sensitive else {}
        parts = [make_data(seed=seed, **options) for seed in self.seeds]
        parts[0].prepare_data()
        self.data = StackedData(parts)
        self.module = self._build_module(parts[0])

    def fit(self, callbacks: Sequence[Callback] = (), *, select: bool = True, **trainer_options: Any) -> None:
        """Train all models, then put the weights of each one's best epoch back.

        Args:
            callbacks: More callbacks of the trainer.
            select: Whether to choose the best epoch; else the last weights stay.
            trainer_options: Options of Lightning's ``Trainer``.
        """
        own = [PretrainCallback(epochs=self.schedule.pretrain_epochs), self.best]
        if self.config.every_n_steps is not None:
            betas = [setting.beta for setting in self.settings]
            own.append(LambdaUpdateCallback(betas, self.config.every_n_steps, self.config.rule))
        trainer = _quiet_trainer(
            **{"max_epochs": self.schedule.epochs, "callbacks": [*own, *callbacks]} | trainer_options
        )
        trainer.fit(self.module, datamodule=self.data)
        if select:
            self.best.restore(self.module)

    def evaluate(self, stages: Sequence[str] = ("val", "test")) -> dict[str, Tensor]:
        """Return ``val_`` and ``test_`` measures of all models, ``(S, P)`` each."""
        trainer = _quiet_trainer()
        runs = {"val": trainer.validate, "test": trainer.test}
        values: dict[str, Tensor] = {}
        for stage in stages:
            runs[stage](self.module, datamodule=self.data, verbose=False)
            values |= {f"{stage}_{name}": value for name, value in self.module.results.items()}
        return values

    def _build_module(self, data: TabularDataModule) -> StackedModule:
        for part in self.data.parts:
            part.penalise_positives(positives=self.config.given == "positives")
        # Columns next to the inputs (S, clusters) or among them.
        owners = data.encoder.owners if data.penalty_columns is None else data.related_columns
        features = list(dict.fromkeys(f for setting in self.settings for f in setting.related_in(data)))
        for name in features:
            if name not in owners:
                hint = f"(S has to be opted in by name); {did_you_mean(name, owners)}"
                raise InputError(f"related: there is no feature '{name}' {hint}")
        mask = torch.tensor([[f in setting.related_in(data) for f in features] for setting in self.settings])
        shape = (len(self.seeds), len(self.settings))
        penalty = RelatedFeaturePenalty(
            {name: owners[name] for name in features},
            eta=torch.tensor([setting.eta for setting in self.settings]).expand(shape).clone(),
            statistic=self.config.statistic,
            given=self.config.given,
            feature_mask=mask.expand(*shape, -1).clone(),
        )
        columns = self._input_columns(data.encoder.owners)
        backbone = StackedBackbone(_backbone_maker(self.config), self.seeds, columns)
        parts = (backbone, penalty, data.num_groups, self.schedule.lr)
        if self.config.pretrain_steps is None:
            return StackedModule(*parts)
        rates = torch.tensor([setting.adversary_lr for setting in self.settings]).expand(shape)
        return StackedARLModule(*parts, adversary_lr=rates, pretrain_steps=self.config.pretrain_steps)

    def _input_columns(self, owners: dict[str, list[int]]) -> Tensor:
        columns = torch.ones(len(self.settings), sum(map(len, owners.values())), dtype=torch.bool)
        for row, setting in zip(columns, self.settings, strict=True):
            for name in setting.remove:
                if name not in owners:
                    raise InputError(f"remove: there is no feature '{name}'; {did_you_mean(name, owners)}")
                row[owners[name]] = False
        return columns


def _backbone_maker(config: StackConfig) -> Callable[[int], nn.Module]:
    if config.backbone == "mlp":
        return partial(MLP, hidden=config.hidden, dropout=config.dropout)
    return BACKBONES[config.backbone]


def _quiet_trainer(**options: Any) -> Trainer:
    defaults = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "devices": 1,
    }
    return Trainer(**defaults | options)
