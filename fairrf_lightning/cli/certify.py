"""The commands ``certify`` and ``suggest``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairrf_lightning.certificate import Certificate, certify
from fairrf_lightning.certificate.knowledge import knowledge_template
from fairrf_lightning.cli.parsing import DataOptions, DataOverrides, takes_options_of
from fairrf_lightning.cli.tables import print_lines, print_table
from fairrf_lightning.errors import InputError, check_writable, writing_to
from fairrf_lightning.files import write_text
from fairrf_lightning.load import Run, check_two_classes
from fairrf_lightning.messages import shell_command
from fairrf_lightning.suggest import suggest


@takes_options_of(certify, "source")
def certify_command(
    checkpoint: Path,
    *,
    data: DataOverrides,
    template: Path | None = None,
    output: Path | None = None,
    trust: Sequence[str] = (),
    **options: Any,
) -> None:
    """Bound the gap between groups that were never observed.

    Args:
        checkpoint: Checkpoint or folder of a run.
        data: Options of the data that differ from those in training, such as --data.path new.csv.
        template: Write a file for --proxies with the related columns, to be filled in, and stop.
        output: JSON file to write the certificate to.
        trust: Import paths of your own classes that the checkpoint may use.
        options: Passed on to ``certify``.
    """
    if template is None and (options["proxies"] is None) == (options["audit_sample"] is None):
        raise InputError(
            "certify needs knowledge about S: name either --proxies or --audit_sample; "
            "--template FILE writes a file for --proxies."
        )
    for name, path in (("output", output), ("template", template)):
        if path is not None:
            _check_output(f"--{name}", path)
    run = data.load(checkpoint, trust)
    check_two_classes(run)
    if template is not None:
        _write_template(run, template)
        return
    found = certify(run, **options)
    print_certificate(found)
    if output is not None:
        with writing_to(f"--output {output}", "name a file in another folder"):
            output.parent.mkdir(parents=True, exist_ok=True)
            write_text(output, json.dumps(found.to_dict(), indent=2) + "\n")


def print_certificate(certificate: Certificate) -> None:
    """Print the knowledge about S, the bounds and the statements."""
    known = certificate.knowledge
    together = "" if known.level is None else f" (all intervals together: {known.level:.0%})"
    print_table(
        certificate.knowledge_table(), title=f"Known about '{known.group}' from {known.source}{together}"
    )
    print_table(certificate.bounds_table(), title="Largest possible dDP (demographic parity gap)", digits=3)
    print_lines(*certificate.statements())


def _check_output(option: str, path: Path) -> None:
    """Raise before the work if a file cannot be written."""
    if path.is_dir():
        raise InputError(f"{option} {path}: this is a folder; name a file in it, such as certificate.json.")
    with writing_to(f"{option} {path}", "name a file in another folder"):
        check_writable(path.parent)


def _write_template(run: Run, path: Path) -> None:
    """Write a file for ``--proxies`` with the widest limits; an existing file is kept."""
    if path.exists():
        print_lines(f"{path} exists already; it was not changed.")
        return
    names, related = run.data.feature_names, run.data.related_columns
    if run.data.penalty_columns is None and related:
        names = [names[column] for columns in related.values() for column in columns]
    with writing_to(f"--template {path}", "name a file in another folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, knowledge_template(names))
    print_lines(f"Wrote {path}: replace the limits by what you know about S, and name it by --proxies.")


@takes_options_of(suggest, "data")
def suggest_command(data: DataOptions, **options: Any) -> None:
    """Rank columns by their association with S and the label, and propose related features.

    Args:
        data: Data set.
        options: Passed on to ``suggest``.
    """
    found = suggest(data.make(), **options)
    both = f"{found.sensitive} and {found.target}" if found.sensitive else found.target
    print_table(found.table(), title=f"Association of columns with {both}, 95 % intervals")
    print_lines(*found.statements())
    if found.related:
        named = found.sensitive if found.is_input else None
        print_lines(f"Train with them: {fit_command(data.args, found.related, named)}")


def fit_command(args: Sequence[str], related: Sequence[str], sensitive: str | None = None) -> str:
    """Return the command that trains on the same data with these related features.

    Args:
        args: The options of the data, as they were typed.
        related: The related features.
        sensitive: A column of the data that holds S and is not marked as S by the options.
    """
    kept: list[str] = []
    is_related = False
    for arg in args:
        if arg.startswith("--"):
            is_related = arg.partition("=")[0] in ("--data.related", "--data.init_args.related")
        kept += [] if is_related else [arg]
    kept += [] if sensitive is None else [f"--data.sensitive={sensitive}"]
    return shell_command("fit", *kept, f"--data.related={json.dumps(list(related), ensure_ascii=False)}")
