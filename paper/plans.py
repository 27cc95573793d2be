"""Models that each part of the paper's evaluation trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from fairrf_lightning.datamodules import AdultDataModule, COMPASDataModule, LSACDataModule
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.experiments.setting import Setting
from fairrf_lightning.experiments.stack import MakeData
from fairrf_lightning.methods import KSMOTE
from paper.numbers import CASE_STUDY, HYPERPARAMETERS, SENSITIVITY_BETAS, SENSITIVITY_ETAS

DATA: dict[str, type[TabularDataModule]] = {
    "adult": AdultDataModule,
    "compas": COMPASDataModule,
    "lsac": LSACDataModule,
}
ETAS = {
    "adult": (0.15, 0.3, 0.45, 0.6, 0.8, 1.0, 1.5),
    "compas": (0.15, 0.3, 0.6, 0.8, 1.0, 1.2, 1.3, 1.4, 1.5, 2.0, 3.0),
    "lsac": (0.1, 0.3, 1.0),
}
ARL_LRS = (0.01, 0.1, 1.0)  # of the adversary
KSMOTE_ETAS = (0.3, 0.6, 1.0)
STEPS = {"adult": 44, "compas": 6, "lsac": 63}  # per epoch, about: relative work
EPOCHS_TIMES = {"compas": 3}  # an epoch of COMPAS is only 6 steps
WIDER = ("score_text", "decile_score", "sex", "priors_count", "age", "age_cat")


@dataclass(frozen=True)
class Plan:
    """Settings to train on a data set with every seed."""

    part: str  # as ``reproduce --only`` names it
    data: str
    settings: tuple[Setting, ...]
    include_sensitive: bool = False  # as an input of the models, as in the authors' code
    ksmote: bool = False

    def make_data(self) -> MakeData:
        """Return a function that creates the data module of a seed."""
        ksmote = KSMOTE() if self.ksmote else None
        return partial(DATA[self.data], include_sensitive=self.include_sensitive, ksmote=ksmote)


def _each_eta(data: str, **options: object) -> list[Setting]:
    """Return a setting with each eta of the data set and the paper's beta."""
    beta = HYPERPARAMETERS[data][1]
    return [replace(Setting(eta=eta, beta=beta), **options) for eta in ETAS[data]]  # type: ignore[arg-type]


def main_table(data: str) -> list[Plan]:
    """Tables 1 to 3: all methods, S out of the inputs and in."""
    leaf = DATA[data]
    vanilla = Setting(eta=0.0, method="vanilla")
    remove = Setting(eta=0.0, remove=leaf.default_related, method="remove_r")
    aware = _each_eta(data, method="constrain_s", expose_sensitive=True)
    arl = [Setting(eta=0.0, adversary_lr=lr, method="arl") for lr in ARL_LRS]
    settings = (vanilla, remove, *_each_eta(data), *aware, *arl)
    balanced = tuple(Setting(eta=eta, method="ksmote") for eta in KSMOTE_ETAS)
    return [
        plan
        for inside in (False, True)
        for plan in (
            Plan(data, data, settings, include_sensitive=inside),
            Plan(data, data, balanced, include_sensitive=inside, ksmote=True),
        )
    ]


def ablation(data: str) -> list[Plan]:
    """Other related features and other rules for lambda."""
    leaf = DATA[data]
    related = leaf.default_related
    others = [c for c in leaf.columns or () if c not in (*related, leaf.sensitive)]
    rng = np.random.default_rng(0)
    candidates = [*related, *others]
    settings = [Setting(eta=0.0, method="vanilla"), *_each_eta(data)]
    settings += _each_eta(data, method="fix_lambda", every_n_steps=None)
    settings += _each_eta(data, method="constrain_all", related=tuple(candidates))
    for number in range(5):
        drawn = tuple(str(name) for name in rng.choice(candidates, len(related), replace=False))
        settings += _each_eta(data, method=f"random {number + 1}", related=drawn)
    for position, name in enumerate(related):
        settings += _each_eta(data, method=f"top_1 {name}", related=(name,))
        noisy = (*related[:position], str(rng.choice(others)), *related[position + 1 :])
        settings += _each_eta(data, method=f"noisy {position + 1}", related=noisy)
    settings += _each_eta(data, method="worst_case", rule="worst_case")
    settings += _each_eta(data, method="correlation", statistic="correlation")
    settings += _each_eta(data, method="positives", given="positives")
    if data == "compas":
        settings += _each_eta(data, method="wider", related=WIDER)
        settings += _each_eta(data, method="wider worst_case", related=WIDER, rule="worst_case")
    return [Plan("ablation", data, tuple(settings))]


def backbones(data: str) -> list[Plan]:
    """Logistic regression, SVM and MLP, each without and with FairRF."""
    betas = {"linear": 0.4, "svm": 0.6, "mlp": HYPERPARAMETERS[data][1]}  # the paper's
    settings = [Setting(eta=0.0, backbone=name, method="vanilla") for name in ("linear", "svm", "mlp")]
    for name, eta in product(("linear", "svm", "mlp"), ETAS[data]):
        settings.append(Setting(eta=eta, beta=betas[name], backbone=name))
    return [Plan("backbones", data, tuple(settings))]


def case_study(data: str) -> list[Plan]:
    """The weights of lambda on the paper's own choice of features."""
    eta, _ = HYPERPARAMETERS[data]
    features = tuple(CASE_STUDY[data])
    betas = (0.02, 0.05, 0.1, 0.5)
    settings = [Setting(eta=eta, beta=beta, related=features, method="case_study") for beta in betas]
    return [Plan("case-study", data, tuple(settings))]


def sensitivity() -> list[Plan]:
    """The figure: eta by beta on Adult."""
    grid = product(SENSITIVITY_ETAS, SENSITIVITY_BETAS)
    return [Plan("sensitivity", "adult", tuple(Setting(eta=eta, beta=beta) for eta, beta in grid))]


def plans(parts: Sequence[str]) -> list[Plan]:
    """Return the plans of the named parts."""
    made: list[Plan] = []
    for part in parts:
        if part in DATA:
            made += main_table(part)
        elif part == "sensitivity":
            made += sensitivity()
        else:
            build = {"ablation": ablation, "backbones": backbones, "case-study": case_study}[part]
            made += build("adult") + build("compas")
    return made


PARTS = ("adult", "compas", "lsac", "ablation", "backbones", "case-study", "sensitivity")
