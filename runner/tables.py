"""From a log's records to counts: reconciles what came back with what was planned.

The only place where a record is left out of anything, and every one that is left out is counted. The rules:
- A run is planned or it is foreign; a planned run without a record is missing.
- The first scored attempt of a run stands; an invalid one stands only when no attempt was scored, and then the last.
- The same attempt twice with equal content is a duplicate, merged and counted; with different content it is a conflict.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from passhat.runner.columns import Array, Columns
from passhat.runner.errors import NotAcceptable
from passhat.runner.plan import Plan
from passhat.runner.schedule import Stretch
from passhat.stats.table import IntArray, OutcomeTable, count_outcomes
from passhat.workers.order import Cell
from passhat.workers.records import Outcome, Reason, Safety, Status, deterministic


@dataclass(frozen=True, eq=False)
class Account:
    """What a plan has and what came back. Rows number the records of `columns`."""

    plan: Plan
    columns: Columns
    planned: IntArray  # positions of the planned runs, ascending
    standing: IntArray  # for each planned run the row of the record that stands, -1 when it is missing
    first: IntArray  # for each planned run the row of its first attempt, -1 when it is missing
    attempts: IntArray  # number of attempts at each planned run
    index: IntArray  # for each row the planned run it belongs to, -1 for none
    duplicates: IntArray  # rows of merged duplicates
    foreign: IntArray  # rows of records that no plan asked for

    @property
    def release(self) -> IntArray:
        """Release of each planned run."""
        return self.planned % len(self.plan.releases)

    @property
    def task(self) -> IntArray:
        """Task of each planned run."""
        return self.planned // (len(self.plan.releases) * self.plan.runs_per_task)

    @property
    def runs_per_task(self) -> int:
        """The most runs that a release has planned of one task; an import's other tasks may have fewer."""
        return int(np.bincount(self.task * len(self.plan.releases) + self.release).max(initial=0))

    def name(self, planned: int) -> str:
        """Return task and run-index of a planned run."""
        cell = self.plan.grid.locate(int(self.planned[planned]))
        return f"{self.plan.tasks[cell.task]}/{cell.run}"

    @cached_property
    def safety(self) -> tuple[IntArray, IntArray]:
        """Each planned run's safety bits over all its attempts, and those that every attempt was watched for."""
        rows = np.flatnonzero(self.index >= 0)
        where = self.index[rows]
        events = np.zeros(len(self.planned), dtype=np.int64)
        watched = np.where(self.standing >= 0, sum(Safety), 0)
        np.bitwise_or.at(events, where, self.columns["safety"][rows].astype(np.int64))
        np.bitwise_and.at(watched, where, self.columns["watched"][rows].astype(np.int64))
        return events, watched

    def status(self, rows: IntArray) -> IntArray:
        """Return the status of each planned run by an array of rows such as `standing`; one above the last: missing."""
        status = np.full(len(rows), MISSING, dtype=np.int64)
        there = rows >= 0
        status[there] = self.columns["status"][rows[there]]
        return status


MISSING = max(Status) + 1


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseTable:
    """One release's counts per task, over the tasks that are planned for it."""

    tasks: IntArray  # indices into the plan
    outcomes: OutcomeTable


def reconcile(plan: Plan, columns: Columns) -> Account:
    """Return the account of a campaign; raise NotAcceptable when two records of one attempt differ."""
    planned = (
        np.arange(len(plan), dtype=np.int64) if plan.listed is None else np.frombuffer(plan.listed, "u8").astype("i8")
    )
    index, foreign = _locate(plan, planned, columns)
    rows = np.flatnonzero(index >= 0)
    order = rows[np.lexsort((columns["attempt"][rows], index[rows]))]
    keep, duplicates = _merge(plan, columns, index, order)
    standing = np.full(len(planned), -1, dtype=np.int64)
    first = standing.copy()
    attempts = np.zeros(len(planned), dtype=np.int64)
    if len(keep):
        starts = np.flatnonzero(np.diff(index[keep], prepend=-1))
        where = index[keep[starts]]
        scored = np.where(columns["status"][keep] != Status.INVALID, np.arange(len(keep)), len(keep))
        first_scored = np.minimum.reduceat(scored, starts)
        last = np.append(starts[1:], len(keep)) - 1
        standing[where] = keep[np.where(first_scored < len(keep), first_scored, last)]
        first[where] = keep[starts]
        attempts[where] = last - starts + 1
    return Account(plan, columns, planned, standing, first, attempts, index, duplicates, foreign)


