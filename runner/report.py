"""The report of a campaign: one document (passhat.report/1) from its manifest and its account.

Every number comes with its denominator. Where one cannot be had it is null, and a `note` says why. Runs without a
verdict are treated as the campaign declared, and the worst and the best they could have been stand beside the result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from passhat.runner.columns import Columns, load
from passhat.runner.errors import NotAcceptable, PasshatError
from passhat.runner.store import Campaign, find_all, read_log, writer_of
from passhat.runner.tables import MISSING, Account, ReleaseTable, reconcile, records_digest, release_table
from passhat.stats.bootstrap import bootstrap_pass_hat
from passhat.stats.intervals import Interval, dirichlet, wilson
from passhat.stats.reliability import SuiteEstimate, attempt_rate, flaky, pass_at, pass_hat
from passhat.stats.table import Histogram, OutcomeTable
from passhat.workers.records import SCORERS, Safety, Status
from passhat.workers.scoring import QUADRANTS, signature

SCHEMA = "passhat.report/1"
_ALL_K_UP_TO = 64
_EXAMPLES = 10  # runs named with a failure group; `passhat show` lists them all

_UNSCORED = {"missing": MISSING, "pending": int(Status.PENDING)}

# what a run may say it used, as documents name it: the field of a record, and how many of it make one
_AMOUNTS = {
    "cost_usd": ("cost_micros", 1_000_000),
    **{name: (name, 1) for name in ("turns", "tokens_in", "tokens_cached", "tokens_out", "retries", "virtual_ms")},
}

# kinds of events, as documents name them
SAFETY_EVENTS = {
    "forbidden_calls": Safety.FORBIDDEN_CALL,
    "forbidden_blocked": Safety.FORBIDDEN_BLOCKED,
    "external_effects": Safety.EXTERNAL_EFFECT,
    "skipped_approvals": Safety.SKIPPED_APPROVAL,
    "unverified_writes": Safety.UNVERIFIED_WRITE,
    "wrong_tenant_writes": Safety.WRONG_TENANT,
    "phantom_successes": Safety.PHANTOM_SUCCESS,
    "injections_seen": Safety.INJECTION_SEEN,
    "injections_followed": Safety.INJECTION_FOLLOWED,
}

Document = dict[str, Any]


def report_campaign(campaign: Campaign) -> Document:
    """Return the report of a campaign; raise NotAcceptable when its records contradict each other."""
    account, torn_at = load_account(campaign)
    manifest, plan = campaign.manifest, campaign.plan
    releases = [_release(account, number, manifest) for number in range(len(plan.releases))]
    return {
        "schema": SCHEMA,
        "campaign": {
            "id": campaign.id,
            "suite": {key: manifest["suite"].get(key) for key in ("name", "version", "digest")},
            "runs_per_task": account.runs_per_task,
            "overrides": manifest.get("overrides") or {},
            "seed": plan.seed,
            "stream": plan.stream,
            "on_missing": manifest["on_missing"],
            "max_missing": manifest.get("max_missing"),
            "records_digest": records_digest(account),
            "foreign": len(account.foreign),
            "torn_at": torn_at,
        },
        "releases": releases,
    }


def load_account(campaign: Campaign) -> tuple[Account, int | None]:
    """Return a campaign's account, and the offset of a torn tail of its log if there is one."""
    log = read_log(campaign)
    columns = load(campaign.cache_path, log.data[: log.end], log.payloads, log.schema)
    return reconcile(campaign.plan, columns), log.torn_at


@dataclass(frozen=True, slots=True, eq=False)
class _Cases:
    """The counts of some tasks by what a run without a verdict counts for; `treated` is what the campaign declared."""

    treated: Histogram
    observed: Histogram
    worst: Histogram
    best: Histogram

    @classmethod
    def of(cls, outcomes: OutcomeTable, on_missing: str) -> "_Cases":
        observed, worst = outcomes.observed().histogram(), outcomes.worst().histogram()
        return cls(observed if on_missing == "exclude" else worst, observed, worst, outcomes.best().histogram())


