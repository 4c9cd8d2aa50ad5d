"""What an agent is: the protocol a release implements, and what it is given and gives back.

An agent sees the public part of a task and a toolbox. It never sees the contract, the oracle or the cohort.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from passhat.workers.environment import ToolResult, ToolSpec
from passhat.workers.order import Limits


@dataclass(frozen=True, slots=True)
class TaskView:
    """The public part of a task."""

    id: str
    request: str
    inputs: Mapping[str, Any]
    policy: str
    output_schema: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Final:
    """What the agent says at the end; `status` is COMPLETED, ESCALATED, REFUSED or NEEDS_CLARIFICATION."""

    status: str
    message: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)


class Toolbox(Protocol):
    """The tools of one run."""

    def list(self) -> tuple[ToolSpec, ...]:
        """Return the tools that can be called."""

    def call(self, name: str, /, **arguments: Any) -> ToolResult:
        """Call a tool. An error of the call is in the result; only a limit of the runner raises."""


class AgentContext(Protocol):
    """Services of the runner to an agent."""

    seed: int  # the only source of randomness an agent may use if its runs are to repeat
    limits: Limits  # where the run is ended

    def record_usage(
        self,
        *,
        tokens_in: int = 0,
        tokens_cached: int = 0,
        tokens_out: int = 0,
        cost_usd: float = 0.0,
        retries: int | None = None,
        virtual_ms: int = 0,
    ) -> None:
        """Add to what this run has used. An agent that counts its retries says 0 where there was none.

        `virtual_ms` is for a simulated agent: how long it took, in the environment's own time.
        """

    def log(self, text: str) -> None:
        """Add a line to the run's trace."""


class Agent(Protocol):
    """A release under test. An exception it raises is the agent's error: the run fails."""

    def __call__(self, task: TaskView, tools: Toolbox, ctx: AgentContext) -> Final:
        """Carry out one task."""
