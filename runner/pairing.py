"""Two releases side by side: which tasks and cells both ran, and whether their evidence may be compared at all.

Tasks are matched by id and cells by (task, run-index); what has no partner is named, never dropped. Evidence that was
gathered under different conditions is refused, unless the part that both share is asked for, and then labelled.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from passhat.runner.columns import Array
from passhat.runner.errors import NotAcceptable, NothingMatched, UsageError
from passhat.runner.files import nearest, shown
from passhat.runner.render import some
from passhat.runner.report import load_account, treatment
from passhat.runner.store import Campaign
from passhat.runner.tables import MISSING, Account, ReleaseTable, release_table
from passhat.stats.table import IntArray, OutcomeTable
from passhat.workers.records import Status

BoolArray = npt.NDArray[np.bool_]

# what a run uses: name in documents and gates → field of a record, and how many of its units make one
EFFICIENCY_FIELDS = {"cost_usd": ("cost_micros", 1_000_000), "turns": ("turns", 1), "latency_ms": ("virtual_ms", 1)}

_STATUS_NAMES = {
    int(Status.PASS): "passed",
    int(Status.FAIL): "failed",
    int(Status.INVALID): "invalid",
    int(Status.PENDING): "pending",
    MISSING: "missing",
}
_NAMED = 3  # tasks named with a difference


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One release of a campaign."""

    campaign: Campaign
    account: Account
    number: int

    @property
    def release(self) -> str:
        return self.account.plan.releases[self.number]

    def table(self) -> ReleaseTable:
        """Return the release's counts, over its planned tasks."""
        return release_table(self.account, self.number)


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Planned runs of one side, in any selection and order; arrays have an entry a run."""

    side: Side
    planned: IntArray  # rows of the account's planned runs
    task: IntArray  # row of the matched task; -1: the other side has not planned this task

    def __len__(self) -> int:
        return len(self.planned)

    def take(self, rows: IntArray | BoolArray) -> "Runs":
        """Return the runs that an array of row numbers or a mask picks."""
        return Runs(self.side, self.planned[rows], self.task[rows])

    @property
    def status(self) -> IntArray:
        """Status of each run."""
        return self.side.account.status(self.side.account.standing[self.planned])

    @property
    def cohorts(self) -> npt.NDArray[np.str_]:
        """Cohort of each run."""
        account = self.side.account
        numbers = np.asarray(account.plan.cohort, dtype=np.int64)[account.task[self.planned]]
        return np.array(account.plan.cohorts)[numbers]

    @property
    def quadrant(self) -> IntArray:
        """Index into QUADRANTS; -1 where outcome and trajectory were not judged apart."""
        judged = ~np.isnan(self.values("outcome")) & ~np.isnan(self.values("trajectory"))
        return np.where(judged, self.values("passes") & 3, -1)

    def values(self, field: str) -> Array:
        """A field of the standing records; -1 or NaN where nothing is said."""
        rows, column = self.side.account.standing[self.planned], self.side.account.columns[field]
        is_score = column.dtype.kind == "f"
        values = np.full(len(rows), np.nan if is_score else -1, dtype=column.dtype if is_score else np.int64)
        values[rows >= 0] = column[rows[rows >= 0]]
        return values

    def events(self, bit: int) -> tuple[BoolArray, BoolArray]:
        """Whether any attempt had a safety event, and whether all were watched for it, and the run to a verdict."""
        events, watched = self.side.account.safety
        seen = (watched[self.planned] & bit) != 0
        return (events[self.planned] & bit) != 0, seen & (self.status <= Status.FAIL)

    def names(self, rows: IntArray | BoolArray) -> tuple[str, ...]:
        """Return task and run-index of some of the runs."""
        return tuple(self.side.account.name(int(planned)) for planned in self.planned[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Pairing:
    """The tasks that both sides planned, one row each, and what has no partner. Pairs are (baseline, candidate)."""

    base: Side
    candidate: Side
    tasks: tuple[str, ...]
    cohorts: tuple[str, ...]  # of each task, as the baseline's plan has it
    outcomes_base: OutcomeTable
    outcomes_candidate: OutcomeTable
    base_only: tuple[str, ...]
    candidate_only: tuple[str, ...]
    runs: tuple[Runs, Runs]  # all that each side planned
    cells: tuple[Runs, Runs]  # those whose (task, run-index) both planned, cell by cell in the same order
    differences: tuple[str, ...]  # conditions that differ, compared all the same because that was asked for
    unverified: tuple[str, ...]  # conditions that nothing is known of

    @property
    def unmatched(self) -> dict[str, Any]:
        """What has no partner: tasks by name, and numbers of runs of matched tasks."""
        lone = [int((runs.task >= 0).sum()) - len(self.cells[0]) for runs in self.runs]
        return {
            "base_only": list(self.base_only),
            "candidate_only": list(self.candidate_only),
            "base_cells": lone[0],
            "candidate_cells": lone[1],
        }

    def counts(self, which: int) -> dict[str, Any]:
        """Counts over the runs of matched tasks of one side (0 baseline, 1 candidate) and, by name, those unscored."""
        runs = self.runs[which].take(self.runs[which].task >= 0)
        status = runs.status
        numbers = np.bincount(status, minlength=MISSING + 1)
        outcomes = (self.outcomes_base, self.outcomes_candidate)[which]
        return {
            "planned": len(runs),
            **{name: int(numbers[value]) for value, name in _STATUS_NAMES.items()},
            "on_missing": treatment(outcomes, runs.side.campaign.manifest),
            "unscored": list(runs.names(status > Status.FAIL)),
        }

    def events(self, bit: int, *, new: bool) -> tuple[BoolArray, BoolArray]:
        """Return for all runs of the candidate whether any attempt had a safety event, and whether it may have had one.

        A run without a verdict was not watched to its end. An event is new where the baseline is known not to have had
        it in the same cell, and may be new where that is not known or there is no such cell.
        """
        runs = self.runs[1]
        has, seen = runs.events(bit)
        if not new:
            return has, ~has & ~seen
        had, known = np.zeros(len(runs), dtype=np.bool_), np.zeros(len(runs), dtype=np.bool_)
        cells = np.searchsorted(runs.planned, self.cells[1].planned)
        had[cells], known[cells] = self.cells[0].events(bit)
        return has & ~had & known, (~has & ~seen) | (has & ~had & ~known)

    def select(self, mask: BoolArray) -> "Pairing":
        """Return the matched tasks that a mask picks, with their runs and no others."""
        return self._select(mask, [np.zeros(len(runs), dtype=np.bool_) for runs in self.runs])

    def cohort(self, name: str) -> "Pairing":
        """Return the matched tasks of a cohort, with all runs of it, those without a partner included."""
        return self._select(
            np.array([cohort == name for cohort in self.cohorts], dtype=np.bool_),
            [(runs.task < 0) & (runs.cohorts == name) for runs in self.runs],
        )

    def _select(self, mask: BoolArray, alone: list[BoolArray]) -> "Pairing":
        kept = np.append(mask, False)  # -1 finds the last
        row_of = np.append(np.where(mask, np.cumsum(mask) - 1, -1), -1)

        def of(runs: Runs, more: BoolArray) -> Runs:
            taken = runs.take(kept[runs.task] | more)
            return Runs(taken.side, taken.planned, row_of[taken.task])

        none = np.zeros(len(self.cells[0]), dtype=np.bool_)
        rows = np.flatnonzero(mask)
        return replace(
            self,
            tasks=tuple(self.tasks[row] for row in rows),
            cohorts=tuple(self.cohorts[row] for row in rows),
            outcomes_base=self.outcomes_base.select(mask),
            outcomes_candidate=self.outcomes_candidate.select(mask),
            runs=(of(self.runs[0], alone[0]), of(self.runs[1], alone[1])),
            cells=(of(self.cells[0], none), of(self.cells[1], none)),
        )


def choose(campaigns: list[Campaign], base: str | None, candidate: str | None) -> tuple[Side, Side]:
    """Return the two sides: two releases of one campaign, or one of each of two.

    Of a campaign with two releases the baseline is the first by default and the candidate the other one; of two
    campaigns, each side is its campaign's only release by default.
    """
    first, last = campaigns[0], campaigns[-1]
    account = load_account(first)[0]
    if len(campaigns) == 1:
        base, candidate = _both(first, account.plan.releases, base, candidate)
        return _side(first, account, base, "baseline"), _side(first, account, candidate, "candidate")
    other = load_account(last)[0]
    return _side(first, account, base, "baseline"), _side(last, other, candidate, "candidate")


def _both(
    campaign: Campaign, releases: tuple[str, ...], base: str | None, candidate: str | None
) -> tuple[str | None, str | None]:
    """Fill in the release that is left of two."""
    if base is not None and candidate is not None:
        return base, candidate
    if len(releases) != 2:
        raise UsageError(
            f"{campaign.folder} has the releases {', '.join(releases)}: name two with --base and --candidate"
        )
    if base is None and candidate is None:
        return releases
    known = base if base is not None else candidate
    left = next((release for release in releases if release != known), None)
    return (known, left) if base is not None else (left, known)


def _side(campaign: Campaign, account: Account, name: str | None, role: str) -> Side:
    releases = account.plan.releases
    if name is None:
        if len(releases) != 1:
            raise UsageError(f"{campaign.folder} has the releases {', '.join(releases)}: name the {role}")
        return Side(campaign, account, 0)
    if name not in releases:
        problem = f"{role} {shown(name)}: no such release in {campaign.folder}"
        raise NothingMatched(f"{problem}; {nearest(name, releases)}")
    return Side(campaign, account, releases.index(name))


def pair(base: Side, candidate: Side, *, common: bool = False) -> Pairing:
    """Match two sides; raise NotAcceptable where conditions differ and the common part was not asked for.

    With `common`, tasks whose content differs have no partner, and the other differences are carried as labels.
    """
    if base.campaign.id == candidate.campaign.id and base.number == candidate.number:
        raise UsageError(f"{base.release} is named as both baseline and candidate")
    tables = base.table(), candidate.table()
    ids = [_ids(side, table) for side, table in zip((base, candidate), tables, strict=True)]
    shared = ids[0].keys() & ids[1].keys()
    changed, moved = _changed(base, candidate, shared), _moved(base, candidate, shared)
    differences = list(_differences(base.campaign, candidate.campaign, changed, moved))
    if differences and not common:
        raise NotAcceptable(
            f"{base.release} and {candidate.release} are not comparable: {'; '.join(differences)}. "
            "passhat compare --common compares what they share, and says so"
        )
    matched = [task for task in ids[0] if task in ids[1] and task not in changed]
    if not matched:
        raise NothingMatched(f"{base.release} and {candidate.release} have no task in common")
    rows = [np.array([of[task] for task in matched]) for of in ids]
    plan = base.account.plan
    runs = (_runs(base, tables[0].tasks[rows[0]]), _runs(candidate, tables[1].tasks[rows[1]]))
    return Pairing(
        base=base,
        candidate=candidate,
        tasks=tuple(matched),
        cohorts=tuple(plan.cohorts[plan.cohort[tables[0].tasks[row]]] for row in rows[0]),
        outcomes_base=tables[0].outcomes.select(rows[0]),
        outcomes_candidate=tables[1].outcomes.select(rows[1]),
        base_only=tuple(task for task in ids[0] if task not in ids[1] or task in changed),
        candidate_only=tuple(task for task in ids[1] if task not in ids[0] or task in changed),
        runs=runs,
        cells=_cells(runs),
        differences=tuple(differences),
        unverified=tuple(_unverified(base, candidate)),
    )


def _ids(side: Side, table: ReleaseTable) -> dict[str, int]:
    """Rows of a release's table by task id."""
    return {side.account.plan.tasks[task]: row for row, task in enumerate(table.tasks)}