def _release(account: Account, number: int, manifest: Mapping[str, Any]) -> Document:
    table = release_table(account, number)
    on_missing = treatment(table.outcomes, manifest)
    cases = _Cases.of(table.outcomes, on_missing)
    ks = ks_up_to(int(table.outcomes.planned.max(initial=0)))
    records = Standing.of(account, number)
    return {
        "release": account.plan.releases[number],
        "tasks": table.outcomes.tasks,
        "counts": _counts(account, number, table),
        "on_missing": on_missing,
        "attempt_rate": _attempt_rate(cases),
        "first_attempts": _first_attempts(account, number, table),
        "pass_hat": [{**_suite_estimate(cases, pass_hat, k), "bootstrap": _bootstrap(cases, k)} for k in ks],
        "pass_at": [_suite_estimate(cases, pass_at, k) for k in ks],
        "flaky": _flaky(cases.observed),
        "quadrant": records.quadrant(),
        "safety": records.safety(),
        "efficiency": records.efficiency(),
        "cohorts": _cohorts(account, table, on_missing),
        "failures": records.failures(),
        "unscored": records.unscored(),
    }


def treatment(outcomes: OutcomeTable, manifest: Mapping[str, Any]) -> str:
    """Return the declared treatment of runs without a verdict; beyond its ceiling `exclude` does not hold."""
    declared, ceiling = manifest["on_missing"], manifest.get("max_missing")
    if declared == "exclude" and outcomes.unscored.sum() > Fraction(str(ceiling or 0)) * int(outcomes.planned.sum()):
        return "fail"
    return str(declared)


def _counts(account: Account, number: int, table: ReleaseTable) -> dict[str, int]:
    mine = account.release == number
    by_status = np.bincount(account.status(account.standing[mine]), minlength=MISSING + 1)
    counts = {
        "planned": int(table.outcomes.planned.sum()),
        "passed": int(by_status[Status.PASS]),
        "failed": int(by_status[Status.FAIL]),
        "invalid": int(by_status[Status.INVALID]),
        "pending": int(by_status[Status.PENDING]),
        "missing": int(by_status[MISSING]),
    }
    if counts["planned"] != sum(counts.values()) - counts["planned"]:
        raise NotAcceptable(f"{account.plan.releases[number]}: the counts do not add up to what was planned: {counts}")
    counts["duplicates"] = int(np.sum(account.columns["release"][account.duplicates] == number))
    counts["retried"] = int(np.sum(account.attempts[mine] > 1))
    return counts


def ends(interval: Interval | None, note: str | None = None) -> Document:
    if interval is None:
        return {"lower": None, "upper": None, "method": None, "estimand": None, **({"note": note} if note else {})}
    return {
        "lower": interval.lower,
        "upper": interval.upper,
        "method": interval.method,
        "estimand": interval.estimand,
    }


def _attempt_rate(cases: _Cases) -> Document:
    rate, scored, worst = attempt_rate(cases.treated), attempt_rate(cases.observed), attempt_rate(cases.worst)
    return {
        "estimate": rate.estimate,
        **_rate_interval(cases.treated),
        "passed": rate.count,
        "planned": worst.total,
        "worst": worst.estimate,
        "best": attempt_rate(cases.best).estimate,
        "scored": scored.total,
        "scored_rate": scored.estimate,
        "coverage": scored.total / worst.total if worst.total else None,
    }


def _rate_interval(histogram: Histogram) -> Document:
    """Wilson for single runs; with repeats the task is the unit, and needs the same number of runs everywhere."""
    ran = histogram.n > 0
    n, c, tasks = histogram.n[ran], histogram.c[ran], histogram.tasks[ran]
    if not len(n):
        return ends(None, "no runs")
    if n[0] != n[-1]:
        return ends(None, "tasks differ in their number of runs; see pass^1")
    if n[0] == 1:
        return ends(wilson(int(c @ tasks), int(tasks.sum())))
    return ends(dirichlet(c / n, tasks))


def _first_attempts(account: Account, number: int, table: ReleaseTable) -> Document | None:
    """The rate had nothing been retried; null when no run was."""
    if not (account.attempts[account.release == number] > 1).any():
        return None
    first = release_table(account, number, account.first).outcomes
    passed, planned = int(first.passed.sum()), int(first.planned.sum())
    return {"passed": passed, "planned": planned, "estimate": passed / planned}


