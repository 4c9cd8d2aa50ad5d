"""When two JSON values are the same, how a value is written canonically, and how a difference is told to people.

The rules, which contracts, loop detection and digests rely on:

- An entry of a mapping that is null is the same as no entry.
- A whole number is the same written 20 or 20.0. A boolean is not a number, and the text "20" is not one either.
- NaN is not the same as anything.
- Texts are the same when their code points are. Nothing is trimmed, case-folded or normalised; a finding about two
  texts that look alike shows the code points.
"""

import json
import math
import unicodedata
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import orjson

_LEAST, _MOST = -(2**63), 2**63 - 1  # whole numbers that every reader of a record can hold

# What orjson cannot write (integers over 64 bits, lone surrogates) or would write although it is no JSON (dataclasses,
# dates) is left to the standard library, which writes or refuses it.
_OPTIONS = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
_encode_anything = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=repr).encode


def canonical(value: Any) -> Any:
    """Return the value with null entries of mappings dropped and whole floats as integers, at any depth.

    Raise TypeError or ValueError for what JSON or a record cannot hold: other types, keys that are not text, NaN and
    infinities, integers over 64 bits, lone surrogates.
    """
    kind = type(value)  # the usual kinds first: this is done to every argument of every call
    if kind is dict:
        return {_key(key): canonical(item) for key, item in value.items() if item is not None}
    if kind is str or isinstance(value, str):
        if not value.isascii():
            value.encode()  # a lone surrogate raises
        return value if kind is str else str.__str__(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not _LEAST <= value <= _MOST:
            raise ValueError("a whole number needs more than 64 bits")
        return value if kind is int else int.__int__(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a JSON number")
        return int(value) if value.is_integer() and _LEAST <= value <= _MOST else float.__float__(value)
    if isinstance(value, Mapping):
        return {_key(key): canonical(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"the key of a mapping is {type(key).__name__}, expected text")
    return canonical(key)  # type: ignore[no-any-return]


def canonical_json(value: Any) -> bytes:
    """Return the value as compact JSON in UTF-8 with sorted keys; equal canonical values give equal bytes."""
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except TypeError:
        return _encode(value).encode("utf-8", "surrogatepass")


def same_value(expected: Any, actual: Any, *, absolute: float = 0.0, relative: float = 0.0) -> bool:
    """Whether two JSON values are the same under the rules above.

    Numbers may differ by the larger of `absolute` and `relative` times the expected number, both inclusive and
    compared as the decimals they are written as, so that 1.1 is within 0.1 of 1.
    """
    if expected is None or isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if isinstance(expected, str):
        return isinstance(actual, str) and expected == actual
    if isinstance(expected, (int, float)):
        return isinstance(actual, (int, float)) and (
            expected == actual or (bool(absolute or relative) and _is_near(expected, actual, absolute, relative))
        )
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping):
            return False
        wanted = {key: item for key, item in expected.items() if item is not None}
        return wanted.keys() == {key for key, item in actual.items() if item is not None} and all(
            same_value(item, actual[key], absolute=absolute, relative=relative) for key, item in wanted.items()
        )
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(actual, (list, tuple))
            and len(expected) == len(actual)
            and all(
                same_value(item, other, absolute=absolute, relative=relative)
                for item, other in zip(expected, actual, strict=True)
            )
        )
    raise TypeError(f"{type(expected).__name__} is not a JSON type")


def _is_near(expected: float, actual: float, absolute: float, relative: float) -> bool:
    if any(isinstance(number, float) and not math.isfinite(number) for number in (expected, actual)):
        return False
    wanted = _as_written(expected)
    allowed = max(_as_written(absolute), _as_written(relative) * abs(wanted))
    return abs(_as_written(actual) - wanted) <= allowed


def _as_written(number: float) -> Fraction:
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def show(value: Any, *, limit: int = 200) -> str:
    """Return the value as readable text of bounded length."""
    text = _encode_anything(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def difference(expected: Any, actual: Any) -> str:
    """Return "expected …, found …", with code points where the two look alike but are not the same."""
    sentence = f"expected {show(expected)}, found {show(actual)}"
    one, other = _encode_anything(expected), _encode_anything(actual)
    if not look_alike(one, other):
        return sentence
    start = _shared(one, other)
    end = min(_shared(one[::-1], other[::-1]), len(one) - start, len(other) - start)
    one, other = one[start : len(one) - end], other[start : len(other) - end]
    return f"{sentence} (they look alike: {code_points(one)} against {code_points(other)})"


def _shared(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def look_alike(one: str, other: str) -> bool:
    """Whether two different texts are equal up to Unicode form, case, blanks and invisible characters."""
    return one != other and _folded(one) == _folded(other)


def _folded(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).casefold()
    return "".join(character for character in text if character.isprintable() and character != " ")


def code_points(text: str) -> str:
    """Return the code points of a text, "U+0065 U+0301"; "nothing" for an empty one."""
    return " ".join(f"U+{ord(character):04X}" for character in text) or "nothing"
