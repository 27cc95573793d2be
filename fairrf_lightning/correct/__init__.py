"""Corrects decisions towards a fairness goal, with a survey or published statistics in place of S."""

from fairrf_lightning.correct.run import CorrectionResult, correct, correct_rows
from fairrf_lightning.correct.scores import ScoresCorrection, correct_scores

__all__ = ["CorrectionResult", "ScoresCorrection", "correct", "correct_rows", "correct_scores"]