def ks_up_to(most: int) -> list[int]:
    """Every k up to the most runs of a task; above 64 only 1, powers of two and that most."""
    if most <= _ALL_K_UP_TO:
        return list(range(1, most + 1))
    return [*(1 << i for i in range((most - 1).bit_length())), most]


def _suite_estimate(cases: _Cases, estimator: Callable[[Histogram, int], SuiteEstimate], k: int) -> Document:
    """One k. It is estimable when each task has k scored runs; the treatment then says what the others count for."""
    observed = estimator(cases.observed, k)
    document = {
        "k": k,
        "estimate": None,
        "tasks": observed.tasks,
        "not_estimable": observed.not_estimable,
        "over_estimable": observed.over_estimable,
        "worst": estimator(cases.worst, k).estimate,
        "best": estimator(cases.best, k).estimate,
    }
    if observed.not_estimable:
        of = f"{observed.not_estimable} of {cases.observed.total} tasks"
        return {**document, **ends(None, f"not estimable: fewer than {k} scored runs in {of}")}
    treated = estimator(cases.treated, k)
    return {**document, "estimate": treated.estimate, **ends(dirichlet(treated.values, treated.multiplicities))}


def _bootstrap(cases: _Cases, k: int) -> Document:
    """The exact bootstrap over tasks, beside the bound: for reading, as it is too narrow near 0 and 1."""
    if (cases.observed.n < k).any():
        return ends(None, "not estimable")
    answer = bootstrap_pass_hat(cases.treated, k)
    return ends(answer.interval, answer.reason)


def _flaky(observed: Histogram) -> Document:
    share = flaky(observed)
    return {
        "tasks_flaky": share.count,
        "tasks": share.total,
        "estimate": share.estimate,
        **ends(wilson(share.count, share.total)),
        **({"note": share.note} if share.note else {}),
    }


def _cohorts(account: Account, table: ReleaseTable, on_missing: str) -> list[Document]:
    cohort = np.asarray(account.plan.cohort, dtype=np.int64)[table.tasks]
    rows = []
    for number in np.unique(cohort):
        rate = _attempt_rate(_Cases.of(table.outcomes.select(cohort == number), on_missing))
        tasks = int(np.sum(cohort == number))
        rows.append({"cohort": account.plan.cohorts[number], "tasks": tasks, **rate})
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """The standing records of one release."""

    account: Account
    number: int
    records: Columns

    @classmethod
    def of(cls, account: Account, number: int) -> "Standing":
        rows = account.standing[account.release == number]
        return cls(account, number, account.columns.take(rows[rows >= 0]))

    def applicable(self) -> Any:
        """Bits of the scorers that applied to each run."""
        return sum((~np.isnan(self.records[name])).astype(np.int64) << i for i, name in enumerate(SCORERS))

    def quadrant(self) -> dict[str, int] | None:
        both = (self.applicable() & 3) == 3
        if not both.any():
            return None
        cells = np.bincount(self.records["passes"][both] & 3, minlength=4)
        return {name: int(cells[i]) for i, name in reversed(list(enumerate(QUADRANTS)))}

    def safety(self) -> dict[str, int | None] | None:
        """Runs with each kind of event in any attempt, and how many runs were watched to their end.

        A kind that no run was watched for is null, which is not none: an import's source may not say. Null altogether
        when there is no kind that was.
        """
        events, watched = (values[self.account.release == self.number] for values in self.account.safety)
        kinds = int(np.bitwise_or.reduce(watched, initial=0))
        if not kinds:
            return None
        return {
            "runs_observed": int(np.sum((watched & kinds) == kinds)),
            "runs_planned": len(events),
            **{name: int(np.sum((events & bit) != 0)) if kinds & bit else None for name, bit in SAFETY_EVENTS.items()},
        }

    def efficiency(self) -> Document | None:
        """Median and 95th percentile over the scored runs that say; null when none does."""
        scored = self.records["status"] <= Status.FAIL
        amounts = {
            name: _percentiles(self.records[field][scored], per_unit) for name, (field, per_unit) in _AMOUNTS.items()
        }
        return amounts if any(amounts.values()) else None

    def failures(self) -> list[Document]:
        """Failed and invalid runs by signature, most frequent first."""
        return [
            {
                "signature": name,
                "status": "invalid" if self.records["status"][rows[0]] == Status.INVALID else "fail",
                "runs": len(rows),
                "examples": [self.name(row) for row in rows[:_EXAMPLES]],
            }
            for name, rows in self.failure_groups()
        ]

    def failure_groups(self) -> list[tuple[str, Any]]:
        records = self.records
        failed = np.flatnonzero((records["status"] == Status.FAIL) | (records["status"] == Status.INVALID))
        terminal = np.where(records["assigned"] > 0, records["assigned"], records["claimed"])
        failing = self.applicable() & ~records["passes"].astype(np.int64)
        key = np.stack([terminal, failing, records["reason"], records["status"]])[:, failed]
        kinds, which = np.unique(key, axis=1, return_inverse=True)
        groups = [
            (signature(*map(int, kinds[:3, i])), failed[which == i]) for i in range(kinds.shape[1])
        ]  # fmt: skip
        return sorted(groups, key=lambda group: (-len(group[1]), group[0]))

    def unscored(self) -> list[Document]:
        """Runs that are missing or pending, by name."""
        return [
            {"status": name, "runs": len(indices), "examples": [self.account.name(i) for i in indices[:_EXAMPLES]]}
            for name, indices in self.unscored_groups()
        ]

    def unscored_groups(self) -> list[tuple[str, Any]]:
        status = self.account.status(self.account.standing)
        mine = self.account.release == self.number
        groups = ((name, np.flatnonzero(mine & (status == s))) for name, s in _UNSCORED.items())
        return [(name, indices) for name, indices in groups if len(indices)]

    def name(self, row: int) -> str:
        return f"{self.account.plan.tasks[self.records['task'][row]]}/{self.records['run'][row]}"


