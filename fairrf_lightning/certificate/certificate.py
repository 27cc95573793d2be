"""A certificate: bounds on the gap of a model on its rows, and in the population of these rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fairrf_lightning.certificate.bound import (
    Array,
    Box,
    GapBound,
    ImpossibleError,
    box_bound,
    checked_rows,
    population_bound,
    standardise,
)
from fairrf_lightning.certificate.knowledge import Knowledge, read_knowledge, sampled_knowledge
from fairrf_lightning.checkpoints import weights_digest
from fairrf_lightning.errors import InputError
from fairrf_lightning.load import EvaluatedRows, Run, evaluate, load_run
from fairrf_lightning.messages import level_text, points
from fairrf_lightning.metrics.counts import Mode
from fairrf_lightning.metrics.decisions import SAME_DECISION

_ROWS_SHARE = 0.2  # of the permitted error is for the rows, the rest for the intervals of a sample
_MODES: dict[Mode, str] = {"prob": "probabilities", "hard": "decisions"}
_METHODS = {
    "share": "S's share only",
    "paper": "the paper's Theorem 2, K features",
    "tight": "tight for any S (positive semi-definite)",
    "binary": "tight for a binary S",
}
_NO_EVIDENCE = "Too little is known about the columns; this is no evidence of fairness"
_MODEL = ("checkpoint", "weights", "split")


@dataclass(frozen=True)
class Certificate:
    """Bounds on the demographic parity gap, of probabilities (``prob``) and decisions (``hard``).

    Args:
        rows: Bounds that are certain for the rows if the knowledge about S holds there.
        population: Largest gap in the population of the rows, at ``level`` together with the intervals of a
            sample; ``None`` where the rows are too few.
        measured: Gaps on the rows, if S is in the data after all.
        num_rows: Number of rows.
        level: Confidence level.
        widened: Width that was added to the intervals of a sample to make them possible on the rows.
        knowledge: Share and correlations of S that the bounds follow from.
        model: Checkpoint, digest of its weights and split; empty if the rows were given as tensors.
    """

    rows: dict[Mode, GapBound]
    population: dict[Mode, float | None]
    measured: dict[Mode, float]
    num_rows: int
    level: float
    widened: float
    knowledge: Knowledge
    model: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        bounds = ", ".join(f"{_MODES[mode]} {bound.bound:.3f}" for mode, bound in self.rows.items())
        return f"Certificate(dDP at most: {bounds}; {self.num_rows:,} rows, group {self.knowledge.group!r})"

    def _repr_html_(self) -> str:
        tables = (self.bounds_table(), self.knowledge_table())
        html = "".join(table.to_html(index=False, float_format="{:.3f}".format) for table in tables)
        return html + "".join(f"<p>{escape(line)}</p>" for line in self.statements())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        known = self.knowledge
        limits = zip(known.names, known.box.low.tolist(), known.box.high.tolist(), strict=True)
        return {
            **self.model,
            "group": known.group,
            "source": known.source,
            "known_at_level": known.level,
            "share": list(known.share),
            "correlations": {name: [low, high] for name, low, high in limits},
            "num_rows": self.num_rows,
            "level": self.level,
            "widened": self.widened,
            "rows": {
                mode: asdict(bound)
                | {"rho": list(bound.rho), "bound": bound.bound, "adds_nothing": bound.adds_nothing}
                for mode, bound in self.rows.items()
            },
            "population": dict(self.population),
            "measured": dict(self.measured),
            "statements": list(self.statements()),
        }

    @classmethod
    def read(cls, path: Path) -> Certificate:
        """Read a file that ``certify --output`` wrote.

        Raises:
            InputError: If the file cannot be read or is not a certificate.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            low, high = np.array(list(found["correlations"].values()), dtype=np.float64).T
            share, level = (float(found["share"][0]), float(found["share"][1])), found["known_at_level"]
            names = [one.name for one in fields(GapBound)]
            bounds = {mode: GapBound(*(found["rows"][mode][name] for name in names)) for mode in _MODES}
            return cls(
                rows={mode: replace(one, rho=(one.rho[0], one.rho[1])) for mode, one in bounds.items()},
                population={mode: found["population"].get(mode) for mode in _MODES},
                measured=dict(found["measured"]),
                num_rows=int(found["num_rows"]),
                level=float(found["level"]),
                widened=float(found["widened"]),
                knowledge=Knowledge(
                    list(found["correlations"]), Box(low, high), share, found["group"], found["source"], level
                ),
                model={name: str(found[name]) for name in _MODEL if name in found},
            )
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: this is not a certificate; certify --output writes one.") from error

    @property
    def claim(self) -> str:
        """The certificate of the decisions in one sentence, without a full stop."""
        bound = self.rows["hard"]
        if bound.adds_nothing:
            return _nothing(_MODES["hard"], bound, self.knowledge.group)
        sure = "if the given numbers hold"
        if self.knowledge.level is not None:
            sure = f"with {level_text(self.level)} confidence"
        return f"Without S, dDP of decisions is certified to be at most {points(bound.bound)}, {sure}"

    def knowledge_table(self) -> pd.DataFrame:
        """Return the correlation of S with each column, and its share."""
        known = self.knowledge
        limits = zip(known.box.low, known.box.high, strict=True)
        texts = ["not known" if high - low >= 2 else _interval(low, high) for low, high in limits]
        return pd.DataFrame(
            {
                "column": [*known.names, "share of rows"],
                "correlation with S": [*texts, _interval(*known.share)],
            }
        )

    def bounds_table(self) -> pd.DataFrame:
        """Return the largest possible gap by what is used."""
        lines: dict[str, Mapping[Mode, float | None]] = {
            label: {mode: bound.by_method[method] for mode, bound in self.rows.items()}
            for method, label in _METHODS.items()
        }
        if any(value is not None for value in self.population.values()):
            lines[f"the population, {level_text(self.level)}"] = self.population
        if self.measured:
            lines["measured, as S is in the data"] = {mode: abs(gap) for mode, gap in self.measured.items()}
        return pd.DataFrame(
            {"by what is used": list(lines)}
            | {_MODES[mode]: [line[mode] for line in lines.values()] for mode in self.rows}
        )

    def statements(self) -> Iterator[str]:
        """Yield the certificate in plain words, one statement each."""
        known = self.knowledge
        condition = (
            "if the numbers given for S hold for them"
            if known.level is None
            else f"with {level_text(self.level)} confidence if the sample was drawn at random from them"
        )
        for mode, bound in self.rows.items():
            if bound.adds_nothing:
                evidence = f"{'. ' + _NO_EVIDENCE if bound.spread else ''}."
                yield _nothing(_MODES[mode], bound, known.group) + evidence
                continue
            yield (
                f"Certain for these {self.num_rows:,} rows, {condition}: the mean of the {_MODES[mode]} "
                f"for '{known.group}' minus that of all others is between {points(bound.low)} and "
                f"{points(bound.high)}; dDP is at most {points(bound.bound)}."
            )
            if bound.low > 0 or bound.high < 0:
                least = points(max(bound.low, -bound.high))
                yield f"A gap is certain: dDP of the {_MODES[mode]} is at least {least}."
        yield from self._population_statement()
        if self.widened:
            yield (
                "No S has the correlations of the sample on these rows: their intervals were widened by "
                f"{self.widened:.3f}."
            )
        if known.level is not None:
            yield "An audit of the sampled rows is tighter: if the model can be run on them, audit them."
        yield "The certificate covers neither dEO, accuracy by group, other groups nor causes."

    def _population_statement(self) -> Iterator[str]:
        known = {mode: value for mode, value in self.population.items() if value is not None}
        if not known:
            yield "The rows are too few for a statement about the population that they were drawn from."
        found = {mode: value for mode, value in known.items() if not self.rows[mode].adds_nothing}
        if not found:
            return
        limits = " and ".join(f"{points(value)} ({_MODES[mode]})" for mode, value in found.items())
        given = "" if self.knowledge.level is not None else ", if the numbers given for S hold there"
        yield (
            f"For the population that the rows were drawn from, dDP is at most {limits} with "
            f"{level_text(self.level)} confidence{given}."
        )


