"""What a worker is told: the work order of a campaign, sent once, and the shards of it, sent one by one.

The grid lists runs task by task, run-index by run-index, release by release, so that both releases meet a task at
the same time and a task is built once for all its runs. A position in the grid is all a shard needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from passhat.workers.contract import Task
from passhat.workers.frames import FLUSH_S
from passhat.workers.records import Level


class Cell(NamedTuple):
    """Indices into the plan."""

    release: int
    task: int
    run: int


@dataclass(frozen=True, slots=True)
class Grid:
    """releases × tasks × runs, as arithmetic: a million runs cost no memory."""

    releases: int
    tasks: int
    runs: int

    def __len__(self) -> int:
        return self.releases * self.tasks * self.runs

    def locate(self, position: int) -> Cell:
        rest, release = divmod(position, self.releases)
        task, run = divmod(rest, self.runs)
        return Cell(release, task, run)

    def position(self, release: int, task: int, run: int) -> int:
        return (task * self.runs + run) * self.releases + release


@dataclass(frozen=True, slots=True)
class Limits:
    """Where the runner ends a run. `seconds` is wall time and only a guard: a run it ends does not repeat."""

    turns: int = 50
    cost_usd: float | None = None
    virtual_ms: int = 30 * 24 * 3600 * 1000  # of the environment, and what the agent says it took in the same time
    seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class Hermetic:
    """How the world is kept to itself: levels asked for, and how often a run's environment has to prove it repeats."""

    environment: Level = Level.GUARDED
    agent: Level = Level.OPEN
    replay_every: int = 100  # one run in so many is played again, chosen by seed; 0: none
    allow_degraded: bool = False  # a level that cannot be had here is done without, and each record says so


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """How a worker gets a release's agent."""

    name: str
    target: str  # "scripted", or "module:function" of a Python callable
    flaws: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # name → (probability, correlation)
    latent: Literal["independent", "comonotone"] = "independent"  # whether a task is hard in each by itself, or in all


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """Everything about a campaign that its workers need."""

    environment: str  # "desk", or "module:factory"
    releases: tuple[AgentSpec, ...]
    tasks: Sequence[Task]
    runs_per_task: int
    seed: int
    stream: str  # "release": each release has noise of its own; "common": common random numbers
    limits: Limits
    hermetic: Hermetic = Hermetic()
    code: Mapping[str, str] = field(default_factory=dict)  # "module:name" → digest of the module's file as planned
    sys_path: tuple[str, ...] = ()  # folders of the user's own modules; relative: to where the worker starts
    trace_dir: str | None = None  # or an fsspec URL
    trace_every: int = 50  # keep one passed run in so many, chosen by seed; failed and invalid ones always

    @property
    def grid(self) -> Grid:
        return Grid(len(self.releases), len(self.tasks), self.runs_per_task)

    def stream_of(self, release: int) -> str:
        """Return the name of a release's noise."""
        return self.releases[release].name if self.stream == "release" else self.stream


class Shard(NamedTuple):
    """A stretch of the grid for one worker, to be left off after `seconds` even if runs remain."""

    id: int
    first: int
    stop: int
    attempt: int
    seconds: float
    frame_s: float = FLUSH_S  # how long a record waits for others to travel with
