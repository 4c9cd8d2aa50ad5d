"""The records of a log as arrays, one a field, and the cache of them.

An integer that is not said is -1, a score that does not apply is NaN; digests are unsigned 64-bit integers. What an
older schema did not have yet is not said either. Knows the record's fields, but neither plans nor statistics.
"""

import gc
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from passhat.workers import frames
from passhat.workers.records import FIELDS, SCHEMA_VERSION, fields_of

Array = npt.NDArray[Any]

_SMALL = (
    "release",
    "attempt",
    "status",
    "claimed",
    "assigned",
    "reason",
    "passes",
    "safety",
    "watched",
    "env_requested",
    "env_level",
    "agent_requested",
    "agent_level",
)
_SCORES = ("outcome", "trajectory", "efficiency", "rubric")
_DIGESTS = ("state_digest", "digest")
_WATCHED_IN_SCHEMA_1 = 63
_UNSAID = {"f": np.nan, "i": -1}
_ROWS_AT_ONCE = 1 << 12  # converted while they are still in the processor's cache


def _dtype(field: str) -> str:
    if field in _SMALL:
        return "u2"
    if field in _SCORES:
        return "f4"
    if field in _DIGESTS:
        return "u8"
    return "u4" if field in ("task", "run") else "i8"


DTYPES = {field: np.dtype(_dtype(field)) for field in FIELDS}


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """All records of a log in the order in which they were written."""

    fields: dict[str, Array]
    schema: int = SCHEMA_VERSION  # of the log

    def __len__(self) -> int:
        return len(self.fields["status"])

    def __getitem__(self, field: str) -> Array:
        return self.fields[field]

    def take(self, rows: Array) -> "Columns":
        """Return the records that an array of row numbers or a mask picks."""
        return Columns({name: column[rows] for name, column in self.fields.items()}, self.schema)


def from_payloads(payloads: Iterable[memoryview], schema: int = SCHEMA_VERSION) -> Columns:
    """Return the records of frame payloads; raise DamagedFrame where a frame does not hold what it announces."""
    fields = fields_of(schema)
    with _no_garbage_collection():
        parts = [_convert(rows, fields, schema) for rows in _chunks(payloads)]
    said = {
        field: np.concatenate([part[i] for part in parts]) if parts else np.empty(0, DTYPES[field])
        for i, field in enumerate(fields)
    }
    return Columns({field: said[field] if field in said else _unsaid(field, said) for field in FIELDS}, schema)


def _unsaid(field: str, said: Mapping[str, Array]) -> Array:
    """Return a field that the log's schema lacks, from what the schema meant: what it did not know of is unknown.

    No level was asked for, and a run that was scored was watched for the events of the first schema.
    """
    dtype, size = DTYPES[field], len(said["status"])
    if field == "watched":
        return np.where(np.isnan(said["outcome"]), 0, _WATCHED_IN_SCHEMA_1).astype(dtype)
    return np.full(size, _UNSAID.get(dtype.kind, 0), dtype)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Millions of short-lived tuples without a cycle among them: looking for one takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _chunks(payloads: Iterable[memoryview]) -> Iterator[list[Any]]:
    rows: list[Any] = []
    for payload in payloads:
        rows += frames.parse_rows(payload)[1]
        if len(rows) >= _ROWS_AT_ONCE:
            yield rows
            rows = []
    if rows:
        yield rows


def _convert(rows: list[Any], fields: Sequence[str], schema: int) -> list[Array]:
    try:
        columns = list(zip(*rows, strict=True))
    except ValueError:
        columns = []
    if len(columns) != len(fields):
        raise frames.DamagedFrame(f"a record of schema {schema} has {len(fields)} fields, some here have not")
    return [_column(field, values) for field, values in zip(fields, columns, strict=True)]


def _column(field: str, values: Sequence[Any]) -> Array:
    dtype = DTYPES[field]
    if field in _DIGESTS:
        joined = b"".join(values)
        if len(joined) != 8 * len(values):
            joined = b"".join(value.rjust(8, b"\0") for value in values)
        if len(joined) != 8 * len(values):
            raise frames.DamagedFrame(f"{field}: found one of {max(map(len, values))} bytes, expected 8")
        return np.frombuffer(joined, ">u8").astype(dtype)
    if values.count(values[0]) == len(values):
        return np.full(len(values), _UNSAID[dtype.kind] if values[0] is None else values[0], dtype)
    try:
        return np.fromiter(values, dtype, len(values))
    except TypeError:
        unsaid = _UNSAID[dtype.kind]
        return np.fromiter((unsaid if value is None else value for value in values), dtype, len(values))


def load(cache: Path, log: bytes, payloads: Iterable[memoryview], schema: int = SCHEMA_VERSION) -> Columns:
    """Return the columns of a log, from the cache when it is whole and was made from exactly these bytes, else anew."""
    fingerprint = [SCHEMA_VERSION, schema, len(log), zlib.crc32(log)]
    cached = _read_cache(cache, fingerprint)
    if cached is not None:
        return cached
    columns = from_payloads(payloads, schema)
    _save_cache(cache, fingerprint, columns)
    return columns


def _read_cache(cache: Path, fingerprint: list[int]) -> Columns | None:
    try:
        content = memoryview(cache.read_bytes())
    except OSError:
        return None
    checksum, data = content[:4], content[4:]
    if not data or checksum != zlib.crc32(data).to_bytes(4, "big"):
        return None
    columns = msgpack.unpackb(data)
    if columns.pop("of") != fingerprint:
        return None
    schema = fingerprint[1]
    return Columns({field: np.frombuffer(columns[field], DTYPES[field]) for field in FIELDS}, schema)


def _save_cache(cache: Path, fingerprint: list[int], columns: Columns) -> None:
    data = msgpack.packb({"of": fingerprint, **{field: columns[field].tobytes() for field in FIELDS}})
    part = cache.with_suffix(".part")
    with suppress(OSError):  # a folder that cannot be written to can still be read
        try:
            part.write_bytes(zlib.crc32(data).to_bytes(4, "big") + data)
            part.replace(cache)
        except OSError:
            part.unlink(missing_ok=True)