def _locate(plan: Plan, planned: IntArray, columns: Columns) -> tuple[IntArray, IntArray]:
    """Return for each row the index of its planned run, -1 for a foreign one; and the foreign rows."""
    grid = plan.grid
    release, task, run = (columns[field].astype(np.int64) for field in Cell._fields)
    inside = (release < grid.releases) & (task < grid.tasks) & (run < grid.runs)
    position = (task * grid.runs + run) * grid.releases + release
    if plan.listed is None:
        index = np.where(inside, position, -1)
    else:
        found = np.minimum(np.searchsorted(planned, position), max(0, len(planned) - 1))
        hit = inside & (planned[found] == position) if len(planned) else np.zeros(len(position), bool)
        index = np.where(hit, found, -1)
    return index, np.flatnonzero(index < 0)


def _merge(plan: Plan, columns: Columns, index: IntArray, order: IntArray) -> tuple[IntArray, IntArray]:
    """Return the rows without duplicates, in the order given, and the duplicates."""
    if not len(order):
        return order, order
    same = (np.diff(index[order]) == 0) & (np.diff(columns["attempt"][order].astype(np.int64)) == 0)
    before, after = order[:-1][same], order[1:][same]
    differ = np.flatnonzero(np.any([_raw(c[before]) != _raw(c[after]) for c in _deterministic(columns)], axis=0))
    if len(differ):
        one, other = before[differ[0]], after[differ[0]]
        name = plan.name(Cell(*(int(columns[field][one]) for field in Cell._fields)))
        raise NotAcceptable(
            f"{name}: two records of attempt {columns['attempt'][one]} differ: "
            f"{describe(columns, one)} and {describe(columns, other)}"
        )
    is_duplicate = np.concatenate(([False], same))
    return order[~is_duplicate], order[is_duplicate]


def describe(columns: Columns, row: int) -> str:
    """Return what one record says, in a few words."""
    outcome = Outcome(int(columns["assigned"][row]) or int(columns["claimed"][row]))
    reason = Reason(int(columns["reason"][row]))
    parts = [Status(int(columns["status"][row])).name.lower()]
    parts += [outcome.name] if outcome is not Outcome.NONE else []
    parts += [reason.name] if reason is not Reason.NONE else []
    return f"{' '.join(parts)} (digest {int(columns['digest'][row]):016x})"


def release_table(account: Account, release: int, rows: IntArray | None = None) -> ReleaseTable:
    """Return a release's counts, by the standing records or by other rows such as the first attempts."""
    chosen = account.release == release
    status = account.status((account.standing if rows is None else rows)[chosen])
    task = account.task[chosen]
    per_task = np.bincount(task, minlength=len(account.plan.tasks))
    tasks = np.flatnonzero(per_task)
    row_of_task = np.cumsum(per_task > 0) - 1
    return ReleaseTable(tasks, count_outcomes(row_of_task[task], status, per_task[tasks]))


def records_digest(account: Account) -> str:
    """Return the digest of all standing records' deterministic content, in the order of the plan.

    It does not depend on workers, retries, resumes, or the order in which records came.
    """
    rows = account.standing[account.standing >= 0]
    digest = hashlib.sha256()
    for column in _deterministic(account.columns):
        raw = _raw(column[rows])
        digest.update(raw.astype(raw.dtype.newbyteorder(">")).tobytes())
    return f"sha256:{digest.hexdigest()}"


def _deterministic(columns: Columns) -> list[Array]:
    """What a record says that does not depend on workers, time or attempts; its own digest adds the trajectory."""
    return [columns[field] for field in (*deterministic(columns.schema), "digest")]


def _raw(column: Array) -> Array:
    """Return scores by their bits, so that what does not apply equals itself."""
    return column.view("u4") if column.dtype.kind == "f" else column


def owed(account: Account, max_attempts: int) -> list[Stretch]:
    """Return what the plan has and the log has not: runs without a record, and invalid ones with attempts left."""
    status = account.status(account.standing)
    again = (status == Status.INVALID) & (account.attempts < max_attempts)
    index = np.flatnonzero((status == MISSING) | again)
    if not len(index):
        return []
    attempt = account.attempts[index] + 1
    breaks = np.flatnonzero((np.diff(account.planned[index]) != 1) | (np.diff(attempt) != 0)) + 1
    starts, stops = np.append(0, breaks), np.append(breaks, len(index))
    position = account.planned[index]
    return [
        Stretch(int(position[a]), int(position[b - 1]) + 1, int(attempt[a]))
        for a, b in zip(starts, stops, strict=True)
    ]  # fmt: skip
