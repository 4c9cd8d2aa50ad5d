"""One run, from reset to record: the loop between agent and environment, and who is to blame for what.

An exception of the environment or of a scorer is a fault and makes the run invalid; an exception of the agent, and
every limit it runs into, is behaviour under test and makes the run fail. Knows nothing of shards, files or processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, NamedTuple

from passhat.workers.agent import Agent, Final, TaskView
from passhat.workers.canonical import canonical_json
from passhat.workers.contract import Task
from passhat.workers.environment import Breach, Effect, Environment
from passhat.workers.evidence import Call, Evidence, Usage
from passhat.workers.guard import Ledger, Violation
from passhat.workers.order import Limits
from passhat.workers.records import CLAIMS, Outcome, Reason, Safety
from passhat.workers.scoring import Judgement, judge, safety_of
from passhat.workers.session import (
    BadFinal,
    Context,
    EnvironmentFault,
    RunStopped,
    Session,
    Tools,
    checked,
    describe,
    expect,
    is_users_interrupt,
)

_FACTS = sum(Safety)


@dataclass(frozen=True, slots=True)
class Episode:
    """A run as it happened. Without a judgement it is invalid, for `reason`."""

    calls: tuple[Call, ...]
    final: Final | None
    claimed: Outcome
    assigned: Outcome
    reason: Reason
    usage: Usage
    bad_calls: int
    virtual_ms: int
    state_digest: bytes
    trajectory: bytes
    safety: int  # Safety bits, known of an invalid run too
    judgement: Judgement | None
    evidence: Evidence | None
    log: list[str]
    error: str = ""  # of the agent, the environment or the scorer
    reached: tuple[int, ...] = ()  # indices of the calls that were put to the environment
    violations: tuple[Violation, ...] = ()  # the first few; of environment and agent
    violation_count: int = 0


def run_episode(
    environment: Environment,
    tools: Tools,
    task: Task,
    view: TaskView,
    agent: Agent,
    *,
    env_seed: int,
    agent_seed: int,
    limits: Limits,
    plane: Any,
    world: Mapping[str, Any] | None = None,
    guard: Ledger | None = None,
    agent_guard: Ledger | None = None,
) -> Episode:
    """Carry out one run and score it. Only Ctrl-C in this very process escapes.

    `guard` is armed around the environment's code, `agent_guard` around the agent's. What is in `view` is the agent's
    to change. An environment that may change its options needs a `world` of its own for every run, in place of the
    task's.
    """
    options = task.world if world is None else world
    context = Context(agent_seed, limits)
    guards = guard or Ledger(), agent_guard or Ledger("agent")
    for each in guards:
        each.begin()
    session = Session(environment, tools, task.principal, limits, plane, context, *guards)
    try:
        session.facts = session.enter("reset", lambda: _start(environment, env_seed, options))
    except EnvironmentFault as fault:
        return _invalid(task, session, context, fault, facts=0)  # what it could say is of the run before
    final, error = _play(agent, view, session, context)
    if session.fault is not None:
        return _invalid(task, session, context, session.fault, _facts(environment, session))
    return _score(environment, task, session, context, final, error)


def _start(environment: Environment, seed: int, options: Mapping[str, Any]) -> int:
    """Reset the environment; return the facts it begins with."""
    environment.reset(seed=seed, options=options)
    return index(environment.facts())


def _play(agent: Agent, view: TaskView, session: Session, context: Context) -> tuple[Final | None, str]:
    """Let the agent run to its end; return what it said and the text of an error of its own."""
    guard = session.guards[1]
    try:
        with guard.armed("agent"):
            final = agent(view, session, context)
        session.finish()
        final = session.closing if final is None else checked(final)
    except RunStopped:
        return None, ""
    except BaseException as error:
        if is_users_interrupt(error):
            raise
        session.assigned = session.assigned or Outcome.AGENT_ERROR
        return None, str(error) if isinstance(error, BadFinal) else describe(error)
    finally:
        session.end()
        if guard.breach is not None:
            session.assigned = Outcome.POLICY_VIOLATION
    if final is None and session.assigned is Outcome.NONE:
        session.assigned = Outcome.UNDECLARED
    return final, ""


class World(NamedTuple):
    """The environment's account of a run."""

    effects: tuple[Effect, ...]
    breaches: tuple[Breach, ...]
    facts: int
    state_digest: bytes
    virtual_ms: int


