"""The schedule, event by event, and against workers that do whatever they like."""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passhat.runner.schedule import (
    LOSSES_IN_A_ROW,
    SHARDS_OUT,
    Assign,
    Command,
    Event,
    FrameArrived,
    GiveUp,
    Keep,
    RecordLoss,
    Schedule,
    ShardEnded,
    SlotLost,
    SlotReady,
    StartSlot,
    Stretch,
)
from passhat.workers.order import Shard


def schedule(runs: int = 100, *, slots: int = 2, max_attempts: int = 3, first_shard: int = 0) -> Schedule:
    owed = [Stretch(0, runs, 1)] if runs else []
    return Schedule(owed, slots=slots, max_attempts=max_attempts, first_shard=first_shard)


def after(state: Schedule, *events: Event) -> list[Command]:
    """Return the commands that the last of the events leads to."""
    commands = state.begin()
    for event in events:
        commands = state.handle(event)
    return commands


def frame(slot: int, shard: int, first: int, runs: int, *invalid: int, seconds_per_run: float = 0.01) -> FrameArrived:
    return FrameArrived(slot, shard, first, runs, runs * seconds_per_run, invalid)


# Handing out


def test_it_begins_with_a_worker_for_each_slot() -> None:
    assert schedule().begin() == [StartSlot(0), StartSlot(1)]


def test_no_more_workers_are_started_than_there_are_runs() -> None:
    assert schedule(10, slots=16).begin() == [StartSlot(slot) for slot in range(10)]


def test_nothing_owed_is_done_at_once() -> None:
    assert schedule(0).begin() == []
    assert schedule(0).is_done


def test_a_worker_that_is_ready_gets_two_shards() -> None:
    assert after(schedule(), SlotReady(0)) == [
        Assign(0, Shard(0, 0, 12, 1, 2.0)),
        Assign(0, Shard(1, 12, 24, 1, 2.0)),
    ]


def test_shard_ids_go_on_where_an_earlier_session_left_off() -> None:
    commands = after(schedule(first_shard=7), SlotReady(1))
    assert commands == [Assign(1, Shard(7, 0, 12, 1, 2.0)), Assign(1, Shard(8, 12, 24, 1, 2.0))]


def test_few_runs_are_spread_before_any_is_known_to_be_quick() -> None:
    state = schedule(6, slots=4)
    state.begin()
    assigned = [state.handle(SlotReady(slot)) for slot in range(4)]
    one_run = [Shard(run, run, run + 1, 1, 2.0) for run in range(6)]
    assert assigned == [
        [Assign(0, one_run[0]), Assign(0, one_run[1])],
        [Assign(1, one_run[2]), Assign(1, one_run[3])],
        [Assign(2, one_run[4]), Assign(2, one_run[5])],
        [],
    ]


def test_runs_of_another_attempt_are_a_shard_of_their_own() -> None:
    state = Schedule([Stretch(0, 3, 1), Stretch(3, 5, 2), Stretch(8, 90, 1)], slots=1, max_attempts=3)
    assert after(state, SlotReady(0)) == [Assign(0, Shard(0, 0, 3, 1, 2.0)), Assign(0, Shard(1, 3, 5, 2, 2.0))]


def test_shards_are_sized_by_the_time_that_runs_took() -> None:
    """88 runs of 10 ms are 0.88 s; an eighth of it, for two workers, is 11 runs, with twice their time as the limit."""
    commands = after(schedule(), SlotReady(0), frame(0, 0, 0, 12), ShardEnded(0, 0))
    assert commands == [Assign(0, Shard(2, 24, 35, 1, pytest.approx(0.22)))]


@pytest.mark.parametrize(
    ("seconds_per_run", "runs", "limit_s"), [(1e-9, 976, 0.1), (1e-4, 500, 0.1), (0.5, 4, 4.0), (60.0, 1, 4.0)]
)
def test_a_shard_lasts_from_a_twentieth_of_a_second_to_two_seconds(
    seconds_per_run: float, runs: int, limit_s: float
) -> None:
    state = schedule(1000)
    commands = after(state, SlotReady(0), frame(0, 0, 0, 16, seconds_per_run=seconds_per_run), ShardEnded(0, 0))
    expected = Shard(2, 32, 32 + min(runs, 968), 1, pytest.approx(limit_s))
    assert commands == [Assign(0, expected)]


