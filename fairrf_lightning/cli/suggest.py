"""The command ``suggest``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fairrf_lightning.cli.parsing import DataOptions, takes_options_of
from fairrf_lightning.cli.short_names import as_list, split_options
from fairrf_lightning.cli.tables import print_lines, print_table
from fairrf_lightning.messages import shell_command
from fairrf_lightning.suggest import suggest


@takes_options_of(suggest, "data")
def suggest_command(data: DataOptions, **options: Any) -> None:
    """Rank columns by their association with the sensitive attribute (S) and the label.

    Columns that are associated with S, and not mostly with the label, are proposed as related features.

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
    related_options = ("--data.related", "--data.init_args.related")
    options = split_options(list(args))
    kept = [arg for key, _, typed in options if key not in related_options for arg in typed]
    kept += [] if sensitive is None else [f"--data.sensitive={sensitive}"]
    plain, exact = ",".join(related), json.dumps(list(related), ensure_ascii=False)
    value = plain if as_list(plain) == exact else exact  # names may contain commas or spaces at the ends
    return shell_command("fit", *kept, f"--data.related={value}")
