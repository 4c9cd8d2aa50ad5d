"""Finds what `passhat show` asks for: a campaign, a release's failures, a task's runs, or one run with its trace."""

from pathlib import Path
from typing import Any

import numpy as np

from passhat.runner.errors import InvalidFile, NothingMatched
from passhat.runner.files import nearest, shown
from passhat.runner.report import Standing, load_account, summarise
from passhat.runner.store import Campaign, find
from passhat.runner.tables import Account
from passhat.workers.frames import DamagedFrame
from passhat.workers.records import SCORERS, Level, Outcome, Reason, Safety, Status
from passhat.workers.scoring import signature
from passhat.workers.traces import as_of_now, read_trace

Document = dict[str, Any]


def show(what: str | None) -> Document:
    """Return what RUN[/release[/task[/run]]] names, as passhat.show/1 with a `kind`."""
    campaign, rest = _campaign_and_rest(what)
    if not rest:
        return {"schema": "passhat.show/1", "kind": "campaign", **_campaign(campaign)}
    account, _ = load_account(campaign)
    plan = account.plan
    release, rest = _match(rest, plan.releases, "release")
    if not rest:
        return {"schema": "passhat.show/1", "kind": "release", **_release(campaign, account, release)}
    if rest in plan.tasks:
        return {"schema": "passhat.show/1", "kind": "task", **_task(account, release, plan.tasks.index(rest))}
    task_id, _, run = rest.rpartition("/")
    if task_id not in plan.tasks:
        raise NothingMatched(f"{shown(rest)}: no such task; {nearest(task_id or rest, plan.tasks)}")
    if not run.isdecimal():
        raise NothingMatched(f"run {shown(run)}: expected a run-index from 0 to {plan.runs_per_task - 1}")
    document = run_document(campaign, account, release, plan.tasks.index(task_id), int(run))
    return {"schema": "passhat.show/1", "kind": "run", **document}


def _campaign_and_rest(what: str | None) -> tuple[Campaign, str]:
    """Split off the longest beginning that is a campaign folder or id; what is left names something in it."""
    if what is None:
        return find(None), ""
    parts = what.split("/")
    for length in range(len(parts), 0, -1):
        try:
            return find(Path("/".join(parts[:length]) or "/")), "/".join(parts[length:])
        except InvalidFile:
            continue
    raise InvalidFile(f"{what}: no part of it is a campaign folder")


def _match(rest: str, names: tuple[str, ...], kind: str) -> tuple[int, str]:
    for number, name in enumerate(names):
        if rest == name or rest.startswith(f"{name}/"):
            return number, rest[len(name) + 1 :]
    raise NothingMatched(f"{shown(rest)}: no such {kind}; {nearest(rest.split('/')[0], names)}")


def _campaign(campaign: Campaign) -> Document:
    return {"summary": summarise(campaign), "manifest": campaign.manifest, "events": campaign.events()}


def _release(campaign: Campaign, account: Account, release: int) -> Document:
    standing = Standing.of(account, release)
    groups = [
        {"signature": name, "runs": [standing.name(row) for row in rows]} for name, rows in standing.failure_groups()
    ]
    unscored = [
        {"status": name, "runs": [account.name(index) for index in indices]}
        for name, indices in standing.unscored_groups()
    ]
    release_name = account.plan.releases[release]
    return {"folder": str(campaign.folder), "release": release_name, "failures": groups, "unscored": unscored}


def _task(account: Account, release: int, task: int) -> Document:
    plan = account.plan
    mine = np.flatnonzero((account.release == release) & (account.task == task))
    runs = [_brief(account, int(index)) for index in mine]
    cohort = plan.cohorts[plan.cohort[task]]
    return {"release": plan.releases[release], "task": plan.tasks[task], "cohort": cohort, "runs": runs}


def _brief(account: Account, index: int) -> Document:
    row = int(account.standing[index])
    run = int(account.planned[index]) // len(account.plan.releases) % account.plan.runs_per_task
    if row < 0:
        return {"run": run, "status": "missing", "how": "", "attempts": 0}
    how = _signature(account, row)
    status = Status(int(account.columns["status"][row])).name.lower()
    return {"run": run, "status": status, "how": how, "attempts": int(account.attempts[index])}


def _signature(account: Account, row: int) -> str:
    columns = account.columns
    terminal = int(columns["assigned"][row]) or int(columns["claimed"][row])
    applicable = sum(1 << i for i, name in enumerate(SCORERS) if not np.isnan(columns[name][row]))
    return signature(terminal, applicable & ~int(columns["passes"][row]), int(columns["reason"][row]))


def run_document(campaign: Campaign, account: Account, release: int, task: int, run: int) -> Document:
    """Every attempt at one run, and the trace of the one that stands."""
    plan, columns = account.plan, account.columns
    name = f"{plan.releases[release]}/{plan.tasks[task]}/{run}"
    mine = np.flatnonzero((columns["release"] == release) & (columns["task"] == task) & (columns["run"] == run))
    index = np.flatnonzero(account.planned == plan.grid.position(release, task, run))
    if run >= plan.runs_per_task or not len(index):
        raise NothingMatched(f"{name}: was not planned")
    standing = int(account.standing[index[0]])
    document: Document = {
        "run": name,
        "cohort": plan.cohorts[plan.cohort[task]],
        "status": Status(int(columns["status"][standing])).name.lower() if standing >= 0 else "missing",
        "attempts": [_record(account, int(row)) for row in mine],
        "trace": None,
    }
    if standing >= 0 and columns["trace_file"][standing] >= 0:
        document["trace"] = _trace(campaign, columns["trace_file"][standing], columns["trace_offset"][standing])
    return document


def _trace(campaign: Campaign, file: Any, offset: Any) -> Document:
    try:
        return as_of_now(read_trace(campaign.traces, int(file), int(offset)))
    except (OSError, DamagedFrame) as error:
        raise InvalidFile(f"{campaign.traces}: the trace cannot be read: {error}") from None


def _record(account: Account, row: int) -> Document:
    """A record in words, without what was not said."""
    columns = account.columns
    value = {name: columns[name][row] for name in columns.fields}
    scores = {
        name: {"score": float(value[name]), "passed": bool(int(value["passes"]) >> i & 1)}
        for i, name in enumerate(SCORERS)
        if not np.isnan(value[name])
    }
    amounts = ("turns", "calls", "bad_calls", "tokens_in", "tokens_cached", "tokens_out", "retries")
    times = ("virtual_ms", "wall_us")
    cost = int(value["cost_micros"])
    return {
        "attempt": int(value["attempt"]),
        "status": Status(int(value["status"])).name.lower(),
        "claimed": Outcome(int(value["claimed"])).name,
        "assigned": Outcome(int(value["assigned"])).name,
        "reason": Reason(int(value["reason"])).name,
        "scores": scores,
        "safety": [flag.name for flag in Safety(int(value["safety"]))],
        **{name: int(value[name]) for name in (*amounts, *times) if value[name] >= 0},
        **({"cost_usd": cost / 1_000_000} if cost >= 0 else {}),
        "hermetic": {plane: Level(int(value[f"{plane}_level"])).name for plane in ("env", "agent")},
        "hermetic_requested": {plane: Level(int(value[f"{plane}_requested"])).name for plane in ("env", "agent")},
        "violations": int(value["violations"]),
        "state_digest": f"{int(value['state_digest']):016x}",
        "digest": f"{int(value['digest']):016x}",
    }
