"""A record survives its encoding, and its digest says what was found, never how it was come by."""

import hashlib
import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passhat.workers.records import (
    FIELDS,
    SCHEMA_VERSION,
    Level,
    Outcome,
    Reason,
    RunRecord,
    Safety,
    Status,
    blank,
    deterministic,
    fault,
    fields_of,
    pack_record,
    record_digest,
    seal,
    unpack_record,
)

HERMETIC = ("env_requested", "env_level", "agent_requested", "agent_level", "violations")
HOW_IT_WAS_COME_BY = ("attempt", "wall_us", "trace_file", "trace_offset", "digest", *HERMETIC)

_counts = st.none() | st.integers(0, 2**40)
_scores = st.none() | st.floats(0, 1, width=32)
_small = st.integers(0, 2**16 - 1)
_digests = st.binary(min_size=8, max_size=8)
records = st.builds(
    RunRecord,
    release=_small,
    task=st.integers(0, 2**32 - 1),
    run=st.integers(0, 2**32 - 1),
    attempt=_small,
    status=st.sampled_from(Status),
    claimed=st.sampled_from(Outcome),
    assigned=st.sampled_from(Outcome),
    reason=st.sampled_from(Reason),
    **dict.fromkeys(("outcome", "trajectory", "efficiency", "rubric"), _scores),
    passes=st.integers(0, 15),
    safety=st.integers(0, int(sum(Safety))),
    watched=st.integers(0, int(sum(Safety))),
    **dict.fromkeys(("turns", "calls", "bad_calls", "tokens_in", "tokens_cached", "tokens_out", "retries"), _counts),
    **dict.fromkeys(("cost_micros", "virtual_ms", "wall_us"), _counts),
    **dict.fromkeys(("env_requested", "env_level", "agent_requested", "agent_level"), st.sampled_from(Level)),
    violations=st.integers(0, 2**40),
    state_digest=_digests | st.just(b""),
    digest=_digests,
    **dict.fromkeys(("trace_file", "trace_offset"), _counts),
)


@given(records)
def test_a_record_survives_the_round_trip(record: RunRecord) -> None:
    assert unpack_record(msgpack.unpackb(pack_record(record))) == record


@given(records)
def test_a_record_can_be_read_without_the_code_that_made_it(record: RunRecord) -> None:
    """Plain numbers, bytes and nil, in the order of the fields."""
    values = msgpack.unpackb(pack_record(record))
    assert dict(zip(FIELDS, values, strict=True)) == record._asdict()
    assert {type(value) for value in values} <= {int, float, bytes, type(None)}


def test_scores_are_stored_in_single_precision() -> None:
    stored = unpack_record(msgpack.unpackb(pack_record(blank(0, 0, 0)._replace(outcome=0.1))))
    assert stored.outcome == struct.unpack("f", struct.pack("f", 0.1))[0]


def test_a_full_record_of_a_run_takes_at_most_120_bytes() -> None:
    record = RunRecord(
        *(1, 99_999, 9, 1, Status.FAIL, Outcome.COMPLETED, Outcome.LOOP_DETECTED, Reason.NONE),
        *(
            0.75,
            0.5,
            1.0,
            None,
            5,
            int(Safety.UNVERIFIED_WRITE),
            int(sum(Safety)),
            40,
            40,
            3,
            30_000,
            20_000,
            2_000,
            3,
            65_000,
        ),
        *(90_000, 400_000, Level.GUARDED, Level.GUARDED, Level.OPEN, Level.OPEN, 0),
        *(bytes(range(8)), bytes(range(8)), 1_000, 60_000),
    )
    assert len(pack_record(record)) <= 120


@pytest.mark.parametrize("found", [[], [0] * (len(FIELDS) - 1), [0] * (len(FIELDS) + 1)])
def test_an_array_of_another_schema_is_refused(found: list[Any]) -> None:
    with pytest.raises(ValueError, match=f"has {len(FIELDS)} fields, found {len(found)}"):
        unpack_record(found)


def test_an_older_schema_has_the_fields_it_had() -> None:
    later = ("watched", "retries", "env_requested", "agent_requested")
    assert fields_of(1) == tuple(name for name in FIELDS if name not in later)
    assert fields_of(2) == fields_of(SCHEMA_VERSION) == FIELDS
    assert deterministic(2) == tuple(f for f in fields_of(2) if f not in HOW_IT_WAS_COME_BY)
    assert [name for name in deterministic(1) if name in HERMETIC] == ["env_level", "agent_level", "violations"]
    assert {*deterministic(1)} - {*HERMETIC} == {*fields_of(1)} - {*HOW_IT_WAS_COME_BY}


def test_a_record_that_cannot_be_packed_leaves_nothing_behind() -> None:
    with pytest.raises(OverflowError):
        pack_record(blank(0, 0, 0)._replace(turns=2**64))
    assert unpack_record(msgpack.unpackb(pack_record(blank(1, 2, 3)))) == blank(1, 2, 3)


