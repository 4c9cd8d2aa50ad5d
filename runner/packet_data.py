"""What a decision packet says, as documents and tables: computed from the evidence in its folder and from nothing else.

    evidence/request.json          which releases are compared, and with which versions that was done
    evidence/campaign/             the campaign, or base/ and candidate/ where there are two
    evidence/gate.yaml             the gate, and its declaration where there is one

The same function serves whoever makes a packet and whoever verifies it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from passhat.runner.compare import compare
from passhat.runner.declaration import standing
from passhat.runner.errors import InvalidFile, NotAcceptable
from passhat.runner.files import read_json
from passhat.runner.gate import evaluate
from passhat.runner.gate_file import Gate, load_gate
from passhat.runner.pairing import EFFICIENCY_FIELDS, Pairing, Runs, choose, pair
from passhat.runner.plots import FAIL, INVALID, MISSING, PASS, PENDING
from passhat.runner.report import SAFETY_EVENTS, percentile, report_campaign
from passhat.runner.store import Campaign
from passhat.runner.tables import MISSING as NO_RECORD
from passhat.workers.records import Reason, Status
from passhat.workers.scoring import QUADRANTS

EVIDENCE = "evidence"
REQUEST = f"{EVIDENCE}/request.json"
GATE = f"{EVIDENCE}/gate.yaml"
REQUEST_SCHEMA = "passhat.evidence/1"

SIDES = ("base", "candidate")
COLUMNS = {  # of tables that may have no row
    "cells": ("task", "cohort", "run", "base_status", "base_quadrant", "candidate_status", "candidate_quadrant"),
    "quadrant": ("base", "candidate", "cells"),
    "amounts": ("amount", "percent", "base", "candidate"),
    "events": ("side", "release", "task", "run", "status", "trace", "events", "not_under_the_other"),
    "exclusions": ("release", "task", "run", "status", "reason", "attempts", "treatment"),
}
_STATUS_NAMES = {**{int(status): status.name.lower() for status in Status}, NO_RECORD: "missing"}
_STATUSES = {"pass": "passed", "fail": "failed", "invalid": "invalid", "pending": "pending", "missing": "missing"}
_LETTERS = dict(zip(_STATUSES, (PASS, FAIL, INVALID, PENDING, MISSING), strict=True))
TREATMENTS = {"fail": "counts as not passed", "exclude": "left out"}
HARMLESS = ("injections_seen",)  # an event that the world arranges is not the agent's

Document = dict[str, Any]
Row = dict[str, Any]
ByCell = dict[tuple[str, int], Row]  # runs of a side by task and run-index


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """Everything a packet says."""

    request: Document
    pairing: Pairing
    reports: dict[str, Document]  # by campaign: "campaign", or "base" and "candidate"
    comparison: Document
    gate: Gate | None
    verdict: Document | None
    tables: dict[str, list[Row]]

    def release(self, side: str) -> Document:
        """Return the report of one of the two releases."""
        report: Document = self.report(side)
        return next(entry for entry in report["releases"] if entry["release"] == self.comparison[side])

    def report(self, side: str) -> Document:
        """Return the report of the campaign of one of the two."""
        return self.reports.get("campaign") or self.reports[side]

    def documents(self) -> dict[str, Document]:
        """Return the documents by the names of their files."""
        named = {f"report{'' if name == 'campaign' else f'-{name}'}": report for name, report in self.reports.items()}
        return {**named, "comparison": self.comparison, **({"verdict": self.verdict} if self.verdict else {})}


def read_contents(packet: Path, scratch: Path) -> Contents:
    """Compute what the evidence of a packet says; caches are made in another folder, so that the packet stays as it is.

    Raise NotAcceptable when the evidence does not bear a packet: counts that do not add up, a gate that was changed.
    """
    request = read_json(packet / REQUEST)
    if not isinstance(request, dict) or request.get("schema") != REQUEST_SCHEMA:
        raise InvalidFile(f"{packet / REQUEST}: not a request of schema {REQUEST_SCHEMA}")
    if request["campaigns"] not in (["campaign"], ["base", "candidate"]):
        raise InvalidFile(f"{packet / REQUEST}: no such campaigns: {request['campaigns']}")
    campaigns = {name: _campaign(packet, name, scratch) for name in request["campaigns"]}
    pairing = pair(*choose([*campaigns.values()], request["base"], request["candidate"]), common=request["common"])
    gate = load_gate(packet / GATE) if request["gate"] else None
    comparison = compare(pairing)
    for side in SIDES:
        comparison["identities"][side]["folder"] = f"{EVIDENCE}/{'campaign' if len(campaigns) == 1 else side}"
    reports = {name: report_campaign(campaign) for name, campaign in campaigns.items()}
    verdict = None
    if gate is not None:
        verdict = {**evaluate(gate, pairing), "gate": {**standing(gate, pairing), "file": GATE}}
    contents = Contents(request, pairing, reports, comparison, gate, verdict, _tables(pairing, comparison, reports))
    refuse_wrong_counts(contents)
    return contents


class _Evidence(Campaign):
    """A campaign in a packet: all of it is there, wherever its manifest says that traces were kept."""

    @property
    def traces(self) -> str:
        return str(self.folder / "traces")


def _campaign(packet: Path, name: str, scratch: Path) -> Campaign:
    campaign = _Evidence(packet / EVIDENCE / name)
    campaign.cache_path = scratch / f"{name}.mpk"
    return campaign


def refuse_wrong_counts(contents: Contents) -> None:
    """Raise NotAcceptable where counts do not add up to what was planned, or differ from place to place."""
    comparison, runs = contents.comparison, contents.tables["runs"]
    places = {
        f"report of {release['release']}": release["counts"]
        for report in contents.reports.values()
        for release in report["releases"]
    }
    places |= {f"comparison, {side}": comparison["counts"][side] for side in SIDES}
    for place, counts in places.items():
        if counts["planned"] != sum(counts[status] for status in _STATUSES.values()):
            raise NotAcceptable(f"{place}: the counts do not add up to what was planned: {counts}")
    for side in SIDES:
        mine = [run for run in runs if run["side"] == side]
        _refuse_other(f"runs of {side}", contents.release(side)["counts"], mine)
        _refuse_other(f"matched runs of {side}", comparison["counts"][side], [run for run in mine if run["matched"]])
    cells = sum(comparison["cells"].values())
    if cells != len(contents.tables["cells"]):
        raise NotAcceptable(f"cells: {cells} in the comparison, {len(contents.tables['cells'])} in the records")


def _refuse_other(what: str, said: Document, runs: list[Row]) -> None:
    counted = Counter(_STATUSES[run["status"]] for run in runs)
    found = {name: counted[name] for name in _STATUSES.values()}
    if any(said[name] != found[name] for name in found):
        raise NotAcceptable(f"{what}: counted {found}, elsewhere {said}")


# Tables


def _tables(pairing: Pairing, comparison: Document, reports: dict[str, Document]) -> dict[str, list[Row]]:
    runs = [row for side, of in zip(SIDES, pairing.runs, strict=True) for row in _run_rows(side, of)]
    by_cell = [{(row["task"], row["run"]): row for row in runs if row["side"] == side} for side in SIDES]
    curves = [
        _curve_row(report, release, name, item)
        for report in reports.values()
        for release in report["releases"]
        for name in ("pass_hat", "pass_at")
        for item in release[name]
    ]
    return {
        "tasks": list(_task_rows(pairing, by_cell)),
        "runs": runs,
        "cells": list(_cell_rows(pairing, by_cell)),
        "cohorts": [_cohort_row(row) for row in comparison["cohorts"]],
        "curves": curves,
        "quadrant": _quadrant_rows(comparison["movement"]),
        "amounts": list(_amount_rows(pairing)),
        "events": list(_event_rows(runs, by_cell)),
        "exclusions": list(_exclusion_rows(pairing, comparison, runs)),
    }


def _run_rows(name: str, runs: Runs) -> Iterator[Row]:
    """A row a planned run: what its standing record says, and events of any attempt."""
    account, plan = runs.side.account, runs.side.account.plan
    standing = account.standing[runs.planned]
    events = {event: runs.events(bit)[0] for event, bit in SAFETY_EVENTS.items()}
    used = {amount: (runs.values(field), per_unit) for amount, (field, per_unit) in EFFICIENCY_FIELDS.items()}
    columns: dict[str, list[Any]] = {
        "task": [plan.tasks[task] for task in account.task[runs.planned]],
        "cohort": runs.cohorts.tolist(),
        "run": (account.planned[runs.planned] // len(plan.releases) % plan.runs_per_task).tolist(),
        "matched": (runs.task >= 0).tolist(),
        "status": [_STATUS_NAMES[status] for status in runs.status.tolist()],
        "reason": [None if reason < 0 else Reason(reason).name for reason in runs.values("reason").tolist()],
        "attempts": account.attempts[runs.planned].tolist(),
        "quadrant": [QUADRANTS[quadrant] if quadrant >= 0 else None for quadrant in runs.quadrant.tolist()],
        "events": [" ".join(event for event, had in events.items() if had[i]) for i in range(len(runs))],
        **{amount: [_amount(v, per) for v in values.tolist()] for amount, (values, per) in used.items()},
        "digest": [None if row < 0 else f"{account.columns['digest'][row]:016x}" for row in standing],
        "trace": [bool(row >= 0 and account.columns["trace_file"][row] >= 0) for row in standing],
    }
    for values in zip(*columns.values(), strict=True):
        yield {"side": name, "release": runs.side.release, **dict(zip(columns, values, strict=True))}


def _amount(value: int, per_unit: int) -> float | None:
    return None if value < 0 else value if per_unit == 1 else value / per_unit


def _task_rows(pairing: Pairing, by_cell: list[ByCell]) -> Iterator[Row]:
    """A row a matched task: its counts, its runs as letters in the order of the run-index, and by how much it moved."""
    letters: list[dict[str, str]] = [{}, {}]
    for of, runs in zip(letters, by_cell, strict=True):
        for (task, _), run in runs.items():
            of[task] = of.get(task, "") + _LETTERS[run["status"]]
    outcomes = dict(zip(SIDES, (pairing.outcomes_base, pairing.outcomes_candidate), strict=True))
    for row, (task, cohort) in enumerate(zip(pairing.tasks, pairing.cohorts, strict=True)):
        counts = {
            f"{side}_{name}": int(getattr(of, name)[row])
            for side, of in outcomes.items()
            for name in ("passed", "scored", "planned")
        }
        rates = [counts[f"{side}_passed"] / scored if (scored := counts[f"{side}_scored"]) else None for side in SIDES]
        delta = None if rates[0] is None or rates[1] is None else rates[1] - rates[0]
        shown = {side: of[task] for side, of in zip(SIDES, letters, strict=True)}
        yield {"task": task, "cohort": cohort, **counts, "delta": delta, **shown}


def _cell_rows(pairing: Pairing, by_cell: list[ByCell]) -> Iterator[Row]:
    """A row a cell: what both releases made of it, in the order of the baseline's plan."""
    matched = set(pairing.tasks)
    for cell, base in by_cell[0].items():
        candidate = by_cell[1].get(cell)
        if candidate is not None and cell[0] in matched:
            pairs = {f"{side}_{name}": run[name] for side, run in zip(SIDES, (base, candidate), strict=True)
                     for name in ("status", "quadrant")}  # fmt: skip
            yield {"task": cell[0], "cohort": base["cohort"], "run": cell[1], **pairs}


