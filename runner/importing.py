"""Makes an ordinary campaign folder from other tools' results, and says what the source could not fill.

The plan of an import is what its files hold, one planned run a row; with `runs` declared it is the whole grid, and
what the files lack is missing.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from passhat.runner.errors import InvalidFile, NothingMatched, UsageError
from passhat.runner.files import invalid, nearest
from passhat.runner.names import refuse_lookalikes
from passhat.runner.plan import Plan
from passhat.runner.request import versions
from passhat.runner.sources import COLUMNS, EVENT_COLUMNS, MISSING, NO_COLUMNS, Row, Source, read_source
from passhat.runner.store import Campaign, create
from passhat.workers.frames import Batch
from passhat.workers.order import Cell
from passhat.workers.records import RunRecord, blank, pack_record, seal

_NO_COHORT = "all"
_FILLED = {  # column → field of a row
    "cohort": "cohort",
    "turns": "turns",
    "tool_calls": "calls",
    "tokens_in": "tokens_in",
    "tokens_out": "tokens_out",
    "cost_usd": "cost_micros",
    "latency_ms": "virtual_ms",
    "outcome_passed": "outcome",
    "trajectory_passed": "trajectory",
    "seed": "seed",
}
_NEVER = ("traces",)


@dataclass(frozen=True, slots=True)
class Imported:
    """A campaign made from files, and what the files said."""

    campaign: Campaign
    sources: tuple[Source, ...]
    filled: dict[str, int]  # column → rows that say it
    rows: int


def import_files(
    paths: Sequence[Path],
    *,
    release: str | None = None,
    out: Path | None = None,
    runs: int | None = None,
    columns: Mapping[str, str] = NO_COLUMNS,
    pass_mark: float | None = None,
) -> Imported:
    """Read the files into one campaign; raise InvalidFile, naming both rows, where they contradict each other.

    `columns` says under which names columns stand in the files: known name → name in the file. `pass_mark` is the least
    score that passes.
    """
    if pass_mark is not None and not 0 <= pass_mark <= 1:
        raise UsageError(f"--pass-mark: found {pass_mark:g}, expected a number from 0 to 1")
    if runs is not None and runs < 1:
        raise UsageError(f"--runs: found {runs}, expected at least 1")
    unknown = sorted(columns.keys() - set(COLUMNS))
    if unknown:
        raise UsageError(f"--map {unknown[0]}: no such column; {nearest(unknown[0], COLUMNS)}")
    sources = tuple(read_source(path, release, columns, pass_mark) for path in paths)
    rows = [row for source in sources for row in source.rows]
    if not rows:
        raise NothingMatched(f"{', '.join(map(str, paths))}: no runs in here")
    refuse_lookalikes("release", ((row.release, row.place) for row in rows))
    refuse_lookalikes("task", ((row.task, row.place) for row in rows))
    refuse_lookalikes("cohort", ((row.cohort, row.place) for row in rows if row.cohort is not None))
    _refuse_conflicts(rows)
    plan = _plan(rows, runs)
    campaign = create(out, plan, _manifest(sources, plan, pass_mark), _log(plan, rows))
    campaign.note("imported", files=[str(path) for path in paths], rows=len(rows))
    filled = {name: sum(getattr(row, field) is not None for row in rows) for name, field in _FILLED.items()}
    filled |= {name: sum(bool(event & row.watched) for row in rows) for name, event in EVENT_COLUMNS.items()}
    return Imported(campaign, sources, filled, len(rows))


def _refuse_conflicts(rows: Iterable[Row]) -> None:
    """A second row of a run must be identical in every field; a task is in one cohort."""
    first: dict[tuple[str, str, int], Row] = {}
    cohorts: dict[str, Row] = {}
    problems = []
    for row in rows:
        other = first.setdefault((row.release, row.task, row.run), row)
        if other.content != row.content:
            problems.append(f"{row.place}  differs from {other.place}, which is the same run {_name(row)}")
        home = cohorts.setdefault(row.task, row)
        if home.cohort != row.cohort:
            problems.append(
                f"{row.place}  cohort: found {row.cohort!r}, task {row.task!r} has {home.cohort!r} at {home.place}"
            )
    if problems:
        raise invalid(problems)


def _name(row: Row) -> str:
    return f"{row.release}/{row.task}/{row.run}"


def _plan(rows: Sequence[Row], runs: int | None) -> Plan:
    highest = max(rows, key=lambda row: row.run)
    if runs is not None and highest.run >= runs:
        raise InvalidFile(f"{highest.place}  run: found {highest.run}, --runs {runs} allows 0 to {runs - 1}")
    cohort_of = {row.task: row.cohort or _NO_COHORT for row in rows}
    cohorts = _numbered(cohort_of.values())
    plan = Plan(
        releases=tuple(_numbered(row.release for row in rows)),
        tasks=tuple(cohort_of),
        cohorts=tuple(cohorts),
        cohort=[cohorts[name] for name in cohort_of.values()],
        task_digests=(),
        runs_per_task=runs or highest.run + 1,
        seed=None,
        stream=None,
    )
    seeds = {plan.grid.position(*cell): row.seed for cell, row in zip(_cells(plan, rows), rows, strict=True)}
    planned = array("Q", sorted(seeds)) if runs is None and len(seeds) < len(plan) else None
    has_seeds = any(seed is not None for seed in seeds.values())
    return replace(
        plan,
        listed=planned,
        run_seeds=tuple(map(seeds.get, planned or range(len(plan)))) if has_seeds else (),
    )


def _numbered(names: Iterable[str]) -> dict[str, int]:
    """Return the distinct names in the order of their first appearance, each with its number."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _cells(plan: Plan, rows: Iterable[Row]) -> list[Cell]:
    release, task = _numbered(plan.releases), _numbered(plan.tasks)
    return [Cell(release[row.release], task[row.task], row.run) for row in rows]


