"""Predicts how a campaign goes on machines that are not here: a driver, a network and any number of workers as a
discrete-event model, fed with measured costs, that asks the very schedule of runner/schedule.py what to do.

Time is simulated, so a day on ten thousand workers takes seconds; nothing is started and nothing is written. The same
seed gives the same prediction. Knows nothing of Ray but what its costs say.

How the model goes:
- The driver does one thing at a time: it looks at every worker, takes what has arrived (from each worker one thing,
  as runner/dispatch.py does), and pays for frames, records, shards and starts by the piece. Between two looks it waits.
- A worker goes through its shards as workers/supervisor.py does: runs one after another, a frame by time or by size,
  and leaves off when the shard's time is used up.
- Whatever a worker sends shares one line into the driver, a frame after the other.
- Workers are lost one by one, and with the node they are on; the driver hears of it later, and starts others.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from random import Random
from typing import Literal

from passhat.runner.schedule import (
    Assign,
    Command,
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
from passhat.workers.frames import FIRST_FLUSH_S, FLUSH_BYTES
from passhat.workers.order import Shard

_HOUR_S = 3600.0
_SYNC_S = 0.1  # between two syncs of the log

Shape = Literal["constant", "lognormal", "heavy tail"]
_SIGMA = 1.0  # of the lognormal: one run in forty takes more than seven times as long as the median
_TAIL, _LONGEST = 1.5, 100.0  # Pareto: without a variance, but for a limit of so many times the mean


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that things take, as measured: of the driver by the piece, and of a worker around its runs."""

    look: float = 0.0  # of the driver, to ask what has arrived
    look_at_worker: float = 0.0  # and more for each worker it hears of
    frame: float = 0.0
    record: float = 0.0
    assign: float = 0.0
    shard_end: float = 0.0
    start: float = 0.0  # to ask for a worker
    sync: float = 0.0  # of the log
    run: float = 0.0  # of a worker, around each run
    shard: float = 0.0  # of a worker, between two shards


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines, the line to them, and how often they break."""

    workers: int
    latency_s: float = 0.0
    bytes_per_s: float = inf  # of the driver's line
    record_bytes: int = 110
    start_s: float = 0.0  # until a worker that is placed is up
    starts_per_s: float = inf  # how many workers are placed a second
    workers_per_node: int = 64
    losses_per_hour: float = 0.0  # of a worker
    loss_noticed_s: float = 0.01
    node_losses_per_hour: float = 0.0  # of a node
    node_loss_noticed_s: float = 64.0
    node_returns_s: float = 120.0
    invalid_share: float = 0.0  # of the attempts


@dataclass(frozen=True, slots=True)
class Prediction:
    """What became of a campaign. Shares of the workers' time, from the first command on, add up to one."""

    workers: int
    planned: int
    scored: int
    invalid: int  # settled without a valid attempt
    executions: int  # begun by a worker, whatever became of them
    lost_attempts: int  # in which a worker was lost
    lost_workers: int
    frames: int
    shards: int
    seconds: float
    first_record_s: float | None
    driver_s: float  # of the driver, for frames, records, shards, starts and syncs
    looking_s: float  # of the driver, to ask what has arrived
    utilisation: float  # share of the workers' time that went into runs which were scored
    overhead: float  # around runs and between shards
    wasted: float  # in attempts that gave no score
    down: float  # before a worker was up, and from its loss on
    starved: float  # without a shard while there was one to give
    tail: float  # without a shard when there was none left
    gave_up: str | None

    @property
    def driver_share(self) -> float:
        return self.driver_s / self.seconds if self.seconds else 0.0

    @property
    def looking_share(self) -> float:
        return self.looking_s / self.seconds if self.seconds else 0.0

    @property
    def driver_limit(self) -> float:
        """Records a second that leave the driver no time for anything else, in frames and shards like these."""
        return self.planned / self.driver_s if self.driver_s else inf


