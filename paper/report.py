"""``reproduction.md``, its tables and figures, and the facts of its HTML page, from the results alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fairrf_lightning.experiments.choose import ChoiceRule, rejection_lines
from fairrf_lightning.experiments.setting import SETTING_COLUMNS
from fairrf_lightning.files import replacing, write_text
from fairrf_lightning.metrics.decisions import COLLAPSE_RULE, is_constant
from fairrf_lightning.report.facts import Absent, Facts, Front, MeasuredGap, Point
from fairrf_lightning.report.grids import (
    SEEDS_NOTE,
    installed_versions,
    mean_point,
    results_configuration,
    seed_gaps,
)
from fairrf_lightning.report.text import LINEAR_ONLY, comparison_verdict, now
from paper.choose import affordable_choices, choose, rejections
from paper.claims import CHECKS, CLAIMS, RULE, Finding, judge
from paper.numbers import BUDGET, CASE_STUDY, TABLES, Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURES = ["test_acc", "test_eo_gap", "test_dp_gap", "test_eo_mean_deviation", "test_dp_mean_deviation"]
_LABELS = {"test_acc": "accuracy", "test_eo_gap": "dEO", "test_dp_gap": "dDP"}
_COLUMNS = ["method", "eta", "accuracy", "dEO gap", "dDP gap", "dEO dev.", "dDP dev."]
_COLUMNS += ["paper: ACC", "paper: dEO", "paper: dDP"]
HEADER = f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"
TABLES_PAGE = "reproduction-tables.md"
INTRODUCTION = """# The paper, re-run

**{counts}** The numbers behind them, next to the paper's, are in [the tables](reproduction-tables.md).

Written by `python train.py reproduce` from {runs:,} models on {seeds} seeds; do not edit by hand. Each seed
has its own split, initialisation and order of batches.
"""
TABLES_INTRODUCTION = """# The paper, re-run: tables

Written by `python train.py reproduce`, as is [the ledger of claims](reproduction.md). Every cell is the
mean ± the standard deviation over {seeds} seeds, on the test split. *Gap* is the largest minus the
smallest rate of the groups; *dev.* is the authors' measure, the mean deviation from the mean rate (half
the gap with two groups), which their tables print. Settings are chosen on the validation split within a
budget of accuracy ({budgets}): *with S*, as in the paper, the smallest sum of both gaps; *without S*, the
strongest penalty. A setting is eligible only with a {rule}, on validation; a method without an eligible
setting is shown with its most accurate one. ARL is tried with several learning rates of its adversary
(*without S* the most accurate on validation), KSMOTE with a few eta.
"""


def write_page(results: pd.DataFrame, folder: Path) -> Path:
    """Write ``reproduction.md`` and its page of tables, each whole or not at all; return the first's path."""
    path = folder / "reproduction.md"
    write_text(folder / TABLES_PAGE, "\n".join(_tables(results)).rstrip() + "\n")
    write_text(path, "\n".join(_claims(results)).rstrip() + "\n")
    return path


def _claims(results: pd.DataFrame) -> Iterator[str]:
    findings = judge(results, CLAIMS)
    outcomes = Counter(finding.outcome for finding in findings)
    counted = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common())
    counts = f"Of {len(findings)} claims: {counted}." if findings else "No claim can be judged."
    yield INTRODUCTION.format(runs=len(results), seeds=results["seed"].nunique(), counts=counts)
    yield from _findings(results)
    main = results[~results["include_sensitive"]]
    for data in BUDGET:
        if (main["part"] == data).any():
            yield f"\n![Accuracy and gaps on {data}](figures/front_{data}.svg)"
    if (results["part"] == "sensitivity").any():
        yield "\n## Sensitivity to eta and beta (Adult)\n\n![eta by beta](figures/sensitivity.svg)\n"


def _tables(results: pd.DataFrame) -> Iterator[str]:
    budgets = ", ".join(f"{name} {100 * points:g} points" for name, points in BUDGET.items())
    yield TABLES_INTRODUCTION.format(seeds=results["seed"].nunique(), budgets=budgets, rule=COLLAPSE_RULE)
    for data in BUDGET:
        of = results[(results["part"] == data)]
        for inside in (False, True):
            if not (runs := of[of["include_sensitive"] == inside]).empty:
                yield from _main_table(runs, data, "in" if inside else "out of")
    for data in ("adult", "compas"):
        yield from _ablation(results[(results["part"] == "ablation") & (results["data"] == data)], data)
        yield from _backbones(results[(results["part"] == "backbones") & (results["data"] == data)], data)
        yield from _case_study(results[(results["part"] == "case-study") & (results["data"] == data)], data)


