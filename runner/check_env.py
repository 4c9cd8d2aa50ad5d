"""Examines a user's environment: from the names on the command line to a document of what each check found.

Knows files and suites; what is checked, and how, is the workers' affair.
"""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from passhat.runner.errors import InvalidFile, UsageError
from passhat.runner.files import read_json, shown
from passhat.runner.suite import DESK, load_suite
from passhat.runner.targets import check_target, is_target
from passhat.workers.conformance import CHECKS, Check, Conformance, examine_environment
from passhat.workers.exploration import Offence, Place
from passhat.workers.loading import WorkerError

_MOST_TASKS = 24
_MOST_LOOKED_AT = 500


def check_environment(target: str, *, suite: str | None = None, world: Path | None = None) -> dict[str, Any]:
    """Make every check on an environment, in the worlds of a suite, in that of a JSON file, or in an empty one.

    Return the findings (passhat.check-env/1); raise UsageError when there is no such environment.
    """
    if suite is not None and world is not None:
        raise UsageError("expected either --suite or --world, found both")
    if target == DESK and world is None:
        suite = suite or DESK
    folders = _folders(suite)
    places = _of_suite(suite) if suite is not None else [_of_file(world)]
    _refuse_unknown(target, folders)
    sys_path = list(map(str, folders))
    sys.path[:0] = [folder for folder in sys_path if folder not in sys.path]
    with redirect_stdout(sys.stderr):
        try:
            found = examine_environment(target, sys_path, places)
        except WorkerError as error:
            raise UsageError(str(error)) from None
    return _document(target, places, found)


def _folders(suite: str | None) -> list[Path]:
    """Where the user's modules are: beside the suite, then where the command was given."""
    beside = [] if suite in (None, DESK) else [Path(str(suite)).resolve().parent]
    return list(dict.fromkeys([*beside, Path.cwd()]))


def _refuse_unknown(target: str, folders: Sequence[Path]) -> None:
    if target == DESK:
        return
    if not is_target(target):
        raise UsageError(f"found {shown(target)}, expected {DESK} or module:factory")
    try:
        check_target(target, folders)
    except InvalidFile as error:
        raise UsageError(str(error)) from None


def _of_suite(suite: str) -> list[Place]:
    """Return the worlds of a suite's tasks; of many, some that differ in cohort and template where they can."""
    tasks = load_suite(suite).tasks
    spread = [tasks[i] for i in range(0, len(tasks), max(1, len(tasks) // _MOST_LOOKED_AT))]
    firsts = {(task.cohort, task.template): task for task in reversed(spread)}
    chosen = {task.id: task for task in (*firsts.values(), *spread)}
    return [Place(task.id, task.world, task.principal, task.oracle) for task in list(chosen.values())[:_MOST_TASKS]]


def _of_file(path: Path | None) -> Place:
    if path is None:
        return Place("{}", {})
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    options = read_json(path)
    if not isinstance(options, dict):
        raise InvalidFile(f"{path}: found {shown(options)}, expected an object, as a task's world")
    return Place(path.name, options)


def _document(target: str, places: Sequence[Place], found: Conformance) -> dict[str, Any]:
    return {
        "schema": "passhat.check-env/1",
        "environment": {"target": target, "name": found.spec.name, "version": found.spec.version},
        "passed": found.passed,
        "worlds": len(places),
        "runs": found.stories,
        "tools": {name: {"calls": calls, "answered": found.answered[name]} for name, calls in found.asked.items()},
        "checks": [_described(check) for check in found.checks],
    }


def _described(check: Check) -> dict[str, Any]:
    return {
        "check": check.name,
        "promise": CHECKS[check.name],
        "state": check.state,
        "found": check.text,
        "times": check.times,
        "first": None if check.offence is None or not check.offence.place else _place(check.offence),
    }


def _place(offence: Offence) -> dict[str, Any]:
    return {
        "world": offence.place,
        "seed": offence.seed,
        "call": offence.number,
        "tool": offence.tool,
        "arguments": offence.arguments,
    }