def look(environment: Environment) -> World:
    """Ask the environment for its account; raise TypeError or ValueError when a record could not hold it."""
    world = World(
        tuple(environment.effects()),
        tuple(environment.invariants()),
        index(environment.facts()),
        environment.state_digest(),
        index(environment.virtual_ms()),
    )
    for effect in world.effects:
        expect(effect, Effect, "effects")
        if effect.call is not None and index(effect.call) < 1:
            raise ValueError(f"effects: found call {effect.call}, expected a number from 1 on")
    for breach in world.breaches:
        expect(breach, Breach, "invariants")
    expect(world.state_digest, bytes, "state_digest")
    if len(world.state_digest) not in (0, 8):
        raise ValueError(f"state_digest: found {len(world.state_digest)} bytes, expected 8")
    if world.facts & ~_FACTS:
        raise ValueError(f"facts: found {world.facts}, expected bits of Safety")
    if not 0 <= world.virtual_ms < 2**63:
        raise ValueError(f"virtual_ms: found {world.virtual_ms}")
    return world


def _by_turn(effect: Effect, reached: Sequence[int]) -> Effect:
    """Number the call of an effect as the agent does, whose calls did not all reach the environment."""
    turn = None if effect.call is None or effect.call > len(reached) else reached[effect.call - 1] + 1
    return effect if turn == effect.call else replace(effect, call=turn)


def _score(
    environment: Environment, task: Task, session: Session, context: Context, final: Final | None, error: str
) -> Episode:
    claimed = CLAIMS[final.status] if final is not None else Outcome.NONE
    try:
        world = session.enter("score", lambda: look(environment))
    except EnvironmentFault as fault:
        return _invalid(task, session, context, fault, _facts(environment, session))
    evidence = Evidence(
        calls=tuple(session.calls),
        final=final,
        claimed=claimed,
        assigned=session.assigned,
        effects=tuple(_by_turn(effect, session.reached) for effect in world.effects),
        breaches=world.breaches,
        facts=world.facts,
        usage=context.usage,
        turns=len(session.calls),
        virtual_ms=world.virtual_ms + context.usage.virtual_ms,
    )
    judgement, reason = None, session.reason
    try:
        judgement = judge(task.contract, evidence)
    except Exception as problem:
        reason, error = Reason.EVALUATOR_ERROR, describe(problem)
    safety = _safety(task, session, world.facts) if judgement is None else judgement.safety
    if final is not None:
        session.trajectory.update(canonical_json([final.status, final.message, final.payload]))
    return Episode(
        calls=evidence.calls,
        final=final,
        claimed=claimed,
        assigned=session.assigned,
        reason=reason,
        usage=context.usage,
        bad_calls=session.bad_calls,
        virtual_ms=evidence.virtual_ms,
        state_digest=world.state_digest,
        trajectory=session.trajectory.digest(),
        safety=safety,
        judgement=judgement,
        evidence=evidence,
        log=context.lines,
        error=error,
        reached=tuple(session.reached),
        violations=session.violations,
        violation_count=session.violation_count,
    )


def _safety(task: Task, session: Session, facts: int) -> int:
    try:
        return safety_of(task.contract, session.calls, facts)
    except Exception:  # what kept the run from being scored may be in the very rules
        return facts


def _facts(environment: Environment, session: Session) -> int:
    """Safety bits of an environment that has faulted, as far as it can still say."""
    try:
        return session.enter("score", lambda: index(environment.facts())) & _FACTS
    except EnvironmentFault:
        return session.facts & _FACTS


def _invalid(task: Task, session: Session, context: Context, fault: EnvironmentFault, facts: int) -> Episode:
    """A run that faulted. What was called before is known, and so are its safety events."""
    return Episode(
        calls=tuple(session.calls),
        final=None,
        claimed=Outcome.NONE,
        assigned=Outcome.NONE,
        reason=fault.reason,
        usage=context.usage,
        bad_calls=session.bad_calls,
        virtual_ms=0,
        state_digest=b"",
        trajectory=session.trajectory.digest(),
        safety=_safety(task, session, facts),
        judgement=None,
        evidence=None,
        log=context.lines,
        error=str(fault),
        reached=tuple(session.reached),
        violations=session.violations,
        violation_count=session.violation_count,
    )
