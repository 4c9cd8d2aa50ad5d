"""Counts of pass and fail per task, and their histogram: what every estimate is computed from.

Knows arrays only: which task a row is, and why a run has no verdict, is the caller's to know. A run without a verdict
is carried as *unscored*, never dropped; `worst`, `best` and `observed` are the three ways to decide about it.
"""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# rows counted at a time: keys and counts then stay in the processor's cache
_CHUNK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """How many tasks have c passes in n runs, one entry for each (n, c) that occurs, ordered by n, then c."""

    n: IntArray
    c: IntArray
    tasks: IntArray  # at least 1 in every entry

    @property
    def total(self) -> int:
        """The number of tasks."""
        return int(self.tasks.sum())


@dataclass(frozen=True, slots=True, eq=False)
class OutcomeTable:
    """Counts of one release over its planned runs, one row a task; planned = passed + failed + unscored in each.

    Takes integer sequences of equal length; ValueError names the first row that does not add up or is negative.
    """

    planned: IntArray
    passed: IntArray
    failed: IntArray
    unscored: IntArray  # planned runs without a verdict: invalid, pending and missing

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _integers(field.name, getattr(self, field.name)))
        if not self.planned.shape == self.passed.shape == self.failed.shape == self.unscored.shape:
            raise ValueError("planned, passed, failed and unscored need one entry for each task")
        negative = np.minimum(np.minimum(self.passed, self.failed), self.unscored) < 0
        wrong = np.flatnonzero(negative | (self.planned != self.passed + self.failed + self.unscored))
        if wrong.size:
            row = wrong[0]
            raise ValueError(
                f"task row {row}: planned {self.planned[row]} is not passed {self.passed[row]} + "
                f"failed {self.failed[row]} + unscored {self.unscored[row]}, each at least 0"
            )

    @property
    def tasks(self) -> int:
        """The number of tasks, those without a single scored run included."""
        return len(self.planned)

    @property
    def scored(self) -> IntArray:
        """Runs with a verdict, per task."""
        return self.passed + self.failed

    @property
    def is_complete(self) -> bool:
        """Whether every planned run has a verdict."""
        return not self.unscored.any()

    def select(self, mask: npt.NDArray[np.bool_] | IntArray) -> "OutcomeTable":
        """The rows that a mask or an array of row numbers picks, for instance one cohort."""
        return OutcomeTable(self.planned[mask], self.passed[mask], self.failed[mask], self.unscored[mask])

    def worst(self) -> "OutcomeTable":
        """The completion in which every unscored run fails."""
        return _complete(self.passed, self.failed + self.unscored)

    def best(self) -> "OutcomeTable":
        """The completion in which every unscored run passes."""
        return _complete(self.passed + self.unscored, self.failed)

    def observed(self) -> "OutcomeTable":
        """The scored runs alone: n becomes what came back, and may differ between tasks or be 0."""
        return _complete(self.passed, self.failed)

    def histogram(self) -> Histogram:
        """The histogram of a complete table; ValueError when runs are unscored, as what they count for is not said."""
        if not self.is_complete:
            raise ValueError(f"{self.unscored.sum()} runs are unscored: take worst(), best() or observed() first")
        return histogram(self.planned, self.passed)


def count_outcomes(
    task: npt.NDArray[np.integer], status: npt.NDArray[np.integer], planned: npt.ArrayLike
) -> OutcomeTable:
    """Count one release's records per task.

    `task` is each record's row in the table and `status` its status: 0 pass, 1 fail, anything above no verdict.
    `planned` is the number of planned runs of every task; planned runs without a record are unscored. ValueError when
    a record names no row of the table, or a task has more records than planned runs.
    """
    planned = _integers("planned", planned)
    tasks = len(planned)
    if len(task) != len(status):
        raise ValueError(f"{len(task)} task rows but {len(status)} statuses")
    if len(task) and not 0 <= task.min() <= task.max() < tasks:
        raise ValueError(f"records name the task rows {task.min()} to {task.max()}, the table has 0 to {tasks - 1}")
    if len(status) and status.min() < 0:
        raise ValueError(f"status {status.min()} is negative")

    counts = np.zeros(3 * tasks, dtype=np.int64)
    # a chunk adds a whole array of counts, so it has at least as many rows
    step = max(_CHUNK_ROWS, counts.size)
    for start in range(0, len(task), step):
        key = task[start : start + step].astype(np.int64)
        key *= 3
        key += np.minimum(status[start : start + step], 2)
        counts += np.bincount(key, minlength=counts.size)
    passed, failed, other = counts.reshape(tasks, 3).T

    over = np.flatnonzero(passed + failed + other > planned)
    if over.size:
        row = over[0]
        raise ValueError(
            f"task row {row}: {passed[row] + failed[row] + other[row]} records for {planned[row]} planned runs"
        )
    return OutcomeTable(planned, passed, failed, planned - passed - failed)


def histogram(n: npt.ArrayLike, c: npt.ArrayLike) -> Histogram:
    """The histogram of tasks with n runs of which c passed; ValueError where 0 ≤ c ≤ n does not hold."""
    n, c = _integers("n", n), _integers("c", c)
    if n.shape != c.shape:
        raise ValueError(f"{len(n)} values of n but {len(c)} of c")
    wrong = np.flatnonzero((c < 0) | (c > n))
    if wrong.size:
        raise ValueError(f"task row {wrong[0]}: {c[wrong[0]]} passes in {n[wrong[0]]} runs")
    width = int(n.max(initial=0)) + 1
    key = n * width + c
    if width * width <= max(1 << 16, 4 * len(key)):
        tasks = np.bincount(key)
        occupied = np.flatnonzero(tasks)
        tasks = tasks[occupied]
    else:
        occupied, tasks = np.unique(key, return_counts=True)
    return Histogram(occupied // width, occupied % width, tasks)


def _complete(passed: IntArray, failed: IntArray) -> OutcomeTable:
    return OutcomeTable(passed + failed, passed, failed, np.zeros_like(passed))


def _integers(name: str, values: npt.ArrayLike) -> IntArray:
    """The values as a one-dimensional int64 array; TypeError for anything that is not a whole number by type."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} has {array.ndim} dimensions, expected 1")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {array.dtype}, expected integers")
    return array.astype(np.int64, copy=False)
