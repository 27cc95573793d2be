"""The command ``certify``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairrf_lightning.certificate import Certificate, certify
from fairrf_lightning.certificate.knowledge import knowledge_template
from fairrf_lightning.cli.parsing import DataOverrides, takes_options_of
from fairrf_lightning.cli.tables import print_lines, print_table
from fairrf_lightning.errors import InputError, check_output, writing_file
from fairrf_lightning.files import write_text
from fairrf_lightning.load import Run, check_two_classes
from fairrf_lightning.messages import level_text


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

    The sensitive attribute (S) need not be in the data; something must be known about it.

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
            check_output(f"--{name}", path, "certificate.json")
    run = data.load(checkpoint, trust)
    check_two_classes(run)
    if template is not None:
        _write_template(run, template)
        return
    found = certify(run, **options)
    print_certificate(found)
    if output is not None:
        with writing_file("--output", output):
            write_text(output, json.dumps(found.to_dict(), indent=2) + "\n")


def print_certificate(certificate: Certificate) -> None:
    """Print the knowledge about S, the bounds and the statements."""
    known = certificate.knowledge
    together = "" if known.level is None else f" (all intervals together: {level_text(known.level)})"
    print_table(
        certificate.knowledge_table(), title=f"Known about '{known.group}' from {known.source}{together}"
    )
    print_table(certificate.bounds_table(), title="Largest possible dDP (demographic parity gap)", digits=3)
    print_lines(*certificate.statements())


def _write_template(run: Run, path: Path) -> None:
    """Write a file for ``--proxies`` with the widest limits; an existing file is kept."""
    if path.exists():
        print_lines(f"{path} exists already; it was not changed.")
        return
    names, related = run.data.feature_names, run.data.related_columns
    if run.data.penalty_columns is None and related:
        names = [names[column] for columns in related.values() for column in columns]
    with writing_file("--template", path):
        write_text(path, knowledge_template(names))
    print_lines(f"Wrote {path}: replace the limits by what you know about S, and name it by --proxies.")
