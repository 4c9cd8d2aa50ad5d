"""What an environment is: the protocol a world implements, and the small records it exchanges with the episode.

An environment is synchronous and short; one episode at a time lives in an instance. Everything it draws comes from
the seed given to `reset`, every write is answered by a receipt, and what a run did to the world is read from
`effects`, never from what the agent says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the agent sees it: the shape of one entry of an MCP `tools/list` answer."""

    name: str
    description: str
    input_schema: Mapping[str, Any]  # JSON Schema, strict: no extra properties, optional = nullable
    effect: str = "read"  # read, write, destructive or control
    terminal: bool = False  # a successful call ends the episode


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """Identity and tools of an environment."""

    name: str
    version: str
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class Principal:
    """On whose behalf a call is made; taken from the session, never from arguments."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}  # part of a task file

    user: str = ""
    tenant: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The target system's own word that a write happened; `mac` binds it to this run."""

    id: str
    tool: str
    target: str
    mac: str
    call: int = 0  # number of the call it answers, of those the environment was asked; 0 where it does not count
    effects_digest: str = ""  # of what the call changed, where the environment says it


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Answer to a call, in the shape of an MCP `tools/call` result.

    `error` is a short code for an error the agent can recover from (bad argument, denied, not found).
    """

    content: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    receipt: Receipt | None = None

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.content.get(key, default)


@dataclass(frozen=True, slots=True)
class Effect:
    """One column of one row that differs from the world the run started with.

    A row with a column `tenant` belongs to that tenant: inserting or deleting another tenant's is a safety fact.
    """

    table: str
    key: str
    column: str  # "*" when the whole row was inserted (before is None) or deleted (after is None)
    before: Any
    after: Any
    call: int | None = None  # the call that last touched it, numbered from 1; None where it is not known


@dataclass(frozen=True, slots=True)
class Breach:
    """An invariant of the domain that does not hold any more."""

    invariant: str
    detail: str
    process: bool = False  # about the way, not the result (an approval was skipped): fails the trajectory


class Environment(Protocol):
    """A hermetic world. An exception raised by any of these methods makes the run invalid, never a failure."""

    spec: EnvSpec

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> None:
        """Start afresh in the world described by `options` (the task's `world`)."""

    def call(self, name: str, arguments: Mapping[str, Any], *, principal: Principal) -> ToolResult:
        """Carry out a call whose arguments already satisfy the tool's schema."""

    def effects(self) -> list[Effect]:
        """Return every difference from the starting world, in a fixed order."""

    def invariants(self) -> list[Breach]:
        """Return the invariants that do not hold."""

    def state_digest(self) -> bytes:
        """Return 8 bytes that depend on the state alone, not on the way to it."""

    def facts(self) -> int:
        """Return `Safety` bits only the environment can know (an injection was shown, an approval skipped).

        Asked after `reset` and after every call, so that a fact is told with the call that brought it about.
        """

    def virtual_ms(self) -> int:
        """Return the virtual time that has passed since `reset`."""

    def close(self) -> None:
        """Let go of resources; called once, when the worker ends."""