def test_with_many_workers_shards_and_frames_are_stretched() -> None:
    """A thousand are ten times as many as send frames at full pace, and 2.5 times as many as get shards at it."""
    state = schedule(10**6, slots=1000)
    first, _ = after(state, SlotReady(0))
    assert first == Assign(0, Shard(0, 0, 16, 1, 5.0, 1.0))
    state.handle(frame(0, 0, 0, 16, seconds_per_run=1.0))
    assert state.handle(ShardEnded(0, 0)) == [Assign(0, Shard(2, 32, 37, 1, 10.0, 1.0))]


def test_the_last_runs_are_spread_over_the_workers() -> None:
    state = schedule(8)
    commands = after(state, SlotReady(0), SlotReady(1), frame(0, 0, 0, 1, seconds_per_run=10.0), ShardEnded(0, 0))
    assert commands == [Assign(0, Shard(4, 4, 5, 1, 4.0))]


# What comes back


def test_a_frame_is_kept() -> None:
    assert after(schedule(), SlotReady(0), frame(0, 0, 0, 5)) == [Keep()]


def test_runs_that_a_worker_left_off_are_owed_again_before_all_others() -> None:
    events = SlotReady(0), frame(0, 0, 0, 5, seconds_per_run=0.1), ShardEnded(0, 0)
    assert after(schedule(), *events) == [Assign(0, Shard(2, 5, 12, 1, pytest.approx(2 * 95 * 0.1 / 8)))]


def test_an_invalid_run_is_owed_again_as_the_next_attempt_after_all_others() -> None:
    state = schedule(2, slots=1)
    commands = after(state, SlotReady(0), frame(0, 0, 0, 1, 0), ShardEnded(0, 0))
    assert commands == [Assign(0, Shard(2, 0, 1, 2, pytest.approx(0.1)))]
    assert not state.is_done


def test_an_invalid_run_without_an_attempt_left_is_settled() -> None:
    state = schedule(1, slots=1, max_attempts=1)
    assert after(state, SlotReady(0), frame(0, 0, 0, 1, 0)) == [Keep()]
    assert state.is_done


def test_a_frame_of_a_shard_that_is_not_out_is_not_kept() -> None:
    assert after(schedule(), SlotReady(0), frame(0, 99, 0, 5)) == []
    assert after(schedule(), SlotReady(0), SlotReady(1), frame(1, 0, 0, 5)) == []


def test_a_frame_that_comes_twice_is_kept_once() -> None:
    state = schedule(2, slots=1)
    after(state, SlotReady(0), frame(0, 0, 0, 1))
    assert state.handle(frame(0, 0, 0, 1)) == []
    assert not state.is_done


@pytest.mark.parametrize(
    ("first", "runs"), [(1, 1), (0, 13), (0, 0), (12, 1)], ids=["a gap", "too many", "none", "another shard's"]
)
def test_a_worker_that_sends_what_was_not_due_is_replaced(first: int, runs: int) -> None:
    cause = f"sent {runs} runs from {first} on where 0 was due"
    commands = after(schedule(), SlotReady(0), FrameArrived(0, 0, first, runs, 0.1))
    assert commands == [RecordLoss(0, 1, 0, cause), StartSlot(0)]


def test_a_worker_that_leaves_off_without_a_run_is_replaced() -> None:
    commands = after(schedule(), SlotReady(0), ShardEnded(0, 0))
    assert commands == [RecordLoss(0, 1, 0, "left off shard 0 without a run"), StartSlot(0)]


# Losses


def test_a_lost_worker_costs_the_run_it_was_in_and_no_other() -> None:
    """Run 3 has had its first attempt; what else the worker held is owed before all others, in order."""
    state = schedule(48)
    commands = after(state, SlotReady(0), frame(0, 0, 0, 3), SlotReady(1), SlotLost(0, "died"))
    assert commands == [RecordLoss(3, 1, 0, "died"), StartSlot(0)]
    limit_s = pytest.approx(2 * 45 * 0.01 / 8)
    assert state.handle(SlotReady(0)) == [Assign(0, Shard(4, 4, 6, 1, limit_s)), Assign(0, Shard(5, 6, 11, 1, limit_s))]


