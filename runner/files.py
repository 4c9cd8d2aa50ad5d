"""Reads what people and other tools wrote, text, JSON, CSV and YAML, each in one way, and checks it against a model.

Text is UTF-8, with or without byte order mark, plain or gzip, with LF or CR LF; a line ends at a line feed and nowhere
else. JSON and YAML give the same kinds of values: a key stands once, numbers are finite, nothing is converted (`no` is
text, `12:30` is text, "1" is not 1). Every error names the file and, where it has one, the line. Knows nothing of what
is in the files.
"""

import codecs
import csv
import difflib
import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import yaml
from pydantic import TypeAdapter, ValidationError

from passhat.runner.errors import InvalidFile

T = TypeVar("T")
Loc = tuple[str | int, ...]

_MOST_PROBLEMS = 20
_MOST_NAMES = 20
_LONGEST_VALUE = 80
_MOST_YAML_VALUES = 100_000


@dataclass(frozen=True, slots=True)
class Document:
    """The values of a file, or of one line of it, and the line on which each of them starts, as far as it is known."""

    path: Path
    data: Any
    lines: Mapping[Loc, int]

    def line(self, loc: Loc) -> int | None:
        """Return the line of a value, or of the closest one around it whose line is known."""
        known = (loc[:length] for length in range(len(loc), -1, -1))
        return next((self.lines[prefix] for prefix in known if prefix in self.lines), None)

    def place(self, loc: Loc = ()) -> str:
        """Return "file:line"."""
        line = self.line(loc)
        return str(self.path) if line is None else f"{self.path}:{line}"

    def problem(self, loc: Loc, text: str) -> str:
        """Return "file:line  field: text"."""
        return f"{self.place(loc)}  {'.'.join(map(str, loc))}: {text}" if loc else f"{self.place()}  {text}"


def invalid(problems: Sequence[str]) -> InvalidFile:
    """Return an error that lists the problems, the first twenty when there are many."""
    more = len(problems) - _MOST_PROBLEMS
    return InvalidFile("\n".join([*problems[:_MOST_PROBLEMS], *([f"… and {more} more"] if more > 0 else [])]))


def shown(value: Any) -> str:
    """Return a value as it would be written in JSON, cut to 80 characters."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return "did you mean …?" for a likely misspelling, else what is allowed."""
    known = sorted(allowed)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    more = ["…"] if len(known) > _MOST_NAMES else []
    return f"allowed are {', '.join(known[:_MOST_NAMES] + more) or 'none'}"


