"""Change the core at random places, one at a time, and count the changes that the tests notice.

``python benchmarks/mutation.py --mutants 150`` works on copies of the repository and prints the diff of
each mutant that survives. The tests run once with coverage; a mutant is then tried with the tests that
run its lines, quickest first, until one fails. Doctests count as tests. Results are kept in ``--out``:
the same command resumes an interrupted run, and after a change of the tests it tries the survivors again.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import hashlib
import importlib
import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
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
    *(f"callbacks/{name}.py" for name in ("pretrain", "lambda_update", "attachment", "prediction")),
]
TESTS = [
    *("tests/test_functional.py", "tests/test_penalty.py", "tests/test_module.py", "tests/callbacks"),
    *("tests/test_objective.py", "tests/test_outputs.py", "tests/test_notices.py"),
    *("tests/dropin", "tests/metrics", "tests/audit", "fairrf_lightning"),
]
COVERAGE = "lines.coverage"
QUICK_SECONDS = 5.0  # of the tests that are collected first: most mutants need no more
MAX_TEST_SECONDS = 90.0  # of the tests that run the lines of a mutant, the quickest ones
MAX_CPU_SECONDS = 240  # an endless loop is noticed as well,
MAX_SECONDS = 1800  # and so is a wait without end
# Imported once, before the fork: a mutant imports no more than the package and its tests.
LIBRARIES = ["torch", "lightning", "torchmetrics", "pandas", "scipy.stats", "jsonargparse", "rich.console"]
LIBRARIES += ["fairlearn.metrics", "matplotlib.pyplot", "pyarrow.dataset", "sklearn.cluster"]
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

    @property
    def key(self) -> str:
        """Name of the mutant in the file of results."""
        return hashlib.sha256(f"{self.path}\n{self.mutated}".encode()).hexdigest()[:16]

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


class Record:
    """A plugin of pytest that keeps the seconds of each test, set-up included, and the first that fails.

    Args:
        tracer: Records the lines by test. pytest-cov 7.1 records no tests with one process.
    """

    def __init__(self, tracer: coverage.Coverage | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.failed = ""
        self._tracer = tracer

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record the lines that follow as those of this test."""
        if self._tracer is not None:
            self._tracer.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add a phase of a test."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid


