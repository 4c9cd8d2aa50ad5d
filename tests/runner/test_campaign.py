"""The loop between schedule and backend: what comes back is written as it came, whatever ends the campaign."""

import io
import os
import random
import signal
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from passhat.runner.campaign import Execution, Owed
from passhat.runner.columns import from_payloads
from passhat.runner.dispatch import Arrival, Backend, Data, Failed, InlineBackend
from passhat.runner.errors import Incomplete, Interrupted
from passhat.runner.plan import Plan
from passhat.runner.progress import Progress, Tally
from passhat.runner.schedule import ShardEnded, SlotLost, SlotReady, Stretch
from passhat.runner.store import Campaign, create, read_log, writing
from passhat.runner.tables import Account, owed, reconcile, records_digest
from passhat.workers.contract import Task, task_digest
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.frames import FrameHeader, pack_frame, parse
from passhat.workers.order import AgentSpec, Limits, Shard, WorkOrder
from passhat.workers.records import Reason, RunRecord, Status, blank, pack_record, seal
from passhat.workers.supervisor import Supervisor

WORLD = """
    import os, signal

    from passhat.workers.agent import Final
    from passhat.workers.environment import EnvSpec

    broken = {}  # task → how often its world is still broken

    def act(task, tools, ctx):
        print("from the agent")
        if task.inputs.get("interrupt"):
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                pass
        return Final("COMPLETED")

    class World:
        spec = EnvSpec("world", "1", ())

        def reset(self, *, seed, options):
            times = broken.get(options.get("breaks"), 0)
            if times:
                broken[options["breaks"]] = times - 1
                raise RuntimeError("broken world")

        def call(self, name, arguments, *, principal):
            raise NotImplementedError

        effects = invariants = lambda self: []
        state_digest = lambda self: b""
        facts = virtual_ms = lambda self: 0
        close = lambda self: None
"""


def world_order(tasks: list[Task], *, runs: int = 1) -> WorkOrder:
    folder = Path.cwd()
    (folder / "users_campaign_world.py").write_text(dedent(WORLD))
    return WorkOrder(
        environment="users_campaign_world:World",
        releases=(AgentSpec("A", "users_campaign_world:act"),),
        tasks=tasks,
        runs_per_task=runs,
        seed=7,
        stream="release",
        limits=Limits(),
        sys_path=(str(folder),),
    )


def desk_order(tasks: int = 12, runs: int = 3) -> WorkOrder:
    flaws = {"wrong_amount": (0.3, 0.2), "loop": (0.2, 0.1)}
    releases = (AgentSpec("A", "scripted"), AgentSpec("B", "scripted", flaws))
    return WorkOrder("desk", releases, DeskTasks(1, tasks), runs, 7, "release", Limits())


@pytest.fixture(autouse=True)
def _forget_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("users_campaign_world", None)


def begin(order: WorkOrder, folder: str = "c") -> Campaign:
    plan = Plan(
        releases=tuple(release.name for release in order.releases),
        tasks=tuple(task.id for task in order.tasks),
        cohorts=("all",),
        cohort=array("I", [0] * len(order.tasks)),
        task_digests=tuple(task_digest(task) for task in order.tasks),
        runs_per_task=order.runs_per_task,
        seed=order.seed,
        stream=order.stream,
    )
    return create(Path(folder), plan, {"origin": "run"})


def execute(campaign: Campaign, backend: Backend, *, max_attempts: int = 3) -> Progress:
    """Carry out what the log lacks; return the progress that was made."""
    tallies = [Tally(name, len(campaign.plan) // len(campaign.plan.releases)) for name in campaign.plan.releases]
    progress = Progress(tallies, "title", io.StringIO())
    with writing(campaign) as (writer, log):
        left = owed(reconcile(campaign.plan, from_payloads(log.payloads)), max_attempts) if log.payloads else None
        stretches = [Stretch(0, len(campaign.plan), 1)] if left is None else left
        try:
            session = Owed(stretches, len(log.payloads))
            Execution(campaign, writer, backend, progress, owed=session, max_attempts=max_attempts).run()
        finally:
            backend.close()
    return progress


def account(campaign: Campaign) -> Account:
    return reconcile(campaign.plan, from_payloads(read_log(campaign).payloads))


def records_of(campaign: Campaign) -> list[RunRecord]:
    return [record for payload in read_log(campaign).payloads for record in parse(payload).records]


def attempts_of(campaign: Campaign) -> list[tuple[int, int, Status]]:
    """Task, attempt and status of every record, in the order of the log."""
    return [(record.task, record.attempt, Status(record.status)) for record in records_of(campaign)]


def events_of(campaign: Campaign) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.items() if key != "at"} for event in campaign.events()]


