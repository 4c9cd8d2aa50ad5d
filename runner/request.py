"""What was asked for: read, checked, and turned into a plan with everything that carries it out.

What it comes to is kept in the manifest, so that a campaign can be continued with nothing but its folder; what has
changed since then is refused by name. Starts nothing.
"""

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from passhat.runner.errors import NotAcceptable, UsageError
from passhat.runner.plan import Plan
from passhat.runner.release import Release, check_release, load_releases, with_flaws
from passhat.runner.suite import DESK, Suite, catalogue, load_suite
from passhat.runner.targets import check_target, code_digest, refuse_ambiguous_modules
from passhat.runner.validation import examine_tasks
from passhat.workers import seeds
from passhat.workers.flaws import TERMINAL, claim_of
from passhat.workers.order import AgentSpec, Hermetic, Limits, WorkOrder
from passhat.workers.records import Level, Outcome
from passhat.workers.traces import is_url, storage_problem

_TRACE_EVERY = 50
_MOST_EXAMINED = 1000
_FLAW_SETS = 2
_MOST_RUNS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run, in the user's words. Where to run it is not part of it, and may change from session to session."""

    suite: str
    releases: tuple[str, ...]
    runs: int | None = None  # None: what the suite says
    tasks: int | None = None
    filter: str | None = None
    seed: int = 0
    stream: str = "release"
    retries: int = 2
    timeout_s: float | None = None  # wall-clock limit of a run in place of the suite's
    hermetic: str | None = None  # level of the environment in place of the suite's: declared, guarded or confined
    flaws: tuple[str, ...] = ()  # [RELEASE:]NAME=P[,RHO], of scripted releases
    truth: bool | None = None  # whether to write the truth of scripted releases; None: unless the suite is very large
    traces: str | None = None  # storage that all hosts share, in place of the campaign's folder: a path or fsspec URL
    gate: str | None = None  # gate file, declared before, whose digest the campaign carries
    folder: str = "."  # relative paths and modules start here


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with everything it names."""

    suite: Suite
    releases: tuple[Release, ...]
    limits: Limits
    plan: Plan
    manifest: dict[str, Any]
    order: WorkOrder


def load(request: Request) -> tuple[Suite, tuple[Release, ...]]:
    """Read the files a request names, and check that its agents can be had and its gate was declared."""
    if request.runs is not None and not 1 <= request.runs <= _MOST_RUNS:
        raise UsageError(f"--runs: found {request.runs}, expected at least 1 and at most {_MOST_RUNS}")
    if not 0 <= request.seed < 1 << 63:
        raise UsageError(f"--seed: found {request.seed}, expected at least 0 and less than 2^63")
    if request.retries < 0:
        raise UsageError(f"--retries: found {request.retries}, expected at least 0")
    if request.timeout_s is not None and not request.timeout_s > 0:
        raise UsageError(f"--timeout: found {request.timeout_s}, expected more than 0 seconds")
    if request.traces is not None and is_url(request.traces) and (problem := storage_problem(request.traces)):
        raise UsageError(f"--traces {request.traces}: {problem}")
    suite = load_suite(request.suite, tasks=request.tasks, filter=request.filter)
    releases = with_flaws(load_releases(request.releases), request.flaws)
    own = [release.folder for release in releases if release.kind == "python"]
    if suite.environment != DESK:
        check_target(suite.environment, [Path(folder) for folder in _module_folders(suite, releases)])
        own += [suite.path.parent] if suite.path is not None else []
    refuse_ambiguous_modules(own)
    for release in releases:
        check_release(release)
        if release.kind == "scripted":
            _refuse_without_oracle(suite, release)
    _sealed_gate(request, [release.name for release in releases])
    return suite, releases


def _refuse_without_oracle(suite: Suite, release: Release) -> None:
    """A scripted release plays each task's oracle; generated tasks all have one."""
    if isinstance(suite.tasks, tuple):
        without = next((task.id for task in suite.tasks if not task.oracle), None)
        if without is not None:
            raise UsageError(f"release {release.name} is scripted, and task {without} has no oracle to play")
        endless = next((task.id for task in suite.tasks if claim_of(task) is Outcome.AGENT_ERROR), None)
        if endless is not None:
            raise UsageError(
                f"release {release.name} is scripted, and the oracle of task {endless} does not end with"
                f" {' or '.join(TERMINAL)} and a right claim"
            )


