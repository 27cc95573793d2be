"""``python train.py COMMAND`` or ``fairrf COMMAND``: finds the command and explains errors.

Nothing here imports torch or Lightning before a command is called, so ``--help`` answers at once.
"""

from __future__ import annotations

import signal
import sys
import textwrap
import warnings
from collections.abc import Iterable
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
        extra: Extra of the package that brings what the command imports.
        target: ``module`` or ``module:function``, relative to this package and imported when it is called;
            by default the module of its name and ``NAME_command``. Functions named ``run_*`` read their
            arguments themselves; others are called by :func:`~.parsing.call`.
        alias: Earlier name.
    """

    name: str
    group: str
    help: str
    extra: str = ""
    target: str = ""
    alias: str | None = None


_EVALUATION = ".evaluate:run_evaluation"
COMMANDS = (
    Command(
        "fit", "Train", "Train a model, test it and save it with its data and options.", target=".fit:run_fit"
    ),
    Command(
        "test",
        "Train",
        "Measure accuracy and gaps of a checkpoint on the test rows.",
        target=_EVALUATION,
    ),
    Command(
        "validate",
        "Train",
        "Measure accuracy and gaps of a checkpoint on validation rows.",
        target=_EVALUATION,
    ),
    Command("predict", "Train", "Write probabilities and decisions to a CSV file.", target=_EVALUATION),
    Command("grid", "Explore", "Train eta x beta x seeds at once and recommend a setting.", "reproduce"),
    Command("sweep", "Explore", "Search for a setting with Optuna.", "sweep"),
    Command(
        "survey",
        "Explore",
        "Plan a survey of the sensitive attribute, and draw its form.",
        target=".survey:run_survey",
    ),
    Command("suggest", "Explore", "Propose related features by a sample with known groups."),
    Command("audit", "Assess", "Compare groups: rates, gaps and intervals of any model.", "report"),
    Command(
        "correct",
        "Assess",
        "Reach a fairness goal with a survey or published statistics.",
        "report",
        ".correct:run_correct",
    ),
    Command("certify", "Assess", "Bound the gap between groups that were never observed.", "report"),
    Command("report", "Assess", "Write an HTML page and a model card of a run, grid or audit.", "report"),
    Command(
        "sample-size",
        "Assess",
        "Number of rows with known groups that an audit needs.",
        "report",
        ".audit",
        "labels",
    ),
    Command("to_parquet", "Data", "Convert a large CSV file, so that training streams it."),
    Command("dashboard", "Share", "Save a W&B workspace that shows the runs of a project.", "wandb"),
    Command(
        "reproduce",
        "Paper",
        "Repeat the evaluation of the paper on the real data.",
        "reproduce",
        "paper.reproduce:reproduce",
    ),
)
_CLONE = Path(__file__).resolve().parents[2]  # in an installed wheel: site-packages
_EXAMPLES = (
    ("fit", "--data", "adult"),
    ("report", "lightning_logs/version_0"),
    ("audit", "scores.csv", "--groups", "race,sex"),
)

_BUILT_IN = ("drop_in", "pretrain")  # presets of callbacks that `fit` has already
_FIT = """\
Usage: {program} fit --data NAME [options]

Train a classifier with the FairRF penalty, test its best checkpoint, save both.

Data:
  --data NAME                {data};
                             table is a file of your own
  --data.related A,B         columns associated with the sensitive attribute
  --data.path FILE           of table: a CSV or Parquet file; see also
                             --data.target, --data.positive, --data.sensitive
  --data.batch_size N, --data.seed N

Model:
  --model.eta X              weight of the penalty; 0 trains the vanilla model
  --model.backbone NAME      {backbones}
  --model.lr X               learning rate (0.001)
  --model.statistic NAME     covariance, correlation or hsic (non-linear)
  --model.given NAME         all rows, or positives for equal opportunity
  --method NAME              {methods}

FairRF:
  --pretrain.epochs N        epochs without the penalty (1)
  --lambda_update.beta X     how evenly lambda is spread over related features
  --lambda_update.every_n_steps N    null keeps lambda fixed

Training:
  --trainer.max_epochs N     number of epochs (20)
  --trainer.devices N, --trainer.accelerator NAME, --trainer.precision NAME
  --trainer.logger NAME      {loggers}
  --trainer.callbacks+=NAME  {callbacks}
  --checkpoint.monitor NAME  metric that chooses the checkpoint (val_objective)
  --ckpt_path FILE           resume from a checkpoint
  --config FILE              options from a file, such as a run's config.yaml
  --seed_everything N        seed of everything (0)

Example: {program} fit --data compas --trainer.callbacks+=early_stopping

