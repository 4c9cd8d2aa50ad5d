"""A task and its contract: what the agent is asked, what the world looks like, and what counts as done well.

These dataclasses are the one definition of a line of a task file; `runner` validates files against them and exports
their JSON Schema. The public part is `request`, `inputs`, `policy` and `output_schema`; everything else is hidden.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

Claim = Literal["COMPLETED", "ESCALATED", "REFUSED", "NEEDS_CLARIFICATION"]

_STRICT = {"extra": "forbid"}  # read by pydantic when a file is checked against the class


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadCheck:
    """One value of the final payload, compared by type and value."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    path: str  # keys and list indices joined by dots: "lines.0.amount_minor"
    equals: Any
    absolute: float = 0.0  # tolerances of numbers; a whole number that should be exact has none
    relative: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRule:
    """A set of calls: by tool, and optionally by arguments, principal and receipt.

    `arguments` maps an argument to the value it must have; `absent` names arguments that must not be given (or be
    null). A required rule is met by `at_least` calls and broken by more than `at_most`.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    at_least: int = 1
    at_most: int | None = None
    receipt: bool = False  # only calls that the target system answered with a receipt count
    tenant: str | None = None  # only calls made on behalf of this tenant count


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
    tokens: int | None = None
    virtual_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a run of the task must and must not do."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = _STRICT

    outcomes: tuple[Claim, ...] = ("COMPLETED",)  # terminal outcomes that are right
    expect_text: tuple[str, ...] = ()  # each must appear in the final message
    forbid_text: tuple[str, ...] = ()
    payload: tuple[PayloadCheck, ...] = ()
    expect_effects: tuple[EffectRule, ...] | None = None  # each must be met; None: effects are not checked
    allow_effects: tuple[EffectRule, ...] = ()  # may happen; any effect in neither list fails the outcome
    must_call: tuple[CallRule, ...] = ()
    must_not_call: tuple[CallRule, ...] = ()
    order: tuple[tuple[str, str], ...] = ()  # (first, then): every call of `then` comes after a call of `first`
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
    principal: Mapping[str, str] = field(default_factory=dict)  # user, tenant, role of the session
    contract: Contract = Contract()
    oracle: tuple[Step, ...] = ()  # a script that satisfies the contract
    template: str = ""
