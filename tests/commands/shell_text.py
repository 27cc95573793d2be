"""Finds the commands in a text: a page of the documentation, or what a command has printed."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(
        page for folder in ("examples", "callbacks", "datamodules") for page in (ROOT / folder).glob("*.md")
    ),
]
# A line of a page, or a piece of inline code, is a command if it starts with one of these.
PROGRAMS = ("python", "fairrf", "pip", "pytest", "wandb", "torchrun", "srun", "pre-commit")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_PRINTED = re.compile(r"(?:python train\.py [a-z]+ .*|wandb sync .*)")


class Command(NamedTuple):
    """A command and the page, relative to the repository, that has it."""

    text: str
    page: str

    @property
    def words(self) -> list[str]:
        """The command as the shell splits it."""
        return shlex.split(self.text, comments=True)

    @property
    def arguments(self) -> list[str] | None:
        """What follows ``train.py`` or ``fairrf``; ``None`` for other programs."""
        for number, word in enumerate(self.words):
            if word == "fairrf" or Path(word).name == "train.py":
                return self.words[number + 1 :]
        return None


def documented_commands() -> list[Command]:
    """Return the commands of all pages, each once per page."""
    found = [Command(text, str(page.relative_to(ROOT))) for page in PAGES for text in commands_of(page)]
    return list(dict.fromkeys(found))


def commands_of(page: Path) -> list[str]:
    """Return the commands in code blocks and inline code of a page."""
    text = page.read_text(encoding="utf-8")
    blocks = [
        (language, block) for language, block in _FENCED.findall(text) if language in ("bash", "sh", "")
    ]
    lines = [line for _, block in blocks for line in statements(block)]
    inline = [" ".join(code.split()) for code in _INLINE.findall(_FENCED.sub("", text))]
    inline = [part for code in inline if is_command(code.split()) for part in statements(code)]
    return [text for text in [*lines, *inline] if is_command(shlex.split(text))]


def statements(block: str) -> list[str]:
    """Split a block into statements, without comments; continued lines are joined."""
    lines = re.sub(r"\\\n\s*", " ", block).splitlines()
    return [shlex.join(words) for line in lines if not line.startswith("#") for words in _parts(line)]


def _parts(line: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # code in another language, in a block without one
        return []
    for word in words:
        if word == "&&":
            parts.append([])
        else:
            parts[-1].append(word)
    return [part for part in parts if part]


def is_command(words: list[str]) -> bool:
    """Return whether these words are a whole command."""
    known = words[0] in PROGRAMS or words[0].startswith(".ci/")
    return known and words not in (["python"], ["python", "train.py"], ["fairrf"])


def python_blocks() -> list[tuple[str, str]]:
    """Return the Python code of all pages, with the name of the page."""
    return [
        (str(page.relative_to(ROOT)), code)
        for page in PAGES
        for language, code in _FENCED.findall(page.read_text(encoding="utf-8"))
        if language == "python"
    ]


def printed_commands(output: str) -> list[str]:
    """Return the commands that a program has printed or written to a page, each once."""
    visible = re.sub(r"<script.*?</script>", "", output, flags=re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]+>", "\n", visible))
    return list(dict.fromkeys(found.strip(" `|") for found in _PRINTED.findall(text)))
