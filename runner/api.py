"""The evidence and the decision for notebooks and scripts: `import passhat.runner.api as ph`.

Reads campaigns that are there, and starts neither Ray nor an agent. A result holds the document that the command line
prints with `--json`, and gives it as plain tables.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from passhat.runner.compare import compare as compare_pairing
from passhat.runner.declaration import standing
from passhat.runner.errors import ExitCode, NothingMatched, UsageError
from passhat.runner.files import nearest, read_json, shown
from passhat.runner.gate import EXIT_CODES, evaluate
from passhat.runner.gate import Verdict as Answer
from passhat.runner.gate_file import Gate, load_gate
from passhat.runner.pairing import Pairing, choose, pair
from passhat.runner.render import render_report
from passhat.runner.render_compare import render_comparison
from passhat.runner.render_gate import render_verdict
from passhat.runner.render_show import printable
from passhat.runner.report import report_campaign
from passhat.runner.store import Campaign, find

__all__ = ["Comparison", "Packet", "Report", "Result", "Verdict", "compare", "gate", "open", "packet", "report"]

Document = dict[str, Any]
Row = dict[str, Any]
Run = str | Path | Campaign | None  # a campaign's folder or id, or what `open` returns; None: results/latest

_MOST_SHOWN = 50  # rows of a table in a notebook


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A document, and the tables that are in it; the first of them is the one without a name."""

    document: Document

    def tables(self) -> Mapping[str, list[Row]]:
        """Return all tables by name."""
        raise NotImplementedError

    def rows(self, table: str | None = None) -> list[Row]:
        """Return a table as one mapping a row, of numbers, texts and None."""
        tables = self.tables()
        if table is None:
            return next(iter(tables.values()))
        if table not in tables:
            raise UsageError(f"table {shown(table)}: no such table; {nearest(table, tables)}")
        return tables[table]

    def to_pandas(self, table: str | None = None) -> Any:
        """Return a table as a pandas DataFrame; UsageError where pandas is not installed."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise UsageError(
                "to_pandas needs pandas: python -m pip install pandas; rows() has the same without it"
            ) from None
        return pandas.DataFrame(self.rows(table))

    def _repr_html_(self) -> str:
        name = next(iter(self.tables()))
        return _html(f"{type(self).__name__}: {name}", self.rows())


class Report(Result):
    """What one campaign says of each release (passhat.report/1).

    Tables: releases, pass_hat, pass_at, cohorts, failures.
    """

    __slots__ = ()

    def tables(self) -> Mapping[str, list[Row]]:
        releases = self.document["releases"]

        def each(part: str) -> list[Row]:
            return [{"release": of["release"], **_plain(row)} for of in releases for row in of[part]]

        return {
            "releases": [_release_row(of) for of in releases],
            **{part: each(part) for part in ("pass_hat", "pass_at", "cohorts", "failures")},
        }

    def __str__(self) -> str:
        return render_report(self.document)


class Comparison(Result):
    """Two releases on the tasks both ran (passhat.comparison/1). Tables: deltas, cohorts, moves, efficiency."""

    __slots__ = ()

    def tables(self) -> Mapping[str, list[Row]]:
        document = self.document
        return {
            "deltas": [_with_test(row) for row in document["delta"]["pass_hat"]],
            "cohorts": [_with_test(row) for row in document["cohorts"]],
            "moves": document["moves"],
            "efficiency": list(_efficiency_rows(document["efficiency"])),
        }

    def __str__(self) -> str:
        return render_comparison(self.document)


class Verdict(Result):
    """What a gate says of two releases (passhat.verdict/1). Table: rules."""

    __slots__ = ()

    @property
    def verdict(self) -> str:
        """GO, NO_GO or INCONCLUSIVE."""
        return str(self.document["verdict"])

    @property
    def exit_code(self) -> ExitCode:
        """What `passhat gate` ends with."""
        return EXIT_CODES[Answer(self.verdict)]

    def tables(self) -> Mapping[str, list[Row]]:
        return {"rules": self.document["rules"]}

    def __str__(self) -> str:
        return render_verdict(self.document)


class Packet(Result):
    """A decision packet that was made (passhat.packet/1). Table: files."""

    __slots__ = ()

    @property
    def page(self) -> Path:
        """The page to open."""
        return Path(self.document["page"])

    def tables(self) -> Mapping[str, list[Row]]:
        files = read_json(Path(self.document["folder"]) / "manifest.json")["files"]
        return {"files": [{"file": name, **entry} for name, entry in files.items()]}


def open(run: Run = None) -> Campaign:  # noqa: A001 - read as ph.open
    """Return a campaign by its folder or id, by default the latest one of results/.

    >>> import passhat.runner.api as ph
    >>> ph.open("evidence").plan.releases
    ('A', 'B')
    """
    return run if isinstance(run, Campaign) else find(None if run is None else Path(run))


def report(run: Run = None, release: str | None = None) -> Report:
    """Return what a campaign says of its releases, or of one.

    >>> import passhat.runner.api as ph
    >>> [(row["release"], row["passed"], row["planned"]) for row in ph.report("evidence").rows()]
    [('A', 5, 8), ('B', 7, 8)]
    >>> [row["estimate"] for row in ph.report("evidence", "B").rows("pass_hat")]
    [0.875, 0.75]
    """
    document = report_campaign(open(run))
    if release is not None:
        chosen = [of for of in document["releases"] if of["release"] == release]
        if not chosen:
            names = [of["release"] for of in document["releases"]]
            raise NothingMatched(f"{shown(release)}: no such release; {nearest(release, names)}")
        document = {**document, "releases": chosen}
    return Report(document)


def compare(
    run: Run = None,
    other: Run = None,
    *,
    base: str | None = None,
    candidate: str | None = None,
    common: bool = False,
) -> Comparison:
    """Compare two releases of one campaign, or a release of `run` with one of `other`.

    `common` compares what both share although conditions differ, and the document says so.

    >>> import passhat.runner.api as ph
    >>> comparison = ph.compare("evidence", base="A", candidate="B")
    >>> comparison.rows()[0]["estimate"], comparison.document["fixes"]
    (0.25, ['u', 'w'])
    """
    return Comparison(compare_pairing(_pairing(run, other, base, candidate, common=common)))


def gate(
    gate: str | Path | Gate,
    run: Run = None,
    other: Run = None,
    *,
    base: str | None = None,
    candidate: str | None = None,
) -> Verdict:
    """Evaluate a gate, given by its file, on two releases; the file says which, unless the arguments do.

    >>> import passhat.runner.api as ph
    >>> verdict = ph.gate("gate.yaml", "evidence")
    >>> verdict.verdict, [(row["id"], row["decision"]) for row in verdict.rows()]
    ('NO_GO', [('better', 'pass'), ('flaky', 'fail')])
    """
    gate = gate if isinstance(gate, Gate) else load_gate(Path(gate))
    pairing = _pairing(run, other, *gate.names(base, candidate, campaigns=1 if other is None else 2))
    stands = standing(gate, pairing)
    return Verdict({**evaluate(gate, pairing), "gate": stands})


def packet(
    run: Run = None,
    other: Run = None,
    *,
    out: str | Path = "packet",
    gate: str | Path | None = None,
    base: str | None = None,
    candidate: str | None = None,
    common: bool = False,
) -> Packet:
    """Make the decision packet of two releases in a new folder, with the verdict of a gate file if one is named.

    >>> import passhat.runner.api as ph
    >>> packet = ph.packet("evidence", out="packet", gate="gate.yaml")
    >>> packet.document["verdict"], packet.page.is_file()
    ('NO_GO', True)
    """
    from passhat.runner.packet import build_packet

    path = None if gate is None else Path(gate)
    made = build_packet(_campaigns(run, other), Path(out), base=base, candidate=candidate, gate=path, common=common)
    return Packet(made)


def _pairing(run: Run, other: Run, base: str | None, candidate: str | None, *, common: bool = False) -> Pairing:
    return pair(*choose(_campaigns(run, other), base, candidate), common=common)


def _campaigns(run: Run, other: Run) -> list[Campaign]:
    return [open(run)] if other is None else [open(run), open(other)]


# Rows


def _plain(row: Mapping[str, Any]) -> Row:
    """Return what of a row is a number, a text or not known."""
    return {name: value for name, value in row.items() if value is None or isinstance(value, str | int | float)}


def _release_row(of: Document) -> Row:
    rate = {name: of["attempt_rate"][name] for name in ("lower", "upper", "method", "worst", "best")}
    names = {"release": of["release"], "tasks": of["tasks"]}
    return {**names, **of["counts"], "attempt_rate": of["attempt_rate"]["estimate"], **rate}


def _with_test(row: Mapping[str, Any]) -> Row:
    test = row["sign_flip"] or {}
    return {**_plain(row), **{name: test.get(name) for name in ("p_value", "p_holm") if name in test}}


def _efficiency_rows(efficiency: Mapping[str, Any]) -> Iterator[Row]:
    for name, of in efficiency.items():
        if of is not None:
            sides = {f"{side}_{p}": of[side][p] for side in ("base", "candidate") for p in ("median", "p95")}
            yield {"amount": name, "cells": of["cells"], "tasks": of["tasks"], **sides, **_plain(of["delta"])}


# Notebooks


def _html(caption: str, rows: list[Row]) -> str:
    """Return the beginning of a table; every cell is text, whatever is in it."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    more = len(rows) - _MOST_SHOWN
    if more > 0:
        caption += f" (the first {_MOST_SHOWN} of {len(rows)} rows)"
    head = "".join(f'<th scope="col">{_cell(name)}</th>' for name in names)
    body = "".join(f"<tr>{''.join(_cells(row, names))}</tr>" for row in rows[:_MOST_SHOWN])
    return f"<table><caption>{_cell(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(row: Row, names: list[str]) -> Iterator[str]:
    first, *rest = names
    yield f'<th scope="row">{_cell(row.get(first))}</th>'
    yield from (f"<td>{_cell(row.get(name))}</td>" for name in rest)


def _cell(value: Any) -> str:
    if value is None:
        return "—"
    return escape(printable(f"{value:.4g}" if isinstance(value, float) else str(value)))
