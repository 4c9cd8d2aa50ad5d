"""Frames: how records travel from a worker to the log, and how the log is read back.

A frame is a 4-byte length, a 4-byte CRC-32 and a payload: one msgpack header, then the packed records one after
another. The worker makes it, the driver appends it as it came; nothing is encoded twice. Knows nothing of folders.
"""

import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import msgpack

from passhat.workers.records import RunRecord, unpack_record

_HEAD = struct.Struct(">II")
_MAX_PAYLOAD = 1 << 30  # a longer length is damage, not a frame
_FLUSH_BYTES = 64 << 10  # Ray moves messages of 100 KB and more through shared memory, at several times the cost
_FLUSH_S = 0.1
_FIRST_FLUSH_S = 0.01  # so that progress shows at once


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
    """Return the payload with its length and checksum in front."""
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def unpack_frame(data: bytes) -> Frame:
    """Return the frame; raise DamagedFrame when it is cut, altered, or its count is not what it holds."""
    payloads, end = split(data)
    if len(payloads) != 1 or end != len(data):
        raise DamagedFrame("expected exactly one whole frame")
    return parse(payloads[0])


def parse(payload: bytes | memoryview) -> Frame:
    """Return header and records of a payload; raise DamagedFrame when the count is not what it holds."""
    objects = unpack_all(payload)
    header = FrameHeader(*next(objects))
    records = [unpack_record(values) for values in objects]
    if len(records) != header.runs:
        raise DamagedFrame(f"shard {header.shard}: {header.runs} records announced, {len(records)} found")
    return Frame(header, records)


def header_of(payload: bytes | memoryview) -> FrameHeader:
    """Return the header of a payload alone."""
    return FrameHeader(*next(unpack_all(payload)))


def unpack_all(payload: bytes | memoryview) -> Iterator[Any]:
    """Yield every object of a payload; raise DamagedFrame when the last one is cut."""
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(payload)
    yield from unpacker
    if unpacker.tell() != len(payload):
        raise DamagedFrame(f"an object is cut at byte {unpacker.tell()} of {len(payload)}")


def split(data: bytes | memoryview) -> tuple[list[memoryview], int]:
    """Return the payloads of all whole frames, and the offset at which the last one ends.

    An offset before the end of the data is a torn tail: what a crash left of the frame it interrupted. A frame that
    does not match its checksum and is followed by others is no torn tail and raises DamagedFrame.
    """
    view = memoryview(data)
    payloads = []
    offset = 0
    while offset + _HEAD.size <= len(view):
        length, checksum = _HEAD.unpack_from(view, offset)
        end = offset + _HEAD.size + length
        if length > _MAX_PAYLOAD or end > len(view):
            break
        payload = view[offset + _HEAD.size : end]
        if zlib.crc32(payload) != checksum:
            if end < len(view):
                raise DamagedFrame(f"the frame at byte {offset} does not match its checksum")
            break
        payloads.append(payload)
        offset = end
    return payloads, offset


def read_one(stream: BinaryIO) -> bytes:
    """Return the payload of the frame that starts at the stream's position; raise DamagedFrame when it is not whole."""
    head = stream.read(_HEAD.size)
    if len(head) == _HEAD.size:
        length, checksum = _HEAD.unpack(head)
        payload = stream.read(length) if length <= _MAX_PAYLOAD else b""
        if len(payload) == length and zlib.crc32(payload) == checksum:
            return payload
    raise DamagedFrame("no whole frame here")


class Batch:
    """Packed records on their way into frames, which are flushed by size and by time."""

    def __init__(self, shard: int, worker: int, first: int) -> None:
        self.first = first  # position after the last frame
        self._shard = shard
        self._worker = worker
        self._parts: list[bytes] = []
        self._size = 0
        self._since = time.monotonic()
        self.flush_s = _FIRST_FLUSH_S  # how long a record may wait

    def add(self, record: bytes) -> None:
        self._parts.append(record)
        self._size += len(record)

    def is_due(self) -> bool:
        return bool(self._parts) and (self._size >= _FLUSH_BYTES or time.monotonic() - self._since >= self.flush_s)

    def flush(self, note: str = "") -> Iterator[bytes]:
        """Yield the waiting records as frames, each small enough to travel inline."""
        now = time.monotonic()
        seconds = (now - self._since) / max(1, len(self._parts))
        while self._parts:
            count, size = 0, 0
            while count < len(self._parts) and size < _FLUSH_BYTES:
                size += len(self._parts[count])
                count += 1
            header = FrameHeader(self._shard, self._worker, self.first, count, seconds * count, note)
            yield pack_frame(header, b"".join(self._parts[:count]))
            del self._parts[:count]
            self.first += count
        self._size, self._since, self.flush_s = 0, now, _FLUSH_S