class Noting:
    """A backend that only notes what it was asked, and returns what it was told to, round by round."""

    is_inline = False

    def __init__(self, *rounds: list[Arrival] | Callable[[], list[Arrival]], slots: int = 1) -> None:
        self.slots = slots
        self.asked: list[Any] = []
        self.drained: list[Arrival] = []
        self.published: list[tuple[int, bool]] = []  # runs done, and whether these are the last
        self._rounds = iter(rounds)

    def start(self, slot: int) -> None:
        self.asked.append(("start", slot))

    def assign(self, slot: int, shard: Shard) -> None:
        self.asked.append(("assign", slot, shard.id, shard.first, shard.stop, shard.attempt))

    def arrivals(self, timeout_s: float) -> list[Arrival]:
        arrived = next(self._rounds)
        return arrived() if callable(arrived) else arrived

    def drain(self) -> list[Arrival]:
        self.asked.append("drain")
        return self.drained

    def publish(self, progress: Progress, *, final: bool = False) -> None:
        self.published.append((progress.done, final))

    def close(self) -> None:
        self.asked.append("close")


def packed(slot: int, shard: int, first: int, *statuses: Status, attempt: int = 1) -> Data:
    """A frame of runs of one release and single-run tasks."""
    records = b"".join(
        pack_record(seal(blank(0, first + i, 0)._replace(status=status, attempt=attempt)))
        for i, status in enumerate(statuses)
    )
    return Data(slot, shard, pack_frame(FrameHeader(shard, slot, first, len(statuses), 0.001), records))


def small(tasks: int = 4) -> Campaign:
    return begin(world_order([Task(id=f"T{i}", request="") for i in range(tasks)]))


P, F, X = Status.PASS, Status.FAIL, Status.INVALID


# The ordinary way


def test_every_run_of_the_plan_is_executed_once_and_counted() -> None:
    campaign = begin(order := desk_order())
    progress = execute(campaign, InlineBackend(order))
    whole = account(campaign)
    assert len(records_of(campaign)) == len(campaign.plan) == progress.done == 72
    statuses = list(whole.status(whole.standing))
    assert [tally.passed for tally in progress.tallies] == [statuses[0::2].count(P), statuses[1::2].count(P)]
    assert [tally.failed for tally in progress.tallies] == [statuses[0::2].count(F), statuses[1::2].count(F)]
    assert progress.cost_micros == sum(record.cost_micros or 0 for record in records_of(campaign)) > 0
    assert events_of(campaign) == []


def test_frames_are_written_as_they_came_before_the_next_are_waited_for() -> None:
    campaign = small(2)
    one, other = packed(0, 0, 0, P), packed(0, 1, 1, F)
    header = campaign.log_path.read_bytes()
    seen = []

    def later() -> list[Arrival]:
        seen.append(campaign.log_path.read_bytes())
        return [other]

    backend = Noting([SlotReady(0)], [one, ShardEnded(0, 0)], later)
    execute(campaign, backend)
    assert seen == [header + one.frame]
    assert campaign.log_path.read_bytes() == header + one.frame + other.frame
    assert backend.asked == [("start", 0), ("assign", 0, 0, 0, 1, 1), ("assign", 0, 1, 1, 2, 1), "close"]