def _manifest(sources: Sequence[Source], plan: Plan, pass_mark: float | None) -> dict[str, Any]:
    names = dict.fromkeys(source.name for source in sources)
    return {
        "origin": "import",
        "suite": {
            "name": " + ".join(names),
            "version": None,
            "digest": None,  # the source does not say what its tasks are
            "tasks": len(plan.tasks),
            "environment": None,
        },
        "releases": [
            {"name": name, "digest": None, "agent": None, "code": None, "flaws": {}, "identity": {}}
            for name in plan.releases
        ],
        "runs_per_task": plan.runs_per_task,
        "seed": None,
        "stream": None,
        "limits": None,
        "on_missing": "fail",
        "max_missing": None,
        "retries": 0,
        "versions": versions(),
        "pass_mark": pass_mark,
        "sources": [
            {
                "file": source.path.name,
                "format": source.format,
                "sha256": hashlib.sha256(source.path.read_bytes()).hexdigest(),
                "rows": len(source.rows),
            }
            for source in sources
        ],
    }


def _log(plan: Plan, rows: Sequence[Row]) -> Iterator[bytes]:
    """Yield frames with one record a row, duplicates included: merging and counting them is for the reader."""
    batch = Batch(0, 0, 0)
    for cell, row in zip(_cells(plan, rows), rows, strict=True):
        if row.status != MISSING:
            batch.add(pack_record(_record(cell, row)))
        if batch.is_due():
            yield from batch.flush()
    yield from batch.flush()


def _record(cell: Cell, row: Row) -> RunRecord:
    record = blank(*cell)._replace(
        status=int(row.status),
        reason=row.reason,
        turns=row.turns,
        calls=row.calls,
        tokens_in=row.tokens_in,
        tokens_out=row.tokens_out,
        cost_micros=row.cost_micros,
        virtual_ms=row.virtual_ms,
        outcome=None if row.outcome is None else float(row.outcome),
        trajectory=None if row.trajectory is None else float(row.trajectory),
        passes=(row.outcome is True) | (row.trajectory is True) << 1,
        safety=row.events,
        watched=row.watched,
    )
    return seal(record)


def describe_import(imported: Imported) -> dict[str, Any]:
    """Return what came of an import, and what its source could not fill (passhat.import/1)."""
    plan, filled = imported.campaign.plan, imported.filled
    return {
        "schema": "passhat.import/1",
        "id": imported.campaign.id,
        "folder": str(imported.campaign.folder),
        "sources": imported.campaign.manifest["sources"],
        "rows": imported.rows,
        "releases": list(plan.releases),
        "tasks": len(plan.tasks),
        "planned": len(plan),
        "filled": {name: count for name, count in filled.items() if count},
        "not_filled": [*(name for name, count in filled.items() if not count), *_NEVER],
        "partly_filled": {name: imported.rows - count for name, count in filled.items() if 0 < count < imported.rows},
        "not_kept": sorted({name for source in imported.sources for name in source.unused}),
    }
