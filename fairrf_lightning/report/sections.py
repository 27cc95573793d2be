"""The sections of a report. A new section is one function here and one line in :data:`SECTIONS`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fairrf_lightning.audit.result import (
    FAIRER,
    LESS_ACCURATE,
    LESS_FAIR,
    MORE_ACCURATE,
    NO_DIFFERENCE,
    NOT_ESTIMABLE,
)
from fairrf_lightning.messages import DASH, percent, points
from fairrf_lightning.report.facts import Absent, Estimate, Facts, Front, Point, Tone
from fairrf_lightning.report.figures import (
    Plot,
    Table,
    certificate_plot,
    certified_range,
    forest,
    front_plots,
    group_bars,
    pareto_points,
    short,
    training_plots,
)
from fairrf_lightning.report.text import (
    MODES,
    gap_definition,
    gap_name,
    interval,
    is_gap,
    number,
)

_MAX_TILES = 6  # with more gaps, only those of the first attribute have a tile
_SMALL_GAP = (
    "A small gap means that rates are close. It does not mean that decisions are just, that the labels are "
    "correct, or that nobody within a group is harmed."
)
_NOISE = "Intervals cover the noise of these rows. They do not cover people whom the data do not represent."
_TONES: dict[str, Tone] = {
    FAIRER: "good",
    MORE_ACCURATE: "good",
    LESS_FAIR: "bad",
    LESS_ACCURATE: "bad",
    NO_DIFFERENCE: "mixed",
    NOT_ESTIMABLE: "unknown",
}


@dataclass(frozen=True)
class Tile:
    """A number in a box: its label, its value, its interval, a few words, and the tone of its border."""

    label: str
    value: str
    interval: str
    note: str = ""
    tone: Tone | None = None


@dataclass(frozen=True)
class Section:
    """One section of a report; the page and the model card render the same sections.

    Args:
        name: Its id on the page.
        title: Its heading.
        text: Paragraphs.
        tiles: Numbers in boxes.
        plots: Plots; the card leaves them out.
        tables: Tables.
        pairs: Names and values.
        points: A list of sentences.
        steps: What is missing, each with the command that provides it.
        tone: Colour of the verdict; other sections have no tone.
    """

    name: str
    title: str
    text: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    pairs: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[str] = ()
    steps: Sequence[Absent] = ()
    tone: Tone | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the section only says why it is empty."""
        return not (self.text or self.tiles or self.plots or self.tables or self.pairs or self.points)


def notices_section(facts: Facts) -> Section | None:
    """Notices to read before any number."""
    if not facts.notices:
        return None
    return Section("notices", "Read this first", points=facts.notices, tone="mixed")


def verdict_section(facts: Facts) -> Section:
    """The headline, with the main numbers."""
    verdict = facts.verdict
    tiles = _main_numbers(facts)
    return Section("verdict", verdict.title, tiles=tiles, points=verdict.sentences, tone=verdict.tone)


def unknown_section(facts: Facts) -> Section | None:
    """Limits of data without groups, and two ways to overcome them."""
    if not facts.next_steps:
        return None
    text = (
        "The data do not contain the sensitive attribute S, such as sex or race. Whether decisions differ "
        "between its groups can therefore not be measured. A small dependence on the related features does "
        "not prove that they do not differ. If a column of the table has the groups, name it by --groups."
    )
    change = "Otherwise two things would change that:"
    return Section("unknown", "What cannot be known from these data", [text, change], steps=facts.next_steps)


def gaps_section(facts: Facts) -> Section | None:
    """Gaps with their intervals."""
    title = "Gaps between groups"
    if facts.next_steps:
        return None  # unknown_section has it
    if not facts.gaps:
        return _empty("gaps", title, facts)
    text = (
        "A gap is the largest difference of a rate between two groups. If its interval reaches 0, these rows "
        "are compatible with no gap. If it does not, the gap is beyond the noise of these rows."
    )
    is_drawn = any(gap.estimate.is_known for gap in facts.gaps)
    if not is_drawn:
        text = "No gap is estimable from these rows; the verdict says why."
    labels = dict.fromkeys(gap.name for gap in facts.gaps)
    definitions = [f"{label}, {gap_name(label)}: {gap_definition(label)}." for label in labels]
    plots = [forest(facts)] if is_drawn else []
    return Section("gaps", title, [text], plots=plots, tables=[_gaps_table(facts)], points=definitions)


