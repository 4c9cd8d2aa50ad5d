"""A world without tools and an agent that only spends time: the least there is to run, for measuring the runner."""

import os
from collections.abc import Mapping
from itertools import repeat
from typing import Any

from passhat.workers.agent import AgentContext, Final, TaskView, Toolbox
from passhat.workers.environment import Breach, Effect, EnvSpec, Principal, ToolResult

ITERATIONS = int(os.environ.get("SPIN_ITERATIONS", "0"))


class Nothing:
    """An environment in which nothing can be done."""

    spec = EnvSpec("nothing", "1", ())

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> None:
        pass

    def call(self, name: str, arguments: Mapping[str, Any], *, principal: Principal) -> ToolResult:
        return ToolResult(error="no_tools")

    def effects(self) -> list[Effect]:
        return []

    def invariants(self) -> list[Breach]:
        return []

    def state_digest(self) -> bytes:
        return bytes(8)

    def facts(self) -> int:
        return 0

    def virtual_ms(self) -> int:
        return 0

    def close(self) -> None:
        pass


def spin(iterations: int) -> None:
    """A fixed amount of work that allocates nothing, so that the state of the heap does not change its speed."""
    for _ in repeat(None, iterations):
        pass


def run(task: TaskView, tools: Toolbox, ctx: AgentContext) -> Final:
    spin(ITERATIONS)
    return Final("COMPLETED")
