"""What is certain about the gap between groups that were never seen."""

from fairrf_lightning.certificate.gap import GapBound, gap_bound
from fairrf_lightning.certificate.theorems import k_feature_interval, theorem_1, theorem_2

__all__ = ["GapBound", "gap_bound", "k_feature_interval", "theorem_1", "theorem_2"]
