"""Agents that understand nothing, and arguments drawn by nothing but a schema: what a task must not be passed by.

They use what any agent sees: the public part of the task, the tools, and the answers to their own calls.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor
from typing import Any

from passhat.workers.agent import Agent, AgentContext, Final, TaskView, Toolbox
from passhat.workers.environment import ToolSpec

Schema = Mapping[str, Any]

_CLAIMS = {"complete": "COMPLETED", "escalate": "ESCALATED", "refuse": "REFUSED"}
TRIVIAL = ("noop", *_CLAIMS, "random")

_RANDOM_CALLS = 16  # enough for the forbidden ones to be among them
_SOME_NULLS = 0.3
_SOME_KNOWN = 0.8
_TRIES = 4  # at finding a known value that fits


def trivial_agent(name: str, seed: int, luck: Mapping[str, Any] | None = None) -> Agent:
    """Return one of the `TRIVIAL` agents.

    `luck` has the values, by name, that an agent which only claims an outcome happens to pick where a list of allowed
    ones is all it has to go by.
    """
    if name == "noop":
        return _do_nothing
    return _random_calls(seed) if name == "random" else _claim(_CLAIMS[name], seed, luck or {})


def _do_nothing(task: TaskView, tools: Toolbox, ctx: AgentContext) -> Final:
    ctx.record_usage(retries=0)  # nothing, and it says so
    return None  # type: ignore[return-value]  # an agent may stop without a word


def _claim(claim: str, seed: int, luck: Mapping[str, Any]) -> Agent:
    """Claim an outcome without a look, through the tool that ends a run that way if there is one."""

    def agent(task: TaskView, tools: Toolbox, ctx: AgentContext) -> Final:
        ctx.record_usage(retries=0)
        draws = Draws(random.Random(seed), task.inputs, luck)
        return _end(claim, draws, task, tools)

    return agent


def _random_calls(seed: int) -> Agent:
    """Make calls at random, with arguments that are valid and where possible known, and claim an outcome at random."""

    def agent(task: TaskView, tools: Toolbox, ctx: AgentContext) -> Final:
        ctx.record_usage(retries=0)
        draws = Draws(random.Random(seed), task.inputs)
        specs = [spec for spec in tools.list() if not spec.terminal]
        for _ in range(_RANDOM_CALLS if specs else 0):
            spec = draws.rng.choice(specs)
            draws.learn(tools.call(spec.name, **draws.draw(spec.input_schema)).content)
        return _end(draws.rng.choice(list(_CLAIMS.values())), draws, task, tools)

    return agent


def _end(claim: str, draws: "Draws", task: TaskView, tools: Toolbox) -> Final:
    payload = draws.draw(task.output_schema) if task.output_schema else {}
    spec = _ending(claim, tools.list())
    if spec is not None:
        known = {"payload": payload}
        arguments = {
            name: claim if claim in part.get("enum", ()) else known[name] if name in known else draws.draw(part, name)
            for name, part in spec.input_schema.get("properties", {}).items()
        }
        tools.call(spec.name, **arguments)
        payload = {**arguments, **payload}
    return Final(claim, "", payload)


def _ending(claim: str, specs: Sequence[ToolSpec]) -> ToolSpec | None:
    """Return the tool that can express a claim: it lists it as a value, or it hands over and lists no claim at all."""
    for spec in specs:
        parts = spec.input_schema.get("properties", {}).values()
        listed = {value for part in parts for value in part.get("enum", ())}
        if spec.terminal and (claim in listed or (claim == "ESCALATED" and not listed & set(_CLAIMS.values()))):
            return spec
    return None


class Draws:
    """Values that satisfy a JSON Schema of the subset tools use, taken from what is known where that fits.

    With `luck`, the value it has for a name is picked from a list of allowed ones, and the first known value of a name.
    """

    def __init__(self, rng: random.Random, known: Mapping[str, Any], luck: Mapping[str, Any] | None = None) -> None:
        self.rng = rng
        self._luck = luck
        self._named: dict[str, list[Any]] = {}
        self._texts: list[str] = []
        self._numbers: list[int] = []
        self.learn(known)

    def learn(self, value: Any, name: str = "") -> None:
        """Take in every text and number of a value, under the name it stands at."""
        if isinstance(value, Mapping):
            for key, item in value.items():
                self.learn(item, key)
        elif isinstance(value, list | tuple):
            for item in value:
                self.learn(item, name)
        elif isinstance(value, str):
            self._texts.append(value)
            self._named.setdefault(name, []).append(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            self._numbers.append(value)
            self._named.setdefault(name, []).append(value)

    def draw(self, schema: Schema, name: str = "") -> Any:
        if "anyOf" in schema:
            return self.draw(self.rng.choice(schema["anyOf"]), name)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            lucky = (self._luck or {}).get(name)
            return lucky if lucky in schema["enum"] else self.rng.choice(schema["enum"])
        kind = schema.get("type", "null")
        if not isinstance(kind, str):
            kind = "null" if "null" in kind and self.rng.random() < _SOME_NULLS else self.rng.choice(kind)
        return None if kind == "null" else self._DRAW[kind](self, schema, name)

    def _text(self, schema: Schema, name: str) -> str | None:
        """Return a text; where none is known to match a pattern, null if that is allowed."""
        shortest, longest = schema.get("minLength", 0), schema.get("maxLength", 64)
        pattern = schema.get("pattern")

        def fits(value: Any) -> bool:
            is_text = isinstance(value, str) and shortest <= len(value) <= longest
            return is_text and (pattern is None or re.search(pattern, value) is not None)

        text = str(self._known(fits, name, self._texts, "x" * max(1, shortest)))
        return None if "null" in schema["type"] and not fits(text) else text

    def _number(self, schema: Schema, name: str) -> int:
        least = ceil(schema.get("minimum", min(0, schema.get("maximum", 0))))
        most = floor(schema.get("maximum", max(10**6, least)))

        def fits(value: Any) -> bool:
            return isinstance(value, int) and least <= value <= most

        return int(self._known(fits, name, self._numbers, self.rng.randint(least, most)))

    def _known(self, fits: Callable[[Any], bool], name: str, others: Sequence[Any], fresh: Any) -> Any:
        """Return a known value of the same name, or some other known value if one is found to fit, or the fresh one."""
        named = [value for value in self._named.get(name, ()) if fits(value)]
        if self._luck is not None:
            return named[0] if named else fresh
        if named and self.rng.random() < _SOME_KNOWN:
            return self.rng.choice(named)
        tried = (self.rng.choice(others) for _ in range(_TRIES if others else 0))
        return next((value for value in tried if fits(value)), fresh)

    def _list(self, schema: Schema, name: str) -> list[Any]:
        least = schema.get("minItems", 0)
        count = self.rng.randint(least, min(least + 2, schema.get("maxItems", least + 2)))
        return [self.draw(schema.get("items", {}), name) for _ in range(count)]

    def _mapping(self, schema: Schema, name: str) -> dict[str, Any]:
        return {key: self.draw(part, key) for key, part in schema.get("properties", {}).items()}

    def _flag(self, schema: Schema, name: str) -> bool:
        return self.rng.random() < 0.5

    _DRAW: Mapping[str, Callable[["Draws", Schema, str], Any]] = {
        "string": _text,
        "integer": _number,
        "number": _number,
        "boolean": _flag,
        "array": _list,
        "object": _mapping,
    }
