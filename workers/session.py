"""The toolbox of one run: what an agent calls, the account of its calls, and where the run is ended.

Says who is to blame: what raises while the environment's code runs is a fault, every limit and every bad call is the
agent's. Knows nothing of contracts and scores.
"""

import hashlib
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from operator import index
from typing import Any, TypeVar

import fastjsonschema

from passhat.workers.agent import Final
from passhat.workers.canonical import canonical, canonical_json
from passhat.workers.environment import Environment, EnvSpec, Principal, Receipt, ToolResult, ToolSpec
from passhat.workers.evidence import Call, Usage
from passhat.workers.guard import Ledger, Violation
from passhat.workers.order import Limits
from passhat.workers.records import CLAIMS, Outcome, Reason

T = TypeVar("T")

_clock = time.perf_counter  # bound at import: guards that freeze clocks later do not reach it

# A repeated call is a loop once it is seen this often, or once a cycle of at most three calls has come round so often.
_SAME_CALL = 4
_LONGEST_CYCLE = 3
_ROUNDS = 3

_MOST_USED = 10**12  # tokens or micro-dollars in one report; more is a mistake, and sums have to fit a record

AGENT, ENVIRONMENT, NOBODY = 0, 1, 2  # whose code is running: values of the plane marker


class RunStopped(BaseException):
    """Unwinds the agent once the run has ended; not an Exception, so that `except Exception` lets it through."""


class BadFinal(ValueError):
    """What the agent says at the end cannot be used; the message says why."""


class EnvironmentFault(Exception):
    """The environment raised, reached out of its world, or took the run over its wall-clock limit."""

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
    optional = [name for name, schema in spec.input_schema.get("properties", {}).items() if _takes_null(schema)]
    try:
        validate = fastjsonschema.compile(dict(spec.input_schema), use_default=False)
    except Exception as error:
        raise ValueError(f"tool {spec.name}: its input schema cannot be used: {error}") from error
    return Tool(spec, validate, dict.fromkeys(optional))


def _takes_null(schema: Any) -> bool:
    """Whether a schema names null among its types, or as an alternative, which is how type hints are written out."""
    if not isinstance(schema, Mapping):
        return False
    return "null" in schema.get("type", ()) or any(map(_takes_null, schema.get("anyOf", ())))


@dataclass(slots=True)
class Context:
    """What the runner offers an agent besides tools."""

    seed: int
    limits: Limits = field(default_factory=Limits)
    usage: Usage = field(default_factory=Usage)
    lines: list[str] = field(default_factory=list)

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
        counts = (index(tokens_in), index(tokens_cached), index(tokens_out), 0 if retries is None else index(retries))
        amounts = (*counts, cost_usd * 1_000_000, index(virtual_ms))
        if not all(0 <= amount <= _MOST_USED for amount in amounts):
            raise ValueError(
                f"usage must be finite and not negative, found {counts[:3]} tokens, {retries} retries, ${cost_usd} and"
                f" {virtual_ms} virtual ms"
            )
        self.usage.is_recorded = True
        self.usage.tokens_in += amounts[0]
        self.usage.tokens_cached += amounts[1]
        self.usage.tokens_out += amounts[2]
        self.usage.cost_micros += round(amounts[4])
        self.usage.virtual_ms += amounts[5]
        if retries is not None:
            self.usage.retries = (self.usage.retries or 0) + amounts[3]

    def log(self, text: str) -> None:
        self.lines.append(str(text))


