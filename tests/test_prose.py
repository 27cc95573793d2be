"""Words that our prose does without, and names that mean one thing."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = sorted((ROOT / "fairrf_lightning").rglob("*.py"))
SCRIPTS = [
    path for name in ("paper", "benchmarks", "examples") for path in sorted((ROOT / name).rglob("*.py"))
]
GENERATED = {ROOT / "docs" / name for name in ("reproduction.md", "reproduction-tables.md")}
PAGES = [
    path for path in sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md")) if path not in GENERATED
]
PAGES += [
    path
    for name in ("callbacks", "datamodules", "examples", "sweeps", "fairrf_lightning", ".github")
    for pattern in ("*.md", "*.html", "*.yaml", "*.yml")
    for path in sorted((ROOT / name).rglob(pattern))
]

# Write instead: next to or as well as, again, correct, follow, because there is no, almost, ...
AVOIDED = re.compile(
    r"\b(beside|anew|mend(s|ed|ing)?|obey(s|ed)?|for want of|all but|so many|it pays|timid|told now)\b"
    r"|\bgo(es)? on where\b|\bin its midst\b|\basked people\b|\bno input of\b|\bsay so if\b|\bfrom which on\b"
    r"|\b(tells?|knows?) (much |little |nothing |more )?of\b|\btoo[.,;:)]|\band come back\b|\bfor everybody\b"
    r"|\bchanges? no figures?\b|\ba page to show\b|\bwhat to say\b|\bwhat cannot be served\b"
    r"|(?:^|[.:] )(?-i:Of) (the|one|two|each|several) [a-z ]+, "
    r"|(?<![-`\"'=|{])\bnone\b(?! of |[-`\"'|}])"
    r"|\b(one|two|three|\d+) (line|row|file|column|process|model|step|number)s? an? [a-z]+\b",
    re.IGNORECASE,
)
OPENINGS = ("What", "Which", "How", "Where", "Tell", "Tells", "Say", "Says", "Refuse", "Refuses")


def code_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the comments and the texts of a module, docstrings and messages, with their lines."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def page_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page outside code blocks."""
    in_code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        in_code ^= line.lstrip().startswith("```")
        if not in_code:
            yield number, re.sub(r"`[^`]*`", "", line)


def found_in(path: Path) -> list[str]:
    prose = code_prose(path) if path.suffix == ".py" else page_prose(path)
    return [
        f"{path.relative_to(ROOT)}:{number}: {match[0]!r}"
        for number, text in prose
        for match in AVOIDED.finditer(text)
        if match[0] != "None"
    ]


@pytest.mark.parametrize("path", [*PACKAGE, *SCRIPTS, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_word_to_avoid(path: Path) -> None:
    assert not found_in(path)


@pytest.mark.parametrize(
    "text",
    [
        "It stands beside the inputs.",
        "and metrics too.",
        "Of one model, five groups are compared.",
        "which timid predictions cannot lower",
        "Go on where the checkpoint was.",
        "A wrong option is told now",
        "take up in its midst",
        "say so if the file is none",
        "a file is none",
        "Probability from which on a decision is positive",
        "Most times that it may tell more of the label than of S",
        "What is to be small beside a high val_acc",
        "too far from those of training: mend them",
        "all but tells the sensitive attribute",
        "ask S of a few hundred people and come back",
        "They change no figure.",
        "a few hundred asked people",
        "A page to show",
        "What to say",
        "What cannot be served",
        "one line a row",
        "For everybody.",
        "for want of",
    ],
)
def test_words_to_avoid_are_found(text: str) -> None:
    assert AVOIDED.search(text)


def test_docstrings_open_with_an_imperative_or_a_noun() -> None:
    wrong = []
    for path in [*PACKAGE, *SCRIPTS]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                words = (ast.get_docstring(node) or "").split(maxsplit=1)
                if words and words[0] in OPENINGS:
                    wrong.append(f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}: {words[0]}")
    assert not wrong


def names_of(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines: classes, functions, types and constants."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []


def test_public_name_belongs_to_one_module() -> None:
    homes = defaultdict(set)
    for path in PACKAGE:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for name in names_of(node):
                homes[name].add(str(path.relative_to(ROOT)))
    shared = {name: paths for name, paths in homes.items() if len(paths) > 1 and not name.startswith("_")}
    assert not shared


def test_limits_are_called_max_and_min() -> None:
    wrong = [
        path.name for path in [*PACKAGE, *SCRIPTS] if re.search(r"_(MOST|LEAST)_", path.read_text("utf-8"))
    ]
    assert not wrong
