"""Renders results as one HTML page and as a model card in Markdown."""

from fairrf_lightning.report.facts import Facts
from fairrf_lightning.report.page import write_report, write_report_if_installed

__all__ = ["Facts", "write_report", "write_report_if_installed"]
