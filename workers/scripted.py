"""The scripted agent: plays the oracle of a task, spoilt by the flaws that its run has drawn.

A testing device. It is given the hidden part of the task, which no release under test ever sees.
"""

from collections.abc import Callable, Mapping
from typing import Any

from passhat.workers.agent import Agent, AgentContext, Final, TaskView, Toolbox
from passhat.workers.contract import Step, Task
from passhat.workers.environment import ToolResult
from passhat.workers.flaws import TERMINAL, Flaws, Move, Script, draw_plan, flawed_script
from passhat.workers.seeds import derive

# What a call uses: the prompt grows with every turn, and prices are whole micro-dollars a token.
_TOKENS_BASE, _TOKENS_TURN, _TOKENS_REPLY = 600, 150, 40
_MICROS_IN, _MICROS_OUT = 3, 15


class ScriptError(Exception):
    """The script has no ending."""


def play(oracle: tuple[Step, ...], tools: Toolbox) -> Final:
    """Carry out a script, its terminal step included, and return what that step says."""
    return _perform(tuple(Move(i, step.tool, step.arguments) for i, step in enumerate(oracle)), tools.call)


def scripted_agent(task: Task, flaws: Flaws, task_digest: bytes, agent_seed: int) -> Agent:
    """Return the agent of one run; its seed decides which flaws happen and how many tokens it uses."""
    plan = draw_plan(task, flaws, task_digest, agent_seed)
    script = flawed_script(task, plan)

    def agent(task: TaskView, tools: Toolbox, ctx: AgentContext) -> Final:
        if plan:
            ctx.log(f"flaws of this run: {', '.join(plan)}")
        return _perform(script, _metered(tools, ctx, agent_seed))

    return agent


def _metered(tools: Toolbox, ctx: AgentContext, agent_seed: int) -> Callable[..., ToolResult]:
    """Return a call that first reports what it uses: fixed by turn, with seeded noise, in whole numbers."""
    noise = derive("usage", agent_seed)
    turn = 0

    def call(name: str, /, **arguments: Any) -> ToolResult:
        nonlocal turn
        byte = noise >> turn % 8 * 8 & 0xFF
        tokens_in = _TOKENS_BASE + _TOKENS_TURN * turn + byte
        tokens_out = _TOKENS_REPLY + byte % 16
        turn += 1
        micros = _MICROS_IN * tokens_in + _MICROS_OUT * tokens_out
        ctx.record_usage(tokens_in=tokens_in, tokens_out=tokens_out, cost_usd=micros / 1_000_000)
        return tools.call(name, **arguments)

    return call


def _perform(script: Script, call: Callable[..., ToolResult]) -> Final:
    results: dict[int | None, ToolResult] = {}
    for move in script:
        arguments = _resolve(move.arguments, results)
        if move.change is not None:
            arguments = move.change(arguments)
        for _ in range(move.times):
            results[move.step] = call(move.tool, **arguments)
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
