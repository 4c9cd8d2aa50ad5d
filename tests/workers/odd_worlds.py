"""Worlds that reach for nothing beyond themselves and break one promise each, for the checks that no leak fails."""

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from passhat.workers.environment import Breach, Effect, EnvSpec, Receipt, ToolSpec
from passhat.workers.tool import ToolError, World, tool


class Counter(World):
    """Counts, and keeps every promise."""

    @tool(effect="write")
    def add(self, step: int) -> dict[str, Any]:
        """Add a step."""
        key = self.mint("steps")
        self.rows.insert("steps", key, {"step": step, "mark": self.mark()})
        return {"id": key, **(self.rows.get("steps", key) or {})}

    @tool(effect="read")
    def total(self) -> dict[str, Any]:
        """Sum up the steps."""
        return {"total": sum(row["step"] for _, row in self.rows.scan("steps"))}

    def mark(self) -> Any:
        return None


class Reads(World):
    """Has nothing but a constant to tell."""

    latency_ms = 0

    @tool(effect="read")
    def greet(self, name: str) -> dict[str, Any]:
        """Greet somebody."""
        return {"text": f"Hello {name}."}


class Raises(Counter):
    @tool(effect="read")
    def crash(self, word: str) -> dict[str, Any]:
        """Raise for a valid argument."""
        raise KeyError(word)


class AnswersWithAnObject(Counter):
    @tool(effect="read")
    def kinds(self) -> dict[str, Any]:
        """Answer with what is no JSON."""
        return {"kinds": frozenset()}


class NoReceipt(Counter):
    def _receipt(self, name: str, first_argument: Any) -> Any:
        return Receipt("", name, "", "")


class WritesWhileReading(Counter):
    @tool(effect="read")
    def peek(self) -> dict[str, Any]:
        """Look, and leave a trace."""
        self.rows.insert("looks", self.mint("looks"), {})
        return {}


class HidesEffects(Counter):
    def effects(self) -> list[Effect]:
        return []


class GoesBackInTime(Counter):
    def virtual_ms(self) -> int:
        return 10_000 - super().virtual_ms()


class DigestOfItsAge(Counter):
    def reset(self, *, seed: int, options: Mapping[str, Any]) -> None:
        super().reset(seed=seed, options=options)
        self.age = 0

    def state_digest(self) -> bytes:
        self.age += 1
        return self.age.to_bytes(8, "big")


class TellsNoBreach(Counter):
    def invariants(self) -> list[Breach]:
        return ["total"]  # type: ignore[list-item]


class LeavesHalfARunBehind(Counter):
    """Forgets what it holds after three calls, and not at the reset."""

    held = 0

    def mark(self) -> Any:
        self.held = (self.held + 1) % 3
        return self.held


class SharesAcrossInstances(Counter):
    """Starts afresh at every reset: all instances together."""

    steps: ClassVar[list[int]] = []

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> None:
        super().reset(seed=seed, options=options)
        self.steps.clear()

    def mark(self) -> Any:
        self.steps.append(1)
        return len(self.steps)


class RemembersTheLatestSeed(Counter):
    seeds: ClassVar[dict[str, int]] = {}

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> None:
        super().reset(seed=seed, options=options)
        self.seeds["latest"] = seed

    def mark(self) -> Any:
        return str(self.seeds["latest"])


class KnowsItsFolder(Counter):
    def mark(self) -> Any:
        return os.getcwd()


class RunsOutOfMemoryElsewhere(Counter):
    def mark(self) -> Any:
        if os.getcwd() == "/":  # in a process that was started for it
            raise MemoryError


class Loose(Reads):
    """Takes arguments it does not name, and does not need the one it does."""


class Unusable(Reads):
    """Has a schema that is none."""


_NAME = {"name": {"type": "string"}}
Loose.spec = EnvSpec("Loose", "1", (ToolSpec("greet", "", {"type": "object", "properties": _NAME}),))
Unusable.spec = EnvSpec("Unusable", "1", (ToolSpec("greet", "", {"type": "nothing", "additionalProperties": False}),))


class NeedsAWorld(Counter):
    def reset(self, *, seed: int, options: Mapping[str, Any]) -> None:
        super().reset(seed=seed, options=options)
        self.floor = options["floor"]

    def mark(self) -> Any:
        if self.floor == "closed":
            raise ToolError("closed", "the floor is closed")
        return self.floor


def broken_factory() -> World:
    raise RuntimeError("no such shop")
