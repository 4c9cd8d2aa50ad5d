"""The comparison of two releases on the tasks both ran: one document (passhat.comparison/1).

The task is the sampling unit throughout: intervals and tests are over tasks, and the cells (task, run-index) are counts
for reading. Differences are candidate minus baseline. Runs without a verdict count as the campaigns declared, and what
the difference could be at worst and at best stands beside it.
"""

from collections import Counter
from math import lcm
from typing import Any

import numpy as np

from passhat.runner.pairing import EFFICIENCY_FIELDS, Pairing, Side
from passhat.runner.report import SAFETY_EVENTS, ends, ks_up_to, percentile, treatment
from passhat.stats.bootstrap import bootstrap_mean
from passhat.stats.discordant import mcnemar_tasks
from passhat.stats.multiplicity import holm
from passhat.stats.paired import (
    Completions,
    PairHistogram,
    bootstrap_difference,
    completed_difference,
    completions,
    count_cells,
    moved_tasks,
    pair_tables,
    paired_dirichlet,
    pass_hat_differences,
)
from passhat.stats.sign_flips import sign_flip_pass_hat
from passhat.stats.table import IntArray
from passhat.workers.records import Status
from passhat.workers.scoring import QUADRANTS

SCHEMA = "passhat.comparison/1"
_EXAMPLES = 10

Document = dict[str, Any]


def compare(pairing: Pairing) -> Document:
    """Return the comparison of two releases that were paired."""
    pairs = _treated(pairing)
    both = completions(pairing.outcomes_base, pairing.outcomes_candidate)
    most = int(min(pairing.outcomes_base.planned.max(), pairing.outcomes_candidate.planned.max()))
    deltas = {k: _delta(pairs, both, k) for k in ks_up_to(most)}
    moved = moved_tasks(pairing.outcomes_base, pairing.outcomes_candidate)
    return {
        "schema": SCHEMA,
        "base": pairing.base.release,
        "candidate": pairing.candidate.release,
        "identities": {"base": _identity(pairing.base), "candidate": _identity(pairing.candidate)},
        "tasks": len(pairing.tasks),
        "runs_per_task": most,
        "unmatched": pairing.unmatched,
        "differences": list(pairing.differences),
        "unverified": list(pairing.unverified),
        "counts": {"base": pairing.counts(0), "candidate": pairing.counts(1)},
        "cells": _cells(pairing),
        "mcnemar": _mcnemar(pairs),
        "sign_flip": _sign_flip(pairs, 1),
        "delta": {
            "attempt_rate": deltas[1],
            "pass_hat": [{"k": k, **delta} for k, delta in deltas.items()],
        },
        "fixes": [pairing.tasks[row] for row in moved.fixes],
        "regressions": [pairing.tasks[row] for row in moved.regressions],
        "not_comparable": [pairing.tasks[row] for row in moved.not_comparable],
        "moves": _moves(pairing, [*moved.fixes.tolist(), *moved.regressions.tolist()]),
        "cohorts": _cohorts(pairing),
        "movement": _movement(pairing),
        "safety": _safety(pairing),
        "efficiency": {name: _efficiency(pairing, *of) for name, of in EFFICIENCY_FIELDS.items()},
    }


def _identity(side: Side) -> Document:
    manifest = side.campaign.manifest
    release = next(entry for entry in manifest["releases"] if entry["name"] == side.release)
    return {
        "release": side.release,
        "campaign": side.campaign.id,
        "folder": str(side.campaign.folder),
        "digest": release["digest"],
        "identity": release["identity"],
        "suite": {key: manifest["suite"].get(key) for key in ("name", "version", "digest")},
        "overrides": manifest.get("overrides") or {},
    }


def _treated(pairing: Pairing) -> PairHistogram:
    """Pair the counts with runs without a verdict as each campaign declared."""
    sides = (pairing.base, pairing.outcomes_base), (pairing.candidate, pairing.outcomes_candidate)
    base, candidate = (
        outcomes.observed() if treatment(outcomes, side.campaign.manifest) == "exclude" else outcomes.worst()
        for side, outcomes in sides
    )
    return pair_tables(base, candidate)