def episode_seconds(shape: Shape, mean_s: float, runs: int, seed: int) -> list[float]:
    """Draw how long each run takes."""
    random = Random(f"{shape} {seed}")
    match shape:
        case "constant":
            return [mean_s] * runs
        case "lognormal":
            return [mean_s * random.lognormvariate(-(_SIGMA**2) / 2, _SIGMA) for _ in range(runs)]
        case "heavy tail":
            least_s = mean_s * (_TAIL - 1) / _TAIL
            return [min(least_s * random.paretovariate(_TAIL), _LONGEST * mean_s) for _ in range(runs)]


def simulate(
    episode_s: Sequence[float], cluster: Cluster, costs: Costs = Costs(), *, max_attempts: int = 3, seed: int = 0
) -> Prediction:
    """Carry out a campaign whose runs take these times, position by position."""
    return _Driver(episode_s, cluster, costs, max_attempts, seed).run()


@dataclass(slots=True)
class _Ledger:
    """Where the workers' time went."""

    busy_s: float = 0.0
    useful_s: float = 0.0
    wasted_s: float = 0.0
    down_s: float = 0.0
    starved_s: float = 0.0
    tail_s: float = 0.0
    dry_at: float = inf  # when the first worker ended a shard and there was no other

    def idle(self, since: float, until: float) -> None:
        tail_s = max(0.0, until - max(since, self.dry_at))
        self.tail_s += tail_s
        self.starved_s += until - since - tail_s


@dataclass(slots=True)
class _Worker:
    """What is in a slot. Positions are those of the plan."""

    life: int = 0  # which worker of this slot it is, the lost ones counted too
    is_there: bool = False  # starting or up
    is_up: bool = False
    is_busy: bool = False
    since: float = 0.0  # when it began to be down, idle or busy, as it is
    queue: deque[tuple[float, Shard]] = field(default_factory=deque)  # with the time at which it arrives
    shard: Shard | None = None  # at work on it, or about to be
    stop: int = 0  # where it leaves off the shard
    sent: int = 0  # where the latest frame ended
    next: int = 0  # where the next frame ends
    zero_at: float = 0.0  # when position 0 would have begun for the shard to be where it is
    batch_since: float = 0.0
    flush_s: float = FIRST_FLUSH_S


_Arrival = SlotReady | FrameArrived | ShardEnded | SlotLost
_Happening = Callable[[float, int, int], None]  # when; to which slot or node; in which life


