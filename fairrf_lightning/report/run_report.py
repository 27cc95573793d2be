"""Puts the facts of one run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fairrf_lightning.audit.analysis import notices
from fairrf_lightning.callbacks.run_files import package_versions
from fairrf_lightning.errors import DivergedError
from fairrf_lightning.load import RunFolder, read_checkpoint
from fairrf_lightning.notices import vanilla_notice
from fairrf_lightning.report.audit_facts import (
    accuracy_against,
    audit_accuracy,
    audit_gaps,
    audit_groups,
    audit_verdict,
    left_out,
)
from fairrf_lightning.report.commands import (
    certificate_commands,
    comparison_commands,
    grid_commands,
    logging_commands,
)
from fairrf_lightning.report.facts import (
    Absent,
    Certificate,
    Data,
    Estimate,
    Facts,
    Front,
    Gap,
    GroupRates,
    Point,
    Training,
    Verdict,
)
from fairrf_lightning.report.now import now
from fairrf_lightning.report.run_audit import audit_run
from fairrf_lightning.report.run_facts import configuration, data_facts, has_same_decision, measured, training
from fairrf_lightning.report.verdict import (
    gaps_verdict,
    same_decision_verdict,
    several_gaps,
    unmeasured_verdict,
    without_headline,
)
from fairrf_lightning.report.wording import LINEAR_ONLY

_NO_S = (
    "The data do not say which group a row belongs to, so no gap can be measured. If the table has a column "
    "of S, the option --groups names it."
)


def run_facts(
    run: RunFolder,
    front: Front | None = None,
    certificate: Certificate | None = None,
    against: RunFolder | None = None,
    groups: Sequence[str] = (),
) -> Facts:
    """Return the facts of a run.

    Args:
        run: The run's folder.
        front: Settings of a grid, to which the run's own point is added.
        certificate: What is certain of the run's checkpoint.
        against: Another run on the same rows.
        groups: Sensitive columns to audit; by default S of the data.
    """
    _check_finite(run)
    data, paths = data_facts(run), training(run)
    found = _measure(run, data, against, groups)
    gaps, accuracy = found.gaps, found.accuracy
    subject, other = _subject(run), "" if against is None else _subject(against)
    if against is not None and other == subject:  # tell two runs with the same options apart
        other = f"{other} ({against.path.name})"
    compared = accuracy_against(found.audit) if found.audit else None
    verdict = _verdict(run, found, other, paths, certificate)
    return Facts(
        title=f"{run.path.name} on {run.data_name}",
        subject=subject,
        split=found.split,
        made=now(),
        verdict=verdict,
        accuracy=accuracy,
        other=other,
        accuracy_against=compared,
        gaps=gaps,
        groups=found.groups,
        fronts=[] if front is None else [_with_run(front, subject, accuracy, gaps)],
        training=paths,
        certificate=certificate,
        data=data,
        configuration=configuration(run.config),
        versions=run.record.get("versions") or package_versions(),
        absent=_absent(run, found, data),
        notes=[*several_gaps(gaps), *(left_out(found.audit) if found.audit else []), LINEAR_ONLY],
        notices=without_headline(_notices(run, against, found), verdict),
    )


def _check_finite(run: RunFolder) -> None:
    checkpoint = run.best_checkpoint
    weights = {} if checkpoint is None else read_checkpoint(checkpoint).get("state_dict", {})
    for name, value in weights.items():
        if isinstance(value, torch.Tensor) and not bool(value.isfinite().all()):
            raise DivergedError(
                f"{checkpoint}: its weights are not finite ({name}), so there is nothing to report. "
                "Train again, for example with a lower --model.lr."
            )


def _verdict(
    run: RunFolder, found: _Measured, other: str, paths: Training | None, certificate: Certificate | None
) -> Verdict:
    if found.audit and found.gaps:
        return audit_verdict(found.audit, other)
    against = accuracy_against(found.audit) if found.audit else None
    if has_same_decision(run.metrics):
        return same_decision_verdict(found.accuracy, against)
    if found.gaps:
        return gaps_verdict(found.gaps, found.accuracy)
    return unmeasured_verdict(found.accuracy, paths, certificate, against)


def _notices(run: RunFolder, against: RunFolder | None, found: _Measured) -> list[str]:
    """Return what ``fit`` noted at its end, and what the checkpoints and rows show."""
    noted = run.record.get("notices")
    lines = [str(line) for line in noted] if isinstance(noted, list) else []
    lines += [
        str(vanilla_notice(_eta(of), 0, str(of.path)))
        for of in (run, against)
        if of and _was_never_penalised(of)
    ]
    noted_text = "\n".join(lines).casefold()
    audited = notices(found.audit) if found.audit else ()
    return [*lines, *(line for line in audited if line.rstrip(".").casefold() not in noted_text)]


@dataclass(frozen=True)
class _Measured:
    split: str
    accuracy: Estimate | None
    gaps: Sequence[Gap]
    groups: Sequence[GroupRates]
    why: str  # there are no groups
    audit: Mapping[str, Any] | None = None


def _measure(
    run: RunFolder, data: Data | None, against: RunFolder | None, groups: Sequence[str]
) -> _Measured:
    """Audit the best checkpoint; where that cannot be, take what the run logged."""
    split, accuracy, gaps = measured(run.metrics, (data.sensitive if data else None) or "S")
    if not groups and against is None and (data is None or data.sensitive is None):
        return _Measured(split, accuracy, gaps, [], _NO_S)
    audit = audit_run(run, against, groups)
    if isinstance(audit, Absent):
        return _Measured(split, accuracy, gaps, [], audit.reason)
    split = f"test split, {audit['rows']:,} rows"
    why = "" if audit["groupings"] else _NO_S
    return _Measured(split, audit_accuracy(audit), audit_gaps(audit), audit_groups(audit), why, audit)


def _subject(run: RunFolder) -> str:
    model = run.config.get("model") or {}
    options = model.get("init_args") or {}
    name = str(model.get("class_path", "model")).rpartition(".")[2]
    eta = options.get("eta")
    if eta is None:
        return name
    if eta == 0:
        return "vanilla"
    if _was_never_penalised(run):
        return f"vanilla (eta {eta:g} never acted)"
    beta = (run.config.get("lambda_update") or {}).get("beta")
    return f"FairRF, eta {eta:g}" + ("" if beta is None else f", beta {beta:g}")


def _eta(run: RunFolder) -> float:
    options = (run.config.get("model") or {}).get("init_args") or {}
    return float(options.get("eta") or 0)


def _was_never_penalised(run: RunFolder) -> bool:
    """Return whether the checkpoint says that the penalty was on in no step, although eta is above 0."""
    checkpoint = run.best_checkpoint
    if checkpoint is None or not _eta(run) > 0:
        return False
    state = read_checkpoint(checkpoint).get("state_dict", {}).get("penalty._extra_state")
    return isinstance(state, dict) and state.get("penalised_steps") == 0


def _with_run(front: Front, subject: str, accuracy: Estimate | None, gaps: Sequence[Gap]) -> Front:
    """Add the run to a grid's settings; what the grid had chosen is marked by other words."""
    points = [
        replace(point, mark="the grid's choice") if point.mark == "chosen" else point
        for point in front.points
    ]
    if accuracy is not None and gaps:
        sizes = {
            gap.name: gap.estimate.value for gap in gaps if gap.mode == "hard" and gap.name in ("dEO", "dDP")
        }
        points.append(Point("this run", subject, accuracy.value, sizes, mark="chosen", is_single=True))
    rule = f"{front.rule} The ring is this run: one model on its own split, not a mean over seeds.".strip()
    return Front(front.title, points, rule)


