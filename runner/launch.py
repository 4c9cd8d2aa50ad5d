"""Starts and resumes campaigns: a folder, a backend, and an execution for what was asked for."""

import os
import shlex
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from passhat.runner.campaign import Execution, Owed
from passhat.runner.dispatch import Backend, InlineBackend, RayBackend, RaySession, ray_address
from passhat.runner.errors import Incomplete, Interrupted, UsageError
from passhat.runner.progress import Progress, Tally
from passhat.runner.request import Prepared, Request, hermetic_of, load, prepare, refuse_changes
from passhat.runner.schedule import Stretch
from passhat.runner.store import Campaign, Log, create, refuse_taken, writing
from passhat.runner.truth_file import write_truth
from passhat.workers import frames
from passhat.workers.loading import WorkerError
from passhat.workers.order import Hermetic, WorkOrder
from passhat.workers.records import Status
from passhat.workers.worlds import achievable


@dataclass(frozen=True, slots=True)
class Place:
    """Where to run: number of workers (0: in this process; None: one a processor), which Ray, and with what on it."""

    workers: int | None = None
    address: str | None = None
    working_dir: Path | None = None  # every node gets a copy


def _refuse_unachievable(hermetic: Hermetic, place: Place) -> None:
    """Find out before anything starts whether this machine can keep the world as asked; a cluster's say themselves."""
    if place.workers == 0 or ray_address(place.address) == "local":
        try:
            achievable(hermetic)
        except WorkerError as error:
            raise UsageError(str(error)) from None


def run(request: Request, place: Place, *, out: Path | None = None, resume: bool = False) -> Campaign:
    """Carry out a request in a new folder, or with `resume` in the one it was begun in; return the campaign."""
    suite, releases = load(request)
    if resume and out is None:
        raise UsageError("--resume needs --out, the folder to continue; or call: passhat resume FOLDER")
    if out is not None and not resume:
        refuse_taken(out)
    _refuse_unachievable(hermetic_of(request, suite), place)
    with _ray(place) as session:
        prepared = prepare(request, suite, releases)
        if resume and out is not None:
            campaign = Campaign(out)
            refuse_changes(campaign.manifest, prepared.manifest)
        else:
            campaign = create(out, prepared.plan, prepared.manifest)
            write_truth(campaign, prepared.suite.tasks, prepared.releases, request.retries, wanted=request.truth)
        _execute(campaign, prepared, session, place)
    return campaign


def resume(campaign: Campaign, place: Place) -> Campaign:
    """Execute what a campaign's plan still lacks; refuse, by name, what has changed since it was begun."""
    if campaign.manifest["origin"] != "run":
        raise UsageError(f"{campaign.folder}: imported, so there is nothing to run")
    campaign = Campaign(campaign.folder.resolve())
    asked = campaign.manifest["request"]
    lists = {name: tuple(asked.get(name, ())) for name in ("releases", "flaws")}
    request = Request(**{**asked, **lists, "gate": None})  # the gate is not part of what is run
    with _working_in(request.folder):
        suite, releases = load(request)
        _refuse_unachievable(hermetic_of(request, suite), place)
        with _ray(place) as session:
            prepared = prepare(request, suite, releases)
            refuse_changes(campaign.manifest, prepared.manifest)
            _execute(campaign, prepared, session, place)
    return campaign


@contextmanager
def _working_in(folder: str) -> Iterator[None]:
    """Go where relative paths start; on a machine that has no such folder they start here, and digests decide."""
    before = Path.cwd()
    try:
        os.chdir(folder)
    except OSError as error:
        print(f"begun in {folder} ({error.strerror}): suite and releases are looked for in {before}", file=sys.stderr)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _ray(place: Place) -> Iterator[RaySession | None]:
    """Ray, if the place needs it; it starts while the caller plans."""
    if place.workers == 0:
        if place.address is not None or place.working_dir is not None:
            raise UsageError("--workers 0 runs in this process: leave --address and --working-dir out")
        yield None
        return
    if place.workers is not None and place.workers < 0:
        raise UsageError(f"--workers: found {place.workers}, expected 0 or more")
    if place.working_dir is not None and not place.working_dir.is_dir():
        raise UsageError(f"--working-dir {place.working_dir}: no such folder")
    address = ray_address(place.address)
    local_slots = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    slots = place.workers or (local_slots if address == "local" else None)
    session = RaySession(address, slots, place.working_dir)
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
        folders = _as_workers_see(prepared.order.sys_path, place.working_dir)
        order = replace(prepared.order, trace_dir=campaign.traces, sys_path=folders)
        backend, where = _backend(order, session)
        progress = Progress(tallies, _title(prepared))
        progress.say(f"{sum(s.stop - s.first for s in owed.stretches)} of {len(prepared.plan)} runs to do {where}")
        if session is not None and prepared.manifest["traces"] is None:
            _warn_of_far_traces(session, order, progress)
        campaign.note("start", slots=backend.slots, where=where, host=socket.gethostname(), pid=os.getpid())
        try:
            Execution(campaign, writer, backend, progress, owed=owed, max_attempts=max_attempts).run()
        except (Interrupted, Incomplete) as error:
            campaign.note("stopped", cause=str(error), done=progress.done)
            again = f"passhat resume {shlex.quote(str(campaign.folder))}"
            hint = f"{progress.done} of {progress.planned} runs kept\nresume   {again}"
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


def _as_workers_see(folders: Sequence[str], working_dir: Path | None) -> tuple[str, ...]:
    """Return the folders of the user's modules, those with a copy on every node relative to where the copy begins."""
    if working_dir is None:
        return tuple(folders)
    root = working_dir.resolve()
    return tuple(str(Path(f).relative_to(root)) if Path(f).is_relative_to(root) else f for f in folders)


def _warn_of_far_traces(session: RaySession, order: WorkOrder, progress: Progress) -> None:
    far = [host for host in session.hosts() if host != socket.gethostname()]
    if far:
        progress.say(
            f"traces of runs on {', '.join(far)} stay there in {order.trace_dir}, unless this is storage that all "
            "hosts share; --traces names such storage"
        )


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