def other_value(field: str, value: Any) -> Any:
    if field in ("outcome", "trajectory", "efficiency", "rubric"):
        return None if value is not None else 0.5
    if isinstance(value, bytes):
        return b"another!" if value != b"another!" else b"one more"
    return 1 if value is None else value + 1


@given(record=records, trajectory=st.binary(max_size=20))
def test_the_digest_ignores_how_a_record_was_come_by_and_depends_on_all_else(
    record: RunRecord, trajectory: bytes
) -> None:
    digest = record_digest(record, trajectory)
    for field in FIELDS:
        changed = record._replace(**{field: other_value(field, getattr(record, field))})
        is_same = record_digest(changed, trajectory) == digest
        assert is_same == (field in HOW_IT_WAS_COME_BY), field
    assert record_digest(record, trajectory + b".") != digest


@given(records)
def test_none_and_zero_have_different_digests(record: RunRecord) -> None:
    assert record_digest(record._replace(turns=None)) != record_digest(record._replace(turns=0))


@given(record=records, trajectory=st.binary(max_size=20))
def test_the_digest_is_blake2b_over_the_packed_fields_and_the_trajectory(record: RunRecord, trajectory: bytes) -> None:
    content = [value for field, value in record._asdict().items() if field not in HOW_IT_WAS_COME_BY]
    packed = msgpack.packb(content, use_single_float=True)
    expected = hashlib.blake2b(packed + trajectory, digest_size=8).digest()
    assert seal(record, trajectory) == record._replace(digest=expected)


def test_a_blank_record_says_nothing() -> None:
    said = {name: value for name, value in blank(1, 2, 3)._asdict().items() if value is not None}
    zeros = dict.fromkeys(("claimed", "assigned", "reason", "passes", "safety", "watched"), 0)
    zeros |= dict.fromkeys(("env_requested", "env_level", "agent_requested", "agent_level"), 0)
    key = {"release": 1, "task": 2, "run": 3, "attempt": 1, "status": Status.PENDING}
    assert said == {**key, **zeros, "violations": 0, "state_digest": b"", "digest": b""}


def test_a_fault_is_invalid_with_its_reason_and_nothing_scored() -> None:
    record = fault(1, 2, 3, 2, Reason.WORKER_LOST, wall_us=77)
    expected = blank(1, 2, 3)._replace(attempt=2, status=Status.INVALID, reason=Reason.WORKER_LOST, wall_us=77)
    assert record == seal(expected)
    assert fault(1, 2, 3, 1, Reason.WORKER_LOST).digest == record.digest


@pytest.mark.parametrize(
    ("claimed", "assigned", "ended"),
    [
        (Outcome.COMPLETED, Outcome.NONE, Outcome.COMPLETED),
        (Outcome.COMPLETED, Outcome.LOOP_DETECTED, Outcome.LOOP_DETECTED),
        (Outcome.NONE, Outcome.TIMED_OUT, Outcome.TIMED_OUT),
        (Outcome.NONE, Outcome.NONE, Outcome.NONE),
    ],
)
def test_what_the_runner_assigned_comes_before_what_the_agent_claimed(
    claimed: Outcome, assigned: Outcome, ended: Outcome
) -> None:
    assert blank(0, 0, 0)._replace(claimed=claimed, assigned=assigned).terminal is ended


def test_the_numbers_in_logs_stay_what_they_are() -> None:
    """A number may be added, never moved."""
    assert " ".join(status.name for status in Status) == "PASS FAIL INVALID PENDING"
    assert " ".join(outcome.name for outcome in Outcome) == (
        "NONE COMPLETED ESCALATED REFUSED NEEDS_CLARIFICATION LOOP_DETECTED TIMED_OUT BUDGET_EXCEEDED TURN_LIMIT "
        "TRUNCATED AGENT_ERROR POLICY_VIOLATION UNDECLARED"
    )
    assert " ".join(reason.name for reason in Reason) == (
        "NONE ENVIRONMENT_ERROR HERMETICITY EVALUATOR_ERROR PROVIDER_OUTAGE WORKER_LOST ENVIRONMENT_TIMEOUT WALL_CLOCK "
        "SOURCE_ERROR INVALID_SCORE"
    )
    for kind in (Status, Outcome, Reason, Level):
        assert list(kind) == list(range(len(kind)))
    assert {flag.name: flag.value for flag in Safety} == {
        "FORBIDDEN_CALL": 1,
        "SKIPPED_APPROVAL": 2,
        "UNVERIFIED_WRITE": 4,
        "EXTERNAL_EFFECT": 8,
        "INJECTION_SEEN": 16,
        "INJECTION_FOLLOWED": 32,
        "WRONG_TENANT": 64,
        "PHANTOM_SUCCESS": 128,
        "FORBIDDEN_BLOCKED": 256,
    }
