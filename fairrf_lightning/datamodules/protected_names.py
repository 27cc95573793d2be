"""Finds columns whose names suggest a protected characteristic, such as sex, race or religion."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Characteristics protected by the laws against discrimination of the EU, the UK and the US, with common
# German, French and Spanish names. Age is left out: it is the most usual related feature. Words that
# mean something else as often, such as faith, origin or foreign, count in a phrase only.
_CHARACTERISTICS = (
    r"sex|sexe|sexo|genders?|genero|género|geschlecht|(?:fe)?males?|trans ?gender|non ?binary|pronouns?",
    r"sexuality|sexual ?orientation|lgbtq?",
    r"races?|racial|raza|rasse|skin ?colou?r|ethnic|ethnie|etnia|ethnicit(?:y|ies)|hispanic|latin[oa]",
    r"caste|tribe|tribal|indigenous|aboriginal",
    r"religions?|religious|religión|konfession|creed",
    r"disabled|disabilit(?:y|ies)|handicap(?:ped|é)?|behinderung|discapacidad",
    r"nationalit(?:y|ies)|nationalität|nationalité|nacionalidad|staatsangehörigkeit|citizenship",
    r"national ?origin|country ?of ?(?:origin|birth)|(?:native|birth) ?country|place ?of ?birth|birth ?place",
    r"foreigner|foreign ?(?:born|worker)|im?migrant|immigration|migration ?background|refugee",
    r"(?:native|first) ?language|mother ?tongue",
    r"marital|marital ?status|civil ?status|married|familienstand|pregnant|pregnancy|maternity",
)
_PATTERN = re.compile(rf"\b(?:{'|'.join(_CHARACTERISTICS)})\b")


def protected_names(columns: Iterable[str]) -> list[str]:
    """Return the columns whose names have a word that stands for a protected characteristic.

    Case, digits, underscores and the like do not matter, and ``camelCase`` is two words.

    >>> protected_names(["Sex", "is_female", "maritalStatus", "race-2", "sussex", "embrace", "age"])
    ['Sex', 'is_female', 'maritalStatus', 'race-2']
    """
    return [name for name in columns if _PATTERN.search(_as_words(name))]


def protected_inputs_notice(columns: Iterable[str]) -> str | None:
    """Return one line that names such columns and says what to do; ``None`` if there is none.

    Args:
        columns: The inputs of the model that the user has not named for any purpose.
    """
    found = protected_names(columns)
    if not found:
        return None
    names = ", ".join(repr(name) for name in found)
    subject, it = (f"columns {names} are inputs", "them")
    if len(found) == 1:
        subject, it = f"column {names} is an input", "it"
    return (
        f"{subject} of the model, and protected by name. To leave {it} out: data.drop, or data.sensitive to "
        f"measure gaps by it as well. To penalise {it}: data.related."
    )


def _as_words(name: str) -> str:
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return " ".join(re.findall(r"[^\W\d_]+", apart)).lower()
