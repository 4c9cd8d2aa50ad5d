"""JSON Schemas of the files a user writes, for editors and for other programs."""

from typing import Any

from pydantic import TypeAdapter

from passhat.runner.errors import UsageError
from passhat.runner.files import nearest
from passhat.runner.gate_file import GateFile
from passhat.runner.release import ReleaseFile
from passhat.runner.suite import SuiteFile
from passhat.workers.contract import Task

_MODELS: dict[str, tuple[Any, str]] = {
    "suite": (SuiteFile, "passhat suite file"),
    "release": (ReleaseFile, "passhat release file"),
    "task": (Task, "one line of a passhat task file"),
    "gate": (GateFile, "passhat gate file"),
}
KINDS = tuple(_MODELS)


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file: "suite", "release", "task" or "gate"."""
    if kind not in _MODELS:
        raise UsageError(f"schema {kind}: no such kind; {nearest(kind, _MODELS)}")
    model, title = _MODELS[kind]
    content = TypeAdapter(model).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **content, "title": title}
