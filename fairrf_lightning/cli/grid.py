"""``python train.py grid --data adult --eta 0.2,0.4 --beta 0.4,0.6 --seeds 5``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from fairrf_lightning.backbones import BackboneName
from fairrf_lightning.cli.harm import is_worth_training
from fairrf_lightning.cli.parsing import DataOptions, takes_options_of
from fairrf_lightning.cli.plots import check_matplotlib, plot_pareto
from fairrf_lightning.cli.short_names import MODEL_CLASSES
from fairrf_lightning.cli.tables import print_lines, print_table, progress_bar, resumable
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.estimate import ACT_ABOVE
from fairrf_lightning.experiments.choose import setting_warning
from fairrf_lightning.experiments.grid import Method, grid_settings
from fairrf_lightning.experiments.grid import grid as train_grid
from fairrf_lightning.experiments.setting import Schedule, Setting
from fairrf_lightning.functional import Rule, Statistic
from fairrf_lightning.penalty import Given
from fairrf_lightning.report import Facts, write_report_if_installed


@takes_options_of(train_grid, "make_data", "method", "seeds", "setting", "schedule", "path", "advance")
def grid_command(
    data: DataOptions,
    *,
    model: str = "fairrf",
    pretrain_steps: int | None = None,
    seeds: str = "5",
    backbone: BackboneName = "mlp",
    dropout: float = 0.1,
    hidden: list[int] = [64, 32],  # noqa: B006 - never changed; shown by --help
    statistic: Statistic = "covariance",
    given: Given = "all",
    rule: Rule = "kkt",
    every_n_steps: int | Literal["auto"] | None = "auto",
    epochs: int = 20,
    pretrain_epochs: int = 1,
    lr: float = 1e-3,
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
        backbone: Classifier.
        dropout: Dropout of the MLP.
        hidden: Sizes of the MLP's hidden layers.
        statistic: Statistic of the penalty.
        given: Rows of the penalty: all, or the positives only.
        rule: How lambda is solved for.
        every_n_steps: Optimiser steps between updates of lambda, null for never; auto is 50, or fewer for
            few training rows.
        epochs: Number of epochs; each model keeps its best one.
        pretrain_epochs: Epochs without the penalty.
        lr: Learning rate of Adam.
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
    if not is_worth_training(module, act_above, "eo_gap" if given == "positives" else "dp_gap"):
        return
    setting = Setting(
        eta=0.0,
        backbone=backbone,
        dropout=dropout,
        hidden=tuple(hidden),
        statistic=statistic,
        given=given,
        rule=rule,
        every_n_steps=module.update_interval if every_n_steps == "auto" else every_n_steps,
        pretrain_steps=Setting.pretrain_steps if pretrain_steps is None else pretrain_steps,
    )
    varied = {name: options[name] for name in ("eta", "beta", "adversary_lr")}
    settings = grid_settings(module, method, setting=setting, **varied)
    numbers, schedule = read_seeds(seeds), Schedule(epochs, pretrain_epochs, lr)
    name = str(getattr(module, "name", type(module).__name__))
    folder = out or Path(f"grid_{name}")
    files = [folder / "results.csv"]
    words, total = f"{len(settings)} settings x {len(numbers)} seeds", len(settings) * len(numbers) * epochs
    with resumable(files[0]), progress_bar(words, total) as advance:
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
        files += plot_pareto(result.summary, result.recommendation, folder / "pareto", title)

    def make_facts() -> Facts:
        from fairrf_lightning.report.sources import data_facts, grid_facts  # noqa: PLC0415 - optional packages

        loss = result.max_accuracy_loss
        return grid_facts(result.results, max_accuracy_loss=loss, data=data_facts(module))

    if report:
        written, hint = write_report_if_installed(make_facts, folder)
        files += written
    warning = setting_warning(result.recommended)
    note = [f"Note: {warning}."] if warning else []
    print_lines(*note)
    title = f"Test split, mean ± standard deviation of {len(numbers)} seeds"
    print_table(result.table(), title=title)
    print_lines(*result.lines())
    if result.recommendation.with_s is not None:
        inside = "an" if module.include_sensitive else "not an"
        print_lines(f"S is '{module.sensitive}': {inside} input of the models.")
    print_lines(f"Written: {', '.join(map(str, files))}")
    seed = data.init_args.get("seed")
    ignored = "" if seed is None else f"Note: --data.seed {seed} has no effect; each of --seeds is a split."
    print_lines(*filter(None, (*note, hint, ignored)))


def _method(model: str) -> Method:
    names: tuple[Method, ...] = ("fairrf", "arl")
    for name in names:
        if model in (name, MODEL_CLASSES[name]):
            return name
    raise InputError(f"--model {model}: no such grid; {did_you_mean(model, names)}")


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
