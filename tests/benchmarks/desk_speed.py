"""Speed of the built-in desk, beside its targets: `python tests/benchmarks/desk_speed.py`.

One core, processor time, of each task the best of several rounds so that others on the machine matter less, tasks of
every template in their shares; about half a minute.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from passhat.workers.admission import examine
from passhat.workers.contract import Task
from passhat.workers.desk import Desk
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.environment import ToolResult
from passhat.workers.scripted import play
from passhat.workers.session import compile_tools

ROUNDS = 7
TASKS = 100  # a round
DRY_RUN_SETS = 2  # flaw sets a task that `passhat run --dry-run` tries
TOOLS = compile_tools(Desk.spec)


class Direct:
    """The tools of a desk without a runner in between."""

    def __init__(self, desk: Desk, task: Task) -> None:
        self._desk = desk
        self._principal = task.principal

    def list(self) -> Any:
        return self._desk.spec.tools

    def call(self, name: str, /, **arguments: Any) -> ToolResult:
        given = {key: value for key, value in arguments.items() if value is not None}
        return self._desk.call(name, given, principal=self._principal)


def seconds_each(tasks: Sequence[Task], prepare: Callable[[Task], Callable[[], Any]], times: int) -> float:
    """Return the seconds a step takes, mean over tasks, best of the rounds; preparing it is not counted."""
    best = []
    for task in tasks:
        step = prepare(task)
        rounds = []
        for _ in range(ROUNDS):
            start = time.process_time_ns()
            for _ in range(times):
                step()
            rounds.append(time.process_time_ns() - start)
        best.append(min(rounds) / times)
    return sum(best) / len(best) / 1e9


def resetting(task: Task) -> Callable[[], None]:
    desk = Desk()
    desk.reset(seed=1, options=task.world)
    return lambda: desk.reset(seed=2, options=task.world)


def digesting(task: Task) -> Callable[[], bytes]:
    desk = Desk()
    desk.reset(seed=1, options=task.world)
    play(task.oracle, Direct(desk, task))
    return desk.state_digest


def admitting(sets: int | None) -> float:
    """Return the seconds to make and examine a task: mean over tasks, best of the rounds."""
    desk, suite, best = Desk(), DeskTasks(1, TASKS), []
    for index in range(TASKS):
        rounds = []
        for _ in range(ROUNDS):
            start = time.process_time_ns()
            examine(suite[index], desk, TOOLS, sets=sets)
            rounds.append(time.process_time_ns() - start)
        best.append(min(rounds))
    return sum(best) / len(best) / 1e9


def main() -> None:
    tasks = DeskTasks(1, TASKS)[:]
    making = min(_time_making(seed) for seed in range(ROUNDS))
    sampled, whole = admitting(DRY_RUN_SETS), admitting(None)
    rows = [
        ("reset", f"{seconds_each(tasks, resetting, 500) * 1e6:.2f} µs", "≤ 5 µs"),
        ("state digest after the oracle", f"{seconds_each(tasks, digesting, 200) * 1e6:.1f} µs", "≤ 50 µs"),
        ("generation", f"{1 / making:,.0f} tasks/s", ""),
        ("generation + admission", f"{1 / sampled:,.0f} tasks/s", "≥ 200 tasks/s"),
        ("… with all pairs of flaws", f"{1 / whole:,.0f} tasks/s", ""),
    ]
    for name, found, target in rows:
        print(f"{name:<32}{found:>18}   {target}".rstrip())


def _time_making(seed: int) -> float:
    start = time.process_time_ns()
    for _ in DeskTasks(seed, TASKS):
        pass
    return (time.process_time_ns() - start) / TASKS / 1e9


if __name__ == "__main__":
    main()
