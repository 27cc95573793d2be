"""``python train.py grid --data adult --eta 0.2,0.4 --beta 0.4,0.6 --seeds 5``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from jsonargparse import Namespace
from rich.console import Console

from fairrf_lightning.backbones import BackboneName
from fairrf_lightning.cli.short_names import SHORT_NAMES, ShortNameParser
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.experiments.choose import recommend, summarise
from fairrf_lightning.experiments.command_options import data_maker, read_seeds
from fairrf_lightning.experiments.grid_report import print_report
from fairrf_lightning.experiments.pareto import plot_pareto
from fairrf_lightning.experiments.plot_package import check_matplotlib
from fairrf_lightning.experiments.progress import progress_bar, resumable
from fairrf_lightning.experiments.run import BACKENDS, default_num_workers, run_settings
from fairrf_lightning.experiments.setting import Schedule, Setting
from fairrf_lightning.functional import Rule, Statistic
from fairrf_lightning.penalty import Given
from fairrf_lightning.report import Facts, write_report_if_installed

_MODELS = SHORT_NAMES["model"]
# Of options that only one of the methods has; giving them to the other one is an error.
_DEFAULTS: dict[str, str | int] = {"eta": "0.2,0.4,0.6,0.8,1.0", "beta": "0.5"}
_DEFAULTS |= {"adversary_lr": "0.01,0.1,1", "pretrain_steps": 250}


def run_grid(args: Sequence[str]) -> None:
    """Train eta x beta x seeds as one model, write the results and say which setting to take."""
    options = _parser().parse_args(list(args))
    make_data = data_maker(options)
    data = make_data(seed=0)
    settings = list(_settings(options, data))
    seeds = read_seeds(options.seeds)
    schedule = Schedule(options.epochs, options.pretrain_epochs, options.lr)
    if not options.max_accuracy_loss >= 0:
        raise InputError(f"--max_accuracy_loss {options.max_accuracy_loss}: expected 0 or more.")
    if options.plot and data.sensitive is not None:  # without S there are no gaps to draw
        check_matplotlib("--plot false")
    name = getattr(data, "name", type(data).__name__)
    folder = Path(options.out or f"grid_{name}")
    total = len(settings) * len(seeds) * schedule.epochs
    data.prepare_data()
    workers = options.workers
    if workers is None:
        workers = default_num_workers(total * len(data.train_dataloader()))
    path = folder / "results.csv"
    words = f"{len(settings)} settings x {len(seeds)} seeds"
    with resumable(path), progress_bar(words, total) as advance:
        parallel = {"workers": workers, "backend": options.backend}
        results = run_settings(make_data, settings, seeds, schedule, path=path, advance=advance, **parallel)
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
        written, hint = write_report_if_installed(partial(_facts, results, budget, data), folder)
        files += written
    print_report(summary, chosen, data=data, max_accuracy_loss=budget, num_seeds=num_seeds, files=files)
    seed = options.data.init_args.get("seed") if "init_args" in options.data else None
    ignored = "" if seed is None else f"Note: --data.seed {seed} has no effect; each of --seeds is a split."
    for line in filter(None, (hint, ignored)):
        Console().print(line, highlight=False, markup=False, soft_wrap=True)


def _facts(results: pd.DataFrame, budget: float, data: TabularDataModule) -> Facts:
    from fairrf_lightning.report.sources import data_facts, grid_facts  # noqa: PLC0415 - optional dependencies

    return grid_facts(results, max_accuracy_loss=budget, data=data_facts(data))


def _parser() -> ShortNameParser:
    parser = ShortNameParser(
        prog="train.py grid",
        description="Train all combinations of eta, beta and seeds as one model.",
        exit_on_error=False,
    )
    parser.add_lightning_class_args(TabularDataModule, "data", subclass_mode=True, required=False)
    add = parser.add_argument
    add("--model", type=str, default=_MODELS["fairrf"], help="fairrf or arl; also by --method.")
    helps = {
        "adversary_lr": "Learning rates of ARL's adversary",
        "pretrain_steps": "Steps that the learner of ARL trains alone",
        "eta": "Weights of the penalty; 0 is always added",
        "beta": "Weights of |lambda|^2",
    }
    for name, text in helps.items():
        value = _DEFAULTS[name]
        add(f"--{name}", type=type(value), default=None, help=f"{text}; by default {value}.")
    add("--seeds", type=str, default="5", help="How many seeds, or the seeds themselves: 0,7,42.")
    add("--backbone", type=BackboneName, default="mlp", help="The classifier.")
    add("--dropout", type=float, default=0.1, help="Dropout of the MLP.")
    add("--statistic", type=Statistic, default="covariance", help="What the penalty measures.")
    add("--given", type=Given, default="all", help="All rows, or the positives only.")
    add("--rule", type=Rule, default="kkt", help="How lambda follows the penalties.")
    add("--epochs", type=int, default=20, help="Epochs in all; each model keeps its best.")
    add("--pretrain_epochs", type=int, default=1, help="Epochs without the penalty.")
    add(
        "--every_n_steps",
        type=str,
        default="auto",
        help="Optimiser steps between updates of lambda, null for never; auto is 50, or fewer for few rows.",
    )
    add("--lr", type=float, default=1e-3, help="Learning rate of Adam.")
    add(
        "--max_accuracy_loss",
        type=float,
        default=0.01,
        help="How much validation accuracy the recommended setting may lose against eta 0.",
    )
    add("--workers", type=int, default=None, help="Processes of one thread; by default up to one per core.")
    add("--backend", type=str, default="loky", help=f"Backend of joblib: {', '.join(BACKENDS)}.")
    add("--out", type=str, default=None, help="Folder of the results; grid_<data> by default.")
    add("--plot", type=bool, default=True, help="Draw accuracy against the gaps (needs matplotlib).")
    add("--report", type=bool, default=True, help="Write report.html and model_card.md.")
    return parser


def _every_n_steps(text: str, data: TabularDataModule) -> int | None:
    if text == "auto":
        data.prepare_data()
        return data.update_interval
    if text in ("null", "None"):
        return None
    if not text.isdigit():
        raise InputError(f"--every_n_steps {text}: expected a number of steps, null for never, or auto.")
    return int(text)


def _settings(options: Namespace, data: TabularDataModule) -> Iterator[Setting]:
    if options.model not in _MODELS.values():
        raise InputError(f"--model {options.model}: no such grid; {did_you_mean(options.model, _MODELS)}")
    is_arl = options.model == _MODELS["arl"]
    given = _own_options(options, is_arl=is_arl)
    shared = {name: options[name] for name in ("backbone", "dropout", "statistic", "given", "rule")}
    shared |= {"method": _method(data), "every_n_steps": _every_n_steps(options.every_n_steps, data)}
    betas = _numbers("beta", given["beta"])
    # Without a penalty beta does nothing: one vanilla model per seed is enough.
    yield Setting(eta=0.0, beta=betas[0], **shared)
    if is_arl:
        for lr in filter(None, _numbers("adversary_lr", given["adversary_lr"])):
            adversary = {"adversary_lr": lr, "pretrain_steps": given["pretrain_steps"]}
            yield Setting(eta=0.0, beta=betas[0], **shared | adversary | {"method": "arl"})
        return
    for eta, beta in product(_numbers("eta", given["eta"]), betas):
        if eta != 0:
            yield Setting(eta=eta, beta=beta, **shared)


def _own_options(options: Namespace, *, is_arl: bool) -> dict[str, Any]:
    """Return the options that only one of the methods has; raise if one is given to the other method."""
    without_effect = ("eta", "beta") if is_arl else ("adversary_lr", "pretrain_steps")
    for name in without_effect:
        if options[name] is not None:
            method = "arl" if is_arl else "fairrf"
            raise InputError(f"--{name} {options[name]}: it has no effect on {method}; leave it out.")
    return {name: value if options[name] is None else options[name] for name, value in _DEFAULTS.items()}


def _method(data: TabularDataModule) -> str:
    """Return the name of the method that the options of the data stand for."""
    changed = {"ksmote": data.ksmote, "remove_r": data.remove_related, "constrain_s": data.expose_sensitive}
    return next((name for name, option in changed.items() if option), "fairrf")


def _numbers(name: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.strip("[] ").split(",")]
    except ValueError:
        raise InputError(f"--{name} {text}: expected numbers with commas, such as 0.2,0.4.") from None
    return list(dict.fromkeys(numbers))
