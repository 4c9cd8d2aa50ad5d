"""Columns hold what the records say; the cache is used when it is right and never trusted."""

import gc
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passhat.runner.columns import DTYPES, Columns, from_payloads, load
from passhat.workers.frames import DamagedFrame, FrameHeader, pack_frame, split
from passhat.workers.records import FIELDS, RunRecord, blank, pack_record, seal

_counts = st.none() | st.integers(0, 2**62)
_scores = st.none() | st.floats(0, 1, width=32)
_records = st.builds(
    lambda **fields: blank(0, 0, 0)._replace(**fields),
    release=st.integers(0, 2**16 - 1),
    task=st.integers(0, 2**32 - 1),
    run=st.integers(0, 2**32 - 1),
    attempt=st.integers(1, 200),
    status=st.integers(0, 3),
    outcome=_scores,
    rubric=_scores,
    turns=_counts,
    cost_micros=_counts,
    trace_file=_counts,
    passes=st.integers(0, 15),
    state_digest=st.just(b"") | st.binary(min_size=8, max_size=8),
    digest=st.binary(min_size=8, max_size=8),
)


def payloads_of(records: list[RunRecord], *, a_frame: int = 3) -> list[memoryview]:
    frames = b""
    for start in range(0, len(records), a_frame):
        packed = [pack_record(record) for record in records[start : start + a_frame]]
        frames += pack_frame(FrameHeader(0, 0, start, len(packed), 0.0), b"".join(packed))
    return split(frames)[0]


def as_column(field: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return int.from_bytes(value, "big")
    if value is None:
        return math.nan if DTYPES[field].kind == "f" else -1
    return value


def same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))


@given(records=st.lists(_records, max_size=12), a_frame=st.integers(1, 5))
def test_columns_hold_every_record_in_the_order_written(records: list[RunRecord], a_frame: int) -> None:
    columns = from_payloads(payloads_of(records, a_frame=a_frame))
    assert len(columns) == len(records)
    for field in FIELDS:
        assert columns[field].dtype == DTYPES[field]
        expected = [as_column(field, getattr(record, field)) for record in records]
        assert all(map(same, columns[field].tolist(), expected)), field


def test_the_parts_that_are_converted_at_a_time_leave_no_seam() -> None:
    records = [blank(0, number, 0)._replace(turns=number if number % 5 else None) for number in range(10_000)]
    columns = from_payloads(payloads_of(records, a_frame=999))
    assert columns["task"].tolist() == list(range(10_000))
    assert columns["turns"].tolist() == [number if number % 5 else -1 for number in range(10_000)]


def test_records_are_picked_by_row() -> None:
    columns = from_payloads(payloads_of([blank(0, task, 0) for task in range(5)]))
    assert columns.take(columns["task"] % 2 == 1)["task"].tolist() == [1, 3]


def test_a_record_of_another_schema_is_refused() -> None:
    short = msgpack.packb(blank(0, 0, 0)[:-1])
    frame = pack_frame(FrameHeader(0, 0, 0, 2, 0.0), pack_record(blank(0, 0, 0)) + short)
    with pytest.raises(DamagedFrame, match=f"has {len(FIELDS)} fields, some here have not"):
        from_payloads(split(frame)[0])


def test_a_frame_that_does_not_hold_what_it_announces_is_refused() -> None:
    frame = pack_frame(FrameHeader(7, 0, 0, 2, 0.0), pack_record(blank(0, 0, 0)))
    with pytest.raises(DamagedFrame, match="shard 7: the frame does not hold the 2 records it announces"):
        from_payloads(split(frame)[0])


def test_a_digest_that_is_none_is_refused_by_name() -> None:
    large = blank(0, 0, 1)._replace(state_digest=bytes(120 << 20))
    with pytest.raises(DamagedFrame, match=f"state_digest: found one of {120 << 20} bytes, expected 8"):
        from_payloads(payloads_of([seal(blank(0, 0, 0)), large]))


@pytest.mark.parametrize("is_collecting", [True, False])
def test_garbage_collection_is_left_as_it_was_found(is_collecting: bool) -> None:
    before = gc.isenabled()
    try:
        gc.enable() if is_collecting else gc.disable()
        from_payloads(payloads_of([blank(0, 0, 0)]))
        assert gc.isenabled() is is_collecting
        with pytest.raises(DamagedFrame):
            from_payloads(split(pack_frame(FrameHeader(0, 0, 0, 1, 0.0), b""))[0])
        assert gc.isenabled() is is_collecting
    finally:
        gc.enable() if before else gc.disable()


# The cache

RECORDS = [seal(blank(0, task, 0)._replace(turns=task)) for task in range(4)]
CACHE = Path("columns.mpk")


def log_of(records: list[RunRecord]) -> tuple[bytes, list[memoryview]]:
    payloads = payloads_of(records)
    return b"".join(payloads), payloads


def never() -> Iterator[memoryview]:
    raise AssertionError("the log was read again")
    yield


def turns(columns: Columns) -> list[int]:
    return list(columns["turns"].tolist())


def test_the_cache_of_exactly_this_log_takes_its_place() -> None:
    log, payloads = log_of(RECORDS)
    made = load(CACHE, log, payloads)
    cached = load(CACHE, log, never())
    for field in FIELDS:
        assert made[field].tobytes() == cached[field].tobytes()


def test_the_cache_is_made_anew_when_the_log_differs_by_one_byte() -> None:
    log, payloads = log_of(RECORDS)
    load(CACHE, log, payloads)
    other = log_of([RECORDS[0]._replace(turns=9), *RECORDS[1:]])
    assert len(other[0]) == len(log)
    assert sum(one != two for one, two in zip(other[0], log, strict=True)) == 1
    assert turns(load(CACHE, *other)) == [9, 1, 2, 3]
    assert turns(load(CACHE, other[0], never())) == [9, 1, 2, 3]


def test_the_cache_is_made_anew_when_the_log_has_grown() -> None:
    load(CACHE, *log_of(RECORDS[:2]))
    assert turns(load(CACHE, *log_of(RECORDS))) == [0, 1, 2, 3]


def test_a_cache_with_any_byte_flipped_is_ignored_and_made_anew() -> None:
    log, payloads = log_of(RECORDS)
    load(CACHE, log, payloads)
    whole = CACHE.read_bytes()
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 0xFF
        CACHE.write_bytes(flipped)
        assert turns(load(CACHE, log, payloads)) == [0, 1, 2, 3]
        assert CACHE.read_bytes() == whole


@pytest.mark.parametrize("content", [b"", b"\0\0\0\0", b"nonsense", bytes(100)])
def test_a_cache_that_is_none_is_ignored_and_made_anew(content: bytes) -> None:
    CACHE.write_bytes(content)
    assert turns(load(CACHE, *log_of(RECORDS))) == [0, 1, 2, 3]
    assert CACHE.read_bytes() != content


def test_a_log_without_a_record_has_empty_columns_and_a_cache() -> None:
    for payloads in (iter([]), never()):
        columns = load(CACHE, b"", payloads)
        assert len(columns) == 0
        assert {field: columns[field].dtype for field in FIELDS} == DTYPES


def test_where_no_cache_can_be_written_the_log_is_read() -> None:
    assert turns(load(Path("nowhere/columns.mpk"), *log_of(RECORDS))) == [0, 1, 2, 3]
    CACHE.mkdir()
    assert turns(load(CACHE, *log_of(RECORDS))) == [0, 1, 2, 3]
    assert sorted(path.name for path in Path().iterdir()) == ["columns.mpk"]
