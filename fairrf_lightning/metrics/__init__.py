"""Fairness metrics in the manner of torchmetrics, with confidence intervals."""

from fairrf_lightning.metrics.gaps import (
    DemographicParityGap,
    EqualizedOddsGap,
    EqualOpportunityGap,
)
from fairrf_lightning.metrics.intervals import wilson_interval

__all__ = ["DemographicParityGap", "EqualOpportunityGap", "EqualizedOddsGap", "wilson_interval"]
