"""Parsers: LightningCLI's with short names, and that of a typed function, which gives options and help."""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
from argparse import HelpFormatter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import docstring_parser
import yaml
from jsonargparse import ArgumentError, Namespace
from lightning.pytorch.cli import LightningArgumentParser

from fairrf_lightning.cli.errors import NO_DATA, explain, unknown_option
from fairrf_lightning.cli.short_names import (
    COMMANDS_OF_LIGHTNING,
    LIST_OPTIONS,
    as_list,
    expand_args,
    expand_config,
    expand_method,
    split_options,
)
from fairrf_lightning.errors import InputError, did_you_mean
from fairrf_lightning.messages import shell_command
from fairrf_lightning.presets import import_class, preset_names

if TYPE_CHECKING:
    from fairrf_lightning.datamodules.base import TabularDataModule
    from fairrf_lightning.load import Run

_LISTS = (list, tuple, Sequence)
_FIRST_ARGUMENT = ("ckpt_path", "predictions")  # accepted aliases of the first argument
_ALL_OPTIONS = """\
All options, by group: --trainer, --model, --data, --pretrain, --lambda_update,
--checkpoint, --predictions, --optimizer, --lr_scheduler. {}Find one by its name:
  {} | grep -A4 precision
"""
_OF_TRAINING = """\
Those of
training, such as --pretrain, are for config files here, and have no effect.
"""
# Headings of LightningCLI's help, which are first lines of docstrings, and what stands there instead.
_HEADINGS = (
    (r"Customize every aspect of training via flags", "Trainer"),
    (r"<class '[\w.]*LightningModule'>", "Model (options such as --model.eta: --model.help FairRFModule)"),
    (r"A DataModule standardizes .*", "Data (options such as --data.related: --data.help adult)"),
    (r"Base class for all optimizers", "Optimiser"),
    (r"\(<class '[\w.]*LRScheduler'>.*\)", "Learning rate schedule"),
    (r"Runs the full optimization routine", "Resume"),
    (r"(Perform one evaluation epoch over|Run inference on your data).*", "Checkpoint"),
    (r"Trains without the penalty first.*", "Pretraining"),
    (r"Sets lambda to its closed-form optimum.*", "Lambda"),
    (r"ModelCheckpoint with a .*", "Checkpoints"),
    (r"Writes one line per row.*", "Predictions"),
)
_Command = TypeVar("_Command", bound=Callable[..., Any])