def prepare(request: Request, suite: Suite, releases: Sequence[Release]) -> Prepared:
    """Plan a request: name every run, and what the results will depend on."""
    contents = catalogue(suite)
    runs = request.runs or suite.runs_per_task
    cohorts = tuple(dict.fromkeys(contents.cohorts))
    number = {name: i for i, name in enumerate(cohorts)}
    limits = suite.limits if request.timeout_s is None else replace(suite.limits, seconds=request.timeout_s)
    hermetic = hermetic_of(request, suite)
    plan = Plan(
        releases=tuple(release.name for release in releases),
        tasks=contents.ids,
        cohorts=cohorts,
        cohort=[number[name] for name in contents.cohorts],
        task_digests=contents.task_digests,
        runs_per_task=runs,
        seed=request.seed,
        stream=request.stream,
    )
    manifest = {
        "origin": "run",
        "suite": {
            "name": suite.name,
            "version": suite.version,
            "digest": contents.digest,
            "tasks": len(contents.ids),
            "environment": suite.environment,
            "code": None if suite.environment == DESK else code_digest(suite.environment),
        },
        "releases": [_identity(release) for release in releases],
        "runs_per_task": runs,
        "overrides": _overrides(suite, runs, limits, hermetic),
        "gate": _sealed_gate(request, plan.releases),
        "seed": request.seed,
        "stream": request.stream,
        "limits": asdict(limits),
        "hermetic": {**asdict(hermetic), "environment": hermetic.environment.name, "agent": hermetic.agent.name},
        "on_missing": suite.on_missing,
        "max_missing": suite.max_missing,
        "retries": request.retries,
        "traces": _traces(request),
        "versions": versions(),
        "request": asdict(request),
    }
    order = WorkOrder(
        environment=suite.environment,
        releases=tuple(AgentSpec(r.name, r.agent, dict(r.flaws), r.latent) for r in releases),
        tasks=suite.tasks,
        runs_per_task=runs,
        seed=request.seed,
        stream=request.stream,
        limits=limits,
        hermetic=hermetic,
        code=_code(manifest),
        sys_path=tuple(dict.fromkeys(_module_folders(suite, releases))),
        trace_every=_TRACE_EVERY,
    )
    return Prepared(suite, tuple(releases), limits, plan, manifest, order)


def _overrides(suite: Suite, runs: int, limits: Limits, hermetic: Hermetic) -> dict[str, Any]:
    """What the suite file declares and was asked for otherwise; a suite that is built in declares nothing."""
    used = {
        "runs_per_task": (suite.runs_per_task, runs),
        "tasks": (suite.declared_tasks, len(suite.tasks)),
        "limits.seconds": (suite.limits.seconds, limits.seconds),
        "hermetic.environment": (suite.hermetic.environment.name, hermetic.environment.name),
    }
    differing = {name: pair for name, pair in used.items() if suite.path is not None and pair[0] != pair[1]}
    return {name: {"declared": declared, "used": use} for name, (declared, use) in differing.items()}


def _sealed_gate(request: Request, releases: Sequence[str]) -> dict[str, Any] | None:
    """Return the identity of the gate that the campaign is begun under; refuse one that was not declared."""
    if request.gate is None:
        return None

    from passhat.runner.declaration import sealed
    from passhat.runner.gate_file import load_gate

    gate = load_gate(Path(request.gate))
    named = [name for name in (gate.file.baseline, gate.file.candidate) if name is not None]
    if named and not set(named) & set(releases):
        raise UsageError(f"--gate {request.gate}: is about {' and '.join(named)}, to be run are {', '.join(releases)}")
    return sealed(gate)


def hermetic_of(request: Request, suite: Suite) -> Hermetic:
    if request.hermetic is None:
        return suite.hermetic
    levels = {level.name.lower(): level for level in Level if level != Level.OPEN}
    if request.hermetic not in levels:
        raise UsageError(f"--hermetic: found {request.hermetic!r}, expected {', '.join(levels)}")
    return replace(suite.hermetic, environment=levels[request.hermetic])


