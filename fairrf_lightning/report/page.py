"""Writes a report as an HTML page and as a model card in Markdown, both from the same sections."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairrf_lightning.errors import InputError, writing_to
from fairrf_lightning.files import write_text
from fairrf_lightning.messages import install_command, missing_packages
from fairrf_lightning.report.facts import Facts

if TYPE_CHECKING:
    from fairrf_lightning.report.sections import Section

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~!])")


def write_report(
    facts: Facts, folder: str | Path, *, page: str = "report.html", card: str = "model_card.md"
) -> list[Path]:
    """Write the page and the model card, and return their paths.

    Args:
        facts: The content.
        folder: Folder to write to; created if missing.
        page: Name of the HTML file, which is self-contained.
        card: Name of the Markdown file.

    Raises:
        InputError: If a package of the extra ``report`` is missing or the folder is not writable.
    """
    if missing := missing_packages():
        raise InputError(f"the report needs {missing}; run: {install_command('report')}")
    from fairrf_lightning.report.sections import sections  # noqa: PLC0415 - needs these packages

    found = sections(facts)
    root = Path(folder)
    texts = {root / page: render_page(facts, found), root / card: render_card(facts, found)}
    with writing_to(folder):
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
    return list(texts)


def write_report_if_installed(
    make_facts: Callable[[], Facts | None], folder: str | Path, **names: str
) -> tuple[list[Path], str]:
    """Write the report at the end of a command for which it is optional.

    Args:
        make_facts: Returns the facts, or ``None`` if there is nothing to report; called only if all
            packages are installed.
        folder: Folder to write to.
        names: ``page`` and ``card`` of :func:`write_report`.

    Returns:
        The files, and a line that names the missing packages, or an empty one.
    """
    if missing := missing_packages():
        return [], f"No report.html: it needs {missing}; run: {install_command('report')}"
    facts = make_facts()
    return ([] if facts is None else write_report(facts, folder, **names)), ""


def render_page(facts: Facts, sections: Sequence[Section]) -> str:
    """Return the HTML page."""
    return _render("page.html", facts, sections, autoescape=True)


def render_card(facts: Facts, sections: Sequence[Section]) -> str:
    """Return the model card in Markdown."""
    return _render("model_card.md", facts, sections, autoescape=False, finalize=escape_markdown)


def escape_markdown(value: Any) -> str:
    r"""Return text that Markdown shows as it is, on one line.

    >>> escape_markdown("a|b <i>")
    'a\\|b &lt;i&gt;'
    """
    text = " ".join(html.escape(str(value), quote=False).splitlines())
    return _SPECIAL.sub(r"\\\1", text)


def _render(name: str, facts: Facts, sections: Sequence[Section], **options: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - optional

    environment = Environment(  # noqa: S701 - each caller sets how text is escaped
        loader=PackageLoader("fairrf_lightning.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    text: str = environment.get_template(name).render(facts=facts, sections=sections)
    return text
