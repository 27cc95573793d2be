"""Rows of the benchmark for single parts: training step, lambda, metrics, imports, audit."""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch

from benchmarks.dropin_cost import by_hand, packaged, plain_steps
from benchmarks.measuring import (
    OURS,
    Row,
    Way,
    add_number,
    alternate,
    compare,
    faster,
    median,
    new_row,
    run_child,
)
from benchmarks.peers import (
    Loss,
    column_loop,
    cvxpy_weights,
    fairret_loss,
    fairtorch_loss,
    interval_search,
    quadprog_weights,
)
from fairrf_lightning.functional import solve_lambda
from fairrf_lightning.metrics import DemographicParityGap

ROOT = Path(__file__).resolve().parents[1]
BATCH, ETA, BETA = 512, 0.6, 0.5
_MAX_SECONDS = 240  # of one audit
STEP_LIMITS = {10: 1.25, 100: 1.35, 1000: 1.7}


def step_row(*, quick: bool) -> Row:
    """Training step of an MLP 64-32 at batch 512, with the penalty and with other losses."""
    row = new_row()
    groups = (torch.arange(BATCH) % 2).long()
    for columns, limit in STEP_LIMITS.items():
        prefix, width = f"{columns:,} columns: ", max(100, columns)
        losses = {"no penalty": None, "by hand": by_hand(columns), OURS: packaged(columns, "covariance")}
        ways = {name: plain_steps(width, loss) for name, loss in losses.items()}
        alternate(row, ways, 3 if quick else 40, 2 if quick else 20, prefix)
        ratio = partial(compare, row, over=prefix + OURS)
        ratio(what=f"{prefix}ours / by hand", under=f"{prefix}by hand", at_most=1.05)
        ratio(what=f"{prefix}ours / no penalty", under=f"{prefix}no penalty", at_most=limit)
        makers: dict[str, Callable[[], Loss]] = {
            "fairret NormLoss": partial(fairret_loss, groups, ETA),
            "FairTorch-like loss": partial(fairtorch_loss, groups, ETA),
            "loop over columns": partial(column_loop, columns, ETA),
        }
        other = f"{prefix}other losses: "
        peers = {name: partial(_peer_step, width, make, {}) for name, make in makers.items()}
        alternate(row, {OURS: ways[OURS], **peers}, 2 if quick else 10, 1 if quick else 4, other)
        for name in makers:
            faster(row, name, prefix=other)
    return row


def _peer_step(width: int, make: Callable[[], Loss], made: dict[str, Callable[[], None]]) -> None:
    """Take a step with a loss that is created at the first call, where a missing library is reported."""
    if not made:
        made["step"] = plain_steps(width, make())
    made["step"]()


def lambda_row(*, quick: bool) -> Row:
    """Weights of related features: exact solution against general solvers and the paper's search."""
    row = new_row()
    draw = torch.Generator().manual_seed(0)
    # Covariances of unrelated columns, over a batch of 512; and uniform numbers, where the search is quicker.
    for size, kind in ((3, ""), (1000, ""), (1000, "uniform, "), (10_000 if quick else 1_000_000, "")):
        penalties = (torch.randn(size, generator=draw, dtype=torch.float64) * 0.3 / BATCH**0.5).abs()
        if kind:
            penalties = torch.rand(size, generator=draw, dtype=torch.float64)
        values, prefix = penalties.numpy(), f"{kind}K = {size:,}: "
        ways: dict[str, Way] = {
            OURS: partial(solve_lambda, penalties, BETA),
            "the paper's interval search": partial(interval_search, penalties, BETA),
        }
        if size <= 1000:
            ways["cvxpy"] = partial(cvxpy_weights, values, BETA)
        alternate(row, ways, 3 if quick else 7, 1 if quick or size > 1000 else 20, prefix)
        if not kind and (size == 3 or (size == 1000 and not quick)):
            slow: dict[str, Way] = {OURS: ways[OURS], "quadprog": partial(quadprog_weights, values, BETA)}
            alternate(row, slow, 3, prefix=f"{prefix}once: ")
            faster(row, "quadprog", 20.0 if size == 1000 else None, f"{prefix}once: ")
        for name in list(ways)[1:]:
            faster(row, name, 20.0 if size == 1000 else None, prefix)
    last = row["times"][f"{prefix}{OURS}"]
    add_number(row, f"{prefix}ours", median(last["cpu"]), "s", at_most=0.1)
    return row


