"""``reproduction.md``: tables, figures and the ledger, written from the results alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fairrf_lightning.experiments.checks import checks
from fairrf_lightning.experiments.choose import ChoiceRule, affordable_choices, choose, rejections
from fairrf_lightning.experiments.fronts import hypervolume
from fairrf_lightning.experiments.ledger import RULE, Finding, ledger
from fairrf_lightning.experiments.paper import BUDGET, CASE_STUDY, TABLES, Cell
from fairrf_lightning.files import write_text
from fairrf_lightning.metrics.decisions import COLLAPSE_RULE, is_constant

MEASURES = ["test_acc", "test_eo_gap", "test_dp_gap", "test_eo_mean_deviation", "test_dp_mean_deviation"]
_COLUMNS = ["method", "eta", "accuracy", "dEO gap", "dDP gap", "dEO dev.", "dDP dev."]
_COLUMNS += ["paper: ACC", "paper: dEO", "paper: dDP"]
HEADER = f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"
INTRODUCTION = """# The paper, re-run

Written by `python train.py reproduce` from {runs:,} trained models; do not edit by hand. Every cell is the
mean ± the standard deviation over {seeds} seeds, each with its own split, initialisation and order,
on the test split. *Gap* is the largest minus the smallest rate of the groups; *dev.* is the authors' measure,
the mean deviation from the mean rate (half the gap with two groups), which their tables print. Settings are
chosen on the validation split within a budget of accuracy ({budgets}): *with S*, as the paper, the smallest
sum of both gaps; *without S* the strongest penalty. A setting is eligible only with a {rule},
on validation; a method without an eligible setting is shown with its most accurate one. ARL is tried with
several learning rates of its adversary (*without S* the most accurate on validation), KSMOTE with a few eta.
"""


def write_report(results: pd.DataFrame, folder: Path) -> Path:
    """Write the report, atomically, and return its path."""
    text = "\n".join(_sections(results))
    path = folder / "reproduction.md"
    write_text(path, text + "\n")
    return path


def _sections(results: pd.DataFrame) -> Iterator[str]:
    budgets = ", ".join(f"{name} {100 * points:g} points" for name, points in BUDGET.items())
    yield INTRODUCTION.format(
        runs=len(results), seeds=results["seed"].nunique(), budgets=budgets, rule=COLLAPSE_RULE
    )
    for data in ("adult", "compas", "lsac"):
        of = results[(results["part"] == data)]
        for inside in (False, True):
            if not (runs := of[of["include_sensitive"] == inside]).empty:
                yield from _main_table(runs, data, "in" if inside else "out of")
    for data in ("adult", "compas"):
        yield from _ablation(results[(results["part"] == "ablation") & (results["data"] == data)], data)
        yield from _backbones(results[(results["part"] == "backbones") & (results["data"] == data)], data)
        yield from _case_study(results[(results["part"] == "case-study") & (results["data"] == data)], data)
    if (results["part"] == "sensitivity").any():
        yield "## Sensitivity to eta and beta (Adult)\n\n![eta by beta](figures/sensitivity.svg)\n"
    yield from _ledger(results)
    yield from _checks(results)


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
    if inside == "out of":
        yield f"\n![fronts](figures/front_{data}.svg)\n"


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
    fairrf = _figures(settings["fairrf"]) if "fairrf" in settings else "has no eligible setting"
    return (
        f"\nBest on the test split of the settings whose eta is chosen without S: **{best}** (eta {eta:g}), "
        f"accuracy / dEO / dDP {_figures(settings[best])}; the paper's FairRF by the same rule {fairrf}.\n"
    )


def _figures(runs: pd.DataFrame) -> str:
    return " / ".join(f"{runs[measure].mean():.3f}" for measure in MEASURES[:3])


def _backbones(runs: pd.DataFrame, data: str) -> Iterator[str]:
    if runs.empty:
        return
    yield f"## Backbones: {data.upper()}\n\n{HEADER}"
    for name in ("linear", "svm", "mlp"):
        vanilla = runs[(runs["backbone"] == name) & (runs["method"] == "vanilla")]
        fair = runs[(runs["backbone"] == name) & (runs["method"] == "fairrf")]
        table = TABLES[f"backbones-{data}"]
        yield _row(f"{name} vanilla", vanilla, table[f"{name} vanilla"])
        yield _row(f"{name} fairrf", choose(fair, vanilla, BUDGET[data], "with S"), table[f"{name} fairrf"])
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


def _ledger(results: pd.DataFrame) -> Iterator[str]:
    findings = ledger(results)
    if findings:
        yield f"## Ledger of claims\n\n{RULE}\n"
        yield "| | claim | measured | verdict |\n|---|---|---|---|"
    for finding in findings:
        yield _finding(finding)


def _checks(results: pd.DataFrame) -> Iterator[str]:
    found = checks(results)
    if found:
        yield "\n## Checks beyond the paper (S out of the inputs)\n"
        yield "| | check | measured | verdict |\n|---|---|---|---|"
    yield from map(_finding, found)


def _finding(finding: Finding) -> str:
    return f"| {finding.question} | {finding.claim} | {finding.measured} | {finding.verdict} |"
