"""What a cluster would make of passhat: `python tests/benchmarks/cluster_simulation.py [--quick]`.

Measures on this machine what the driver and a worker pay by the piece; compares what runner/simulation.py predicts
from that with real campaigns here, of agents that only wait (so that workers do not take the driver's processors);
and prints what it predicts for 10 to 10,000 workers. The driver's costs are processor time of all its threads, Ray's
own too, as if it had one processor: it has more, so that it can do better. Starts of workers, the line and the failures
are assumptions, printed with the table.
"""

import argparse
import heapq
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from passhat.workers.agent import AgentContext, Final, TaskView, Toolbox

HERE = Path(__file__).resolve().parent
BIG = 500  # records in a large frame
STARTS = {"start_s": 1.5, "starts_per_s": 550}  # a process that imports Ray; what Ray publishes for 10,000 actors
LINE = {"latency_s": 0.0005, "bytes_per_s": 1.25e9}  # 10 Gbit/s
TROUBLE = {"losses_per_hour": 0.1, "node_losses_per_hour": 0.5, "invalid_share": 0.002}  # a bad day
SIZES = (10, 100, 1_000, 10_000)
MOST = 1_000_000
SETTLE_S = 1.0  # Ray starts new processes in place of the workers that were closed
RUNS_EACH = {50e-6: 100_000, 0.02: 1_000, 1.0: 100, 60.0: 100}  # a worker


def wait(task: TaskView, tools: Toolbox, ctx: AgentContext) -> Final:
    """An agent that waits as long as its task says."""
    if task.request != "0":
        time.sleep(float(task.request))
    return Final("COMPLETED")


def order_of(seconds: Sequence[float]) -> Any:
    """One run a task, each of its own duration."""
    from passhat.workers.contract import Task
    from passhat.workers.order import AgentSpec, Limits, WorkOrder

    return WorkOrder(
        environment="spin_world:Nothing", releases=(AgentSpec("waiting", "cluster_simulation:wait"),),
        tasks=tuple(Task(id=f"t{i}", request=f"{s:g}") for i, s in enumerate(seconds)),
        runs_per_task=1, seed=1, stream="release", limits=Limits(), sys_path=(str(HERE),), trace_dir=None,
    )  # fmt: skip


class Clocked:
    """A backend that says how long the driver was in it, and what it was asked for."""

    is_inline = False

    def __init__(self, inner: Any) -> None:
        self.inner, self.slots = inner, inner.slots
        self.cpu = {"start": 0.0, "assign": 0.0, "arrivals": 0.0}
        self.count = {"start": 0, "assign": 0, "arrivals": 0, "Data": 0, "ShardEnded": 0}
        self.ready_at: list[float] = []
        self.first_frame_at = 0.0
        self.all_cpu = 0.0  # of all threads, from the first shard to the last frame

    @property
    def taken(self) -> int:
        return self.count["Data"] + self.count["ShardEnded"]

    def _timed(self, name: str, *arguments: Any) -> Any:
        begun = time.thread_time()
        answer = getattr(self.inner, name)(*arguments)
        self.cpu[name] += time.thread_time() - begun
        self.count[name] += 1
        return answer

    def start(self, slot: int) -> None:
        self._timed("start", slot)

    def assign(self, slot: int, shard: Any) -> None:
        self._timed("assign", slot, shard)

    def arrivals(self, timeout_s: float) -> list[Any]:
        arrived: list[Any] = self._timed("arrivals", timeout_s)
        for arrival in arrived:
            name = type(arrival).__name__
            self.count[name] = self.count.get(name, 0) + 1
            if name == "SlotReady":
                self.ready_at.append(time.perf_counter())
            if name == "Data" and not self.first_frame_at:
                self.first_frame_at = time.perf_counter()
        return arrived

    def drain(self) -> list[Any]:
        return []

    def publish(self, progress: Any, *, final: bool = False) -> None:
        pass

    def close(self) -> None:
        self.inner.close()


