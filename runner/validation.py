"""Whether the tasks of a suite may be in it: examines each in its environment and lists what speaks against it.

Knows suites; nothing of releases, plans or results.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from passhat.runner.errors import InvalidFile
from passhat.runner.suite import DESK, Suite, catalogue, load_suite
from passhat.runner.targets import check_target, refuse_ambiguous_modules
from passhat.workers.admission import Examination, examine
from passhat.workers.contract import Task
from passhat.workers.loading import WorkerError, build_environment
from passhat.workers.order import Limits
from passhat.workers.session import compile_tools


def examine_tasks(
    environment: str, tasks: Iterable[Task], limits: Limits, folders: Sequence[str], *, sets: int | None = None
) -> Iterator[tuple[Task, Examination]]:
    """Yield each task with what its examination found; `folders` hold the modules of a user's environment."""
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    with redirect_stdout(sys.stderr):
        try:
            built = build_environment(environment)
            tools = compile_tools(built.spec)
        except (WorkerError, ValueError) as error:
            raise InvalidFile(str(error)) from None
    try:
        for task in tasks:
            with redirect_stdout(sys.stderr):
                found = examine(task, built, tools, limits, sets=sets)
            yield task, found
    finally:
        built.close()


def validate_suite(name_or_path: str, *, tasks: int | None = None) -> dict[str, Any]:
    """Examine every task of a suite, or the first ones (passhat.suite-validation/1)."""
    suite = load_suite(name_or_path, tasks=tasks)
    digest = catalogue(suite).digest
    folders = _folders(suite)
    examined: Counter[tuple[str, str]] = Counter()
    admitted: Counter[tuple[str, str]] = Counter()
    unchecked: Counter[str] = Counter()
    rejected = []
    for task, found in examine_tasks(suite.environment, suite.tasks, suite.limits, folders):
        place = (task.cohort, task.template)
        examined[place] += 1
        admitted[place] += not found.problems
        unchecked.update(found.unchecked)
        rejected += [
            {"task": task.id, "cohort": place[0], "template": place[1], "check": problem.check, "reason": problem.text}
            for problem in found.problems
        ]
    cohorts = list(dict.fromkeys(cohort for cohort, _ in examined))
    return {
        "schema": "passhat.suite-validation/1",
        "suite": {"name": suite.name, "version": suite.version, "digest": digest, "environment": suite.environment},
        "examined": examined.total(),
        "admitted": admitted.total(),
        "templates": [
            {"cohort": place[0], "template": place[1], "tasks": count, "admitted": admitted[place]}
            for place, count in sorted(examined.items(), key=lambda item: (cohorts.index(item[0][0]), item[0][1]))
        ],
        "unchecked": dict(unchecked),
        "rejected": rejected,
    }


def _folders(suite: Suite) -> list[str]:
    if suite.environment == DESK:
        return []
    folders = [Path.cwd()] if suite.path is None else [suite.path.resolve().parent, Path.cwd()]
    check_target(suite.environment, folders)
    refuse_ambiguous_modules(folders)
    return list(map(str, folders))