def _cells(pairing: Pairing) -> Document:
    base, candidate = (cells.status for cells in pairing.cells)
    scored = (base <= Status.FAIL) & (candidate <= Status.FAIL)
    cells = count_cells(base == Status.PASS, candidate == Status.PASS, scored)
    return {
        "both_pass": cells.both,
        "base_only": cells.a_only,
        "candidate_only": cells.b_only,
        "both_fail": cells.neither,
        "unscored": cells.unscored,
    }


def _mcnemar(pairs: PairHistogram) -> Document | None:
    """The exact test of tasks with one run each; with repeats the sign-flip test takes its place."""
    if not (np.all(pairs.n_a == 1) and np.all(pairs.n_b == 1)):
        return None
    test = mcnemar_tasks(pairs)
    return {
        "p_value": test.p_value,
        "mid_p": test.mid_p,
        "log10_p": test.log10_p,
        "base_only": test.a_only,
        "candidate_only": test.b_only,
        **({"note": test.reason} if test.reason else {}),
    }


def _sign_flip(pairs: PairHistogram, k: int) -> Document:
    test = sign_flip_pass_hat(pairs, k)
    return {
        "p_value": test.p_value,
        "log10_p": test.log10_p,
        "method": test.method,
        "tasks_discordant": test.tasks_discordant,
        **({"note": test.reason} if test.reason else {}),
    }


def _delta(pairs: PairHistogram, both: Completions, k: int) -> Document:
    """The mean over tasks of the difference of pass^k; k = 1 is the attempt rate, task by task."""
    differences = pass_hat_differences(pairs, k)
    whole = completed_difference(both, k)
    document = {
        "estimate": differences.estimate,
        "tasks": sum(differences.tasks),
        "not_estimable": differences.not_estimable,
        "worst": whole.worst,
        "best": whole.best,
        "worst_lower": None if whole.interval is None else whole.interval.lower,
        "best_upper": None if whole.interval is None else whole.interval.upper,
    }
    if differences.estimate is None:
        of = f"{differences.not_estimable} of {pairs.total} tasks"
        return {**document, **ends(None, f"not estimable: fewer than {k} runs in {of}"), "sign_flip": None}
    bootstrap = bootstrap_difference(differences)
    return {
        **document,
        **ends(paired_dirichlet(differences)),
        "bootstrap": ends(bootstrap.interval, bootstrap.reason),
        "sign_flip": _sign_flip(pairs, k),
    }


def _moves(pairing: Pairing, rows: list[int]) -> list[Document]:
    """Tasks whose share of passes moved, the largest moves first."""
    base, candidate = pairing.outcomes_base, pairing.outcomes_candidate
    moved = [
        {
            "task": pairing.tasks[row],
            "cohort": pairing.cohorts[row],
            "base_passed": int(base.passed[row]),
            "base_scored": int(base.scored[row]),
            "cand_passed": int(candidate.passed[row]),
            "cand_scored": int(candidate.scored[row]),
            "delta": float(candidate.passed[row] / candidate.scored[row] - base.passed[row] / base.scored[row]),
        }
        for row in rows
    ]
    return sorted(moved, key=lambda move: (-abs(move["delta"]), move["task"]))


def _cohorts(pairing: Pairing) -> list[Document]:
    """A row a cohort; the p-values were not asked for one by one, so Holm's adjustment stands beside them."""
    named = [name for name in pairing.base.account.plan.cohorts if name in set(pairing.cohorts)]
    rows = [_cohort(cohort, pairing.cohort(cohort)) for cohort in named]
    tests = [row["sign_flip"] for row in rows if row["sign_flip"] and row["sign_flip"]["p_value"] is not None]
    for test, adjusted in zip(tests, holm([test["p_value"] for test in tests]), strict=True):
        test["p_holm"] = float(adjusted)
    return rows


