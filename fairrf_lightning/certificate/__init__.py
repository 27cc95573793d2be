"""Certain limits of the gap between groups that were never observed."""

from fairrf_lightning.certificate.bound import (
    GapBound,
    gap_bound,
    k_feature_interval,
)
from fairrf_lightning.certificate.certificate import Certificate, certify, certify_rows
from fairrf_lightning.certificate.knowledge import Knowledge

__all__ = [
    "Certificate",
    "GapBound",
    "Knowledge",
    "certify",
    "certify_rows",
    "gap_bound",
    "k_feature_interval",
]
