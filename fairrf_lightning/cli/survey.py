"""The command ``survey``: ``survey plan`` and ``survey draw``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fairrf_lightning.audit.sample_size import plan_survey
from fairrf_lightning.cli.parsing import DataOptions, call, takes_options_of
from fairrf_lightning.cli.tables import print_lines
from fairrf_lightning.datamodules.base import TabularDataModule
from fairrf_lightning.datamodules.sensitive import (
    count_answers,
    draw_form,
    sensitive_column,
)
from fairrf_lightning.errors import (
    InputError,
    check_output,
    did_you_mean,
    writing_file,
)
from fairrf_lightning.files import write_csv, write_text
from fairrf_lightning.load import load_run
from fairrf_lightning.messages import shell_command
from fairrf_lightning.survey import MIN_PEOPLE

_HELP = """\
Usage: {program} plan|draw [options]

Plan a survey of people's sensitive attribute (S), and draw its form.

  plan WIDTH    Number of people for an interval of the gap of this width.
  draw PEOPLE   Draw people at random and write a form to fill in.

Options: {program} plan --help
         {program} draw --help
"""
_RANDOMISED = """\
Randomised response: {share} of the answers are replaced by chance, so that no answer
shows what is true of a person. The person does this alone, unseen:

1. Draw a number from 1 to 1000, for example with a random number generator.
2. 1 to {replaced}: draw a group at random, all with the same chance, and write it down.
3. {first} to 1000: write down your own group.

Write the answer only into the column '{sensitive}'; keep no record of the number.
Leave the column 'randomized' as it is: the commands read the probability there.
"""


def run_survey(args: Sequence[str]) -> Any:
    """Run ``survey plan`` or ``survey draw`` with the arguments behind ``survey``."""
    commands: dict[str, Callable[..., None]] = {"plan": plan_command, "draw": draw_command}
    name, *rest = args or ["--help"]
    if name in ("--help", "-h"):
        sys.stdout.write(_HELP.format(program=shell_command("survey")))
        raise SystemExit(0)
    if name not in commands:
        raise InputError(f"survey {name}: no such command; {did_you_mean(name, commands)}")
    return call(commands[name], rest, f"survey {name}")


@takes_options_of(plan_survey)
def plan_command(**options: Any) -> None:
    """Number of people to survey for an interval of a given width.

    Example:
        survey plan 0.1 --ckpt_path lightning_logs/version_0
        survey plan 0.1 --gap dEO --base_rate 0.25 --randomized 0.25
    """
    plan = plan_survey(**options)
    print_lines(repr(plan), "People who do not answer do not count. Draw more, and always at random.")
    if options["ckpt_path"] is not None:
        chance = ("--randomized", f"{options['randomized']:g}") if options["randomized"] else ()
        command = ("survey", "draw", str(plan.people), "--ckpt_path", options["ckpt_path"], *chance)
        print_lines("Next:", f"  {shell_command(*command)}")


@takes_options_of(draw_form, "data", "people", "sensitive", "randomized")
def draw_command(
    people: int,
    *,
    data: DataOptions | None = None,
    ckpt_path: Path | None = None,
    sensitive: str | None = None,
    randomized: float = 0.0,
    out: Path = Path("survey.csv"),
    trust: Sequence[str] = (),
    **options: Any,
) -> None:
    """Draw people at random and write a form for their S.

    The answers may be those of training rows: they never reach the model, a log or a report. An existing
    file is never overwritten.

    Args:
        people: Number of people.
        data: The data set; or name a checkpoint.
        ckpt_path: Checkpoint or run folder, whose data are used.
        sensitive: Name of the column to fill in; by default the sensitive attribute of the data.
        randomized: Probability that an answer is replaced by chance (randomised response), such as 0.25.
        out: CSV file to write.
        trust: Import paths of your own classes that the checkpoint may use.
        options: Passed on to ``draw_form``.

    Example:
        survey draw 400 --data adult
        survey draw 400 --ckpt_path lightning_logs/version_0 --randomized 0.25
    """
    if round(1000 * randomized, 9) % 1:
        raise InputError(f"--randomized {randomized}: expected a multiple of 0.001, so that it can be drawn.")
    if (data is None) == (ckpt_path is None):
        raise InputError("survey draw: name either the data (--data NAME) or a checkpoint (--ckpt_path).")
    module = data.make() if data is not None else load_run(str(ckpt_path), trust=trust).data
    sensitive = sensitive_column(module, sensitive)
    _check_free(out, sensitive)
    form = draw_form(module, people, sensitive, randomized=randomized, **options)
    guide = out.with_name(f"{out.stem}_instructions.txt")
    with writing_file("--out", out):
        if randomized:
            write_text(guide, _instructions(randomized, sensitive))
        write_csv(form, out)
    run = None if ckpt_path is None else str(ckpt_path)
    print_lines(*_draw_lines(module, people, out, sensitive, guide if randomized else None, run=run))


def _draw_lines(
    module: TabularDataModule, people: int, out: Path, sensitive: str, guide: Path | None, *, run: str | None
) -> Iterator[str]:
    yield f"Wrote {out}: {people:,} people, drawn at random. 'row' counts the rows of the data from 0."
    yield f"Fill in the column '{sensitive}' and change nothing else; no answer is an empty cell."
    if run is None:
        yield f"Then correct takes a run and --survey {out}, or fit takes --data.membership {out}."
    else:
        yield f"Then: {shell_command('correct', run, '--survey', out)}"
        yield f"Or use the answers in training: fit takes them as --data.membership {out}."
    if guide is not None:
        yield f"Wrote {guide}: hand it to each person, as answers are randomised."
    if people < MIN_PEOPLE:
        yield f"note: {people} people; at least {MIN_PEOPLE} answers are needed to estimate a gap."
    if module.name == "table":
        yield "Rows without a label do not count. --columns copies a column that identifies people."


def _instructions(randomized: float, sensitive: str) -> str:
    replaced = round(1000 * randomized)
    return _RANDOMISED.format(
        share=f"{100 * randomized:g} %", replaced=replaced, first=replaced + 1, sensitive=sensitive
    )


def _check_free(out: Path, sensitive: str) -> None:
    """Raise if a file would be overwritten, or cannot be written."""
    check_output("--out", out, "survey.csv")
    if out.exists():
        answers = count_answers(out, sensitive)
        raise InputError(
            f"--out {out}: this file exists, with {answers:,} answers, and is kept. Name another file, or "
            "delete it yourself."
        )
