"""The account of a campaign against a plain dictionary, and what is owed."""

import itertools
import random
from array import array
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passhat.runner.columns import Columns, from_payloads
from passhat.runner.errors import NotAcceptable
from passhat.runner.plan import Plan
from passhat.runner.schedule import Stretch
from passhat.runner.tables import MISSING, Account, owed, reconcile, records_digest, release_table
from passhat.workers.frames import FrameHeader, pack_frame, split
from passhat.workers.order import Cell
from passhat.workers.records import Outcome, Reason, RunRecord, Status, blank, pack_record, seal

PLAN = Plan(
    releases=("A", "B"),
    tasks=("t0", "t1", "t2"),
    cohorts=("all",),
    cohort=array("I", [0, 0, 0]),
    task_digests=(),
    runs_per_task=2,
    seed=None,
    stream=None,
)
LISTED = replace(PLAN, listed=array("Q", [0, 1, 2, 5, 8, 9]))


def record(cell: tuple[int, int, int], status: Status, attempt: int = 1, **more: object) -> RunRecord:
    return seal(blank(*cell)._replace(status=status, attempt=attempt, **more))


def columns_of(records: list[RunRecord]) -> Columns:
    packed = b"".join(map(pack_record, records))
    return from_payloads(split(pack_frame(FrameHeader(0, 0, 0, len(records), 0.0), packed))[0])


def account_of(records: list[RunRecord], plan: Plan = PLAN) -> Account:
    return reconcile(plan, columns_of(records))


def statuses(account: Account) -> dict[str, str]:
    names = [*(status.name for status in Status), "MISSING"]
    found = account.status(account.standing)
    return {
        account.plan.name(account.plan.grid.locate(int(position))): names[status]
        for position, status in zip(account.planned, found, strict=True)
    }


# The rules, one by one

A0, A1, B0 = (0, 0, 0), (0, 0, 1), (1, 0, 0)


def test_a_planned_run_without_a_record_is_missing() -> None:
    account = account_of([record(A0, Status.PASS), record(B0, Status.FAIL)], replace(PLAN, tasks=("t0",)))
    assert statuses(account) == {"A/t0/0": "PASS", "B/t0/0": "FAIL", "A/t0/1": "MISSING", "B/t0/1": "MISSING"}


def test_the_first_scored_attempt_stands_and_a_later_pass_does_not_hide_it() -> None:
    records = [record(A0, Status.FAIL, 1), record(A0, Status.PASS, 2)]
    for order in (records, records[::-1]):
        account = account_of(order)
        assert statuses(account)["A/t0/0"] == "FAIL"
        assert account.attempts[0] == 2


def test_an_attempt_after_a_fault_stands_in_its_place() -> None:
    lost = record(A0, Status.INVALID, 1, reason=Reason.WORKER_LOST)
    account = account_of([record(A0, Status.PASS, 2), lost])
    assert statuses(account)["A/t0/0"] == "PASS"
    assert account.status(account.first)[0] == Status.INVALID


def test_of_faults_alone_the_last_stands() -> None:
    records = [
        record(A0, Status.INVALID, attempt, reason=reason)
        for attempt, reason in ((1, Reason.WORKER_LOST), (2, Reason.ENVIRONMENT_ERROR))
    ]
    account = account_of(records[::-1])
    assert account.columns["reason"][account.standing[0]] == Reason.ENVIRONMENT_ERROR


def test_an_equal_record_is_merged_and_counted() -> None:
    once = record(A0, Status.PASS)
    account = account_of([once, record(A1, Status.FAIL), once._replace(wall_us=5, trace_file=9), once])
    assert len(account.duplicates) == 2
    assert account.attempts.sum() == 2
    assert statuses(account)["A/t0/0"] == "PASS"


def test_two_different_records_of_one_attempt_are_refused_and_both_are_shown() -> None:
    one = record(A0, Status.FAIL, claimed=Outcome.COMPLETED)
    other = record(A0, Status.INVALID, reason=Reason.ENVIRONMENT_ERROR)
    with pytest.raises(NotAcceptable) as caught:
        account_of([one, record(B0, Status.PASS), other])
    assert str(caught.value) == (
        "A/t0/0: two records of attempt 1 differ: "
        f"fail COMPLETED (digest {one.digest.hex()}) and invalid ENVIRONMENT_ERROR (digest {other.digest.hex()})"
    )


@pytest.mark.parametrize("cell", [(2, 0, 0), (0, 3, 0), (0, 0, 2), (2**16 - 1, 2**32 - 1, 2**32 - 1)])
def test_a_record_of_no_planned_run_is_foreign_and_counts_for_nothing(cell: tuple[int, int, int]) -> None:
    account = account_of([record(cell, Status.PASS), record(A0, Status.FAIL)])
    assert account.foreign.tolist() == [0]
    assert account.attempts.sum() == 1


