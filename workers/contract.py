"""A task and its contract: what the agent is asked, what the world looks like, and what counts as done well.

These dataclasses are the one definition of a line of a task file; `runner` validates files against them and exports
their JSON Schema. The public part is `request`, `inputs`, `policy` and `output_schema`; everything else is hidden.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Literal

import rfc8785

from passhat.workers.environment import Principal

Claim = Literal["COMPLETED", "ESCALATED", "REFUSED", "NEEDS_CLARIFICATION"]

_STRICT = {"extra": "forbid"}  # read by pydantic when a file is checked against the class


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadCheck:
    """One value of the final payload, compared by type and value; or a receipt the agent claims to hold."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    path: str  # keys and list indices joined by dots: "lines.0.amount_minor"
    equals: Any = None  # None: it must be null or absent
    absolute: float = 0.0  # tolerances of numbers; a whole number that should be exact has none
    relative: float = 0.0
    receipt: str = ""  # a tool: the value must be the id of a receipt of this tool, issued in this run


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRule:
    """A set of calls: by the exact name of a tool, and optionally by arguments, principal and receipt.

    `arguments` maps an argument to the value it must have; `absent` names arguments that must not be given (or be
    null). A required rule is met by `at_least` calls and broken by more than `at_most`; one call meets one requirement.
    A call answered with an error counts too, unless a receipt is asked for.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    at_least: int = 1
    at_most: int | None = None
    receipt: bool = False  # only calls that the target system answered with a receipt count
    user: str | None = None  # only calls made on behalf of this user, tenant and role count
    tenant: str | None = None
    role: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRule:
    """A set of effects; a part left out matches anything.

    `after` names columns and the values they must have afterwards, in an inserted row or in the one changed column.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    table: str
    key: str | None = None
    column: str | None = None  # "*" for an inserted or deleted row
    after: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Limits of the efficiency scorer: reaching one exactly is allowed, exceeding it fails the run."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    turns: int | None = None
    calls: int | None = None
    cost_usd: float | None = None
    tokens: int | None = None  # in and out together
    tokens_in: int | None = None  # cached ones included
    tokens_cached: int | None = None
    tokens_out: int | None = None
    retries: int | None = None
    virtual_ms: int | None = None  # latency in the environment's own time


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a run of the task must and must not do."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    outcomes: tuple[Claim, ...] = ("COMPLETED",)  # right claims
    confirmed_by: Mapping[str, str] = field(default_factory=dict)  # a claim counts only with a receipt of this tool
    expect_text: tuple[str, ...] = ()  # each must appear in the final message, as whole words and numbers
    forbid_text: tuple[str, ...] = ()  # none may appear in it, not even within a word
    payload: tuple[PayloadCheck, ...] = ()
    expect_effects: tuple[EffectRule, ...] | None = None  # each must be met; None: effects are not checked
    allow_effects: tuple[EffectRule, ...] = ()  # may happen; any effect in neither list fails the outcome
    must_call: tuple[CallRule, ...] = ()
    must_not_call: tuple[CallRule, ...] = ()  # an attempt that was blocked counts
    # (first, then): every call of `then` comes after a call of `first`, and after one that meets a `must_call` rule
    # for `first` where there is such a rule.
    order: tuple[tuple[str, str], ...] = ()
    ceilings: Ceilings = Ceilings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of an oracle script.

    An argument may be {"$result": [i, "key", …]} (a value from the result of step i) or {"$receipt": i} (the id of
    its receipt); both also work inside lists and mappings.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One situation to solve, with its contract; the sampling unit."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    id: str
    cohort: str = "all"
    request: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    policy: str = ""
    output_schema: Mapping[str, Any] | None = None
    world: Mapping[str, Any] = field(default_factory=dict)  # given to the environment's reset
    principal: Principal = Principal()  # of the session, in whose name the agent's calls are made
    contract: Contract = Contract()
    oracle: tuple[Step, ...] = ()  # a script that satisfies the contract
    template: str = ""
    passes_trivially: tuple[str, ...] = ()  # names of trivial agents that rightly pass; every other one must fail


def task_content(task: Task) -> dict[str, Any]:
    """Return all a task says, hidden part included, as JSON values: the line of a task file that would make it.

    A part that has its default value is left out, so a field added to the format later changes no digest.
    """
    content: dict[str, Any] = _content(task)
    return content


def task_digest(task: Task) -> bytes:
    """Return the SHA-256 of the task's content in canonical JSON (RFC 8785): how it was written down does not matter.

    Raise ValueError when a value has no canonical form: a whole number beyond 2^53, or one that is not finite.
    """
    content = task_content(task)
    return hashlib.sha256(_encode(content).encode() if _is_plain(content) else rfc8785.dumps(content)).digest()


_encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode


def _is_plain(value: Any) -> bool:
    """Whether the standard library, six times as fast, writes a value as RFC 8785 does.

    The two differ in the order of keys beyond ASCII and in the form of whole, very large and very small floats.
    """
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-(2**53) < value < 2**53)
    if kind is float:
        return not value.is_integer() and 1e-4 <= abs(value) < 1e16
    if kind is dict:
        return all(type(key) is str and key.isascii() for key in value) and all(map(_is_plain, value.values()))
    return kind in (list, tuple) and all(map(_is_plain, value))


def _content(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_content(item) for item in value]
    kind: Any = type(value)
    defaults = _defaults(kind)
    if not defaults:
        return value
    parts = ((name, getattr(value, name), default) for name, default in defaults)
    return {name: _content(part) for name, part, default in parts if part != default}


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a part of a task with their defaults; nothing for a plain value."""
    if not hasattr(kind, "__dataclass_fields__"):
        return ()
    return tuple(
        (part.name, part.default if part.default_factory is MISSING else part.default_factory())
        for part in fields(kind)
    )
