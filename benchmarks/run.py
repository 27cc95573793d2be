"""All benchmarks against other libraries in one run, written to docs/benchmarks.md.

    python benchmarks/run.py                   # all rows, then the page
    python benchmarks/run.py --only lambda     # repeat one row, then the page
    python benchmarks/run.py --page            # the page from the results on disk

Each row runs in a process of its own with one thread per process. A row, or another library in it, that fails
is reported with the reason, and the run goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.measuring import Row, new_row, noise, run_child  # noqa: E402 - a script finds its package first

# Function of each row.
ROWS = {
    "fit": "rows_training:fit_row",
    "step": "rows_parts:step_row",
    "lambda": "rows_parts:lambda_row",
    "metrics": "rows_parts:metrics_row",
    "grid": "rows_training:grid_row",
    "goal": "rows_training:goal_row",
    "imports": "rows_parts:imports_row",
    "processes": "rows_training:processes_row",
    "audit": "rows_parts:audit_row",
    "growth": "rows_training:growth_row",
}
_MAX_SECONDS = 1800  # of one row; then it is given up
_PACKAGES = (
    *("torch", "lightning", "torchmetrics", "numpy", "pandas", "pyarrow"),
    *("fairlearn", "fairret", "scikit-learn", "cvxpy", "quadprog", "aequitas"),
)
RESULTS = ROOT / "benchmarks" / "results.json"


def measure(name: str, *, quick: bool = False) -> dict[str, Any]:
    """Measure one row in this process and return it with the noise and the time it took."""
    import torch  # noqa: PLC0415 - slow for --page

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    module, _, function = ROWS[name].partition(":")
    start, before = time.perf_counter(), noise()
    row: Row = getattr(import_module(f"benchmarks.{module}"), function)(quick=quick)
    return {
        **row,
        "noise": {"before": before, "after": noise()},
        "seconds": time.perf_counter() - start,
        "load": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
        "versions": _versions(),
    }


def run_row(name: str, results: Path, *, quick: bool) -> None:
    """Measure one row in a process of its own and put it into the file of results."""
    command = [sys.executable, __file__, "--measure", name, *(["--quick"] if quick else [])]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONPATH": str(ROOT)}
    try:
        row = json.loads(run_child(command, env, _MAX_SECONDS).splitlines()[-1])
    except (RuntimeError, ValueError, IndexError) as error:
        row = {**new_row(), "not_run": {"the whole row": str(error)}}
    known = json.loads(results.read_text("utf-8")) if results.is_file() else {}
    known[name] = row
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(known, indent=1) + "\n", "utf-8")


def _versions() -> dict[str, str]:
    return {"python": sys.version.split()[0], **{name: _version(name) for name in _PACKAGES}}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def main(args: list[str] | None = None) -> None:
    """Run what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS), help="rows to measure")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a test that the rows run")
    parser.add_argument("--page", action="store_true", help="write the page from the results on disk")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the page")
    parser.add_argument("--measure", choices=list(ROWS), help=argparse.SUPPRESS)
    parser.add_argument("--audit", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(args)
    if given.audit:
        import_module("benchmarks.rows_parts").audit_once(given.audit[0], Path(given.audit[1]))
        return
    if given.measure:
        print(json.dumps(measure(given.measure, quick=given.quick)))
        return
    for name in [] if given.page else given.only:
        start = time.perf_counter()
        print(f"{name} ...", end=" ", flush=True)
        run_row(name, given.results, quick=given.quick)
        print(f"{time.perf_counter() - start:.0f} s", flush=True)
    import_module("benchmarks.run_page").write_page(given.results, given.docs)


if __name__ == "__main__":
    main()