def metrics_row(*, quick: bool) -> Row:
    """One update of a gap metric with 512 and 4,096 rows, both libraries with their checks."""
    from torchmetrics.classification import BinaryFairness  # noqa: PLC0415 - slow to import

    row = new_row()
    warnings.filterwarnings("ignore")
    for size in (512, 4096):
        draw = torch.Generator().manual_seed(0)
        preds = torch.rand(size, generator=draw)
        target, groups = (torch.randint(0, 2, (size,), generator=draw) for _ in range(2))
        gap, peer = DemographicParityGap(), BinaryFairness(2, task="demographic_parity")
        prefix = f"{size:,} rows: "
        ways: dict[str, Way] = {
            OURS: partial(gap.update, preds, target, groups),
            "torchmetrics BinaryFairness": partial(peer.update, preds, target, groups),
            "fairlearn MetricFrame": partial(_metric_frame, preds, target, groups),
        }
        alternate(row, ways, 3 if quick else 25, 2 if quick else 10, prefix)
        faster(row, "torchmetrics BinaryFairness", 3.0, prefix)
        faster(row, "fairlearn MetricFrame", 30.0, prefix)
        before = _state_bytes(gap)
        for _ in range(100):
            gap.update(preds, target, groups)
        add_number(
            row, f"{prefix}growth of the state in 100 updates", _state_bytes(gap) - before, "bytes", at_most=0
        )
    return row


def _metric_frame(preds: torch.Tensor, target: torch.Tensor, groups: torch.Tensor) -> float:
    from fairlearn.metrics import MetricFrame, selection_rate  # noqa: PLC0415 - a peer that may be missing

    decisions = (preds >= 0.5).numpy()
    frame = MetricFrame(
        metrics=selection_rate, y_true=target.numpy(), y_pred=decisions, sensitive_features=groups.numpy()
    )
    return float(frame.difference())


def _state_bytes(metric: DemographicParityGap) -> int:
    states = (getattr(metric, name) for name in metric._defaults)  # noqa: SLF001 - torchmetrics has no public name
    return sum(state.numel() * state.element_size() for state in states)


def imports_row(*, quick: bool) -> Row:
    """Start of Python with the package, and the help of the program."""
    row = new_row()
    python = [sys.executable, "-c"]
    commands = {
        "import lightning": [*python, "import lightning"],
        "import fairrf_lightning": [*python, "import fairrf_lightning"],
        "from fairrf_lightning import FairRFModule": [*python, "from fairrf_lightning import FairRFModule"],
        "train.py --help": [sys.executable, str(ROOT / "train.py"), "--help"],
    }
    ways = {name: partial(run_child, command) for name, command in commands.items()}
    alternate(row, ways, 1 if quick else 7)
    for name, limit in zip(list(commands)[1:], (1.05, 1.05, 0.1), strict=True):
        compare(row, f"{name} / import lightning", name, "import lightning", at_most=limit)
    return row


AUDITS = {
    OURS: "read_predictions and audit: rates, intervals, gaps, AUC, calibration",
    "pandas group-by": "counts by group",
    "fairlearn MetricFrame": "four rates and their differences",
    "aequitas": "group, bias against a reference group",
}


def audit_row(*, quick: bool) -> Row:
    """Audit of 10 million predictions in a Parquet file by race, by sex and by both."""
    import tempfile  # noqa: PLC0415

    row, size = new_row(), 20_000 if quick else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.parquet"
        write_predictions(path, size)
        rounds = 1 if quick else 2
        for _ in range(rounds):
            for name, about in AUDITS.items():
                if name in row["not_run"]:
                    continue
                try:
                    worker = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--audit", name, str(path)]
                    found = json.loads(run_child(worker, timeout=_MAX_SECONDS).splitlines()[-1])
                except (RuntimeError, ValueError, IndexError) as error:
                    row["not_run"][name] = str(error)
                    row["times"].pop(name, None)
                    continue
                times = row["times"].setdefault(name, {"cpu": [], "wall": []})
                times["cpu"].append(found["cpu"])
                times["wall"].append(found["wall"])
                row["facts"].append(f"{name} ({about}): peak memory {found['memory'] / 2**30:.1f} GB")
    row["facts"] = sorted(set(row["facts"]))
    for name in list(AUDITS)[1:]:
        faster(row, name)
        compare(row, f"{name} / ours, wall time", name, OURS, at_least=1.0, clock="wall")
    return row


