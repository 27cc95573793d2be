"""Tables, lines and progress bars on the terminal, at any width from 80 columns."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fairrf_lightning.messages import quiet_lightning, shell_command

if TYPE_CHECKING:
    import pandas as pd

_NUMBER = re.compile(r"[-+]?[\d.,]+( ?%)?")


def print_table(
    table: pd.DataFrame | Iterable[Mapping[str, Any] | Sequence[Any]],
    *,
    title: str = "",
    columns: Sequence[str] | None = None,
    digits: int = 4,
    missing: str = "-",
) -> None:
    """Print a table that fits the terminal; a pipe gets 80 columns.

    Columns of numbers are right-aligned and never wrapped; long text is folded. Text is printed as it is,
    so a group named ``[b]`` stays ``[b]``.

    Args:
        table: A data frame (its index is not printed), or rows as mappings or as sequences.
        title: Title above the table.
        columns: Headers; by default the columns of the frame or the keys of the first row.
        digits: Decimal places of floats. Format a cell yourself for anything else.
        missing: Text of ``None`` and NaN.
    """
    headers, rows = _rows(table, columns)
    cells = [[_text(value, digits, missing) for value in row] for row in rows]
    shown = Table(title=Text(title, style="table.title") if title else None)
    for number, header in enumerate(headers):
        column = [row[number] for row in cells]
        if is_numeric(column, missing):
            width = max((len(cell) for cell in column), default=0)
            shown.add_column(Text(header), justify="right", min_width=width)
        else:
            shown.add_column(Text(header), overflow="fold")
    for row in cells:
        shown.add_row(*map(Text, row))
    Console().print(shown)


def print_lines(*lines: str) -> None:
    """Print lines without markup; a terminal breaks sentences between words, and leaves commands whole."""
    console = Console()
    for line in lines:
        is_copied = shell_command() in line or max(map(len, line.split()), default=0) > console.width
        soft_wrap = is_copied or not console.is_terminal
        console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=soft_wrap)


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """End the command on Ctrl-C with a line about the finished models, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        kept = f"finished models are in {path}" if path.is_file() else "no model was finished"
        text = f"Interrupted: {kept}. Run the same command to resume."
        Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
        raise SystemExit(130) from None


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr, and yield the function that advances it; Lightning logs warnings only."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with quiet_lightning(), Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=total)
        yield lambda epochs: progress.advance(task, epochs)


def is_numeric(column: Sequence[str], missing: str = "-") -> bool:
    """Return whether all cells of a column are numbers, apart from missing ones.

    >>> is_numeric(["1,024", "-", "0.5"]), is_numeric(["a", "1"]), is_numeric(["-"])
    (True, False, False)
    """
    known = [cell for cell in column if cell not in (missing, "")]
    return bool(known) and all(_NUMBER.fullmatch(cell) for cell in known)


def _rows(table: Any, columns: Sequence[str] | None) -> tuple[list[str], list[list[Any]]]:
    if hasattr(table, "itertuples"):
        headers = [str(name) for name in table.columns] if columns is None else list(columns)
        return headers, [list(row) for row in table.itertuples(index=False, name=None)]
    rows = list(table)
    if rows and isinstance(rows[0], Mapping):
        headers = list(rows[0]) if columns is None else list(columns)
        return headers, [[row.get(name) for name in headers] for row in rows]
    return list(columns or [""] * max(map(len, rows), default=0)), [list(row) for row in rows]


def _text(value: Any, digits: int, missing: str) -> str:
    if value is None or (isinstance(value, Real) and math.isnan(value)):
        return missing
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    return f"{value:.{digits}f}" if isinstance(value, Real) else str(value)
