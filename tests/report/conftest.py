"""Facts with everything on the page, and names that try to be markup."""

import numpy as np
import pytest

from fairrf_lightning.certificate import Certificate, GapBound, Knowledge
from fairrf_lightning.certificate.bound import Box
from fairrf_lightning.report.facts import (
    Absent,
    AccuracyAgainst,
    DataFacts,
    Dependence,
    Estimate,
    Facts,
    Front,
    History,
    MeasuredGap,
    MeasuredGroup,
    Point,
    Training,
    Verdict,
)

HOSTILE = '<img src=x onerror="window.hacked=1">'
CLOSING = "</script><script>window.hacked=1</script>"
LONG = "a column whose name is longer than any phone is wide, by a good deal, and has_no_place_to_break" * 2


def _certificate() -> Certificate:
    known = {"age": (-0.1, 0.02), HOSTILE: (-1.0, 1.0), "job": (0.25, 0.25)}
    low, high = np.array(list(known.values())).T
    bounds = {"share": 0.5, "paper": 0.4, "tight": 0.25, "binary": 0.2}
    return Certificate(
        rows={
            "prob": GapBound(-0.25, 0.05, (-0.5, 0.1), bounds, 0.3),
            "hard": GapBound(-0.2, 0.03, (-0.5, 0.1), bounds, 0.4),
        },
        population={"prob": None, "hard": 0.22},
        measured={"prob": -0.1, "hard": -0.13},
        num_rows=900,
        level=0.95,
        widened=0.0,
        knowledge=Knowledge(list(known), Box(low, high), (0.32, 0.32), HOSTILE, CLOSING),
    )


@pytest.fixture(scope="session")
def facts() -> Facts:
    """Return facts for every section."""
    estimate, other = Estimate(0.02, 0.0, 0.06), Estimate(0.09, 0.05, 0.13)
    change = Estimate(-0.07, -0.1, -0.02)
    rates = {rate: Estimate(0.3, 0.25, 0.36) for rate in ("selection rate", "true positive rate", "accuracy")}
    unknown = dict.fromkeys(rates, Estimate(float("nan")))
    points = [
        Point("fairrf", f"eta {eta}", 0.85 - eta / 50, {"dEO": 0.09 - eta / 15, "dDP": 0.2 - eta / 10})
        for eta in (0.2, 0.4, 0.6)
    ]
    points += [Point("vanilla", "eta 0", 0.85, {"dEO": 0.09, "dDP": 0.2}, {"accuracy": 0.01, "dEO": 0.02})]
    points += [Point(HOSTILE, CLOSING, 0.84, {"dEO": 0.03, "dDP": 0.1}, mark="chosen")]
    paths = [History(name, [0, 1, 2], [0.3, 0.4, 0.5]) for name in ("age", HOSTILE, "%{y} & more")]
    return Facts(
        title=f"version_0 on {CLOSING}",
        subject="FairRF, eta 0.6",
        split="test split",
        made="today",
        verdict=Verdict("good", "Fairer than vanilla, beyond noise", [f"dEO of {HOSTILE} fell."]),
        accuracy=Estimate(0.852, 0.846, 0.858),
        other="vanilla",
        accuracy_against=AccuracyAgainst(Estimate(0.857, 0.851, 0.863), Estimate(-0.005, -0.008, -0.002)),
        gaps=[
            MeasuredGap("dEO", "sex", estimate, other=other, difference=change),
            MeasuredGap(
                "dDP", HOSTILE, Estimate(0.13, 0.12, 0.14), other=other, difference=Estimate(0.01, -0.1, 0.1)
            ),
            MeasuredGap("dEOdds", LONG, Estimate(float("nan")), note="too few rows"),
        ],
        groups=[
            MeasuredGroup("sex", "Female", 4000, rates),
            MeasuredGroup("sex", "Male", 9000, rates),
            MeasuredGroup(HOSTILE, CLOSING, 9, unknown, "too few rows"),
            MeasuredGroup(HOSTILE, LONG, 500, rates),
        ],
        positive_share=Estimate(0.22, 0.21, 0.23),
        other_positive_share=Estimate(0.25, 0.24, 0.26),
        dependences=[Dependence("age", 0.012, 0.034), Dependence(HOSTILE, 0.02, 0.01)],
        fronts=[Front("5 settings", points, "Chosen without S.")],
        training=Training(paths, paths, 1, "the best val_objective"),
        certificate=_certificate(),
        data=DataFacts(
            "adult",
            {"train": 22611, "test": 13567},
            {"age": ["age"], HOSTILE: [f"{HOSTILE}=1", f"{HOSTILE}=2"], LONG: [LONG]},
            ["age", HOSTILE],
            "sex",
            ["Female", "Male"],
            "sex was not seen in training.",
        ),
        configuration={"model.eta": "0.6", HOSTILE: CLOSING, "data.path": LONG},
        versions={"torch": "2.13.0"},
        limits=["A note."],
    )


@pytest.fixture(scope="session")
def nothing() -> Facts:
    """Return facts of a run of which next to nothing is known."""
    return Facts(
        title="version_1 on table",
        subject="a model",
        split="test split",
        made="today",
        verdict=Verdict("unknown", "Fairness to groups is not measured here"),
        absent={"gaps": Absent("No S.", f"python train.py certify {LONG}")},
    )