def test_a_record_of_a_run_that_a_listing_has_not_is_foreign() -> None:
    """Position 3 is B/t0/1."""
    account = account_of([record((1, 0, 1), Status.PASS), record((0, 0, 1), Status.PASS)], LISTED)
    assert account.foreign.tolist() == [0]
    assert statuses(account) == {
        "A/t0/0": "MISSING",
        "B/t0/0": "MISSING",
        "A/t0/1": "PASS",
        "B/t1/0": "MISSING",
        "A/t2/0": "MISSING",
        "B/t2/0": "MISSING",
    }


def test_a_log_without_a_record_leaves_everything_missing() -> None:
    for plan in (PLAN, LISTED):
        account = reconcile(plan, from_payloads([]))
        assert set(statuses(account).values()) == {"MISSING"}
        assert owed(account, 3)[0].first == 0


def test_a_plan_of_nothing_has_foreign_records_only() -> None:
    account = account_of([record(A0, Status.PASS)], replace(LISTED, listed=array("Q")))
    assert (len(account.planned), account.foreign.tolist()) == (0, [0])
    assert owed(account, 3) == []


# Against a dictionary


@dataclass(frozen=True)
class Naive:
    """The account of a log, worked out record by record."""

    standing: dict[int, RunRecord]
    first: dict[int, RunRecord]
    attempts: dict[int, int]
    duplicates: int
    foreign: int


def naive(plan: Plan, records: list[RunRecord]) -> Naive:
    planned = set(range(len(plan.grid)) if plan.listed is None else plan.listed)
    seen: dict[tuple[int, int], RunRecord] = {}
    duplicates = foreign = 0
    for each in records:
        inside = each.release < 2 and each.task < 3 and each.run < 2
        position = plan.grid.position(each.release, each.task, each.run)
        if not inside or position not in planned:
            foreign += 1
        elif (position, each.attempt) in seen:
            duplicates += 1
        else:
            seen[position, each.attempt] = each
    by_run: dict[int, list[RunRecord]] = {}
    for (position, _), each in sorted(seen.items(), key=lambda item: item[0]):
        by_run.setdefault(position, []).append(each)
    return Naive(
        standing={
            position: next((each for each in attempts if each.status != Status.INVALID), attempts[-1])
            for position, attempts in by_run.items()
        },
        first={position: attempts[0] for position, attempts in by_run.items()},
        attempts={position: len(attempts) for position, attempts in by_run.items()},
        duplicates=duplicates,
        foreign=foreign,
    )


@st.composite
def logs(draw: st.DrawFn) -> list[RunRecord]:
    """Attempts of runs, some of them planned, in any order, some twice; no conflicts."""
    keys = draw(st.lists(st.tuples(*[st.integers(0, 3)] * 3, st.integers(1, 3)), unique=True, max_size=25))
    records = [
        record(key[:3], draw(st.sampled_from(Status)), key[3], turns=draw(st.integers(0, 1))) for key in keys
    ]  # fmt: skip
    twice = draw(st.lists(st.sampled_from(records), max_size=5)) if records else []
    return draw(st.permutations(records + [each._replace(wall_us=1) for each in twice]))


@given(log=logs(), plan=st.sampled_from([PLAN, LISTED]))
def test_the_account_is_what_counting_by_hand_gives(log: list[RunRecord], plan: Plan) -> None:
    account, expected = account_of(log, plan), naive(plan, log)
    positions = account.planned.tolist()
    for rows, by_hand in ((account.standing, expected.standing), (account.first, expected.first)):
        found = {
            position: (log[row].attempt, log[row].digest)
            for position, row in zip(positions, rows.tolist(), strict=True)
            if row >= 0
        }
        assert found == {position: (each.attempt, each.digest) for position, each in by_hand.items()}
    attempts = dict(zip(positions, account.attempts.tolist(), strict=True))
    assert {position: count for position, count in attempts.items() if count} == expected.attempts
    assert (len(account.duplicates), len(account.foreign)) == (expected.duplicates, expected.foreign)
    for release in range(2):
        table = release_table(account, release)
        for column, counted in ((table.outcomes.passed, (Status.PASS,)), (table.outcomes.failed, (Status.FAIL,))):
            assert column.tolist() == [
                sum(e.task == task and e.release == release and e.status in counted for e in expected.standing.values())
                for task in table.tasks.tolist()
            ]


