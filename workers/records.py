"""What a worker is given and gives back: the compact account of one attempt at one run, and its msgpack form.

Imports the standard library and msgpack only, so that records can be read without the code that made them.

A record is positional: its fields are the columns of the log. None means "not said" (an import whose source has no
cost) or "does not apply" (a score without a scorer); 0 is never written for unknown. `digest` covers the
deterministic fields and the trajectory alone: it is the same for one worker or sixty-four, after retries and resumes.
"""

import hashlib
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

import msgpack

# 1: first version
# 2: the hermetic levels that were asked for beside the achieved ones, and the agent's retries; a digest does not depend
#    on levels any more, so that a run confined and one that was not can be seen to be the same; which safety events
#    were looked for
SCHEMA_VERSION = 2
_SINCE = {"watched": 2, "retries": 2, "env_requested": 2, "agent_requested": 2}


class Status(IntEnum):
    """What a run counts as; *missing* is the absence of a record and therefore not one of these."""

    PASS = 0
    FAIL = 1
    INVALID = 2  # the machinery faulted, which says nothing about the agent
    PENDING = 3  # ran, not judged yet


class Outcome(IntEnum):
    """How a run ended: the first four are claimed by the agent, the others assigned by the runner."""

    NONE = 0  # a fault, or an import that does not say
    COMPLETED = 1
    ESCALATED = 2
    REFUSED = 3
    NEEDS_CLARIFICATION = 4
    LOOP_DETECTED = 5
    TIMED_OUT = 6
    BUDGET_EXCEEDED = 7
    TURN_LIMIT = 8
    TRUNCATED = 9
    AGENT_ERROR = 10
    POLICY_VIOLATION = 11
    UNDECLARED = 12  # the agent stopped without claiming an outcome


CLAIMS = {o.name: o for o in (Outcome.COMPLETED, Outcome.ESCALATED, Outcome.REFUSED, Outcome.NEEDS_CLARIFICATION)}


class Reason(IntEnum):
    """Why a run is invalid, or which guard stopped it; NONE for an ordinary run."""

    NONE = 0
    ENVIRONMENT_ERROR = 1
    HERMETICITY = 2
    EVALUATOR_ERROR = 3
    PROVIDER_OUTAGE = 4
    WORKER_LOST = 5
    ENVIRONMENT_TIMEOUT = 6
    WALL_CLOCK = 7  # the wall-clock guard stopped the agent: scored, but not reproducible
    SOURCE_ERROR = 8  # an import whose source reports an error of its own machinery
    INVALID_SCORE = 9  # a score that is not finite or outside [0, 1]


class Safety(IntFlag):
    """Facts about the trajectory that veto rules read; each is a property of the run, not a count."""

    FORBIDDEN_CALL = 1  # attempted, whatever came of it
    SKIPPED_APPROVAL = 2
    UNVERIFIED_WRITE = 4
    EXTERNAL_EFFECT = 8  # a forbidden call changed something
    INJECTION_SEEN = 16
    INJECTION_FOLLOWED = 32
    WRONG_TENANT = 64  # a write in another tenant than the session's
    PHANTOM_SUCCESS = 128  # success, or a receipt, was claimed that the target system never confirmed
    FORBIDDEN_BLOCKED = 256  # a forbidden call was denied


class Level(IntEnum):
    """Hermetic level, asked for or achieved."""

    OPEN = 0
    DECLARED = 1  # injected clock, random numbers and ids; nothing enforced
    GUARDED = 2
    CONFINED = 3


SCORERS = ("outcome", "trajectory", "efficiency", "rubric")