def test_the_runs_of_a_lost_worker_go_to_whoever_waits() -> None:
    state = schedule(4, slots=2)
    after(state, SlotReady(0), SlotReady(1), frame(1, 2, 2, 1), ShardEnded(1, 2))
    commands = state.handle(SlotLost(0, "died"))
    assert commands == [
        RecordLoss(0, 1, 0, "died"),
        StartSlot(0),
        Assign(1, Shard(4, 1, 2, 1, pytest.approx(0.1))),
    ]


def test_a_worker_lost_between_two_runs_costs_no_attempt() -> None:
    state = schedule(24, slots=1)
    assert after(state, SlotReady(0), frame(0, 0, 0, 6), SlotLost(0, "died")) == [StartSlot(0)]
    assert state.handle(SlotReady(0))[0] == Assign(0, Shard(2, 6, 11, 1, pytest.approx(0.1)))


def test_a_worker_lost_after_the_last_run_is_not_replaced() -> None:
    assert after(schedule(1, slots=1), SlotReady(0), frame(0, 0, 0, 1), SlotLost(0, "died")) == []


def test_a_worker_lost_before_it_was_ready_is_started_again() -> None:
    assert after(schedule(), SlotLost(1, "did not come up")) == [StartSlot(1)]


def test_a_run_that_always_takes_its_worker_along_is_settled_after_its_last_attempt() -> None:
    state = schedule(1, slots=1, max_attempts=2)
    assert after(state, SlotReady(0), SlotLost(0, "died")) == [RecordLoss(0, 1, 0, "died"), StartSlot(0)]
    assert state.handle(SlotReady(0)) == [Assign(0, Shard(1, 0, 1, 2, 2.0))]
    assert state.handle(SlotLost(0, "died")) == [RecordLoss(0, 2, 1, "died")]
    assert state.is_done


def test_workers_that_are_lost_again_and_again_end_the_campaign() -> None:
    state = schedule(slots=2)
    state.begin()
    most = LOSSES_IN_A_ROW * 2
    for loss in range(1, most):
        assert state.handle(SlotLost(loss % 2, "died")) == [StartSlot(loss % 2)]
    assert state.handle(SlotLost(0, "died")) == [GiveUp(f"{most} workers lost in a row, the last because it died")]


def test_a_frame_in_between_begins_the_count_of_losses_anew() -> None:
    state = schedule(slots=1)
    state.begin()
    for _ in range(3):
        for _ in range(LOSSES_IN_A_ROW - 1):
            assert GiveUp not in map(type, state.handle(SlotLost(0, "died")))
        [first, _] = state.handle(SlotReady(0))
        assert isinstance(first, Assign)
        state.handle(frame(0, first.shard.id, first.shard.first, 1))


# Against workers that do as they like


@dataclass
class Worker:
    """What one slot has been told and not yet done."""

    is_up: bool = False
    queue: deque[tuple[Shard, int]] = field(default_factory=deque)  # shard and the position it is at
    sent: list[FrameArrived] = field(default_factory=list)


