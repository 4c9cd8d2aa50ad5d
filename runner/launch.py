"""Starts and resumes campaigns: from what the user asked for to a plan, a folder, a backend, and an execution.

What was asked for is kept in the manifest, so that a campaign can be resumed with nothing but its folder; what has
changed since then is refused by name.
"""

import os
import platform
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from passhat.runner.campaign import Execution, Owed
from passhat.runner.dispatch import Backend, InlineBackend, RayBackend, RaySession, ray_address
from passhat.runner.errors import Incomplete, Interrupted, InvalidFile, NotAcceptable, UsageError
from passhat.runner.plan import Plan
from passhat.runner.progress import Progress, Tally
from passhat.runner.release import Release, check_release, load_releases
from passhat.runner.schedule import Stretch
from passhat.runner.store import Campaign, Log, create, refuse_taken, writing
from passhat.runner.suite import DESK, Suite, catalogue, load_suite
from passhat.runner.targets import check_target, code_digest, refuse_ambiguous_modules
from passhat.workers import frames, seeds
from passhat.workers.admission import examine
from passhat.workers.host import WorkerError, build_environment
from passhat.workers.order import AgentSpec, Limits, WorkOrder
from passhat.workers.records import Status
from passhat.workers.session import compile_tools

_TRACE_EVERY = 50
_MOST_EXAMINED = 1000
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
    folder: str = "."  # relative paths and modules start here


@dataclass(frozen=True, slots=True)
class Place:
    """Where to run: number of workers (0: in this process; None: one a processor), and which Ray."""

    workers: int | None = None
    address: str | None = None


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
    """Read the files a request names and check that its agents can be had."""
    if request.runs is not None and not 1 <= request.runs <= _MOST_RUNS:
        raise UsageError(f"--runs: found {request.runs}, expected at least 1 and at most {_MOST_RUNS}")
    if not 0 <= request.seed < 1 << 63:
        raise UsageError(f"--seed: found {request.seed}, expected at least 0 and less than 2^63")
    if request.retries < 0:
        raise UsageError(f"--retries: found {request.retries}, expected at least 0")
    if request.timeout_s is not None and not request.timeout_s > 0:
        raise UsageError(f"--timeout: found {request.timeout_s}, expected more than 0 seconds")
    suite = load_suite(request.suite, tasks=request.tasks, filter=request.filter)
    releases = load_releases(request.releases)
    own = [release.folder for release in releases if release.kind == "python"]
    if suite.environment != DESK:
        check_target(suite.environment, [Path(folder) for folder in _module_folders(suite, releases)])
        own += [suite.path.parent] if suite.path is not None else []
    refuse_ambiguous_modules(own)
    for release in releases:
        check_release(release)
        if release.kind == "scripted":
            _refuse_without_oracle(suite, release)
    return suite, releases


def _refuse_without_oracle(suite: Suite, release: Release) -> None:
    """A scripted release plays each task's oracle; generated tasks all have one."""
    if isinstance(suite.tasks, tuple):
        without = next((task.id for task in suite.tasks if not task.oracle), None)
        if without is not None:
            raise UsageError(f"release {release.name} is scripted, and task {without} has no oracle to play")


def prepare(request: Request, suite: Suite, releases: Sequence[Release]) -> Prepared:
    """Plan a request: name every run, and what the results will depend on."""
    contents = catalogue(suite)
    runs = request.runs or suite.runs_per_task
    cohorts = tuple(dict.fromkeys(contents.cohorts))
    number = {name: i for i, name in enumerate(cohorts)}
    limits = suite.limits if request.timeout_s is None else replace(suite.limits, seconds=request.timeout_s)
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
        "seed": request.seed,
        "stream": request.stream,
        "limits": asdict(limits),
        "on_missing": suite.on_missing,
        "max_missing": suite.max_missing,
        "retries": request.retries,
        "versions": versions(),
        "request": asdict(request),
    }
    order = WorkOrder(
        environment=suite.environment,
        releases=tuple(AgentSpec(r.name, r.agent, dict(r.flaws)) for r in releases),
        tasks=suite.tasks,
        runs_per_task=runs,
        seed=request.seed,
        stream=request.stream,
        limits=limits,
        sys_path=tuple(dict.fromkeys(_module_folders(suite, releases))),
        trace_every=_TRACE_EVERY,
    )
    return Prepared(suite, tuple(releases), limits, plan, manifest, order)


def _identity(release: Release) -> dict[str, Any]:
    return {
        "name": release.name,
        "digest": release.digest,
        "agent": release.agent,
        "code": code_digest(release.agent) if release.kind == "python" else None,
        "flaws": {name: list(rate) for name, rate in release.flaws.items()},
        "identity": dict(release.identity),
    }


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
    """Examine the tasks, or the first of very many."""
    examined = min(len(order.tasks), _MOST_EXAMINED)
    sys.path[:0] = [folder for folder in order.sys_path if folder not in sys.path]
    with redirect_stdout(sys.stderr):
        try:
            environment = build_environment(order.environment)
            tools = compile_tools(environment.spec)
        except (WorkerError, ValueError) as error:
            raise InvalidFile(str(error)) from None
        problems = {order.tasks[i].id: examine(order.tasks[i], environment, tools) for i in range(examined)}
        environment.close()
    return {"examined": examined, "rejected": {task: list(why) for task, why in problems.items() if why}}


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


