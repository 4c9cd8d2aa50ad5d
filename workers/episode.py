"""One run, from reset to record: the loop between agent and environment, its limits, and who is to blame for what.

An exception of the environment or of a scorer is a fault and makes the run invalid; an exception of the agent, and
every limit it runs into, is behaviour under test and makes the run fail. Knows nothing of shards, files or processes.
"""

import hashlib
import math
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import fastjsonschema

from passhat.workers.agent import Agent, Final, TaskView
from passhat.workers.canonical import canonical, canonical_json
from passhat.workers.contract import Task
from passhat.workers.environment import Environment, EnvSpec, Principal, ToolResult, ToolSpec
from passhat.workers.evidence import Call, Evidence, Usage
from passhat.workers.order import Limits
from passhat.workers.records import CLAIMS, Outcome, Reason
from passhat.workers.scoring import Judgement, judge

T = TypeVar("T")

_clock = time.perf_counter  # bound at import: guards that freeze clocks later do not reach it

# A repeated call is a loop once it is seen this often, or once a cycle of at most three calls has come round so often.
_SAME_CALL = 4
_LONGEST_CYCLE = 3
_ROUNDS = 3

AGENT, ENVIRONMENT = 0, 1  # whose code is running: values of the plane marker


class RunStopped(BaseException):
    """Unwinds the agent once the run has ended; not an Exception, so that `except Exception` lets it through."""