def certify(
    source: str | Path | Run,
    *,
    proxies: str | Path | None = None,
    audit_sample: str | Path | None = None,
    sensitive: str | None = None,
    group: str | None = None,
    columns: Sequence[str] = (),
    split: Literal["test", "val", "train"] = "test",
    level: float = 0.95,
) -> Certificate:
    """Bound the gap of a model between groups that were never observed.

    Give either ``proxies`` or ``audit_sample``.

    Args:
        source: A checkpoint, the folder of a run, or a run that was loaded.
        proxies: YAML file of S's share and its correlations with columns (docs/certificate.md).
        audit_sample: CSV or Parquet file of rows where S is known.
        sensitive: Column of S in the sample; by default that of the data.
        group: Value of S that is compared with all others.
        columns: Features to take from the sample; by default the related ones.
        split: Rows to certify.
        level: Confidence level.

    Raises:
        InputError: If the options contradict each other, or a file or a column cannot be used.
    """
    if (proxies is None) == (audit_sample is None):
        raise InputError("certify needs knowledge about S: name either --proxies or --audit_sample.")
    if not 0 < level < 1:
        raise InputError(f"--level {level}: expected a number between 0 and 1, such as 0.95.")
    given = {"sensitive": sensitive, "group": group, "columns": columns}
    if proxies is not None and (name := next((name for name, value in given.items() if value), None)):
        raise InputError(f"--{name} belongs to --audit_sample; with --proxies the file says it all.")
    run = source if isinstance(source, Run) else load_run(source)
    rows, names = evaluate(run, split), run.data.feature_names
    if proxies is not None:
        known = read_knowledge(str(proxies), names)
    else:
        known = sampled_knowledge(
            str(audit_sample),
            run.data,
            columns or list(run.data.related),
            sensitive=sensitive,
            group=group,
            level=1 - (1 - _ROWS_SHARE) * (1 - level),
        )
    found = certify_rows(
        rows.probabilities,
        rows.inputs[:, [names.index(name) for name in known.names]],
        known,
        level=level,
        sensitive=_measured_sensitive(rows, known.group),
    )
    described = (str(run.path), weights_digest(run.checkpoint["state_dict"]), rows.split)
    return replace(found, model=dict(zip(_MODEL, described, strict=True)))


