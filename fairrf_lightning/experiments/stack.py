"""Train one stack: settings with one configuration over some seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from lightning import Callback, Trainer
from torch import Tensor, nn

from fairrf_lightning.backbones import MLP, Linear, LinearSVM
from fairrf_lightning.callbacks import LambdaUpdateCallback, PretrainCallback
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.experiments.selection import KeepBestWeights
from fairrf_lightning.experiments.setting import Schedule, Setting, StackConfig
from fairrf_lightning.experiments.stacked_backbone import StackedBackbone
from fairrf_lightning.experiments.stacked_data import StackedData
from fairrf_lightning.experiments.stacked_module import StackedARLModule, StackedModule
from fairrf_lightning.penalty import RelatedFeaturePenalty

MakeData = Callable[..., TabularDataModule]


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
        parts = _read(make_data, self.config, self.seeds)
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
        # Columns that stand beside the inputs (S, clusters) or are among them.
        owners = data.encoder.owners if data.penalty_columns is None else data.related_columns
        features = list(dict.fromkeys(f for setting in self.settings for f in setting.related_in(data)))
        for name in features:
            _check_feature(name, owners)
        chosen = torch.tensor(
            [[f in setting.related_in(data) for f in features] for setting in self.settings]
        )
        shape = (len(self.seeds), len(self.settings))
        penalty = RelatedFeaturePenalty(
            {name: owners[name] for name in features},
            eta=torch.tensor([setting.eta for setting in self.settings]).expand(shape).clone(),
            statistic=self.config.statistic,
            given=self.config.given,
            feature_mask=chosen.expand(*shape, -1).clone(),
        )
        columns = self._input_columns(data.encoder.owners)
        backbone = StackedBackbone(_backbone_maker(self.config), self.seeds, columns)
        parts = (backbone, penalty, data.num_groups, self.schedule.lr)
        if not self.settings[0].adversary_lr:
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


def _read(make_data: MakeData, config: StackConfig, seeds: Sequence[int]) -> list[TabularDataModule]:
    options = {"expose_sensitive": True} if config.expose_sensitive else {}
    parts = [make_data(seed=seed, **options) for seed in seeds]
    parts[0].prepare_data()
    return parts


def _check_feature(name: str, owners: dict[str, list[int]]) -> None:
    if name not in owners:
        hint = did_you_mean(name, owners)
        raise InputError(f"related: there is no feature '{name}' (S has to be opted in by name); {hint}")


def _backbone_maker(config: StackConfig) -> Callable[[int], nn.Module]:
    if config.backbone == "mlp":
        return partial(MLP, hidden=config.hidden, dropout=config.dropout)
    return Linear if config.backbone == "linear" else LinearSVM


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