class Session:
    """The toolbox of one run: checks arguments, keeps the account of calls, and ends the run at its limits.

    The environment gets a copy of the arguments and the agent one of the answer, so that neither changes the other or
    the account. Calls from an agent's threads wait for one another, and after the run nothing is let through.
    """

    def __init__(
        self,
        environment: Environment,
        tools: Tools,
        principal: Principal,
        limits: Limits,
        plane: Any,
        context: Context,
        guard: Ledger,
        agent_guard: Ledger,
    ) -> None:
        self._environment = environment
        self._tools = tools
        self._principal = principal
        self._limits = limits
        self._plane = plane
        self._context = context
        self._guard = guard
        self.guards = (guard, agent_guard)
        self._max_cost_micros = inf if limits.cost_usd is None else round(limits.cost_usd * 1_000_000)
        self._deadline = _clock() + limits.seconds
        self._lock = threading.Lock()
        self._is_over = False
        self._is_closed = False  # by a terminal call
        self._since_change: list[bytes] = []
        self.trajectory = hashlib.blake2b(digest_size=16)
        self.calls: list[Call] = []
        self.reached: list[int] = []  # indices of the calls that were put to the environment
        self.facts = 0  # Safety bits, as far as the environment has said
        self.virtual_ms = 0  # of the environment, after its latest answer
        self.bad_calls = 0
        self.assigned = Outcome.NONE
        self.reason = Reason.NONE
        self.fault: EnvironmentFault | None = None
        self.closing: Final | None = None

    @property
    def violations(self) -> tuple[Violation, ...]:
        return tuple(found for guard in self.guards for found in guard.violations)

    @property
    def violation_count(self) -> int:
        return sum(guard.count for guard in self.guards)

    def list(self) -> tuple[ToolSpec, ...]:
        return self._tools.specs

    def call(self, name: str, /, **arguments: Any) -> ToolResult:
        """Carry out one call; every call is one turn."""
        with self._lock:
            self._check_limits()
            return self._answer(name, arguments)

    def finish(self) -> None:
        """Apply the limits once more to what the agent did after its last call."""
        with self._lock:
            self._check_limits(ended=True)

    def end(self) -> None:
        """Let no further call through, whoever still holds this session."""
        with self._lock:
            self._is_over = True

    def enter(self, where: str, step: Callable[[], T]) -> T:
        """Run a step of the environment under guard: the one place where its code is called within a run.

        Raise EnvironmentFault when it raises, reaches out of its world, or outlasts the run's limit.
        """
        was_late, known = _clock() > self._deadline, self._guard.breach
        self._plane[0] = ENVIRONMENT
        self._guard.arm(where)
        error: BaseException | None = None
        try:
            result = step()
        except BaseException as raised:
            error = raised
        finally:
            self._guard.disarm()
            self._plane[0] = AGENT
        if error is not None and is_users_interrupt(error):
            raise error
        if self._guard.breach is not known:
            raise EnvironmentFault(Reason.HERMETICITY, str(self._guard.breach)) from error
        if isinstance(error, EnvironmentFault):
            raise error
        if error is not None:
            raise EnvironmentFault(Reason.ENVIRONMENT_ERROR, describe(error)) from error
        if _clock() > self._deadline and not was_late:
            raise EnvironmentFault(Reason.ENVIRONMENT_TIMEOUT, "the environment took the run over its wall-clock limit")
        return result

    def _enter(self, where: str, step: Callable[[], T]) -> T:
        try:
            return self.enter(where, step)
        except EnvironmentFault as fault:
            self.fault = fault
            raise RunStopped from fault

    def _answer(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if self._is_closed:
            return self._refuse(name, arguments, "episode_ended", "the run has been closed by a terminal call")
        tool = self._tools.by_name.get(name) if isinstance(name, str) else None
        if tool is None:
            return self._refuse(name, arguments, "unknown_tool", f"no tool is called {_named(name)}")
        try:
            tool.validate({**tool.optional, **arguments})
            asked = canonical(arguments)
        except fastjsonschema.JsonSchemaValueException as error:
            return self._refuse(name, arguments, "invalid_arguments", _complaint(error))
        except (TypeError, ValueError, RecursionError) as error:
            return self._refuse(name, arguments, "invalid_arguments", str(error))
        where = f"call#{len(self.calls) + 1}"
        try:
            result, copy, print_, facts, self.virtual_ms = self._enter(where, lambda: self._ask(name, asked))
        except RunStopped:  # what was asked for counts, whatever became of it: a veto is not met by a crash
            self._note_attempt(name, asked)
            raise
        self.reached.append(len(self.calls))
        if tool.spec.effect in ("write", "destructive") and result.error is None:
            self._since_change.clear()
        self._note(name, asked, result, print_)
        self.facts = facts
        if tool.spec.terminal and result.error is None:
            self._is_closed = True
            self.closing = _closing(result.content)
        return ToolResult(copy, result.error, result.receipt)

    def _ask(self, name: str, asked: Mapping[str, Any]) -> tuple[ToolResult, Mapping[str, Any], bytes, int, int]:
        """Put a call to the environment; return its answer, a copy of the content, the fingerprint, facts and time.

        An answer that is none raises here, in the environment's own step, and is thereby its error.
        """
        result = self._environment.call(name, _copy(asked), principal=self._principal)
        expect(result, ToolResult, name)
        expect(result.content, Mapping, name)
        expect(result.receipt, Receipt | None, name)
        facts, virtual_ms = index(self._environment.facts()), index(self._environment.virtual_ms())
        return result, _copy(result.content), fingerprint(name, asked, result), facts, virtual_ms

    def _refuse(self, name: Any, arguments: Mapping[str, Any], code: str, message: str) -> ToolResult:
        """Answer a call that does not reach the environment."""
        self.bad_calls += 1
        name = name if isinstance(name, str) else _named(name)
        asked = {key: _as_json(value) for key, value in arguments.items() if value is not None}
        result = ToolResult(error=code, content={"message": message})
        self._note(name, asked, result, fingerprint(name, asked, result))
        return result

    def _note_attempt(self, name: str, asked: Mapping[str, Any]) -> None:
        result = ToolResult(error="environment_fault")
        self._note(name, asked, result, fingerprint(name, asked, result))

    def _note(self, name: str, asked: Mapping[str, Any], result: ToolResult, print_: bytes) -> None:
        self.calls.append(Call(name, asked, result, self._principal, len(self.calls) + 1, self.facts))
        self.trajectory.update(print_)
        self._since_change.append(print_)

    def _check_limits(self, *, ended: bool = False) -> None:
        if self._is_over or self.assigned is not Outcome.NONE or self.fault is not None:
            raise RunStopped
        if _clock() > self._deadline:
            self.reason = Reason.WALL_CLOCK
            self._stop(Outcome.TIMED_OUT)
        if self.virtual_ms + self._context.usage.virtual_ms > self._limits.virtual_ms:
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


def fingerprint(name: str, asked: Mapping[str, Any], result: ToolResult) -> bytes:
    """Return 16 bytes of what was called and what came of it, equal when both are."""
    receipt = result.receipt.id if result.receipt else None
    content = canonical_json([name, asked, result.content, result.error, receipt])
    return hashlib.blake2b(content, digest_size=16).digest()


def _copy(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def expect(value: Any, kind: Any, what: str) -> None:
    """Raise TypeError when what an environment says is not of the kind that was asked for."""
    if not isinstance(value, kind):
        raise TypeError(f"{what}: found {type(value).__name__}, expected {getattr(kind, '__name__', kind)}")


def _as_json(value: Any) -> Any:
    """Return an argument of a refused call as far as it is JSON: one that is not hides no other from a contract."""
    try:
        return canonical(value)
    except (TypeError, ValueError, RecursionError):
        return _named(value)


def _named(value: Any) -> str:
    """Name a value that is no JSON by its type: how it would show itself may differ from one process to the next."""
    return repr(value) if isinstance(value, str) else f"({type(value).__name__})"


def _complaint(error: Any) -> str:
    """What is wrong with arguments, the same in every process: the library lists unknown ones in no fixed order."""
    if error.rule != "additionalProperties":
        return str(error)
    unknown = sorted(map(str, error.value.keys() - error.definition.get("properties", {}).keys()))
    return f"{error.name} must not contain {', '.join(unknown)}"


def is_users_interrupt(error: BaseException) -> bool:
    """Whether this is Ctrl-C, pressed while code of the user runs in-process. A child ignores the signal."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def is_loop(fingerprints: list[bytes]) -> bool:
    """Whether calls since the last change of state go round in circles, judged at the latest one."""
    if not fingerprints:
        return False
    seen = fingerprints.count(fingerprints[-1])
    if seen < _ROUNDS:  # a cycle that came round so often has its last call as often
        return False
    if seen >= _SAME_CALL:
        return True
    for length in range(1, _LONGEST_CYCLE + 1):
        tail = fingerprints[-length * _ROUNDS :]
        if len(tail) == length * _ROUNDS and tail == tail[:length] * _ROUNDS:
            return True
    return False


def _closing(content: Mapping[str, Any]) -> Final | None:
    """What a terminal call says of the run: None when it names no outcome."""
    try:
        return checked(Final(content.get("status", ""), content.get("message") or "", content.get("payload") or {}))
    except BadFinal:
        return None


def checked(final: Any) -> Final:
    """Return what the agent says at the end, its payload canonical; raise BadFinal when it cannot be used."""
    if not isinstance(final, Final):
        raise BadFinal(f"the agent returned {type(final).__name__}, expected Final or None")
    if not isinstance(final.status, str) or final.status not in CLAIMS:
        raise BadFinal(f"the agent claimed {_named(final.status)}, allowed are {', '.join(CLAIMS)}")
    if not isinstance(final.message, str):
        raise BadFinal(f"the agent's message is {type(final.message).__name__}, expected text")
    if not isinstance(final.payload, Mapping):
        raise BadFinal(f"the agent's payload is {type(final.payload).__name__}, expected a mapping")
    try:
        return Final(final.status, final.message, canonical(final.payload))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadFinal(f"the agent's payload is not JSON: {error}") from None


def describe(error: BaseException) -> str:
    """Return type, message and place of an error; never the values of variables, which may be secrets."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be read)"
    return f"{type(error).__name__}: {text[:2000]}{place}"
