"""Verifies a decision packet: its files by their digests, and all it says by computing it again from its evidence.

Whoever changes evidence and digests alike makes another packet, and its manifest has another digest: that one is to be
kept elsewhere.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

from passhat.runner.errors import InvalidFile, PasshatError
from passhat.runner.files import read_json
from passhat.runner.packet import MANIFEST, derive, digests_of, made_with, to_json
from passhat.runner.packet import SCHEMA as PACKET_SCHEMA
from passhat.runner.packet_data import EVIDENCE

SCHEMA = "passhat.verification/1"
_MOST_FIELDS = 20  # named of one file
_RELATIVE_TOLERANCE = 1e-9  # of numbers that other versions of the libraries computed
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # what odd evidence can bring about

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a packet that is not as it should be."""

    file: str
    field: str | None
    problem: str


def verify_packet(packet: Path) -> Document:
    """Compare a packet's files with its manifest, and all it says with what its evidence comes to.

    Return passhat.verification/1; `problems` is empty when everything holds.
    """
    if not (packet / MANIFEST).is_file():
        raise InvalidFile(f"{packet}: no packet here ({MANIFEST} is missing)")
    notes: list[str] = []
    files, contents = list(file_problems(packet)), list(_content_problems(packet, notes))
    if files and not contents and not notes:  # the page names the evidence's digests too
        files.append(Problem(MANIFEST, None, "was changed: all files agree with each other, and not with it"))
    problems = [*files, *contents]
    return {
        "schema": SCHEMA,
        "folder": str(packet),
        "holds": not problems,
        "files": sum(1 for _ in digests_of(packet)),
        "manifest_sha256": hashlib.sha256((packet / MANIFEST).read_bytes()).hexdigest(),
        "problems": [{"file": p.file, "field": p.field, "problem": p.problem} for p in problems],
        "notes": notes,
    }


def file_problems(packet: Path) -> Iterator[Problem]:
    """Yield files that are not what the manifest says, that it lacks, or that are not there."""
    try:
        listed = read_json(packet / MANIFEST)["files"]
        listed = {name: {"bytes": entry["bytes"], "sha256": entry["sha256"]} for name, entry in listed.items()}
    except (InvalidFile, *_MALFORMED):
        yield Problem(MANIFEST, None, "cannot be read")
        return
    found = dict(digests_of(packet))
    for name in sorted({*listed, *found}):
        if name not in found:
            yield Problem(name, None, "is missing")
        elif name not in listed:
            yield Problem(name, None, "is not in the manifest")
        elif listed[name] != found[name]:
            yield Problem(name, None, f"was changed: its SHA-256 is {found[name]['sha256']}")
    if (packet / MANIFEST).read_bytes() != to_json({"schema": PACKET_SCHEMA, "files": dict(sorted(listed.items()))}):
        yield Problem(MANIFEST, None, "is not as it was written")


def _content_problems(packet: Path, notes: list[str]) -> Iterator[Problem]:
    """Yield what a packet says that its evidence does not."""
    try:
        contents, files = derive(packet)
    except (PasshatError, OSError, *_MALFORMED) as error:
        yield Problem(EVIDENCE, None, f"cannot be computed again: {error or type(error).__name__}")
        return
    then, now = contents.request["made_with"], made_with()
    others = [f"{name} {then.get(name)} (here {now[name]})" for name in now if then.get(name) != now[name]]
    if others:
        notes.append(f"made with {', '.join(others)}: numbers are compared to 9 digits, and pages not at all")
    for name, expected in files.items():
        path = packet / name
        if path.is_file() and path.read_bytes() != expected and not (others and name.endswith(".html")):
            yield from _differing(name, path.read_bytes(), expected, is_exact=not others)
        elif not path.is_file():
            yield Problem(name, None, "follows from the evidence and is missing")
    for name, _ in digests_of(packet):
        if name not in files and not name.startswith(f"{EVIDENCE}/"):
            yield Problem(name, None, "does not follow from the evidence")


def _differing(name: str, found: bytes, expected: bytes, *, is_exact: bool) -> Iterator[Problem]:
    """Yield the fields of a file that differ; the file itself where it has none."""
    try:
        if name.endswith(".json"):
            values = json.loads(found), json.loads(expected)
        elif name.endswith(".csv"):
            values = _rows(found), _rows(expected)
        else:
            raise ValueError
    except ValueError:
        yield Problem(name, None, "is not what the evidence comes to")
        return
    fields = list(_fields(*values, "", is_exact))
    for field, problem in fields[:_MOST_FIELDS]:
        yield Problem(name, field, problem)
    if len(fields) > _MOST_FIELDS:
        yield Problem(name, None, f"and {len(fields) - _MOST_FIELDS} more fields")
    if not fields and is_exact:
        yield Problem(name, None, "says the same in other bytes")


def _rows(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode())))


def _fields(found: Any, expected: Any, field: str, is_exact: bool) -> Iterator[tuple[str, str]]:
    """Yield where two documents differ, and how."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in dict.fromkeys([*expected, *found]):
            yield from _fields(found.get(key), expected.get(key), f"{field}.{key}" if field else key, is_exact)
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for number, values in enumerate(zip(found, expected, strict=True)):
            yield from _fields(*values, f"{field}[{number}]", is_exact)
    elif found != expected and (is_exact or not _is_near(found, expected)):
        yield field, f"says {_short(found)}, the evidence {_short(expected)}"


def _is_near(found: Any, expected: Any) -> bool:
    try:
        return isclose(float(found), float(expected), rel_tol=_RELATIVE_TOLERANCE)
    except (TypeError, ValueError):
        return False


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
