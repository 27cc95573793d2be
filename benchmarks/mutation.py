"""Change the core at random places, one at a time, and count the changes that the tests notice.

``python benchmarks/mutation.py --mutants 150`` works on copies of the repository and prints the diff of
each mutant that survives; it takes about an hour of two cores. Doctests count as tests.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import importlib
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fairrf_lightning"
MODULE = ("tests/test_module.py", "tests/callbacks")
CALLBACKS = ("tests/callbacks", "tests/test_module.py", "tests/dropin")
DROPIN = ("tests/dropin", "tests/callbacks")
# The core, and the tests of each part: quick ones first, because the first failure ends a mutant.
TESTS = {
    "functional.py": ("tests/test_functional.py", "tests/test_penalty.py"),
    "penalty.py": ("tests/test_penalty.py", *CALLBACKS),
    "module.py": (*MODULE, "tests/cli/test_fit.py"),
    "callbacks/pretrain.py": CALLBACKS,
    "callbacks/lambda_update.py": CALLBACKS,
    "callbacks/attachment.py": DROPIN,
    "run_state.py": CALLBACKS,
    "metrics/*.py": ("tests/metrics", "tests/test_module.py", "tests/audit"),
}
CPU_SECONDS = 900  # an endless loop is noticed as well
_PAIRS = [(ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)]
_PAIRS += [(ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.And, ast.Or), (ast.BitAnd, ast.BitOr)]
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {ast.FloorDiv: ast.Mult, ast.USub: ast.UAdd}
_SWAPS |= dict(_PAIRS) | {after: before for before, after in _PAIRS}


class Mutant(NamedTuple):
    """A file of the package with one place changed, and the tests that concern it."""

    path: str
    source: str
    mutated: str
    tests: tuple[str, ...]

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


def mutants_of(file: Path, tests: tuple[str, ...]) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    source = file.read_bytes()
    lines = source.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    path = file.relative_to(ROOT).as_posix()
    for node in nodes(ast.parse(source)):
        for new in changed(node):
            first = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
            last = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
            text = ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})"
            mutated = source[:first] + text.encode() + source[last:]
            yield Mutant(path, source.decode(), mutated.decode(), (*tests, path))


def run_tests(folder: Path, tests: tuple[str, ...]) -> None:
    """Run pytest in a copy of the repository, in this forked process, and exit with its code."""
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)  # for the processes that tests start
    log = os.open("pytest.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    found = [test for test in tests if Path(test).exists()]
    os._exit(importlib.import_module("pytest").main(["-xq", "-n0", "--no-cov", "-pno:cacheprovider", *found]))


def start(mutant: Mutant, folder: Path) -> ForkProcess:
    """Put the mutant into a copy of the repository and start its tests there."""
    (folder / mutant.path).write_text(mutant.mutated, encoding="utf-8")
    process = ForkProcess(target=run_tests, args=(folder, mutant.tests))
    process.start()
    return process


def check_tests(folder: Path, mutants: list[Mutant]) -> None:
    """Exit unless all tests pass without a mutant."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    unchanged = mutants[0]._replace(mutated=mutants[0].source, tests=tuple(tests))
    process = start(unchanged, folder)
    process.join()
    if process.exitcode:
        sys.exit((folder / "pytest.log").read_text(encoding="utf-8") + "\nthe tests fail without a mutant")


def try_all(mutants: list[Mutant], folders: list[Path]) -> int:
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
            process = start(mutant, folder)
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
    files = [(file, tests) for pattern, tests in TESTS.items() for file in sorted(PACKAGE.glob(pattern))]
    possible = [
        mutant for file, tests in files if options.only in str(file) for mutant in mutants_of(file, tests)
    ]
    number = min(options.mutants, len(possible))
    mutants = random.Random(options.seed).sample(possible, number)  # noqa: S311 - a sample, no secret
    for name in ("torch", "lightning", "torchmetrics", "pandas", "scipy.stats"):
        importlib.import_module(name)  # once, before the fork
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / str(number) for number in range(options.workers)]
        for folder in folders:
            shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", "lightning_logs"))
        check_tests(folders[0], mutants)
        noticed = try_all(mutants, folders)
    print(f"{noticed} of {number} mutants killed, {len(possible)} were possible (seed {options.seed})")


if __name__ == "__main__":
    main()
