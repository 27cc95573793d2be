"""``python train.py grid --data adult --eta 0.2,0.4 --beta 0.4,0.6 --seeds 5``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import pandas as pd
from jsonargparse import Namespace
from rich.console import Console

from fairrf_lightning.backbones import BackboneName
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.experiments.command_options import data_maker, read_seeds
from fairrf_lightning.experiments.grid_report import print_report
from fairrf_lightning.experiments.pareto import plot_pareto
from fairrf_lightning.experiments.plot_package import check_matplotlib
from fairrf_lightning.experiments.progress import progress_bar, resumable
from fairrf_lightning.experiments.recommend import recommend, summarise
from fairrf_lightning.experiments.runner import run_settings
from fairrf_lightning.experiments.setting import LambdaRule, Schedule, Setting
from fairrf_lightning.experiments.workers import WORKERS_HELP, worthwhile_workers
from fairrf_lightning.functional import Statistic
from fairrf_lightning.penalty import Given
from fairrf_lightning.report import Facts, end_with_report
from fairrf_lightning.short_names import SHORT_NAMES, ShortNameParser

_MODELS = SHORT_NAMES["model"]


def run_grid(args: Sequence[str]) -> None:
    """Train eta x beta x seeds as one model, write the results and say which setting to take."""
    options = _parser().parse_args(list(args))
    make_data = data_maker(options)
    settings = list(_settings(options))
    seeds = read_seeds(options.seeds)
    schedule = Schedule(options.epochs, options.pretrain_epochs, options.update_every, options.lr)
    if not options.max_accuracy_loss >= 0:
        raise InputError(f"--max_accuracy_loss {options.max_accuracy_loss}: expected 0 or more.")
    data = make_data(seed=0)
    if options.plot and data.sensitive is not None:  # without S there are no gaps to draw
        check_matplotlib("--plot false")
    name = getattr(data, "name", type(data).__name__)
    folder = Path(options.out or f"grid_{name}")
    total = len(settings) * len(seeds) * schedule.epochs
    data.prepare_data()
    workers = options.workers
    if workers is None:
        workers = worthwhile_workers(total * len(data.train_dataloader()))
    path = folder / "results.csv"
    words = f"{len(settings)} settings x {len(seeds)} seeds"
    with resumable(path), progress_bar(words, total) as advance:
        results = run_settings(
            make_data, settings, seeds, schedule, path=path, advance=advance, workers=workers
        )
    _finish(results, options, data, folder)


def _finish(results: pd.DataFrame, options: Namespace, data: TabularDataModule, folder: Path) -> None:
    summary, num_seeds = summarise(results), results["seed"].nunique()
    budget = options.max_accuracy_loss
    chosen = recommend(summary, budget)
    files, hint = [folder / "results.csv"], ""
    if options.plot and chosen.with_s is not None:
        name = getattr(data, "name", type(data).__name__)
        title = f"{name}: test split, mean and standard deviation of {num_seeds} seeds"
        files += plot_pareto(summary, chosen, folder / "pareto", title)
    if options.report:
        written, hint = end_with_report(partial(_facts, results, budget, data), folder)
        files += written
    print_report(summary, chosen, data=data, max_accuracy_loss=budget, num_seeds=num_seeds, files=files)
    if hint:
        Console().print(hint, highlight=False, markup=False, soft_wrap=True)


def _facts(results: pd.DataFrame, budget: float, data: TabularDataModule) -> Facts:
    from fairrf_lightning.report.results_facts import grid_facts  # noqa: PLC0415 - optional dependencies
    from fairrf_lightning.report.run_facts import data_of  # noqa: PLC0415

    return grid_facts(results, max_accuracy_loss=budget, data=data_of(data))


def _parser() -> ShortNameParser:
    parser = ShortNameParser(
        prog="train.py grid",
        description="Train all combinations of eta, beta and seeds as one model.",
        exit_on_error=False,
    )
    parser.add_lightning_class_args(TabularDataModule, "data", subclass_mode=True, required=False)
    add = parser.add_argument
    add("--model", type=str, default=_MODELS["fairrf"], help="fairrf or arl; also by --method.")
    add("--adversary_lr", type=str, default="0.01,0.1,1", help="Learning rates of ARL's adversary.")
    add("--eta", type=str, default="0.2,0.4,0.6,0.8,1.0", help="Weights of the penalty; 0 is always added.")
    add("--beta", type=str, default="0.5", help="Weights of |lambda|^2.")
    add("--seeds", type=str, default="5", help="How many seeds, or the seeds themselves: 0,7,42.")
    add("--backbone", type=BackboneName, default="mlp", help="The classifier.")
    add("--dropout", type=float, default=0.1, help="Dropout of the MLP.")
    add("--statistic", type=Statistic, default="covariance", help="What the penalty measures.")
    add("--given", type=Given, default="all", help="All rows, or the positives only.")
    add("--rule", type=LambdaRule, default="kkt", help="How lambda follows the penalties.")
    add("--epochs", type=int, default=20, help="Epochs in all; each model keeps its best.")
    add("--pretrain_epochs", type=int, default=1, help="Epochs without the penalty.")
    add("--update_every", type=int, default=50, help="Optimiser steps between updates of lambda.")
    add("--lr", type=float, default=1e-3, help="Learning rate of Adam.")
    add(
        "--max_accuracy_loss",
        type=float,
        default=0.01,
        help="How much validation accuracy the recommended setting may lose against eta 0.",
    )
    add("--workers", type=int, default=None, help=WORKERS_HELP)
    add("--out", type=str, default=None, help="Folder of the results; grid_<data> by default.")
    add("--plot", type=bool, default=True, help="Draw accuracy against the gaps (needs matplotlib).")
    add("--report", type=bool, default=True, help="Write report.html and model_card.md.")
    return parser


def _settings(options: Namespace) -> Iterator[Setting]:
    if options.model not in _MODELS.values():
        raise InputError(f"--model {options.model}: no such grid; {did_you_mean(options.model, _MODELS)}")
    etas = _numbers("eta", options.eta)
    shared = {name: options[name] for name in ("backbone", "dropout", "statistic", "given", "rule")}
    betas = _numbers("beta", options.beta)
    # Without a penalty beta does nothing: one vanilla model a seed is enough.
    yield Setting(eta=0.0, beta=betas[0], **shared)
    if options.model == _MODELS["arl"]:
        for lr in filter(None, _numbers("adversary_lr", options.adversary_lr)):
            yield Setting(eta=0.0, beta=betas[0], adversary_lr=lr, method="arl", **shared)
        return
    for eta, beta in product(etas, betas):
        if eta != 0:
            yield Setting(eta=eta, beta=beta, **shared)


def _numbers(name: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.strip("[] ").split(",")]
    except ValueError:
        raise InputError(f"--{name} {text}: expected numbers with commas, such as 0.2,0.4.") from None
    return list(dict.fromkeys(numbers))
