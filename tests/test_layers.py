"""Imports point downwards only: docs/architecture.md shows the layers."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fairrf_lightning

PACKAGE = Path(fairrf_lightning.__file__).parent
PAGE = PACKAGE.parent / "docs" / "architecture.md"


def layers() -> Iterator[tuple[str, int]]:
    """Yield each part of the package in the diagram, and its layer."""
    layer = -1
    diagram = PAGE.read_text(encoding="utf-8").partition("```text\n")[2].partition("```")[0]
    for line in diagram.splitlines():
        layer = int(line[0]) if line[0].isdigit() else layer
        names, *_ = re.split(r"\s{3,}", line[3:])
        yield from ((part, layer) for part in names.split())


LAYER = dict(layers())
ANALYSES = 4  # of these, only `load` may be imported by the others


def imports(path: Path) -> Iterator[str]:
    """Yield the parts of this package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, *parts = name.split(".")
            if package == PACKAGE.name and parts:
                yield parts[0]


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_allowed(importer: str, imported: str) -> bool:
    if importer == imported or imported in ("FairRFModule", "RelatedFeaturePenalty", "InputError"):
        return True
    above, below = LAYER[importer], LAYER[imported]
    return above > below or (above == below and (above != ANALYSES or imported == "load"))


def test_the_diagram_has_every_part_of_the_package() -> None:
    parts = {part_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert set(LAYER) == parts


def test_imports_point_downwards() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), imported)
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "__init__.py"
        for imported in imports(path)
        if not is_allowed(part_of(path), imported)
    }
    assert not found


@cache
def loaded(code: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after running this code."""
    code = f"import sys; {code}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("imported", ["fairrf_lightning", "fairrf_lightning.module"])
def test_the_core_loads_no_analysis(imported: str) -> None:
    names = loaded(f"import {imported}")
    found = {name.split(".")[1] for name in names if name.startswith("fairrf_lightning.")}
    analyses = {"audit", "report", "tracking", "experiments", "certificate", "suggest", "load", "cli"}
    assert not found & analyses


def test_a_module_needs_no_pandas() -> None:
    assert "pandas" not in loaded("import fairrf_lightning.module")


def test_help_needs_no_torch() -> None:
    found = loaded("from fairrf_lightning.cli.main import help_text; help_text()")
    assert not found & {"torch", "lightning", "jsonargparse", "rich", "pandas"}