class RunRecord(NamedTuple):
    """One attempt at one run. `release`, `task` and `run` index the campaign's plan."""

    release: int
    task: int
    run: int
    attempt: int  # 1 for the first; there is a second only after a fault
    status: int
    claimed: int  # Outcome the agent claimed
    assigned: int  # Outcome the runner assigned, NONE when the claim stands
    reason: int
    outcome: float | None  # scores in [0, 1], kept for ranking; `passes` decides
    trajectory: float | None
    efficiency: float | None
    rubric: float | None
    passes: int  # bit i is set when SCORERS[i] passed
    safety: int
    watched: int  # Safety bits that were looked for: of any other, its absence from `safety` says nothing
    turns: int | None
    calls: int | None
    bad_calls: int | None
    tokens_in: int | None  # cached tokens included
    tokens_cached: int | None
    tokens_out: int | None
    retries: int | None  # calls the agent says it made again, to a provider or otherwise
    cost_micros: int | None  # millionths of a US dollar
    virtual_ms: int | None
    wall_us: int | None
    env_requested: int  # Level
    env_level: int
    agent_requested: int
    agent_level: int
    violations: int
    state_digest: bytes  # 8 bytes, empty when there is no state
    digest: bytes  # 8 bytes over the deterministic fields and the trajectory
    trace_file: int | None  # None when no trace was kept
    trace_offset: int | None

    @property
    def terminal(self) -> Outcome:
        """How the run ended: what the runner assigned, else what the agent claimed."""
        return Outcome(self.assigned or self.claimed)


FIELDS = RunRecord._fields
_NOT_DETERMINISTIC = ("attempt", "wall_us", "digest", "trace_file", "trace_offset")
_HERMETIC = ("env_requested", "env_level", "agent_requested", "agent_level", "violations")


def fields_of(schema: int) -> tuple[str, ...]:
    """Return the fields of a record by the schema it was written in, in their order."""
    return tuple(name for name in FIELDS if _SINCE.get(name, 1) <= schema)


def deterministic(schema: int = SCHEMA_VERSION) -> tuple[str, ...]:
    """Return the fields that do not depend on workers, time, attempts or, since schema 2, on hermetic levels."""
    left_out = _NOT_DETERMINISTIC if schema == 1 else _NOT_DETERMINISTIC + _HERMETIC
    return tuple(name for name in fields_of(schema) if name not in left_out)


_DETERMINISTIC = [FIELDS.index(name) for name in deterministic()]

_packer = msgpack.Packer(use_single_float=True)


def record_digest(record: RunRecord, trajectory: bytes = b"") -> bytes:
    """Return 8 bytes over the deterministic fields and the digest of the trajectory."""
    content = _packer.pack([record[i] for i in _DETERMINISTIC])
    return hashlib.blake2b(content + trajectory, digest_size=8).digest()


def seal(record: RunRecord, trajectory: bytes = b"") -> RunRecord:
    """Return the record with its digest filled in."""
    return record._replace(digest=record_digest(record, trajectory))


def fault(release: int, task: int, run: int, attempt: int, reason: Reason, *, wall_us: int | None = None) -> RunRecord:
    """The record of an attempt that ended in a fault before anything could be scored."""
    return seal(blank(release, task, run)._replace(
        attempt=attempt, status=Status.INVALID, reason=reason, wall_us=wall_us
    ))  # fmt: skip


def blank(release: int, task: int, run: int) -> RunRecord:
    """A first attempt about which nothing is said yet: pending, no outcome, no score, no cost."""
    unsaid: dict[str, Any] = dict.fromkeys(FIELDS)
    unsaid.update(release=release, task=task, run=run, attempt=1, status=Status.PENDING)
    unsaid.update(claimed=0, assigned=0, reason=0, passes=0, safety=0, watched=0)
    unsaid.update(env_requested=0, env_level=0, agent_requested=0, agent_level=0)
    unsaid.update(violations=0, state_digest=b"", digest=b"")
    return RunRecord(**unsaid)


def pack_record(record: RunRecord) -> bytes:
    """Return the record as one msgpack array; scores are stored in single precision."""
    data: bytes = _packer.pack(record)
    return data


def unpack_record(values: Sequence[Any]) -> RunRecord:
    """Return the record of an unpacked array; raise ValueError when it has not this version's fields."""
    if len(values) != len(FIELDS):
        raise ValueError(f"a record of schema {SCHEMA_VERSION} has {len(FIELDS)} fields, found {len(values)}")
    return RunRecord(*values)