class _Machines:
    """Workers, nodes and network: are told what to do, and say what has arrived by when."""

    def __init__(
        self, episode_s: Sequence[float], cluster: Cluster, costs: Costs, random: Random, ledger: _Ledger
    ) -> None:
        self.executions = 0
        self.lost_workers = 0
        self._cluster, self._costs, self._random, self._ledger = cluster, costs, random, ledger
        self._ends = [0.0, *accumulate(seconds + costs.run for seconds in episode_s)]  # of all runs in a row
        self._most = -(-FLUSH_BYTES // cluster.record_bytes)  # records in a frame
        self._workers = [_Worker() for _ in range(cluster.workers)]
        self._nodes_up_at = [0.0] * -(-cluster.workers // cluster.workers_per_node)
        self._placed_at = 0.0
        self._events: list[tuple[float, int, _Happening, int, int]] = []
        self._event_count = 0
        self._line: deque[tuple[float, _Arrival]] = deque()
        self._line_free_at = 0.0
        self._inbox: dict[int, deque[_Arrival]] = {}
        for node in range(len(self._nodes_up_at)):
            self._plan_node_loss(0.0, node)

    def start(self, slot: int, now: float) -> None:
        """Start the worker of a slot, in place of the one it had."""
        before, cluster = self._workers[slot], self._cluster
        self._leave(before, now)
        self._workers[slot] = _Worker(before.life + 1, is_there=True, since=now)
        self._placed_at = max(now, self._placed_at) + 1 / cluster.starts_per_s
        begun = max(self._placed_at, self._nodes_up_at[slot // cluster.workers_per_node])
        self._plan(begun + cluster.start_s, self._come_up, slot)
        if cluster.losses_per_hour:
            self._plan(begun + self._random.expovariate(cluster.losses_per_hour / _HOUR_S), self._lose_one, slot)

    def assign(self, slot: int, shard: Shard, now: float) -> None:
        """Queue a shard for the worker of a slot."""
        worker = self._workers[slot]
        worker.queue.append((now + self._cluster.latency_s, shard))
        if worker.is_up and worker.shard is None:
            self._take_up(slot, worker, now)

    def wait(self, now: float) -> float:
        """Return when there is something to take: now, or later."""
        self._go_on(now)
        while not self._inbox:
            now = min(queue[0][0] for queue in (self._events, self._line) if queue)
            self._go_on(now)
        return now

    def take(self) -> list[_Arrival]:
        """Return what has arrived, from each worker the first thing."""
        taken = [arrived.popleft() for arrived in self._inbox.values()]
        self._inbox = {slot: arrived for slot, arrived in self._inbox.items() if arrived}
        return taken

    def spent_s(self, first: int, stop: int) -> float:
        """Return how long these runs take, without what is around them."""
        return self._ends[stop] - self._ends[first] - (stop - first) * self._costs.run

    def close(self, now: float) -> None:
        for worker in self._workers:
            self._leave(worker, now)

    def _go_on(self, now: float) -> None:
        """Let happen what happens until now."""
        events, line = self._events, self._line
        while events and events[0][0] <= now:
            at, _, happen, place, life = heappop(events)
            happen(at, place, life)
        while line and line[0][0] <= now:
            arrival = line.popleft()[1]
            self._inbox.setdefault(arrival.slot, deque()).append(arrival)

    def _plan(self, at: float, happen: _Happening, slot: int) -> None:
        self._push(at, happen, slot, self._workers[slot].life)

    def _push(self, at: float, happen: _Happening, place: int, life: int) -> None:
        self._event_count += 1
        heappush(self._events, (at, self._event_count, happen, place, life))

    def _send(self, at: float, arrival: _Arrival, size: int = 0) -> None:
        self._line_free_at = max(self._line_free_at, at + self._cluster.latency_s) + size / self._cluster.bytes_per_s
        self._line.append((self._line_free_at, arrival))

    # A worker

    def _come_up(self, at: float, slot: int, life: int) -> None:
        worker = self._workers[slot]
        if worker.life == life:
            self._leave(worker, at)
            worker.is_up = True
            self._send(at, SlotReady(slot))

    def _take_up(self, slot: int, worker: _Worker, now: float) -> None:
        """Take the next shard up as soon as it has arrived."""
        arrives, worker.shard = worker.queue.popleft()
        self._plan(max(now, arrives) + self._costs.shard, self._begin, slot)

    def _begin(self, at: float, slot: int, life: int) -> None:
        worker = self._workers[slot]
        if worker.life != life or worker.shard is None:
            return
        self._leave(worker, at - self._costs.shard)
        shard = worker.shard
        worker.is_busy = True
        worker.zero_at = at - self._ends[shard.first]
        over = at + shard.seconds - worker.zero_at
        worker.stop = bisect_right(self._ends, over, shard.first + 1, shard.stop)  # after one run at least
        worker.sent, worker.batch_since, worker.flush_s = shard.first, at, FIRST_FLUSH_S
        self._work(slot, worker)

    def _work(self, slot: int, worker: _Worker) -> None:
        """Go on to the next frame: when it is due, or as soon after as there is a record; sooner when it is full."""
        due = worker.batch_since + worker.flush_s
        done = bisect_right(self._ends, due - worker.zero_at, worker.sent + 1, worker.stop + 1) - 1
        worker.next = min(max(done, worker.sent + 1), worker.stop, worker.sent + self._most)
        is_early = worker.next < done or worker.next == worker.stop
        at = self._ends[worker.next] + worker.zero_at
        self._plan(at if is_early else max(at, due), self._send_frame, slot)

    def _send_frame(self, at: float, slot: int, life: int) -> None:
        worker = self._workers[slot]
        if worker.life != life or worker.shard is None:
            return
        first, runs, shard = worker.sent, worker.next - worker.sent, worker.shard.id
        frame = FrameArrived(slot, shard, first, runs, at - worker.batch_since, self._invalid(first, worker.next))
        self._send(at, frame, runs * self._cluster.record_bytes)
        self.executions += runs
        worker.sent, worker.batch_since, worker.flush_s = worker.next, at, worker.shard.frame_s
        if worker.sent < worker.stop:
            self._work(slot, worker)
            return
        self._send(at, ShardEnded(slot, shard))
        self._leave(worker, at)
        worker.is_busy, worker.shard = False, None
        if worker.queue:
            self._take_up(slot, worker, at)

    def _invalid(self, first: int, stop: int) -> tuple[int, ...]:
        share = self._cluster.invalid_share
        return tuple(p for p in range(first, stop) if self._random.random() < share) if share else ()

    def _leave(self, worker: _Worker, at: float) -> None:
        """Write down the time that a worker has been what it was until now."""
        if worker.is_busy:
            self._ledger.busy_s += at - worker.since
        elif worker.is_up:
            self._ledger.idle(worker.since, at)
        else:
            self._ledger.down_s += at - worker.since
        worker.since = at

    # Losses

    def _lose_one(self, at: float, slot: int, life: int) -> None:
        if self._workers[slot].life == life:
            self._lose(at, slot, self._cluster.loss_noticed_s)

    def _lose_node(self, at: float, node: int, _: int) -> None:
        size, workers = self._cluster.workers_per_node, self._cluster.workers
        self._nodes_up_at[node] = at + self._cluster.node_returns_s
        for slot in range(node * size, min((node + 1) * size, workers)):
            if self._workers[slot].is_there:
                self._lose(at, slot, self._cluster.node_loss_noticed_s)
        self._plan_node_loss(self._nodes_up_at[node], node)

    def _plan_node_loss(self, after: float, node: int) -> None:
        if self._cluster.node_losses_per_hour:
            at = after + self._random.expovariate(self._cluster.node_losses_per_hour / _HOUR_S)
            self._push(at, self._lose_node, node, 0)

    def _lose(self, at: float, slot: int, noticed_s: float) -> None:
        worker = self._workers[slot]
        if worker.is_busy:
            into = at - worker.zero_at
            done = bisect_right(self._ends, into, worker.sent + 1, worker.stop + 1) - 1
            self.executions += min(done + 1, worker.stop) - worker.sent
            self._ledger.wasted_s += into - self._ends[worker.sent]
        self._leave(worker, at)
        self.lost_workers += 1
        self._workers[slot] = _Worker(worker.life + 1, since=at)
        self._plan(at + noticed_s, self._notice, slot)

    def _notice(self, at: float, slot: int, life: int) -> None:
        if self._workers[slot].life == life:
            self._send(at, SlotLost(slot, "was lost"))


class _Driver:
    """Asks the schedule, one event after the other, and pays for it with time."""

    def __init__(
        self, episode_s: Sequence[float], cluster: Cluster, costs: Costs, max_attempts: int, seed: int
    ) -> None:
        self._cluster, self._costs, self._max_attempts = cluster, costs, max_attempts
        self._planned = len(episode_s)
        owed = [Stretch(0, self._planned, 1)] if self._planned else []
        self._schedule = Schedule(owed, slots=cluster.workers, max_attempts=max_attempts)
        self._ledger = _Ledger()
        self._machines = _Machines(episode_s, cluster, costs, Random(seed), self._ledger)
        self._now = 0.0
        self._busy_s = 0.0
        self._looking_s = 0.0
        self._settled = bytearray(self._planned)
        self._attempts: dict[int, int] = {}  # of each shard that was handed out
        self._invalid = self._lost_attempts = self._frames = self._shards = 0
        self._first_record_s: float | None = None
        self._gave_up: str | None = None

    def run(self) -> Prediction:
        costs, machines = self._costs, self._machines
        look_s = costs.look + costs.look_at_worker * min(self._cluster.workers, self._planned)
        synced_at = 0.0
        self._carry_out(self._schedule.begin())
        while not self._schedule.is_done and self._gave_up is None:
            self._now = machines.wait(self._now)
            self._now += look_s
            self._looking_s += look_s
            for arrival in machines.take():
                self._handle(arrival)
            if self._now - synced_at >= _SYNC_S:
                self._spend(costs.sync)
                synced_at = self._now
        machines.close(self._now)
        return self._predict()

    def _spend(self, seconds: float) -> None:
        self._now += seconds
        self._busy_s += seconds

    def _handle(self, arrival: _Arrival) -> None:
        costs = self._costs
        if isinstance(arrival, FrameArrived):
            self._spend(costs.frame + costs.record * arrival.runs)
            commands = self._schedule.handle(arrival)
            if Keep() in commands:
                self._keep(arrival)
        else:
            self._spend(costs.shard_end)
            commands = self._schedule.handle(arrival)
            if isinstance(arrival, ShardEnded) and not commands:
                self._ledger.dry_at = min(self._ledger.dry_at, self._now)
        self._carry_out(commands)

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Assign(slot, shard):
                    self._spend(self._costs.assign)
                    self._shards += 1
                    self._attempts[shard.id] = shard.attempt
                    self._machines.assign(slot, shard, self._now)
                case StartSlot(slot):
                    self._spend(self._costs.start)
                    self._machines.start(slot, self._now)
                case RecordLoss(position, attempt):
                    self._lost_attempts += 1
                    if attempt == self._max_attempts:
                        self._settle(position, position + 1)
                        self._invalid += 1
                case GiveUp(cause):
                    self._gave_up = cause

    def _keep(self, frame: FrameArrived) -> None:
        self._frames += 1
        self._first_record_s = self._now if self._first_record_s is None else self._first_record_s
        self._settle(frame.first, frame.first + frame.runs)
        invalid_s = sum(self._machines.spent_s(position, position + 1) for position in frame.invalid)
        self._ledger.wasted_s += invalid_s
        self._ledger.useful_s += self._machines.spent_s(frame.first, frame.first + frame.runs) - invalid_s
        if self._attempts[frame.shard] == self._max_attempts:
            self._invalid += len(frame.invalid)
        else:
            for position in frame.invalid:
                self._settled[position] = False

    def _settle(self, first: int, stop: int) -> None:
        """Mark runs as settled, which each of them is once."""
        assert self._settled.find(True, first, stop) == -1
        self._settled[first:stop] = b"\1" * (stop - first)

    def _predict(self) -> Prediction:
        ledger, settled = self._ledger, self._settled.count(True)
        total_s = self._cluster.workers * self._now or 1.0
        return Prediction(
            workers=self._cluster.workers,
            planned=self._planned,
            scored=settled - self._invalid,
            invalid=self._invalid,
            executions=self._machines.executions,
            lost_attempts=self._lost_attempts,
            lost_workers=self._machines.lost_workers,
            frames=self._frames,
            shards=self._shards,
            seconds=self._now,
            first_record_s=self._first_record_s,
            driver_s=self._busy_s,
            looking_s=self._looking_s,
            utilisation=ledger.useful_s / total_s,
            overhead=(ledger.busy_s - ledger.useful_s - ledger.wasted_s) / total_s,
            wasted=ledger.wasted_s / total_s,
            down=ledger.down_s / total_s,
            starved=ledger.starved_s / total_s,
            tail=ledger.tail_s / total_s,
            gave_up=self._gave_up,
        )