def _runs(side: Side, matched: IntArray) -> Runs:
    account = side.account
    row_of = np.full(len(account.plan.tasks), -1)
    row_of[matched] = np.arange(len(matched))
    mine = np.flatnonzero(account.release == side.number)
    return Runs(side, mine, row_of[account.task[mine]])


def _cells(runs: tuple[Runs, Runs]) -> tuple[Runs, Runs]:
    """Match planned runs by (row of the matched task, run-index)."""
    width = max(each.side.account.plan.runs_per_task for each in runs)
    matched = [each.take(each.task >= 0) for each in runs]
    keys = []
    for each in matched:
        plan = each.side.account.plan
        run = each.side.account.planned[each.planned] // len(plan.releases) % plan.runs_per_task
        keys.append(each.task * width + run)
    _, first, second = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    return matched[0].take(first), matched[1].take(second)


def _changed(base: Side, candidate: Side, shared: set[str]) -> set[str]:
    """Tasks of one id whose content differs; none where a plan does not know its tasks' content."""
    plans = base.account.plan, candidate.account.plan
    if plans[0] is plans[1] or not all(plan.task_digests for plan in plans):
        return set()
    digests = [dict(zip(plan.tasks, plan.task_digests, strict=True)) for plan in plans]
    return {task for task in shared if digests[0][task] != digests[1][task]}


