"""Whether a task may be in a suite: its oracle passes, understanding nothing does not, each flaw shows where it should
and hides no other, and the public part does not give the answer away.

A task that fails here would measure itself instead of an agent. Knows tasks and environments, not suites.
"""

import pickle
import random
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from passhat.workers import seeds
from passhat.workers.agent import Agent, TaskView
from passhat.workers.contract import Contract, Task, task_digest
from passhat.workers.desk import Desk
from passhat.workers.environment import Environment
from passhat.workers.episode import Episode, run_episode
from passhat.workers.flaws import FLAWS, INFRA_FAULT
from passhat.workers.order import Limits
from passhat.workers.records import SCORERS
from passhat.workers.scripted import scripted_agent
from passhat.workers.session import Tools
from passhat.workers.trivial import TRIVIAL, trivial_agent

_LIMITS = Limits()
_SURE = (1.0, 0.0)  # a flaw that always happens
_SMALLEST_SECRET = 100  # smaller numbers stand in every text


class Problem(NamedTuple):
    """What speaks against a task, and which check found it."""

    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


class Examination(NamedTuple):
    """What speaks against admitting a task, nothing when it may be admitted; and the checks that could not be made."""

    problems: tuple[Problem, ...]
    unchecked: tuple[str, ...] = ()


def examine(
    task: Task, environment: Environment, tools: Tools, limits: Limits = _LIMITS, *, sets: int | None = None
) -> Examination:
    """Examine a task. Without an oracle there is nothing to compare with, and flaws have nothing to spoil.

    All pairs of flaws are tried, and as many larger sets drawn by the task; `sets` draws so many of them all instead.
    """
    trial = _Trial(task, environment, tools, limits)
    problems = [*_trivial_agents(trial)]
    if not task.oracle:
        blind = [trial.run(trivial_agent("random", trial.seed)) for _ in range(2)]
        return Examination((*problems, *_replay("random calls", *blind), *_leaks(task, ())), ("oracle", "flaws"))
    oracle, again = trial.with_flaws(), trial.with_flaws()
    faults = [*_oracle(oracle)] or [*_replay("the oracle", oracle, again)]
    if not faults:
        faults = [*_leaks(task, _results(task, oracle)), *_flaws(trial), *_flaws_together(trial, sets)]
    return Examination((*problems, *faults))


class _Trial:
    """A task that is run again and again, each time in its own world."""

    def __init__(self, task: Task, environment: Environment, tools: Tools, limits: Limits) -> None:
        self.task = task
        self.tools = tools
        self.digest = task_digest(task)
        self.seed = seeds.agent_seed(0, self.digest, 0, "admission")
        self.view = TaskView(task.id, task.request, task.inputs, task.policy, task.output_schema)
        self._environment = environment
        self._limits = limits
        # The desk only reads a world; any other environment may change it.
        self._world = None if isinstance(environment, Desk) else pickle.dumps(task.world)

    def run(self, agent: Agent) -> Episode:
        return run_episode(
            self._environment,
            self.tools,
            self.task,
            self.view,
            agent,
            env_seed=0,
            agent_seed=self.seed,
            limits=self._limits,
            plane=bytearray(1),
            world=None if self._world is None else pickle.loads(self._world),
        )

    def with_flaws(self, *names: str) -> Episode:
        flaws = dict.fromkeys(names, _SURE)
        return self.run(scripted_agent(self.task, flaws, self.digest, self.seed))


def _passes(episode: Episode) -> bool:
    return episode.judgement is not None and episode.judgement.passed


def _failed(episode: Episode) -> frozenset[str]:
    if episode.judgement is None:
        return frozenset({"nothing, the run is invalid"})
    failing = episode.judgement.applicable & ~episode.judgement.passes
    return frozenset(name for i, name in enumerate(SCORERS) if failing >> i & 1)


# The checks


def _trivial_agents(trial: _Trial) -> Iterator[Problem]:
    """Each agent passes if the task says so, and fails otherwise, even if it guesses every code right."""
    task = trial.task
    luck = _asked(task.contract)
    for name in TRIVIAL:
        passes = _passes(trial.run(trivial_agent(name, trial.seed, luck)))
        declared = name in task.passes_trivially
        if passes and not declared:
            yield Problem("trivial agent", f"{name} passes, though it understands nothing")
        if declared and not passes:
            yield Problem("trivial agent", f"{name} does not pass, though the task says that it may")
    for name in task.passes_trivially:
        if name not in TRIVIAL:
            yield Problem(
                "trivial agent", f"passes_trivially: no agent is called {name!r}; there are {', '.join(TRIVIAL)}"
            )


def _asked(contract: Contract) -> dict[str, Any]:
    """Return the values a contract asks for, by the name of the argument, column or path."""
    asked: dict[str, Any] = {}
    for effect in contract.expect_effects or ():
        asked.update(effect.after)
    for rule in contract.must_call:
        asked.update(rule.arguments)
    asked.update((check.path, check.equals) for check in contract.payload)
    return asked


