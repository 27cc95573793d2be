"""Writes the files of a report; the packages that it needs are optional."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from fairrf_lightning.errors import InputError, writing_to
from fairrf_lightning.files import write_text
from fairrf_lightning.printed_command import install_command
from fairrf_lightning.report.facts import Facts

_PACKAGES = ("jinja2", "plotly", "scipy")


def write_report(
    facts: Facts, folder: str | Path, *, page: str = "report.html", card: str = "model_card.md"
) -> list[Path]:
    """Write the page and the model card, each as a whole, and return their paths.

    Args:
        facts: What to say.
        folder: Where to write; it is made if need be.
        page: Name of the HTML file, which holds everything that it needs.
        card: Name of the Markdown file.
    """
    if missing := missing_packages():
        raise InputError(f"the report needs {missing}; run: {install_command('report')}")
    from fairrf_lightning.report.page import render_card, render_page  # noqa: PLC0415 - see above

    texts = {Path(folder) / page: render_page(facts), Path(folder) / card: render_card(facts)}
    with writing_to(folder):
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
    return list(texts)


def end_with_report(
    make_facts: Callable[[], Facts | None], folder: str | Path, **names: str
) -> tuple[list[Path], str]:
    """Write the report of a command that can do without it.

    Args:
        make_facts: Returns the facts, or ``None`` if there is nothing to report; called only if the
            packages are there.
        folder: Where to write.
        names: ``page`` and ``card`` of :func:`write_report`.

    Returns:
        The files, and a line that says what is missing, or else nothing.
    """
    if missing := missing_packages():
        return [], f"No report.html: it needs {missing}; run: {install_command('report')}"
    facts = make_facts()
    return ([] if facts is None else write_report(facts, folder, **names)), ""


def missing_packages() -> str:
    """Return the packages of the extra ``report`` that are not installed."""
    return ", ".join(name for name in _PACKAGES if find_spec(name) is None)
