"""Whether an environment keeps the promises that every comparison rests on: the list of checks, and making them.

An environment is tried out under guard, and what it answered is played again: in the same instance, in others side by
side, after an unfinished run, in other processes, at another time, with another seed. Knows nothing of files.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, zip_longest
from os.path import commonprefix
from typing import Any

from passhat.workers.confine import OTHER_VARIABLES, CannotStart, Remote, RemoteEnvironment
from passhat.workers.environment import Environment, EnvSpec, ToolSpec
from passhat.workers.exploration import WRITES, Answer, Explorer, Offence, Place, Story, play
from passhat.workers.guard import VARIABLES, Guard, Ledger, Violation
from passhat.workers.loading import WorkerError, build_environment
from passhat.workers.seeds import derive
from passhat.workers.session import EnvironmentFault, Tools, compile_tools

# The checks, in the order they are told in, each with what it promises.
CHECKS: Mapping[str, str] = {
    "strict_schemas": "tools take exactly the arguments they name",
    "declared_errors": "a valid call is answered, never raised out of",
    "write_receipts": "each write is answered by a receipt",
    "reads_change_nothing": "a tool declared a read leaves the state alone",
    "account": "effects, invariants, facts, digest and virtual time are well-formed and agree",
    "same_seed_twice": "the same instance says the same again",
    "fresh_reset": "a reset in the middle of a run leaves nothing behind",
    "two_instances": "two instances in lock-step say the same",
    "no_cross_talk": "two instances with different runs do not notice each other",
    "other_processes": "other hash seed, time zone, locale and folder change nothing",
    "wall_time": "the time of day changes nothing",
    "seed_used": "two seeds differ somewhere, and in every receipt",
    "net": "no network",
    "fs_write": "no file is written",
    "fs_read": "no file is read",
    "exec": "no program is started",
    "thread": "no thread is started",
    "ffi": "no native library is loaded",
    "entropy": "no randomness of the system",
    "global_random": "global random generators are left alone",
    "clock": "no look at the wall clock",
    "env_mutation": "environment variables and working folder are left alone",
}
_REPLAYS = ("same_seed_twice", "fresh_reset", "two_instances", "no_cross_talk", "other_processes", "wall_time")
_NOTES = ("fs_read",)  # worth knowing, and allowed

_STORIES = 12  # at least, over all worlds
_LIMIT_S = 60.0
_CONTEXT = 20  # characters shown before the first that differs; twice as many from there on
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Check:
    """What came of one check."""

    name: str
    state: str  # pass, fail, note, skipped
    text: str = ""  # what was found, or why there was nothing to check
    offence: Offence | None = None  # the first call that showed it
    times: int = 0


@dataclass(frozen=True, slots=True)
class Conformance:
    """The account of an examination."""

    spec: EnvSpec
    checks: tuple[Check, ...]
    stories: int
    asked: Mapping[str, int]  # calls by tool
    answered: Mapping[str, int]  # those that were not answered by an error

    @property
    def passed(self) -> bool:
        return all(check.state != "fail" for check in self.checks)


def examine_environment(target: str, sys_path: Sequence[str], places: Sequence[Place]) -> Conformance:
    """Make every check on "desk" or "module:factory"; raise WorkerError when it cannot be set up at all.

    The folders of `sys_path` are where a process of its own finds the module.
    """
    examination = _Examination(target, sys_path)
    try:
        examination.tell(places)
        examination.replay()
    finally:
        examination.close()
    return examination.result()


@dataclass(slots=True)
class _Examination:
    """An examination under way."""

    target: str
    sys_path: Sequence[str]
    offences: list[Offence] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    stories: list[Story] = field(default_factory=list)
    instances: list[Environment] = field(default_factory=list)
    guard: Guard = field(default_factory=lambda: Guard(reads=True))
    is_reaching_out: bool = False
    spec: EnvSpec = field(init=False)
    explorer: Explorer | None = None

    def tell(self, places: Sequence[Place]) -> None:
        """Try one instance out in each world, several times."""
        environment = self._new_instance()
        self.spec = environment.spec
        tools = self._tools()
        if tools is None:
            return
        self.explorer = explorer = Explorer(environment, tools, self.offences.append, self._hear)
        for number in range(max(2 * len(places), _STORIES)):
            place, seed = places[number % len(places)], derive("check-env", number)
            if number < len(places) and place.oracle:
                self._keep(explorer.follow_oracle(place, seed))
            self._keep(explorer.draw(place, seed))
        self._say_what_was_not_tried(explorer)

    def _say_what_was_not_tried(self, explorer: Explorer) -> None:
        done = {spec.effect for spec in self.spec.tools if explorer.answered[spec.name]}
        if not done & set(WRITES):
            self.skipped["write_receipts"] = "no write went through"
        if "read" not in done:
            self.skipped["reads_change_nothing"] = "no read went through"
        if not any(story.script.calls for story in self.stories):
            why = "no call went through" if self.stories else "no world could be reset"
            self.skipped |= dict.fromkeys(("account", *_REPLAYS, "seed_used"), why)

    def _keep(self, story: Story | None) -> None:
        if story is not None:
            self.stories.append(story)

    def _tools(self) -> Tools | None:
        """Return the tools if their schemas can be used at all; what is not strict about them is an offence."""
        problems = [Offence("strict_schemas", text, "", 0, 0) for text in schema_problems(self.spec.tools)]
        self.offences += problems
        try:
            return compile_tools(self.spec)
        except ValueError as error:
            self.offences.append(Offence("strict_schemas", str(error), "", 0, 0))
            self.skipped = dict.fromkeys(CHECKS, "the schemas cannot be used, so nothing was tried")
            return None

    # Playing again

    def replay(self) -> None:
        """Play every story again, in every other way there is."""
        if self.skipped.keys() >= set(_REPLAYS):
            return
        for story in self.stories:
            self._compare("same_seed_twice", story, self._play(self.instances[0], story), "played again")
        first, second = self._new_instance(), self._new_instance()
        self._with_other_seeds(first)
        if any(offence.check == "same_seed_twice" for offence in self.offences):
            self.skipped |= dict.fromkeys(_REPLAYS, "the same seed twice is not the same to begin with")
            return
        for story, other in zip(self.stories, self.stories[1:] + self.stories[:1], strict=True):
            self._play_half(first, other)
            self._compare("fresh_reset", story, self._play(first, story), "after half of another run")
            self._in_lock_step("two_instances", (first, story), (second, story))
            self._in_lock_step("no_cross_talk", (first, story), (second, other))
        self._elsewhere(VARIABLES)
        self._elsewhere(OTHER_VARIABLES)
        self._unguarded(second)

    def _play(self, environment: Environment, story: Story, guard: Ledger | None = None) -> Iterator[Answer]:
        guard = guard or self.guard
        steps = play(environment, story.script)
        for number in count(1):
            guard.begin()
            with guard.armed(f"call#{number}"):
                answer = next(steps, None)
            for found in guard.violations:
                self._hear(found, _offence(found.kind, str(found), story, number))
            if answer is None:
                return
            yield answer

    def _play_half(self, environment: Environment, story: Story) -> None:
        for _ in zip(range(len(story.script.calls) // 2 + 1), self._play(environment, story), strict=False):
            pass

    def _in_lock_step(self, check: str, *pairs: tuple[Environment, Story]) -> None:
        """Play stories side by side, a step of each in turn."""
        said: list[list[Answer]] = [[] for _ in pairs]
        for answers in zip_longest(*(self._play(*pair) for pair in pairs)):
            for mine, answer in zip(said, answers, strict=True):
                mine += [] if answer is None else [answer]
        for (_, story), mine in zip(pairs, said, strict=True):
            self._compare(check, story, mine, "beside another instance")

    def _elsewhere(self, variables: Mapping[str, str]) -> None:
        """Play all stories in a new process with these environment variables."""
        remote = Remote(self.target, self.sys_path, confined=False, variables=variables, limit_s=_LIMIT_S)
        how = f"in a process with {', '.join(f'{key}={variables[key]}' for key in ('PYTHONHASHSEED', 'TZ', 'LC_ALL'))}"
        ledger = Ledger()
        try:
            environment = RemoteEnvironment(remote, 0, ledger)
            for story in self.stories:
                self._compare("other_processes", story, self._play(environment, story, ledger), how)
        except (CannotStart, EnvironmentFault) as error:
            self.offences.append(Offence("other_processes", f"{how}: {error}", "", 0, 0))
        finally:
            remote.close()

    def _unguarded(self, environment: Environment) -> None:
        """Play at the real time, which nothing that reaches out of its world may do."""
        if self.is_reaching_out:
            self.skipped["wall_time"] = "the guard that holds the clock still is not taken off while it has findings"
            return
        for story in self.stories:
            self._compare("wall_time", story, play(environment, story.script), "without guard, at the real time")

    def _with_other_seeds(self, environment: Environment) -> None:
        is_used = False
        for story in self.stories:
            seed = derive("another", story.script.seed)
            other = story._replace(script=story.script._replace(seed=seed))
            for number, (one, two) in enumerate(zip(story.answers, self._play(environment, other), strict=False), 1):
                is_used = is_used or one != two
                if one.mac and one.mac == two.mac:
                    text = f"seed {seed} gives a receipt the same mac: one of another run would be taken for this run's"
                    self.offences.append(_offence("seed_used", text, story, number))
        if not is_used:
            self.notes["seed_used"] = "nothing differs between two seeds: the world is without chance, or ignores them"

    def _compare(self, check: str, story: Story, again: Iterable[Answer], how: str) -> None:
        for number, (one, two) in enumerate(zip_longest(story.answers, again), 1):
            if one != two:
                parting = _parting("" if one is None else one.said, "" if two is None else two.said)
                self.offences.append(_offence(check, f"{how}: {parting}", story, number))
                return

    # What was found

    def _hear(self, found: Violation, offence: Offence) -> None:
        """Take in what a guard has found, under the check it is for."""
        is_global = (found.kind, found.event) == ("entropy", "random")
        check = "global_random" if is_global else found.kind if found.kind in CHECKS else "declared_errors"
        self.offences.append(offence._replace(check=check))
        self.is_reaching_out = self.is_reaching_out or found.is_breach

    def _new_instance(self) -> Environment:
        environment = build_environment(self.target)
        if not isinstance(getattr(environment, "spec", None), EnvSpec):
            raise WorkerError(
                f"{self.target}: it made {type(environment).__name__}, expected an environment with a spec"
            )
        self.instances.append(environment)
        return environment

    def close(self) -> None:
        for environment in self.instances:
            with contextlib.suppress(Exception):
                environment.close()

    def result(self) -> Conformance:
        explorer = self.explorer
        return Conformance(
            self.spec,
            tuple(self._check(name) for name in CHECKS),
            len(self.stories),
            {} if explorer is None else explorer.asked,
            {} if explorer is None else explorer.answered,
        )

    def _check(self, name: str) -> Check:
        offences = [offence for offence in self.offences if offence.check == name]
        if offences:
            first = offences[0]
            return Check(name, "note" if name in _NOTES else "fail", first.text, first, len(offences))
        if name in self.skipped:
            return Check(name, "skipped", self.skipped[name])
        return Check(name, "note", self.notes[name]) if name in self.notes else Check(name, "pass")


def _parting(first: str, again: str) -> str:
    """Show where two answers part, with a little of what they have in common."""
    start = max(0, len(commonprefix([first, again])) - _CONTEXT)  # noqa: RUF071 - characters are meant
    dots = "…" if start else ""
    one, two = (f"{dots}{text[start : start + 3 * _CONTEXT]}" for text in (first, again))
    return f"{one} at first, then {two}"


def _offence(check: str, text: str, story: Story, number: int) -> Offence:
    """Name the call of a step; the step after the last call asks for the account."""
    calls = story.script.calls
    tool, arguments = calls[number - 1] if number <= len(calls) else ("", None)
    return Offence(check, text, story.place, story.script.seed, number, tool, arguments)


def schema_problems(tools: Sequence[ToolSpec]) -> Iterator[str]:
    """Yield what keeps schemas from refusing every argument that a tool does not name, or from naming it clearly."""
    for name, times in Counter(tool.name for tool in tools).items():
        if times > 1:
            yield f"{times} tools are called {name}"
    for tool in tools:
        schema: Mapping[str, Any] = tool.input_schema
        properties = schema.get("properties", {})
        if not _NAME.fullmatch(tool.name):
            yield f"tool {tool.name!r}: a name is up to 64 of A-Z a-z 0-9 _ -"
        if schema.get("type") != "object":
            yield f"{tool.name}: found type {schema.get('type')!r}, expected an object"
        if schema.get("additionalProperties") is not False:
            yield f"{tool.name}: unknown arguments reach it; additionalProperties must be false"
        if absent := sorted(set(properties) - set(schema.get("required", ()))):
            yield f"{tool.name}: {', '.join(absent)} must be required, and nullable where it may be left out"
        if tool.effect not in ("read", "write", "destructive", "control"):
            yield f"{tool.name}: found effect {tool.effect!r}, expected read, write, destructive or control"
