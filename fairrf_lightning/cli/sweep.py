"""``python train.py sweep --data adult --trials 60``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pandas as pd
import yaml

from fairrf_lightning.cli.grid import read_seeds
from fairrf_lightning.cli.parsing import DataOptions
from fairrf_lightning.cli.plots import check_matplotlib, plot_trials
from fairrf_lightning.cli.progress import progress_bar
from fairrf_lightning.cli.tables import print_lines, print_table
from fairrf_lightning.experiments import search
from fairrf_lightning.experiments.choose import rejection_lines, setting_warning
from fairrf_lightning.files import write_csv, write_text
from fairrf_lightning.metrics.decisions import COLLAPSE_RULE
from fairrf_lightning.printed_command import shell_command
from fairrf_lightning.report import write_report_if_installed
from fairrf_lightning.report.sources import data_facts, sweep_facts


def sweep_command(
    data: DataOptions,
    *,
    trials: int = 60,
    objective: str = "val_covariance",
    space: Path | None = None,
    storage: str | None = None,
    study: str = "fairrf",
    seeds: str = "3",
    epochs: int = 20,
    batch: int = 6,
    workers: int = 1,
    heartbeat: int = 10,
    seed: int = 0,
    max_accuracy_loss: float = 0.01,
    out: Path | None = None,
    plot: bool = True,
) -> None:
    """Search for a setting with Optuna; batches of trials train as one model.

    The same command resumes a sweep that was interrupted, and more processes can join it.

    Args:
        data: The data set.
        trials: Number of trials; those already done count.
        objective: Measure to minimise together with maximising val_acc. S-free: val_covariance,
            val_correlation, val_covariance_positives, val_correlation_positives. With S:
            with_s:val_dp_gap, with_s:val_eo_gap, with_s:val_eodds_gap.
        space: YAML file of the search space.
        storage: Address of a database; by default sqlite:///OUT/study.db.
        study: Name of the study in the database.
        seeds: Models per trial: their number, or their seeds, such as 0,7,42.
        epochs: Number of epochs per model; each model keeps its best one.
        batch: Number of trials that train as one stack; they differ in eta and beta.
        workers: Number of processes on this machine.
        heartbeat: Seconds between heartbeats of a running trial.
        seed: Seed of the search.
        max_accuracy_loss: Validation accuracy that the chosen setting may lose against eta 0.
        out: Folder of the results; by default sweep_DATA.
        plot: Draw accuracy against the objective (needs matplotlib).
    """
    if plot:
        check_matplotlib("--plot false")
    data_seed = data.init_args.get("seed") or 0
    module = data.make(seed=data_seed)
    name = str(getattr(module, "name", type(module).__name__))
    folder = out or Path(f"sweep_{name}")
    table, config = folder / "trials.csv", folder / "chosen.yaml"
    with progress_bar(f"{trials} trials", trials * epochs) as advance:
        try:
            result = search.sweep(
                module,
                trials=trials,
                objective=objective,
                space=space,
                storage=storage or folder / "study.db",
                study=study,
                seeds=read_seeds(seeds),
                epochs=epochs,
                batch=batch,
                workers=workers,
                heartbeat=heartbeat,
                seed=seed,
                max_accuracy_loss=max_accuracy_loss,
                advance=advance,
                after_batch=partial(_write_trials, path=table),
            )
        except KeyboardInterrupt:
            print("Interrupted: run the same command to resume.", file=sys.stderr)  # noqa: T201
            raise SystemExit(130) from None
    _write_trials(result.trials, table)
    init_args = {key: value for key, value in data.init_args.items() if value is not None}
    options = {"class_path": data.class_path, "init_args": init_args | {"seed": data_seed}}
    comment = f"# Chosen by `train.py sweep` from {result.trials['trial'].notna().sum()} trials.\n"
    text = yaml.safe_dump(result.fit_options() | {"data": options}, sort_keys=False)
    write_text(config, comment + text)
    files = [table, config]
    measure = result.objective.name
    if plot:
        title = f"{name}: validation rows, mean and standard deviation of {len(read_seeds(seeds))} seeds"
        files += plot_trials(result.trials, result.chosen, measure, folder / "pareto", title)
    make_facts = partial(
        sweep_facts,
        result.trials,
        result.chosen,
        measure,
        data=data_facts(module),
        folder=str(folder),
        max_accuracy_loss=max_accuracy_loss,
        rejected=result.rejected,
        configuration={key: str(value) for key, value in result.identity.items()},
    )
    written, hint = write_report_if_installed(make_facts, folder)
    _print(result, max_accuracy_loss, config, [*files, *written])
    if hint:
        print_lines(hint)


def _write_trials(frame: pd.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(frame, path)


def _print(result: search.SweepResult, max_accuracy_loss: float, config: Path, files: list[Path]) -> None:
    warning = setting_warning(result.chosen)
    note = [f"Note: {warning}."] if warning else []
    used = "S of the validation rows was used" if result.objective.uses_sensitive else "S was not used"
    name = search.trial_name(result.chosen).replace("vanilla", "the vanilla model (eta 0)")
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
