"""Traces: what is kept of a run beyond its record, for a person to read.

Workers write them: frames of compressed JSON, found by the file and offset in a run's record. In a folder there is one
file per shard. Under an fsspec URL, where files do not grow, each trace is an object of its own. Either way a trace is
written before its record is sent.
"""

import errno
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import fields
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

from passhat.workers import frames
from passhat.workers.contract import Task
from passhat.workers.episode import Episode
from passhat.workers.records import RunRecord, Safety


def trace_name(file: int) -> str:
    """Return the name of a trace file; `file` is the id of the shard that wrote it."""
    return f"{file:08d}.trace"


def _object_name(file: int, offset: int) -> str:
    """Return the name of a trace that is an object of its own; its offset is made from its run's name."""
    return f"{file:08d}-{offset:014x}.trace"


def is_url(place: str) -> bool:
    """Whether traces are kept under an fsspec URL rather than in a folder."""
    return "://" in place


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
        "calls": _calls(episode),
        "final": _plain(episode.final),
        "effects": [_plain(effect) for effect in evidence.effects] if evidence else [],
        "breaches": [_plain(breach) for breach in evidence.breaches] if evidence else [],
        "findings": [_plain(finding) for finding in judgement.findings] if judgement else [],
        "violations": [_plain(violation) for violation in episode.violations],
        "log": episode.log,
        "error": episode.error,
    }


def _calls(episode: Episode) -> list[dict[str, Any]]:
    """Return the calls in their order; effects and findings name them by their number, from 1 on."""
    calls, evidence = episode.calls, episode.evidence
    facts = [call.facts for call in calls]
    facts.append(evidence.facts if evidence else facts[-1] if facts else 0)
    return [
        {
            "tool": call.tool,
            "arguments": dict(call.arguments),
            "error": call.result.error,
            "result": dict(call.result.content),
            "receipt": _plain(call.result.receipt),
            "principal": _plain(call.principal),
            "facts": [flag.name for flag in Safety(after & ~before)],
        }
        for call, (before, after) in zip(calls, pairwise(facts), strict=True)
    ]


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


class TraceObjects:
    """The traces of one shard under an fsspec URL."""

    def __init__(self, url: str, file: int) -> None:
        self._url = url
        self._file = file

    def append(self, trace: dict[str, Any]) -> tuple[int, int]:
        """Write a trace and return where it is: file and offset."""
        run = json.dumps([trace[part] for part in ("release", "task", "run", "attempt")])
        offset = int.from_bytes(blake2b(run.encode(), digest_size=7).digest())
        _put(f"{self._url}/{_object_name(self._file, offset)}", frames.wrap(zlib.compress(_encode(trace), 1)))
        return self._file, offset

    def close(self) -> None:
        """Do nothing: all is written."""


def open_traces(place: str, file: int) -> TraceFile | TraceObjects:
    """Return what takes the traces of a shard."""
    return TraceObjects(place, file) if is_url(place) else TraceFile(place, file)


def _put(url: str, data: bytes) -> None:
    """Write an object; raise OSError whatever the storage says."""
    try:
        import fsspec

        with fsspec.open(url, "wb") as stream:
            stream.write(data)
    except Exception as error:
        raise OSError(f"{url}: cannot be written: {type(error).__name__}: {error}") from error


def _get(url: str) -> bytes:
    """Return an object; raise OSError whatever the storage says."""
    try:
        import fsspec

        with fsspec.open(url, "rb") as stream:
            data: bytes = stream.read()
    except Exception as error:
        raise OSError(f"{url}: cannot be read: {type(error).__name__}: {error}") from error
    return data


def storage_problem(url: str) -> str | None:
    """Return why traces cannot be kept under a URL on this machine, as far as its kind tells."""
    try:
        import fsspec

        fsspec.get_filesystem_class(url.partition("://")[0])
    except ImportError as error:
        return f"{error}; URLs need fsspec and what it names for their kind, here and on every node"
    except ValueError as error:
        return str(error)
    return None


def _encode(trace: dict[str, Any]) -> bytes:
    """Return the trace in JSON; one with values that JSON cannot hold is kept without them, and says so."""
    try:
        text = json.dumps(trace, default=repr)
    except (TypeError, ValueError, RecursionError) as error:
        emptied: dict[str, Any] = {"calls": [], "final": None, "effects": [], "breaches": []}
        text = json.dumps({**trace, **emptied, "error": f"{trace['error']} (calls and effects are no JSON: {error})"})
    return text.encode()


def read_trace(place: str | Path, file: int, offset: int) -> dict[str, Any]:
    """Return a trace by its place; raise ValueError when the file is cut or damaged there."""
    name = _object_name(file, offset)
    copied = Path(place) / name  # objects that were brought into a folder
    if is_url(str(place)):
        payload = frames.read_one(io.BytesIO(_get(f"{place}/{name}")))
    elif copied.exists():
        payload = frames.read_one(io.BytesIO(copied.read_bytes()))
    else:
        with (Path(place) / trace_name(file)).open("rb") as stream:
            stream.seek(offset)
            payload = frames.read_one(stream)
    trace: dict[str, Any] = json.loads(zlib.decompress(payload))
    return trace


def copy_traces(place: str, folder: Path) -> None:
    """Bring all traces into a folder of this machine, which is made if there are any."""
    for name, content in _contents(place):
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def _contents(place: str) -> Iterator[tuple[str, bytes]]:
    if is_url(place):
        import fsspec

        system, path = fsspec.core.url_to_fs(place)
        for name in sorted(system.glob(f"{path}/*.trace")):
            yield name.rpartition("/")[2], system.cat_file(name)
    else:
        for found in sorted(Path(place).glob("*.trace")):
            yield found.name, found.read_bytes()


def as_of_now(trace: dict[str, Any]) -> dict[str, Any]:
    """Return a trace as this version writes it: older ones tell nothing by call, and findings as "scorer: text"."""
    return {
        "violations": [],
        **trace,
        "calls": [{"facts": [], **call} for call in trace["calls"]],
        "effects": [{"call": None, **effect} for effect in trace["effects"]],
        "findings": [_finding(found) if isinstance(found, str) else found for found in trace["findings"]],
    }


def _finding(line: str) -> dict[str, Any]:
    scorer, _, text = line.partition(": ")
    return {"scorer": scorer, "text": text, "call": None}
