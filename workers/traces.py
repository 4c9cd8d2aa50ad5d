"""Traces: what is kept of a run beyond its record, for a person to read.

Workers write them, one file per shard: frames of compressed JSON, found by the file and offset in a run's record.
"""

import errno
import json
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

from passhat.workers import frames
from passhat.workers.contract import Task
from passhat.workers.episode import Episode
from passhat.workers.records import RunRecord


def trace_name(file: int) -> str:
    """Return the name of a trace file; `file` is the id of the shard that wrote it."""
    return f"{file:08d}.trace"


def compose(task: Task, release: str, record: RunRecord, episode: Episode) -> dict[str, Any]:
    """Return everything there is to see of a run, as plain values."""
    judgement, evidence = episode.judgement, episode.evidence
    return {
        "release": release,
        "task": task.id,
        "run": record.run,
        "attempt": record.attempt,
        "request": task.request,
        "inputs": dict(task.inputs),
        "calls": [
            {
                "tool": call.tool,
                "arguments": dict(call.arguments),
                "error": call.result.error,
                "result": dict(call.result.content),
                "receipt": _plain(call.result.receipt),
                "principal": _plain(call.principal),
            }
            for call in episode.calls
        ],
        "final": _plain(episode.final),
        "effects": [_plain(effect) for effect in evidence.effects] if evidence else [],
        "breaches": [_plain(breach) for breach in evidence.breaches] if evidence else [],
        "findings": list(judgement.findings) if judgement else [],
        "log": episode.log,
        "error": episode.error,
    }


def _plain(part: Any) -> dict[str, Any] | None:
    """Return the fields of a small record, if there is one."""
    return None if part is None else {field.name: getattr(part, field.name) for field in fields(part)}


class TraceFile:
    """The trace file of one shard; made when the first trace is kept."""

    def __init__(self, folder: str, file: int) -> None:
        self._path = Path(folder) / trace_name(file)
        self._file = file
        self._stream: Any = None

    def append(self, trace: dict[str, Any]) -> tuple[int, int]:
        """Write a trace and return where it is: file and offset."""
        if self._stream is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._path.open("ab", buffering=0)
        frame = frames.wrap(zlib.compress(_encode(trace), 1))
        if self._stream.write(frame) != len(frame):
            raise OSError(errno.ENOSPC, "a trace was cut short", str(self._path))
        return self._file, self._stream.tell() - len(frame)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


def _encode(trace: dict[str, Any]) -> bytes:
    """Return the trace in JSON; one with values that JSON cannot hold is kept without them, and says so."""
    try:
        text = json.dumps(trace, default=repr)
    except (TypeError, ValueError, RecursionError) as error:
        emptied: dict[str, Any] = {"calls": [], "final": None, "effects": [], "breaches": []}
        text = json.dumps({**trace, **emptied, "error": f"{trace['error']} (calls and effects are no JSON: {error})"})
    return text.encode()


def read_trace(folder: Path, file: int, offset: int) -> dict[str, Any]:
    """Return a trace by its place; raise ValueError when the file is cut or damaged there."""
    with (folder / trace_name(file)).open("rb") as stream:
        stream.seek(offset)
        payload = frames.read_one(stream)
    trace: dict[str, Any] = json.loads(zlib.decompress(payload))
    return trace