def run_tests(folder: Path, parts: list[list[str]], *, trace: bool = False) -> None:
    """Run pytest in a copy of the repository, in this forked process, and exit with its code."""
    os.setsid()  # what the tests start ends with this process
    os.chdir(folder)
    if not trace:
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
        signal.alarm(MAX_SECONDS)
    sys.dont_write_bytecode = True  # mutants of one second and size would share a file
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)  # for the processes that tests start
    log = os.open("pytest.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    tracer = coverage.Coverage(COVERAGE, config_file=False, source=["fairrf_lightning"]) if trace else None
    record = Record(tracer)
    code = 0
    with tracer.collect() if tracer is not None else nullcontext():
        for tests in parts:
            # pytest warns of a second call in one process.
            args = [
                "-xq",
                "-n0",
                "-pno:cacheprovider",
                "--no-cov",
                "-Wignore::pytest.PytestAssertRewriteWarning",
            ]
            code = code or importlib.import_module("pytest").main([*args, *tests], plugins=[record])
    if tracer is not None:
        tracer.save()
        Path("durations.json").write_text(json.dumps(record.seconds), "utf-8")
    Path("failed.txt").write_text(record.failed, "utf-8")
    os._exit(code)


class CoveringTests:
    """The tests that run a line, from one run of all tests with coverage.

    Args:
        folder: A copy of the repository.
        tests: Files and folders of tests.
        out: Folder that keeps the result of the run.
    """

    def __init__(self, folder: Path, tests: list[str], out: Path) -> None:
        self._folder = out / f"tests_{digest(tests)}"
        if not self._folder.exists():
            process = ForkProcess(target=run_tests, args=(folder, [tests]), kwargs={"trace": True})
            process.start()
            process.join()
            if process.exitcode:
                sys.exit((folder / "pytest.log").read_text("utf-8") + "\nthe tests fail without a mutant")
            kept = folder / "kept"
            kept.mkdir()
            for name in ("durations.json", COVERAGE):
                shutil.move(folder / name, kept)
            shutil.move(kept, self._folder)
        self._seconds: dict[str, float] = json.loads((self._folder / "durations.json").read_text("utf-8"))
        self._data = coverage.CoverageData(str(self._folder / COVERAGE))
        self._data.read()
        self._files = sorted(self._data.measured_files(), key=len)

    def of(self, mutant: Mutant) -> list[list[str]]:
        """Return tests that run the lines of a mutant, or else (of a constant) a line of its file.

        The quickest ones come first, as a part of their own.
        """
        file = next((file for file in self._files if file.endswith(f"/{mutant.path}")), "")
        contexts = self._data.contexts_by_lineno(file)
        names = self._names(contexts, mutant.lines) or self._names(contexts, contexts)
        if not names:
            sys.exit(f"{mutant.path}: no test runs a line of this file")
        parts: tuple[list[str], list[str]] = [], []
        total = 0.0
        for name in sorted(names, key=lambda name: self._seconds.get(name, 0.0)):
            total += self._seconds.get(name, 0.0)
            if total > MAX_TEST_SECONDS and any(parts):
                break
            parts[total > QUICK_SECONDS].append(name)
        return [part for part in parts if part]

    @staticmethod
    def _names(contexts: dict[int, list[str]], lines: Iterable[int]) -> set[str]:
        return {name for line in lines for name in contexts.get(line, [])} - {""}


def digest(tests: list[str]) -> str:
    """Return a digest of the package and the tests."""
    found = hashlib.sha256(" ".join(tests).encode())
    for folder in ("fairrf_lightning", "tests"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            found.update(file.read_bytes())
    return found.hexdigest()[:16]


class Results:
    """A file with one line per tried mutant; the last line of a mutant counts.

    Args:
        path: The file.
        tests: Digest of the tests.
    """

    def __init__(self, path: Path, tests: str) -> None:
        self._path, self._tests = path, tests
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        self._entries = {entry["mutant"]: entry for entry in map(json.loads, lines)}

    def add(self, mutant: Mutant, *, killed: bool, by: str) -> None:
        """Write the result of a mutant down."""
        entry = {"mutant": mutant.key, "path": mutant.path, "killed": killed, "by": by, "tests": self._tests}
        self._entries[mutant.key] = entry
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def is_open(self, mutant: Mutant) -> bool:
        """Return whether a mutant was never tried, or survived other tests."""
        entry = self._entries.get(mutant.key)
        return entry is None or not (entry["killed"] or entry["tests"] == self._tests)

    def survivors(self, mutants: list[Mutant]) -> list[Mutant]:
        """Return the mutants that no test noticed."""
        return [mutant for mutant in mutants if not self._entries[mutant.key]["killed"]]


def start(mutant: Mutant, folder: Path, parts: list[list[str]]) -> ForkProcess:
    """Put the mutant into a copy of the repository and start its tests there."""
    (folder / mutant.path).write_text(mutant.mutated, encoding="utf-8")
    (folder / "failed.txt").write_text("(no result: ended by a limit)", encoding="utf-8")
    process = ForkProcess(target=run_tests, args=(folder, parts))
    process.start()
    return process


def finish(mutant: Mutant, folder: Path, process: ForkProcess, results: Results) -> None:
    """Write down how the tests of a mutant ended, and restore the copy of the repository."""
    process.join()
    with suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    (folder / mutant.path).write_text(mutant.source, encoding="utf-8")
    by = (folder / "failed.txt").read_text("utf-8") or "(the tests could not be collected)"
    killed = process.exitcode != 0
    results.add(mutant, killed=killed, by=by if killed else "")
    print(f"killed {mutant.path} by {by}" if killed else f"survived {mutant.path}", flush=True)


def try_all(mutants: list[Mutant], folders: list[Path], covering: CoveringTests, results: Results) -> None:
    """Try mutants, one in each copy at a time."""
    running: dict[object, tuple[Mutant, Path, ForkProcess]] = {}
    for mutant in [*mutants, *[None] * len(folders)]:
        if running and (mutant is None or not folders):
            done, folder, process = running.pop(wait([run[2].sentinel for run in running.values()])[0])
            finish(done, folder, process, results)
            folders.append(folder)
        if mutant is not None:
            folder = folders.pop()
            process = start(mutant, folder, covering.of(mutant))
            running[process.sentinel] = mutant, folder, process


def parse() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a path: of the drawn mutants, try those there")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files and folders of tests")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutation", help="folder of the results")
    return parser.parse_args()


def main() -> None:
    """Draw mutants of the core and try those without a result."""
    options = parse()
    files = [file for pattern in CORE for file in sorted(PACKAGE.glob(pattern))]
    possible = [mutant for file in files for mutant in mutants_of(file)]
    drawn = random.Random(options.seed).sample(possible, options.mutants)  # noqa: S311 - a sample, no secret
    mutants = [mutant for mutant in drawn if options.only in mutant.path]
    logging.getLogger().addHandler(logging.NullHandler())  # else Lightning hides its messages from pytest
    for name in LIBRARIES:
        importlib.import_module(name)
    options.out.mkdir(parents=True, exist_ok=True)
    results = Results(options.out / "results.jsonl", digest(options.tests))
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / str(number) for number in range(options.workers)]
        for folder in folders:
            shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "build", "lightning_logs"))
        untried = [mutant for mutant in mutants if results.is_open(mutant)]
        if untried:
            try_all(untried, folders, CoveringTests(folders[0], options.tests, options.out), results)
    survivors = results.survivors(mutants)
    print(*survivors, sep="\n\n")
    killed = len(mutants) - len(survivors)
    print(f"{killed} of {len(mutants)} mutants killed, {len(possible)} were possible (seed {options.seed})")


if __name__ == "__main__":
    main()
