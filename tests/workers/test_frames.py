"""Frames against every cut and every flipped bit, and the batches that make them."""

import io
import struct
import zlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passhat.workers.frames import (
    Batch,
    DamagedFrame,
    Frame,
    FrameHeader,
    header_of,
    pack_frame,
    parse,
    parse_rows,
    read_one,
    split,
    unpack_frame,
    wrap,
)
from passhat.workers.records import RunRecord, blank, pack_record

HEAD_BYTES = 8


def record(run: int) -> RunRecord:
    return blank(0, 0, run)._replace(turns=run)


def frame_of(*runs: int, shard: int = 0) -> bytes:
    packed = b"".join(pack_record(record(run)) for run in runs)
    return pack_frame(FrameHeader(shard, 0, runs[0], len(runs), 0.5), packed)


LOG_FRAMES = [wrap(b"header"), frame_of(0, 1), frame_of(2), frame_of(3, 4, 5)]
LOG = b"".join(LOG_FRAMES)
ENDS = [sum(map(len, LOG_FRAMES[:count])) for count in range(len(LOG_FRAMES) + 1)]

_headers = st.builds(
    FrameHeader,
    shard=st.integers(0, 2**32),
    worker=st.integers(0, 2**16),
    first=st.integers(0, 2**63),
    runs=st.just(0),
    seconds=st.floats(0, 1e6),
    note=st.text(max_size=20),
)
_records = st.lists(st.builds(record, st.integers(0, 2**31)), min_size=1, max_size=8)


# One frame


@given(header=_headers, records=_records)
def test_a_frame_survives_the_round_trip(header: FrameHeader, records: list[RunRecord]) -> None:
    header = header._replace(runs=len(records))
    packed = pack_frame(header, b"".join(map(pack_record, records)))
    assert unpack_frame(packed) == Frame(header, records)
    assert header_of(packed[HEAD_BYTES:]) == header
    assert parse_rows(packed[HEAD_BYTES:]) == (header, [tuple(record) for record in records])


def test_a_frame_is_length_checksum_and_payload() -> None:
    payload = msgpack.packb([4, 0, 7, 1, 0.5, ""]) + pack_record(record(7))
    assert frame_of(7, shard=4) == struct.pack(">II", len(payload), zlib.crc32(payload)) + payload


def test_a_frame_that_does_not_hold_what_it_announces_is_refused() -> None:
    for announced in (0, 1, 3):
        with pytest.raises(DamagedFrame, match=f"shard 5: the frame does not hold the {announced} records"):
            unpack_frame(pack_frame(FrameHeader(5, 0, 0, announced, 0.0), pack_record(record(0)) * 2))


@pytest.mark.parametrize("data", [b"", LOG_FRAMES[1][:-1], LOG_FRAMES[1] + b"\0", LOG_FRAMES[1] * 2])
def test_anything_but_exactly_one_frame_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedFrame):
        unpack_frame(data)


@pytest.mark.parametrize("payload", [b"", bytes((1 << 30) + 1)], ids=["nothing", "over 1 GiB"])
def test_a_payload_that_no_reader_would_take_is_refused_when_it_is_written(payload: bytes) -> None:
    with pytest.raises(ValueError, match=f"1 to {1 << 30} bytes, found {len(payload)}"):
        wrap(payload)


def test_a_stream_of_records_that_lost_its_last_byte_is_no_shorter_stream() -> None:
    """Plain iteration gives two records and ends as if nothing were wrong."""
    records = b"".join(pack_record(record(run)) for run in range(3))[:-1]
    plain = msgpack.Unpacker()
    plain.feed(records)
    assert len(list(plain)) == 2
    for announced in (1, 2, 3, 4):
        with pytest.raises(DamagedFrame, match=f"does not hold the {announced} records it announces"):
            parse(msgpack.packb(FrameHeader(0, 0, 0, announced, 0.0)) + records)


def test_a_record_of_120_mib_between_two_small_ones_is_read() -> None:
    large = record(1)._replace(state_digest=bytes(120 << 20))
    batch = Batch(0, 0, 0)
    for each in (record(0), large, record(2)):
        batch.add(pack_record(each))
    payloads, end = split(log := b"".join(batch.flush()))
    assert end == len(log)
    assert [each for payload in payloads for each in parse(payload).records] == [record(0), large, record(2)]


# Many frames


def test_every_cut_leaves_all_whole_frames_and_the_offset_of_the_torn_one() -> None:
    for cut in range(len(LOG) + 1):
        whole = max(count for count, end in enumerate(ENDS) if end <= cut)
        payloads, end = split(LOG[:cut])
        assert [bytes(payload) for payload in payloads] == [frame[HEAD_BYTES:] for frame in LOG_FRAMES[:whole]], cut
        assert end == ENDS[whole], cut


