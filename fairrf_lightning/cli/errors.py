"""Explains invalid command lines in a line or two, without a traceback."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from difflib import get_close_matches

from jsonargparse import ArgumentError
from lightning.fabric.utilities.exceptions import MisconfigurationException

from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.messages import shell_command
from fairrf_lightning.presets import accepted_options, import_class

NO_DATA = "no data: name a data set, for example --data adult, or --data table for a file of your own."
_NOISE = re.compile(
    r"Does not validate|Subtypes:|Errors:|Given value"
    r"|- Expected a <class '(NoneType|bool|collections.abc.Iterable)'>"
)
_OF_THE_PARSER = re.compile(r"Parser key|Does not validate|Problem with given class_path")
_PLAIN = (
    (re.compile(r"^- "), ""),
    (re.compile(r'^Parser key "([\w.]+)":$'), r"--\1:"),
    (re.compile(r"Problem with given class_path '(?:\w+\.)*(\w+)':"), r"\1:"),
    (re.compile(r"Requirement '(.+)' not met\. HINT: Try running `(.+)`"), r"needs the package \1; run: \2"),
    (re.compile(r"Expected an? <class '([\w.]+)'>"), r"expected \1"),
    (re.compile(r"Expected a typing\.Literal\[(.*?)\]"), r"expected one of \1"),
)
# Data modules name their arguments as Python does.
_DATA_OPTION = re.compile(
    r"^(categorical|delimiter|drop|encoding|groups|label_noise|membership|missing|numeric|path|positive"
    r"|related|sensitive|sha256|split|target|url)(?=: | is | must )"
)
# "--data: TableDataModule: Option 'sensitve' is not accepted": users typed --data.sensitve.
_NOT_ACCEPTED = re.compile(r"^--([\w.]+): (\w+): Option '([\w.]+)' is not accepted(?=;|$)")
_DROP = re.compile(r"\(drop: \[([^\]]*)\]\)")
# The disk is full, or the folder is not one to write to: no fault of the program.
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}
_OF_THE_DISK |= {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG}
# Options that people try, and where they are.
_PLACES = {
    "accelerator": "trainer.accelerator",
    "backbone": "model.backbone",
    "batch_size": "data.batch_size",
    "beta": "lambda_update.beta",
    "checkpoint": "ckpt_path",
    "devices": "trainer.devices",
    "epochs": "trainer.max_epochs",
    "eta": "model.eta",
    "learning_rate": "model.lr",
    "logger": "trainer.logger",
    "lr": "model.lr",
    "max_epochs": "trainer.max_epochs",
    "path": "data.path",
    "precision": "trainer.precision",
    "pretrain_epochs": "pretrain.epochs",
    "related": "data.related",
    "seed": "seed_everything",
    "sensitive": "data.sensitive",
    "target": "data.target",
}


def unknown_option(option: str, known: Iterable[str], see: str = "") -> InputError:
    """Return the error for an option that does not exist, with the one that is probably meant.

    >>> print(unknown_option("--epochs", ["trainer.max_epochs", "ckpt_path"]))
    --epochs: no such option; did you mean --trainer.max_epochs? All options: python train.py fit --help-all
    >>> print(unknown_option("--trainer.max_epoch", ["trainer.max_epochs", "ckpt_path"], "grid --help"))
    --trainer.max_epoch: no such option; did you mean --trainer.max_epochs? All options: grid --help
    """
    name = option.removeprefix("--").replace("-", "_")
    known = list(known)
    near = _PLACES.get(name, "")
    if near.partition(".")[0] not in {one.partition(".")[0] for one in known}:
        near = next(iter(get_close_matches(name, known, n=1, cutoff=0.75)), "")
    question = f"; did you mean --{near}?" if near else "."
    return InputError(
        f"{option}: no such option{question} All options: {see or shell_command('fit', '--help-all')}"
    )


def is_input_error(error: BaseException) -> bool:
    """Return whether the user's input is to blame, so that a message is enough and no traceback is needed."""
    if isinstance(error, InputError | MisconfigurationException | ArgumentError):
        return True
    if isinstance(error, OSError):
        return error.errno in _OF_THE_DISK
    # jsonargparse wraps what a constructor raised.
    return isinstance(error, ValueError) and explain(error) != str(error)


def explain(error: BaseException, prefix: str = "--data.") -> str:
    """Return our own message if it caused the error, else the useful lines of the parser's message.

    Args:
        error: The error.
        prefix: What the command puts before the options of the data.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InputError):
            return _DROP.sub(rf"({prefix}drop '\1')", _DATA_OPTION.sub(rf"{prefix}\1", str(cause)))
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, OSError):
        return (
            f"{error.filename or 'the output'} cannot be written to ({error.strerror}).\nFree some space or "
            "correct the folder, and run the command again; fit resumes by --ckpt_path from a last.ckpt."
        )
    if re.search(
        r"arguments are required: (\w+\.)?data$|class_path 'lightning.LightningDataModule'", str(error)
    ):
        return NO_DATA
    message = _useful_lines(str(error)) + _suggestion(str(error))
    return _NOT_ACCEPTED.sub(r"--\1.\3: \2 has no such option", message)


def _useful_lines(message: str) -> str:
    if not _OF_THE_PARSER.search(message):
        return message
    kept = [_plain(line) for line in message.splitlines() if line.strip() and not _NOISE.search(line)]
    value = re.search(r"Given value: (?!NestedArg|Namespace)(.+)", message)
    if value is not None and value[1] not in " ".join(kept):
        kept.append(f"Got value: {value[1]}")
    # Each member of a union repeats the message.
    return "; ".join(dict.fromkeys(kept)).replace(":; ", ": ")


def _plain(line: str) -> str:
    line = line.strip()
    for pattern, replacement in _PLAIN:
        line = pattern.sub(replacement, line)
    return line


def _suggestion(message: str) -> str:
    option = re.search(r"Option '([\w.]+)' is not accepted", message)
    owner = re.search(r"class_path '([\w.]+)'", message)
    if option is None or owner is None:
        return ""
    if option[1] in ("expose_sensitive", "remove_related", "ksmote"):
        return ": --method constrain_s, remove_r and ksmote are not available with these data."
    return "; " + did_you_mean(option[1], accepted_options(import_class(owner[1])))
