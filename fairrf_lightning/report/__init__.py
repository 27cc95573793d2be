"""One page that a risk officer can read, and a model card with the same facts."""

from fairrf_lightning.report.facts import Facts
from fairrf_lightning.report.page import write_report

__all__ = ["Facts", "write_report"]
