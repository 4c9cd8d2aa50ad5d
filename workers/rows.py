"""Rows of a world: a base shared by every run of a task, and an overlay with what one run changed.

Knows tables, keys and rows of JSON values; nothing of what they mean.

Rules: a base is never written to. A row put back to its base value leaves the overlay, so the overlay, and with it
which `effects` there are and `digest`, depends on the state alone and not on the way to it. The way is told apart
from it: each effect carries the number of the call that last touched its row or column. Rows handed out are the
stored ones; whoever passes one on to an agent copies it first.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from passhat.workers.canonical import canonical_json
from passhat.workers.environment import Effect

Row = Mapping[str, Any]

_EMPTY: Mapping[str, Row] = {}


class Base(NamedTuple):
    """The world a run starts with."""

    tables: Mapping[str, Mapping[str, Row]]
    digest: bytes

    @classmethod
    def of(cls, tables: Mapping[str, Mapping[str, Row]]) -> Self:
        """Take over tables that nobody changes afterwards."""
        return cls(tables, hashlib.blake2b(canonical_json(tables), digest_size=16).digest())


class RowStore:
    """The world of one run; making one is the reset."""

    __slots__ = ("_call", "_changes", "_overlay", "_tables", "_touched", "base")

    def __init__(self, base: Base) -> None:
        self.base = base
        self._tables = base.tables
        self._overlay: dict[str, dict[str, Row | None]] = {}  # None: deleted
        self._call: int | None = None
        self._touched: dict[tuple[str, str], dict[str, int | None]] = {}  # column → call; "*" for the whole row
        self._changes: list[tuple[str, str, Row | None]] = []

    def begin(self, call: int) -> None:
        """Say that what follows is the work of the call of this number, counted from 1."""
        self._call = call
        self._changes = []

    def changes_digest(self) -> str:
        """Return 16 hex digits over the rows put or deleted since `begin`, in order."""
        return hashlib.blake2b(canonical_json(self._changes), digest_size=8).hexdigest()

    def get(self, table: str, key: str) -> Row | None:
        """Return the row, or None when there is none."""
        changed = self._overlay.get(table)
        if changed is not None and key in changed:
            return changed[key]
        return self._tables.get(table, _EMPTY).get(key)

    def scan(self, table: str) -> Iterator[tuple[str, Row]]:
        """Yield (key, row): rows of the base in its order, then inserted ones by key."""
        base = self._tables.get(table, _EMPTY)
        changed = self._overlay.get(table)
        if not changed:
            yield from base.items()
            return
        for key, original in base.items():
            row = changed.get(key, original)
            if row is not None:
                yield key, row
        yield from self.inserted(table)

    def inserted(self, table: str) -> Iterator[tuple[str, Row]]:
        """Yield (key, row) of the rows that the base has not, by key."""
        base = self._tables.get(table, _EMPTY)
        for key, row in sorted(self._overlay.get(table, _EMPTY).items()):
            if row is not None and key not in base:
                yield key, row

    def changed(self, table: str) -> list[str]:
        """Return the keys of the base's rows that were updated or deleted, sorted."""
        base = self._tables.get(table, _EMPTY)
        return sorted(key for key in self._overlay.get(table, _EMPTY) if key in base)

    @property
    def changed_tables(self) -> frozenset[str]:
        return frozenset(self._overlay)

    def insert(self, table: str, key: str, row: Row) -> None:
        """Add a row; KeyError when the key is taken."""
        if self.get(table, key) is not None:
            raise KeyError(f"{table} has a row {key!r} already")
        self._put(table, key, row, {"*": self._call})

    def update(self, table: str, key: str, **columns: Any) -> None:
        """Change columns of a row; KeyError when there is no such row."""
        row = self.get(table, key)
        if row is None:
            raise KeyError(f"{table} has no row {key!r}")
        touched = {**self._touched.get((table, key), {}), **dict.fromkeys(columns, self._call)}
        self._put(table, key, {**row, **columns}, touched)

    def delete(self, table: str, key: str) -> None:
        """Remove a row; KeyError when there is no such row."""
        if self.get(table, key) is None:
            raise KeyError(f"{table} has no row {key!r}")
        self._put(table, key, None, {"*": self._call})

    def _put(self, table: str, key: str, row: Row | None, touched: dict[str, int | None]) -> None:
        self._changes.append((table, key, row))
        self._touched[table, key] = touched
        changed = self._overlay.setdefault(table, {})
        if row == self._tables.get(table, _EMPTY).get(key):
            changed.pop(key, None)
        else:
            changed[key] = row

    def _differences(self) -> Iterator[tuple[str, str, Row | None]]:
        for table in sorted(self._overlay):
            for key, row in sorted(self._overlay[table].items()):
                yield table, key, row

    def effects(self) -> list[Effect]:
        """Return the differences from the base, sorted by table, key and column."""
        found = []
        for table, key, row in self._differences():
            before = self._tables.get(table, _EMPTY).get(key)
            touched = self._touched[table, key]
            if before is None or row is None:
                found.append(Effect(table, key, "*", before, row, _latest(touched.values())))
                continue
            for column in sorted({*before, *row}):
                old, new = before.get(column), row.get(column)
                if old != new:
                    found.append(Effect(table, key, column, old, new, touched.get(column, touched.get("*"))))
        return found

    def digest(self) -> bytes:
        """Return 8 bytes over the base and the differences from it."""
        content = canonical_json(list(self._differences()))
        return hashlib.blake2b(self.base.digest + content, digest_size=8).digest()


def _latest(calls: Iterable[int | None]) -> int | None:
    return max((call for call in calls if call is not None), default=None)