def _moved(base: Side, candidate: Side, shared: set[str]) -> set[str]:
    """Tasks that are in another cohort on the other side."""
    plans = base.account.plan, candidate.account.plan
    if plans[0] is plans[1]:
        return set()
    cohorts = [{task: plan.cohorts[c] for task, c in zip(plan.tasks, plan.cohort, strict=True)} for plan in plans]
    return {task for task in shared if cohorts[0][task] != cohorts[1][task]}


def _differences(base: Campaign, candidate: Campaign, changed: set[str], moved: set[str]) -> Iterator[str]:
    """Say what differs between the conditions of two campaigns."""
    if base.id == candidate.id:
        return
    one, other = base.manifest, candidate.manifest
    digests = one["suite"]["digest"], other["suite"]["digest"]
    if None not in digests and digests[0] != digests[1]:
        yield f"suite digest {digests[0][:23]} and {digests[1][:23]}"
    if changed:
        yield f"{len(changed)} tasks of one id have different contents: {some(sorted(changed), _NAMED)}"
    if moved:
        yield f"{len(moved)} tasks are in different cohorts: {some(sorted(moved), _NAMED)}"
    if "run" == one["origin"] == other["origin"]:
        yield from _unequal("seed", one["seed"], other["seed"])
        for limit in sorted({*one["limits"], *other["limits"]}):
            yield from _unequal(f"limits.{limit}", one["limits"].get(limit), other["limits"].get(limit))
    marks = one.get("pass_mark"), other.get("pass_mark")
    if None not in marks:
        yield from _unequal("pass_mark", *marks)
    yield from _unequal("on_missing", one["on_missing"], other["on_missing"])
    yield from _unequal("max_missing", one["max_missing"], other["max_missing"])


def _unequal(what: str, one: Any, other: Any) -> Iterator[str]:
    if one != other:
        yield f"{what} {one} and {other}"


def _unverified(base: Side, candidate: Side) -> Iterator[str]:
    """Say what nothing is known of: an import does not say what its tasks are, nor under which limits they ran."""
    imported = [side.release for side in (base, candidate) if side.campaign.manifest["origin"] != "run"]
    if imported:
        yield f"content of the tasks, seeds and limits: {' and '.join(imported)} come from an import"