def groups_section(facts: Facts) -> Section | None:
    """Rates of each group."""
    title = "Rates of each group"
    if facts.next_steps:
        return None
    if not facts.groups:
        return _empty("groups", title, facts)
    rates = list(dict.fromkeys(rate for row in facts.groups for rate in row.rates))
    notes = any(row.note for row in facts.groups)
    heading = ["attribute", "group", "rows", *(f"{rate}, %" for rate in rates), *(["note"] if notes else [])]
    rows = []
    for row in facts.groups:
        shown = [_with_interval(row.rates.get(rate)) for rate in rates]
        rows.append([row.scope, row.group, f"{row.rows:,}", *shown, *([row.note] if notes else [])])
    table = Table("All rates as a table", heading, rows)
    text = "The lines on the bars are 95 % intervals."
    return Section("groups", title, [text], plots=group_bars(facts.groups), tables=[table])


def comparison_section(facts: Facts) -> Section | None:
    """Differences from the compared model."""
    title = "Comparison with another model"
    if not facts.other:
        return _empty("comparison", title, facts)
    text = f"{facts.subject} compared with {facts.other}."
    if facts.gaps:
        text += " A negative change of a gap is a smaller gap."
    if any(gap.mode == "prob" and gap.difference for gap in facts.gaps):
        text += (
            " These are gaps of decisions. Gaps of probabilities are in the table above; they also shrink "
            "when a model only moves all its probabilities closer together."
        )
    tiles = []
    if facts.accuracy is not None and facts.accuracy_against is not None:
        against = facts.accuracy_against
        values = f"{percent(facts.accuracy.value)} against {percent(against.other.value)}"
        tiles.append(_change(f"accuracy \N{MIDDLE DOT} {values}", against.difference, against.change))
    for gap in facts.gaps:
        if gap.difference is not None and gap.mode == "hard":
            label = f"{gap.name} \N{MIDDLE DOT} {short(gap.scope, 40)}"
            tiles.append(_change(label, gap.difference, gap.change or NOT_ESTIMABLE))
    return Section("comparison", title, [text], tiles=tiles)


def dependence_section(facts: Facts) -> Section | None:
    """The penalty R of each related feature, compared with the other model's."""
    training, found = facts.training, {of.feature: of for of in facts.dependences}
    columns: dict[str, Mapping[str, str]] = {}
    text = (
        "The penalty R of a related feature measures how strongly the predictions follow it (by default, the "
        "absolute covariance). FairRF lowers R; 0 is no linear dependence."
    )
    if found:
        columns["this model"] = {name: f"{of.value:.4f}" for name, of in found.items()}
        others = {name: of for name, of in found.items() if of.other is not None}
        if others:
            columns[facts.other] = {name: f"{of.other:.4f}" for name, of in others.items()}
            columns["change"] = {
                name: percent(of.value / of.other - 1, 0).replace("-", "\N{MINUS SIGN}") if of.other else DASH
                for name, of in others.items()
            }
            lower = sum(of.value < (of.other or 0) for of in others.values())
            text += f" R is lower than that of {facts.other} for {lower} of {len(others)} related features."
        else:
            text += " To see its effect, compare with a vanilla model: the section on comparison says how."
        title = f"Penalty R of each related feature, {facts.split}"
    elif training is not None and training.penalties:
        values = {of.feature: of.at(training.chosen_epoch) for of in training.penalties}
        columns["chosen checkpoint"] = {name: _decimal(value) for name, value in values.items()}
        title = "Penalty R of each related feature, validation split"
    else:
        return None
    names = list(next(iter(columns.values())))
    rows = [(name, *(of.get(name, DASH) for of in columns.values())) for name in names]
    table = Table(title, ("related feature", *columns), rows, is_folded=False)
    return Section("dependence", "Dependence on the related features", [text], tables=[table])


def front_section(facts: Facts) -> Section | None:
    """Accuracy against the gaps of many settings."""
    title = "Accuracy against fairness"
    plots = front_plots(facts.fronts)
    if not plots:
        return _empty("front", title, facts)
    rules = dict.fromkeys(front.rule for front in facts.fronts if front.rule)
    return Section("front", title, [*rules], plots=plots, tables=[_front_table(of) for of in facts.fronts])