def test_those_who_watch_are_told_from_the_start_and_at_the_end_whatever_ends_it() -> None:
    backend = Noting([SlotReady(0)], [packed(0, 0, 0, P), ShardEnded(0, 0)], [packed(0, 1, 1, F)])
    execute(small(2), backend)
    assert backend.published == [(0, False), (0, False), (1, False), (2, False), (2, True)]
    backend = Noting([SlotReady(0)], [packed(0, 0, 0, P), Failed("no room")])
    with pytest.raises(Incomplete, match="no room"):
        execute(begin(world_order([Task(id="T", request=""), Task(id="U", request="")]), "d"), backend)
    assert backend.published == [(0, False), (0, False), (1, True)]


def test_prints_of_agents_in_this_process_do_not_reach_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    order = world_order([Task(id="T", request="")])
    execute(begin(order), InlineBackend(order))
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "from the agent\n")


# Faults


def test_a_fault_is_tried_again_up_to_the_declared_number_of_attempts() -> None:
    tasks = [Task(id=f"T{i}", request="", world={"breaks": i}) for i in range(3)]
    order = world_order(tasks)
    campaign = begin(order)
    backend = InlineBackend(order)
    backend.start(0)
    backend.arrivals(0)
    sys.modules["users_campaign_world"].broken.update({1: 1, 2: 9})
    progress = execute(campaign, backend, max_attempts=3)
    assert sorted(attempts_of(campaign)) == [(0, 1, P), (1, 1, X), (1, 2, P), (2, 1, X), (2, 2, X), (2, 3, X)]
    tally = progress.tallies[0]
    assert (tally.passed, tally.failed, tally.invalid, progress.retried) == (2, 0, 1, 3)
    assert [(event["event"], event["run"], event["attempt"], event["reason"]) for event in events_of(campaign)] == [
        ("retry", "A/T1/0", 1, "ENVIRONMENT_ERROR"),
        ("retry", "A/T2/0", 1, "ENVIRONMENT_ERROR"),
        ("retry", "A/T2/0", 2, "ENVIRONMENT_ERROR"),
        ("invalid", "A/T2/0", 3, "ENVIRONMENT_ERROR"),
    ]


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_a_lost_worker_costs_the_run_it_was_in_one_attempt_and_no_other(max_attempts: int) -> None:
    campaign = small()
    rounds: list[list[Arrival]] = [
        [SlotReady(0)],
        [packed(0, 0, 0, P)],
        [ShardEnded(0, 0)],
        [SlotLost(0, "was killed")],  # in run 1, with run 2 and 3 still to come
        [SlotReady(0)],
        [packed(0, 3, 2, P, P)],
        [packed(0, 4, 1, F, attempt=2)],
    ]
    execute(campaign, Noting(*rounds[: 5 + max_attempts]), max_attempts=max_attempts)
    expected = [(0, 1, P), (1, 1, X), (2, 1, P), (3, 1, P), (1, 2, F)]
    assert attempts_of(campaign) == expected[: 3 + max_attempts]
    assert Reason(records_of(campaign)[1].reason) is Reason.WORKER_LOST
    assert events_of(campaign) == [
        {"event": "worker_lost", "worker": 0, "cause": "was killed"},
        {
            "event": "retry" if max_attempts > 1 else "invalid",
            "run": "A/T1/0",
            "attempt": 1,
            "reason": "WORKER_LOST",
            "worker": 0xFFFF,
            "cause": "was killed",
        },
    ]


@pytest.mark.parametrize("damage", [lambda frame: frame[:-1], lambda frame: frame + b"x", lambda frame: b"no frame"])
def test_a_worker_that_sends_what_is_no_frame_is_replaced(damage: Callable[[bytes], bytes]) -> None:
    campaign = small(1)
    good = packed(0, 0, 0, P)
    backend = Noting(
        [SlotReady(0)], [Data(0, 0, damage(good.frame))], [SlotReady(0)], [packed(0, 1, 0, P, attempt=2)]
    )  # fmt: skip
    execute(campaign, backend)
    assert attempts_of(campaign) == [(0, 1, X), (0, 2, P)]
    assert backend.asked.count(("start", 0)) == 2
    assert events_of(campaign)[0]["cause"].startswith("sent what is no frame of this version: ")


def test_workers_that_are_lost_again_and_again_end_the_campaign() -> None:
    backend = Noting(*[[SlotLost(0, "had no memory")]] * 5)
    with pytest.raises(Incomplete, match="5 workers lost in a row, the last because it had no memory"):
        execute(small(), backend)


