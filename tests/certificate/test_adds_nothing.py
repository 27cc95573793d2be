"""A certificate that says no more than the share of S alone says that it adds nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from fairrf_lightning.certificate.certify import Certificate, certify
from fairrf_lightning.certificate.command import write_certificate
from fairrf_lightning.certificate.dual import Box
from fairrf_lightning.certificate.proxies import Proxies
from fairrf_lightning.certificate.show import statements
from fairrf_lightning.metrics.decisions import SAME_DECISION
from fairrf_lightning.report.sources import certificate_facts
from fairrf_lightning.report.text import unmeasured_verdict


def certified(low: float, high: float, *, bias: float = 0.0, level: float | None = 0.96) -> Certificate:
    rng = np.random.default_rng(0)
    column = rng.normal(size=(900, 1))
    scores = torch.from_numpy(rng.normal(size=900) + column[:, 0] + bias)
    known = Proxies(["a"], Box(np.array([low]), np.array([high])), (0.4, 0.5), "women", "sample", level)
    return certify(torch.sigmoid(scores), torch.from_numpy(column), known)


def test_what_follows_from_the_share_alone_is_not_called_certain(tmp_path: Path) -> None:
    found = certified(-1.0, 1.0)
    trivial = found.rows["hard"].by_method["share"]
    assert found.rows["hard"].bound > 0.99 * trivial
    text = " ".join(statements(found))
    assert "Certain" not in text
    assert "confidence" not in text
    for name in ("decisions", "probabilities"):
        assert f"Of the {name} this certificate adds nothing" in text
    assert f"the share of 'women' and the decisions alone already give {100 * trivial:.1f} points" in text
    write_certificate(found, tmp_path / "c.json", checkpoint="x", weights="y", split="test")
    assert json.loads((tmp_path / "c.json").read_text())["rows"]["hard"]["adds_nothing"] is True
    facts = certificate_facts(tmp_path / "c.json")
    assert facts.adds_nothing
    assert facts.claim.startswith("The certificate adds nothing about the decisions")
    verdict = unmeasured_verdict(None, None, facts)
    assert (verdict.tone, verdict.title) == ("unknown", "Fairness to groups is not measured here")


def test_what_the_columns_add_is_certified(tmp_path: Path) -> None:
    found = certified(-0.05, 0.05)
    assert found.rows["hard"].bound < 0.9 * found.rows["hard"].by_method["share"]
    text = " ".join(statements(found))
    assert "adds nothing" not in text
    assert "Certain for these 900 rows, with 95% confidence" in text
    write_certificate(found, tmp_path / "c.json", checkpoint="x", weights="y", split="test")
    facts = certificate_facts(tmp_path / "c.json")
    assert not facts.adds_nothing
    assert unmeasured_verdict(None, None, facts).title == facts.claim


def test_a_certain_gap_is_news_however_wide_the_bound() -> None:
    found = certified(0.75, 0.9)
    bound = found.rows["prob"]
    assert bound.low > 0
    assert not bound.adds_nothing


def test_the_same_decision_for_everyone_certifies_nothing(tmp_path: Path) -> None:
    found = certified(-0.05, 0.05, bias=50.0)
    assert found.rows["hard"].bound == 0
    assert any(line.endswith(f"says nothing: {SAME_DECISION}.") for line in statements(found))
    write_certificate(found, tmp_path / "c.json", checkpoint="x", weights="y", split="test")
    assert certificate_facts(tmp_path / "c.json").claim.endswith(SAME_DECISION)