def training_section(facts: Facts) -> Section | None:
    """Lambda and the penalties over training."""
    title = "Training"
    if facts.training is None:
        return _empty("training", title, facts)
    training = facts.training
    text = ["Lambda is the weight of each related feature in the penalty."]
    if training.chosen_epoch is not None and training.chosen_epoch >= 0:
        text.append(f"The checkpoint of epoch {training.chosen_epoch} was chosen, by {training.rule}.")
    of_what = (("lambda", training.weights), ("penalty R, validation rows", training.penalties))
    histories = [(name, history) for name, found in of_what for history in found]
    rows = [(of.feature, name, f"{of.values[0]:.4f}", f"{of.values[-1]:.4f}") for name, of in histories]
    ends = [f"epoch {histories[0][1].epochs[end]}" for end in (0, -1)] if histories else ["first", "last"]
    table = Table("First and last epoch of this run", ("related feature", "", *ends), rows)
    return Section("training", title, [" ".join(text)], plots=training_plots(training), tables=[table])


def certificate_section(facts: Facts) -> Section | None:
    """The certified bound on dDP."""
    title = "Certificate without the sensitive attribute"
    found = facts.certificate
    if found is None:
        return None if facts.next_steps else _empty("certificate", title, facts)
    known = found.knowledge
    text = (
        f"{found.claim}. The bound does not need S of these rows, only the correlations of a few columns "
        f"with S: {known.source}. It compares {known.group} with all other rows together"
    )
    text += ", while the gaps above compare single groups: the two can differ." if facts.gaps else "."
    bound = [found.rows[mode] for mode in MODES]
    certified = [
        ("dDP at most", *(number(Estimate(of.bound)) for of in bound)),
        ("certified range of the difference", *map(certified_range, bound)),
    ]
    bounds = [
        (row["by what is used"], *(number(Estimate(row[words])) for words in MODES.values()))
        for row in found.bounds_table().to_dict("records")
    ]
    heading = ("largest dDP, by what is used", *MODES.values())
    correlations = found.knowledge_table()
    knowledge = correlations.columns.tolist(), correlations.to_numpy().tolist()
    tables = [
        Table("Certified bounds, points", heading, [*bounds, *certified]),
        Table(f"Known about {known.group}", *knowledge),
    ]
    plots, statements = [certificate_plot(found)], list(found.statements())
    return Section("certificate", title, [text], plots=plots, tables=tables, points=statements)


_SOURCES = {
    "survey": "a survey",
    "correlations": "published correlations",
    "column": "a column of probabilities",
}
_NAMED = (
    "Related features were named by the user; that they are associated with S was not checked here. The "
    "command suggest measures it where S is known for some rows."
)
_ESTIMATED = "The penalty saw the estimated probability of S instead of related features; it is not an input."


def data_section(facts: Facts) -> Section | None:
    """The data set, its splits and its columns."""
    title = "Data and columns"
    data = facts.data
    if data is None:
        return _empty("data", title, facts)
    pairs = {"data": data.name} | {f"{part} rows": f"{rows:,}" for part, rows in data.rows.items()}
    pairs["sensitive attribute S"] = data.sensitive or "not in the data"
    if data.groups:
        pairs["groups compared"] = ", ".join(data.groups)
    if data.membership is None:
        pairs["related features, as named by the user"] = ", ".join(data.related) or "none"
    else:
        pairs["column of the penalty"] = f"membership in the groups, from {_SOURCES[data.membership]}"
    columns = [
        (name, ", ".join(inputs), str(len(inputs)), "yes" if name in data.related else "no")
        for name, inputs in data.columns.items()
    ]
    note = _NAMED if data.membership is None else _ESTIMATED
    heading = ("column", "encoded as", "inputs", "named as related")
    table = [Table(f"{len(columns)} columns are inputs of the model", heading, columns)] if columns else []
    return Section("data", title, [f"{data.use_of_sensitive} {note}"], tables=table, pairs=pairs)


def configuration_section(facts: Facts) -> Section | None:
    """The options that were set."""
    if not facts.configuration:
        return _empty("configuration", "Configuration", facts)
    options = list(facts.configuration.items())
    table = Table(f"{len(options)} options", ("option", "value"), options)
    return Section("configuration", "Configuration", tables=[table])


def versions_section(facts: Facts) -> Section | None:
    """Versions of the packages that trained the model."""
    if not facts.versions:
        return _empty("versions", "Versions", facts)
    return Section("versions", "Versions", pairs=facts.versions)


def limits_section(facts: Facts) -> Section:
    """Limitations of these numbers."""
    return Section("limits", "Limitations", points=[*facts.limits, _SMALL_GAP, _NOISE])