# What ends a campaign early


def test_what_comes_back_with_the_news_of_a_failure_is_kept_and_nothing_more_is_started() -> None:
    campaign = small(4)
    ready: list[Arrival] = [SlotReady(0), SlotReady(1)]
    backend = Noting(ready, [Failed("no such module"), packed(1, 2, 2, P)], slots=2)
    backend.drained = [packed(0, 0, 0, F), SlotReady(0), Failed("again")]
    with pytest.raises(Incomplete, match=r"^no such module$"):
        execute(campaign, backend)
    assert attempts_of(campaign) == [(2, 1, P), (0, 1, F)]
    assert [asked if isinstance(asked, str) else asked[0] for asked in backend.asked] == [
        "start", "start", "assign", "assign", "assign", "assign", "drain", "close",
    ]  # fmt: skip


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_has_come_back_and_starts_nothing_more(signal_number: int) -> None:
    campaign = small(4)

    def interrupted() -> list[Arrival]:
        os.kill(os.getpid(), signal_number)
        return [packed(0, 0, 0, P)]

    backend = Noting([SlotReady(0)], interrupted)
    backend.drained = [ShardEnded(0, 0), packed(0, 1, 1, X)]
    before = signal.getsignal(signal_number)
    with pytest.raises(Interrupted):
        execute(campaign, backend)
    assert attempts_of(campaign) == [(0, 1, P), (1, 1, X)]
    assert backend.asked == [
        ("start", 0), ("assign", 0, 0, 0, 1, 1), ("assign", 0, 1, 1, 2, 1), "drain", "close",
    ]  # fmt: skip
    assert signal.getsignal(signal_number) is before


def test_a_frame_that_is_found_again_when_it_ends_is_written_once_and_nobody_is_blamed() -> None:
    campaign = small(3)

    def interrupted() -> list[Arrival]:
        os.kill(os.getpid(), signal.SIGINT)
        return [packed(0, 0, 0, P)]

    backend = Noting([SlotReady(0)], interrupted)
    backend.drained = [packed(0, 0, 0, P)]
    with pytest.raises(Interrupted):
        execute(campaign, backend)
    assert attempts_of(campaign) == [(0, 1, P)]
    assert events_of(campaign) == []


def test_an_interrupt_after_the_last_run_comes_too_late() -> None:
    campaign = small(1)

    def interrupted() -> list[Arrival]:
        os.kill(os.getpid(), signal.SIGINT)
        return [packed(0, 0, 0, P)]

    execute(campaign, Noting([SlotReady(0)], interrupted))
    assert attempts_of(campaign) == [(0, 1, P)]


def test_ctrl_c_reaches_an_agent_in_this_process_that_hangs_and_the_rest_is_done_later() -> None:
    """Ten runs: six are finished when the seventh is interrupted, twice; a third session executes the other four."""
    tasks = [Task(id=f"T{i}", request="", inputs={"interrupt": i == 6}) for i in range(10)]
    order = world_order(tasks)
    campaign = begin(order)
    for _ in range(2):
        with pytest.raises(Interrupted):
            execute(campaign, InlineBackend(order))
        assert attempts_of(campaign) == [(i, 1, P) for i in range(6)]
    mended = world_order([Task(id=task.id, request="") for task in tasks])
    progress = execute(campaign, InlineBackend(mended))
    assert attempts_of(campaign) == [(i, 1, P) for i in range(10)]
    assert progress.done == 4


def test_a_connection_that_breaks_ends_the_campaign_as_incomplete() -> None:
    campaign = small(2)

    def gone() -> list[Arrival]:
        raise ConnectionError("the cluster is gone")

    backend = Noting([SlotReady(0)], [packed(0, 0, 0, P)], gone)
    with pytest.raises(Incomplete, match="the cluster is gone"):
        execute(campaign, backend)
    assert attempts_of(campaign) == [(0, 1, P)]


# The same records, whoever executes them