# Text


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as file:
            if file.peek(2)[:2] == b"\x1f\x8b":
                with gzip.open(file) as unpacked:
                    yield cast(IO[bytes], unpacked)
            else:
                yield file
    except FileNotFoundError:
        raise InvalidFile(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidFile(f"{path}: cannot be read: {error}") from error


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines without their ends."""
    with _opened(path) as stream:
        for number, raw in enumerate(stream, 1):
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
                if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise InvalidFile(f"{path}: found UTF-16, expected UTF-8; save the file as UTF-8")
            if b"\0" in raw:
                raise InvalidFile(f"{path}:{number}  found a NUL byte (UTF-16 or binary), expected UTF-8 text")
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                byte = f"0x{raw[error.start]:02x}"
                raise InvalidFile(f"{path}:{number}  found byte {byte}, expected UTF-8; save it as UTF-8") from None
            yield text.removesuffix("\n").removesuffix("\r")


def read_text(path: Path) -> str:
    """Return the text of a file, every line ended by one line feed."""
    return "".join(f"{line}\n" for line in _lines(path))


# JSON


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {shown(twice)} is given twice")
    return values


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"found {text}, expected a finite number")
    return value


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)
_CONSTANTS = {text: float(text) for text in ("NaN", "Infinity", "-Infinity")}  # one NaN, which is equal to itself
_lenient_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_CONSTANTS.__getitem__)


def _parse(text: str, path: Path, line: int, *, finite: bool = True) -> Any:
    try:
        value = (_decoder if finite else _lenient_decoder).decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        place = f"{path}:{line + error.lineno - 1}"
        raise InvalidFile(f"{place}  not JSON: {error.msg} at column {error.colno}") from None
    except UnicodeEncodeError:
        raise InvalidFile(f"{path}:{line}  found half of a surrogate pair in a \\u escape") from None
    except RecursionError:
        raise InvalidFile(f"{path}:{line}  nested too deeply") from None
    except ValueError as error:
        raise InvalidFile(f"{path}:{line}  {error}") from None
    return value


def read_json(path: Path, *, finite: bool = True) -> Any:
    """Return the value of a JSON file; without `finite`, numbers may be NaN and infinite, as other tools write them."""
    return _parse(read_text(path), path, 1, finite=finite)


def read_jsonl(path: Path, *, finite: bool = True) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of each line that is not blank; `finite` as for `read_json`."""
    for number, text in enumerate(_lines(path), 1):
        if not text.strip():
            continue
        value = _parse(text, path, number, finite=finite)
        if not isinstance(value, dict):
            raise InvalidFile(f"{path}:{number}  found {shown(value)}, expected an object")
        yield number, value


# CSV


def read_csv(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and values by column name of each row; a row has as many values as the header, or is blank."""
    reader = csv.reader((f"{line}\n" for line in _lines(path)), strict=True)
    header: list[str] = []
    line = 1
    try:
        for row in reader:
            if header and row:
                if len(row) != len(header):
                    raise InvalidFile(
                        f"{path}:{line}  found {len(row)} values, expected {len(header)} as in the header"
                    )
                yield line, dict(zip(header, row, strict=True))
            elif row:
                header = _header(row, path, line)
            line = reader.line_num + 1
    except csv.Error as error:
        raise InvalidFile(f"{path}:{line}  not CSV: {error}") from None
    if not header:
        raise InvalidFile(f"{path}: found nothing, expected a header")


def _header(row: list[str], path: Path, line: int) -> list[str]:
    for name in row:
        if not name.strip() or row.count(name) > 1:
            raise InvalidFile(f"{path}:{line}  found column {shown(name)}, expected names that differ, none empty")
    return row


# YAML


class _Refused(Exception):
    """A node of a YAML file that is well formed, but not for us."""

    def __init__(self, node: yaml.Node, problem: str) -> None:
        super().__init__(problem)
        self.line = node.start_mark.line + 1


class _Loader(yaml.SafeLoader):
    """Takes for a number, a boolean or null what JSON takes for one (`.5`, `+1` and `~` too), and the rest for text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - replaces the attribute of the library's class


_TAG = "tag:yaml.org,2002:"
_PLAIN = {
    "bool": (r"true|false", "tf"),
    "null": (r"null|~|", ["n", "~", ""]),
    "int": (r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    "float": (r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", "-+.0123456789"),
}
for _kind, (_pattern, _first) in _PLAIN.items():
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(f"^(?:{_pattern})$"), list(_first))


def read_yaml(path: Path) -> Document:
    """Return the one document of a YAML file."""
    lines: dict[Loc, int] = {}
    try:
        node = yaml.compose(read_text(path), Loader=_Loader)
        data = None if node is None else _build(node, (), lines)
    except yaml.MarkedYAMLError as error:
        place = path if error.problem_mark is None else f"{path}:{error.problem_mark.line + 1}"
        raise InvalidFile(f"{place}  not YAML: {', '.join(filter(None, (error.context, error.problem)))}") from None
    except yaml.YAMLError as error:
        raise InvalidFile(f"{path}  not YAML: {' '.join(str(error).split())}") from None
    except _Refused as error:
        raise InvalidFile(f"{path}:{error.line}  {error}") from None
    except RecursionError:
        raise InvalidFile(f"{path}: nested too deeply") from None
    return Document(path, data, lines)


def _build(node: yaml.Node, loc: Loc, lines: dict[Loc, int]) -> Any:
    """Return the value of a node, and note on which line it and everything in it starts."""
    lines[loc] = node.start_mark.line + 1
    if len(lines) > _MOST_YAML_VALUES:  # aliases of aliases grow without end
        raise _Refused(node, f"found more than {_MOST_YAML_VALUES:,} values, expected a file to read by hand")
    if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
        return [_build(child, (*loc, index), lines) for index, child in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
        return _mapping(node, loc, lines)
    return _scalar(node)


def _mapping(node: yaml.MappingNode, loc: Loc, lines: dict[Loc, int]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _scalar(key_node)
        if not isinstance(key, str):
            raise _Refused(key_node, f"found key {shown(key)}, expected a string: put it in quotes")
        if key in values:
            raise _Refused(key_node, f"key {shown(key)} is given twice")
        values[key] = _build(value_node, (*loc, key), lines)
        lines[(*loc, key)] = key_node.start_mark.line + 1
    return values


def _scalar(node: yaml.Node) -> Any:
    read = _READ.get(node.tag)
    if read is None or not isinstance(node, yaml.ScalarNode):
        raise _Refused(node, f"found {node.tag}, expected a plain value, a list or a mapping")
    try:
        return read(node.value)
    except UnicodeEncodeError:
        raise _Refused(node, "found half of a surrogate pair in a \\u escape") from None
    except ValueError as error:
        raise _Refused(node, str(error)) from None


def _text(text: str) -> str:
    text.encode()  # half of a surrogate pair raises
    return text


_READ: Mapping[str, Callable[[str], Any]] = {
    f"{_TAG}str": _text,
    f"{_TAG}null": lambda text: None,
    f"{_TAG}bool": json.loads,
    f"{_TAG}int": int,
    f"{_TAG}float": lambda text: _finite(text.replace(".inf", "inf").replace(".nan", "nan")),
}


# Validation


_EXPECTED = {
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "dataclass_type": "a mapping",
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "string_too_short": "at least {min_length} character",
}
_SAID = ("value_error", "json_invalid")  # the whole message comes with the error
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")


def validate(model: type[T] | TypeAdapter[T], document: Document) -> T:
    """Return the document as an instance of the model; raise InvalidFile that lists every problem.

    Nothing is converted, except that a list may fill a tuple and a whole number a float.
    """
    kind: Any = model
    adapter: TypeAdapter[T] = kind if isinstance(kind, TypeAdapter) else _adapter(kind)
    try:
        # JSON is where pydantic is strict about values and yet takes a list for a tuple.
        return adapter.validate_json(json.dumps(document.data), strict=True)
    except ValidationError as error:
        raise invalid(_problems(error, adapter, document)) from None


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _problems(error: ValidationError, adapter: TypeAdapter[Any], document: Document) -> list[str]:
    """Return one problem a field, by line. An alternative of a union that fails higher up than another is left out."""
    expected: dict[Loc, list[str]] = {}
    found: dict[Loc, str] = {}
    hint: dict[Loc, str] = {}
    for item in error.errors(include_url=False):
        loc = _field(item["loc"], document.data, is_absent=item["type"] == "missing")
        expected.setdefault(loc, []).append(_expectation(item, loc, adapter))
        found[loc] = f"found {shown(item['input'])}, expected " if _names_a_kind(item) else ""
        hint[loc] = hint.get(loc) or (how_to_quote(item["input"]) if item["type"] == "string_type" else "")
    outer = {loc[:length] for loc in expected for length in range(len(loc))}
    kept = [loc for loc in expected if loc not in outer or not found[loc]]
    kept.sort(key=lambda loc: document.line(loc) or 0)
    return [document.problem(loc, found[loc] + " or ".join(dict.fromkeys(expected[loc])) + hint[loc]) for loc in kept]


def _names_a_kind(item: Any) -> bool:
    return item["type"] not in (*_UNKNOWN_KEY, *_SAID, "missing")


def _field(loc: Loc, data: Any, *, is_absent: bool) -> Loc:
    """Return the location without the names of union alternatives, which are no part of the data."""
    kept: list[str | int] = []
    for part in loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            continue
        kept.append(part)
    return (*kept, loc[-1]) if is_absent else tuple(kept)


def _expectation(item: Any, loc: Loc, adapter: TypeAdapter[Any]) -> str:
    kind: str = item["type"]
    if kind == "missing":
        return "missing"
    if kind in _SAID:
        return str(item["ctx"]["error"])
    if kind in _UNKNOWN_KEY:
        return f"unknown key; {nearest(str(loc[-1]), _keys(adapter.json_schema(), loc[:-1]))}"
    return _EXPECTED.get(kind, "").format(**item.get("ctx", {})) or item["msg"].removeprefix("Input should be ")


def how_to_quote(value: Any) -> str:
    """Return the advice to give when a number or boolean stands where text is expected."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f'; write "{value}"'
    return "; put it in quotes" if isinstance(value, bool | float) else ""


def _keys(schema: Mapping[str, Any], loc: Loc) -> list[str]:
    """Return the keys that a JSON Schema allows at a place of the data."""
    places = _alternatives(schema, schema)
    for part in loc:
        children = [child for place in places for child in _children(place, part)]
        places = [place for child in children for place in _alternatives(child, schema)]
    return [key for place in places for key in place.get("properties", ())]


def _children(place: Mapping[str, Any], part: str | int) -> list[Mapping[str, Any]]:
    if isinstance(part, int):
        return [place["items"]] if "items" in place else []
    child = place.get("properties", {}).get(part, place.get("additionalProperties"))
    return [child] if isinstance(child, dict) else []


def _alternatives(place: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "$ref" in place:
        place = schema["$defs"][place["$ref"].rsplit("/", 1)[1]]
    return [found for one in place["anyOf"] for found in _alternatives(one, schema)] if "anyOf" in place else [place]
