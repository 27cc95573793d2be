"""Change the core at random places, one at a time, and count the changes that the tests notice.

``python benchmarks/mutation.py --mutants 150`` works on copies of the repository and prints the diff of
each mutant that survives. All tests run once with coverage; a mutant is then tried with the tests that
run its lines, quickest first. Doctests count as tests. It takes about half an hour of two cores.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import importlib
import json
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, NamedTuple

import coverage

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fairrf_lightning"
# The core, and the tests that are tried.
CORE = [
    *("functional/penalty.py", "penalty.py", "module.py", "run_state.py", "metrics/*.py"),
    *(f"callbacks/{name}.py" for name in ("pretrain", "lambda_update", "attachment")),
]
TESTS = [
    *("tests/test_functional.py", "tests/test_penalty.py", "tests/test_module.py", "tests/callbacks"),
    *("tests/test_objective.py", "tests/test_notices.py"),
    *("tests/dropin", "tests/metrics", "tests/audit", "fairrf_lightning"),
]
MAX_TEST_SECONDS = 90.0  # of the tests that run the lines of a mutant, the quickest ones
COVERAGE = "lines.coverage"
CPU_SECONDS = 300  # an endless loop is noticed as well
_PAIRS = [(ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)]
_PAIRS += [(ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.And, ast.Or), (ast.BitAnd, ast.BitOr)]
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {ast.FloorDiv: ast.Mult, ast.USub: ast.UAdd}
_SWAPS |= dict(_PAIRS) | {after: before for before, after in _PAIRS}


class Mutant(NamedTuple):
    """A file of the package with one place changed, and the lines of that place."""

    path: str
    source: str
    mutated: str
    lines: range

    def __str__(self) -> str:
        before, after = self.source.splitlines(), self.mutated.splitlines()
        return "\n".join(difflib.unified_diff(before, after, self.path, self.path, lineterm="", n=2))


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node with an operator, a condition or a constant changed, or nothing in its place."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.BinOp | ast.BoolOp | ast.AugAssign | ast.UnaryOp) and type(new.op) in _SWAPS:
        new.op = _SWAPS[type(new.op)]()  # type: ignore[assignment]
        yield new
    elif isinstance(new, ast.Compare) and type(new.ops[0]) in _SWAPS:
        new.ops[0] = _SWAPS[type(new.ops[0])]()  # type: ignore[call-overload]
        yield new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not):
        yield new.operand
    elif isinstance(new, ast.IfExp):
        new.body, new.orelse = new.orelse, new.body
        yield new
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool | int | float):
        new.value = not new.value if isinstance(new.value, bool) else new.value + 1
        yield new
    if isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield ast.Pass()


def nodes(parent: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below, without annotations and the texts of errors."""
    for name, value in ast.iter_fields(parent):
        if name in ("annotation", "returns", "decorator_list") or isinstance(
            parent, ast.Raise | ast.JoinedStr
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from nodes(child)


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    source = file.read_bytes()
    lines = source.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    path = file.relative_to(ROOT).as_posix()
    for node in nodes(ast.parse(source)):
        for new in changed(node):
            span = range(node.lineno, node.end_lineno + 1)  # type: ignore[attr-defined]
            first = starts[span[0] - 1] + node.col_offset  # type: ignore[attr-defined]
            last = starts[span[-1] - 1] + node.end_col_offset  # type: ignore[attr-defined]
            text = ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})"
            mutated = source[:first] + text.encode() + source[last:]
            yield Mutant(path, source.decode(), mutated.decode(), span)


