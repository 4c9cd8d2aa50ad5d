"""Inputs that broke other tools, from the file to the verdict and the packet: cases C3, C12, C15, C17 and C20."""

import json
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from passhat.runner import launch
from passhat.runner.compare import compare
from passhat.runner.errors import NotAcceptable
from passhat.runner.gate import evaluate
from passhat.runner.gate_file import load_gate
from passhat.runner.importing import import_files
from passhat.runner.packet import build_packet
from passhat.runner.pairing import choose, pair
from passhat.runner.render import render_report
from passhat.runner.render_compare import render_comparison
from passhat.runner.report import report_campaign, summarise
from passhat.runner.request import Request
from passhat.runner.store import Campaign
from passhat.workers.records import Reason

Row = dict[str, Any]


def imported(rows: list[Row], **options: Any) -> Campaign:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return import_files([Path("rows.jsonl")], out=Path("campaign"), **options).campaign


def gated(campaign: Campaign, *rules: Row) -> dict[str, Any]:
    """The verdict on A and B by rules that are read by estimate where they can be."""
    named = [{"id": f"r{number}", **rule} for number, rule in enumerate(rules)]
    Path("gate.yaml").write_text(json.dumps({"name": "g", "rules": named}))
    return evaluate(load_gate(Path("gate.yaml")), pair(*choose([campaign], "A", "B")))


def page_text(campaign: Campaign) -> str:
    build_packet([campaign], Path("packet"))
    return unescape(Path("packet/index.html").read_text("utf-8"))


def scores(release: str, *values: Any) -> list[Row]:
    return [{"release": release, "task": f"t{i}", "run": 0, "score": value} for i, value in enumerate(values)]


def test_a_threshold_on_scores_is_an_inclusive_minimum() -> None:
    """C3: exact matching would count 1 of these 4 runs, and give 0.5 and 0."""
    rows = [{"release": "A", "task": "t", "run": i, "score": s} for i, s in enumerate((1.0, 0.9, 0.8, 0.2))]
    [page] = report_campaign(imported(rows, pass_mark=0.8))["releases"]
    assert page["counts"]["passed"] == 3
    assert [page[name][1]["estimate"] for name in ("pass_at", "pass_hat")] == [1.0, 0.5]