class ManySlots:
    """Several hosts in this process that are served, and lost, in an order drawn from a seed."""

    is_inline = False

    def __init__(self, order: WorkOrder, slots: int, seed: int, losses: int = 0) -> None:
        self.slots = slots
        self._order = order
        self._rng = random.Random(seed)
        self._losses = losses
        self._hosts: dict[int, InlineBackend] = {}

    def start(self, slot: int) -> None:
        self._hosts[slot] = InlineBackend(self._order)
        self._hosts[slot].start(0)

    def assign(self, slot: int, shard: Shard) -> None:
        self._hosts[slot].assign(0, shard)

    def arrivals(self, timeout_s: float) -> list[Arrival]:
        slot = self._rng.choice(list(self._hosts))
        if self._losses and self._rng.random() < 0.2:
            self._losses -= 1
            return [SlotLost(slot, "was killed")]
        return [self._of(slot, arrival) for arrival in self._hosts[slot].arrivals(timeout_s)]

    def drain(self) -> list[Arrival]:
        return []

    def publish(self, progress: Progress, *, final: bool = False) -> None:
        assert 0 <= progress.done <= progress.planned

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()

    @staticmethod
    def _of(slot: int, arrival: Arrival) -> Arrival:
        match arrival:
            case SlotReady():
                return SlotReady(slot)
            case ShardEnded(_, shard):
                return ShardEnded(slot, shard)
            case Data(_, shard, frame):
                return Data(slot, shard, frame)
        raise AssertionError(arrival)


class Supervised(ManySlots):
    """The same with a child process in each slot."""

    def start(self, slot: int) -> None:
        self._hosts[slot] = SupervisedSlot(self._order)


class SupervisedSlot(InlineBackend):
    def __init__(self, order: WorkOrder) -> None:
        super().__init__(order)
        self._supervisor = Supervisor(order, 0)
        self._arrived.append(SlotReady(0))

    def _run(self, shard: Shard) -> Iterator[bytes]:
        yield from self._supervisor.run(shard)

    def close(self) -> None:
        self._supervisor.close()


def digest_with(backend: Callable[[WorkOrder], Backend], folder: str, order: WorkOrder) -> str:
    campaign = begin(order, folder)
    execute(campaign, backend(order))
    whole = account(campaign)
    assert (whole.status(whole.standing) != X).all()
    assert len(whole.planned) == len(campaign.plan)
    return records_digest(whole)


def test_any_number_of_slots_in_any_order_and_with_losses_gives_the_same_records() -> None:
    order = desk_order(tasks=20, runs=4)
    expected = digest_with(InlineBackend, "inline", order)
    for slots, losses in [(1, 0), (3, 0), (4, 2), (16, 6), (200, 0)]:
        many = digest_with(lambda work, n=slots, k=losses: ManySlots(work, n, n, k), f"{slots}", order)  # type: ignore[misc]
        assert many == expected, slots


def test_child_processes_give_the_same_records_as_this_one() -> None:
    order = desk_order(tasks=20, runs=4)
    assert digest_with(lambda work: Supervised(work, 2, 1), "supervised", order) == digest_with(
        InlineBackend, "inline", order
    )


def test_ten_runs_are_ten_runs_for_any_number_of_workers() -> None:
    """Seven pass, the last among them; nothing is padded, and slots without work stay idle."""
    order = world_order([Task(id=f"T{i}", request="") for i in range(10)])
    for slots in (1, 3, 4, 16):
        campaign = begin(order, f"{slots}")
        execute(campaign, ManySlots(order, slots, slots))
        assert sorted(attempts_of(campaign)) == [(i, 1, P) for i in range(10)]


def test_a_second_session_executes_what_the_first_left() -> None:
    order = desk_order(tasks=6, runs=3)
    expected = digest_with(InlineBackend, "whole", order)
    campaign = begin(order)
    execute(campaign, InlineBackend(order))
    log = read_log(campaign)
    campaign.log_path.write_bytes(log.data[:-1])  # the last frame is torn
    kept = len(records_of(campaign))
    assert 0 < kept < len(campaign.plan)
    assert execute(campaign, InlineBackend(order)).done == len(campaign.plan) - kept
    assert len(records_of(campaign)) == len(campaign.plan)
    assert records_digest(account(campaign)) == expected
