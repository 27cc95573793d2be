"""Facts of a certificate, from the file that ``certify --output`` wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairrf_lightning.certificate.gap import adds_nothing
from fairrf_lightning.checkpoints import weights_digest
from fairrf_lightning.errors import InputError
from fairrf_lightning.load import read_checkpoint
from fairrf_lightning.metrics.decisions import SAME_DECISION
from fairrf_lightning.report.facts import Certificate, CertifiedGap
from fairrf_lightning.report.wording import points

METHODS = {
    "share": "S's share only",
    "paper": "the paper's Theorem 2",
    "tight": "tight, any S",
    "binary": "tight, binary S",
}


def certificate_facts(path: Path, checkpoint: Path | None = None) -> Certificate:
    """Read a certificate.

    Args:
        path: The JSON file.
        checkpoint: The checkpoint that the report is about; a certificate of other weights is refused.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        gaps = [_gap(mode, found) for mode in ("hard", "prob")]
        statements = [str(line) for line in found["statements"]]
        _check_weights(path, str(found["weights"]), checkpoint)
        low, high = found["share"]
        limits = {str(name): (float(low), float(high)) for name, (low, high) in found["correlations"].items()}
        level = found["known_at_level"]
        sure = "if the given figures hold" if level is None else f"with {found['level']:.0%} confidence"
        claim = f"Without S, dDP of decisions is certified to be at most {points(gaps[0].bound)}, {sure}"
        trivial = gaps[0].by_method[METHODS["share"]]
        is_vacuous = adds_nothing(gaps[0].low, gaps[0].high, trivial)
        if is_vacuous:
            claim = _nothing(trivial)
        return Certificate(
            claim,
            str(found["group"]),
            str(found["source"]),
            gaps,
            limits,
            (low, high),
            statements,
            is_vacuous,
        )
    except InputError:  # a ValueError, too
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: this is no certificate; certify --output writes one.") from error


def _nothing(trivial: float) -> str:
    if trivial == 0:
        return f"The certificate says nothing about the decisions: {SAME_DECISION}"
    return (
        "The certificate adds nothing about the decisions: what is known of S does not bound their dDP "
        f"better than its share alone, {points(trivial)}"
    )


def _check_weights(path: Path, certified: str, checkpoint: Path | None) -> None:
    # Names do not tell: the best checkpoints of two runs are often called the same.
    if checkpoint is not None and weights_digest(read_checkpoint(checkpoint)["state_dict"]) != certified:
        raise InputError(
            f"{path}: this certificate is about another model than {checkpoint}: run certify --output with "
            "that checkpoint, or take the file away."
        )


def _gap(mode: str, found: Mapping[str, Any]) -> CertifiedGap:
    bound = found["rows"][mode]
    return CertifiedGap(
        mode,
        float(bound["low"]),
        float(bound["high"]),
        {words: float(bound["by_method"][name]) for name, words in METHODS.items()},
        population=found["population"].get(mode),
        measured=found["measured"].get(mode),
    )
