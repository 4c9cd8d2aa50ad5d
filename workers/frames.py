"""Frames: how records travel from a worker to the log, and how the log is read back.

A frame is a 4-byte length, a 4-byte CRC-32 and a payload: one msgpack header, then the packed records one after
another. The worker makes it, the driver appends it as it came; nothing is encoded twice. Knows nothing of folders.
"""

import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

import msgpack

from passhat.workers.records import RunRecord, unpack_record

_HEAD = struct.Struct(">II")
_MAX_PAYLOAD = 1 << 30
FLUSH_BYTES = 64 << 10  # Ray moves messages of 100 KB and more through shared memory, at several times the cost
FLUSH_S = 0.1
FIRST_FLUSH_S = 0.01  # so that progress shows at once


class DamagedFrame(ValueError):
    """A frame in the middle of a log does not match its checksum."""


class FrameHeader(NamedTuple):
    """Which records a frame holds: `runs` of them, in the order of the plan from `first` on."""

    shard: int
    worker: int
    first: int
    runs: int
    seconds: float  # wall time spent on these runs
    note: str = ""  # how a child ended, when it did not end well


@dataclass(frozen=True, slots=True)
class Frame:
    header: FrameHeader
    records: list[RunRecord]


def pack_frame(header: FrameHeader, records: bytes) -> bytes:
    """Return a whole frame around records that are already packed."""
    return wrap(msgpack.packb(header) + records)


def wrap(payload: bytes) -> bytes:
    """Return the payload with its length and checksum in front; raise ValueError for one that no reader would take."""
    if not 0 < len(payload) <= _MAX_PAYLOAD:
        raise ValueError(f"a frame holds 1 to {_MAX_PAYLOAD} bytes, found {len(payload)}")
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def unpack_frame(data: bytes) -> Frame:
    """Return the frame; raise DamagedFrame when it is cut, altered, or its count is not what it holds."""
    payloads, end = split(data)
    if len(payloads) != 1 or end != len(data):
        raise DamagedFrame("expected exactly one whole frame")
    return parse(payloads[0])


def parse(payload: bytes | memoryview) -> Frame:
    """Return header and records of a payload; raise DamagedFrame when the count is not what it holds."""
    header, rows = parse_rows(payload)
    return Frame(header, [unpack_record(row) for row in rows])


def parse_rows(payload: bytes | memoryview) -> tuple[FrameHeader, list[Any]]:
    """Return header and records of a payload as `parse` does, a record as the plain tuple of its values."""
    unpacker = _unpacker(payload)
    header = FrameHeader(*next(unpacker))
    rows = list(islice(unpacker, header.runs))
    if len(rows) != header.runs or unpacker.tell() != len(payload):
        raise DamagedFrame(f"shard {header.shard}: the frame does not hold the {header.runs} records it announces")
    return header, rows


def header_of(payload: bytes | memoryview) -> FrameHeader:
    """Return the header of a payload alone."""
    return FrameHeader(*next(_unpacker(payload)))


def _unpacker(payload: bytes | memoryview) -> Any:
    unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=0)
    unpacker.feed(payload)
    return unpacker


def split(data: bytes | memoryview) -> tuple[list[memoryview], int]:
    """Return the payloads of all whole frames, and the offset at which the last one ends.

    An offset before the end of the data is a torn tail: what a crash left of the frames it interrupted. Bytes that are
    no frame and have a whole frame somewhere behind them are no tail but damage, and raise DamagedFrame.
    """
    view = memoryview(data)
    payloads = []
    offset = 0
    while (payload := _payload_at(view, offset)) is not None:
        payloads.append(payload)
        offset += _HEAD.size + len(payload)
    if any(_payload_at(view, later) is not None for later in range(offset + 1, len(view))):
        raise DamagedFrame(f"the frame at byte {offset} does not match its checksum")
    return payloads, offset


def _payload_at(view: memoryview, offset: int) -> memoryview | None:
    """Return the payload of the frame that starts at an offset; None when there is no whole one."""
    start = offset + _HEAD.size
    if start > len(view):
        return None
    length, checksum = _HEAD.unpack_from(view, offset)
    if not 0 < length <= min(len(view) - start, _MAX_PAYLOAD):  # eight zero bytes would pass for an empty frame
        return None
    payload = view[start : start + length]
    return payload if zlib.crc32(payload) == checksum else None


def read_one(stream: BinaryIO) -> bytes:
    """Return the payload of the frame that starts at the stream's position; raise DamagedFrame when it is not whole."""
    head = stream.read(_HEAD.size)
    length = _HEAD.unpack(head)[0] if len(head) == _HEAD.size else 0
    payload = _payload_at(memoryview(head + stream.read(min(length, _MAX_PAYLOAD))), 0)
    if payload is None:
        raise DamagedFrame("no whole frame here")
    return bytes(payload)


class Batch:
    """Packed records on their way into frames, which are flushed by size and by time."""

    def __init__(self, shard: int, worker: int, first: int, flush_s: float = FLUSH_S) -> None:
        self.first = first  # position after the last frame
        self._shard = shard
        self._worker = worker
        self._parts: list[bytes] = []
        self._size = 0
        self._since = time.monotonic()
        self.flush_s = FIRST_FLUSH_S  # how long a record may wait, at first and later on
        self._later_flush_s = flush_s

    def add(self, record: bytes) -> None:
        self._parts.append(record)
        self._size += len(record)

    def is_due(self) -> bool:
        return bool(self._parts) and (self._size >= FLUSH_BYTES or time.monotonic() - self._since >= self.flush_s)

    def flush(self, note: str = "") -> Iterator[bytes]:
        """Yield the waiting records as frames, each small enough to travel inline."""
        now = time.monotonic()
        seconds = (now - self._since) / max(1, len(self._parts))
        while self._parts:
            count, size = 0, 0
            while count < len(self._parts) and size < FLUSH_BYTES:
                size += len(self._parts[count])
                count += 1
            header = FrameHeader(self._shard, self._worker, self.first, count, seconds * count, note)
            yield pack_frame(header, b"".join(self._parts[:count]))
            del self._parts[:count]
            self.first += count
        self._size, self._since, self.flush_s = 0, now, self._later_flush_s
