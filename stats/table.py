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

    >>> table = OutcomeTable(planned=[3, 3], passed=[3, 1], failed=[0, 1], unscored=[0, 1])
    >>> table.tasks, table.scored.tolist(), table.is_complete
    (2, [3, 2], False)
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
        """The rows that a mask or an array of row numbers picks, for instance one cohort.

        >>> table = OutcomeTable(planned=[3, 3], passed=[3, 1], failed=[0, 2], unscored=[0, 0])
        >>> table.select(table.passed == 3).tasks
        1
        """
        return OutcomeTable(self.planned[mask], self.passed[mask], self.failed[mask], self.unscored[mask])

    def worst(self) -> "OutcomeTable":
        """The completion in which every unscored run fails.

        >>> OutcomeTable(planned=[3], passed=[1], failed=[1], unscored=[1]).worst().failed.tolist()
        [2]
        """
        return _complete(self.passed, self.failed + self.unscored)

    def best(self) -> "OutcomeTable":
        """The completion in which every unscored run passes.

        >>> OutcomeTable(planned=[3], passed=[1], failed=[1], unscored=[1]).best().passed.tolist()
        [2]
        """
        return _complete(self.passed + self.unscored, self.failed)

    def observed(self) -> "OutcomeTable":
        """The scored runs alone: n becomes what came back, and may differ between tasks or be 0.

        >>> OutcomeTable(planned=[3], passed=[1], failed=[1], unscored=[1]).observed().planned.tolist()
        [2]
        """
        return _complete(self.passed, self.failed)

    def histogram(self) -> Histogram:
        """The histogram of a complete table; ValueError when runs are unscored, as what they count for is not said.

        >>> OutcomeTable(planned=[3], passed=[1], failed=[1], unscored=[1]).worst().histogram().c.tolist()
        [1]
        """
        if not self.is_complete:
            raise ValueError(f"{self.unscored.sum()} runs are unscored: take worst(), best() or observed() first")
        return histogram(self.planned, self.passed)


def count_outcomes(
    task: npt.NDArray[np.integer], status: npt.NDArray[np.integer], planned: npt.ArrayLike
) -> OutcomeTable:
    """Count one release's records per task.

    `task` is each record's row in the table and `status` its status: 0 pass, 1 fail, anything above no verdict.
    `planned` is the number of planned runs of every task; planned runs without a record are unscored. ValueError when
    a record names no row of the table, a task has more records than planned runs, or a status is negative.

    >>> table = count_outcomes(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 2]), planned=[2, 3])
    >>> table.passed.tolist(), table.failed.tolist(), table.unscored.tolist()
    ([1, 1], [1, 0], [0, 2])
    """
    planned = _integers("planned", planned)
    tasks = len(planned)
    if len(task) != len(status):
        raise ValueError(f"{len(task)} task rows but {len(status)} statuses")
    counts = np.zeros(3 * tasks, dtype=np.int64)
    start = 0
    while start < len(task):
        start += _count_chunk(task[start:], status[start:], counts)
    passed, failed, other = counts.reshape(tasks, 3).T

    over = np.flatnonzero(passed + failed + other > planned)
    if over.size:
        row = over[0]
        raise ValueError(
            f"task row {row}: {passed[row] + failed[row] + other[row]} records for {planned[row]} planned runs"
        )
    return OutcomeTable(planned, passed, failed, planned - passed - failed)


def _count_chunk(task: npt.NDArray[np.integer], status: npt.NDArray[np.integer], counts: IntArray) -> int:
    """Add the first rows to counts of (pass, fail, other) per task; return how many rows that were.

    Records come roughly in the order of tasks, so a chunk names few of them and is counted in a window that stays in
    the cache. Rows in any order are counted all the same, then with as many rows as a window of all tasks has counts.
    """
    rows = min(len(task), _CHUNK_ROWS)
    lowest, highest = _range(task[:rows], counts.size // 3)
    if highest - lowest > 2 * rows:
        rows = min(len(task), max(rows, counts.size))
        lowest, highest = _range(task[:rows], counts.size // 3)
    if status[:rows].min() < 0:
        raise ValueError(f"status {status[:rows].min()} is negative")
    key = task[:rows].astype(np.int64)
    key -= lowest
    key *= 3
    key += np.minimum(status[:rows], 2)
    counts[3 * lowest : 3 * highest + 3] += np.bincount(key, minlength=3 * (highest - lowest + 1))
    return rows


def _range(task: npt.NDArray[np.integer], tasks: int) -> tuple[int, int]:
    lowest, highest = int(task.min()), int(task.max())
    if lowest < 0 or highest >= tasks:
        raise ValueError(f"records name the task rows {lowest} to {highest}, the table has 0 to {tasks - 1}")
    return lowest, highest


def histogram(n: npt.ArrayLike, c: npt.ArrayLike) -> Histogram:
    """The histogram of tasks with n runs of which c passed: one integer a task in both.

    ValueError where 0 ≤ c ≤ n does not hold or the lengths differ, TypeError for anything but integers.

    >>> counted = histogram([3, 3, 3, 2], [3, 1, 3, 0])
    >>> counted.n.tolist(), counted.c.tolist(), counted.tasks.tolist()
    ([2, 3, 3], [0, 1, 3], [1, 1, 2])
    """
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
