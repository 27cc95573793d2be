"""Numbers of the paper, printed next to ours: accuracy, dEO and dDP, each as mean and std.

The authors' code measures gaps as mean deviations over groups: half the gap when there are two groups.
"""

from __future__ import annotations

from typing import NamedTuple


class Cell(NamedTuple):
    """A printed number: mean and standard deviation over five runs."""

    mean: float
    std: float


class Row(NamedTuple):
    """A row of a table of the paper."""

    acc: Cell
    eo: Cell
    dp: Cell


def _row(*printed: float) -> Row:
    acc, acc_std, eo, eo_std, dp, dp_std = printed
    return Row(Cell(acc, acc_std), Cell(eo, eo_std), Cell(dp, dp_std))


TABLES: dict[str, dict[str, Row]] = {
    "adult": {
        "vanilla": _row(0.856, 0.001, 0.046, 0.006, 0.089, 0.005),
        "constrain_s": _row(0.845, 0.002, 0.040, 0.004, 0.058, 0.003),
        "arl": _row(0.861, 0.003, 0.034, 0.012, 0.141, 0.008),
        "ksmote": _row(0.560, 0.002, 0.141, 0.031, 0.120, 0.022),
        "remove_r": _row(0.801, 0.010, 0.124, 0.004, 0.071, 0.002),
        "fairrf": _row(0.832, 0.001, 0.025, 0.009, 0.066, 0.004),
    },
    "compas": {
        "vanilla": _row(0.681, 0.004, 0.242, 0.021, 0.171, 0.015),
        "constrain_s": _row(0.674, 0.002, 0.154, 0.032, 0.122, 0.031),
        "arl": _row(0.672, 0.023, 0.197, 0.042, 0.286, 0.033),
        "ksmote": _row(0.601, 0.021, 0.203, 0.042, 0.151, 0.023),
        "remove_r": _row(0.595, 0.024, 0.205, 0.049, 0.185, 0.024),
        "fairrf": _row(0.661, 0.009, 0.166, 0.022, 0.143, 0.021),
    },
    "lsac": {
        "vanilla": _row(0.805, 0.001, 0.042, 0.007, 0.016, 0.004),
        "constrain_s": _row(0.801, 0.001, 0.014, 0.007, 0.004, 0.002),
        "arl": _row(0.811, 0.005, 0.029, 0.029, 0.022, 0.013),
        "ksmote": _row(0.722, 0.012, 0.028, 0.062, 0.012, 0.041),
        "remove_r": _row(0.763, 0.002, 0.037, 0.024, 0.015, 0.006),
        "fairrf": _row(0.796, 0.002, 0.023, 0.008, 0.007, 0.004),
    },
    "ablation-adult": {
        "random": _row(0.830, 0.001, 0.041, 0.012, 0.057, 0.007),
        "top_1": _row(0.830, 0.002, 0.029, 0.008, 0.067, 0.002),
        "constrain_all": _row(0.835, 0.001, 0.035, 0.005, 0.068, 0.003),
        "noisy": _row(0.834, 0.002, 0.030, 0.011, 0.068, 0.006),
        "fix_lambda": _row(0.822, 0.002, 0.065, 0.007, 0.057, 0.004),
    },
    "ablation-compas": {
        "random": _row(0.637, 0.006, 0.226, 0.028, 0.161, 0.016),
        "top_1": _row(0.648, 0.007, 0.183, 0.016, 0.164, 0.013),
        "constrain_all": _row(0.651, 0.004, 0.235, 0.012, 0.168, 0.008),
        "noisy": _row(0.653, 0.006, 0.219, 0.023, 0.154, 0.019),
        "fix_lambda": _row(0.631, 0.011, 0.256, 0.025, 0.159, 0.018),
    },
    "backbones-adult": {
        "linear vanilla": _row(0.832, 0.004, 0.053, 0.003, 0.125, 0.005),
        "linear fairrf": _row(0.815, 0.008, 0.022, 0.009, 0.072, 0.014),
        "svm vanilla": _row(0.775, 0.013, 0.083, 0.008, 0.117, 0.013),
        "svm fairrf": _row(0.775, 0.015, 0.031, 0.017, 0.056, 0.024),
    },
    "backbones-compas": {
        "linear vanilla": _row(0.678, 0.002, 0.215, 0.033, 0.198, 0.026),
        "linear fairrf": _row(0.671, 0.001, 0.201, 0.011, 0.146, 0.008),
        "svm vanilla": _row(0.664, 0.013, 0.241, 0.006, 0.151, 0.008),
        "svm fairrf": _row(0.661, 0.008, 0.162, 0.008, 0.134, 0.013),
    },
}

# Case study: feature -> (rho with Y, rho with S, lambda).
CASE_STUDY: dict[str, dict[str, tuple[float, float, float]]] = {
    "adult": {
        "age": (0.09, 0.05, 0.51),
        "workclass": (0.11, 0.14, 0.49),
        "relationship": (0.41, 0.58, 0.00),
        "education": (0.18, 0.06, 0.00),
    },
    "compas": {
        "sex": (0.11, 0.07, 0.27),
        "score_text": (0.31, 0.27, 0.00),
        "decile_score": (0.25, 0.24, 0.21),
        "duration": (0.02, 0.30, 0.52),
    },
}

SENSITIVITY_ETAS = (0.2, 0.25, 0.3, 0.35, 0.4)
SENSITIVITY_BETAS = (0.4, 0.5, 0.6, 0.7, 0.8)
# Validation accuracy that fairness may cost. The paper's own losses are 2.4, 2.0 and 0.9 points.
BUDGET = {"adult": 0.01, "compas": 0.025, "lsac": 0.01}
HYPERPARAMETERS = {"adult": (0.3, 0.5), "compas": (0.15, 0.8), "lsac": (0.3, 1.0)}  # eta, beta
