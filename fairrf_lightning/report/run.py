"""Facts of one run of ``fit``, from its folder and, where possible, from the audit of its checkpoint."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from fairrf_lightning.audit.result import notices, uninformative
from fairrf_lightning.callbacks.run_files import package_versions
from fairrf_lightning.errors import DivergedError
from fairrf_lightning.files import is_address
from fairrf_lightning.load import RunFolder
from fairrf_lightning.messages import shell_command
from fairrf_lightning.metrics.counts import GAPS
from fairrf_lightning.metrics.decisions import no_information
from fairrf_lightning.notices import vanilla_name, vanilla_notice
from fairrf_lightning.presets import import_class
from fairrf_lightning.report.audit import audit_facts, certificate_commands, two_classes_only
from fairrf_lightning.report.facts import (
    Absent,
    DataFacts,
    Dependence,
    Estimate,
    Facts,
    Front,
    History,
    MeasuredGap,
    Point,
    Training,
    by_column,
    data_name,
    estimate,
    use_of_sensitive,
)
from fairrf_lightning.report.text import (
    LINEAR_ONLY,
    NO_GROUPS,
    gaps_verdict,
    no_information_verdict,
    now,
    several_gaps,
    unmeasured_verdict,
    with_collapse,
    without_headline,
)

if TYPE_CHECKING:
    from fairrf_lightning.certificate import Certificate

_OURS = "fairrf_lightning."
_NAME_GROUPS = f"{NO_GROUPS} If the table has a column with the groups, name it by --groups."


@dataclass(frozen=True)
class RunAudit:
    """Evaluation of a run's checkpoint on its test rows.

    Args:
        audit: The audit, as in ``audit.json``; ``None`` if the checkpoint could not be evaluated.
        dependences: The penalty R of each related feature.
        reason: Why there is no audit.
    """

    audit: Mapping[str, Any] | None = None
    dependences: Sequence[Dependence] = ()
    reason: str = ""


def run_facts(
    run: RunFolder,
    found: RunAudit,
    *,
    against: RunFolder | None = None,
    front: Front | None = None,
    certificate: Certificate | None = None,
) -> Facts:
    """Return the facts of a run; without an evaluation of its checkpoint, the logged numbers.

    Args:
        run: The run's folder.
        found: The evaluation.
        against: The run that it was compared with.
        front: Settings of a grid, to which the run is added.
        certificate: The certificate of the run's checkpoint.
    """
    audit, data, training = found.audit, _data(run), _training(run)
    subject, other = _subject(run), "" if against is None else _subject(against)
    if against is not None and other == subject:  # two runs with the same options
        other = f"{other} ({against.path.name})"
    if audit is None:
        why, measured = _logged(run.metrics, (data.sensitive if data else None) or "S")
    else:
        why, measured = uninformative(audit["overall"]), audit_facts(audit, other)
    verdict, accuracy, gaps = measured.verdict, measured.accuracy, measured.gaps
    if not (gaps or why):
        verdict = unmeasured_verdict(
            accuracy,
            training,
            certificate,
            against=measured.accuracy_against,
            dependences=found.dependences,
            other=other,
        )
    has_groups = bool(gaps or (audit is None and found.reason))
    return replace(
        measured,
        title=f"{run.name} on {_data_name(run)}",
        subject=subject,
        verdict=verdict,
        other=other,
        dependences=found.dependences,
        fronts=[] if front is None else [_with_run(front, subject, accuracy, gaps)],
        training=training,
        certificate=certificate,
        data=data,
        configuration={name: str(value) for name, value in _flat(run.config) if value is not None},
        versions=run.record.get("versions") or package_versions(),
        absent=_absent(run, found.reason or _NAME_GROUPS, data, has_groups=has_groups)
        | two_classes_only(audit or {}),
        next_steps=[] if has_groups or certificate is not None else _next_steps(run),
        notices=without_headline(_notices(run, against, audit), verdict),
    )


def check_finite(run: RunFolder) -> None:
    """Raise if the weights of the run's checkpoint are not finite.

    Raises:
        DivergedError: If they are not.
    """
    for name, value in run.checkpoint.get("state_dict", {}).items():
        if isinstance(value, torch.Tensor) and not bool(value.isfinite().all()):
            raise DivergedError(
                f"{run.best_checkpoint}: its weights are not finite ({name}), so there is nothing to report. "
                "Train again, for example with a lower --model.lr."
            )


# --- from the files of a run


def _logged(metrics: pd.DataFrame, scope: str) -> tuple[str, Facts]:
    """Return why the gaps carry no information, if so, and the facts that were logged last."""
    why, split, accuracy, share = "", "no split", None, Estimate(math.nan)
    balanced = share
    gaps: list[MeasuredGap] = []
    for stage, words in (("val", "validation split, last epoch"), ("test", "test split")):
        if f"{stage}_acc" not in metrics or metrics[f"{stage}_acc"].isna().all():
            continue
        last = metrics[metrics[f"{stage}_acc"].notna()].iloc[-1]
        split, accuracy = words, estimate(last, f"{stage}_acc")
        share, balanced = (estimate(last, f"{stage}_{name}") for name in ("positive_share", "balanced_acc"))
        why = no_information(share.value, balanced.value)
        gaps = [
            MeasuredGap(gap.label, scope, estimate(last, f"{stage}_{gap.key}"))
            for gap in GAPS.values()
            if f"{stage}_{gap.key}" in last.index and pd.notna(last[f"{stage}_{gap.key}_low"])
        ]
    verdict = no_information_verdict(why, accuracy) if why else gaps_verdict(gaps, accuracy)
    unknown = (math.nan, math.nan)
    return why, Facts(
        title="",
        subject="",
        split=split,
        made=now(),
        verdict=with_collapse(verdict, (share.value, balanced.value), unknown, ""),
        accuracy=accuracy,
        positive_share=share if share.is_known else None,
        gaps=gaps,
        limits=[*several_gaps(gaps), LINEAR_ONLY],
    )


def _training(run: RunFolder) -> Training | None:
    """Return lambda and the penalties over the epochs, if they were logged to ``metrics.csv``."""
    weights, penalties = (list(_histories(run.metrics, f"{name}/")) for name in ("lambda", "penalty"))
    if not weights and not penalties:
        return None
    chosen = int(run.checkpoint.get("epoch", -1)) if run.checkpoint else None
    monitor = (run.config.get("checkpoint") or {}).get("monitor")
    return Training(weights, penalties, chosen, f"the best {monitor}" if monitor else "the last epoch")


def _histories(metrics: pd.DataFrame, prefix: str) -> Iterator[History]:
    for column in metrics.columns:
        if str(column).startswith(prefix):
            rows = metrics[metrics[column].notna()].drop_duplicates("epoch", keep="last")
            name = str(column).removeprefix(prefix)
            yield History(name, rows["epoch"].astype(int).tolist(), rows[column].astype(float).tolist())


def _data(run: RunFolder) -> DataFacts | None:
    """Return the data that ``run.json`` describes; ``None`` for a foreign data module."""
    record = run.record
    if "columns" not in record:
        return None
    state: Mapping[str, Any] = run.checkpoint.get(str(record.get("data")), {})
    return DataFacts(
        name=_data_name(run),
        rows=record["rows"],
        columns=by_column(record["columns"], list(state.get("columns", ()))),
        related=[] if record.get("membership") else list(record["related"]),
        sensitive=record["sensitive"],
        groups=record["groups"],
        use_of_sensitive=use_of_sensitive(record),
        membership=record.get("membership"),
    )


def _data_name(run: RunFolder) -> str:
    return data_name(run.data_name, _options(run, "data").get("path"))


def _subject(run: RunFolder) -> str:
    eta = _options(run, "model").get("eta")
    if eta is None:
        return str((run.config.get("model") or {}).get("class_path", "model")).rpartition(".")[2]
    if eta == 0 or _was_never_penalised(run):
        return vanilla_name(eta)
    beta = (run.config.get("lambda_update") or {}).get("beta")
    return f"FairRF, eta {eta:g}" + ("" if beta is None else f", beta {beta:g}")


def _was_never_penalised(run: RunFolder) -> bool:
    """Return whether the penalty was off in every step although eta is above 0."""
    state = run.checkpoint.get("state_dict", {}).get("penalty._extra_state")
    has_eta = (_options(run, "model").get("eta") or 0) > 0
    return has_eta and isinstance(state, dict) and state.get("penalised_steps") == 0


def _notices(run: RunFolder, against: RunFolder | None, audit: Mapping[str, Any] | None) -> list[str]:
    """Return the notices of ``fit``, of the checkpoints and of the audit."""
    noted = run.record.get("notices")
    lines = [str(line) for line in noted] if isinstance(noted, list) else []
    for of in (run, against):
        if of is not None and _was_never_penalised(of) and not (of is run and lines):
            lines.append(str(vanilla_notice(float(_options(of, "model")["eta"]), 0, str(of.path))))
    text = "\n".join(lines).casefold()
    audited = () if audit is None else notices(audit)
    return [*lines, *(line for line in audited if line.rstrip(".").casefold() not in text)]


def _options(run: RunFolder, key: str) -> Mapping[str, Any]:
    return (run.config.get(key) or {}).get("init_args") or {}


def _flat(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(config, Mapping) and config:
        for key, value in config.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, config


def _with_run(front: Front, subject: str, accuracy: Estimate | None, gaps: Sequence[MeasuredGap]) -> Front:
    """Add the run to a grid's settings, as the chosen one."""
    points = [
        replace(point, mark="the grid's choice") if point.mark == "chosen" else point
        for point in front.points
    ]
    shown = front.points[0].gaps if front.points else {}
    if accuracy is not None and gaps:
        sizes = {gap.name: gap.estimate.value for gap in gaps if gap.mode == "hard" and gap.name in shown}
        points.append(Point("this run", subject, accuracy.value, sizes, mark="chosen", is_single=True))
    rule = f"{front.rule} The ring is this run: one model on its own split, not a mean over seeds.".strip()
    return Front(front.title, points, rule)


