"""The command ``grid``, and what it shares with ``sweep``: seeds and the plot of accuracy against gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from fairrf_lightning.cli.parsing import DataOptions, takes_options_of
from fairrf_lightning.cli.short_names import MODEL_CLASSES
from fairrf_lightning.cli.tables import print_lines, print_table, progress_bar, resumable
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.estimate import ACT_ABOVE, no_gap_lines
from fairrf_lightning.experiments.choose import pareto_front, setting_warning, strength_option
from fairrf_lightning.experiments.grid import Method, grid_settings
from fairrf_lightning.experiments.grid import grid as train_grid
from fairrf_lightning.experiments.setting import Schedule, Setting, StackConfig
from fairrf_lightning.files import replacing
from fairrf_lightning.messages import install_command
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.report import Facts, write_report_if_installed
from fairrf_lightning.report.facts import data_facts

_MARK: dict[str, Any] = {
    "s": 130,
    "facecolors": "none",
    "edgecolors": "crimson",
    "linewidths": 1.5,
    "zorder": 4,
}


@takes_options_of(train_grid, "make_data", "method", "seeds", "setting", "schedule", "path", "advance")
@takes_options_of(StackConfig, "every_n_steps", "expose_sensitive", "pretrain_steps")
@takes_options_of(Schedule)
def grid_command(
    data: DataOptions,
    *,
    model: str = "fairrf",
    pretrain_steps: int | None = None,
    seeds: str = "5",
    every_n_steps: int | Literal["auto"] | None = "auto",
    act_above: float = ACT_ABOVE,
    out: Path | None = None,
    plot: bool = True,
    report: bool = True,
    **options: Any,
) -> None:
    """Train all combinations of eta, beta and seeds at once, and recommend a setting.

    The same command resumes a grid that was interrupted.

    Args:
        data: The data set.
        model: fairrf or arl; also by --method.
        pretrain_steps: Steps that the learner of ARL trains alone; by default 250.
        seeds: Number of seeds, or the seeds themselves: 0,7,42.
        every_n_steps: Optimiser steps between updates of lambda, null for never; auto is 50, or fewer for
            few training rows.
        act_above: With a survey (--data.membership), train only if the estimated gap of a linear model
            exceeds this and 1.64 standard errors.
        out: Folder of the results; by default grid_DATA.
        plot: Draw accuracy against the gaps (needs matplotlib).
        report: Write report.html and model_card.md.
        options: Passed on to ``grid``.
    """
    make_data = data.maker()
    make_data.keywords.pop("seed", None)  # each of --seeds is a split
    module = make_data(seed=0)
    method = _method(model)
    if pretrain_steps is not None and method != "arl":
        raise InputError(f"--pretrain_steps {pretrain_steps}: it has no effect on fairrf; leave it out.")
    if plot and module.sensitive is not None:  # without S there are no gaps to draw
        check_matplotlib("--plot false")
    module.prepare_data()
    if no_gap := no_gap_lines(module, act_above, "eo_gap" if options["given"] == "positives" else "dp_gap"):
        print_lines(*no_gap)
        return
    schedule = Schedule(**_take(options, Schedule))
    setting = Setting(
        eta=0.0,
        every_n_steps=module.update_interval if every_n_steps == "auto" else every_n_steps,
        pretrain_steps=Setting.pretrain_steps if pretrain_steps is None else pretrain_steps,
        **_take(options, StackConfig),
    )
    varied = {name: options[name] for name in ("eta", "beta", "adversary_lr")}
    settings = grid_settings(module, method, setting=setting, **varied)
    numbers = read_seeds(seeds)
    name = str(getattr(module, "name", type(module).__name__))
    folder = out or Path(f"grid_{name}")
    files = [folder / "results.csv"]
    words, total = f"{len(settings)} settings x {len(numbers)} seeds", len(settings) * len(numbers)
    with resumable(files[0]), progress_bar(words, total * schedule.epochs) as advance:
        result = train_grid(
            make_data,
            method=method,
            seeds=numbers,
            setting=setting,
            schedule=schedule,
            path=files[0],
            advance=advance,
            **options,
        )
    hint = ""
    if plot and result.recommendation.with_s is not None:
        title = f"{module.display_name}: test split, mean and standard deviation of {len(numbers)} seeds"
        gaps = {f"test_{key}": f"{GAPS[key].label}  ({GAPS[key].name})" for key in ("eo_gap", "dp_gap")}
        marks = [
            (result.recommendation.without_s, "o", "recommended, without S"),
            (result.recommendation.with_s, "s", "smallest gaps, S on validation"),
        ]
        files += plot_fronts(result.summary, "test_acc", gaps, marks, folder / "pareto", title=title)

    def make_facts() -> Facts:
        from fairrf_lightning.report.grids import grid_facts  # noqa: PLC0415 - optional packages

        loss = result.max_accuracy_loss
        return grid_facts(result.results, max_accuracy_loss=loss, data=data_facts(module))

    if report:
        written, hint = write_report_if_installed(make_facts, folder)
        files += written
    warning = setting_warning(result.recommended)
    note = [f"Note: {warning}."] if warning else []
    print_lines(*note)
    print_table(result.table(), title=f"Test split, mean ± standard deviation of {len(numbers)} seeds")
    print_lines(*result.lines())
    if result.recommendation.with_s is not None:
        inside = "an" if module.include_sensitive else "not an"
        print_lines(f"S is '{module.sensitive}': {inside} input of the models.")
    print_lines(f"Written: {', '.join(map(str, files))}")
    seed = data.init_args.get("seed")
    ignored = "" if seed is None else f"Note: --data.seed {seed} has no effect; each of --seeds is a split."
    print_lines(*filter(None, (*note, hint, ignored)))


def _take(options: dict[str, Any], kind: type[Schedule | StackConfig]) -> dict[str, Any]:
    """Remove the fields of a dataclass from the options, and return them."""
    return {one.name: options.pop(one.name) for one in fields(kind) if one.name in options}


def _method(model: str) -> Method:
    names: tuple[Method, ...] = ("fairrf", "arl")
    for name in names:
        if model in (name, MODEL_CLASSES[name]):
            return name
    if "." not in model:
        raise InputError(f"--model {model}: no such name; {did_you_mean(model, names)}")
    raise InputError(f"--model {model}: a grid trains {' and '.join(names)} only; train other models by fit.")


def read_seeds(text: str) -> list[int]:
    """Return the seeds of ``--seeds``.

    >>> read_seeds("3"), read_seeds("0,7")
    ([0, 1, 2], [0, 7])
    """
    parts = text.strip("[] ").split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise InputError(f"--seeds {text}: expected their number, such as 5, or the seeds, such as 0,7,42.")
    numbers = [int(part) for part in parts]
    if len(numbers) == 1 and numbers[0] < 1:
        raise InputError(f"--seeds {text}: expected 1 or more.")
    return list(range(numbers[0])) if len(numbers) == 1 else list(dict.fromkeys(numbers))


def check_matplotlib(otherwise: str = "") -> None:
    """Raise if figures cannot be drawn; commands call this before they train.

    Args:
        otherwise: Option that leaves the figures out, for the message.
    """
    if find_spec("matplotlib") is None:
        hint = f", or {otherwise}" if otherwise else ""
        raise InputError(f"figures need matplotlib: {install_command('plot')}{hint}")


def plot_fronts(
    rows: pd.DataFrame,
    accuracy: str,
    gaps: Mapping[str, str],
    marks: Sequence[tuple[pd.Series, str, str]],
    path: Path,
    *,
    title: str,
) -> list[Path]:
    """Draw accuracy against gaps with the Pareto fronts, as PNG and SVG, and return the files.

    Args:
        rows: One row per setting, with a column ``_std`` of each measure.
        accuracy: Column of the accuracy.
        gaps: Label of each column of a gap; each has a panel of its own.
        marks: Rows to mark, each with a marker and a name.
        path: The files' path without its ending.
        title: Title of the figure.
    """
    check_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    strength = strength_option(rows)
    figure = Figure(figsize=(10, 4.2) if len(gaps) > 1 else (6.4, 4.4), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(1, len(gaps), sharey=True, squeeze=False)[0]
    for axes, (gap, label) in zip(panels, gaps.items(), strict=True):
        x, y = rows[gap], rows[accuracy]
        x_spread, y_spread = (rows[f"{name}_std"].fillna(0) for name in (gap, accuracy))
        axes.errorbar(x, y, y_spread, x_spread, fmt="none", ecolor="lightgray", zorder=1)
        dots = axes.scatter(x, y, c=rows[strength], cmap="viridis", zorder=3)
        front = pareto_front(y, x)
        axes.plot(x.iloc[front], y.iloc[front], color="gray", linewidth=1, zorder=2, label="Pareto front")
        for row, marker, name in marks:
            axes.scatter(row[gap], row[accuracy], marker=marker, label=name, **_MARK)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy" if accuracy == "test_acc" else "validation accuracy")
    panels[-1].legend(fontsize="small")
    figure.colorbar(dots, ax=panels[-1], label=strength)
    files = [path.with_name(f"{path.name}.{ending}") for ending in ("png", "svg")]
    for file in files:
        with replacing(file) as unfinished:
            figure.savefig(unfinished, dpi=150, format=file.suffix[1:])
    return files
