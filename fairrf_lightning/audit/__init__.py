"""Audits of trained models and of predictions: rates of groups and gaps between them, with intervals."""

from fairrf_lightning.audit.analysis import audit
from fairrf_lightning.audit.by_survey import EstimatedGaps, audit_by_survey
from fairrf_lightning.audit.predictions import read_predictions
from fairrf_lightning.audit.result import Audit
from fairrf_lightning.audit.sample_size import SampleSize, plan_survey, sample_size
from fairrf_lightning.audit.scores import Scores, score_checkpoint

__all__ = [
    "Audit",
    "EstimatedGaps",
    "SampleSize",
    "Scores",
    "audit",
    "audit_by_survey",
    "plan_survey",
    "read_predictions",
    "sample_size",
    "score_checkpoint",
]