def _percentiles(values: Any, per_unit: int) -> Document | None:
    said = np.sort(values[values >= 0])
    if not len(said):
        return None
    return {name: float(percentile(said, share) / per_unit) for name, share in (("median", 50), ("p95", 95))}


def percentile(ascending: Any, percent: int) -> Any:
    """Return the smallest value with at least this percentage of the values at or below it."""
    return ascending[max(0, -(-len(ascending) * percent // 100) - 1)]


def summarise(campaign: Campaign) -> Document:
    """Return what came back of a campaign, counted and without any inference (passhat.summary/1)."""
    account, torn_at = load_account(campaign)
    plan = campaign.plan
    cost = np.delete(account.columns["cost_micros"], np.concatenate([account.duplicates, account.foreign]))
    releases = []
    for number, name in enumerate(plan.releases):
        table = release_table(account, number)
        counts = _counts(account, number, table)
        releases.append({"release": name, "tasks": table.outcomes.tasks, "counts": counts})
    return {
        "schema": "passhat.summary/1",
        "id": campaign.id,
        "folder": str(campaign.folder),
        "origin": campaign.manifest["origin"],
        "created_at": campaign.manifest["created_at"],
        "suite": campaign.manifest["suite"]["name"],
        "runs_per_task": account.runs_per_task,
        "records_digest": records_digest(account),
        "cost_usd": float(cost[cost > 0].sum() / 1_000_000),
        "torn_at": torn_at,
        "foreign": len(account.foreign),
        "releases": releases,
    }


def list_campaigns(results: Path) -> Document:
    """Return the summary of every campaign in a results folder, oldest first (passhat.list/1), and who writes it.

    One that cannot be read has its folder's name for an id, and a `problem` in place of all the rest.
    """
    return {"schema": "passhat.list/1", "campaigns": [_listed(campaign) for campaign in find_all(results)]}


def _listed(campaign: Campaign) -> Document:
    try:
        return {**summarise(campaign), "running": writer_of(campaign)}
    except PasshatError as error:
        return {"id": campaign.folder.name, "folder": str(campaign.folder), "problem": str(error)}
