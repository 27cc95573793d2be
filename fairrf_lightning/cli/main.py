"""``python train.py COMMAND`` or ``fairrf COMMAND``: finds the command and explains errors.

Nothing here imports torch or Lightning before a command is called, so ``--help`` answers at once.
"""

from __future__ import annotations

import signal
import sys
import warnings
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.messages import install_command, shell_command


class Command(NamedTuple):
    """A command of the program.

    Args:
        name: Name on the command line.
        group: Heading in the help.
        help: What it does, in one line.
        target: ``module:function``, relative to this package and imported when it is called. Functions
            named ``run_*`` read their arguments themselves; others are called by :func:`~.parsing.call`.
        extra: Extra of the package that brings what the command imports.
        aliases: Earlier names.
    """

    name: str
    group: str
    help: str
    target: str
    extra: str = ""
    aliases: tuple[str, ...] = ()


COMMANDS = (
    Command("fit", "Train", "Train a model, test it and save it with its data and options.", ".fit:run_fit"),
    Command("test", "Train", "Measure accuracy and gaps of a checkpoint on the test rows.", ".fit:run_fit"),
    Command(
        "validate", "Train", "Measure accuracy and gaps of a checkpoint on validation rows.", ".fit:run_fit"
    ),
    Command("predict", "Train", "Write probabilities and decisions to a CSV file.", ".fit:run_fit"),
    Command(
        "grid",
        "Explore",
        "Train eta x beta x seeds at once and recommend a setting.",
        ".grid:grid_command",
        "reproduce",
    ),
    Command("sweep", "Explore", "Search for a setting with Optuna.", ".sweep:sweep_command", "sweep"),
    Command(
        "survey",
        "Explore",
        "Plan a survey of a few hundred people's S, and draw its form.",
        ".survey:run_survey",
    ),
    Command(
        "suggest",
        "Explore",
        "Rank columns as related features by a sample with known S.",
        ".certify:suggest_command",
    ),
    Command(
        "audit",
        "Assess",
        "Compare groups: rates, gaps and intervals of any model.",
        ".audit:audit_command",
        "report",
    ),
    Command(
        "correct",
        "Assess",
        "Reach a fairness goal with a survey or published statistics.",
        ".correct:run_correct",
        "report",
    ),
    Command(
        "certify",
        "Assess",
        "Bound the gap between groups that were never observed.",
        ".certify:certify_command",
        "report",
    ),
    Command(
        "report",
        "Assess",
        "Write a page and a model card for a run, grid or audit.",
        ".report:report_command",
        "report",
    ),
    Command(
        "sample-size",
        "Assess",
        "Number of labelled rows that an audit needs.",
        ".audit:sample_size_command",
        "report",
        ("labels", "sample_size"),
    ),
    Command(
        "to_parquet",
        "Data",
        "Convert a large CSV file, so that training streams it.",
        ".data:to_parquet",
        aliases=("to-parquet",),
    ),
    Command(
        "dashboard",
        "Share",
        "Save a W&B workspace that shows the runs of a project.",
        ".report:dashboard_command",
        "wandb",
    ),
    Command(
        "reproduce",
        "Paper",
        "Repeat the evaluation of the paper on the real data.",
        "paper.reproduce:reproduce",
        "reproduce",
    ),
)
_CLONE = Path(__file__).resolve().parents[2]  # in an installed wheel: site-packages
_EXAMPLES = (
    ("fit", "--data", "adult"),
    ("report", "lightning_logs/version_0"),
    ("audit", "scores.csv", "--groups", "race,sex"),
)


def main(args: list[str] | None = None) -> None:
    """Run the command line; invalid input ends in a few lines and exit code 2."""
    given = sys.argv[1:] if args is None else list(args)
    if not given or given[0] in ("--help", "-h", "help"):
        sys.stdout.write(help_text())
        raise SystemExit(0)
    # As `python script.py` has it for its own folder: classes of the user's may be named by --model.
    sys.path.insert(0, str(Path.cwd()))
    sys.path.append(str(_CLONE))  # paper/ is next to the package
    # Lightning 2.6 uses a name that torch 2.13 deprecates; users can do nothing about it.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    try:
        _run(given[0], given[1:])
    except KeyboardInterrupt as stopped:
        from fairrf_lightning.callbacks.checkpointing import StoppedBySignal  # noqa: PLC0415 - imports torch

        signalled = StoppedBySignal(signal.SIGINT)
        signalled.explain()
        raise signalled from stopped
    except Exception as error:
        from fairrf_lightning.cli.errors import is_input_error  # noqa: PLC0415 - slow for --help

        if not is_input_error(error):
            raise
        _fail(error)


def find_command(name: str) -> Command:
    """Return a command by its name or an earlier name of it.

    Raises:
        InputError: If there is no such command.
    """
    for command in COMMANDS:
        if name in (command.name, *command.aliases):
            return command
    known = [command.name for command in COMMANDS]
    raise InputError(f"command {name!r}: no such command; {did_you_mean(name, known)}")


def help_text() -> str:
    """Return the help of the program: all commands by group, and examples."""
    lines = [
        "FairRF (WSDM 2022): fair classifiers without the sensitive attribute",
        "",
        f"Usage: {shell_command()} COMMAND [options]",
    ]
    for group, commands in groupby(COMMANDS, lambda command: command.group):
        lines += ["", f"{group}:", *(f"  {command.name:<12} {command.help}" for command in commands)]
    lines += ["", "Examples:", *(f"  {shell_command(*example)}" for example in _EXAMPLES)]
    lines += ["", f"Options of a command: {shell_command('fit', '--help')}"]
    return "\n".join(lines) + "\n"


def _run(name: str, args: list[str]) -> Any:
    command = find_command(name)
    if command.group == "Train" and {"--help", "-h"} & set(args):
        from fairrf_lightning.cli.help import training_help  # noqa: PLC0415 - reads the presets

        sys.stdout.write(training_help(name, command.help))
        raise SystemExit(0)
    module, _, function = command.target.partition(":")
    try:
        found = getattr(import_module(module, __package__), function)
    except ModuleNotFoundError as error:
        if error.name in ("paper", module):
            raise InputError(f"{name} needs a clone of the repository; it is not in the package.") from error
        if not command.extra:
            raise
        raise InputError(
            f"{name} needs the package {error.name}; run: {install_command(command.extra)}"
        ) from error
    if function.startswith("run_"):
        return found([name, *args] if command.group == "Train" else args)
    from fairrf_lightning.cli.parsing import call  # noqa: PLC0415 - slow for --help

    return call(found, args, command.name)


def _fail(error: Exception) -> NoReturn:
    from lightning.pytorch.utilities import rank_zero_only  # noqa: PLC0415 - slow for --help

    from fairrf_lightning.cli.errors import explain  # noqa: PLC0415

    rank_zero_only(print)(f"error: {explain(error)}", file=sys.stderr)
    raise SystemExit(2) from error