class EnvironmentFault(Exception):
    """The environment raised, or took the run over its wall-clock limit."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of an environment with their compiled schemas."""

    specs: tuple[ToolSpec, ...]
    by_name: Mapping[str, "Tool"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, the compiled check of its arguments, and what is filled in for arguments that may be left out."""

    spec: ToolSpec
    validate: Callable[[Any], Any]
    optional: Mapping[str, None]


def compile_tools(spec: EnvSpec) -> Tools:
    """Compile the argument schemas of an environment, once a process."""
    return Tools(spec.tools, {tool.name: _compile(tool) for tool in spec.tools})


def _compile(spec: ToolSpec) -> Tool:
    properties = spec.input_schema.get("properties", {})
    optional = [name for name, schema in properties.items() if "null" in schema.get("type", ())]
    return Tool(spec, fastjsonschema.compile(dict(spec.input_schema)), dict.fromkeys(optional))


@dataclass(slots=True)
class Context:
    """What the runner offers an agent besides tools."""

    seed: int
    usage: Usage = field(default_factory=Usage)
    lines: list[str] = field(default_factory=list)

    def record_usage(
        self, *, tokens_in: int = 0, tokens_cached: int = 0, tokens_out: int = 0, cost_usd: float = 0.0
    ) -> None:
        amounts = (tokens_in, tokens_cached, tokens_out, cost_usd)
        if not all(math.isfinite(amount) and amount >= 0 for amount in amounts):
            raise ValueError(f"usage must be finite and not negative, found {amounts}")
        self.usage.tokens_in += tokens_in
        self.usage.tokens_cached += tokens_cached
        self.usage.tokens_out += tokens_out
        self.usage.cost_micros += round(cost_usd * 1_000_000)

    def log(self, text: str) -> None:
        self.lines.append(text)


class Session:
    """The toolbox of one run: checks arguments, keeps the account of calls, and ends the run at its limits."""

    def __init__(
        self, environment: Environment, tools: Tools, principal: Principal, limits: Limits, plane: Any, context: Context
    ) -> None:
        self._environment = environment
        self._tools = tools
        self._principal = principal
        self._limits = limits
        self._plane = plane
        self._context = context
        self._max_cost_micros = math.inf if limits.cost_usd is None else round(limits.cost_usd * 1_000_000)
        self._deadline = _clock() + limits.seconds
        self._since_change: list[bytes] = []
        self.trajectory = hashlib.blake2b(digest_size=16)
        self.calls: list[Call] = []
        self.bad_calls = 0
        self.assigned = Outcome.NONE
        self.reason = Reason.NONE
        self.fault: EnvironmentFault | None = None
        self.closing: Final | None = None

    def list(self) -> tuple[ToolSpec, ...]:
        return self._tools.specs

    def call(self, name: str, /, **arguments: Any) -> ToolResult:
        """Carry out one call; every call is one turn."""
        self._check_limits()
        if self.closing is not None:
            return self._refuse(name, arguments, "episode_ended", "the run has been closed by a terminal call")
        tool = self._tools.by_name.get(name)
        if tool is None:
            return self._refuse(name, arguments, "unknown_tool", f"no tool is called {name!r}")
        try:
            tool.validate({**tool.optional, **arguments})
            asked = canonical(arguments)
        except (fastjsonschema.JsonSchemaValueException, TypeError, ValueError) as error:
            return self._refuse(name, arguments, "invalid_arguments", str(error))
        result, content = self._enter(lambda: self._ask(name, asked))
        self._note(name, tool.spec, asked, result, content)
        return result

    def _ask(self, name: str, asked: Mapping[str, Any]) -> tuple[ToolResult, bytes]:
        """Return the environment's answer, and its content encoded: an answer that is not JSON is its own fault."""
        result = self._environment.call(name, asked, principal=self._principal)
        return result, canonical_json(result.content)

    def finish(self) -> None:
        """Apply the limits once more to what the agent did after its last call."""
        self._check_limits(ended=True)

    def enter(self, step: Callable[[], T]) -> T:
        """Run a step of the environment; raise EnvironmentFault when it raises or outlasts the run's limit."""
        self._plane[0] = ENVIRONMENT
        try:
            result = step()
        except (Exception, SystemExit) as error:
            raise EnvironmentFault(Reason.ENVIRONMENT_ERROR, describe(error)) from error
        finally:
            self._plane[0] = AGENT
        if _clock() > self._deadline:
            raise EnvironmentFault(Reason.ENVIRONMENT_TIMEOUT, "the environment took the run over its wall-clock limit")
        return result

    def _enter(self, step: Callable[[], T]) -> T:
        try:
            return self.enter(step)
        except EnvironmentFault as fault:
            self.fault = fault
            raise RunStopped from fault

    def _refuse(self, name: str, arguments: Mapping[str, Any], code: str, message: str) -> ToolResult:
        self.bad_calls += 1
        result = ToolResult(error=code, content={"message": message})
        try:
            asked = canonical(arguments)
            canonical_json(asked)
        except (TypeError, ValueError):
            asked = {key: repr(value) for key, value in arguments.items()}
        self._note(name, None, asked, result, canonical_json(result.content))
        return result

    def _note(
        self, name: str, spec: ToolSpec | None, asked: Mapping[str, Any], result: ToolResult, content: bytes
    ) -> None:
        self.calls.append(Call(name, asked, result, self._principal, len(self.calls) + 1))
        receipt = result.receipt.id if result.receipt else None
        asked_for = canonical_json([name, asked, result.error, receipt])
        fingerprint = hashlib.blake2b(asked_for + content, digest_size=16).digest()
        self.trajectory.update(fingerprint)
        changed = spec is not None and result.error is None and spec.effect in ("write", "destructive")
        if changed:
            self._since_change.clear()
        self._since_change.append(fingerprint)
        if spec is not None and spec.terminal and result.error is None:
            self.closing = _closing(result)

    def _check_limits(self, *, ended: bool = False) -> None:
        if self.assigned is not Outcome.NONE or self.fault is not None:
            raise RunStopped
        if _clock() > self._deadline:
            self.reason = Reason.WALL_CLOCK
            self._stop(Outcome.TIMED_OUT)
        if self._limits.virtual_ms is not None and self._environment.virtual_ms() > self._limits.virtual_ms:
            self._stop(Outcome.TIMED_OUT)
        if self._context.usage.cost_micros > self._max_cost_micros:
            self._stop(Outcome.BUDGET_EXCEEDED)
        if ended:
            return
        if is_loop(self._since_change):
            self._stop(Outcome.LOOP_DETECTED)
        if len(self.calls) >= self._limits.turns:
            self._stop(Outcome.TURN_LIMIT)

    def _stop(self, outcome: Outcome) -> None:
        self.assigned = outcome
        raise RunStopped


def is_loop(fingerprints: list[bytes]) -> bool:
    """Whether calls since the last change of state go round in circles, judged at the latest one."""
    if not fingerprints:
        return False
    if fingerprints.count(fingerprints[-1]) >= _SAME_CALL:
        return True
    for length in range(1, _LONGEST_CYCLE + 1):
        tail = fingerprints[-length * _ROUNDS :]
        if len(tail) == length * _ROUNDS and tail == tail[:length] * _ROUNDS:
            return True
    return False


def _closing(result: ToolResult) -> Final:
    content = result.content
    return Final(content.get("status", ""), content.get("message", ""), content.get("payload") or {})


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
    judgement: Judgement | None
    evidence: Evidence | None
    log: list[str]
    error: str = ""  # of the agent, the environment or the scorer


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
) -> Episode:
    """Carry out one run and score it. Only KeyboardInterrupt escapes."""
    context = Context(agent_seed)
    session = Session(environment, tools, task.principal, limits, plane, context)
    try:
        session.enter(lambda: environment.reset(seed=env_seed, options=task.world))
    except EnvironmentFault as fault:
        return _invalid(session, context, fault.reason, str(fault))
    final, error = _play(agent, view, session, context)
    if session.fault is not None:
        return _invalid(session, context, session.fault.reason, str(session.fault))
    return _score(task, session, context, final, error)