# --- sections without facts, and the commands that provide them


def _absent(run: RunFolder, reason: str, data: DataFacts | None, *, has_groups: bool) -> dict[str, Absent]:
    certify = _certify(run)
    has_s = has_groups and data is not None and data.sensitive is not None
    grid = {"front": Absent("One run is one point. A grid shows other settings.", _grid_commands(run))}
    return {
        **(grid if has_s else {}),
        "gaps": Absent(reason),
        "groups": Absent(reason),
        "comparison": Absent(
            "No other model was given. Train the counterpart, with or without the penalty, and compare.",
            _comparison_commands(run),
        ),
        "training": Absent(
            "The run has no metrics.csv with lambda and penalties: it used another logger or another module.",
            _logging_commands(run),
        ),
        "certificate": Absent(
            "A bound on dDP without S needs published correlations of some columns with S, or a survey in "
            "which S is known. "
            + (
                "Complete the file that the first command writes, then run the second."
                if certify
                else "It also needs a checkpoint of this package and its data, which are not available."
            ),
            certify,
        ),
        "data": Absent("The run's data module is not one of ours, and run.json does not describe it."),
    }


def _next_steps(run: RunFolder) -> list[Absent]:
    """Return the two ways to learn something about groups without S in the data."""
    if not (certify := _certify(run)):
        return []
    return [
        Absent(
            "1. Published correlations. If a census or a study reports how some of your columns correlate "
            "with S, enter the numbers in the file that the first command writes. The second command then "
            "bounds the gap of this model without S.",
            certify,
        ),
        Absent(
            "2. A survey. Collect S for a few hundred people, with the same columns as the data, in a file "
            "survey.csv. Then run the second command with --audit_sample survey.csv --sensitive COLUMN in "
            "place of --proxies. The command suggest ranks the columns by their association with S."
        ),
    ]


