"""``--model NAME`` and ``--method NAME``: short for a class, or for the options that make up a method."""

from __future__ import annotations

from fairrf_lightning.errors import InputError, did_you_mean

MODEL_CLASSES = {
    "fairrf": "fairrf_lightning.FairRFModule",
    "arl": "fairrf_lightning.methods.ARLModule",
}
METHODS = {name: [f"--model={name}"] for name in MODEL_CLASSES} | {
    "vanilla": ["--model.eta=0"],
    "constrain_s": ["--data.expose_sensitive=true"],
    "remove_r": ["--data.remove_related=true", "--model.eta=0"],
    "ksmote": ["--data.ksmote={}"],
}
METHOD_HELP = "--method NAME stands for these options: " + "; ".join(
    f"{name}: {' '.join(options)}" for name, options in METHODS.items()
)
_CLASSES = ("--config", "--data", "--model")  # they decide which other options there are


def expand_method(args: list[str]) -> list[str]:
    """Return the arguments with ``--method NAME`` spelt out.

    >>> expand_method(["fit", "--method", "vanilla", "--trainer.max_epochs=1", "--data", "adult"])
    ['fit', '--data', 'adult', '--model.eta=0', '--trainer.max_epochs=1']
    """
    options = _group(args)
    names = [_value(option) for option in options if _key(option) == "--method"]
    if not names:
        return args
    added = METHODS.get(names[-1])
    if added is None:
        raise InputError(f"--method {names[-1]}: no such name; {did_you_mean(names[-1], METHODS)}")
    given = {_key(option) for option in options}
    for option in added:
        if (key := option.partition("=")[0]) in given:
            raise InputError(f"--method {names[-1]} sets {option}: leave out one of --method and {key}.")
    first = [arg for option in options if _comes_first(option) for arg in option]
    rest = [option for option in options if not _comes_first(option) and _key(option) != "--method"]
    return [*first, *added, *(arg for option in rest for arg in option)]


def _group(args: list[str]) -> list[list[str]]:
    """Put each option together with the values that follow it."""
    groups: list[list[str]] = []
    for arg in args:
        if arg.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(arg)
    return groups


def _key(option: list[str]) -> str:
    return option[0].partition("=")[0]


def _value(option: list[str]) -> str:
    return option[0].partition("=")[2] or "".join(option[1:])


def _comes_first(option: list[str]) -> bool:
    return not option[0].startswith("--") or _key(option) in _CLASSES