def _cohort(cohort: str, part: Pairing) -> Document:
    base, candidate = part.outcomes_base, part.outcomes_candidate
    delta = _delta(_treated(part), completions(base, candidate), 1)
    return {
        **{name: value for name, value in delta.items() if name not in ("estimate", "tasks")},
        "cohort": cohort,
        "tasks": len(part.tasks),
        "base_passed": int(base.passed.sum()),
        "base_planned": int(base.planned.sum()),
        "cand_passed": int(candidate.passed.sum()),
        "cand_planned": int(candidate.planned.sum()),
        "delta": delta["estimate"],
    }


def _movement(pairing: Pairing) -> Document | None:
    """Cells by their quadrant under the baseline and under the candidate; None where no cell was judged so twice."""
    base, candidate = (cells.quadrant for cells in pairing.cells)
    both = (base >= 0) & (candidate >= 0)
    if not both.any():
        return None
    counts = np.bincount(base[both] * len(QUADRANTS) + candidate[both], minlength=len(QUADRANTS) ** 2)
    table = counts.reshape(len(QUADRANTS), len(QUADRANTS))
    into = QUADRANTS.index("right_unsanctioned")
    return {
        "cells": int(both.sum()),
        "from_to": {
            name: {other: int(table[i, j]) for j, other in enumerate(QUADRANTS)} for i, name in enumerate(QUADRANTS)
        },
        "into_right_unsanctioned": int(table[:, into].sum() - table[into, into]),
        "out_of_right_unsanctioned": int(table[into].sum() - table[into, into]),
    }


def _safety(pairing: Pairing) -> Document | None:
    """Runs with an event of each kind in any attempt, and the candidate's where the baseline is known to have none."""
    base, candidate = (runs.take(runs.task >= 0) for runs in pairing.runs)
    events: Document = {}
    for name, bit in SAFETY_EVENTS.items():
        had, base_seen = base.events(bit)
        has, seen = candidate.events(bit)
        new, may_be_new = pairing.events(bit, new=True)
        events[name] = {
            "base": int(had.sum()),
            "candidate": int(has.sum()),
            "new": int(new.sum()),
            "may_be_new": int(may_be_new.sum()),
            "examples": list(pairing.runs[1].names(new)[:_EXAMPLES]),
            "base_observed": int(base_seen.sum()),
            "candidate_observed": int(seen.sum()),
        }
    if not any(event["base_observed"] or event["candidate_observed"] for event in events.values()):
        return None
    return {"base_runs": len(base), "candidate_runs": len(candidate), "events": events}


def _efficiency(pairing: Pairing, field: str, per_unit: int) -> Document | None:
    """Median and p95 of both on the cells in which both say, and the mean over tasks of the difference."""
    base_status, candidate_status = (cells.status for cells in pairing.cells)
    base, candidate = (cells.values(field) for cells in pairing.cells)
    said = (base >= 0) & (candidate >= 0) & (base_status <= Status.FAIL) & (candidate_status <= Status.FAIL)
    if not said.any():
        return None
    task = pairing.cells[0].task[said]
    cells = np.bincount(task)
    totals = np.zeros(len(cells), dtype=np.int64)
    np.add.at(totals, task, (candidate - base)[said])
    sizes, sums = cells[cells > 0].tolist(), totals[cells > 0].tolist()
    common = lcm(*set(sizes))
    counts = Counter(total * (common // size) for total, size in zip(sums, sizes, strict=True))
    mean = bootstrap_mean(list(counts), common * per_unit, list(counts.values()))
    return {
        "cells": int(said.sum()),
        "tasks": len(sizes),
        "base": _percentiles(base[said], per_unit),
        "candidate": _percentiles(candidate[said], per_unit),
        "delta": {"estimate": mean.estimate, **ends(mean.interval, mean.reason)},
    }


def _percentiles(values: IntArray, per_unit: int) -> Document:
    ascending = np.sort(values)
    return {name: float(percentile(ascending, share) / per_unit) for name, share in (("median", 50), ("p95", 95))}