SECTIONS: tuple[Callable[[Facts], Section | None], ...] = (
    notices_section,
    verdict_section,
    gaps_section,
    groups_section,
    dependence_section,
    unknown_section,
    comparison_section,
    front_section,
    training_section,
    certificate_section,
    limits_section,
    data_section,
    configuration_section,
    versions_section,
)


def sections(facts: Facts) -> list[Section]:
    """Return the sections of a report, in order."""
    return [section for make in SECTIONS if (section := make(facts)) is not None]


def _empty(name: str, title: str, facts: Facts) -> Section | None:
    """Return a section that says why it is empty; ``None`` if that would tell the reader nothing."""
    why = facts.absent.get(name)
    return None if why is None else Section(name, title, steps=[why])


def _main_numbers(facts: Facts) -> list[Tile]:
    tiles = []
    if facts.accuracy is not None:
        tiles.append(_share("accuracy", facts.accuracy, "share of correct decisions"))
    if facts.positive_share is not None:
        other = facts.other_positive_share
        note = "" if other is None else f"{facts.other}: {percent(other.value)}"
        tiles.append(_share("positive decisions", facts.positive_share, note))
    gaps = [gap for gap in facts.gaps if gap.mode == "hard"]
    several = len({gap.scope for gap in gaps}) > 1
    if len(gaps) > _MAX_TILES:
        gaps = [gap for gap in gaps if gap.scope == gaps[0].scope]
    for gap in gaps:
        label = f"{gap.name} \N{MIDDLE DOT} {short(gap.scope, 40)}" if several else gap.name
        tiles.append(Tile(label, points(gap.estimate.value), _ends(gap.estimate), gap_name(gap.name)))
    return tiles


def _share(label: str, estimate: Estimate, note: str) -> Tile:
    return Tile(label, percent(estimate.value), _ends(estimate), note)


def _change(label: str, difference: Estimate, change: str) -> Tile:
    value = points(difference.value, signed=True)
    return Tile(label, value, _ends(difference, signed=True), change, _TONES[change])


def _ends(estimate: Estimate, *, signed: bool = False) -> str:
    if not estimate.has_interval:
        return "no interval" if estimate.is_known else NOT_ESTIMABLE
    return f"95 %: {interval(estimate, signed=signed)}"


def _with_interval(estimate: Estimate | None) -> str:
    if estimate is None or not estimate.has_interval:
        return number(estimate)
    return f"{number(estimate)} ({interval(estimate, 2)})"


def _gaps_table(facts: Facts) -> Table:
    compared = any(gap.other is not None for gap in facts.gaps)
    notes = any(gap.note for gap in facts.gaps)
    heading = ["gap", "of", "attribute", "points", "95 % interval"]
    if compared:
        heading += [facts.other, "change", "95 % interval of the change", "verdict"]
    rows = []
    for gap in facts.gaps:
        row = [gap.name, MODES[gap.mode], gap.scope, number(gap.estimate), interval(gap.estimate, 2)]
        if compared:
            change = gap.difference or Estimate(math.nan)
            row += [number(gap.other), number(change, signed=True), interval(change, 2, signed=True)]
            row.append(gap.change or "")
        rows.append([*row, gap.note] if notes else row)
    return Table("Gaps as a table", [*heading, "note"] if notes else heading, rows)


def _front_table(front: Front) -> Table:
    gaps = list(dict.fromkeys(name for point in front.points for name in point.gaps))
    best = {gap: pareto_points(front.points, gap) for gap in gaps}
    heading = ["method", "setting", "accuracy, %"]
    heading += [f"{gap}, points" if is_gap(gap) else gap for gap in gaps]
    rows = []
    for point in front.points:
        values = {"accuracy": point.accuracy} | {gap: point.gaps.get(gap, math.nan) for gap in gaps}
        shown = [_spread(point, key, value) for key, value in values.items()]
        on_front = ", ".join(gap for gap in gaps if point in best[gap])
        rows.append([point.series, point.label, *shown, on_front, point.mark])
    return Table(front.title, [*heading, "on the Pareto front of", ""], rows)


def _spread(point: Point, key: str, value: float) -> str:
    scale, digits = (100, 2) if key == "accuracy" or is_gap(key) else (1, 4)
    spread = point.spread.get(key, math.nan)
    text = f"{scale * value:.{digits}f}"
    return text if math.isnan(spread) else f"{text} ± {scale * spread:.{digits}f}"


def _decimal(value: float | None) -> str:
    return DASH if value is None or math.isnan(value) else f"{value:.4f}"