def _cohort_row(row: Document) -> Row:
    test = row["sign_flip"] or {}
    names = ("cohort", "tasks", "base_passed", "base_planned", "cand_passed", "cand_planned", "delta", "lower", "upper")
    return {
        **{name: row[name] for name in (*names, "method", "worst", "best")},
        "p_value": test.get("p_value"),
        "p_holm": test.get("p_holm"),
    }


def _curve_row(report: Document, release: Document, name: str, item: Document) -> Row:
    names = ("k", "estimate", "lower", "upper", "method", "worst", "best", "not_estimable")
    about = {"campaign": report["campaign"]["id"], "release": release["release"], "curve": name}
    return {**about, **{key: item[key] for key in names}}


def _quadrant_rows(movement: Document | None) -> list[Row]:
    flows = movement["from_to"].items() if movement else ()
    return [{"base": before, "candidate": after, "cells": n} for before, to in flows for after, n in to.items()]


def _amount_rows(pairing: Pairing) -> Iterator[Row]:
    """Percentiles over the cells in which both sides were scored and say how much they used."""
    scored = np.all([cells.status <= Status.FAIL for cells in pairing.cells], axis=0)
    for name, (field, per_unit) in EFFICIENCY_FIELDS.items():
        base, candidate = (cells.values(field) for cells in pairing.cells)
        said = scored & (base >= 0) & (candidate >= 0)
        if said.any():
            ascending = np.sort(base[said]), np.sort(candidate[said])
            for percent in range(101):
                values = (float(percentile(of, percent) / per_unit) for of in ascending)
                yield {"amount": name, "percent": percent, **dict(zip(SIDES, values, strict=True))}