def _main_table(runs: pd.DataFrame, data: str, inside: str) -> Iterator[str]:
    yield f"## {data.upper()}, S {inside} the inputs\n\n{HEADER}"
    vanilla = runs[runs["method"] == "vanilla"]
    for method in ("vanilla", "constrain_s", "arl", "ksmote", "remove_r", "fairrf"):
        of = runs[runs["method"] == method]
        printed = TABLES[data].get(method)
        for rule in _rules(of):
            chosen = choose(of, vanilla, BUDGET[data], rule)
            yield _row(f"{method} ({rule})" if len(_rules(of)) > 1 else method, chosen, printed)
    yield "\n" + _hypervolumes(runs, vanilla)
    yield from _rejected(runs, vanilla, data)


def _rejected(runs: pd.DataFrame, vanilla: pd.DataFrame, data: str) -> Iterator[str]:
    """List the settings that their accuracy would allow but that are not eligible."""
    if reasons := rejections(runs, vanilla, BUDGET[data]):
        yield "\nWithin the budget of accuracy, but not eligible:\n"
        yield from (f"- {reason}" for reason in reasons)
        yield ""


def _rules(runs: pd.DataFrame) -> list[ChoiceRule]:
    if runs.empty:
        return []
    return ["with S", "without S"] if runs[["eta", "adversary_lr"]].nunique().max() > 1 else ["with S"]


def _hypervolumes(runs: pd.DataFrame, vanilla: pd.DataFrame) -> str:
    worst_gap = 1.2 * max(vanilla["test_eo_gap"].mean(), vanilla["test_dp_gap"].mean())
    reference = (vanilla["test_acc"].mean() - 0.05, worst_gap)
    parts = []
    for method, of in runs.groupby("method"):
        volume = hypervolume(of, reference)
        parts.append(f"{method} {1e3 * volume['eo_gap']:.2f} / {1e3 * volume['dp_gap']:.2f}")
    worthless = f"accuracy {reference[0]:.3f}, gap {reference[1]:.3f}"
    return f"Hypervolume x 1000 against dEO / dDP (reference point: {worthless}): {'; '.join(parts)}.\n"


def _row(label: str, runs: pd.DataFrame, printed: tuple[Cell, ...] | None) -> str:
    ours = [f"{runs[name].mean():.3f} ± {runs[name].std(ddof=1):.3f}" for name in MEASURES]
    theirs = [f"{cell.mean:.3f} ± {cell.std:.3f}" for cell in printed] if printed else ["", "", ""]
    first = runs.iloc[0]
    strength = f"{first['eta']:g}" if first["eta"] else ""
    strength = f"lr {first['adversary_lr']:g}" if first["adversary_lr"] else strength
    if same := int(runs["test_positive_share"].map(is_constant).sum()):
        label = f"{label}: same decision for everyone in {same} of {len(runs)} models"
    return "| " + " | ".join([label, strength, *ours, *theirs]) + " |"


def _ablation(runs: pd.DataFrame, data: str) -> Iterator[str]:
    if runs.empty:
        return
    yield f"## Ablation of the related features: {data.upper()}\n\nChosen with S on validation.\n\n{HEADER}"
    vanilla = runs[runs["method"] == "vanilla"]
    names = ("vanilla", "random", "top_1", "constrain_all", "noisy", "fix_lambda", "fairrf")
    beyond = ("worst_case", "correlation", "positives", "wider", "wider worst_case")
    for name in (*names, *beyond):
        exact = runs[runs["method"] == name]
        of = exact if not exact.empty else runs[runs["method"].str.startswith(f"{name} ")]
        if of.empty:
            continue
        drawn = of.groupby("method") if name in ("random", "noisy") else [(name, of)]
        chosen = pd.concat([choose(one, vanilla, BUDGET[data], "with S") for _, one in drawn])
        yield _row(name, chosen, {**TABLES[f"ablation-{data}"], **TABLES[data]}.get(name))
    yield from _rejected(runs, vanilla, data)
    yield _best_without_s(runs, vanilla, data)


def _best_without_s(runs: pd.DataFrame, vanilla: pd.DataFrame, data: str) -> str:
    settings = affordable_choices(runs, vanilla, BUDGET[data])
    if not settings:
        return "\nNo method has an eligible setting.\n"
    gaps = {name: of[["test_eo_gap", "test_dp_gap"]].mean().sum() for name, of in settings.items()}
    best = min(gaps, key=lambda name: gaps[name])
    eta = settings[best]["eta"].iloc[0]
    fairrf = _means(settings["fairrf"]) if "fairrf" in settings else "has no eligible setting"
    return (
        f"\nBest on the test split of the settings whose eta is chosen without S: **{best}** (eta {eta:g}), "
        f"accuracy / dEO / dDP {_means(settings[best])}; the paper's FairRF by the same rule {fairrf}.\n"
    )


