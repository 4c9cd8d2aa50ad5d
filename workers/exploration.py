"""Tries an environment out: calls drawn by seed and valid by schema, or an oracle's, each answer judged as it comes.

What was put to it and what it said is kept as a story, to be played again elsewhere. Knows what one environment has to
hold to by itself; what two of them have to agree on is for workers/conformance.py.
"""

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, NamedTuple, TypeVar

from passhat.workers.agent import Toolbox
from passhat.workers.canonical import canonical, canonical_json
from passhat.workers.contract import Step
from passhat.workers.environment import Environment, Principal, Receipt, ToolResult, ToolSpec
from passhat.workers.episode import World as Account
from passhat.workers.episode import look
from passhat.workers.guard import Guard, Violation
from passhat.workers.replay import Script
from passhat.workers.scripted import ScriptError
from passhat.workers.scripted import play as play_oracle
from passhat.workers.session import Tool, Tools, describe, expect, is_users_interrupt
from passhat.workers.tool import World
from passhat.workers.trivial import Draws

T = TypeVar("T")

WRITES = ("write", "destructive")

_ROUNDS = 3  # of calls of every tool, in a story
_MOST_CALLS = 60
_DRAWS = 50  # of arguments, until they are valid


@dataclass(frozen=True, slots=True)
class Place:
    """A world to try: that of a task, or one without a task."""

    name: str
    options: Mapping[str, Any]
    principal: Principal = Principal()
    oracle: tuple[Step, ...] = ()


class Answer(NamedTuple):
    """What an environment said, as text that has to be the same again; and the mac of a receipt."""

    said: str
    mac: str = ""


class Story(NamedTuple):
    """Calls, the answer to each, and at last the account of the world."""

    place: str
    script: Script
    answers: tuple[Answer, ...]


class Offence(NamedTuple):
    """A check that failed, why, and at which call: the `number`-th of its story, 0 for the reset."""

    check: str
    text: str
    place: str
    seed: int
    number: int
    tool: str = ""
    arguments: Mapping[str, Any] | None = None