class Durations:
    """A plugin of pytest that adds up the seconds of each test, set-up included.

    Args:
        tracer: Records the lines by test. pytest-cov 7.1 records no tests with one process.
    """

    def __init__(self, tracer: coverage.Coverage | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._tracer = tracer

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record the lines that follow as those of this test."""
        if self._tracer is not None:
            self._tracer.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add a phase of a test."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def run_tests(folder: Path, tests: list[str], *, trace: bool = False) -> None:
    """Run pytest in a copy of the repository, in this forked process, and exit with its code."""
    os.chdir(folder)
    if not trace:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    sys.dont_write_bytecode = True  # mutants of one second and size would share a file
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)  # for the processes that tests start
    log = os.open("pytest.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    tracer = coverage.Coverage(COVERAGE, config_file=False, source=["fairrf_lightning"]) if trace else None
    plugin = Durations(tracer)
    args = ["-xq", "-n0", "-pno:cacheprovider", "--no-cov", *tests]
    with tracer.collect() if tracer is not None else nullcontext():
        code = importlib.import_module("pytest").main(args, plugins=[plugin])
    if tracer is not None:
        tracer.save()
        Path("durations.json").write_text(json.dumps(plugin.seconds), "utf-8")
    os._exit(code)


class CoveringTests:
    """The tests that run a line, from one run of all tests with coverage."""

    def __init__(self, folder: Path, tests: list[str]) -> None:
        process = ForkProcess(target=run_tests, args=(folder, tests), kwargs={"trace": True})
        process.start()
        process.join()
        if process.exitcode:
            sys.exit((folder / "pytest.log").read_text("utf-8") + "\nthe tests fail without a mutant")
        self._folder = folder
        self._seconds: dict[str, float] = json.loads((folder / "durations.json").read_text("utf-8"))
        self._data = coverage.CoverageData(str(folder / COVERAGE))
        self._data.read()

    def of(self, mutant: Mutant) -> list[str]:
        """Return tests that run the lines of a mutant, or else (of a constant) a line of its file."""
        contexts = self._data.contexts_by_lineno(str(self._folder / mutant.path))
        names = self._names(contexts, mutant.lines) or self._names(contexts, contexts)
        if not names:
            sys.exit(f"{mutant.path}: no test runs a line of this file")
        chosen: list[str] = []
        total = 0.0
        for name in sorted(names, key=lambda name: self._seconds.get(name, 0.0)):
            total += self._seconds.get(name, 0.0)
            if total > MAX_TEST_SECONDS and chosen:
                break
            chosen.append(name)
        return chosen

    @staticmethod
    def _names(contexts: dict[int, list[str]], lines: Iterable[int]) -> set[str]:
        return {name for line in lines for name in contexts.get(line, [])} - {""}


def start(mutant: Mutant, folder: Path, tests: list[str]) -> ForkProcess:
    """Put the mutant into a copy of the repository and start its tests there."""
    (folder / mutant.path).write_text(mutant.mutated, encoding="utf-8")
    process = ForkProcess(target=run_tests, args=(folder, tests))
    process.start()
    return process


def try_all(mutants: list[Mutant], folders: list[Path], covering: CoveringTests) -> int:
    """Try mutants, one in each copy at a time; return the number that the tests notice."""
    running: dict[object, tuple[Mutant, Path, ForkProcess]] = {}
    noticed = 0
    for mutant in [*mutants, *[None] * len(folders)]:
        if running and (mutant is None or not folders):
            done, folder, process = running.pop(wait([run[2].sentinel for run in running.values()])[0])
            process.join()
            noticed += process.exitcode != 0
            print(f"killed {done.path}" if process.exitcode else f"SURVIVED\n{done}", flush=True)
            (folder / done.path).write_text(done.source, encoding="utf-8")
            folders.append(folder)
        if mutant is not None:
            folder = folders.pop()
            process = start(mutant, folder, covering.of(mutant))
            running[process.sentinel] = mutant, folder, process
    return noticed


def main() -> None:
    """Draw mutants of the core and try them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a file's path")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    files = [file for pattern in CORE for file in sorted(PACKAGE.glob(pattern)) if options.only in str(file)]
    possible = [mutant for file in files for mutant in mutants_of(file)]
    number = min(options.mutants, len(possible))
    mutants = random.Random(options.seed).sample(possible, number)  # noqa: S311 - a sample, no secret
    for name in ("torch", "lightning", "torchmetrics", "pandas", "scipy.stats"):
        importlib.import_module(name)  # once, before the fork
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / str(number) for number in range(options.workers)]
        for folder in folders:
            shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "lightning_logs"))
        noticed = try_all(
            mutants, folders, CoveringTests(folders[0], [test for test in TESTS if (ROOT / test).exists()])
        )
    print(f"{noticed} of {number} mutants killed, {len(possible)} were possible (seed {options.seed})")


if __name__ == "__main__":
    main()
