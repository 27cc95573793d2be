"""The page docs/benchmarks.md and its pictures, from the results of benchmarks/run.py."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measuring import median, spread
from fairrf_lightning.files import replacing

Result = dict[str, Any]

TITLES = {
    "fit": "One epoch of `fit` on Adult",
    "step": "Training step",
    "lambda": "`solve_lambda`",
    "metrics": "Gap metrics",
    "grid": "Grid of 125 models",
    "goal": "Time to a goal",
    "imports": "Imports and help",
    "processes": "Two processes",
    "audit": "Audit of 10 million predictions",
    "growth": "Growth",
}
_ABOUT = {
    "fit": """\
As shipped, with one thread, from the first training batch of an epoch to the last. The bare loop has
tensors in batches, fused Adam and a minimal penalty by hand with a fixed lambda. Stock Lightning has
`DataLoader(TensorDataset)`, a progress bar and a loop over the related columns.""",
    "step": """\
An MLP 64-32 at batch 512. The penalty by hand is one matrix product with plain autograd and a fixed
lambda. fairret and the FairTorch-like loss see two groups and need the sensitive attribute: their cost
does not grow with the number of columns.""",
    "lambda": """\
Penalties are covariances as a batch of 512 gives them for unrelated columns, or uniform. quadprog needs a
dense matrix and cvxpy builds its problem each time, so both stop at K = 1,000.""",
    "metrics": "One `update` of the demographic parity gap, with the checks of each library.",
    "grid": "Time per model and epoch on Adult: one stack, or one model after another with the same penalty.",
    "goal": """\
Adult: dDP of at most 0.11 and accuracy of at least 0.848 on test rows. All methods know the sensitive
attribute of the same 400 people; fairlearn and fairret use it as proxy labels. Ours trains an MLP and
corrects its decisions. Each method tries its settings from weak to strong and stops at the first that
reaches the goal on test rows, which favours methods with many settings. A method that does not reach the
goal has tried all.""",
    "imports": "CPU time of a new Python process.",
    "processes": """\
DDP on one machine with an MLP 384-384 and the exact penalty over both processes, one thread each. Each
process has the stated rows per step. Without a penalty it is DDP alone: what the machine allows.""",
    "audit": """\
From one Parquet file, by race, by sex and by both, after the imports, each in its own process.""",
    "growth": """\