def certify_rows(
    probabilities: Tensor,
    columns: Tensor,
    knowledge: Knowledge,
    *,
    threshold: float = 0.5,
    level: float = 0.95,
    sensitive: Tensor | None = None,
) -> Certificate:
    """Bound the gap of probabilities and of decisions on given rows.

    Args:
        probabilities: Probability of the positive class ``(N,)``.
        columns: The columns that ``knowledge`` names, ``(N, K)``.
        knowledge: Share and correlations of S.
        threshold: Decision threshold.
        level: Confidence level of the statement about the population.
        sensitive: S of all rows (0 or 1), if known after all: only to show the true gap next to the bound.
    """
    for name, value in {"threshold": threshold, "level": level}.items():
        if not 0 < value < 1:
            raise InputError(f"{name} = {value}: expected a number between 0 and 1.")
    preds, table = checked_rows(probabilities, columns, len(knowledge.names))
    by_mode: dict[Mode, Array] = {"prob": preds, "hard": (preds >= threshold).astype(np.float64)}
    rows, box, widened = _on_rows(by_mode, table, knowledge)
    certain = 1 - _ROWS_SHARE * (1 - level)
    groups = None if sensitive is None else sensitive.cpu().numpy() > 0
    return Certificate(
        rows=rows,
        population={
            mode: population_bound(p, table, box, knowledge.share, level=certain)
            for mode, p in by_mode.items()
        },
        measured={}
        if groups is None
        else {mode: float(p[groups].mean() - p[~groups].mean()) for mode, p in by_mode.items()},
        num_rows=len(preds),
        level=level,
        widened=widened,
        knowledge=knowledge,
    )


def _on_rows(
    by_mode: Mapping[Mode, Array], table: Array, knowledge: Knowledge
) -> tuple[dict[Mode, GapBound], Box, float]:
    """Bound the gaps; widen the intervals of a sample until some S can have such correlations."""
    columns, varies = standardise(table)
    for widened in (0.0, *(0.005 * 2.0**step for step in range(10))):
        box = knowledge.box.widened(widened) if widened else knowledge.box
        inner = Box(box.low[varies], box.high[varies])
        try:
            rows = {mode: box_bound(p, columns, inner, knowledge.share) for mode, p in by_mode.items()}
        except ImpossibleError:
            if knowledge.level is None or widened > 2:  # numbers that were given are not changed
                raise
        else:
            return rows, box, widened
    raise AssertionError("everything is possible in the box from -1 to 1")  # pragma: no cover


def _measured_sensitive(rows: EvaluatedRows, group: str) -> Tensor | None:
    """Return S of all rows, if it is in the data and has the group."""
    if rows.data.sensitive not in rows.attributes:
        return None
    values = rows.attributes[rows.data.sensitive]
    member = (values == group).to_numpy(dtype=np.bool_, na_value=False)
    return None if values.isna().any() or member.all() or not member.any() else torch.tensor(member)


def _nothing(name: str, bound: GapBound, group: str) -> str:
    if not bound.spread:
        return f"The certificate says nothing about the {name}: {SAME_DECISION}"
    return (
        f"The certificate adds nothing about the {name}: dDP is at most {points(bound.bound)}, and the "
        f"share of '{group}' and the {name} alone already give {points(bound.by_method['share'])}"
    )


def _interval(low: float, high: float) -> str:
    return f"{low:.3f}" if low == high else f"{low:.3f} to {high:.3f}"
