"""What the author of an environment writes: a `World` with typed methods marked `@tool`; the protocol is done here.

    class Library(World):
        tables = {"books": {"B-1": {"title": "Emma", "copies": 1}}}

        @tool(effect="write")
        def lend(self, book_id: str, member_id: str) -> dict[str, Any]:
            "Lend a book to a member."
            ...

A tool's type hints become its JSON Schema (see tool_schema), its docstring the description that agents read. It returns
the content of its answer, or raises `ToolError` before it changes anything. Knows nothing of tasks and contracts.
"""

import hmac
import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any, Literal, TypeVar

from passhat.workers import seeds
from passhat.workers.canonical import canonical_json
from passhat.workers.environment import Breach, Effect, EnvSpec, Principal, Receipt, ToolResult, ToolSpec
from passhat.workers.records import Safety
from passhat.workers.rows import Base, Row, RowStore
from passhat.workers.tool_schema import Bounds, parameters_schema

__all__ = ["Bounds", "Breach", "Principal", "Safety", "ToolError", "World", "tool"]

Kind = Literal["read", "write", "destructive", "control"]
Method = TypeVar("Method", bound=Callable[..., Mapping[str, Any] | None])

_MARK = "_passhat_tool"
_WRITES = ("write", "destructive")


class ToolError(Exception):
    """An answer the agent can recover from: a short code, "not_found", and a sentence."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class _Mark:
    effect: Kind
    terminal: bool


@dataclass(frozen=True, slots=True)
class _Tool:
    spec: ToolSpec
    method: Callable[..., Mapping[str, Any] | None]
    absent: Mapping[str, None]  # every parameter, for those that are left out


def tool(*, effect: Kind, terminal: bool = False) -> Callable[[Method], Method]:
    """Mark a method of a `World` as a tool; `terminal`: a successful call ends the run.

    Only `write` and `destructive` tools may change rows that matter; a successful call of one is answered by a receipt.
    `control` is for what is neither looked up nor changed: asking, escalating, handing in.
    """

    def mark(method: Method) -> Method:
        setattr(method, _MARK, _Mark(effect, terminal))
        return method

    return mark


class World:
    """Base of an environment of one's own; its subclass is the factory to name in a suite: "module:Library".

    A task's `world` may hold `tables` (table -> key -> row of JSON values; they replace those of the class, table by
    table), `now` (ISO time) and whatever else the tools read from `self.world`. All that changes belongs into
    `self.rows`, by its own methods and never in place: attributes of your own are not compared, and outlive a run.
    """

    name: str = ""  # by default that of the class
    version: str = "1"
    tables: Mapping[str, Mapping[str, Row]] = {}
    latency_ms: int = 50  # virtual time of a call: this, and by the seed up to as much again

    spec: EnvSpec
    rows: RowStore
    world: Mapping[str, Any]
    principal: Principal  # on whose behalf the present call is made

    _tools: Mapping[str, _Tool] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        names = dict.fromkeys(name for kind in reversed(cls.__mro__) for name in vars(kind))
        marked = {name: method for name in names if hasattr(method := getattr(cls, name), _MARK)}
        cls._tools = {name: _as_tool(name, method) for name, method in marked.items()}
        cls.spec = EnvSpec(cls.name or cls.__name__, cls.version, tuple(tool.spec for tool in cls._tools.values()))

    # What tools use

    def rng(self, purpose: str) -> Random:
        """Return the run's own stream of random numbers for a purpose; draws from one do not shift another."""
        if purpose not in self._streams:
            self._streams[purpose] = seeds.stream(self._seed, purpose)
        return self._streams[purpose]

    def mint(self, table: str) -> str:
        """Return a free key of a table, "loans-0001": an ordinal, so the same run of calls mints the same keys."""
        while True:
            self._minted[table] = self._minted.get(table, 0) + 1
            key = f"{table}-{self._minted[table]:04d}"
            if self.rows.get(table, key) is None:
                return key

    def now(self) -> datetime:
        """Return the world's own time: the task's `now`, by default the start of 2026, and what has passed since."""
        start = datetime.fromisoformat(self.world.get("now", "2026-01-01T00:00:00"))
        return start + timedelta(milliseconds=self._virtual_ms)

    def wait(self, ms: int) -> None:
        """Let virtual time pass."""
        self._virtual_ms += ms

    def note(self, fact: Safety) -> None:
        """Record a safety fact of the run that only the world can know, such as `Safety.UNVERIFIED_WRITE`."""
        self._facts |= fact

    # The protocol. Override `invariants` to say what must always hold.

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> None:
        self.world = options
        self.principal = Principal()
        tables = {**pickle.loads(pickle.dumps(self.tables)), **options.get("tables", {})}
        self.rows = RowStore(Base.of(tables))
        self._seed = seed
        self._key = seeds.derive("receipts", seed).to_bytes(8, "big")
        self._streams: dict[str, Random] = {}
        self._minted: dict[str, int] = {}
        self._calls = 0
        self._virtual_ms = 0
        self._facts = 0

    def call(self, name: str, arguments: Mapping[str, Any], *, principal: Principal) -> ToolResult:
        called = self._tools[name]
        self.principal = principal
        self._calls += 1
        self.wait(round(self.latency_ms * (1 + self.rng("latency").random())))
        self.rows.begin(self._calls)
        arguments = {**called.absent, **arguments}
        try:
            content = called.method(self, **arguments) or {}
        except ToolError as error:
            return ToolResult({"message": str(error)}, error=error.code)
        if called.spec.effect not in _WRITES:
            return ToolResult(content)
        receipt = self._receipt(name, next(iter(arguments.values()), None))
        return ToolResult({"receipt": receipt.id, **content}, receipt=receipt)

    def _receipt(self, name: str, first_argument: Any) -> Receipt:
        """Answer for what this call has changed; its first argument says on what."""
        target = "" if first_argument is None else str(first_argument)
        key, changes = self.mint("receipt"), self.rows.changes_digest()
        content = canonical_json([key, name, target, self._calls, changes])
        mac = hmac.digest(self._key, content, "sha256").hex()[:16]
        return Receipt(key, name, target, mac, self._calls, changes)

    def effects(self) -> list[Effect]:
        if Base.of(self.rows.base.tables).digest != self.rows.base.digest:
            raise RuntimeError("a row was changed in place; use self.rows.update(table, key, column=value)")
        return self.rows.effects()

    def invariants(self) -> list[Breach]:
        """Return what must always hold in this world and does not."""
        return []

    def state_digest(self) -> bytes:
        return self.rows.digest()

    def facts(self) -> int:
        return int(self._facts)

    def virtual_ms(self) -> int:
        return self._virtual_ms

    def close(self) -> None:
        """Let go of resources; there are none."""


def _as_tool(name: str, method: Callable[..., Any]) -> _Tool:
    mark: _Mark = getattr(method, _MARK)
    if hasattr(World, name):
        raise TypeError(f"{method.__qualname__}: every World has a method {name} of its own; choose another name")
    description = inspect.getdoc(method)
    if not description:
        raise TypeError(f"{method.__qualname__} has no docstring, which is what an agent reads about the tool")
    schema = parameters_schema(method)
    return _Tool(
        ToolSpec(name, description, schema, mark.effect, mark.terminal), method, dict.fromkeys(schema["properties"])
    )
