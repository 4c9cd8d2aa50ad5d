"""The flaw of the machinery makes an attempt invalid, never a failure, and is drawn for each attempt."""

from math import inf
from pathlib import Path

import pytest

from passhat.workers.desk import Desk
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.environment import Principal
from passhat.workers.host import Host
from passhat.workers.order import AgentSpec, Limits, Shard, WorkOrder
from passhat.workers.records import Reason, RunRecord, Status
from passhat.workers.scripted import Breakdown, BrokenEnvironment
from passhat.workers.traces import read_trace

TASKS = DeskTasks(seed=2, tasks=30)


def records(attempt: int, trace_dir: str | None = None, **flaws: float) -> list[RunRecord]:
    rates = {name: (p, 0.0) for name, p in flaws.items()}
    order = WorkOrder(
        environment="desk",
        releases=(AgentSpec("A", "scripted", rates),),
        tasks=TASKS,
        runs_per_task=4,
        seed=5,
        stream="release",
        limits=Limits(),
        trace_dir=trace_dir,
    )
    return [one.record for one in Host(order).run(Shard(0, 0, len(order.grid), attempt, inf))]


def test_an_attempt_that_breaks_down_is_invalid_and_says_why(tmp_path: Path) -> None:
    found = records(1, str(tmp_path), infra_fault=1.0, loop=1.0)
    assert {(record.status, record.reason) for record in found} == {(Status.INVALID, Reason.ENVIRONMENT_ERROR)}
    file, offset = found[0].trace_file, found[0].trace_offset
    assert file is not None
    assert offset is not None
    assert read_trace(tmp_path, file, offset)["error"].startswith("Breakdown: the flaw infra_fault of this attempt")


def test_attempts_break_down_apart_from_one_another_and_give_the_same_run_otherwise() -> None:
    sound = records(1, loop=0.3)
    tries = [records(attempt, loop=0.3, infra_fault=0.5) for attempt in (1, 2, 3)]
    broken = [{i for i, record in enumerate(found) if record.status == Status.INVALID} for found in tries]
    assert all(30 < len(some) < 90 for some in broken)
    assert len({frozenset(some) for some in broken}) == 3
    for some, found in zip(broken, tries, strict=True):
        for i, record in enumerate(found):
            if i not in some:
                assert record.digest == sound[i].digest
    still = broken[0] & broken[1] & broken[2]
    assert 0 < len(still) < 30  # 120 runs, of which an eighth stays invalid


def test_the_world_is_the_real_one_until_the_first_call() -> None:
    desk, task = Desk(), TASKS[0]
    broken = BrokenEnvironment(desk)
    broken.reset(seed=1, options=task.world)
    with pytest.raises(Breakdown):
        broken.call("get_account", {"account_id": "A"}, principal=Principal())
    assert broken.spec is Desk.spec
    assert (broken.facts(), broken.virtual_ms(), broken.effects(), broken.invariants()) == (0, 0, [], [])
    assert broken.state_digest() == desk.state_digest()
    broken.close()


def test_a_run_breaks_down_at_the_same_attempts_whatever_else_the_release_has() -> None:
    few, more = records(1, infra_fault=0.4), records(1, infra_fault=0.4, verbose=0.5, wrong_amount=0.3)
    assert [record.status == Status.INVALID for record in few] == [record.status == Status.INVALID for record in more]