class BrokenTool(Exception):
    """A call after which the environment cannot be relied on."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def own(value: T) -> T:
    """Return a copy that an environment may do with what it likes."""
    copy: T = pickle.loads(pickle.dumps(value))
    return copy


def answer_of(result: ToolResult) -> Answer:
    receipt = result.receipt
    said = canonical_json([result.content, result.error, receipt and astuple(receipt)])
    return Answer(said.decode(), "" if receipt is None else receipt.mac)


def account_of(world: Account) -> Answer:
    effects, breaches = ([asdict(part) for part in parts] for parts in (world.effects, world.breaches))
    named = {"effects": effects, "breaches": breaches, "digest": world.state_digest.hex()}
    return Answer(canonical_json({**named, "facts": world.facts, "virtual_ms": world.virtual_ms}).decode())


def play(environment: Environment, script: Script) -> Iterator[Answer]:
    """Yield the answers to a script, one a step; an error is the last of them."""
    try:
        environment.reset(seed=script.seed, options=own(script.options))
        for name, arguments in script.calls:
            yield answer_of(environment.call(name, own(dict(arguments)), principal=script.principal))
        yield account_of(look(environment))
    except BaseException as error:
        if is_users_interrupt(error) or isinstance(error, GeneratorExit):
            raise
        yield Answer(f"raised {describe(error)}")


class Explorer:
    """Tries one instance; what it finds goes to `report`, what the guard finds to `hear`."""

    def __init__(
        self,
        environment: Environment,
        tools: Tools,
        report: Callable[[Offence], None],
        hear: Callable[[Violation, Offence], None],
    ) -> None:
        self.environment = environment
        self.tools = tools
        self.report = report
        self.hear = hear
        self.guard = Guard(reads=True)
        self.asked = dict.fromkeys(tools.by_name, 0)  # calls by tool
        self.answered = dict.fromkeys(tools.by_name, 0)  # those without an error
        self.broken: set[str] = set()

    def draw(self, place: Place, seed: int) -> Story | None:
        """Tell a story of drawn calls; None when the world cannot be reset."""
        return self._tell(place, seed, lambda trial: self._put_drawn(trial, place, seed))

    def follow_oracle(self, place: Place, seed: int) -> Story | None:
        return self._tell(place, seed, lambda trial: _put_oracle(trial, place.oracle))

    def _tell(self, place: Place, seed: int, put: Callable[["_Trial"], None]) -> Story | None:
        """Tell a story; a tool that breaks it is left out of all that follow, and the story is told anew."""
        while True:
            trial = _Trial(self, place, seed)
            try:
                trial.begin()
                put(trial)
                return trial.end()
            except BrokenTool as broken:
                if not broken.name:
                    return None
                self.broken.add(broken.name)

    def _put_drawn(self, trial: "_Trial", place: Place, seed: int) -> None:
        """Call every tool in a few rounds, each in an order of its own, and at last one that ends the run."""
        rng = random.Random(seed)
        draws = Draws(rng, place.options)
        if isinstance(self.environment, World):
            draws.learn(self.environment.tables)
            _learn_keys(draws, self.environment.tables)
        _learn_keys(draws, place.options.get("tables"))
        usable = [spec for spec in self.tools.specs if spec.name not in self.broken]
        steady = [spec for spec in usable if not spec.terminal]
        rounds = [spec for _ in range(_ROUNDS) for spec in rng.sample(steady, len(steady))]
        closing = [spec for spec in usable if spec.terminal]
        for spec in (*rounds[:_MOST_CALLS], *rng.sample(closing, min(1, len(closing)))):
            arguments = _valid_arguments(self.tools.by_name[spec.name], draws)
            if arguments is not None:
                draws.learn(trial.call(spec.name, **arguments).content)


def _learn_keys(draws: Draws, tables: Any) -> None:
    """Let the keys of rows be known as what they are usually called: those of `books` as `book_id`."""
    for table, rows in tables.items() if isinstance(tables, Mapping) else ():
        one = f"{table.removesuffix('ies')}y" if table.endswith("ies") else table.removesuffix("s")
        for key in rows if isinstance(rows, Mapping) else ():
            draws.learn(key, f"{one}_id")


def _valid_arguments(tool: Tool, draws: Draws) -> Mapping[str, Any] | None:
    for _ in range(_DRAWS):
        arguments: Mapping[str, Any] = draws.draw(tool.spec.input_schema)
        try:
            tool.validate(dict(arguments))
        except ValueError:
            continue
        return arguments
    return None


def _put_oracle(trial: "_Trial", oracle: Sequence[Step]) -> None:
    with contextlib.suppress(ScriptError):  # it has no ending, which is for the task's own checks
        play_oracle(tuple(oracle), trial)


class _Trial(Toolbox):
    """One story in the making."""

    def __init__(self, explorer: Explorer, place: Place, seed: int) -> None:
        self._explorer = explorer
        self._environment = explorer.environment
        self._script = Script(seed, place.options, place.principal, [])
        self._place = place.name
        self._calls: list[tuple[str, Mapping[str, Any]]] = []
        self._answers: list[Answer] = []
        self._is_over = False

    def begin(self) -> None:
        self._now: tuple[int, str, Mapping[str, Any] | None] = (0, "", None)
        script = self._script
        self._step("reset", lambda: self._environment.reset(seed=script.seed, options=own(script.options)))
        self._start = self._world = self._look()

    def end(self) -> Story:
        script = self._script._replace(calls=tuple(self._calls))
        return Story(self._place, script, (*self._answers, account_of(self._world)))

    def list(self) -> tuple[ToolSpec, ...]:
        return self._explorer.tools.specs

    def call(self, name: str, /, **arguments: Any) -> ToolResult:
        """Put a call to the environment and judge the answer; one it would not get in a run is answered here."""
        tool = self._explorer.tools.by_name.get(name)
        try:
            if tool is None or self._is_over or name in self._explorer.broken:
                return ToolResult(error="not_asked")
            tool.validate({**tool.optional, **arguments})
            asked = canonical(arguments)
        except (TypeError, ValueError):
            return ToolResult(error="invalid_arguments")
        number = len(self._calls) + 1
        self._now = number, name, asked
        self._explorer.asked[name] += 1
        result, answer = self._step(f"call#{number}", lambda: self._ask(name, asked))
        self._calls.append((name, asked))
        self._answers.append(answer)
        self._judge(tool.spec, result)
        if result.error is None:
            self._explorer.answered[name] += 1
            self._is_over = tool.spec.terminal
        return ToolResult(own(dict(result.content)), result.error, result.receipt)

    def _ask(self, name: str, asked: Mapping[str, Any]) -> tuple[ToolResult, Answer]:
        result = self._environment.call(name, own(dict(asked)), principal=self._script.principal)
        expect(result, ToolResult, name)
        expect(result.content, Mapping, f"{name}: content")
        expect(result.error, str | None, f"{name}: error")
        expect(result.receipt, Receipt | None, f"{name}: receipt")
        canonical(result.content)  # raises for what JSON cannot hold
        return result, answer_of(result)

    def _step(self, where: str, step: Callable[[], T], check: str = "declared_errors") -> T:
        """Take a step under guard. What it raises is an offence against `check`, unless the guard has raised it."""
        guard = self._explorer.guard
        guard.begin()
        error: BaseException | None = None
        try:
            with guard.armed(where):
                result = step()
        except BaseException as raised:
            if is_users_interrupt(raised):
                raise
            error = raised
        for found in guard.violations:
            self._explorer.hear(found, self._offence(found.kind, str(found)))
        if error is None:
            return result
        if guard.breach is None:
            self._offend(check, f"raised {describe(error)}")
        raise BrokenTool(self._now[1]) from error

    def _judge(self, spec: ToolSpec, result: ToolResult) -> None:
        before, self._world = self._world, self._look()
        now, receipt = self._world, result.receipt
        if result.error == "":
            self._offend("declared_errors", "the error is an empty text, expected a short code or None")
        if spec.effect in WRITES and result.error is None:
            if receipt is None:
                self._offend("write_receipts", "no receipt answers this write")
            elif not (receipt.id and receipt.mac) or receipt.tool != spec.name:
                self._offend("write_receipts", f"found {receipt}, expected id, mac, and tool {spec.name!r}")
        if spec.effect == "read" and before.state_digest != now.state_digest:
            self._offend("reads_change_nothing", "the state digest changed, though the tool is declared a read")
        if now.virtual_ms < before.virtual_ms:
            self._offend("account", f"virtual time went back from {before.virtual_ms} to {now.virtual_ms} ms")
        for effect in now.effects:
            if effect.call is not None and effect.call > len(self._calls):
                self._offend("account", f"effect on {effect.table} {effect.key}: there was no call {effect.call} yet")
        if now.state_digest and (now.state_digest != self._start.state_digest) != (now.effects != self._start.effects):
            self._offend("account", "effects and state digest disagree on whether the world is as it was at first")

    def _look(self) -> Account:
        """Ask for the account, which has to be the same when it is asked for at once again."""
        world, again = (self._step("account", self._look_once, "account") for _ in range(2))
        if world != again:
            self._offend("account", "asked for twice in a row, it is not the same")
        return world

    def _look_once(self) -> Account:
        world = look(self._environment)
        for effect in world.effects:
            canonical([effect.before, effect.after])  # raises for what JSON cannot hold
        return world

    def _offend(self, check: str, text: str) -> None:
        self._explorer.report(self._offence(check, text))

    def _offence(self, check: str, text: str) -> Offence:
        return Offence(check, text, self._place, self._script.seed, *self._now)
