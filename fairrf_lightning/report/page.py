"""The page and the model card as text, from the facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fairrf_lightning.report import wording
from fairrf_lightning.report.certificate_figures import MODES, certificate_figures
from fairrf_lightning.report.facts import SECTIONS, Facts
from fairrf_lightning.report.figure import Figure
from fairrf_lightning.report.front_figures import front_figures
from fairrf_lightning.report.gap_figures import forest, group_bars
from fairrf_lightning.report.markdown import escape_markdown
from fairrf_lightning.report.training_figures import training_figures


def render_page(facts: Facts) -> str:
    """Return the HTML page."""
    figures = figures_of(facts)
    environment = _environment(autoescape=True)
    template = environment.get_template("page.html")
    plots = {figure.name: figure.plot for of in figures.values() for figure in of}
    return template.render(
        facts=facts,
        figures=figures,
        plots=plots,
        correlations=known_of(facts),
        # Our own files and plotly's: no text of the user's.
        style=_source(environment, "page.css"),
        script=_source(environment, "page.js"),
        plotly=Markup(get_plotlyjs()),  # noqa: S704
    )


def render_card(facts: Facts) -> str:
    """Return the model card in Markdown."""
    environment = _environment(autoescape=False, finalize=escape_markdown)
    text: str = environment.get_template("model_card.md").render(facts=facts, correlations=known_of(facts))
    return text


def known_of(facts: Facts) -> list[tuple[str, str]]:
    """Return what a certificate knew of S, as rows of a table."""
    known = facts.certificate
    if known is None:
        return []
    limits = [*known.correlations.items(), ("share of rows", known.share)]
    return [(name, "not known" if ends == (-1, 1) else wording.limits(*ends)) for name, ends in limits]


def figures_of(facts: Facts) -> Mapping[str, Sequence[Figure]]:
    """Return the figures of each section."""
    return {
        "gaps": [forest(facts)] if any(gap.estimate.is_known for gap in facts.gaps) else [],
        "groups": group_bars(facts),
        "front": front_figures(facts.fronts),
        "training": [] if facts.training is None else training_figures(facts.training),
        "certificate": [] if facts.certificate is None else certificate_figures(facts.certificate),
    }


def _environment(**options: Any) -> Environment:
    environment = Environment(  # noqa: S701 - each caller says how text is escaped
        loader=PackageLoader("fairrf_lightning.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    names = ("percent", "points", "interval", "number", "listing")
    environment.filters |= {name: getattr(wording, name) for name in names}
    environment.globals |= {
        "modes": MODES,
        "sections": SECTIONS,
        "gap_words": wording.GAP_WORDS,
        "gap_meaning": wording.GAP_MEANING,
    }
    return environment


def _source(environment: Environment, name: str) -> Markup:
    assert environment.loader is not None  # noqa: S101 - for mypy
    return Markup(environment.loader.get_source(environment, name)[0])  # noqa: S704 - a file of ours