def test_verdicts_by_different_pass_marks_are_not_compared() -> None:
    campaigns = []
    for release, mark in (("A", 0.5), ("B", 0.8)):
        Path(f"{release}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scores(release, 0.9, 0.6)))
        campaigns.append(import_files([Path(f"{release}.jsonl")], out=Path(release), pass_mark=mark).campaign)
    with pytest.raises(NotAcceptable, match=r"not comparable: pass_mark 0.5 and 0.8\."):
        pair(*choose(campaigns, None, None))
    pairing = pair(*choose(campaigns, None, None), common=True)
    assert compare(pairing)["differences"] == ["pass_mark 0.5 and 0.8"]
    build_packet(campaigns, Path("packet"), common=True)
    assert "least score that passes" in Path("packet/index.html").read_text("utf-8")


def test_releases_that_agree_have_no_discordant_task() -> None:
    """C12: five tasks that both pass, five that both fail."""
    rows = [{"release": r, "task": f"t{i}", "run": 0, "passed": i < 5} for r in "AB" for i in range(10)]
    campaign = imported(rows)
    comparison = compare(pair(*choose([campaign], None, None)))
    assert (comparison["mcnemar"]["p_value"], comparison["delta"]["attempt_rate"]["estimate"]) == (1.0, 0.0)
    assert "no discordant task" in page_text(campaign)


def test_a_score_that_is_none_is_invalid_counted_named_and_never_lets_a_gate_pass() -> None:
    """C15"""
    nan = float("nan")
    campaign = imported([*scores("A", 1, 0, 1), *scores("B", 1, 0, nan)], pass_mark=0.5)
    page = report_campaign(campaign)["releases"][1]
    counts = {name: number for name, number in page["counts"].items() if number}
    assert counts == {"planned": 3, "passed": 1, "failed": 1, "invalid": 1}
    rate = page["attempt_rate"]
    assert (rate["scored_rate"], rate["estimate"]) == (1 / 2, 1 / 3)
    assert page["failures"] == [
        {"signature": Reason.INVALID_SCORE.name, "status": "invalid", "runs": 1, "examples": ["t2/0"]},
        {"signature": "unspecified", "status": "fail", "runs": 1, "examples": ["t1/0"]},
    ]
    floors = ({"metric": "attempt_rate", "by": "estimate", "at_least": floor} for floor in (1 / 3, 0.5, 0.67))
    decisions = [rule["decision"] for rule in gated(campaign, *floors)["rules"]]
    assert decisions == ["pass", "inconclusive", "fail"]


def test_a_score_out_of_range_is_not_a_pass() -> None:
    """C15: 1 and 7."""
    [page] = report_campaign(imported(scores("A", 1, 7), pass_mark=0.5))["releases"]
    assert (page["counts"]["passed"], page["counts"]["invalid"]) == (1, 1)


COUNTING = """
from passhat.workers.agent import Final

calls = 0

def run(task, tools, ctx):
    global calls
    calls += 1
    return Final("COMPLETED" if calls <= 3 or calls > 8 else "REFUSED")
"""


def test_runs_asked_for_in_place_of_the_declared_ones_are_said_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """C17: pass@2 is of all eight runs, 1 - C(5,2) / C(8,2), and no mean."""
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("counting.py").write_text(COUNTING)
    Path("suite.yaml").write_text('name: s\nversion: "1"\nenvironment: desk\ntasks: tasks.jsonl\nruns: 5\n')
    task = {"id": "T1", "request": "Do it.", "world": {"today": "2026-06-01", "tables": {}}}
    Path("tasks.jsonl").write_text(json.dumps(task) + "\n")
    request = Request(suite="suite.yaml", releases=("A=counting:run",), runs=8, folder=str(Path.cwd()))
    first = launch.run(request, launch.Place(workers=0), out=Path("a"))
    second = launch.run(
        Request(suite="suite.yaml", releases=("B=counting:run",), runs=8, timeout_s=60, folder=str(Path.cwd())),
        launch.Place(workers=0),
        out=Path("b"),
    )
    sys.modules.pop("counting")
    overridden = {"runs_per_task": {"declared": 5, "used": 8}}
    assert first.manifest["overrides"] == overridden
    assert second.manifest["overrides"] == {**overridden, "limits.seconds": {"declared": 300.0, "used": 60}}

    report = report_campaign(first)
    [page] = report["releases"]
    assert (page["counts"]["passed"], page["counts"]["planned"]) == (3, 8)
    assert page["pass_at"][1]["estimate"] == pytest.approx(1 - 10 / 28)
    assert page["attempt_rate"]["estimate"] == 0.375
    assert report["campaign"]["overrides"] == overridden
    assert "declared runs_per_task 5, used 8" in render_report(report)

    pairing = pair(*choose([first, second], None, None), common=True)
    comparison = compare(pairing)
    assert comparison["identities"]["base"]["overrides"] == overridden
    assert "declared runs_per_task 5, used 8; limits.seconds 300.0, used 60" in " ".join(
        render_comparison(comparison).split()
    )
    build_packet([first, second], Path("packet"), common=True)
    text = unescape(Path("packet/index.html").read_text("utf-8"))
    assert "A: what the suite declares was overridden: runs_per_task 5, used 8." in text


def test_what_a_built_in_suite_is_asked_for_overrides_nothing() -> None:
    request = Request(suite="desk", releases=("incumbent",), runs=1, tasks=1)
    assert launch.prepare(request, *launch.load(request)).manifest["overrides"] == {}


def test_fewer_tasks_than_the_suite_has_are_said() -> None:
    Path("suite.yaml").write_text('name: s\nversion: "1"\nenvironment: desk\ngenerate: {tasks: 9}\n')
    request = Request(suite="suite.yaml", releases=("incumbent",), tasks=3, hermetic="declared")
    assert launch.prepare(request, *launch.load(request)).manifest["overrides"] == {
        "tasks": {"declared": 9, "used": 3},
        "hermetic.environment": {"declared": "GUARDED", "used": "DECLARED"},
    }


def test_judgements_that_cannot_be_had_are_neither_passes_nor_failures_of_the_agent() -> None:
    """C20: the judge says pass, says fail, writes what nobody can read, and does not answer."""
    said = ("pass", "fail", "pending", "invalid")
    rows = [{"release": "B", "task": f"t{i}", "run": 0, "status": status} for i, status in enumerate(said)]
    rows += [{"release": "A", "task": f"t{i}", "run": 0, "passed": True} for i in range(4)]
    campaign = imported(rows)
    report = report_campaign(campaign)
    page = next(of for of in report["releases"] if of["release"] == "B")
    counts = {name: number for name, number in page["counts"].items() if number}
    assert counts == {"planned": 4, "passed": 1, "failed": 1, "invalid": 1, "pending": 1}
    rate = page["attempt_rate"]
    assert (rate["scored_rate"], rate["estimate"], rate["coverage"]) == (1 / 2, 1 / 4, 1 / 2)
    assert [(group["signature"], group["status"], group["examples"]) for group in page["failures"]] == [
        ("SOURCE_ERROR", "invalid", ["t3/0"]),
        ("unspecified", "fail", ["t1/0"]),
    ]
    text = render_report({**report, "releases": [page]})
    failures = text[text.index("failures ") :]
    assert " ".join(failures.split()) == (
        "failures runs how it ended: which scorers failed first of them 1 unspecified t1/0 "
        "invalid 1: SOURCE_ERROR: t3/0 pending 1: t2/0"
    )

    rules = [
        {"metric": "attempt_rate", "by": "estimate", "at_least": 0.25},
        {"metric": "attempt_rate", "by": "estimate", "at_least": 0.5},
        {"metric": "attempt_rate", "at_least": 0.01},
        {"metric": "missing_share", "at_most": 0.25},
        {"metric": "invalid_share", "at_most": 0},
    ]
    verdict = gated(campaign, *rules)
    assert [rule["decision"] for rule in verdict["rules"]] == ["pass", "inconclusive", "inconclusive", "pass", "fail"]
    assert verdict["rules"][1]["observed"] == "0.250 … 0.750"
    unscored = {of["release"]: of["counts"] for of in summarise(campaign)["releases"]}["B"]
    assert {name: unscored[name] for name in counts} == counts
