"""Decides which worker does which stretch of the plan, and what to do when one is lost.

A pure state machine: events go in, commands come out. It has no clock, starts nothing, and has never heard of Ray;
time reaches it as the seconds that frames say their runs took.

The rules:
- Runs are owed from the start and are settled by a frame, exactly once. A frame of a shard that is not out, or of runs
  that are settled already, is not kept; a worker whose frame does not begin where its last one ended is replaced.
- A shard is sized by time, not by count, and a worker leaves off when the time is used up, after one run at least:
  what it did not reach is owed again. Two shards are out for each worker, so that it never waits.
- The driver takes in so many shards and frames a second: with many workers both are stretched as their number grows.
- An invalid run is owed again, as the next attempt, until the declared number of attempts is used up.
- When a worker is lost, the run it was in has had an attempt; all others it held are owed as before.
- Workers that are lost again and again without a single frame in between end the campaign.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from passhat.workers.frames import FLUSH_S
from passhat.workers.order import Shard

SHARDS_OUT = 2  # per worker
FIRST_RUNS = 16
SHORTEST_S, LONGEST_S = 0.05, 2.0
STRETCH_FRAMES_FROM, STRETCH_SHARDS_FROM = 100, 400  # workers; long shards wait behind long runs, late frames nowhere
SHARDS_LEFT = 4  # aim at so many shards for each worker until the end
MEMORY = 0.7  # weight of what was known about a run's duration against the latest frame
LOSSES_IN_A_ROW = 5


class Stretch(NamedTuple):
    """Positions [first, stop) of the plan that are owed as this attempt."""

    first: int
    stop: int
    attempt: int


@dataclass(frozen=True, slots=True)
class SlotReady:
    """A worker has come up."""

    slot: int


@dataclass(frozen=True, slots=True)
class FrameArrived:
    """A worker sent the records of `runs` runs from position `first` on; `invalid` lists those to be tried again."""

    slot: int
    shard: int
    first: int
    runs: int
    seconds: float
    invalid: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardEnded:
    """A worker has left off a shard."""

    slot: int
    shard: int


@dataclass(frozen=True, slots=True)
class SlotLost:
    """A worker is gone, with everything it had not sent."""

    slot: int
    cause: str


Event = SlotReady | FrameArrived | ShardEnded | SlotLost


@dataclass(frozen=True, slots=True)
class Assign:
    """Send a shard to a worker."""

    slot: int
    shard: Shard


@dataclass(frozen=True, slots=True)
class Keep:
    """Write the frame that this event came with to the log."""


@dataclass(frozen=True, slots=True)
class RecordLoss:
    """Write down that this attempt at a run was lost with its worker."""

    position: int
    attempt: int
    shard: int
    cause: str


@dataclass(frozen=True, slots=True)
class StartSlot:
    """Start a worker in this slot, in place of the one it had, if any."""

    slot: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the campaign as incomplete."""

    cause: str


Command = Assign | Keep | RecordLoss | StartSlot | GiveUp


@dataclass(slots=True)
class _Out:
    """A shard that a worker has, and how far it has come."""

    shard: Shard
    next: int


@dataclass(slots=True)
class _Slot:
    ready: bool = False
    out: deque[_Out] = field(default_factory=deque)