def _play(agent: Agent, view: TaskView, session: Session, context: Context) -> tuple[Final | None, str]:
    """Let the agent run to its end; return what it said and the text of an error of its own."""
    try:
        final = agent(view, session, context)
        session.finish()
        if final is None:
            final = session.closing
        problem = "" if final is None else _check_final(final)
    except RunStopped:
        return None, ""
    except (Exception, SystemExit) as error:
        final, problem = None, describe(error)
    except KeyboardInterrupt as error:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            raise  # in-process: the user's own Ctrl-C
        final, problem = None, describe(error)
    if problem:
        session.assigned = session.assigned or Outcome.AGENT_ERROR
        return None, problem
    if final is None:
        session.assigned = Outcome.UNDECLARED
    return final, ""


def _check_final(final: Any) -> str:
    if not isinstance(final, Final):
        return f"the agent returned {type(final).__name__}, expected Final or None"
    if final.status not in CLAIMS:
        return f"the agent claimed {final.status!r}, allowed are {', '.join(CLAIMS)}"
    if not isinstance(final.message, str):
        return f"the message is {type(final.message).__name__}, expected text"
    try:
        canonical([final.message, final.payload])
    except (TypeError, ValueError) as error:
        return f"message or payload is not JSON: {error}"
    return ""


def _score(task: Task, session: Session, context: Context, final: Final | None, error: str) -> Episode:
    environment = session._environment
    claimed = CLAIMS[final.status] if final is not None else Outcome.NONE
    try:
        effects, breaches, facts, digest, virtual_ms = session.enter(
            lambda: (
                tuple(environment.effects()),
                tuple(environment.invariants()),
                environment.facts(),
                environment.state_digest(),
                environment.virtual_ms(),
            )
        )
    except EnvironmentFault as fault:
        return _invalid(session, context, fault.reason, str(fault))
    evidence = Evidence(
        calls=tuple(session.calls),
        final=final,
        claimed=claimed,
        assigned=session.assigned,
        effects=effects,
        breaches=breaches,
        facts=facts,
        usage=context.usage,
        turns=len(session.calls),
        virtual_ms=virtual_ms,
    )
    judgement, reason = None, session.reason
    try:
        judgement = judge(task.contract, evidence)
    except Exception as problem:
        reason, error = Reason.EVALUATOR_ERROR, describe(problem)
    if final is not None:
        session.trajectory.update(canonical_json([final.status, final.message, canonical(final.payload)]))
    return Episode(
        calls=evidence.calls,
        final=final,
        claimed=claimed,
        assigned=session.assigned,
        reason=reason,
        usage=context.usage,
        bad_calls=session.bad_calls,
        virtual_ms=virtual_ms,
        state_digest=digest,
        trajectory=session.trajectory.digest(),
        judgement=judgement,
        evidence=evidence,
        log=context.lines,
        error=error,
    )


def _invalid(session: Session, context: Context, reason: Reason, error: str) -> Episode:
    return Episode(
        calls=tuple(session.calls),
        final=None,
        claimed=Outcome.NONE,
        assigned=Outcome.NONE,
        reason=reason,
        usage=context.usage,
        bad_calls=session.bad_calls,
        virtual_ms=0,
        state_digest=b"",
        trajectory=session.trajectory.digest(),
        judgement=None,
        evidence=None,
        log=context.lines,
        error=error,
    )


def describe(error: BaseException) -> str:
    """Return type, message and place of an error; never the values of variables, which may be secrets."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be read)"
    return f"{type(error).__name__}: {text[:2000]}{place}"
