"""The rule for ids of tasks and names of cohorts and releases, wherever they come from.

A name is an exact string: never trimmed, converted or normalised. Two names that a reader could not tell apart, because
they differ in type, in surrounding blanks or in Unicode form alone, are refused.
"""

import unicodedata
from collections.abc import Iterable

from passhat.runner.files import how_to_quote, invalid, shown

_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "list", dict: "object"}
_CONTROL = ("Cc", "Cs", "Zl", "Zp")  # Unicode categories: control, surrogate, line and paragraph separator


def refuse_lookalikes(kind: str, names: Iterable[tuple[object, str]], *, unique: bool = False) -> None:
    """Raise InvalidFile, naming both places, when two names look alike; and for what is no name at all.

    `names` are pairs of a name and the place it stands ("tasks.jsonl:3"). The same name again is accepted unless
    `unique` is set.
    """
    first: dict[str, tuple[object, str]] = {}
    problems: list[str] = []
    for name, place in names:
        fault = fault_of(name)
        if fault:
            problems.append(f"{place}  {kind}: found {_typed(name)}, {fault}")
        this = (name, place)
        seen = first.setdefault(_appearance(name), this)
        other, elsewhere = seen
        if type(name) is not type(other) or name != other:
            problems.append(f"{place}  {kind}: {_typed(name)} looks like {_typed(other)} at {elsewhere}")
        elif unique and seen is not this:
            problems.append(f"{place}  {kind}: {_typed(name)} is already at {elsewhere}")
    if problems:
        raise invalid(problems)


def fault_of(name: object) -> str:
    """Return what keeps a value from being a name, or nothing."""
    if not isinstance(name, str):
        return f"expected a string{how_to_quote(name)}"
    if not name.strip():
        return "expected at least one character that is not blank"
    if not name.isprintable() and any(unicodedata.category(letter) in _CONTROL for letter in name):
        return "expected no control characters"
    return ""


def _appearance(name: object) -> str:
    if isinstance(name, float) and name.is_integer():
        name = int(name)
    return unicodedata.normalize("NFC", str(name)).strip()


def _typed(name: object) -> str:
    """Return a name with its type; one that is not plain ASCII with its code points, since it may look like another."""
    kind = _TYPES.get(type(name), "null")
    if isinstance(name, str) and not name.isascii():
        return f"{kind} {shown(name)} ({' '.join(f'U+{ord(letter):04X}' for letter in name if not letter.isascii())})"
    return f"{kind} {shown(name)}" if name is not None else kind