def _certify(run: RunFolder) -> str:
    checkpoint = run.best_checkpoint
    return "" if checkpoint is None or not _can_run(run) else certificate_commands(run.path, checkpoint)


def _comparison_commands(run: RunFolder) -> str:
    """Return the commands that train the counterpart, with or without the penalty, and compare."""
    options = _options(run, "model")
    if not _can_run(run) or "eta" not in options:
        return ""
    # With null, the data set's own eta is used.
    eta, name = ("null", "penalised") if options["eta"] == 0 else ("0", "vanilla")
    again = shell_command(*_fit_again(run, name), f"--model.eta={eta}")
    return f"{again}\n{shell_command('report', run.path, '--against', run.path / name / 'version_0')}"


def _logging_commands(run: RunFolder) -> str:
    """Return the commands that train the run again with the CSV logger and report it."""
    if not _can_run(run):
        return ""
    again = shell_command(*_fit_again(run, "logged"))
    return f"{again}\n{shell_command('report', run.path / 'logged' / 'version_0')}"


def _grid_commands(run: RunFolder) -> str:
    """Return the commands that train a grid on the run's data and report the run with it."""
    data, folder = run.config.get("data") or {}, run.path / "grid"
    if not _can_run(run) or not str(data.get("class_path")).startswith(_OURS):
        return ""
    grid = shell_command("grid", *_data_options(run.data_name, data), "--out", folder)
    return f"{grid}\n{shell_command('report', run.path, '--grid', folder)}"


def _data_options(name: str, data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that select a data module of this package, without defaults."""
    yield f"--data={name}"
    defaults: dict[str, Any] = {}
    for cls in reversed(import_class(str(data["class_path"])).__mro__[:-1]):
        defaults |= {key: one.default for key, one in inspect.signature(cls).parameters.items()}
    for key, value in (data.get("init_args") or {}).items():
        default = defaults.get(key)
        if value is not None and value != (list(default) if isinstance(default, tuple) else default):
            yield f"--data.{key}={value if isinstance(value, str) else json.dumps(value)}"


def _fit_again(run: RunFolder, name: str) -> Iterator[str | Path]:
    """Yield the arguments that train a run again from the start, into a folder within its own."""
    yield from ("fit", "--config", run.path / "config.yaml", "--trainer.logger=csv")
    yield from (f"--trainer.logger.save_dir={run.path}", f"--trainer.logger.name={name}")
    yield "--trainer.logger.version=0"
    if run.config.get("ckpt_path"):  # the run was resumed
        yield "--ckpt_path=null"
    if (run.config.get("checkpoint") or {}).get("dirpath"):
        yield "--checkpoint.dirpath=null"


def _can_run(run: RunFolder) -> bool:
    """Return whether the model is one of this package and its table still exists."""
    path = _options(run, "data").get("path")
    ours = str((run.config.get("model") or {}).get("class_path")).startswith(_OURS)
    return ours and (path is None or is_address(path) or Path(path).exists())
