"""Fairness metrics in the manner of torchmetrics, with confidence intervals."""

from fairrf_lightning.metrics.gaps import (
    DemographicParityGap,
    EqualizedOddsGap,
    EqualOpportunityGap,
)
from fairrf_lightning.metrics.intervals import wilson_interval
from fairrf_lightning.metrics.mean_gap import MeanGap

__all__ = ["DemographicParityGap", "EqualOpportunityGap", "EqualizedOddsGap", "MeanGap", "wilson_interval"]
