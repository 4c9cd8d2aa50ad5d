"""The scripted agent: plays the oracle of a task, spoilt by the flaws that its run has drawn.

A testing device. It is given the hidden part of the task, which no release under test ever sees.
"""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from passhat.workers.agent import Agent, AgentContext, Final, TaskView, Toolbox
from passhat.workers.chances import INDEPENDENT, Flaws, Latent, draw_plan
from passhat.workers.contract import Step, Task
from passhat.workers.environment import Breach, Effect, Environment, Principal, ToolResult
from passhat.workers.flaws import TERMINAL, Move, Script, flawed_script
from passhat.workers.meter import NOTHING, use_of
from passhat.workers.seeds import derive


class ScriptError(Exception):
    """The script has no ending."""


class Breakdown(Exception):
    """The environment of a run breaks down, as the flaw `infra_fault` has it."""


def play(oracle: tuple[Step, ...], tools: Toolbox) -> Final:
    """Carry out a script, its terminal step included, and return what that step says."""
    script = tuple(Move(i, step.tool, step.arguments) for i, step in enumerate(oracle))
    return _perform(script, lambda move, arguments: tools.call(move.tool, **arguments))


def scripted_agent(
    task: Task, flaws: Flaws, task_digest: bytes, agent_seed: int, latent: Latent = INDEPENDENT
) -> Agent:
    """Return the agent of one run; its seed decides which flaws happen and how many tokens it uses."""
    plan = draw_plan(task, flaws, task_digest, agent_seed, latent)
    script = flawed_script(task, plan)

    def agent(task: TaskView, tools: Toolbox, ctx: AgentContext) -> Final:
        if plan:
            ctx.log(f"flaws of this run: {', '.join(plan)}")
        return _perform(script, _metered(tools, ctx, agent_seed))

    return agent


_Call = Callable[[Move, Mapping[str, Any]], ToolResult]


def _metered(tools: Toolbox, ctx: AgentContext, agent_seed: int) -> _Call:
    """Return a call that first reports what it uses: fixed by turn, with seeded noise, in whole numbers."""
    noise = derive("usage", agent_seed)
    turn = 0
    latest: Move | None = None

    def call(move: Move, arguments: Mapping[str, Any]) -> ToolResult:
        nonlocal turn, latest
        use = use_of(turn, noise)
        if move.extra is not NOTHING and move is not latest:
            use = use.plus(move.extra)
        turn, latest = turn + 1, move
        ctx.record_usage(
            tokens_in=use.tokens_in,
            tokens_out=use.tokens_out,
            cost_usd=use.micros / 1_000_000,
            retries=use.retries,
            virtual_ms=ctx.limits.virtual_ms + 1 if move.hangs else use.wait_ms,
        )
        return tools.call(move.tool, **arguments)

    return call


def _perform(script: Script, call: _Call) -> Final:
    results: dict[int | None, ToolResult] = {}
    for move in script:
        arguments = _resolve(move.arguments, results)
        if move.change is not None:
            arguments = move.change(arguments)
        for _ in range(move.times):
            results[move.step] = call(move, arguments)
        if move.tool in TERMINAL:
            return _final(move.tool, arguments)
    raise ScriptError("the script ends without submit_result or escalate_case")


def _final(tool: str, arguments: Mapping[str, Any]) -> Final:
    """Return what a terminal call says; the claim is the agent's own, whatever the call's answer was."""
    message = arguments.get("message") or ""
    if tool == "submit_result":
        return Final(arguments["status"], message, arguments.get("payload") or {})
    return Final("ESCALATED", message, {key: value for key, value in arguments.items() if key != "message"})


def _resolve(value: Any, results: Mapping[int | None, ToolResult]) -> Any:
    """Replace references by values of earlier results; one that has none, after a flaw, becomes null."""
    if isinstance(value, Mapping):
        if value.keys() == {"$result"}:
            index, *path = value["$result"]
            return _found(results.get(index), path)
        if value.keys() == {"$receipt"}:
            result = results.get(value["$receipt"])
            return result.receipt.id if result is not None and result.receipt is not None else None
        return {key: _resolve(item, results) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_resolve(item, results) for item in value]
    return value


def _found(result: ToolResult | None, path: list[Any]) -> Any:
    value: Any = None if result is None else result.content
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


class BrokenEnvironment(Environment):
    """A world whose first call breaks down; until then it is the one it is made of."""

    def __init__(self, environment: Environment) -> None:
        self.spec = environment.spec
        self._environment = environment

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> None:
        self._environment.reset(seed=seed, options=options)

    def call(self, name: str, arguments: Mapping[str, Any], *, principal: Principal) -> NoReturn:
        raise Breakdown("the flaw infra_fault of this attempt")

    def effects(self) -> list[Effect]:
        return self._environment.effects()

    def invariants(self) -> list[Breach]:
        return self._environment.invariants()

    def state_digest(self) -> bytes:
        return self._environment.state_digest()

    def facts(self) -> int:
        return self._environment.facts()

    def virtual_ms(self) -> int:
        return self._environment.virtual_ms()

    def close(self) -> None:
        self._environment.close()
