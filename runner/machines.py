"""Workers, nodes and the line to the driver, as a discrete-event model: what runner/simulation.py asks instead of a
cluster. Is told what the schedule commands, and says what has arrived by when. Decides nothing, and never looks ahead.

A worker goes through its shards as workers/supervisor.py does: runs one after another, a frame by time or by size, and
leaves off when the shard's time is used up. Whatever is sent shares one line into the driver, a thing after the other.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from random import Random

from passhat.runner.schedule import FrameArrived, ShardEnded, SlotLost, SlotReady
from passhat.workers.frames import FIRST_FLUSH_S, FLUSH_BYTES
from passhat.workers.order import Shard

_HOUR_S = 3600.0


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


@dataclass(slots=True)
class Ledger:
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


Arrival = SlotReady | FrameArrived | ShardEnded | SlotLost
_Happening = Callable[[float, int, int], None]  # when; to which slot or node; in which life


class Machines:
    """Workers, nodes and network: are told what to do, and say what has arrived by when."""

    def __init__(
        self, episode_s: Sequence[float], cluster: Cluster, costs: Costs, random: Random, ledger: Ledger
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
        self._line: deque[tuple[float, Arrival]] = deque()
        self._line_free_at = 0.0
        self._inbox: dict[int, deque[Arrival]] = {}
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

    def take(self) -> list[Arrival]:
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

    def _send(self, at: float, arrival: Arrival, size: int = 0) -> None:
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