Every option:              {program} fit --help-all
Options of a data set:     {program} fit --data.help adult
Config without training:   {program} fit --data adult --print_config
"""
_EVALUATE = """\
Usage: {program} {name} RUN [options]

{about}

  RUN                        folder of a run, such as lightning_logs/version_0,
                             or a checkpoint (also --ckpt_path FILE); it knows
                             its model, data, split and encoding
{own}  --data.path FILE           {path}
  --trainer.devices N, --trainer.accelerator NAME, --trainer.precision NAME

Every option:              {program} {name} --help-all
"""
_MOVED = """\
the table, if it was moved; other options of the
                             data are those of the checkpoint"""
_PATH = {
    "predict": """\
new rows, encoded as in training; by default the
                             table of training with all of its rows, or the
                             test rows of a named data set"""
}
_OWN = {"predict": "  --predictions.path FILE    CSV file to write (predictions.csv)\n"}


def main(args: list[str] | None = None) -> None:
    """Run the command line; invalid input ends in a few lines and exit code 2."""
    given = sys.argv[1:] if args is None else list(args)
    if not given or given[0] in ("--help", "-h", "help"):
        sys.stdout.write(help_text())
        raise SystemExit(0)
    try:
        here = str(Path.cwd())
    except FileNotFoundError as error:
        sys.stderr.write("error: the working directory does not exist any more; change to another folder.\n")
        raise SystemExit(2) from error
    # As `python script.py` has it for its own folder: classes of the user's may be named by --model.
    sys.path.insert(0, here)
    sys.path.append(str(_CLONE))  # paper/ is next to the package
    # Lightning 2.6 uses a name that torch 2.13 deprecates, and recommends srun wherever it is installed.
    for message in (".*LeafSpec.*", "The `srun` command is available"):
        warnings.filterwarnings("ignore", message=message)
    try:
        _run(given[0], given[1:])
    except KeyboardInterrupt as stopped:
        from fairrf_lightning.callbacks.stopping import StoppedBySignal  # noqa: PLC0415 - imports torch

        signalled = StoppedBySignal(signal.SIGINT)
        signalled.explain()
        raise signalled from stopped
    except Exception as error:
        from fairrf_lightning.cli.errors import is_input_error  # noqa: PLC0415 - slow for --help

        if not is_input_error(error):
            raise
        _fail(error, given[0])


def find_command(name: str) -> Command:
    """Return a command by its name, with dashes or underscores, or by its earlier name.

    Raises:
        InputError: If there is no such command.
    """
    for command in COMMANDS:
        if name.replace("-", "_") == command.name.replace("-", "_") or name == command.alias:
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


def _training_help(name: str, about: str) -> str:
    """Return the help of a command that trains or evaluates one model, and what it is about."""
    program = shell_command()
    if name != "fit":
        own, path = _OWN.get(name, ""), _PATH.get(name, _MOVED)
        return _EVALUATE.format(program=program, name=name, about=about, own=own, path=path)
    from fairrf_lightning.cli.short_names import METHODS, SHORT_NAMES  # noqa: PLC0415 - reads the presets
    from fairrf_lightning.presets import preset_names  # noqa: PLC0415

    return _FIT.format(
        program=program,
        data=_fill(preset_names("datamodules")),
        backbones=_fill([*SHORT_NAMES["model.backbone"], "or your own class by its import path"]),
        methods=_fill(METHODS),
        loggers=_fill([*SHORT_NAMES["trainer.logger"], "or false (csv)"]),
        callbacks=_fill(one for one in preset_names("callbacks") if one not in _BUILT_IN),
    )


def _fill(names: Iterable[str]) -> str:
    """Return names with commas, in the second column of the help."""
    return textwrap.fill(", ".join(names), 80 - 29).replace("\n", "\n" + " " * 29)


def _run(name: str, args: list[str]) -> Any:
    command = find_command(name)
    if command.group == "Train" and {"--help", "-h"} & set(args):
        sys.stdout.write(_training_help(name, command.help))
        raise SystemExit(0)
    own = command.name.replace("-", "_")
    module, _, function = (command.target or f".{own}").partition(":")
    function = function or f"{own}_command"
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


def _fail(error: Exception, command: str) -> NoReturn:
    from lightning.pytorch.utilities import rank_zero_only  # noqa: PLC0415 - slow for --help

    from fairrf_lightning.cli.errors import explain  # noqa: PLC0415

    prefix = "--" if command == "to_parquet" else "--data."
    # Names from the data may hold characters that break lines or command the terminal.
    text = "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in explain(error, prefix)
    )
    rank_zero_only(print)(f"error: {text}", file=sys.stderr)
    raise SystemExit(2) from error