def run(request: Request, place: Place, *, out: Path | None = None, resume: bool = False) -> Campaign:
    """Carry out a request in a new folder, or with `resume` in the one it was begun in; return the campaign."""
    suite, releases = load(request)
    if resume and out is None:
        raise UsageError("--resume needs --out, the folder to continue; or call: passhat resume FOLDER")
    if out is not None and not resume:
        refuse_taken(out)
    with _ray(place) as session:
        prepared = prepare(request, suite, releases)
        if resume and out is not None:
            campaign = Campaign(out)
            refuse_changes(campaign.manifest, prepared.manifest)
        else:
            campaign = create(out, prepared.plan, prepared.manifest)
        _execute(campaign, prepared, session, place)
    return campaign


def resume(campaign: Campaign, place: Place) -> Campaign:
    """Execute what a campaign's plan still lacks; refuse, by name, what has changed since it was begun."""
    if campaign.manifest["origin"] != "run":
        raise UsageError(f"{campaign.folder}: imported, so there is nothing to run")
    campaign = Campaign(campaign.folder.resolve())
    request = Request(**{**campaign.manifest["request"], "releases": tuple(campaign.manifest["request"]["releases"])})
    with _working_in(request.folder):
        suite, releases = load(request)
        with _ray(place) as session:
            prepared = prepare(request, suite, releases)
            refuse_changes(campaign.manifest, prepared.manifest)
            _execute(campaign, prepared, session, place)
    return campaign


@contextmanager
def _working_in(folder: str) -> Iterator[None]:
    before = Path.cwd()
    try:
        os.chdir(folder)
    except OSError as error:
        raise NotAcceptable(f"the folder the campaign was begun in cannot be entered: {error}") from None
    try:
        yield
    finally:
        os.chdir(before)


_MUST_AGREE = ("suite", "releases", "runs_per_task", "seed", "stream", "limits", "on_missing", "max_missing", "retries")


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


@contextmanager
def _ray(place: Place) -> Iterator[RaySession | None]:
    """Ray, if the place needs it; it starts while the caller plans."""
    if place.workers == 0:
        if place.address is not None:
            raise UsageError("--workers 0 runs in this process: leave --address out")
        yield None
        return
    if place.workers is not None and place.workers < 0:
        raise UsageError(f"--workers: found {place.workers}, expected 0 or more")
    address = ray_address(place.address)
    local_slots = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    session = RaySession(address, place.workers or (local_slots if address == "local" else None))
    try:
        yield session
    finally:
        session.close()


def _execute(campaign: Campaign, prepared: Prepared, session: RaySession | None, place: Place) -> None:
    with writing(campaign) as (writer, log):
        max_attempts = prepared.manifest["retries"] + 1
        owed, tallies = _whats_left(campaign, log, max_attempts)
        if not owed.stretches:
            return
        order = replace(prepared.order, trace_dir=str(campaign.traces.resolve()))
        backend, where = _backend(order, session)
        progress = Progress(tallies, _title(prepared))
        progress.say(f"{sum(s.stop - s.first for s in owed.stretches)} of {len(prepared.plan)} runs to do {where}")
        campaign.note("start", slots=backend.slots, where=where, host=socket.gethostname(), pid=os.getpid())
        try:
            Execution(campaign, writer, backend, progress, owed=owed, max_attempts=max_attempts).run()
        except (Interrupted, Incomplete) as error:
            campaign.note("stopped", cause=str(error), done=progress.done)
            hint = f"{progress.done} of {progress.planned} runs kept\nresume   passhat resume {campaign.folder}"
            raise type(error)(f"{error}; {hint}") from None
        finally:
            backend.close()
        campaign.note("end", done=progress.done)


def _backend(order: WorkOrder, session: RaySession | None) -> tuple[Backend, str]:
    if session is None:
        return InlineBackend(order), "in this process"
    backend = RayBackend(order, session.wait())
    whose = "a Ray of our own" if session.address == "local" else f"Ray at {session.address}"
    return backend, f"on {backend.slots} workers of {whose}, up after {session.started_s:.1f} s"


def _title(prepared: Prepared) -> str:
    suite, plan = prepared.suite, prepared.plan
    return f"{suite.name}  {len(plan.tasks)} tasks × {plan.runs_per_task} runs × {len(plan.releases)} releases"


def _whats_left(campaign: Campaign, log: Log, max_attempts: int) -> tuple[Owed, list[Tally]]:
    """What the log lacks, and what it has, counted by release."""
    plan = campaign.plan
    tallies = [Tally(name, len(plan) // len(plan.releases)) for name in plan.releases]
    if not log.payloads:
        return Owed([Stretch(0, len(plan), 1)], 0), tallies

    from passhat.runner.columns import from_payloads
    from passhat.runner.tables import owed, reconcile

    account = reconcile(plan, from_payloads(log.payloads))
    stretches = owed(account, max_attempts)
    for number, tally in enumerate(tallies):
        mine = account.release == number
        status = account.status(account.standing[mine])
        retrying = (status == Status.INVALID) & (account.attempts[mine] < max_attempts)
        tally.passed, tally.failed, tally.invalid = (int((status[~retrying] == s).sum()) for s in list(Status)[:3])
    shards = (frames.header_of(payload).shard for payload in log.payloads)
    return Owed(stretches, 1 + max(shards)), tallies