class Prepared:
    """A backend whose one worker answers at once with frames of so many records."""

    slots = 1

    def __init__(self, records: int) -> None:
        from passhat.workers.records import blank, pack_record

        self._records = records
        self._packed = [
            pack_record(blank(0, i, 0)._replace(turns=3, cost_micros=900, wall_us=2000)) for i in range(BIG)
        ]
        self._arrived: list[Any] = []

    def start(self, slot: int) -> None:
        from passhat.runner.schedule import SlotReady

        self._arrived.append(SlotReady(slot))

    def assign(self, slot: int, shard: Any) -> None:
        from passhat.runner.dispatch import Data
        from passhat.runner.schedule import ShardEnded
        from passhat.workers.frames import FrameHeader, pack_frame

        stop = min(shard.first + self._records, shard.stop)
        runs = stop - shard.first
        header = FrameHeader(shard.id, 0, shard.first, runs, runs * 2.0 / self._records)  # a frame a shard
        frame = pack_frame(header, b"".join(self._packed[:runs]))
        self._arrived += [Data(slot, shard.id, frame), ShardEnded(slot, shard.id)]

    def arrivals(self, timeout_s: float) -> list[Any]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def close(self) -> None:
        pass


def campaign_of(backend: Any, runs: int) -> dict[str, float]:
    """Execute runs as one campaign; say how long it took, and how much of the driver's main thread."""
    from passhat.runner.campaign import Execution, Owed
    from passhat.runner.plan import Plan
    from passhat.runner.progress import Progress, Tally
    from passhat.runner.schedule import Stretch
    from passhat.runner.store import create, writing

    plan = Plan(
        releases=("r",), tasks=tuple(f"t{i}" for i in range(runs)), cohorts=("all",), cohort=[0] * runs,
        task_digests=(), runs_per_task=1, seed=1, stream="release",
    )  # fmt: skip
    campaign = create(Path(tempfile.mkdtemp()) / "c", plan, {})
    with open(os.devnull, "w") as silent, writing(campaign) as (writer, _):
        progress = Progress([Tally("r", runs)], "", silent)
        begun, cpu, all_cpu = time.perf_counter(), time.thread_time(), time.process_time()
        Execution(campaign, writer, backend, progress, owed=Owed([Stretch(0, runs, 1)], 0), max_attempts=1).run()
        return {
            "begun": begun,
            "seconds": time.perf_counter() - begun,
            "cpu": time.thread_time() - cpu,
            "all_cpu": time.process_time() - all_cpu,
        }


def measure() -> Any:
    """Return what things cost here."""
    from passhat.runner.machines import Costs

    frame, record = frame_costs()
    look, look_at_worker = look_costs()
    taking, bytes_record, assign = stream_costs(look)
    run, shard = worker_costs()
    return Costs(
        look=look, look_at_worker=look_at_worker, frame=frame + taking, record=record + bytes_record,
        assign=assign, shard_end=taking, start=start_cost(), sync=sync_cost(), run=run, shard=shard,
    )  # fmt: skip


def frame_costs() -> tuple[float, float]:
    """What a frame and a record in it cost once they are there: unpacked, scheduled, logged, counted."""
    spent = {}
    for records in (1, BIG):
        clocked = Clocked(Prepared(records))
        found = campaign_of(clocked, 2_000 if records == 1 else 40_000)
        spent[records] = (found["cpu"] - sum(clocked.cpu.values())) / clocked.count["Data"]
    record = (spent[BIG] - spent[1]) / (BIG - 1)
    return max(0.0, spent[1] - record), record


def look_costs() -> tuple[float, float]:
    """What it costs to ask Ray what has arrived: at all, and more for each worker that is heard of."""
    import ray

    from passhat.runner.dispatch import RayBackend, _Stream

    class Stuck:
        def run(self) -> Any:
            time.sleep(3600)
            yield b""

    stuck: Any = ray.remote(Stuck).options(num_cpus=0).remote()
    spent = {}
    for streams in (1, 1000):
        backend = RayBackend(order_of([0]), streams)
        frames = [stuck.run.options(num_returns="streaming").remote() for _ in range(streams)]
        backend._streams = {slot: deque([_Stream(stream, slot)]) for slot, stream in enumerate(frames)}
        times = []
        for _ in range(100):
            begun = time.thread_time()
            backend.arrivals(0.0)
            times.append(time.thread_time() - begun)
        spent[streams] = statistics.median(times)
    ray.kill(stuck)
    return spent[1], 2 * (spent[1000] - spent[1]) / 999  # once until something is there, once for whatever else is


def stream_costs(glance: float) -> tuple[float, float, float]:
    """What it costs to hear of a frame or of an end and to take it, for each record in it, and to hand out a shard."""
    small = driven([0.001] * 600, shard=1)
    big = driven([0.0] * 40 * BIG, shard=10 * BIG)
    assign = small.cpu["assign"] / 600
    taking, taking_big = (
        (found.all_cpu - found.cpu["assign"] - found.count["arrivals"] * glance) / found.taken for found in (small, big)
    )
    return taking, max(0.0, taking_big - taking) * big.taken / (40 * BIG), assign