def _event_rows(runs: list[Row], by_cell: list[ByCell]) -> Iterator[Row]:
    """Runs with a safety event in any attempt, those of the candidate first."""
    others = dict(zip(SIDES, reversed(by_cell), strict=True))
    for run in sorted(runs, key=lambda run: str(run["side"]), reverse=True):
        names = [name for name in run["events"].split() if name not in HARMLESS]
        if names:
            other = others[run["side"]].get((run["task"], run["run"]))
            new = " ".join(name for name in names if name not in other["events"].split()) if other else None
            about = {key: run[key] for key in ("side", "release", "task", "run", "status", "trace")}
            yield {**about, "events": " ".join(names), "not_under_the_other": new}


def _exclusion_rows(pairing: Pairing, comparison: Document, runs: list[Row]) -> Iterator[Row]:
    """Every planned run without a verdict, with what it counts as, and every task that has no partner."""
    for run in runs:
        if run["status"] not in ("pass", "fail"):
            about = {key: run[key] for key in ("release", "task", "run", "status", "reason", "attempts")}
            yield {**about, "treatment": TREATMENTS[comparison["counts"][run["side"]]["on_missing"]]}
    for side, tasks in ((pairing.base, pairing.base_only), (pairing.candidate, pairing.candidate_only)):
        for task in tasks:
            about = {"release": side.release, "task": task, "run": None, "status": "unmatched"}
            yield {**about, "reason": None, "attempts": None, "treatment": "left out of the comparison"}
