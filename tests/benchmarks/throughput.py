"""How much of two processors passhat leaves to the episodes: `python tests/benchmarks/throughput.py [--quick]`.

Three kinds of episodes (50 µs, 1 ms, the desk with its traces), each in turn: two plain loops in two processes over
the very same episodes and records, written to two files (the ceiling: no runner at all); two plain loops of the bare
work and one packed record; passhat on Ray with two workers that are up; multiprocessing.Pool with the best of several
chunk sizes. A round's ratio compares what was measured side by side; shown are medians over rounds. Trust the ratios
of one sitting, not the rates.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHUNKS = (1, 8, 32, 128, 512)
KINDS = {"50 us": (50e-6, 120_000), "1 ms": (1e-3, 8_000), "desk": (None, 24_000)}
RUNS_PER_TASK = 8
WARM_UP = 64
SETTLE_S = 2.0  # Ray starts new processes in place of the workers that were closed
CEILING = "two plain loops, same episodes"


def work_order(kind: str, runs: int, trace_dir: str | None) -> Any:
    from passhat.workers.contract import Task
    from passhat.workers.desk_tasks import DeskTasks
    from passhat.workers.order import AgentSpec, Limits, WorkOrder

    count = runs // RUNS_PER_TASK
    if kind == "desk":
        from passhat.runner.release import load_release

        flaws = {name: tuple(rate) for name, rate in load_release("incumbent").flaws.items()}
        where: dict[str, Any] = {"environment": "desk", "releases": (AgentSpec("incumbent", "scripted", flaws),)}
        tasks: Any = DeskTasks(1, count)
    else:
        where = {"environment": "spin_world:Nothing", "releases": (AgentSpec("spin", "spin_world:run"),)}
        tasks = tuple(Task(id=f"t{i}", request="spin") for i in range(count))
    return WorkOrder(
        tasks=tasks, runs_per_task=RUNS_PER_TASK, seed=1, stream="release", limits=Limits(),
        sys_path=(str(HERE),), trace_dir=trace_dir, **where,
    )  # fmt: skip


# Without passhat's runner: run in a process of their own, free of Ray's threads


def in_two_processes(work: Callable[[int], Iterator[None]]) -> float:
    """Return the wall time of two processes that go through their halves of the work and begin together."""
    context = multiprocessing.get_context("fork")
    barrier, times = context.Barrier(2), context.SimpleQueue()

    def child(half: int) -> None:
        steps = work(half)
        barrier.wait()
        started = time.perf_counter()
        for _ in steps:
            pass
        times.put((started, time.perf_counter()))

    children = [context.Process(target=child, args=(half,)) for half in (0, 1)]
    for process in children:
        process.start()
    for process in children:
        process.join()
    spans = [times.get() for _ in children]
    return max(end for _, end in spans) - min(start for start, _ in spans)


def plain_loops(kind: str, runs: int) -> float:
    """The very same episodes and records, in two loops that write them to two files."""
    from passhat.workers.host import Host
    from passhat.workers.order import Shard

    folder = tempfile.mkdtemp()

    def work(half: int) -> Iterator[None]:
        host = Host(work_order(kind, runs, folder))
        list(host.run(Shard(2 + half, 0, WARM_UP, 1, 1e9)))
        return written(host.run(Shard(half, half * runs // 2, (half + 1) * runs // 2, 1, 1e9)))

    def written(episodes: Iterator[Any]) -> Iterator[None]:
        with tempfile.TemporaryFile(dir=folder) as out:
            for finished in episodes:
                out.write(finished.packed)
                yield

    return runs / in_two_processes(work)


def bare_loops(kind: str, runs: int) -> float:
    """The bare work and one packed record."""
    import spin_world

    from passhat.workers.records import blank, pack_record

    def work(half: int) -> Iterator[None]:
        for run in range(runs // 2):
            spin_world.spin(spin_world.ITERATIONS)
            pack_record(blank(0, run, half))
            yield

    return runs / in_two_processes(work)


_host: Any = None


def _pool_start(kind: str, runs: int, folder: str) -> None:
    global _host
    from passhat.workers.host import Host

    _host = Host(work_order(kind, runs, folder))


def _pool_run(position: int) -> bytes:
    from passhat.workers.order import Shard

    return next(iter(_host.run(Shard(os.getpid(), position, position + 1, 1, 1e9)))).packed


def pool(kind: str, runs: int, chunk: int) -> float:
    folder = tempfile.mkdtemp()
    with multiprocessing.get_context("fork").Pool(2, _pool_start, (kind, runs, folder)) as workers:
        list(workers.imap_unordered(_pool_run, range(WARM_UP), chunksize=1))
        started = time.perf_counter()
        with open(f"{folder}/log", "wb") as out:
            for packed in workers.imap_unordered(_pool_run, range(runs), chunksize=chunk):
                out.write(packed)
        return runs / (time.perf_counter() - started)


def apart(what: str, kind: str, runs: int, *more: int) -> float:
    """Run one of the above in a fresh process."""
    command = [sys.executable, __file__, "--apart", what, kind, str(runs), *map(str, more)]
    return float(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))


# passhat


def on_ray(kind: str, runs: int) -> dict[str, float]:
    """A whole campaign on workers that are up: from the first shard to the last record in the log."""
    from passhat.runner.campaign import Execution, Owed
    from passhat.runner.progress import Progress, Tally
    from passhat.runner.schedule import Stretch
    from passhat.runner.store import create, writing

    folder = Path(tempfile.mkdtemp()) / "c"
    campaign = create(folder, plan_of(runs), {})
    backend = warm_backend(work_order(kind, runs, str(folder / "traces")))
    with open(os.devnull, "w") as silent, writing(campaign) as (writer, _):
        begun, cpu = time.perf_counter(), time.process_time()
        Execution(
            campaign, writer, backend, Progress([Tally("r", runs)], "", silent),
            owed=Owed([Stretch(0, runs, 1)], first_shard=10), max_attempts=1,
        ).run()  # fmt: skip
        ended, driver = time.perf_counter(), time.process_time() - cpu
    backend.close()
    return {
        "rate": runs / (ended - begun),
        "driver_us": driver / runs * 1e6,
        "first_ms": (backend.first_frame_at - begun) * 1e3,
        "bytes": campaign.log_path.stat().st_size / runs,
    }


def warm_backend(order: Any) -> Any:
    """Return a backend whose workers have carried out a shard each and are given out as they are."""
    from passhat.runner.dispatch import Data, RayBackend
    from passhat.runner.schedule import ShardEnded, SlotReady
    from passhat.workers.order import Shard

    class Warm(RayBackend):
        def __init__(self) -> None:
            super().__init__(order, slots=2)
            self.up: list[Any] = []
            self.first_frame_at = 0.0

        def start(self, slot: int) -> None:
            if slot in self._actors:
                self.up.append(SlotReady(slot))
            else:
                super().start(slot)

        def arrivals(self, timeout_s: float) -> list[Any]:
            up, self.up = self.up, []
            arrived = up or super().arrivals(timeout_s)
            if not self.first_frame_at and any(isinstance(arrival, Data) for arrival in arrived):
                self.first_frame_at = time.perf_counter()
            return arrived

    backend = Warm()
    for slot in range(2):
        backend.start(slot)
    ended = 0
    while ended < 2:
        for arrival in backend.arrivals(1.0):
            if isinstance(arrival, SlotReady):
                backend.assign(arrival.slot, Shard(arrival.slot, 0, WARM_UP, 1, 60.0))
            ended += isinstance(arrival, ShardEnded)
    backend.first_frame_at = 0.0
    return backend


def plan_of(runs: int) -> Any:
    from passhat.runner.plan import Plan

    tasks = runs // RUNS_PER_TASK
    return Plan(
        releases=("r",), tasks=tuple(f"t{i}" for i in range(tasks)), cohorts=("all",), cohort=[0] * tasks,
        task_digests=(), runs_per_task=RUNS_PER_TASK, seed=1, stream="release",
    )  # fmt: skip


def whole_command(runs: int) -> dict[str, float]:
    """`passhat run` as a user calls it, its own Ray and the summary included."""
    folder = Path(tempfile.mkdtemp()) / "c"
    tasks = str(runs // RUNS_PER_TASK)
    command = ["run", "desk", "-r", "incumbent", "--tasks", tasks, "--runs", str(RUNS_PER_TASK), "--workers", "2"]
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "passhat.runner.cli", *command, "--out", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "rate": runs / seconds}


def log_speeds(runs: int = 200_000) -> dict[str, float]:
    """Records a second packed, written and loaded."""
    from passhat.runner.columns import from_payloads
    from passhat.runner.store import create, read_log, writing
    from passhat.runner.tables import reconcile, release_table
    from passhat.workers.frames import Batch
    from passhat.workers.host import Host
    from passhat.workers.order import Shard
    from passhat.workers.records import pack_record

    host = Host(work_order("desk", 800, None))
    some = [finished.record for finished in host.run(Shard(0, 0, 800, 1, 1e9))]
    records = [some[i % 800]._replace(task=i // RUNS_PER_TASK, run=i % RUNS_PER_TASK) for i in range(runs)]
    speeds = {}
    started = time.perf_counter()
    packed = [pack_record(record) for record in records]
    speeds["packed"] = runs / (time.perf_counter() - started)
    plan = plan_of(runs)
    campaign = create(Path(tempfile.mkdtemp()) / "c", plan, {})
    started = time.perf_counter()
    with writing(campaign) as (writer, _):
        for first in range(0, runs, 800):
            batch = Batch(0, 0, first)
            for data in packed[first : first + 800]:
                batch.add(data)
            for frame in batch.flush():
                writer.append(frame)
    speeds["written and synced"] = runs / (time.perf_counter() - started)
    log = read_log(campaign)
    started = time.perf_counter()
    columns = from_payloads(log.payloads)
    speeds["log to columns"] = runs / (time.perf_counter() - started)
    started = time.perf_counter()
    release_table(reconcile(plan, columns), 0)
    speeds["columns to counts"] = runs / (time.perf_counter() - started)
    return speeds


def calibrate(seconds: float) -> int:
    """Return how many iterations of the spin take this long when nothing disturbs them."""
    import spin_world

    best = min(_time(lambda: spin_world.spin(100_000)) for _ in range(20))
    return round(seconds / best * 100_000)


def _time(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(kind: str, rounds: int, scale: float) -> None:
    seconds, runs = KINDS[kind]
    step = 8 * RUNS_PER_TASK  # whole tasks for each half of a quarter
    runs = max(step * 6, int(runs * scale) // step * step)
    os.environ["SPIN_ITERATIONS"] = str(calibrate(seconds) if seconds else 0)
    chunk = max((apart("pool", kind, runs // 4, chunk), chunk) for chunk in CHUNKS)[1]
    pool_name = f"multiprocessing.Pool, chunks of {chunk}"
    rates: dict[str, list[float]] = {}
    details: dict[str, list[float]] = {}
    session = start_ray()  # its workers take the iterations over from the environment
    for _ in range(rounds):
        rates.setdefault(CEILING, []).append(apart("plain_loops", kind, runs))
        found = on_ray(kind, runs)
        time.sleep(SETTLE_S)
        rates.setdefault("passhat on Ray, two workers", []).append(found.pop("rate"))
        rates.setdefault(pool_name, []).append(apart("pool", kind, runs, chunk))
        if seconds:
            rates.setdefault("two plain loops, bare work", []).append(apart("bare_loops", kind, runs))
        for name, value in found.items():
            details.setdefault(name, []).append(value)
    session.close()
    print(f"\n{kind}: {runs} runs, medians of {rounds} rounds")
    for name, measured in rates.items():
        ratios = [rate / ceiling for rate, ceiling in zip(measured, rates[CEILING], strict=True)]
        spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"  {name:<36}{statistics.median(measured):>10,.0f} runs/s{statistics.median(ratios):>8.3f} {spread}")
    middle = {name: statistics.median(values) for name, values in details.items()}
    print(f"  driver {middle['driver_us']:.0f} us of CPU a run, {middle['bytes']:.0f} bytes a run in the log")
    print(f"  first record {middle['first_ms']:.0f} ms after the first shard was cut")


def start_ray() -> Any:
    from passhat.runner.dispatch import RaySession

    session = RaySession("local", 2)
    session.wait()
    return session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round")
    parser.add_argument("--apart", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if arguments.apart:
        what, kind, *numbers = arguments.apart
        print(json.dumps(globals()[what](kind, *map(int, numbers))))
        return
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's own spelling; as the processes it is compared with
    for kind in KINDS:
        measure(kind, 1 if arguments.quick else 3, 0.1 if arguments.quick else 1.0)
    whole = whole_command(KINDS["desk"][1])
    print(f"\npasshat run desk, {KINDS['desk'][1]} runs: {whole['seconds']:.1f} s in all, {whole['rate']:,.0f} runs/s")
    print("\nlog, one process")
    for name, rate in log_speeds(20_000 if arguments.quick else 200_000).items():
        print(f"  {name:<36}{rate:>12,.0f} records/s")


if __name__ == "__main__":
    main()
