"""What a user reads when the command line cannot be obeyed: a few lines, no traceback."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

from fairrf_lightning.errors import InputError, did_you_mean

_NOISE = re.compile(r"Does not validate|Subtypes:|Errors:|Given value|- Expected a <class 'NoneType'>")


def explain(error: BaseException) -> str:
    """Return our own message if one is behind the error, else the telling lines of the parser's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InputError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    lines = [line for line in str(error).splitlines() if line.strip() and not _NOISE.search(line)]
    return "\n".join(lines or [str(error)]) + _suggestion(str(error))


def _suggestion(message: str) -> str:
    option = re.search(r"Option '([\w.]+)' is not accepted", message)
    owner = re.search(r"class_path '([\w.]+)'", message)
    if option is None or owner is None:
        return ""
    if option[1] in ("expose_sensitive", "remove_related", "ksmote"):
        return "\n--method constrain_s, remove_r and ksmote are not available with these data."
    module, _, name = owner[1].rpartition(".")
    return "\n" + did_you_mean(option[1], _accepted(getattr(import_module(module), name)))


def _accepted(owner: type) -> list[str]:
    """Return the options of a class, also those that it hands on to its base by ``**kwargs``."""
    names = []
    for cls in owner.__mro__:
        parameters = list(inspect.signature(cls).parameters.values())
        names += [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
            break
    return names