def _absent(run: RunFolder, found: _Measured, data: Data | None) -> dict[str, Absent]:
    certify = certificate_commands(run)
    has_groups = found.why != _NO_S
    front = "One run is one point. A grid shows what other settings reach"
    return {
        "gaps": Absent(found.why, "" if has_groups else certify),
        "groups": Absent(found.why),
        "comparison": Absent(
            "Nothing was named to compare with. Train the counterpart, with or without the penalty.",
            comparison_commands(run),
        ),
        "front": Absent(f"{front}.", grid_commands(run))
        if has_groups and data is not None and data.sensitive is not None
        else Absent(f"{front}, by their gaps; these data have no S to measure them by."),
        "training": Absent(
            "The run has no metrics.csv with lambda and penalties: it had another logger or another module.",
            logging_commands(run),
        ),
        "certificate": Absent(_certificate_reason(certify), certify),
        "data": Absent("The run's data module is not one of ours, and run.json does not describe it."),
    }


def _certificate_reason(commands: str) -> str:
    needs = (
        "A bound on dDP that holds without S needs only published correlations of some columns with S, or a "
        "small sample where S is known."
    )
    if not commands:
        return f"{needs} It also needs a checkpoint of this package and its data, which are not there."
    return f"{needs} Fill in the file that the first command writes before you run the second."