@given(log=logs(), max_attempts=st.integers(1, 4), plan=st.sampled_from([PLAN, LISTED]))
def test_what_is_owed_is_the_plan_without_what_is_settled(log: list[RunRecord], max_attempts: int, plan: Plan) -> None:
    expected, planned = naive(plan, log), range(len(plan.grid)) if plan.listed is None else plan.listed
    by_hand = {}
    for position in planned:
        attempts = expected.attempts.get(position, 0)
        if not attempts or (expected.standing[position].status == Status.INVALID and attempts < max_attempts):
            by_hand[position] = attempts + 1
    stretches = owed(account_of(log, plan), max_attempts)
    assert {p: s.attempt for s in stretches for p in range(s.first, s.stop)} == by_hand
    assert all(stretch.first < stretch.stop for stretch in stretches)
    for before, after in itertools.pairwise(stretches):
        assert before.stop < after.first or (before.stop == after.first and before.attempt != after.attempt)


@given(log=logs(), chance=st.randoms())
def test_the_records_digest_does_not_depend_on_the_order_of_records(
    log: list[RunRecord], chance: random.Random
) -> None:
    shuffled = log.copy()
    chance.shuffle(shuffled)
    assert records_digest(account_of(shuffled)) == records_digest(account_of(log))


def test_three_sessions_execute_each_of_ten_runs_once() -> None:
    """Six, then none before the session was killed, then what was still owed."""
    plan = replace(PLAN, releases=("A",), tasks=("t",), runs_per_task=10)
    first = [record((0, 0, run), Status.PASS) for run in range(6)]
    assert owed(account_of(first, plan), 3) == [Stretch(6, 10, 1)]
    rest = [record((0, 0, run), Status.FAIL) for run in range(6, 10)]
    account = account_of([*first, *rest], plan)
    assert owed(account, 3) == []
    assert account.attempts.tolist() == [1] * 10


# Digests, tables


def test_the_records_digest_is_that_of_what_stands_and_of_nothing_else() -> None:
    plain = [record(A0, Status.PASS), record(A1, Status.FAIL)]
    expected = records_digest(account_of(plain))
    again = [
        record(A0, Status.INVALID, 1, reason=Reason.WORKER_LOST),
        plain[0]._replace(attempt=2, wall_us=3),
        plain[1],
        plain[1],
        record((7, 7, 7), Status.PASS),
    ]
    assert records_digest(account_of(again)) == expected
    assert records_digest(account_of(plain[:1])) != expected
    assert records_digest(account_of([plain[0], record(A1, Status.PASS)])) != expected


def test_a_release_has_the_tasks_that_are_planned_for_it() -> None:
    """LISTED plans t0 twice and t2 once for A, and t0, t1, t2 once for B."""
    account = account_of([record((0, 2, 0), Status.PASS), record(A1, Status.FAIL)], LISTED)
    table = release_table(account, 0)
    assert table.tasks.tolist() == [0, 2]
    assert (table.outcomes.planned.tolist(), table.outcomes.passed.tolist()) == ([2, 1], [0, 1])
    assert (table.outcomes.failed.tolist(), table.outcomes.unscored.tolist()) == ([1, 0], [1, 0])
    assert release_table(account, 1).tasks.tolist() == [0, 1, 2]
    assert account.runs_per_task == 2


def test_first_attempts_make_a_table_of_their_own() -> None:
    account = account_of([record(A0, Status.INVALID, 1), record(A0, Status.PASS, 2)])
    assert release_table(account, 0).outcomes.passed.tolist() == [1, 0, 0]
    assert release_table(account, 0, account.first).outcomes.passed.tolist() == [0, 0, 0]


def test_pending_is_neither_pass_nor_fail_nor_run_again() -> None:
    account = account_of([record(A0, Status.PENDING)])
    outcomes = release_table(account, 0).outcomes
    assert (outcomes.passed[0], outcomes.failed[0], outcomes.unscored[0]) == (0, 0, 2)
    assert owed(account, 3)[0] == Stretch(1, 12, 1)


def test_missing_is_told_from_every_status() -> None:
    account = account_of([record(A0, Status.PENDING)])
    assert MISSING not in list(Status)
    assert account.status(np.array([-1, 0])).tolist() == [MISSING, Status.PENDING]


def test_cells_of_planned_runs_are_those_of_the_grid() -> None:
    account = account_of([], LISTED)
    cells = [LISTED.grid.locate(position) for position in LISTED.listed or ()]
    assert account.release.tolist() == [cell.release for cell in cells]
    assert account.task.tolist() == [cell.task for cell in cells]
    assert cells[3] == Cell(1, 1, 0)