CPU time by the number of rows, related columns and related features; wall time per row by the number of
processes.""",
}
_METHOD = """\
The ways to do a thing take turns. Ratios are of neighbouring measurements, by CPU time unless stated. A
range is that of the middle half of the rounds. Noise is the same range for one fixed matrix product,
relative to its median, before and after the row. Wall times depend on the other work of the machine."""
_AXES = {"rows": "seconds per row", "columns": "seconds", "features": "seconds", "ranks": "seconds per row"}


def write_page(results: Path, docs: Path) -> None:
    """Write the page and its pictures."""
    known: dict[str, Result] = json.loads(results.read_text("utf-8")) if results.is_file() else {}
    rows = {name: known[name] for name in TITLES if name in known}
    (docs / "figures").mkdir(parents=True, exist_ok=True)
    with replacing(docs / "benchmarks.md") as path:
        path.write_text("\n".join(page_lines(rows)) + "\n", "utf-8")
    draw_ratios(rows, docs / "figures" / "benchmarks.svg")
    if "growth" in rows:
        draw_growth(rows["growth"]["growth"], docs / "figures" / "benchmarks_growth.svg")


def page_lines(rows: dict[str, Result]) -> Iterator[str]:
    """Yield the lines of the page."""
    reached = [is_reached(one) for row in rows.values() for one in row["comparisons"]]
    targets = [found for found in reached if found is not None]
    yield "# Benchmarks"
    yield ""
    yield "`python benchmarks/run.py` measures all rows. Each states its date and load, as rows may be"
    yield "from several runs. The other libraries are in"
    yield "the extra `benchmarks`."
    yield f"**{sum(targets)} of {len(targets)} targets are reached.**"
    yield "[The profile](../benchmarks/profile.md) says where the time goes, and what was tried for others."
    yield ""
    yield "![Ratios and their targets](figures/benchmarks.svg)"
    yield ""
    yield _METHOD
    for name, row in rows.items():
        yield from _section(name, row)
    yield from _machine(rows)


def _section(name: str, row: Result) -> Iterator[str]:
    yield from ("", f"## {TITLES[name]}", "", _ABOUT[name], "")
    if row["comparisons"]:
        yield "| measured | value | target | reached |"
        yield "|---|---|---|---|"
        for one in row["comparisons"]:
            yield _comparison_line(one)
        yield ""
    if row["times"]:
        yield "| | CPU time, median (range) | wall time, median |"
        yield "|---|---|---|"
        for way, times in row["times"].items():
            low, middle, high = spread(times["cpu"])
            wall = median(times["wall"])
            yield f"| {way} | {seconds(middle)} ({seconds(low)} to {seconds(high)}) | {seconds(wall)} |"
        yield ""
    if name == "growth":
        yield from ("![Growth of time](figures/benchmarks_growth.svg)", "")
    for fact in row["facts"]:
        yield f"- {fact}"
    for peer, reason in row["not_run"].items():
        yield f"- Not run: {peer} ({reason})."
    if "noise" in row:
        noise = " and ".join(f"{100 * row['noise'][when]['cpu']:.0f} %" for when in ("before", "after"))
        yield f"- Noise {noise}; load {row['load']:.1f}; took {row['seconds']:.0f} s on {row['date']}."


def is_reached(one: Result) -> bool | None:
    """Return whether a number is on the right side of its target; ``None`` without a target."""
    if one["target"] is None:
        return None
    return bool(one["value"] <= one["target"] if one["kind"] == "at most" else one["value"] >= one["target"])


def _comparison_line(one: Result) -> str:
    value = f"{number(one['value'], one['unit'])}"
    if one["low"] != one["high"]:
        value += f" ({number(one['low'], '')} to {number(one['high'], '')})"
    found = is_reached(one)
    if found is None:
        return f"| {one['what']} | {value} | | |"
    target = f"{one['kind']} {number(one['target'], one['unit'])}"
    if one["kind"] == "at least" and one["target"] == 1:
        target = "faster"
    return f"| {one['what']} | {value} | {target} | {'yes' if found else '**no**'} |"


def number(value: float, unit: str) -> str:
    """Return a number with two or three digits and its unit.

    >>> number(1.234, "x"), number(0.05, "s"), number(39.4, "x"), number(0, "bytes")
    ('1.23x', '50 ms', '39x', '0 bytes')
    """
    if unit == "s":
        return seconds(value)
    text = f"{value:,.0f}" if value >= 20 or value == int(value) else f"{value:.2f}"
    return f"{text}{unit}" if unit == "x" else f"{text} {unit}".strip()


def seconds(value: float) -> str:
    """Return a time with three digits.

    >>> seconds(0.000123), seconds(2.5), seconds(0.0421)
    ('123 us', '2.5 s', '42.1 ms')
    """
    scale, unit = (1, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "us")
    return f"{value * scale:.3g} {unit}"


def _machine(rows: dict[str, Result]) -> Iterator[str]:
    versions: dict[str, str] = next((row["versions"] for row in rows.values() if "versions" in row), {})
    if not versions:
        return
    yield from ("", "## Versions", "")
    yield ", ".join(f"{name} {found}" for name, found in versions.items()) + "."


def _axes(columns: int, size: tuple[float, float]) -> Any:
    import matplotlib as mpl  # noqa: PLC0415 - slow to import

    mpl.use("svg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    plt.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "benchmarks"})
    return plt.subplots(1, columns, figsize=size, layout="constrained", squeeze=False)


def draw_ratios(rows: dict[str, Result], path: Path) -> None:
    """Draw each ratio relative to its target: to the right of the line is better."""
    found = [one for row in rows.values() for one in row["comparisons"] if one["target"] and one["value"] > 0]
    figure, axes = _axes(1, (8, 0.6 + 0.19 * max(1, len(found))))
    axis = axes[0][0]
    for place, one in enumerate(reversed(found)):
        signs = 1 if one["kind"] == "at least" else -1
        low, value, high = (
            math.log10(max(one[key], 1e-9) / one["target"]) * signs for key in ("low", "value", "high")
        )
        color = "tab:green" if is_reached(one) else "tab:red"
        axis.plot([low, high], [place, place], color=color, linewidth=2)
        axis.plot(value, place, "o" if is_reached(one) else "x", color=color, markersize=4)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(found)), [one["what"] for one in reversed(found)], fontsize=6)
    ticks = range(-1, 6)
    axis.set_xticks(ticks, [f"{10**tick:g}x" for tick in ticks])
    axis.set_xlim(-1, 5.2)
    axis.set_xlabel("times better than the target (o reached, x not reached)")
    figure.savefig(path, metadata={"Date": None})


def draw_growth(growth: dict[str, list[tuple[float, float]]], path: Path) -> None:
    """Draw time by rows, columns, features and processes."""
    figure, axes = _axes(len(_AXES), (11, 2.6))
    for axis, (kind, label) in zip(axes[0], _AXES.items(), strict=True):
        for name, points in growth.items():
            if name.startswith(f"{kind}: "):
                axis.plot(*zip(*points, strict=True), "o-", label=name.partition(": ")[2], markersize=3)
        axis.set_xlabel(f"number of {'processes' if kind == 'ranks' else kind}")
        axis.set_ylabel(label)
        if kind != "ranks":
            axis.loglog()
        axis.set_ylim(bottom=None if kind != "ranks" else 0)
        axis.legend(fontsize=6) if axis.lines else None
    figure.savefig(path, metadata={"Date": None})
