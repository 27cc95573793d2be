"""Audits of trained models and of predictions: group figures and gaps, with their uncertainty."""