def driven(seconds: Sequence[float], shard: int) -> Clocked:
    """Have a worker carry out shards of so many runs, two of them queued, without a campaign around it."""
    from passhat.runner.dispatch import RayBackend
    from passhat.runner.schedule import ShardEnded, SlotReady
    from passhat.workers.order import Shard

    backend = Clocked(RayBackend(order_of(seconds), 1))
    shards = [Shard(i, at, at + shard, 1, 1e6) for i, at in enumerate(range(0, len(seconds), shard))]
    left = len(shards)
    begun = 0.0
    backend.start(0)
    while left:
        for arrival in backend.arrivals(1.0):
            room = 2 if isinstance(arrival, SlotReady) else isinstance(arrival, ShardEnded)
            left -= isinstance(arrival, ShardEnded)
            for each in [shards.pop(0) for _ in range(min(room, len(shards)))]:
                backend.assign(0, each)
            if isinstance(arrival, SlotReady):
                begun = time.process_time()
    backend.all_cpu = time.process_time() - begun
    backend.close()
    return backend


def worker_costs() -> tuple[float, float]:
    """What a worker pays around each run, and between two shards."""

    def seconds(runs: int, shard: int) -> float:
        backend = driven([0.0] * runs, shard)
        return time.perf_counter() - backend.first_frame_at

    many = seconds(20_000, 20_000)
    run = many / 20_000
    return run, max(0.0, seconds(400, 1) / 400 - run)


def start_cost() -> float:
    """What it costs the driver to ask for a worker."""
    from passhat.runner.dispatch import RayBackend

    backend = Clocked(RayBackend(order_of([0]), 32))
    backend.start(0)  # sends the class
    first = backend.cpu["start"]
    for slot in range(1, 32):
        backend.start(slot)
    backend.close()
    return (backend.cpu["start"] - first) / 31


def sync_cost() -> float:
    times = []
    with tempfile.TemporaryFile() as file:
        for _ in range(20):
            file.write(bytes(30_000))
            file.flush()
            begun = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


# Prediction and reality


def validate(costs: Any, *, quick: bool) -> list[str]:
    """Run campaigns here and predict them, given when their workers came up."""
    from passhat.runner.dispatch import RayBackend
    from passhat.runner.machines import Cluster
    from passhat.runner.simulation import episode_seconds, simulate

    names = ("utilisation", "seconds", "first record s", "frames", "driver CPU s")
    header = f"  {'episodes':<18}{'workers':>8}{'runs':>7}" + "".join(f"{name:>16}" for name in names)
    lines = ["agents that wait, on this machine: predicted and measured", header]
    cases: list[tuple[Any, float, int, int]] = [
        ("constant", 0.02, 1, 600), ("constant", 0.02, 2, 1_200), ("lognormal", 0.02, 2, 1_200),
        ("constant", 0.001, 2, 12_000), ("lognormal", 0.02, 8, 4_800), ("lognormal", 1.0, 8, 160),
    ]  # fmt: skip
    one = driven([0.0], 1)
    set_up_s = one.first_frame_at - one.ready_at[0]  # of the worker's child, while its first shard waits
    for shape, mean_s, workers, most in cases:
        runs = most // 4 if quick else most
        seconds = [float(f"{each:g}") for each in episode_seconds(shape, mean_s, runs, seed=1)]
        backend = Clocked(RayBackend(order_of(seconds), workers))
        found = campaign_of(backend, runs)
        backend.close()
        time.sleep(SETTLE_S)
        ups = sorted(at - found["begun"] for at in backend.ready_at)
        late = statistics.median(overslept(mean_s) for _ in range(min(50, round(2 / mean_s))))
        apart = (ups[-1] - ups[0]) / max(1, workers - 1)
        cluster = Cluster(
            workers, start_s=max(0.0, ups[0] - apart) + set_up_s, starts_per_s=1 / apart if apart else inf
        )
        expected = simulate(seconds, cluster, replace(costs, run=costs.run + late), max_attempts=1)
        used = sum(seconds) / workers / found["seconds"]
        first_s = backend.first_frame_at - found["begun"]
        pairs = (
            f"{expected.utilisation:.3f} {used:.3f}",
            f"{expected.seconds:.2f} {found['seconds']:.2f}",
            f"{expected.first_record_s or 0:.2f} {first_s:.2f}",
            f"{expected.frames} {backend.count['Data']}",
            f"{expected.driver_s + expected.upkeep_s:.2f} {found['all_cpu']:.2f}",
        )
        name = f"{shape} {duration(mean_s)}"
        lines.append(f"  {name:<18}{workers:>8}{runs:>7}" + "".join(f"{pair:>16}" for pair in pairs))
    return lines


