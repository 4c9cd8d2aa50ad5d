"""The plan of a campaign: every planned run, written down before the first one and the denominator of everything after.

A campaign that is executed plans a whole grid, which costs no memory per run. An import plans what its source holds,
listed run by run. Seeds are functions of what is planned (workers/seeds.py), so a plan names the two things they
start from and needs no list of them.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from passhat.workers.order import Cell, Grid

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Names and order of releases and tasks; records refer to them by index."""

    releases: tuple[str, ...]
    tasks: tuple[str, ...]
    cohorts: tuple[str, ...]  # names of the cohorts
    cohort: Sequence[int]  # of each task, an index into `cohorts`
    task_digests: tuple[bytes, ...]  # empty where a source has none
    runs_per_task: int  # of a listing: one more than the greatest run-index
    seed: int | None
    stream: str | None
    listed: "array[int] | None" = None  # planned positions in the grid, ascending; None: all of them
    run_seeds: tuple[int | None, ...] = ()  # of an import, one a planned run where its source names them

    @property
    def grid(self) -> Grid:
        return Grid(len(self.releases), len(self.tasks), self.runs_per_task)

    def __len__(self) -> int:
        return len(self.grid) if self.listed is None else len(self.listed)

    def name(self, cell: Cell) -> str:
        """Return how a run is called: release/task/run-index."""
        return f"{self.releases[cell.release]}/{self.tasks[cell.task]}/{cell.run}"

    def to_data(self) -> dict[str, Any]:
        """Return the plan as plain values for msgpack."""
        return {
            "version": PLAN_VERSION,
            "releases": self.releases,
            "tasks": self.tasks,
            "cohorts": self.cohorts,
            "cohort": array("I", self.cohort).tobytes(),
            "task_digests": b"".join(self.task_digests),
            "runs_per_task": self.runs_per_task,
            "seed": self.seed,
            "stream": self.stream,
            "listed": None if self.listed is None else self.listed.tobytes(),
            "run_seeds": self.run_seeds,
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> "Plan":
        """Return the plan of `to_data`; raise ValueError for another version."""
        if data.get("version") != PLAN_VERSION:
            raise ValueError(f"plan version {data.get('version')}, expected {PLAN_VERSION}")
        tasks, digests = data["tasks"], data["task_digests"]
        size = len(digests) // len(tasks) if tasks else 0
        return cls(
            releases=tuple(data["releases"]),
            tasks=tuple(tasks),
            cohorts=tuple(data["cohorts"]),
            cohort=array("I", data["cohort"]),
            task_digests=tuple(digests[i * size : (i + 1) * size] for i in range(len(tasks))) if size else (),
            runs_per_task=data["runs_per_task"],
            seed=data["seed"],
            stream=data["stream"],
            listed=None if data["listed"] is None else array("Q", data["listed"]),
            run_seeds=tuple(data["run_seeds"]),
        )
