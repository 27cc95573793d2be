"""The options of ``train.py sweep``, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairrf_lightning.sweep.objective import S_FREE, WITH_S, Objective
from fairrf_lightning.sweep.space import Space, read_space
from jsonargparse import Namespace

from fairrf_lightning.cli.short_names import ShortNameParser
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError
from fairrf_lightning.experiments.command_options import data_maker, read_seeds
from fairrf_lightning.experiments.identity import data_identity
from fairrf_lightning.experiments.setting import Setting

_AT_LEAST_1 = ("trials", "batch", "workers", "heartbeat", "epochs")


@dataclass(frozen=True)
class SweepOptions:
    """What the command line says, as the parts of a sweep.

    Args:
        given: The options as parsed.
        data: The data module, one split for all trials.
        data_config: ``class_path`` and ``init_args`` of the data module.
        space: What is searched.
        objective: What is to be small.
        seeds: Seeds of the models of each trial.
        folder: Where files are written.
    """

    given: Namespace
    data: TabularDataModule
    data_config: dict[str, Any]
    space: Space
    objective: Objective
    seeds: list[int]
    folder: Path

    @property
    def name(self) -> str:
        """Name of the data set."""
        return str(getattr(self.data, "name", type(self.data).__name__))

    @property
    def storage(self) -> str:
        """Address of the database."""
        return self.given.storage or f"sqlite:///{self.folder / 'study.db'}"

    def identity(self) -> dict[str, Any]:
        """Return what decides on the figures of the trials, to be compared when a sweep goes on."""
        kept: dict[str, Any] = dict(data_identity(self.data))
        kept |= {"related": "+".join(Setting().related_in(self.data)), "data seed": self.data.seed}
        kept |= {"epochs": self.given.epochs, "seeds": self.seeds}
        kept |= {"objective": self.objective.name, "space": self.space.describe()}
        return kept


def read_options(args: Sequence[str]) -> SweepOptions:
    """Parse the arguments and look at all that can be wrong before training."""
    given = _parser().parse_args(list(args))
    for name in _AT_LEAST_1:
        if given[name] < 1:
            raise InputError(f"--{name} {given[name]}: expected 1 or more.")
    if not given.max_accuracy_loss >= 0:
        raise InputError(f"--max_accuracy_loss {given.max_accuracy_loss}: expected 0 or more.")
    if given.seed < 0:
        raise InputError(f"--seed {given.seed}: expected 0 or more.")
    objective, space = Objective.parse(given.objective), read_space(given.space, given.epochs)
    seeds = read_seeds(given.seeds)
    make_data = data_maker(given)
    config = given.data.as_dict()
    init_args = {key: value for key, value in config.get("init_args", {}).items() if value is not None}
    init_args["seed"] = init_args.get("seed", 0)
    data = make_data(seed=init_args["seed"])
    objective.check(data)
    data.prepare_data()
    space = space.with_default("every_n_steps", data.update_interval)
    folder = Path(given.out or f"sweep_{getattr(data, 'name', type(data).__name__)}")
    data_config = {"class_path": config["class_path"], "init_args": init_args}
    return SweepOptions(given, data, data_config, space, objective, seeds, folder)


def _parser() -> ShortNameParser:
    parser = ShortNameParser(
        prog="train.py sweep",
        description="Search for settings with Optuna; batches of trials are trained as one model.",
        exit_on_error=False,
    )
    parser.add_lightning_class_args(TabularDataModule, "data", subclass_mode=True, required=False)
    gaps = ", ".join(f"with_s:{name}" for name in WITH_S)
    add = parser.add_argument
    add("--trials", type=int, default=60, help="Trials in all; those already done count.")
    add(
        "--objective",
        type=str,
        default="val_covariance",
        help=f"What is to be small beside a high val_acc. S-free: {', '.join(S_FREE)}. With S: {gaps}.",
    )
    add("--space", type=str, default=None, help="YAML file of the search space.")
    add("--storage", type=str, default=None, help="Database; sqlite:///<out>/study.db by default.")
    add("--study", type=str, default="fairrf", help="Name of the study in the database.")
    add("--seeds", type=str, default="3", help="Models of each trial: how many, or their seeds: 0,7,42.")
    add("--epochs", type=int, default=20, help="Epochs of each model, which keeps its best.")
    add("--batch", type=int, default=6, help="Trials that are trained as one; they differ in eta and beta.")
    add("--workers", type=int, default=1, help="Processes on this machine.")
    add("--heartbeat", type=int, default=10, help="Seconds between signs of life of a running trial.")
    add("--seed", type=int, default=0, help="Seed of the search.")
    add(
        "--max_accuracy_loss",
        type=float,
        default=0.01,
        help="How much validation accuracy the chosen setting may lose against eta 0.",
    )
    add("--out", type=str, default=None, help="Folder of the results; sweep_<data> by default.")
    add("--plot", type=bool, default=True, help="Draw accuracy against the objective (needs matplotlib).")
    return parser