def _means(runs: pd.DataFrame) -> str:
    return " / ".join(f"{runs[measure].mean():.3f}" for measure in MEASURES[:3])


def _backbones(runs: pd.DataFrame, data: str) -> Iterator[str]:
    if runs.empty:
        return
    yield f"## Backbones: {data.upper()}\n\n{HEADER}"
    for name in ("linear", "svm", "mlp"):
        of = runs[runs["backbone"] == name]
        vanilla, fair = (of[of["method"] == method] for method in ("vanilla", "fairrf"))
        chosen = {"vanilla": vanilla, "fairrf": choose(fair, vanilla, BUDGET[data], "with S")}
        for method, models in chosen.items():
            label = f"{name} {method}"
            yield _row(label, models, TABLES[f"backbones-{data}"].get(label, TABLES[data][method]))
    yield ""


def _case_study(runs: pd.DataFrame, data: str) -> Iterator[str]:
    if runs.empty:
        return
    betas = sorted(runs["beta"].unique())
    columns = " | ".join(f"lambda, beta {beta:g}" for beta in betas)
    yield f"## Case study of lambda: {data.upper()}\n"
    yield f"| feature | rho with Y (paper) | rho with S (paper) | {columns} | paper's lambda |"
    yield "|" + "---|" * (len(betas) + 4)
    for name, (rho_y, rho_s, weight) in CASE_STUDY[data].items():
        ours = [f"{runs[runs['beta'] == beta][f'lambda/{name}'].mean():.2f}" for beta in betas]
        printed = {"rho_y": rho_y, "rho_s": rho_s}
        known = [f"{runs[f'{rho}/{name}'].mean():.2f} ({value:.2f})" for rho, value in printed.items()]
        yield "| " + " | ".join([name, *known, *ours, f"{weight:.2f}"]) + " |"
    yield ""


def _findings(results: pd.DataFrame) -> Iterator[str]:
    if findings := judge(results, CLAIMS):
        yield f"## Ledger of claims\n\n{RULE}\n"
        yield "| | claim | measured | outcome |\n|---|---|---|---|"
        yield from map(_finding, findings)
    if findings := judge(results, CHECKS):
        yield "\n## Checks beyond the paper (S out of the inputs)\n"
        yield "| | check | measured | outcome |\n|---|---|---|---|"
        yield from map(_finding, findings)


def _finding(finding: Finding) -> str:
    return f"| {finding.section} | {finding.claim} | {finding.measured} | {finding.outcome} |"


def hypervolume(runs: pd.DataFrame, reference: tuple[float, float]) -> dict[str, float]:
    """Return the area between a front and a reference point, for accuracy against dEO and against dDP.

    Args:
        runs: Runs of one method.
        reference: The accuracy and the gap that count as worthless.
    """
    means = runs.groupby(SETTING_COLUMNS, dropna=False)[MEASURES[:3]].mean()
    accuracy = means["test_acc"].to_numpy()
    return {gap: _area(accuracy, means[f"test_{gap}"].to_numpy(), reference) for gap in ("eo_gap", "dp_gap")}


def _area(accuracy: np.ndarray, gap: np.ndarray, reference: tuple[float, float]) -> float:
    useful = (accuracy > reference[0]) & (gap < reference[1])
    order = np.argsort(gap[useful])
    accuracy, gap = accuracy[useful][order], gap[useful][order]
    if not len(gap):
        return 0.0
    heights = np.maximum.accumulate(accuracy) - reference[0]
    widths = np.diff(np.append(gap, reference[1]))
    return float((heights * widths).sum())


def draw_figures(results: pd.DataFrame, folder: Path) -> None:
    """Draw the fronts of each data set and the sensitivity to eta and beta, if their parts were run."""
    folder.mkdir(parents=True, exist_ok=True)
    for data in BUDGET:
        runs = results[(results["part"] == data) & ~results["include_sensitive"]]
        if not runs.empty:
            _save(_fronts(runs, data), folder / f"front_{data}")
    grid = results[results["part"] == "sensitivity"]
    if not grid.empty:
        _save(_sensitivity(grid), folder / "sensitivity")


def _new_figure(size: tuple[float, float], title: str) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title)
    return figure


