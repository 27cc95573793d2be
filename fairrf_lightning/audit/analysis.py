"""Compares the decisions of a model, or of two on the same rows, between groups."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairrf_lightning.audit.predictions import is_checkpoint, read_predictions
from fairrf_lightning.audit.result import (
    LESS_ACCURATE,
    MORE_ACCURATE,
    SCHEMA,
    Audit,
    GapChange,
    GapResult,
    GroupingResult,
    json_number,
    notices,
    verdict_of,
)
from fairrf_lightning.audit.scores import Scores, score_checkpoint
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.load import Run, Split, evaluate, load_run
from fairrf_lightning.messages import quiet_lightning
from fairrf_lightning.metrics.counts import GAPS, Gap, GroupCounts, Mode, by_condition
from fairrf_lightning.metrics.intervals import (
    RateSample,
    bonferroni_level,
    gap_bounds,
    gap_interval,
    normal_quantile,
    wilson_interval,
)
from fairrf_lightning.metrics.paired import (
    decision_correlation,
    gap_difference_interval,
    mean_correlation,
    paired_difference_interval,
)

_RATES = ("accuracy", "selection_rate", "true_positive_rate", "false_positive_rate")
_WITHOUT_LABELS = {"rows", "selection_rate", "selection_rate_low", "selection_rate_high", "mean_probability"}


def audit(
    source: str | Path | Run | Scores,
    groups: Sequence[str] = (),
    *,
    against: str = "",
    split: Split = "test",
    prob: str | None = None,
    decision: str | None = None,
    target: str | None = None,
    positive: str | None = None,
    threshold: float = 0.5,
    level: float = 0.95,
    min_rows: int = 10,
    trust: Sequence[str] = (),
    data_options: Mapping[str, Any] | None = None,
) -> Audit:
    """Compare a model's decisions between groups.

    Args:
        source: Checkpoint, run folder, or CSV or Parquet file of predictions of any model; or a run or
            scores that were loaded.
        groups: Sensitive columns, such as race,sex; several give intersections as well. By default the
            sensitive attribute of the checkpoint's data; in Python, all attributes of loaded scores.
        against: Another checkpoint on the same rows; for predictions, the other model's column.
        split: Rows of the checkpoint's data.
        prob: Column of probabilities; by default prob or probability. For more than two classes, the columns
            NAME_0, NAME_1 and so on.
        decision: Column of decisions; by default the probability against the threshold, or the most probable
            of more than two classes.
        target: Column of true classes; by default target if there is one. Without true classes ('') only
            selection rates and dDP are measured.
        positive: Value of decisions and true classes that counts as 1, such as yes; by default 1 or true.
        threshold: Decision threshold.
        level: Confidence level of the intervals.
        min_rows: Groups with fewer rows are listed but not compared.
        trust: As in :func:`~fairrf_lightning.load.load_run`.
        data_options: As in :func:`~fairrf_lightning.load.load_run`.

    Returns:
        Rates per group and gaps with intervals.

    Raises:
        InputError: If a file or a column cannot be used, or an option is out of range.

    >>> import numpy as np, pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> people = pd.DataFrame({"sex": rng.choice(["f", "m"], 1000)})
    >>> result = audit(Scores.of_arrays(rng.integers(0, 2, 1000), rng.random((1, 1000)), people))
    >>> print(f"{result.groupings[0].gaps[0].value:.4f}")
    0.0272
    """
    normal_quantile(level)
    if not 0 <= threshold <= 1:
        raise InputError(f"--threshold {threshold}: expected a probability between 0 and 1.")
    if min_rows < 1:
        raise InputError(f"--min_rows {min_rows}: expected 1 or more.")
    own = {"prob": prob, "decision": decision, "target": target, "positive": positive}
    evaluated = {
        "split": None if split == "test" else split,
        "trust": ",".join(trust) or None,
        "data_options": data_options or None,
    }
    if isinstance(source, Scores):
        changed = {"against": against or None, "threshold": None if threshold == 0.5 else threshold}
        _refuse(own | evaluated | changed, "the scores have their own; leave it out.")
        return _audit(source, groups, level, min_rows)
    if isinstance(source, Run) or is_checkpoint(Path(source)):
        path = source.path if isinstance(source, Run) else source
        _refuse(own, f"only for predictions; {path} is a checkpoint.")
        load = partial(load_run, trust=trust, data_options=data_options)
        predict = partial(evaluate, split=split, attributes=list(dict.fromkeys(groups)), several_classes=True)
        rows = predict(source if isinstance(source, Run) else load(source))
        if not len(rows.attributes.columns):
            raise InputError("the data name no sensitive attribute: name columns by --groups.")
        with quiet_lightning():  # the rows are the same, and were described above
            other = predict(load(against)) if against else None
        return _audit(score_checkpoint(rows, other, threshold), (), level, min_rows)
    _refuse(evaluated, f"only for a checkpoint; {source} is a file of predictions.")
    if against and is_checkpoint(Path(against)):
        raise InputError(f"--against {against}: {source} is a file of predictions; name a column of it.")
    scores = read_predictions(Path(source), groups, **own, against=against or None, threshold=threshold)
    return _audit(scores, (), level, min_rows)


def _refuse(options: Mapping[str, Any], why: str) -> None:
    """Raise if an option was given that would have no effect."""
    for option, value in options.items():
        if value is not None:
            raise InputError(f"--{option} {value}: {why}")


def _audit(scores: Scores, groups: Sequence[str], level: float, min_rows: int) -> Audit:
    for name in groups:
        if name not in scores.attributes:
            raise InputError(f"no attribute '{name}'; {did_you_mean(name, scores.attributes)}")
    every, attributes = [list(range(len(scores.names)))], list(groups) or list(scores.attributes)
    found = Audit(
        schema=SCHEMA,
        level=level,
        threshold=None if scores.by_class else scores.threshold,
        min_rows=min_rows,
        rows=int(scores.counts.rows.sum()),
        labels=scores.has_labels,
        source=scores.source,
        overall=_group_numbers(scores, every, level=level)[0],
        against=_group_numbers(scores, every, 1, level=level)[0] if scores.num_models == 2 else None,
        accuracy_difference=_accuracy_difference(scores, level),
        groupings=[one.result() for one in _comparisons(scores, attributes, level, min_rows)],
        num_classes=scores.num_classes,
    )
    return replace(found, notices=[*notices(found.to_dict()), *scores.notices])


@dataclass(frozen=True)
class _Comparison:
    """Scores, the cells of each group that is compared, and those of rows whose group is unknown."""

    scores: Scores
    attributes: list[str]
    groups: dict[str, list[int]]
    unknown: list[int]
    level: float
    min_rows: int

    def result(self) -> GroupingResult:
        numbers = _group_numbers(self.scores, list(self.groups.values()), level=self.level)
        modes: list[Mode] = ["hard", "prob"] if self.scores.has_probs else ["hard"]
        gap_of = self.largest_gap if self.scores.by_class else self.gap_result
        return GroupingResult(
            name=" x ".join(self.attributes),
            attributes=self.attributes,
            unknown_rows=int(self.scores.counts.rows[self.unknown].sum()),
            groups=[
                {"name": name, "estimable": group["rows"] >= self.min_rows, **group}
                for name, group in zip(self.groups, numbers, strict=True)
            ],
            gaps=[gap_of(gap, mode) for gap in GAPS.values() for mode in modes],
        )

    def enough(self, gap: Gap) -> tuple[list[list[int]], list[str]]:
        """Return the cells of the groups with enough rows for a gap, and the names of the other groups."""
        rows = self.scores.counts.rows
        enough = {
            name: bool((by_condition(rows[cells].sum(0, keepdim=True), gap) >= self.min_rows).all())
            for name, cells in self.groups.items()
        }
        left_out = [name for name, is_enough in enough.items() if not is_enough]
        return [cells for name, cells in self.groups.items() if enough[name]], left_out

    def gap_result(self, gap: Gap, mode: Mode) -> GapResult:
        """Return a gap between the groups that have ``min_rows`` rows under each of its conditions."""
        scores = self.scores
        if gap.needs_labels and not scores.has_labels:
            return GapResult(gap.label, mode)
        members, left_out = self.enough(gap)
        if len(members) < 2:
            return GapResult(gap.label, mode, left_out=left_out)
        models = [scores.counts.model(model).merge_groups(members) for model in range(scores.num_models)]
        samples = [counts.sample(gap, mode) for counts in models]
        bounds = []
        if self.unknown and mode == "hard":
            bounds = [
                _gap_bounds(counts, scores.counts.model(model).merge_groups([self.unknown]), gap)
                for model, counts in enumerate(models)
            ]
        against = None
        if scores.num_models == 2:
            correlation = _correlation(models, scores.both().merge_groups(members), gap, mode)
            against = _gap_change(samples, correlation, self.level, bounds)
        return GapResult(
            gap.label,
            mode,
            estimable=True,
            left_out=left_out,
            **_with_interval(samples[0], self.level),
            bounds=bounds[0] if bounds else None,
            against=against,
        )

    def largest_gap(self, gap: Gap, mode: Mode) -> GapResult:
        """Return the gap of each class against all others, and the largest of them.

        The lower limits of the classes share the error probability, as in
        :func:`~fairrf_lightning.metrics.intervals.gap_interval`; groups with too few rows differ by class.
        """
        classes = [replace(self, scores=one) for one in self.scores.by_class]
        by_class = [one.gap_result(gap, mode) for one in classes]
        known = [number for number, one in enumerate(by_class) if one.value is not None]
        if not known:
            return GapResult(gap.label, mode, by_class=by_class)
        shared = bonferroni_level(self.level, len(known))
        lows = []
        for number in known:
            members, _ = classes[number].enough(gap)
            sample = classes[number].scores.counts.model(0).merge_groups(members).sample(gap, mode)
            lows.append(gap_interval(sample, shared)[0].item())
        largest = max(known, key=lambda number: by_class[number].value or 0)
        bounds = [one.bounds for one in by_class if one.bounds is not None]
        return GapResult(
            gap.label,
            mode,
            estimable=True,
            value=by_class[largest].value,
            low=_largest(lows),
            high=_largest(by_class[number].high for number in known),
            bounds=[max(ends) for ends in zip(*bounds, strict=True)] if bounds else None,
            largest_class=largest,
            by_class=by_class,
        )


def _comparisons(scores: Scores, attributes: list[str], level: float, min_rows: int) -> Iterator[_Comparison]:
    """Yield a comparison for each attribute and, if there are several, one for their intersections."""
    for chosen in [[name] for name in attributes] + ([attributes] if len(attributes) > 1 else []):
        groups: dict[str, list[int]] = {}
        unknown = []
        for number, cell in enumerate(scores.names):
            values = {name: cell[scores.attributes.index(name)] for name in chosen}
            if any(v is not None and v not in scores.compared.get(name, [v]) for name, v in values.items()):
                continue  # a group that is known and not compared
            if None in values.values():
                unknown.append(number)
            else:
                groups.setdefault(_group_name([str(value) for value in values.values()]), []).append(number)
        yield _Comparison(scores, chosen, dict(sorted(groups.items())), unknown, level, min_rows)


def _group_name(values: list[str]) -> str:
    """Return the values in one name; quotes keep ("a, b", "c") and ("a", "b, c") apart.

    >>> _group_name(["a, b", "c"])
    '"a, b", c'
    """
    if len(values) == 1:
        return values[0]
    quoted = [json.dumps(v, ensure_ascii=False) if "," in v or '"' in v else v for v in values]
    return ", ".join(quoted)


def _group_numbers(
    scores: Scores, members: list[list[int]], model: int = 0, *, level: float
) -> list[dict[str, Any]]:
    """Return the numbers of each group of cells; ``None`` where there are no rows, or no labels, for one.

    Model 1, the other one, has no AUC and no calibration error.
    """
    if not members:
        return []
    if scores.by_class:
        return _class_numbers(scores, members, model, level=level)
    counts = scores.counts.model(model).merge_groups(members)
    rates = counts.group_rates(level)
    positives, rows = counts.rows[:, 1], counts.rows.sum(-1)
    columns: dict[str, Tensor] = {"rows": rows, "positives": positives}
    columns["base_rate"] = positives / rows.double()
    for name in _RATES:
        rate = rates[name]
        columns |= {name: rate.value, f"{name}_low": rate.low, f"{name}_high": rate.high}
    if counts.score_sum is not None:
        columns["mean_probability"] = counts.score_sum.sum(-1) / rows
    lines: list[dict[str, Any]] = [
        dict(zip(columns, values, strict=True))
        for values in zip(*(c.tolist() for c in columns.values()), strict=True)
    ]
    if scores.has_probs and scores.ranks_scores and model == 0:
        for line, cells in zip(lines, members, strict=True):
            line["auc"], line["auc_error"] = scores.auc(cells)
            line["calibration_error"] = scores.calibration_error(cells)
    return [
        {
            name: json_number(value) if scores.has_labels or name in _WITHOUT_LABELS else None
            for name, value in line.items()
        }
        for line in lines
    ]


def _class_numbers(
    scores: Scores, members: list[list[int]], model: int, *, level: float
) -> list[dict[str, Any]]:
    """Return the numbers of each group for more than two classes, those of each class in ``classes``."""
    parts = [_group_numbers(one, members, model, level=level) for one in scores.by_class]
    hidden = {"rows", "accuracy", "accuracy_low", "accuracy_high"}  # of all classes
    lines: list[dict[str, Any]] = []
    for place, cells in enumerate(members):
        counts = [one.counts.model(model).merge_groups([cells]) for one in scores.by_class]
        rows, right = counts[0].rows.sum(), torch.stack([one.positive[0, 1] for one in counts]).sum()
        found = (right / rows.double(), *wilson_interval(right.double(), rows.double(), level))
        numbers = [json_number(value.item()) if scores.has_labels else None for value in found]
        by_class = [
            {"class": number} | {name: value for name, value in part[place].items() if name not in hidden}
            for number, part in enumerate(parts)
        ]
        line = dict(zip(("accuracy", "accuracy_low", "accuracy_high"), numbers, strict=True))
        lines.append({"rows": int(rows), **line, "classes": by_class})
    return lines


def _largest(limits: Iterable[float | None]) -> float | None:
    """Return the largest limit; ``None`` if one is not known, which may be larger."""
    values = [math.nan if limit is None else limit for limit in limits]
    return None if any(map(math.isnan, values)) else max(values)


def _with_interval(sample: RateSample, level: float) -> dict[str, Any]:
    low, high = gap_interval(sample, level)
    found = {"value": sample.gap, "low": low, "high": high}
    return {name: json_number(number.item()) for name, number in found.items()}


def _gap_change(
    samples: list[RateSample], correlation: Tensor, level: float, bounds: list[list[float]]
) -> GapChange:
    low, high = (end.item() for end in gap_difference_interval(samples[0], samples[1], correlation, level))
    change = GapChange(
        **_with_interval(samples[1], level),
        difference=json_number((samples[0].gap - samples[1].gap).item()),
        difference_low=json_number(low),
        difference_high=json_number(high),
        verdict=verdict_of(low, high),
    )
    if not bounds:
        return change
    (least, most), (other_least, other_most) = bounds
    return replace(
        change, bounds=[other_least, other_most], difference_bounds=[least - other_most, most - other_least]
    )


def _correlation(models: list[GroupCounts], both: GroupCounts, gap: Gap, mode: Mode) -> Tensor:
    """Return the correlation of the two models' decisions, or scores, within each group."""
    rows = by_condition(both.rows, gap).double()
    if mode == "hard":
        together, first, second = (by_condition(of.positive, gap).double() for of in (both, *models))
        return decision_correlation(together, first, second, rows)
    means, spreads = [], []
    for counts in models:
        sums, squares = (by_condition(part, gap) for part in counts.fields()[2:])
        means.append(sums / rows)
        spreads.append(squares / rows - means[-1].square())
    products = by_condition(both.fields()[2], gap)
    return mean_correlation(products / rows - means[0] * means[1], *spreads)