class Schedule:
    """The state of one campaign's execution."""

    def __init__(self, owed: Iterable[Stretch], *, slots: int, max_attempts: int, first_shard: int = 0) -> None:
        """`owed` is what the plan has and the log has not; `max_attempts` counts the first attempt too."""
        self._owed = deque(owed)
        self._slots = [_Slot() for _ in range(slots)]
        self._max_attempts = max_attempts
        self._next_shard = first_shard
        self._frame_s = FLUSH_S * max(1.0, slots / STRETCH_FRAMES_FROM)
        self._stretch = max(1.0, slots / STRETCH_SHARDS_FROM)
        self._open: list[tuple[int, int]] = []  # heap of (shards held, slot): who can take a shard; some are outdated
        self._seconds_per_run: float | None = None
        self._losses = 0
        self._unsettled = sum(stop - first for first, stop, _ in self._owed)

    @property
    def is_done(self) -> bool:
        """Whether every run is settled."""
        return self._unsettled == 0

    def begin(self) -> list[Command]:
        """Return the commands that start the workers; no more of them than there are runs."""
        return [StartSlot(slot) for slot in range(min(len(self._slots), self._unsettled))]

    def handle(self, event: Event) -> list[Command]:
        """Take in an event and return what to do, in order."""
        match event:
            case SlotReady(slot):
                self._slots[slot].ready = True
                return self._fill(slot)
            case FrameArrived():
                return self._take_frame(event)
            case ShardEnded(slot, shard):
                return self._end_shard(slot, shard)
            case SlotLost(slot, cause):
                return self._replace(slot, cause)

    def _take_frame(self, event: FrameArrived) -> list[Command]:
        out = self._slots[event.slot].out
        current = next((o for o in out if o.shard.id == event.shard), None)
        if current is None or current.shard.first <= event.first < current.next:
            return []
        if event.first != current.next or not 0 < event.runs <= current.shard.stop - current.next:
            return self._replace(
                event.slot, f"sent {event.runs} runs from {event.first} on where {current.next} was due"
            )
        current.next += event.runs
        self._losses = 0
        self._learn(event.seconds / event.runs)
        self._settle(event.runs, event.invalid, current.shard.attempt)
        return [Keep(), *self._fill()]

    def _learn(self, seconds_per_run: float) -> None:
        known = self._seconds_per_run
        self._seconds_per_run = seconds_per_run if known is None else MEMORY * known + (1 - MEMORY) * seconds_per_run

    def _settle(self, runs: int, invalid: Iterable[int], attempt: int) -> None:
        self._unsettled -= runs
        if attempt < self._max_attempts:
            for position in invalid:
                self._owed.append(Stretch(position, position + 1, attempt + 1))
                self._unsettled += 1

    def _end_shard(self, slot: int, shard: int) -> list[Command]:
        out = self._slots[slot].out
        ended = next((o for o in out if o.shard.id == shard), None)
        if ended is None:
            return []
        if ended.next == ended.shard.first:
            return self._replace(slot, f"left off shard {shard} without a run")
        out.remove(ended)
        self._owe_rest(ended)
        return self._fill(slot)

    def _owe_rest(self, out: _Out) -> None:
        if out.next < out.shard.stop:
            self._owed.appendleft(Stretch(out.next, out.shard.stop, out.shard.attempt))

    def _replace(self, slot: int, cause: str) -> list[Command]:
        lost = self._slots[slot]
        self._slots[slot] = _Slot()
        commands: list[Command] = []
        running = lost.out[0] if lost.out else None
        if running is not None and running.next < running.shard.stop:
            commands.append(RecordLoss(running.next, running.shard.attempt, running.shard.id, cause))
            self._settle(1, [running.next], running.shard.attempt)
            running.next += 1
        for out in reversed(lost.out):
            self._owe_rest(out)
        self._losses += 1
        if self._losses >= LOSSES_IN_A_ROW * len(self._slots):
            return [*commands, GiveUp(f"{self._losses} workers lost in a row, the last because it {cause}")]
        if not self.is_done:
            commands.append(StartSlot(slot))
        return [*commands, *self._fill()]

    def _fill(self, *changed: int) -> list[Command]:
        """Hand out shards, first to those with the fewest, so that the last ones spread over the workers."""
        for number in changed:
            heapq.heappush(self._open, (len(self._slots[number].out), number))
        commands: list[Command] = []
        while self._owed and self._open:
            held, number = heapq.heappop(self._open)
            slot = self._slots[number]
            if slot.ready and len(slot.out) == held < SHARDS_OUT:
                shard = self._cut()
                slot.out.append(_Out(shard, shard.first))
                commands.append(Assign(number, shard))
                heapq.heappush(self._open, (held + 1, number))
        return commands

    def _cut(self) -> Shard:
        """Take the next shard off what is owed."""
        first, stop, attempt = self._owed.popleft()
        runs, seconds = self._size()
        if stop - first > runs:
            self._owed.appendleft(Stretch(first + runs, stop, attempt))
            stop = first + runs
        shard = Shard(self._next_shard, first, stop, attempt, seconds, self._frame_s)
        self._next_shard += 1
        return shard

    def _size(self) -> tuple[int, float]:
        """Number of runs and time limit of the next shard."""
        shards_left = SHARDS_LEFT * len(self._slots)
        if self._seconds_per_run is None:
            return max(1, min(FIRST_RUNS, self._unsettled // shards_left)), LONGEST_S * self._stretch
        remaining_s = self._unsettled * self._seconds_per_run
        target_s = min(max(remaining_s / shards_left, SHORTEST_S * self._stretch), LONGEST_S * self._stretch)
        return max(1, int(target_s / max(self._seconds_per_run, 1e-7))), 2 * target_s