def _fronts(runs: pd.DataFrame, data: str) -> Figure:
    figure = _new_figure((10, 4), f"{data.upper()}, S out of the inputs: test split, mean and std over seeds")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, gap in zip(axes, MEASURES[1:3], strict=True):
        for marker, (method, of) in zip("osD^vPX*", runs.groupby("method"), strict=False):
            grouped = of.groupby(SETTING_COLUMNS, dropna=False)[["test_acc", gap]]
            mean, std = grouped.mean(), grouped.std()
            style = {"marker": marker, "capsize": 2, "label": str(method), "linewidth": 1, "markersize": 5}
            points = (mean[gap], mean["test_acc"], std["test_acc"], std[gap])
            axis.errorbar(*points, elinewidth=0.4, **style)
        axis.set_xlabel(_LABELS[gap])
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy")
    axes[1].legend(frameon=False)
    return figure


def _sensitivity(grid: pd.DataFrame) -> Figure:
    figure = _new_figure((13, 3.8), "Adult: test split, mean over seeds")
    for axis, (measure, label) in zip(figure.subplots(1, 3), _LABELS.items(), strict=True):
        _heat_map(axis, grid.pivot_table(index="eta", columns="beta", values=measure), label)
    return figure


def _heat_map(axis: Axes, table: pd.DataFrame, title: str) -> None:
    values = table.to_numpy(dtype=float)
    axis.imshow(values, cmap="cividis", origin="lower", aspect="auto")
    axis.set_xticks(range(table.shape[1]), [f"{beta:g}" for beta in table.columns])
    axis.set_yticks(range(table.shape[0]), [f"{eta:g}" for eta in table.index])
    for (row, column), value in np.ndenumerate(values):
        color = "w" if value < (values.min() + values.max()) / 2 else "k"
        axis.text(column, row, f"{value:.3f}", ha="center", va="center", color=color, fontsize=8)
    axis.set(xlabel="beta", ylabel="eta", title=title)


def _save(figure: Figure, path: Path) -> None:
    for ending in ("svg", "png"):
        with replacing(path.with_suffix(f".{ending}")) as unfinished:
            figure.savefig(unfinished, dpi=150, format=ending)


def reproduction_facts(results: pd.DataFrame) -> Facts | None:
    """Return the facts of the reproduction; ``None`` if no data set was part of it."""
    gaps: list[MeasuredGap] = []
    fronts, rejected = [], []
    budgets = ", ".join(f"{name} {100 * loss:g} points" for name, loss in BUDGET.items())
    rule = f"Chosen without S: the largest eta within a budget of validation accuracy ({budgets})."
    outside = results[~results["include_sensitive"].astype(bool) & (results["method"] != "single vanilla")]
    for data in BUDGET:
        runs = outside[outside["part"] == data]
        vanilla, fairrf = (runs[runs["method"] == method] for method in ("vanilla", "fairrf"))
        if vanilla.empty or fairrf.empty:
            continue
        chosen = choose(fairrf, vanilla, BUDGET[data], "without S")
        rejected += [f"{data}, {reason}" for reason in rejections(fairrf, vanilla, BUDGET[data])]
        gaps += seed_gaps(chosen, vanilla, data)
        fronts.append(Front(data, list(_points(runs, chosen)), rule))
    if not gaps:
        return None
    several = "These are results of many models; the report of a single run has this."
    absent = dict.fromkeys(("groups", "training", "certificate"), Absent(several))
    return Facts(
        title="Reproduction of the paper",
        subject="FairRF, eta chosen without S",
        split=f"test split, mean of {results['seed'].nunique()} seeds",
        made=now(),
        verdict=comparison_verdict(gaps, "vanilla", None, None),
        other="vanilla",
        gaps=gaps,
        fronts=fronts,
        configuration=results_configuration(results),
        versions=installed_versions(results["versions"].iloc[0]),
        absent=absent | {"data": Absent("Three data sets: docs/data.md describes them.")},
        limits=[
            *rejection_lines(rejected),
            SEEDS_NOTE,
            "S is not an input of any model here; reproduction.md has the other results.",
            LINEAR_ONLY,
        ],
    )


def _points(runs: pd.DataFrame, chosen: pd.DataFrame) -> Iterator[Point]:
    measures = [name for name in runs.columns if name.startswith("test_")]
    for _, of in runs.groupby(SETTING_COLUMNS, dropna=False, sort=False):
        first, values = of.iloc[0], of[measures]
        row = pd.concat([values.mean(), values.std(ddof=1).add_suffix("_std")])
        method, eta = str(first["method"]), first["eta"]
        mark = "chosen" if set(of["key"]) == set(chosen["key"]) else ""
        yield mean_point(row, series=method, label=f"{method}, eta {eta:g}" if eta else method, mark=mark)