def _oracle(oracle: Episode) -> Iterator[Problem]:
    """The oracle passes every scorer."""
    if not _passes(oracle):
        for finding in oracle.judgement.findings if oracle.judgement else (oracle.error,):
            yield Problem("oracle", f"does not pass: {finding}")


def _replay(what: str, one: Episode, other: Episode) -> Iterator[Problem]:
    """The same calls with the same seed give the same answers and the same state."""
    if (one.trajectory, one.state_digest) != (other.trajectory, other.state_digest):
        pairs = zip(one.calls, other.calls, strict=False)
        first = next((call for call, again in pairs if call.result != again.result), None)
        where = "in the final state" if first is None else f"first at call {first.turn}, {first.tool}"
        yield Problem("replay", f"two runs of {what} with one seed differ, {where}")


def _flaws(trial: _Trial) -> Iterator[Problem]:
    """Each flaw alone fails exactly the scorers it says, maybe none."""
    for name, expected in _possible(trial.task).items():
        failed = _failed(trial.with_flaws(name))
        if failed != expected:
            yield Problem("flaw", f"{name} fails {_listed(failed)}, expected {_listed(expected)}")


def _possible(task: Task) -> dict[str, frozenset[str]]:
    """Return the flaws an agent can have on a task, with the scorers that each fails alone."""
    flaws = ((name, flaw.fails(task)) for name, flaw in FLAWS.items() if name != INFRA_FAULT)
    return {name: failed for name, failed in flaws if failed is not None}


def _flaws_together(trial: _Trial, sets: int | None) -> Iterator[Problem]:
    """Flaws together fail the scorers that one of them fails alone, and no other."""
    alone = _possible(trial.task)
    names = list(alone)
    rng = random.Random(seeds.derive("flaw sets", trial.digest))
    chosen: list[tuple[str, ...]] = list(combinations(names, 2))
    sizes = (rng.randrange(3, len(names) + 1) for _ in range(len(chosen) if len(names) > 2 else 0))
    chosen += [tuple(sorted(rng.sample(names, size), key=names.index)) for size in sizes]
    for some in chosen if sets is None else rng.sample(chosen, min(sets, len(chosen))):
        expected = frozenset().union(*(alone[name] for name in some))
        failed = _failed(trial.with_flaws(*some))
        if failed != expected:
            yield Problem("flaws together", f"{', '.join(some)} fail {_listed(failed)}, expected {_listed(expected)}")


def _listed(names: frozenset[str]) -> str:
    return " and ".join(sorted(names)) or "nothing"


# What the public part gives away


def _results(task: Task, oracle: Episode) -> Iterator[tuple[str, Any]]:
    """Yield the values that the oracle takes from earlier answers, with the place it uses them at."""
    for number, (step, call) in enumerate(zip(task.oracle, oracle.calls, strict=False), 1):
        yield from _referred(step.arguments, call.arguments, f"step {number} of the oracle")


def _referred(asked: Any, given: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(asked, Mapping) and asked.keys() == {"$result"}:
        yield from ((where, value) for value in _scalars(given))
    elif isinstance(asked, Mapping) and isinstance(given, Mapping):
        for name, part in asked.items():
            yield from _referred(part, given.get(name), where)


def _leaks(task: Task, results: Any) -> Iterator[Problem]:
    """The public part does not hold what has to be found out. What stands in `inputs` is public on purpose."""
    inputs = set(_scalars(task.inputs))
    listed = set(_scalars(task.output_schema))
    shown = f"{task.request}\n{task.policy}"
    seen = set()
    for where, value in (*_hidden(task), *results):
        spellings = _spellings(value)
        if value in inputs or value in seen or not spellings:
            continue
        seen.add(value)
        if value in listed or any(text in shown and _whole(text).search(shown) for text in spellings):
            yield Problem("leak", f"{value!r} ({where}) is given away; if it is meant to be known, put it in inputs")


def _whole(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.]){re.escape(text)}(?!\w|[.,]\d)")


def _hidden(task: Task) -> Iterator[tuple[str, Any]]:
    """Yield the values a contract asks for, with their places."""
    for check in task.contract.payload:
        yield from ((f"payload {check.path}", value) for value in _scalars(check.equals))
    yield from (("text of the message", text) for text in task.contract.expect_text)
    for rule in task.contract.expect_effects or ():
        yield from ((f"effect on {rule.table}", value) for value in _scalars(rule.after))


def _scalars(value: Any) -> Iterator[str | int | float]:
    if isinstance(value, Mapping):
        for part in value.values():
            yield from _scalars(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _scalars(part)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def _spellings(value: str | float) -> tuple[str, ...]:
    """Return the ways a secret may be written; none for what is no secret: a plain word, a small number."""
    if isinstance(value, str):
        return (value,) if any(character.isdigit() for character in value) and len(value) > 1 else ()
    if abs(value) < _SMALLEST_SECRET:
        return ()
    whole = abs(value)
    return (f"{whole}", f"{whole:,}", f"{whole / 100:.2f}", f"{whole / 100:,.2f}")
