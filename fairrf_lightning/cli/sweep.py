"""The command ``sweep``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fairrf_lightning.cli.grid import check_matplotlib, plot_fronts, read_seeds
from fairrf_lightning.cli.parsing import DataOptions, takes_options_of
from fairrf_lightning.cli.tables import print_lines, print_table, progress_bar, resumable
from fairrf_lightning.estimate import ACT_ABOVE, no_gap_lines
from fairrf_lightning.experiments.choose import rejection_lines, setting_warning
from fairrf_lightning.experiments.sweep import SweepResult, sweep, trial_name
from fairrf_lightning.files import write_csv, write_text
from fairrf_lightning.messages import shell_command
from fairrf_lightning.metrics.decisions import COLLAPSE_RULE
from fairrf_lightning.report import write_report_if_installed
from fairrf_lightning.report.facts import data_facts
from fairrf_lightning.report.grids import sweep_facts


@takes_options_of(sweep, "data", "storage", "seeds", "advance", "after_batch")
def sweep_command(
    data: DataOptions,
    *,
    storage: str | None = None,
    seeds: str = "3",
    act_above: float = ACT_ABOVE,
    out: Path | None = None,
    plot: bool = True,
    **options: Any,
) -> None:
    """Search for a setting with Optuna; batches of trials train as one model.

    The same command resumes a sweep that was interrupted, and more processes can join it.

    Args:
        data: The data set.
        storage: Address of a database; by default sqlite:///OUT/study.db.
        seeds: Models per trial: their number, or their seeds, such as 0,7,42.
        act_above: With a survey (--data.membership), train only if the estimated gap of a linear model
            exceeds this and 1.64 standard errors.
        out: Folder of the results; by default sweep_DATA.
        plot: Draw accuracy against the objective (needs matplotlib).
        options: Passed on to ``sweep``.
    """
    trials, max_accuracy_loss = options["trials"], options["max_accuracy_loss"]
    numbers = read_seeds(seeds)
    if plot:
        check_matplotlib("--plot false")
    data_seed = data.init_args.get("seed") or 0
    module = data.make(seed=data_seed)
    module.prepare_data()
    if no_gap := no_gap_lines(module, act_above):
        print_lines(*no_gap)
        return
    name = str(getattr(module, "name", type(module).__name__))
    folder = out or Path(f"sweep_{name}")
    table, config = folder / "trials.csv", folder / "chosen.yaml"
    with resumable(table), progress_bar(f"{trials} trials", trials * options["epochs"]) as advance:
        result = sweep(
            module,
            storage=storage or folder / "study.db",
            seeds=numbers,
            advance=advance,
            after_batch=partial(_write_trials, path=table),
            **options,
        )
    _write_trials(result.trials, table)
    init_args = {key: value for key, value in data.init_args.items() if value is not None}
    options = {"class_path": data.class_path, "init_args": init_args | {"seed": data_seed}}
    comment = f"# Chosen by `train.py sweep` from {result.trials['trial'].notna().sum()} trials.\n"
    text = yaml.safe_dump(result.fit_options() | {"data": options}, sort_keys=False)
    write_text(config, comment + text)
    files = [table, config]
    if plot:
        title = f"{name}: validation rows, mean and standard deviation of {len(numbers)} seeds"
        gaps = {result.objective.name: f"{result.objective.name}  (smaller is fairer)"}
        marks = [(result.chosen, "o", "chosen")]
        files += plot_fronts(result.trials, "val_acc", gaps, marks, folder / "pareto", title=title)
    facts: Any = {"data": data_facts(module), "folder": folder, "max_accuracy_loss": max_accuracy_loss}
    written, hint = write_report_if_installed(partial(sweep_facts, result, **facts), folder)
    _print(result, max_accuracy_loss, config, [*files, *written])
    if hint:
        print_lines(hint)


def _write_trials(frame: pd.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(frame, path)


def _print(result: SweepResult, max_accuracy_loss: float, config: Path, files: list[Path]) -> None:
    warning = setting_warning(result.chosen)
    note = [f"Note: {warning}."] if warning else []
    used = "S of the validation rows was used" if result.objective.uses_sensitive else "S was not used"
    name = trial_name(result.chosen).replace("vanilla", "the vanilla model (eta 0)")
    print_lines(*note)
    count = result.trials["trial"].notna().sum()
    print_table(result.table(), title=f"Pareto front of {count} trials, validation rows")
    print_lines(
        f"Chosen: {name}, by the smallest {result.objective.name} that keeps mean validation accuracy within",
        f"{max_accuracy_loss:g} of the best vanilla model. {used}; the test rows were not used.",
        f"A trial is eligible only with a {COLLAPSE_RULE}.",
        *rejection_lines(result.rejected),
        f"Train and test it: {shell_command('fit', '--config', config)}",
        f"Written: {', '.join(map(str, files))}",
        *note,  # the last lines are read first
    )
