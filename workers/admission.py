"""Whether a task may be in a suite: its oracle passes, doing nothing does not, and each flaw shows where it should.

A task that fails here would measure itself instead of an agent. Knows tasks and environments, not suites.
"""

from passhat.workers import seeds
from passhat.workers.agent import Agent, AgentContext, Final, TaskView, Toolbox
from passhat.workers.contract import Task, task_digest
from passhat.workers.environment import Environment
from passhat.workers.episode import Episode, run_episode
from passhat.workers.flaws import FLAWS
from passhat.workers.order import Limits
from passhat.workers.records import CLAIMS, SCORERS
from passhat.workers.scripted import scripted_agent
from passhat.workers.session import Tools

_SURE = (1.0, 0.0)  # a flaw that always happens


def examine(task: Task, environment: Environment, tools: Tools) -> tuple[str, ...]:
    """Return what speaks against admitting a task; nothing when it may be admitted.

    Without an oracle there is nothing to compare with, and only the trivial agents are tried.
    """
    problems = [
        f"an agent that does nothing and claims {claim} passes"
        for claim in CLAIMS
        if _passes(_run(task, _idle(claim), environment, tools))
    ]
    return (*problems, *_examine_oracle(task, environment, tools)) if task.oracle else tuple(problems)


def _examine_oracle(task: Task, environment: Environment, tools: Tools) -> list[str]:
    digest = task_digest(task)
    seed = seeds.agent_seed(0, digest, 0, "admission")
    oracle = _run(task, scripted_agent(task, {}, digest, seed), environment, tools)
    if not _passes(oracle):
        findings = oracle.judgement.findings if oracle.judgement else (oracle.error,)
        return [f"the oracle does not pass: {finding}" for finding in findings]
    again = _run(task, scripted_agent(task, {}, digest, seed), environment, tools)
    if (again.trajectory, again.state_digest) != (oracle.trajectory, oracle.state_digest):
        return ["the oracle does not repeat: two runs of it differ"]
    problems = []
    for name, flaw in FLAWS.items():
        expected = flaw.fails(task)
        if expected:
            failed = _failed(_run(task, scripted_agent(task, {name: _SURE}, digest, seed), environment, tools))
            if failed != expected:
                problems.append(f"flaw {name} fails {_listed(failed)}, expected {_listed(expected)}")
    return problems


def _idle(claim: str) -> Agent:
    def agent(task: TaskView, tools: Toolbox, ctx: AgentContext) -> Final:
        ctx.record_usage()  # nothing, and it says so
        return Final(claim)

    return agent


def _run(task: Task, agent: Agent, environment: Environment, tools: Tools) -> Episode:
    view = TaskView(task.id, task.request, task.inputs, task.policy, task.output_schema)
    limits = Limits()
    return run_episode(
        environment, tools, task, view, agent, env_seed=0, agent_seed=0, limits=limits, plane=bytearray(1)
    )


def _passes(episode: Episode) -> bool:
    return episode.judgement is not None and episode.judgement.passed


def _failed(episode: Episode) -> frozenset[str]:
    if episode.judgement is None:
        return frozenset()
    failing = episode.judgement.applicable & ~episode.judgement.passes
    return frozenset(name for i, name in enumerate(SCORERS) if failing >> i & 1)


def _listed(names: frozenset[str]) -> str:
    return " and ".join(sorted(names)) or "nothing"
