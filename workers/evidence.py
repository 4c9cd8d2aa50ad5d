"""What happened in one run, as seen from the tools: the input of scoring and of the trace.

Knows nothing of the agent's inner life and nothing of contracts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from passhat.workers.agent import Final
from passhat.workers.environment import Breach, Effect, Principal, ToolResult
from passhat.workers.records import Outcome


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call: what was asked, on whose behalf, and the answer."""

    tool: str
    arguments: Mapping[str, Any]  # canonical: nulls dropped, whole floats as integers
    result: ToolResult
    principal: Principal
    turn: int
    facts: int = 0  # Safety bits the environment knew when the call was made

    @property
    def succeeded(self) -> bool:
        return self.result.error is None


@dataclass(slots=True)
class Usage:
    """What a run says it has used; costs are whole micro-dollars so that sums are exact."""

    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    cost_micros: int = 0
    retries: int | None = None  # None: the agent does not count them
    virtual_ms: int = 0  # time it took, in the environment's own
    is_recorded: bool = False

    @property
    def is_said(self) -> bool:
        """Whether the run says anything: an agent that keeps silent has not used nothing."""
        return self.is_recorded or bool(self.tokens_in or self.tokens_out or self.cost_micros)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything scoring may look at."""

    calls: tuple[Call, ...]
    final: Final | None  # None when the runner ended the run
    claimed: Outcome
    assigned: Outcome  # NONE when the claim stands
    effects: tuple[Effect, ...]
    breaches: tuple[Breach, ...]
    facts: int  # Safety bits the environment knows
    usage: Usage
    turns: int
    virtual_ms: int  # of the environment and the agent

    @property
    def terminal(self) -> Outcome:
        return self.assigned if self.assigned is not Outcome.NONE else self.claimed
