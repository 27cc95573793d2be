"""Puts the facts of one run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Any

from fairrf_lightning.callbacks.run_record import package_versions
from fairrf_lightning.report.audit_facts import (
    accuracy_against,
    audit_accuracy,
    audit_gaps,
    audit_groups,
    left_out,
    with_groups,
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
)
from fairrf_lightning.report.now import now
from fairrf_lightning.report.run_audit import audit_run
from fairrf_lightning.report.run_facts import configuration, data_facts, measured, training
from fairrf_lightning.report.run_folder import RunFolder
from fairrf_lightning.report.verdict import comparison_verdict, gaps_verdict, several_gaps, unmeasured_verdict
from fairrf_lightning.report.wording import LINEAR_ONLY

_NO_S = "The data do not say which group a row belongs to, so no gap can be measured."


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
    data, paths = data_facts(run), training(run)
    found = _measure(run, data, against, groups)
    gaps, accuracy = found.gaps, found.accuracy
    subject, other = _subject(run), "" if against is None else _subject(against)
    compared = accuracy_against(found.audit)
    if against is not None:
        verdict = comparison_verdict(gaps, other, accuracy, compared)
    else:
        verdict = gaps_verdict(gaps, accuracy) if gaps else unmeasured_verdict(accuracy, paths, certificate)
    return Facts(
        title=f"{run.path.name} on {run.data_name}",
        subject=subject,
        split=found.split,
        made=now(),
        verdict=with_groups(verdict, found.audit),
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
        absent=_absent(run, found.why),
        notes=[*several_gaps(gaps), *left_out(found.audit), LINEAR_ONLY],
    )


@dataclass(frozen=True)
class _Measured:
    split: str
    accuracy: Estimate | None
    gaps: Sequence[Gap]
    groups: Sequence[GroupRates]
    why: str  # there are no groups
    audit: Mapping[str, Any] = field(default_factory=lambda: {"groupings": []})


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
    return _Measured(split, audit_accuracy(audit), audit_gaps(audit), audit_groups(audit), "", audit)


def _subject(run: RunFolder) -> str:
    model = run.config.get("model") or {}
    options = model.get("init_args") or {}
    name = str(model.get("class_path", "model")).rpartition(".")[2]
    eta = options.get("eta")
    if eta is None:
        return name
    if eta == 0:
        return "vanilla"
    beta = (run.config.get("lambda_update") or {}).get("beta")
    return f"FairRF, eta {eta:g}" + ("" if beta is None else f", beta {beta:g}")


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


def _absent(run: RunFolder, why: str) -> dict[str, Absent]:
    checkpoint = run.best_checkpoint or run.path / "checkpoints" / "last.ckpt"
    options = f"--ckpt_path {quote(str(checkpoint))} --data {run.data_name}"
    certify = f"python train.py certify {options} --proxies proxies.yaml --output {run.path}/certificate.json"
    again = f"python train.py report {quote(str(run.path))}"
    return {
        "gaps": Absent(why, f"{certify}\n{again}"),
        "groups": Absent(why, f"python train.py audit {options}"),
        "comparison": Absent(
            "Nothing was named to compare with. Train a model without the penalty and name its run.",
            f"python train.py fit --data {run.data_name} --model.eta 0\n"
            f"{again} --against lightning_logs/version_N",
        ),
        "front": Absent(
            "One run is one point. A grid shows what other settings reach.",
            f"python train.py grid --data {run.data_name}\n{again} --grid grid_{run.data_name}",
        ),
        "training": Absent(
            "The run has no metrics.csv with lambda and penalties: it had another logger or another module.",
            f"python train.py fit --data {run.data_name} --trainer.logger csv",
        ),
        "certificate": Absent(
            "A bound on dDP that holds without S needs only published correlations of the related features "
            "with S, or a small sample where S is known.",
            f"{certify}\n{again}",
        ),
        "data": Absent("The run's data module is not one of ours, and run.json does not describe it."),
    }