def write_predictions(path: Path, rows: int) -> None:
    """Write made-up predictions with five races and two sexes, a million rows at a time."""
    import pyarrow as pa  # noqa: PLC0415

    rng = np.random.default_rng(0)
    writer = None
    for start in range(0, rows, 1_000_000):
        size = min(1_000_000, rows - start)
        race, sex = rng.integers(0, 5, size), rng.integers(0, 2, size)
        prob = rng.beta(2 + race / 4, 3, size)
        table = pa.table(
            {
                "prob": prob,
                "target": (rng.random(size) < prob).astype(np.int8),
                "race": pa.array(np.array(["a", "b", "c", "d", "e"])[race]),
                "sex": pa.array(np.array(["f", "m"])[sex]),
            }
        )
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def audit_once(name: str, path: Path) -> None:
    """Audit a file in this process, after the imports, and print time and peak memory as JSON."""
    work = _AUDIT_WORK[name]()
    cpu, wall = time.process_time(), time.perf_counter()
    work(path)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"cpu": cpu, "wall": wall, "memory": memory}))


def _audit_ours() -> Callable[[Path], object]:
    from fairrf_lightning.audit import audit  # noqa: PLC0415 - each worker imports its own library
    from fairrf_lightning.audit.predictions import read_predictions  # noqa: PLC0415

    return lambda path: audit(read_predictions(path, ["race", "sex"]))


_GROUPINGS = (["race"], ["sex"], ["race", "sex"])


def _audit_pandas() -> Callable[[Path], object]:
    def work(path: Path) -> list[Any]:
        frame = pd.read_parquet(path)
        frame["positive"] = frame["prob"] >= 0.5
        return [frame.groupby([*by, "target"])["positive"].agg(["sum", "count"]) for by in _GROUPINGS]

    return work


def _audit_fairlearn() -> Callable[[Path], object]:
    from fairlearn import metrics  # noqa: PLC0415
    from sklearn.metrics import accuracy_score  # noqa: PLC0415

    rates = {
        "accuracy": accuracy_score,
        "selection": metrics.selection_rate,
        "tpr": metrics.true_positive_rate,
        "fpr": metrics.false_positive_rate,
    }

    def work(path: Path) -> list[Any]:
        frame = pd.read_parquet(path)
        decided = frame["prob"] >= 0.5
        return [
            metrics.MetricFrame(
                metrics=rates, y_true=frame["target"], y_pred=decided, sensitive_features=frame[by]
            ).difference()
            for by in _GROUPINGS
        ]

    return work


def _audit_aequitas() -> Callable[[Path], object]:
    from aequitas.bias import Bias  # noqa: PLC0415
    from aequitas.group import Group  # noqa: PLC0415

    def work(path: Path) -> Any:
        frame = pd.read_parquet(path)
        frame["both"] = frame["race"].astype(str) + frame["sex"].astype(str)
        frame = frame.rename(columns={"target": "label_value"})
        frame["score"] = (frame.pop("prob") >= 0.5).astype(int)
        for name in ("race", "sex", "both"):
            frame[name] = frame[name].astype(object)
        counts, _ = Group().get_crosstabs(frame)
        reference = {"race": "a", "sex": "f", "both": "af"}
        return Bias().get_disparity_predefined_groups(counts, frame, ref_groups_dict=reference)

    return work


_AUDIT_WORK = {
    OURS: _audit_ours,
    "pandas group-by": _audit_pandas,
    "fairlearn MetricFrame": _audit_fairlearn,
    "aequitas": _audit_aequitas,
}
