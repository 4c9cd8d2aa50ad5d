"""Makes the campaign folder schema-1/: two releases, two tasks, two runs each, as the first record schema wrote them.

Everything is spelled out and nothing is imported from passhat, so that it stays what it was whatever becomes of the
code. Run it to make the folder again: not a byte may change.
"""

import hashlib
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import msgpack

FOLDER = Path(__file__).parent / "schema-1"

FIELDS = (
    *("release", "task", "run", "attempt", "status", "claimed", "assigned", "reason"),
    *("outcome", "trajectory", "efficiency", "rubric", "passes", "safety", "turns", "calls", "bad_calls"),
    *("tokens_in", "tokens_cached", "tokens_out", "cost_micros", "virtual_ms", "wall_us"),
    *("env_level", "agent_level", "violations", "state_digest", "digest", "trace_file", "trace_offset"),
)
_NOT_DETERMINISTIC = ("attempt", "wall_us", "digest", "trace_file", "trace_offset")

PASS, FAIL, INVALID, PENDING = range(4)
COMPLETED, ESCALATED, LOOP_DETECTED, WORKER_LOST = 1, 2, 5, 5

_USED = {"turns": 7, "calls": 7, "bad_calls": 0, "tokens_in": 9000, "tokens_cached": 0, "tokens_out": 300}
_SCORED = {**_USED, "cost_micros": 31_500, "virtual_ms": 1260, "wall_us": 410, "env_level": 1, "agent_level": 0}
_RIGHT = {**_SCORED, "status": PASS, "claimed": COMPLETED, "outcome": 1.0, "trajectory": 1.0, "efficiency": 1.0}
_LUCKY = {**_SCORED, "status": FAIL, "claimed": COMPLETED, "outcome": 1.0, "trajectory": 0.0, "efficiency": None}
_LOOPING = {**_SCORED, "status": FAIL, "assigned": LOOP_DETECTED, "outcome": 0.5, "trajectory": 0.75, "efficiency": 0.0}
_LOST = {"status": INVALID, "reason": WORKER_LOST, "wall_us": 20_000}

_TRACED = {"trace_file": 3, "trace_offset": 0}

RECORDS: list[dict[str, Any]] = [
    {"release": 0, "task": 0, "run": 0, **_RIGHT, "passes": 7, "state_digest": bytes(range(8))},
    {"release": 1, "task": 0, "run": 0, **_LUCKY, "passes": 1, "safety": 1 | 8 | 16 | 32, **_TRACED},
    {"release": 0, "task": 0, "run": 1, **_LOST},
    {"release": 0, "task": 0, "run": 1, **_RIGHT, "attempt": 2, "passes": 7, "state_digest": bytes(range(8))},
    {"release": 1, "task": 0, "run": 1, **_LOOPING, "passes": 0, "safety": 2 | 4},
    {"release": 0, "task": 1, "run": 0, "status": PENDING, "claimed": ESCALATED},
    {"release": 1, "task": 1, "run": 0, **_LOST},
    {"release": 0, "task": 1, "run": 1, **_RIGHT, "passes": 7, "violations": 2, "virtual_ms": 2**40},
]  # fmt: skip

PLAN = {
    "version": 1,
    "releases": ["A", "B"],
    "tasks": ["credit", "refund"],
    "cohorts": ["routine", "destructive"],
    "cohort": b"\0\0\0\0\1\0\0\0",
    "task_digests": bytes(64),
    "runs_per_task": 2,
    "seed": 7,
    "stream": "release",
    "listed": None,
    "run_seeds": [],
}

_RELEASE = {"agent": "scripted", "digest": None, "identity": {}, "flaws": {}}
MANIFEST = {
    "schema": "passhat.manifest/1",
    "id": "20261101T120000Z-0001",
    "created_at": "2026-11-01T12:00:00.000Z",
    "origin": "run",
    "suite": {"name": "golden", "version": "1", "digest": "sha256:" + "0" * 64, "tasks": 2},
    "releases": [{"name": name, **_RELEASE} for name in PLAN["releases"]],
    "seed": 7,
    "stream": "release",
    "retries": 1,
    "on_missing": "fail",
    "max_missing": None,
    "versions": {"passhat": "0.1.0"},
}

TRACE = {
    "release": "B",
    "task": "credit",
    "run": 0,
    "attempt": 1,
    "request": "Credit 12.00.",
    "inputs": {"id": "AC-1"},
    "calls": [
        {
            "tool": "post_credit",
            "arguments": {"account_id": "AC-1", "amount_minor": 1200},
            "error": None,
            "result": {"id": "CR-0001"},
            "receipt": {"id": "CR-0001", "tool": "post_credit", "target": "AC-1", "mac": "00ff00ff00ff00ff"},
            "principal": {"user": "agent", "tenant": "alder", "role": "desk"},
        }
    ],
    "final": {"status": "COMPLETED", "message": "Done.", "payload": {"receipt": "CR-0001"}},
    "effects": [{"table": "accounts", "key": "AC-1", "column": "balance_minor", "before": 0, "after": 1200}],
    "breaches": [{"invariant": "writes_are_verified", "detail": "CR-0001", "process": True}],
    "findings": ["trajectory: writes_are_verified does not hold: CR-0001"],
    "log": ["credited"],
    "error": "",
}

# SHA-256 over the deterministic columns of the standing records, as the code of the time computed it.
RECORDS_DIGEST = "sha256:1f4d9c136fb25fd0fe9bf354abd308f222f1a28bf1328c9bf24f98b5da45f40c"


def record(said: dict[str, Any]) -> list[Any]:
    """Return the values of a record; what is not said is nil, or zero for what always has a value."""
    zeros = ("claimed", "assigned", "reason", "passes", "safety", "env_level", "agent_level", "violations")
    values = {**dict.fromkeys(FIELDS), **dict.fromkeys(zeros, 0), "attempt": 1, "state_digest": b"", **said}
    content = pack([values[name] for name in FIELDS if name not in _NOT_DETERMINISTIC])
    values["digest"] = hashlib.blake2b(content, digest_size=8).digest()
    return list(values.values())


def pack(content: Any) -> bytes:
    data: bytes = msgpack.packb(content, use_single_float=True)
    return data


def frame(payload: bytes) -> bytes:
    return struct.pack(">II", len(payload), zlib.crc32(payload)) + payload


def files() -> dict[str, bytes]:
    """Return the content of the folder: two frames of records behind the header of the log."""
    packed = [pack(record(said)) for said in RECORDS]
    split = 5
    parts = ((0, packed[:split]), (split, packed[split:]))
    shards = (msgpack.packb((0, 0, first, len(part), 0.25, "")) + b"".join(part) for first, part in parts)
    header = msgpack.packb({"schema": 1, "fields": FIELDS})
    return {
        "manifest.json": json.dumps(MANIFEST, indent=1).encode() + b"\n",
        "plan.mpk": frame(msgpack.packb(PLAN)),
        "records.mpk": b"".join(map(frame, (header, *shards))),
        "traces/00000003.trace": frame(zlib.compress(json.dumps(TRACE).encode(), 0)),
    }


if __name__ == "__main__":
    for name, content in files().items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