class ShortNameParser(LightningArgumentParser):
    """Expands short names before jsonargparse sees them, so saved configs hold full class paths."""

    def parse_args(self, args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        given = sys.argv[1:] if args is None else [str(arg) for arg in args]
        try:
            return super().parse_args(list(expand_args(expand_method(given))), *rest, **kwargs)
        except ArgumentError as error:
            if option := re.search(r"(?:unrecognized arguments|ambiguous option): (--[^\s=]+)", str(error)):
                raise self._unknown(option[1]) from error
            if option := re.search(r"argument (--[^:]+): expected one argument", str(error)):
                raise InputError(f"{_without_value(given, option[1])}: expected a value.") from error
            if "Logger is abstract" in str(error) and (typed := _logger_options(given)):
                name = typed.partition("=")[0].split(maxsplit=1)[0]
                raise InputError(
                    f"{name}: name the logger as well, such as --trainer.logger csv {typed}"
                ) from error
            raise

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        """Return the help, without the usage of all options and without the lists of subclasses."""
        text: str = re.sub(r",\s+known\s+subclasses:[^)]*\)", ")", super().format_help(formatter))
        text = re.sub(
            r"\Ausage: .*?\n\n(Runs the full optimization routine\.\n\n)?", "", text, flags=re.DOTALL
        )
        for pattern, heading in _HEADINGS:
            text = re.sub(rf"^{pattern}:$", f"{heading}:", text, flags=re.MULTILINE)
        if (command := self.prog.split()[-1]) in COMMANDS_OF_LIGHTNING:
            note = "" if command == "fit" else _OF_TRAINING
            text = f"{_ALL_OPTIONS.format(note, shell_command(command, '--help-all'))}\n{text}"
        return text

    def parse_object(self, cfg_obj: Any, *rest: Any, **kwargs: Any) -> Any:
        return super().parse_object(self._expand(cfg_obj), *rest, **kwargs)

    def parse_string(self, content: str, *rest: Any, **kwargs: Any) -> Any:
        try:
            config = yaml.safe_load(content)
        except yaml.YAMLError as error:
            reason = " ".join(str(error).split())
            raise InputError(f"the config is not valid YAML: {reason}") from error
        return super().parse_string(yaml.safe_dump(self._expand(config), sort_keys=False), *rest, **kwargs)

    def _expand(self, config: Any) -> Any:
        config = expand_config(config)
        self._check_empty(config)
        return config

    def _check_empty(self, config: Any, place: str = "") -> None:
        """Raise if an option that does not exist has an empty value: jsonargparse would drop it."""
        known = [action.dest for action in self._actions if not action.dest.endswith(".help")]
        for name, value in _entries(config):
            option = f"{place}{name}".removesuffix("+")
            if found := self._commands.get(option):
                found._check_empty(value)  # noqa: SLF001 - a parser of this class
            elif any(other.startswith(f"{option}.") for other in known):
                self._check_empty(value, f"{option}.")
            elif option not in known and _is_empty(value):
                self.error(f"Option '{option}' is not accepted")

    def _unknown(self, option: str) -> InputError:
        parsers = [self, *self._commands.values()]
        known = {action.dest for parser in parsers for action in parser._actions}  # noqa: SLF001
        command = self.prog.split()[-1]  # "train.py [options] fit"
        is_lightning = self._commands or command in COMMANDS_OF_LIGHTNING
        see = shell_command("fit" if self._commands else command, "--help-all" if is_lightning else "--help")
        return unknown_option(option, sorted(known), see)

    @property
    def _commands(self) -> dict[str, Any]:
        choices = [action.choices for action in self._actions if isinstance(action.choices, dict)]
        return {name: parser for parsers in choices for name, parser in parsers.items()}


def _without_value(args: list[str], option: str) -> str:
    """Return the option that lacks its value; jsonargparse names ``--data`` for ``--data.path``."""
    bare = (key for key, value, typed in split_options(args) if not value and "=" not in typed[0])
    return next((key for key in bare if key.startswith(option)), option)


def _logger_options(args: list[str]) -> str:
    """Return the options of a logger as they were typed."""
    options = (typed for key, _, typed in split_options(args) if key.startswith("--trainer.logger."))
    return " ".join(arg for typed in options for arg in typed)


def _entries(config: Any) -> list[tuple[str, Any]]:
    values = vars(config) if isinstance(config, Namespace) else config
    return [(str(name), value) for name, value in values.items()] if isinstance(values, dict) else []


def _is_empty(value: Any) -> bool:
    return isinstance(value, dict | Namespace) and all(_is_empty(item) for _, item in _entries(value))


@dataclass(frozen=True)
class DataOptions:
    """``--data NAME`` and ``--data.*`` of a command: annotate a parameter by this class.

    Args:
        class_path: Import path of the data module.
        init_args: Its options that were given or have a default.
        args: The arguments as they were typed, to print another command on the same data.
    """

    class_path: str
    init_args: dict[str, Any]
    args: tuple[str, ...] = ()

    def make(self, **changed: Any) -> TabularDataModule:
        """Return the data module; ``changed`` overrides options, for example ``seed=3``."""
        made: TabularDataModule = self.maker(**changed)()
        return made

    def maker(self, **changed: Any) -> partial[TabularDataModule]:
        """Return a callable that makes the data module; it can be sent to other processes."""
        from fairrf_lightning.methods import KSMOTE  # noqa: PLC0415 - needs torch

        options = self.init_args | changed
        if isinstance(options.get("ksmote"), dict):
            options["ksmote"] = KSMOTE(**options["ksmote"])
        return partial(import_class(self.class_path), **options)


@dataclass(frozen=True)
class DataOverrides:
    """``--data.*`` of a command on a checkpoint: options of the data that differ from those in training.

    Args:
        options: The options.
        name: ``--data NAME``, which is not needed but checked.
    """

    options: dict[str, Any] = field(default_factory=dict)
    name: str = ""

    def load(self, path: Path, trust: Collection[str] = ()) -> Run:
        """Return the run of a checkpoint or folder.

        Raises:
            InputError: If it cannot be loaded, or is of other data than ``name``.
        """
        from fairrf_lightning import datamodules  # noqa: PLC0415 - imports torch
        from fairrf_lightning.load import load_run  # noqa: PLC0415

        if self.name and "." not in self.name and self.name not in preset_names("datamodules"):
            hint = did_you_mean(self.name, preset_names("datamodules"))
            raise InputError(f"--data {self.name}: no such data set; {hint}")
        run = load_run(path, data_options=self.options, trust=trust)
        known = {kind.name: kind for kind in vars(datamodules).values() if hasattr(kind, "name")}
        if self.name in known and not isinstance(run.data, known[self.name]):
            raise InputError(
                f"{path}: this checkpoint was trained on {type(run.data).__name__}, not on "
                f"{known[self.name].__name__}."
            )
        return run


_DATA_KINDS = (DataOptions, DataOverrides)


@dataclass(frozen=True)
class _Parameter:
    name: str
    kind: Any  # its annotation
    default: Any
    help: str

    @property
    def is_positional(self) -> bool:
        return self.default is inspect.Parameter.empty and self.kind not in _DATA_KINDS

    @property
    def is_list(self) -> bool:
        return any(get_origin(kind) in _LISTS for kind in self.kinds)

    @property
    def is_flag(self) -> bool:
        return bool in self.kinds

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The members of its annotation, without None."""
        kinds = get_args(self.kind) if get_origin(self.kind) in (Union, UnionType) else (self.kind,)
        return tuple(kind for kind in kinds if kind is not NoneType)

    @property
    def label(self) -> str:
        """Name and placeholder in the help."""
        if self.is_positional:
            return self.name
        if self.is_flag:
            return f"--{self.name}"
        if self.kind is DataOverrides:
            return f"--{self.name}.OPTION VALUE"
        return f"--{self.name} {'NAME' if self.kind is DataOptions else self._placeholder}"

    @property
    def _placeholder(self) -> str:
        if self.is_list:
            return "A,B,..."
        if get_origin(self.kinds[0]) is Literal:
            return "|".join(map(str, get_args(self.kinds[0])))
        names = {int: "N", float: "X", Path: "PATH"}
        return next((names[kind] for kind in self.kinds if kind in names), "TEXT")


def takes_options_of(analysis: Callable[..., Any], *provided: str) -> Callable[[_Command], _Command]:
    """Give a command the options of an analysis, which it gets as ``**options`` and passes on.

    Their types, defaults and help are those of the analysis, so that each stands in one place.

    Args:
        analysis: The analysis, or a dataclass of options.
        provided: Arguments of the analysis that the command provides itself.
    """

    def decorate(command: _Command) -> _Command:
        command.analyses = [(analysis, provided), *getattr(command, "analyses", ())]  # type: ignore[attr-defined]
        return command

    return decorate


def call(function: Callable[..., Any], args: Sequence[str], name: str) -> Any:
    """Parse the arguments of a command and call its function.

    Parameters without a default are positional (and may be given as options); the others are options.
    A list is written ``a,b`` or ``[a,b]``, a flag ``--flag`` or ``--flag false``, and ``--two-words`` is
    ``--two_words``. A parameter annotated by :class:`DataOptions` is ``--data NAME`` and ``--data.*``, one
    annotated by :class:`DataOverrides` is ``--data.*`` of a checkpoint.

    Args:
        function: A function with annotated parameters and a Google docstring.
        args: The arguments behind the name of the command.
        name: Name of the command.

    Returns:
        What the function returns.

    Raises:
        InputError: If an option is unknown, missing or of the wrong type.
    """
    parameters = {one.name: one for one in _parameters(function)}
    if {"--help", "-h"} & set(args):
        sys.stdout.write(command_help(function, name))
        raise SystemExit(0)
    given = _Given(parameters, name, list(args))
    for one in parameters.values():
        if one.is_positional and one.name not in given.values:
            raise InputError(
                f"{name} needs {one.name}: {one.help}\nSee: {shell_command(*name.split(), '--help')}"
            )
    try:
        options = _parse(parameters.values(), name, given)
    except (ArgumentError, TypeError, ValueError) as error:
        message = explain(error)
        is_option = re.split(r"[:. ]", message)[0] in parameters
        raise InputError(f"--{message}" if is_option else message) from error
    return function(**{key: _value(one, options, given) for key, one in parameters.items()})


class _Given:
    """The arguments of a command: text by the name of its parameter, and the options of the data."""

    def __init__(self, parameters: dict[str, _Parameter], command: str, args: list[str]) -> None:
        self.command = command
        self.values: dict[str, str] = {}
        self.data_args: list[str] = []
        self.data_options: dict[str, str] = {}
        self._parameters = parameters
        self._positional = [one.name for one in parameters.values() if one.is_positional]
        data = next((one.name for one in parameters.values() if one.kind in _DATA_KINDS), None)
        bare: list[str] = []
        while args:
            arg = args.pop(0)
            if not arg.startswith("--"):
                bare.append(arg)
                continue
            key, equals, value = arg.partition("=")
            name = self._name_of(key)
            if data and (key == "--method" or re.split(r"[.+]", key[2:])[0] == data):
                if not equals and args and args[0].startswith("--"):
                    raise InputError(f"{key}: expected a value.")
                typed = [arg] if equals or not args else [arg, args.pop(0)]
                self.data_args += typed
                self.data_options[key] = value if equals else "".join(typed[1:])
            elif name in parameters:
                self._add(name, [value] if equals else self._take(name, args, len(bare)))
            else:
                known = [one.name for one in parameters.values() if not one.is_positional]
                raise unknown_option(key, known, shell_command(*command.split(), "--help"))
        missing = [name for name in self._positional if name not in self.values]
        for name, value in zip(missing, bare, strict=False):
            self._add(name, [value])
        if len(bare) > len(missing):
            raise InputError(f"{command}: unexpected argument {bare[len(missing)]!r}.")

    def _take(self, name: str, args: list[str], seen: int) -> list[str]:
        """Take the values of an option from the front of the arguments."""
        one = self._parameters[name]
        if not args or args[0].startswith("--") or (one.is_flag and args[0].lower() not in ("true", "false")):
            if one.is_flag:
                return ["true"]
            raise InputError(f"--{name}: expected a value.")
        taken = [args.pop(0)]
        # `--drop a b`: more words than there are positional arguments belong to the list.
        while one.is_list and args and not args[0].startswith("--"):
            if seen + self._count_bare(args) <= len(self._positional):
                break
            taken.append(args.pop(0))
        return taken

    def _name_of(self, key: str) -> str:
        """Return the name of the parameter that an option means."""
        name = key.removeprefix("--").replace("-", "_")
        is_alias = name in _FIRST_ARGUMENT and name not in self._parameters and self._positional
        return self._positional[0] if is_alias else name

    def _count_bare(self, args: list[str]) -> int:
        """Return how many arguments are values of no option, counting positional ones given as options."""
        bare, is_value = sum(name in self.values for name in self._positional), False
        for arg, following in zip(args, [*args[1:], ""], strict=True):
            key, equals, _ = arg.partition("=")
            if arg.startswith("--"):
                one = self._parameters.get(self._name_of(key))
                bare += one is not None and one.is_positional
                is_flag = one is not None and one.is_flag
                is_value = not equals and (not is_flag or following.lower() in ("true", "false"))
            else:
                bare += not is_value
                is_value = False
        return bare

    def _add(self, name: str, values: list[str]) -> None:
        one, text = self._parameters[name], values[0]
        if one.is_list and values not in (["null"], ["None"]):
            text = json.dumps([item for value in values for item in _items(value)], ensure_ascii=False)
            if any({int, float} & set(get_args(kind)) for kind in one.kinds):
                text = text.replace('"', "")
        self.values[name] = text


def _items(text: str) -> list[str]:
    """Return the parts of a list that is written ``a,b`` or ``[a,b]``.

    >>> _items("age, housing"), _items("[a,'b, c']"), _items("")
    (['age', 'housing'], ['a', 'b, c'], [])
    """
    if text.startswith("[") and text.endswith("]"):
        try:
            return [str(item) for item in yaml.load(text, Loader=yaml.BaseLoader)]  # noqa: S506 - strings only
        except yaml.YAMLError:
            text = text[1:-1]
    return [item.strip() for item in text.split(",") if item.strip()]


def _parse(parameters: Iterable[_Parameter], name: str, given: _Given) -> Namespace:
    parser = ShortNameParser(prog=name, exit_on_error=False, add_help=False)
    data_args: list[str] = []
    for one in parameters:
        if one.kind is DataOptions:
            from fairrf_lightning.datamodules.base import TabularDataModule  # noqa: PLC0415

            parser.add_subclass_arguments(TabularDataModule, one.name, required=False)
            data_args = given.data_args
        elif one.kind is not DataOverrides:
            default = None if one.is_positional else one.default
            parser.add_argument(f"--{one.name}", type=one.kind, default=default)
    args = [*(f"--{key}={text}" for key, text in given.values.items()), *data_args]
    options: Namespace = parser.parse_args(args)
    return options


def _value(one: _Parameter, options: Namespace, given: _Given) -> Any:
    if one.kind is DataOverrides:
        changed = dict(given.data_options)
        name = changed.pop(f"--{one.name}", "")
        return DataOverrides(
            {
                key.partition(".")[2]: yaml.safe_load(as_list(text) if key in LIST_OPTIONS else text)
                for key, text in changed.items()
            },
            name,
        )
    value = options[one.name]
    if one.kind is not DataOptions or (value is None and one.default is None):
        return value
    if value is None:
        raise InputError(f"{given.command}: {NO_DATA}")
    spec = value.as_dict()
    return DataOptions(spec["class_path"], dict(spec.get("init_args") or {}), tuple(given.data_args))


def _parameters(function: Callable[..., Any]) -> list[_Parameter]:
    hints = get_type_hints(function)
    helps = {one.arg_name: " ".join((one.description or "").split()) for one in _doc(function).params}
    kinds = {name: DataOptions if DataOptions in get_args(hint) else hint for name, hint in hints.items()}
    own = [
        _Parameter(name, kinds[name], one.default, helps.get(name, ""))
        for name, one in inspect.signature(function).parameters.items()
        if one.kind is not one.VAR_KEYWORD
    ]
    taken = [
        one
        for analysis, provided in getattr(function, "analyses", ())
        for one in _parameters(analysis)
        if one.name not in provided
    ]
    return sorted([*own, *taken], key=lambda one: (one.default is not inspect.Parameter.empty, one in own))


def _doc(function: Callable[..., Any]) -> docstring_parser.Docstring:
    return docstring_parser.parse(function.__doc__ or "", docstring_parser.DocstringStyle.GOOGLE)


def command_help(function: Callable[..., Any], name: str) -> str:
    """Return the help of a command, 80 columns wide."""
    doc, parameters = _doc(function), _parameters(function)
    positional = [one for one in parameters if one.is_positional]
    options = [one for one in parameters if not one.is_positional]
    usage = shell_command(*name.split(), *(one.name for one in positional))
    parts = [f"Usage: {usage}{' [options]' * bool(options)}"]
    parts += [_wrap(_plain(text)) for text in (doc.short_description, doc.long_description) if text]
    for title, group in (("Arguments", positional), ("Options", options)):
        if group:
            parts.append("\n".join([f"{title}:", *(_line(one.label, _describe(one)) for one in group)]))
    parts += [
        f"Examples:\n{textwrap.indent(one.description or '', f'  {shell_command()} ')}"
        for one in doc.examples
    ]
    return "\n\n".join(parts) + "\n"


def _describe(one: _Parameter) -> str:
    if one.kind is DataOptions:
        return f"{one.help} Its options are --{one.name}.OPTION; list them by --{one.name}.help NAME.".strip()
    text = _plain(one.help)
    if one.default in (inspect.Parameter.empty, None, "", False, (), []) or "default" in text:
        return text
    default = ",".join(map(str, one.default)) if isinstance(one.default, list | tuple) else one.default
    return f"{text} Default: {str(default).lower() if one.is_flag else default}."


def _plain(text: str) -> str:
    return re.sub(r"``(.+?)``", r"\1", text)


def _wrap(text: str) -> str:
    return "\n\n".join(textwrap.fill(" ".join(part.split()), 80) for part in text.split("\n\n"))


def _line(label: str, text: str, width: int = 22) -> str:
    lines = textwrap.wrap(text, 80 - width - 2) or [""]
    first = f"  {label}"
    start = [f"{first:<{width}}  {lines.pop(0)}"] if len(first) <= width else [first]
    return "\n".join([*start, *(" " * (width + 2) + line for line in lines)]).rstrip()