def test_a_flipped_bit_in_the_last_frame_is_a_torn_tail_and_in_any_other_damage() -> None:
    """In the length, the checksum or the payload alike."""
    for position in range(len(LOG)):
        for bit in range(8):
            flipped = bytearray(LOG)
            flipped[position] ^= 1 << bit
            if position >= ENDS[-2]:
                payloads, end = split(flipped)
                assert (len(payloads), end) == (len(LOG_FRAMES) - 1, ENDS[-2]), (position, bit)
            else:
                start = max(end for end in ENDS if end <= position)
                with pytest.raises(DamagedFrame, match=f"the frame at byte {start} "):
                    split(flipped)


def test_frames_that_were_lost_from_the_middle_are_damage() -> None:
    gap = LOG_FRAMES[0] + LOG_FRAMES[1][:-3] + LOG_FRAMES[2]
    with pytest.raises(DamagedFrame, match=f"byte {ENDS[1]} "):
        split(gap)


@pytest.mark.parametrize("zeros", [1, 7, 8, 9, 64, 4096])
def test_zeros_behind_the_last_frame_are_a_torn_tail(zeros: int) -> None:
    """As a file system leaves them after a loss of power; eight of them look like an empty frame."""
    payloads, end = split(LOG + bytes(zeros))
    assert (len(payloads), end) == (len(LOG_FRAMES), len(LOG))


# One frame of a file


def test_a_frame_is_read_from_where_it_lies() -> None:
    stream = io.BytesIO(LOG)
    for start, frame in zip(ENDS[:-1], LOG_FRAMES, strict=True):
        stream.seek(start)
        assert read_one(stream) == frame[HEAD_BYTES:]


@pytest.mark.parametrize("data", [b"", LOG_FRAMES[1][:5], LOG_FRAMES[1][:-1], bytes(64), b"\xff" * 64])
def test_what_is_no_whole_frame_is_not_read(data: bytes) -> None:
    with pytest.raises(DamagedFrame):
        read_one(io.BytesIO(data))


# Batches


@given(
    sizes=st.lists(st.integers(1, 1 << 17), max_size=12),
    first=st.integers(0, 1000),
    flush_after=st.integers(1, 5),
)
def test_batches_keep_the_order_and_count_every_record(sizes: list[int], first: int, flush_after: int) -> None:
    packed = [pack_record(record(number)._replace(state_digest=bytes(size))) for number, size in enumerate(sizes)]
    batch = Batch(3, 9, first)
    frames = []
    for number, each in enumerate(packed, 1):
        batch.add(each)
        if number % flush_after == 0:
            frames += list(batch.flush())
    frames += list(batch.flush("the end"))
    position = first
    records: list[RunRecord] = []
    for frame in map(unpack_frame, frames):
        assert (frame.header.shard, frame.header.worker, frame.header.first) == (3, 9, position)
        position += frame.header.runs
        records += frame.records
    assert [pack_record(each) for each in records] == packed
    assert batch.first == first + len(packed)
    assert not batch.is_due()


def test_a_frame_travels_inline() -> None:
    """Only a record that is too large by itself makes a frame of more than 64 KiB and what was begun with it."""
    batch = Batch(0, 0, 0)
    for _ in range(3000):
        batch.add(pack_record(record(1)))
    sizes = [len(frame) for frame in batch.flush()]
    assert len(sizes) > 1
    assert max(sizes) <= (64 << 10) + 200


def test_a_batch_is_due_by_size_or_by_time_and_never_when_it_is_empty() -> None:
    batch = Batch(0, 0, 0)
    batch.flush_s = 0.0
    assert not batch.is_due()
    batch.add(b"\xc0")
    assert batch.is_due()
    batch.flush_s = 1e9
    assert not batch.is_due()
    batch.add(bytes(64 << 10))
    assert batch.is_due()


def test_the_first_flush_is_due_sooner_than_later_ones() -> None:
    batch = Batch(0, 0, 0)
    first_s = batch.flush_s
    list(batch.flush())
    assert first_s < batch.flush_s


def test_later_flushes_are_as_far_apart_as_is_asked_for() -> None:
    batch = Batch(0, 0, 0, 2.5)
    list(batch.flush())
    assert batch.flush_s == 2.5


def test_a_frame_that_was_not_taken_is_handed_out_again() -> None:
    """Whoever is interrupted between two frames loses none; the schedule passes over what it has had."""
    batch = Batch(0, 0, 0)
    batch.add(pack_record(record(0)))
    handed_out = next(batch.flush())
    assert [unpack_frame(frame).records for frame in batch.flush()] == [unpack_frame(handed_out).records]
