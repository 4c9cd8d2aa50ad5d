"""Type hints of a tool's parameters as strict JSON Schema, in the subset that every model provider and MCP take.

    str int float bool               Literal["a", "b"]              list[X]
    a TypedDict of these             Annotated[X, Bounds(ge=1)]     X | None for a parameter that may be left out

A text in `Annotated` describes the parameter to the agent. Every object is closed and needs all of its properties; what
may be left out is nullable instead. Anything else raises TypeError that names function, parameter and what is allowed.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

Schema = dict[str, Any]

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ALLOWED = "allowed are str, int, float, bool, Literal, list, TypedDict, Annotated with Bounds or a text, and X | None"
# Bounds by type of JSON value, and the keywords they become.
_KEYWORDS = {
    "integer": {"ge": "minimum", "le": "maximum"},
    "number": {"ge": "minimum", "le": "maximum"},
    "string": {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a value, both inclusive: of a number, or of the length of a text or list; `pattern` is of a text.

    A pattern is looked for anywhere in the text unless it is anchored: "^[0-9]+$".
    """

    ge: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None


def parameters_schema(function: Callable[..., Any]) -> Schema:
    """Return the schema of a method's arguments, `self` left out."""
    name = function.__qualname__
    if not _NAME.fullmatch(function.__name__):
        raise TypeError(f"{name}: the name of a tool is up to 64 of A-Z a-z 0-9 _ -")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"{name}: its type hints cannot be read: {error}") from None
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return _closed({part.name: _parameter(f"{name}: parameter {part.name}", part, hints) for part in parameters})


def _parameter(where: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Schema:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise TypeError(f"{where}: found {parameter}, expected a parameter with a name of its own")
    if parameter.name not in hints:
        raise TypeError(f"{where} has no type; {_ALLOWED}")
    hint = hints[parameter.name]
    inner = _without_none(hint)
    if parameter.default not in (None, parameter.empty) or (parameter.default is None and inner is None):
        raise TypeError(f"{where}: a parameter that may be left out is written X | None = None")
    if inner is None:
        return _schema(where, hint)
    schema = _schema(where, inner)
    listed = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [schema["type"], "null"], **listed}


def _without_none(hint: Any) -> Any:
    """Return X of `X | None`, also within Annotated; None when the hint has no None."""
    if get_origin(hint) is Annotated:
        inner = _without_none(hint.__origin__)
        return None if inner is None else Annotated[(inner, *hint.__metadata__)]
    if get_origin(hint) not in (Union, UnionType) or NoneType not in get_args(hint):
        return None
    return Union[tuple(part for part in get_args(hint) if part is not NoneType)]  # noqa: UP007 - made from parts


def _schema(where: str, hint: Any) -> Schema:
    if isinstance(hint, type) and hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(where, _schema(where, parts[0]), parts[1:])
    if origin is Literal and len({type(value) for value in parts}) == 1 and type(parts[0]) in (str, int):
        return {"type": _PLAIN[type(parts[0])], "enum": list(parts)}
    if origin is list and parts:
        return {"type": "array", "items": _schema(where, parts[0])}
    if is_typeddict(hint) and not hint.__optional_keys__:
        hints = get_type_hints(hint, include_extras=True)
        return _closed({key: _schema(f"{where}: key {key}", value) for key, value in hints.items()})
    raise TypeError(f"{where}: found {inspect.formatannotation(hint)}; {_ALLOWED} = None for a whole parameter")


def _annotated(where: str, schema: Schema, extras: tuple[Any, ...]) -> Schema:
    allowed = _KEYWORDS.get(schema["type"], {})
    for extra in extras:
        if isinstance(extra, str):
            schema["description"] = extra
            continue
        if not isinstance(extra, Bounds):
            raise TypeError(f"{where}: found {extra!r} in Annotated, expected Bounds(…) or a text")
        for name in Bounds.__slots__:
            value = getattr(extra, name)
            if value is not None and name not in allowed:
                raise TypeError(f"{where}: {name} has no meaning for type {schema['type']}")
            if value is not None:
                schema[allowed[name]] = value
    return schema


def _closed(properties: Mapping[str, Schema]) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