class Cluster:
    """Carries out commands, and checks each against what it knows; its log is all that outlives the driver."""

    def __init__(
        self, runs: int, slots: int, max_attempts: int, chance: random.Random, *, repeats: bool = True
    ) -> None:
        self.runs, self.slots, self.max_attempts, self.chance = runs, slots, max_attempts, chance
        self.repeats = repeats
        self.log: dict[int, list[bool]] = {position: [] for position in range(runs)}  # validity of each attempt
        self.next_shard = 0
        self.gave_up = False
        self.restart()

    def restart(self) -> None:
        """Begin a session with what the log lacks, as after the driver was killed."""
        owed = [Stretch(p, p + 1, len(self.log[p]) + 1) for p in range(self.runs) if not self.is_settled(p)]
        self.workers: dict[int, Worker] = {}
        self.schedule = Schedule(
            merged(owed), slots=self.slots, max_attempts=self.max_attempts, first_shard=self.next_shard
        )
        commands = self.schedule.begin()
        assert len(commands) == min(self.slots, len(owed))
        self.carry_out(commands, None)

    def is_settled(self, position: int) -> bool:
        attempts = self.log[position]
        return True in attempts or len(attempts) == self.max_attempts

    def step(self) -> None:
        slot = self.chance.choice(sorted(self.workers))
        event = self.chance.choice(list(self.possible(slot, self.workers[slot])))
        if isinstance(event, SlotLost):
            self.workers[slot] = Worker()
        self.carry_out(self.schedule.handle(event), event)
        assert self.schedule.is_done == all(map(self.is_settled, range(self.runs)))

    def possible(self, slot: int, worker: Worker) -> Iterator[Event]:
        yield SlotLost(slot, "died")
        if not worker.is_up:
            yield SlotReady(slot)
            yield SlotReady(slot)
            return
        if worker.sent and self.repeats:
            yield self.chance.choice(worker.sent)  # once more
        if worker.queue:
            shard, position = worker.queue[0]
            if position > shard.first:
                yield ShardEnded(slot, shard.id)
            if position < shard.stop:
                runs = self.chance.randint(1, shard.stop - position)
                invalid = tuple(p for p in range(position, position + runs) if self.chance.random() < 0.2)
                seconds = self.chance.choice([0.0, 1e-4, 0.1, 30.0]) * runs
                yield FrameArrived(slot, shard.id, position, runs, seconds, invalid)
                yield FrameArrived(slot, shard.id, position, runs, seconds)

    def carry_out(self, commands: list[Command], event: Event | None) -> None:
        worker = None if event is None else self.workers[event.slot]
        if isinstance(event, SlotReady) and worker:
            worker.is_up = True
        if isinstance(event, ShardEnded) and worker:
            worker.queue.popleft()
        for command in commands:
            match command:
                case Keep():
                    assert isinstance(event, FrameArrived)
                    assert worker
                    self.keep(event, worker)
                case RecordLoss(position, attempt):
                    self.record(position, attempt, is_valid=False)
                case Assign(slot, shard):
                    self.assign(slot, shard)
                case StartSlot(slot):
                    self.workers[slot] = Worker()
                case GiveUp():
                    self.gave_up = True

    def keep(self, event: FrameArrived, worker: Worker) -> None:
        shard, position = worker.queue[0]
        assert (shard.id, position) == (event.shard, event.first)
        worker.queue[0] = (shard, position + event.runs)
        worker.sent.append(event)
        for run in range(event.first, event.first + event.runs):
            self.record(run, shard.attempt, is_valid=run not in event.invalid)

    def record(self, position: int, attempt: int, *, is_valid: bool) -> None:
        assert not self.is_settled(position)
        self.log[position].append(is_valid)
        assert len(self.log[position]) == attempt

    def assign(self, slot: int, shard: Shard) -> None:
        assert self.workers[slot].is_up
        assert shard.id >= self.next_shard
        assert shard.seconds > 0
        self.next_shard = shard.id + 1
        out = [range(at, other.stop) for worker in self.workers.values() for other, at in worker.queue]
        assert not any(position in stretch for stretch in out for position in range(shard.first, shard.stop))
        assert all(len(self.log[position]) == shard.attempt - 1 for position in range(shard.first, shard.stop))
        self.workers[slot].queue.append((shard, shard.first))
        assert len(self.workers[slot].queue) <= SHARDS_OUT


def merged(owed: list[Stretch]) -> list[Stretch]:
    stretches: list[Stretch] = []
    for stretch in owed:
        if stretches and stretches[-1].stop == stretch.first and stretches[-1].attempt == stretch.attempt:
            stretches[-1] = stretches[-1]._replace(stop=stretch.stop)
        else:
            stretches.append(stretch)
    return stretches


@settings(max_examples=150, deadline=None)
@given(
    runs=st.integers(0, 60),
    slots=st.integers(1, 8),
    max_attempts=st.integers(1, 3),
    restarts=st.integers(0, 2),
    seed=st.integers(0, 2**32),
)
def test_every_run_is_settled_exactly_once_in_whatever_order_things_happen(
    runs: int, slots: int, max_attempts: int, restarts: int, seed: int
) -> None:
    """Workers come up late, send a little or much, leave off early, repeat themselves, and are lost at any time."""
    chance = random.Random(seed)
    cluster = Cluster(runs, slots, max_attempts, chance)
    for _ in range(20_000):
        if cluster.schedule.is_done:
            break
        if cluster.gave_up or (restarts and chance.random() < 0.02):
            restarts -= not cluster.gave_up
            cluster.gave_up = False
            cluster.restart()
        else:
            cluster.step()
    assert cluster.schedule.is_done
    assert all(map(cluster.is_settled, range(runs)))