def _accuracy_difference(scores: Scores, level: float) -> dict[str, Any] | None:
    """Return the first model's accuracy minus the second's on all rows.

    A gap closes easily at the cost of right decisions, so a comparison of gaps alone would mislead.
    """
    if scores.num_models < 2 or not scores.has_labels:
        return None
    rows = int(scores.counts.rows.sum())
    if scores.by_class:  # a decision is right if it is positive for the true class
        right = torch.stack([one.counts.positive.sum(-2)[:, 1] for one in scores.by_class]).sum(0)
        first_right, second_right, both_right = right.tolist()
        only_first, only_second = first_right - both_right, second_right - both_right
    else:
        negatives = int(scores.counts.rows.sum(0)[0])
        first, second, both = scores.counts.positive.sum(-2).tolist()
        # A model alone is right if it alone accepts a positive, or if the other alone accepts a negative.
        only_first = first[1] - both[1] + second[0] - both[0]
        only_second = second[1] - both[1] + first[0] - both[0]
        both_right = both[1] + negatives - first[0] - second[0] + both[0]
    low, high = paired_difference_interval(only_first, only_second, rows, level)
    return {
        "value": (only_first - only_second) / rows,
        "low": json_number(low),
        "high": json_number(high),
        "verdict": verdict_of(low, high, LESS_ACCURATE, MORE_ACCURATE),
        "both_right": both_right,
        "only_first_right": only_first,
        "only_second_right": only_second,
        "both_wrong": rows - both_right - only_first - only_second,
    }


def _gap_bounds(counts: GroupCounts, unknown: GroupCounts, gap: Gap) -> list[float]:
    """Return the smallest and the largest gap that the rows of unknown group allow."""
    parts = (by_condition(part, gap).numpy() for of in (counts, unknown) for part in (of.rows, of.positive))
    found = [
        gap_bounds(n, x, int(rows[0]), int(positive[0])) for n, x, rows, positive in zip(*parts, strict=True)
    ]
    return [max(low for low, _ in found), max(high for _, high in found)]
