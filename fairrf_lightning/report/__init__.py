"""One page that a risk officer can read, and a model card with the same facts."""

from fairrf_lightning.report.facts import Facts
from fairrf_lightning.report.writing import end_with_report, write_report

__all__ = ["Facts", "end_with_report", "write_report"]
