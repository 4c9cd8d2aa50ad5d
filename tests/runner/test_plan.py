"""The plan: it names every run, survives being written down, and costs nothing per run."""

import itertools
from array import array
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passhat.runner import launch
from passhat.runner.plan import PLAN_VERSION, Plan
from passhat.runner.request import Request, describe_plan
from passhat.workers.order import Cell

PLAN = Plan(
    releases=("A", "B"),
    tasks=("t/1", "t 2", "é"),
    cohorts=("x", "y"),
    cohort=array("I", [0, 1, 0]),
    task_digests=(bytes(32), bytes(range(32)), b"\xff" * 32),
    runs_per_task=4,
    seed=7,
    stream="release",
)


def restored(plan: Plan) -> Plan:
    return Plan.from_data(msgpack.unpackb(msgpack.packb(plan.to_data())))


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, task_digests=(), seed=None, stream=None),
        replace(PLAN, listed=array("Q", [0, 5, 23]), run_seeds=(3, None, 2**64 - 1)),
        replace(PLAN, listed=array("Q"), releases=(), tasks=(), cohorts=(), cohort=array("I"), task_digests=()),
    ],
    ids=["a whole grid", "without seeds and digests", "a listing with seeds", "nothing"],
)
def test_a_plan_survives_being_written_down(plan: Plan) -> None:
    assert restored(plan) == plan


def test_a_plan_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match=f"plan version 99, expected {PLAN_VERSION}"):
        Plan.from_data({**PLAN.to_data(), "version": 99})


@given(releases=st.integers(1, 4), tasks=st.integers(1, 5), runs=st.integers(1, 6))
def test_a_grid_has_every_run_at_one_position(releases: int, tasks: int, runs: int) -> None:
    names = tuple(str(number) for number in range(max(releases, tasks)))
    plan = replace(PLAN, releases=names[:releases], tasks=names[:tasks], runs_per_task=runs)
    cells = [plan.grid.locate(position) for position in range(len(plan))]
    assert cells == [
        Cell(release, task, run)
        for task, run, release in itertools.product(range(tasks), range(runs), range(releases))
    ]  # fmt: skip
    assert [plan.grid.position(*cell) for cell in cells] == list(range(len(plan)))


def test_a_listing_has_as_many_runs_as_it_lists() -> None:
    assert len(PLAN) == 2 * 3 * 4
    assert len(replace(PLAN, listed=array("Q", [1, 2, 20]))) == 3


def test_a_run_is_called_release_task_and_run_index() -> None:
    assert PLAN.name(Cell(1, 0, 3)) == "B/t/1/3"


def test_a_million_runs_take_no_more_room_than_one() -> None:
    one, million = (msgpack.packb(replace(PLAN, runs_per_task=runs).to_data()) for runs in (1, 1_000_000))
    assert len(million) <= len(one) + 4


def test_more_tasks_and_more_runs_change_no_seed() -> None:
    small, large = (
        Request(suite="desk", releases=("incumbent", "candidate"), tasks=tasks, runs=runs, seed=5)
        for tasks, runs in ((5, 1), (20, 6))
    )
    first, more = (
        describe_plan(launch.prepare(request, *launch.load(request)))["first_runs"] for request in (small, large)
    )
    assert first == more