def _traces(request: Request) -> str | None:
    """Return where traces go, if not into the campaign's folder; each campaign has a place of its own in it."""
    if request.traces is None:
        return None
    if not is_url(request.traces):
        return os.path.abspath(Path(request.folder, request.traces))
    return request.traces.rstrip("/")


def _identity(release: Release) -> dict[str, Any]:
    return {
        "name": release.name,
        "digest": release.digest,
        "agent": release.agent,
        "code": code_digest(release.agent) if release.kind == "python" else None,
        "flaws": {name: list(rate) for name, rate in release.flaws.items()},
        "latent": release.latent,
        "identity": dict(release.identity),
    }


def _code(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each module file that workers load."""
    named = [(release["agent"], release["code"]) for release in manifest["releases"]]
    named.append((manifest["suite"]["environment"], manifest["suite"]["code"]))
    return {target: digest for target, digest in named if digest is not None}


def describe_plan(prepared: Prepared) -> dict[str, Any]:
    """Return what would be run (passhat.plan/1), the seeds of the first cell, and what speaks against the tasks."""
    plan, order = prepared.plan, prepared.order
    cells = [plan.grid.locate(position) for position in range(min(len(plan), len(plan.releases)))]
    return {
        "schema": "passhat.plan/1",
        **{key: prepared.manifest[key] for key in _MUST_AGREE},
        "runs": len(plan),
        "cohorts": {name: list(plan.cohort).count(number) for number, name in enumerate(plan.cohorts)},
        "first_runs": [
            {
                "run": plan.name(cell),
                "env_seed": seeds.env_seed(order.seed, plan.task_digests[cell.task], cell.run),
                "agent_seed": seeds.agent_seed(
                    order.seed, plan.task_digests[cell.task], cell.run, order.stream_of(cell.release)
                ),
            }
            for cell in cells
        ],
        "admission": _admission(order),
    }


def _admission(order: WorkOrder) -> dict[str, Any]:
    """Examine the tasks, or the first of very many; of the ways in which flaws may meet, a sample for each task."""
    tasks = islice(order.tasks, _MOST_EXAMINED)
    found = list(examine_tasks(order.environment, tasks, order.limits, order.sys_path, sets=_FLAW_SETS))
    rejected = {task.id: list(map(str, examination.problems)) for task, examination in found if examination.problems}
    return {"examined": len(found), "rejected": rejected}


def _module_folders(suite: Suite, releases: Sequence[Release]) -> Iterator[str]:
    """Folders of the user's modules: beside the files that name them, then where the command was given."""
    for release in releases:
        yield str(release.folder.resolve())
    if suite.path is not None:
        yield str(suite.path.resolve().parent)
    yield str(Path.cwd())


def versions() -> dict[str, str]:
    """Return the versions that results may depend on."""
    packages = {name: version(name) for name in ("passhat", "ray", "numpy", "scipy", "msgpack")}
    return {"python": platform.python_version(), "platform": platform.platform(), **packages}


_MUST_AGREE = (
    *("suite", "releases", "runs_per_task", "seed", "stream", "limits", "hermetic", "on_missing", "max_missing"),
    *("retries", "traces"),
)


def refuse_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise NotAcceptable that names each difference between a campaign and the request to continue it."""
    differences = [line for key in _MUST_AGREE for line in _differences(key, then.get(key), now[key])]
    if differences:
        raise NotAcceptable("cannot resume, this has changed since the campaign was begun:\n" + "\n".join(differences))


def _differences(name: str, then: Any, now: Any) -> Iterator[str]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*then, *now]):
            yield from _differences(f"{name}.{key}", then.get(key), now.get(key))
    elif isinstance(then, list | tuple) and isinstance(now, list | tuple) and len(then) == len(now):
        for number, (before, after) in enumerate(zip(then, now, strict=True)):
            label = before.get("name", number) if isinstance(before, Mapping) else number
            yield from _differences(f"{name}.{label}", before, after)
    elif then != now:
        yield f"  {name}: {then!r} then, {now!r} now"
