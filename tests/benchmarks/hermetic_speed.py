"""What each hermetic level costs: `python tests/benchmarks/hermetic_speed.py [--quick]`.

One core, one process: scripted episodes of the desk with seven tool calls each, from reset to packed record, at level
0, at level 1 with and without sampled replays, and at level 2. The levels take turns within a round, and a round's
ratio compares what was measured side by side; shown are medians over rounds. Times are of the processor, so that
others on the machine matter less; only of level 2, which waits for another process, they are of the wall.
"""

import argparse
import os
import statistics
import time
from dataclasses import replace

from passhat.workers.confine import obstacle
from passhat.workers.contract import Task
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.host import Host
from passhat.workers.order import AgentSpec, Hermetic, Limits, Shard, WorkOrder
from passhat.workers.records import Level

CALLS = 7
TASKS = 10
RUNS_PER_TASK = 8
LEVELS = {
    "L0 declared": Hermetic(Level.DECLARED),
    "L1 guarded, no replays": Hermetic(Level.GUARDED, replay_every=0),
    "L1 guarded": Hermetic(Level.GUARDED),
    "L2 confined": Hermetic(Level.CONFINED),
}


def seven_call_tasks() -> tuple[Task, ...]:
    """Tasks whose script makes seven calls, found by running them."""
    tasks = DeskTasks(1, 1000)
    host = Host(order_of(tasks, Hermetic(Level.DECLARED), runs=1))
    calls = [finished.record.calls for finished in host.run(Shard(0, 0, len(tasks), 1, 1e9))]
    return tuple(task for task, count in zip(tasks, calls, strict=True) if count == CALLS)[:TASKS]


def order_of(tasks: DeskTasks | tuple[Task, ...], hermetic: Hermetic, runs: int = RUNS_PER_TASK) -> WorkOrder:
    return WorkOrder(
        environment="desk",
        releases=(AgentSpec("oracle", "scripted"),),
        tasks=tasks,
        runs_per_task=runs,
        seed=1,
        stream="release",
        limits=Limits(),
        hermetic=hermetic,
    )


def seconds_an_episode(host: Host, order: WorkOrder) -> float:
    clock = time.perf_counter if host.level == Level.CONFINED else time.process_time
    started = clock()
    count = sum(1 for _ in host.run(Shard(0, 0, len(order.grid), 1, 1e9)))
    return (clock() - started) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    rounds = 25 if parser.parse_args().quick else 200
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tasks = seven_call_tasks()
    levels = {name: hermetic for name, hermetic in LEVELS.items() if hermetic.environment < 3 or obstacle() is None}
    orders = {name: replace(order_of(tasks, hermetic)) for name, hermetic in levels.items()}
    hosts = {name: Host(order) for name, order in orders.items()}
    times: dict[str, list[float]] = {name: [] for name in levels}
    for _ in range(rounds + 1):
        for name, host in hosts.items():
            times[name].append(seconds_an_episode(host, orders[name]))
    base = times["L0 declared"][1:]
    print(f"{len(tasks)} tasks of {CALLS} calls, {rounds} rounds of {len(orders['L0 declared'].grid)} episodes")
    for name, all_seconds in times.items():
        seconds = all_seconds[1:]  # the first round warms up
        ratio = statistics.median(zero / one for zero, one in zip(base, seconds, strict=True))
        print(f"{name:24} {statistics.median(1 / s for s in seconds):8,.0f} episodes/s   {ratio:.3f} of L0")
        hosts[name].close()


if __name__ == "__main__":
    main()