@settings(max_examples=150, deadline=None)
@given(
    runs=st.integers(1, 6),
    slots=st.integers(1, 3),
    max_attempts=st.integers(1, 3),
    chance=st.randoms(use_true_random=False),
)
def test_a_session_ends_whatever_its_workers_do(
    runs: int, slots: int, max_attempts: int, chance: random.Random
) -> None:
    """Done or given up: attempts are bounded, and so are the losses between two of them."""
    cluster = Cluster(runs, slots, max_attempts, chance, repeats=False)
    attempts = runs * max_attempts
    losses = (attempts + 1) * LOSSES_IN_A_ROW * slots
    steps = 0
    while not (cluster.schedule.is_done or cluster.gave_up):
        cluster.step()
        steps += 1
    starts = losses + slots
    assert steps <= losses + starts + 2 * attempts


def execute(state: Schedule, *, deadly: frozenset[int] = frozenset()) -> tuple[list[int], list[RecordLoss], set[int]]:
    """Let well-behaved workers carry out everything, of which some runs take their worker along.

    Return the runs that were scored, the losses, and the slots that were used.
    """
    scored: list[int] = []
    losses: list[RecordLoss] = []
    used: set[int] = set()
    pending: deque[Event] = deque()

    def carry_out(commands: list[Command]) -> None:
        for command in commands:
            match command:
                case StartSlot(slot):
                    pending.append(SlotReady(slot))
                case RecordLoss():
                    losses.append(command)
                case Assign(slot, shard):
                    pending.extend(work(slot, shard, deadly))

    def work(slot: int, shard: Shard, deadly: frozenset[int]) -> Iterator[Event]:
        for position in range(shard.first, shard.stop):
            if position in deadly:
                yield SlotLost(slot, "was killed by signal 9")
                return
            yield frame(slot, shard.id, position, 1)
        yield ShardEnded(slot, shard.id)

    carry_out(state.begin())
    while pending:
        event = pending.popleft()
        used.add(event.slot)
        if isinstance(event, SlotLost):
            kept = [other for other in pending if other.slot != event.slot]
            pending.clear()
            pending.extend(kept)
        commands = state.handle(event)
        if Keep() in commands:
            assert isinstance(event, FrameArrived)
            scored.append(event.first)
        carry_out(commands)
    return scored, losses, used


def test_a_run_that_kills_its_worker_touches_no_other_run() -> None:
    """20 runs, 2 workers, one retry: 19 are scored, and the deadly one is lost twice."""
    state = schedule(20, max_attempts=2)
    scored, losses, _ = execute(state, deadly=frozenset({13}))
    assert sorted(scored) == [run for run in range(20) if run != 13]
    assert [(loss.position, loss.attempt) for loss in losses] == [(13, 1), (13, 2)]
    assert state.is_done


def test_a_run_that_sent_its_record_before_its_worker_died_is_not_run_again() -> None:
    state = schedule(2, slots=1)
    assert after(state, SlotReady(0), frame(0, 0, 0, 1), SlotLost(0, "died before it answered")) == [StartSlot(0)]
    assert state.handle(SlotReady(0)) == [Assign(0, Shard(2, 1, 2, 1, pytest.approx(0.1)))]


@pytest.mark.parametrize("workers", [1, 3, 4, 16])
def test_ten_runs_are_ten_runs_for_any_number_of_workers(workers: int) -> None:
    scored, losses, used = execute(schedule(10, slots=workers))
    assert sorted(scored) == list(range(10))
    assert losses == []
    assert used == set(range(min(workers, 10)))


def test_the_same_events_give_the_same_commands() -> None:
    events: list[Event] = [SlotReady(0), frame(0, 0, 0, 3), SlotReady(1), SlotLost(0, "died"), SlotReady(0)]
    one, other = schedule(), schedule()
    assert one.begin() == other.begin()
    assert [one.handle(event) for event in events] == [other.handle(event) for event in events]
