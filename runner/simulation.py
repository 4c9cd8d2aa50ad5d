"""Predicts how a campaign goes on machines that are not here: a simulated cluster of any size, and a driver that asks
the very schedule of runner/schedule.py what to do and pays for it with time, as costs were measured.

Time is simulated, so that a day on ten thousand workers takes seconds; nothing is started and nothing is written. The
same seed gives the same prediction. Knows nothing of Ray but what its costs say.

The driver does one thing at a time: it asks for what has arrived, takes one thing from each worker that has sent
something, as runner/dispatch.py does, and pays for frames, records, shards and starts by the piece.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Literal

from passhat.runner.machines import Arrival, Cluster, Costs, Ledger, Machines
from passhat.runner.schedule import (
    Assign,
    Command,
    FrameArrived,
    GiveUp,
    Keep,
    RecordLoss,
    Schedule,
    ShardEnded,
    StartSlot,
    Stretch,
)

_SYNC_S = 0.1  # between two syncs of the log

Shape = Literal["constant", "lognormal", "heavy tail"]
_SIGMA = 1.0  # of the lognormal: one run in forty takes more than seven times as long as the median
_TAIL, _LONGEST = 1.5, 100.0  # Pareto: without a variance, but for a limit of so many times the mean


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
    driver_s: float  # of the driver, for frames, records, shards and starts
    upkeep_s: float  # of the driver, for looks and syncs, which it has the fewer of the more there is to do
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
    def upkeep_share(self) -> float:
        return self.upkeep_s / self.seconds if self.seconds else 0.0

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
    episode_s: Sequence[float], cluster: Cluster, costs: Costs, *, max_attempts: int = 3, seed: int = 0
) -> Prediction:
    """Carry out a campaign whose runs take these times, position by position."""
    return _Driver(episode_s, cluster, costs, max_attempts, seed).run()


class _Driver:
    """Asks the schedule, one event after the other, and pays for it with time."""

    def __init__(
        self, episode_s: Sequence[float], cluster: Cluster, costs: Costs, max_attempts: int, seed: int
    ) -> None:
        self._cluster, self._costs, self._max_attempts = cluster, costs, max_attempts
        self._planned = len(episode_s)
        owed = [Stretch(0, self._planned, 1)] if self._planned else []
        self._schedule = Schedule(owed, slots=cluster.workers, max_attempts=max_attempts)
        self._ledger = Ledger()
        self._machines = Machines(episode_s, cluster, costs, Random(seed), self._ledger)
        self._now = 0.0
        self._busy_s = 0.0
        self._upkeep_s = 0.0
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
            self._keep_up(look_s)
            for arrival in machines.take():
                self._handle(arrival)
            if self._now - synced_at >= _SYNC_S:
                self._keep_up(costs.sync)
                synced_at = self._now
        machines.close(self._now)
        return self._predict()

    def _spend(self, seconds: float) -> None:
        self._now += seconds
        self._busy_s += seconds

    def _keep_up(self, seconds: float) -> None:
        self._now += seconds
        self._upkeep_s += seconds

    def _handle(self, arrival: Arrival) -> None:
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
            upkeep_s=self._upkeep_s,
            utilisation=ledger.useful_s / total_s,
            overhead=(ledger.busy_s - ledger.useful_s - ledger.wasted_s) / total_s,
            wasted=ledger.wasted_s / total_s,
            down=ledger.down_s / total_s,
            starved=ledger.starved_s / total_s,
            tail=ledger.tail_s / total_s,
            gave_up=self._gave_up,
        )