def overslept(seconds: float) -> float:
    """Return how much longer a wait takes here than was asked for."""
    begun = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - begun - seconds


COLUMNS = {
    "used": "share of the workers' time in scored runs", "of best": "shortest time there could be / time",
    "down": "workers not up", "starved": "idle, with runs to give", "tail": "idle, with none left",
    "wasted": "in attempts without a score", "driver": "busy by the piece",
    "upkeep": "and with looks and syncs, when it has the time", "first s": "first record", "seconds": "in all",
    "lost": "attempts with their worker", "again": "runs executed once more",
    "rec/s": "where the driver has no time left", "workers": "so many workers send that",
}  # fmt: skip


def predict(costs: Any, *, quick: bool) -> None:
    print(f"\npredicted; {STARTS}, {LINE}, nodes of 64 workers\nwith failures: {TROUBLE}")
    print("\n".join(f"  {name:<8} {meaning}" for name, meaning in COLUMNS.items()))
    print(f"\n  {'episodes':<16}{'workers':>8}{'runs':>9}" + "".join(f"{name:>9}" for name in COLUMNS))
    cases: list[tuple[Any, float, int, int]] = [
        ("lognormal", mean_s, workers, min(MOST, runs * workers))
        for mean_s, runs in RUNS_EACH.items()
        for workers in SIZES
    ]
    cases += [(shape, 1.0, 1_000, MOST) for shape in ("constant", "lognormal", "heavy tail")]
    for shape, mean_s, workers, runs in cases:
        for trouble in ({}, TROUBLE):
            predict_one(shape, mean_s, workers, runs // 10 if quick else runs, costs, trouble)


def predict_one(shape: Any, mean_s: float, workers: int, runs: int, costs: Any, trouble: dict[str, float]) -> None:
    from passhat.runner.machines import Cluster
    from passhat.runner.simulation import episode_seconds, simulate

    seconds = episode_seconds(shape, mean_s, runs, seed=1)
    found = simulate(seconds, Cluster(workers, **STARTS, **LINE, **trouble), costs, seed=1)  # type: ignore[arg-type]
    shares = (
        found.utilisation, best(seconds, workers) / found.seconds, found.down, found.starved, found.tail,
        found.wasted, found.driver_share, found.upkeep_share,
    )  # fmt: skip
    name = f"{'! ' if trouble else '  '}{shape} {duration(mean_s)}"
    print(
        f"{name:<18}{workers:>8}{runs:>9}"
        + "".join(f"{share:>9.3f}" for share in shares)
        + f"{found.first_record_s or 0:>9.2f}{found.seconds:>9.1f}{found.lost_attempts:>9}"
        f"{found.executions - found.planned:>9}{found.driver_limit:>9,.0f}{found.driver_limit * mean_s:>9,.0f}"
        + ("" if found.gave_up is None else f"  {found.gave_up}"),
        flush=True,
    )


def best(seconds: Sequence[float], workers: int) -> float:
    """Return how long it takes when each run goes to the worker that is free first, and nothing else takes time."""
    free_at = [0.0] * workers
    for each in seconds:
        heapq.heapreplace(free_at, free_at[0] + each)
    return max(free_at)


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:g} us" if seconds < 1e-3 else f"{seconds * 1e3:g} ms" if seconds < 1 else f"{seconds:g} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the runs")
    quick = parser.parse_args().quick
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's own spelling
    from passhat.runner.dispatch import RaySession

    session = RaySession("local", max(8, os.cpu_count() or 1))  # takes standard output while it lives
    session.wait()
    costs = measure()
    compared = validate(costs, quick=quick)
    session.close()
    print("costs in microseconds: " + ", ".join(f"{name} {getattr(costs, name) * 1e6:.1f}" for name in costs.__slots__))
    print("\n" + "\n".join(compared))
    predict(costs, quick=quick)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
