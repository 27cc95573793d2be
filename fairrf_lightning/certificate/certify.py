"""A certificate: what is certain of a model's gap on its rows, and for their population."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from fairrf_lightning.certificate.dual import Array, Box
from fairrf_lightning.certificate.gap import GapBound, ImpossibleError, box_bound, standardise
from fairrf_lightning.certificate.population import population_bound
from fairrf_lightning.certificate.proxies import Proxies

Mode = Literal["prob", "hard"]
ROWS_SHARE = 0.2  # of the permitted error goes to the rows, the rest to the intervals of a sample


@dataclass(frozen=True)
class Certificate:
    """Bounds on the demographic parity gap, of probabilities (``prob``) and decisions (``hard``).

    Args:
        rows: Bounds that are certain for the rows if what is known of S holds there.
        population: Largest gap in the population of the rows, at ``level`` together with the intervals of a
            sample; ``None`` where the rows are too few.
        measured: Gaps on the rows, if S is known there after all.
        num_rows: Number of rows.
        level: Confidence level.
        widened: By how much the intervals of a sample had to be widened to be possible on the rows.
        proxies: What was known of S.
    """

    rows: dict[Mode, GapBound]
    population: dict[Mode, float | None]
    measured: dict[Mode, float]
    num_rows: int
    level: float
    widened: float
    proxies: Proxies

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        known = self.proxies
        limits = zip(known.names, known.box.low.tolist(), known.box.high.tolist(), strict=True)
        return {
            "group": known.group,
            "source": known.source,
            "known_at_level": known.level,
            "share": list(known.share),
            "correlations": {name: [low, high] for name, low, high in limits},
            "num_rows": self.num_rows,
            "level": self.level,
            "widened": self.widened,
            "rows": {mode: asdict(bound) | _summary(bound) for mode, bound in self.rows.items()},
            "population": dict(self.population),
            "measured": dict(self.measured),
        }


def _summary(bound: GapBound) -> dict[str, float | bool]:
    return {"bound": bound.bound, "adds_nothing": bound.adds_nothing}


def certify(
    probabilities: Tensor,
    columns: Tensor,
    proxies: Proxies,
    *,
    threshold: float = 0.5,
    level: float = 0.95,
    sensitive: Tensor | None = None,
) -> Certificate:
    """Bound the gap of probabilities and of decisions.

    Args:
        probabilities: Probability of the positive class ``(N,)``.
        columns: The columns that ``proxies`` names, ``(N, K)``.
        proxies: What is known of S.
        threshold: Probabilities at or above it are decided positively.
        level: Confidence level of the statement about the population.
        sensitive: S of all rows (0 or 1), if known after all: only to put the truth beside the bound.
    """
    preds = probabilities.detach().cpu().double().numpy()
    table = columns.detach().cpu().double().numpy()
    by_mode: dict[Mode, Array] = {"prob": preds, "hard": (preds >= threshold).astype(np.float64)}
    rows, box, widened = _on_rows(by_mode, table, proxies)
    certain = 1 - ROWS_SHARE * (1 - level)
    groups = None if sensitive is None else sensitive.cpu().numpy() > 0
    return Certificate(
        rows=rows,
        population={
            mode: population_bound(p, table, box, proxies.share, level=certain) for mode, p in by_mode.items()
        },
        measured={
            mode: float(p[groups].mean() - p[~groups].mean())
            for mode, p in by_mode.items()
            if groups is not None
        },
        num_rows=len(preds),
        level=level,
        widened=widened,
        proxies=proxies,
    )


def _on_rows(
    by_mode: dict[Mode, Array], table: Array, proxies: Proxies
) -> tuple[dict[Mode, GapBound], Box, float]:
    """Bound the gaps; widen the intervals of a sample until some S can have such correlations."""
    columns, varies = standardise(table)
    for widened in (0.0, *(0.005 * 2.0**step for step in range(10))):
        box = proxies.box.widened(widened) if widened else proxies.box
        inner = Box(box.low[varies], box.high[varies])
        try:
            rows = {mode: box_bound(p, columns, inner, proxies.share) for mode, p in by_mode.items()}
        except ImpossibleError:
            if proxies.level is None or widened > 2:  # figures that were given are not touched
                raise
        else:
            return rows, box, widened
    raise AssertionError("everything is possible in the box from -1 to 1")  # pragma: no cover
