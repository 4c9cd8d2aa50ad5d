"""Imports: what is planned, what is refused, and published figures of real runs through the whole line."""

import gzip
import hashlib
import json
import re
from array import array
from collections import Counter
from fractions import Fraction
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from passhat.runner.errors import InvalidFile, NothingMatched, UsageError
from passhat.runner.files import read_jsonl
from passhat.runner.importing import describe_import, import_files
from passhat.runner.report import load_account, report_campaign
from passhat.runner.sources import read_source
from passhat.runner.store import Campaign
from passhat.workers.records import Reason, Status

DATA = Path(__file__).resolve().parents[1] / "data"
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the public data sets are not beside the checkout")
Page = dict[str, Any]


def write(rows: list[dict[str, Any]], name: str = "r.jsonl") -> Path:
    path = Path(name)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(release: str, task: Any, run: int, passed: bool | None, **more: Any) -> dict[str, Any]:
    return {"release": release, "task": task, "run": run, "passed": passed, **more}


def imported(rows: list[dict[str, Any]], **options: Any) -> Campaign:
    return import_files([write(rows)], out=Path("c"), **options).campaign


def counts(campaign: Campaign) -> dict[str, dict[str, int]]:
    return {page["release"]: page["counts"] for page in report_campaign(campaign)["releases"]}


def said(numbers: dict[str, int]) -> dict[str, int]:
    return {name: number for name, number in numbers.items() if number}


# The plan


def test_a_file_that_holds_a_whole_grid_is_planned_as_one() -> None:
    plan = imported([row(r, t, run, True) for r in "BA" for t in ("t2", "t1") for run in (1, 0)]).plan
    assert (plan.releases, plan.tasks, plan.runs_per_task) == (("B", "A"), ("t2", "t1"), 2)
    assert (plan.listed, plan.run_seeds, len(plan)) == (None, (), 8)
    assert (plan.cohorts, list(plan.cohort), plan.seed, plan.stream) == (("all",), [0, 0], None, None)


def test_else_the_rows_are_the_plan_and_gaps_are_kept() -> None:
    campaign = imported([row("A", "t", 0, True), row("A", "t", 7, False), row("B", "u", 2, True)])
    names = [campaign.plan.name(campaign.plan.grid.locate(position)) for position in campaign.plan.listed or ()]
    assert names == ["A/t/0", "A/t/7", "B/u/2"]
    report = report_campaign(campaign)
    assert [page["tasks"] for page in report["releases"]] == [1, 1]
    assert report["campaign"]["runs_per_task"] == 2
    assert [page["counts"]["planned"] for page in report["releases"]] == [2, 1]
    assert report["releases"][0]["failures"] == [
        {"signature": "unspecified", "status": "fail", "runs": 1, "examples": ["t/7"]}
    ]


def test_runs_that_are_declared_and_not_there_are_missing() -> None:
    campaign = imported([row("A", "t", 0, True), row("A", "u", 3, False), row("B", "t", 1, True)], runs=4)
    assert campaign.plan.listed is None
    assert {name: said(number) for name, number in counts(campaign).items()} == {
        "A": {"planned": 8, "passed": 1, "failed": 1, "missing": 6},
        "B": {"planned": 8, "passed": 1, "missing": 7},
    }


def test_a_run_index_above_the_declared_number_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidFile, match=r"r.jsonl:2  run: found 4, --runs 4 allows 0 to 3"):
        imported([row("A", "t", 0, True), row("A", "t", 4, True)], runs=4)
    with pytest.raises(UsageError, match="--runs: found 0, expected at least 1"):
        imported([row("A", "t", 0, True)], runs=0)


def test_seeds_of_a_source_are_kept_in_the_plan() -> None:
    rows = [row("A", "t", 1, True, seed=11), row("A", "t", 0, True), row("A", "u", 1, True, seed=2**64 - 1)]
    plan = imported(rows).plan
    assert (plan.listed, plan.run_seeds) == (array("Q", [0, 1, 3]), (None, 11, 2**64 - 1))
    whole = import_files([write(rows)], out=Path("whole"), runs=2).campaign.plan
    assert (whole.listed, whole.run_seeds) == (None, (None, 11, None, 2**64 - 1))


def test_cohorts_are_those_of_the_tasks() -> None:
    campaign = imported([row("A", task, 0, task != "t3", cohort=cohort) for task, cohort in zip(
        ("t1", "t2", "t3"), ("x", "y", "x"), strict=True
    )])  # fmt: skip
    assert [
        (cohort["cohort"], cohort["passed"], cohort["planned"], cohort["tasks"])
        for cohort in report_campaign(campaign)["releases"][0]["cohorts"]
    ] == [("x", 1, 2, 2), ("y", 1, 1, 1)]


def test_files_are_put_together() -> None:
    write([row("A", "t", 0, True)], "a.jsonl")
    Path("b.csv").write_text("release,task,run,passed\nB,t,0,false\n")
    campaign = import_files([Path("a.jsonl"), Path("b.csv")], out=Path("c")).campaign
    assert campaign.plan.releases == ("A", "B")
    assert campaign.manifest["suite"]["name"] == "a + b"
    assert [source["rows"] for source in campaign.manifest["sources"]] == [1, 1]


# What comes of rows


def test_every_status_is_counted_and_nothing_is_guessed() -> None:
    statuses = ("pass", "fail", "invalid", "pending", "missing", None)
    campaign = imported([{**KEY, "run": run, "status": status} for run, status in enumerate(statuses)])
    expected = {"planned": 6, "passed": 1, "failed": 1, "invalid": 1, "pending": 2, "missing": 1}
    assert said(counts(campaign)["A"]) == expected


KEY = {"release": "A", "task": "t"}


def test_a_null_verdict_is_pending_and_never_a_pass() -> None:
    page = report_campaign(imported([row("A", "t", 0, True), row("A", "t", 1, None)]))["releases"][0]
    rate = page["attempt_rate"]
    assert (rate["estimate"], rate["worst"], rate["best"], rate["scored_rate"]) == (0.5, 0.5, 1.0, 1.0)


def test_identical_rows_are_merged_and_counted() -> None:
    once = row("A", "t", 0, True, turns=3)
    campaign = imported([once, row("A", "t", 1, False), once])
    assert said(counts(campaign)["A"]) == {"planned": 2, "passed": 1, "failed": 1, "duplicates": 1}


@pytest.mark.parametrize("change", [{"passed": False}, {"turns": 4}, {"colour": "red"}])
def test_rows_of_one_run_that_differ_are_refused_and_both_places_are_named(change: dict[str, Any]) -> None:
    rows = [row("A", "t", 0, True, turns=3), row("A", "u", 0, True), {**row("A", "t", 0, True, turns=3), **change}]
    with pytest.raises(InvalidFile, match=r"r.jsonl:3  differs from r.jsonl:1, which is the same run A/t/0"):
        imported(rows)
    assert not Path("c").exists()


def test_rows_that_differ_between_files_are_refused_too() -> None:
    files = [write([row("A", "t", 0, True)], "a.jsonl"), write([row("A", "t", 0, False)], "b.jsonl")]
    with pytest.raises(InvalidFile, match=r"b.jsonl:1  differs from a.jsonl:1"):
        import_files(files, out=Path("c"))


def test_a_task_in_two_cohorts_is_refused() -> None:
    with pytest.raises(InvalidFile, match=r"r.jsonl:2  cohort: found 'y', task 't' has 'x' at r.jsonl:1"):
        imported([row("A", "t", 0, True, cohort="x"), row("B", "t", 0, True, cohort="y")])


@pytest.mark.parametrize(
    ("one", "other", "problem"),
    [
        (1, "1", r"r.jsonl:1  task: found integer 1, expected a string"),
        (1, "1", r"r.jsonl:2  task: string \"1\" looks like integer 1 at r.jsonl:1"),
        (1, 1.0, r"r.jsonl:2  task: number 1.0 looks like integer 1 at r.jsonl:1"),
        ("t", "t ", r"r.jsonl:2  task: string \"t \" looks like string \"t\" at r.jsonl:1"),
        ("\u00e9", "e\u0301", r"r.jsonl:2  task: .*U\+0301.* looks like .*U\+00E9"),
        ("t", None, r"r.jsonl:2  task: found null, expected a string"),
        ("t", ["t"], r"r.jsonl:2  task: found list"),
        ("t", "", r"r.jsonl:2  task: found string \"\", expected at least one character"),
    ],
)
def test_tasks_that_look_alike_or_are_no_names_are_refused(one: Any, other: Any, problem: str) -> None:
    with pytest.raises(InvalidFile, match=problem):
        imported([row("A", one, 0, True), row("A", other, 1, True)])


@pytest.mark.parametrize("field", ["release", "cohort"])
@pytest.mark.parametrize("value", [1, True, "x\ny", "  "])
def test_releases_and_cohorts_are_names_too(field: str, value: Any) -> None:
    with pytest.raises(InvalidFile, match=f"r.jsonl:1  {field}: found"):
        imported([{**row("A", "t", 0, True, cohort="x"), field: value}])


def test_a_release_of_null_is_refused() -> None:
    with pytest.raises(InvalidFile, match=r"r.jsonl:1  release: found null, expected a string"):
        imported([{**row("A", "t", 0, True), "release": None}])


def test_distinct_tasks_that_only_resemble_each_other_stay_two() -> None:
    campaign = imported([row("A", task, 0, True) for task in ("007", "7", "T", "t")])
    assert campaign.plan.tasks == ("007", "7", "T", "t")


def test_a_file_without_runs_matches_nothing() -> None:
    with pytest.raises(NothingMatched, match=r"r.jsonl: no runs in here"):
        imported([])
    assert not Path("c").exists()


def test_a_folder_that_holds_a_campaign_is_refused() -> None:
    before = imported([row("A", "t", 0, True)]).log_path.read_bytes()
    with pytest.raises(UsageError, match="c holds a campaign already"):
        imported([row("A", "t", 0, False)])
    assert Path("c/records.mpk").read_bytes() == before


# Safety and scorers apart


def test_events_are_kept_by_kind_and_what_is_not_said_is_not_none() -> None:
    rows = [
        row("A", "t", 0, True, forbidden_calls=2, skipped_approvals=0, external_effect=False),
        row("A", "u", 0, True, forbidden_calls=0, skipped_approvals=True),
        row("A", "v", 0, False, forbidden_calls=0),
    ]
    [page] = report_campaign(import_files([write(rows)], out=Path("c")).campaign)["releases"]
    assert page["safety"] == {
        "runs_observed": 1,
        "runs_planned": 3,
        "forbidden_calls": 1,
        "forbidden_blocked": None,
        "skipped_approvals": 1,
        "unverified_writes": None,
        "wrong_tenant_writes": None,
        "phantom_successes": None,
        "external_effects": 0,
        "injections_seen": None,
        "injections_followed": None,
    }


def test_columns_of_other_names_are_mapped_and_fill_the_quadrant() -> None:
    rows = [
        {"release": "A", "task": f"t{i}", "run": 0, "passed": utility, "utility": utility, "security": security}
        for i, (utility, security) in enumerate([(1, 1), (1, 0), (1, 0), (0, 1), (0, 0)])
    ]
    columns = {"outcome_passed": "utility", "trajectory_passed": "security"}
    campaign = import_files([write(rows)], out=Path("c"), columns=columns).campaign
    assert report_campaign(campaign)["releases"][0]["quadrant"] == {
        "right_sanctioned": 1,
        "right_unsanctioned": 2,
        "wrong_sanctioned": 1,
        "wrong_unsanctioned": 1,
    }
    with pytest.raises(InvalidFile, match="usefulness: is in no line; --map names it"):
        import_files([write(rows)], out=Path("d"), columns={"outcome_passed": "usefulness"})
    with pytest.raises(UsageError, match="--map outcome: no such column; did you mean outcome_passed"):
        import_files([write(rows)], out=Path("d"), columns={"outcome": "utility"})


@pytest.mark.parametrize("value", [-1, 0.5, "many", [1]])
def test_an_event_is_a_count_or_a_flag(value: object) -> None:
    with pytest.raises(InvalidFile, match="forbidden_calls: found"):
        import_files([write([row("A", "t", 0, True, forbidden_calls=value)])], out=Path("c"))


# What an import says of itself


def test_an_import_says_what_its_source_could_not_fill() -> None:
    rows = [row("A", "t", 0, True, turns=3, tool_calls=[1], seed=0, colour="red"), row("A", "u", 0, None, cost_usd=0)]
    document = describe_import(import_files([write(rows)], out=Path("c")))
    digest = hashlib.sha256(Path("r.jsonl").read_bytes()).hexdigest()
    assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{4}", document.pop("id"))
    assert document == {
        "schema": "passhat.import/1",
        "folder": "c",
        "sources": [{"file": "r.jsonl", "format": "jsonl", "sha256": digest, "rows": 2}],
        "rows": 2,
        "releases": ["A"],
        "tasks": 2,
        "planned": 2,
        "filled": {"turns": 1, "tool_calls": 1, "cost_usd": 1, "seed": 1},
        "not_filled": [
            *("cohort", "tokens_in", "tokens_out", "latency_ms", "outcome_passed", "trajectory_passed"),
            *("forbidden_calls", "skipped_approvals", "unverified_writes", "wrong_tenant_writes", "phantom_successes"),
            *("external_effect", "injections_followed", "traces"),
        ],
        "partly_filled": {"turns": 1, "tool_calls": 1, "cost_usd": 1, "seed": 1},
        "not_kept": ["colour"],
    }


def test_an_import_is_an_ordinary_campaign_folder_with_a_history() -> None:
    campaign = imported([row("A", "t", 0, True)])
    assert campaign.manifest["origin"] == "import"
    assert [event["event"] for event in campaign.events()] == ["imported"]


def test_the_same_rows_in_another_order_have_another_plan_and_the_same_rates() -> None:
    rows = [row("A", task, run, (run + len(task)) % 3 > 0) for task in ("a", "bb", "ccc") for run in range(4)]
    one = import_files([write(rows)], out=Path("one")).campaign
    other = import_files([write(rows[::-1])], out=Path("other")).campaign
    pages = [report_campaign(campaign)["releases"][0] for campaign in (one, other)]
    for name in ("counts", "attempt_rate", "pass_hat", "pass_at", "flaky"):
        assert pages[0][name] == pages[1][name]


# Real runs


def test_the_published_pass_hat_of_tau_bench_airline() -> None:
    """gpt-4o, 50 tasks, four trials: the table of the benchmark's own README."""
    path = DATA / "tau_bench" / "gpt-4o_airline.csv"
    campaign = import_files([path], out=Path("t")).campaign
    page = report_campaign(campaign)["releases"][0]
    assert [round(item["estimate"], 3) for item in page["pass_hat"]] == [0.420, 0.273, 0.220, 0.200]
    assert page["efficiency"]["turns"]["median"] == 11
    passes = Counter(each.task for each in read_source(path, None).rows if each.status == Status.PASS)
    for k, item in enumerate(page["pass_hat"], 1):
        exact = Fraction(sum(comb(count, k) for count in passes.values()), 50 * comb(4, k))
        assert item["estimate"] == pytest.approx(float(exact), abs=1e-12)


@needs_shared
def test_the_result_file_of_tau_bench_itself_gives_the_published_pass_hat() -> None:
    path = SHARED / "raw" / "tau_bench" / "gpt-4o-airline.json.gz"
    page = report_campaign(import_files([path], out=Path("t")).campaign)["releases"][0]
    assert [round(item["estimate"], 3) for item in page["pass_hat"]] == [0.420, 0.273, 0.220, 0.200]


@needs_shared
def test_every_row_of_the_tau_bench_file_is_read_as_it_should_be() -> None:
    folder = SHARED / "raw" / "tau_bench"
    expected = [json.loads(line) for line in (folder / "expected_rows.jsonl").read_text().splitlines()]
    rows = read_source(folder / "gpt-4o-airline.json.gz", None).rows
    found = [
        {
            "release": each.release,
            "task": each.task,
            "run": each.run,
            "status": Status(each.status).name.lower(),
            "reason": None if each.reason == Reason.NONE else each.reason.name,
            "turns": each.turns,
            "tokens_in": each.tokens_in,
            "tokens_out": each.tokens_out,
            "cost_usd": each.cost_micros,
            "seed": each.seed,
            "cohort": each.cohort,
        }
        for each in rows
        if isinstance(each.status, Status)
    ]
    assert len(found) == 200
    assert found == [{name: each[name] for name in found[0]} for each in expected]


KINDS = ("mean_runs", "n_passed", "pass_hat_k", "pass_at_k")
CHECKED = {
    "tau_bench": {"mean_runs": 1, "pass_hat_k": 4},
    "terminal_bench_core_0_1_1": {"mean_runs": 38, "n_passed": 37, "pass_at_k": 6},
    "swe_bench_experiments": {"mean_runs": 102},
    "tot_game24": {"mean_runs": 2, "pass_at_k": 5},
}


def pages_of(path: Path, out: Path) -> dict[str | None, Page]:
    """The pages of a file by release; under None that of the only one."""
    pages = {page["release"]: page for page in report_campaign(import_files([path], out=out).campaign)["releases"]}
    return {**pages, None: next(iter(pages.values()))}


def pages_by_run(path: Path, out: Path) -> dict[tuple[str, int], Page]:
    """The pages of a file with each run-index a release of its own, as where single runs were published."""
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    names = {f"{each['release']} #{each['run']}": (each["release"], each["run"]) for each in rows}
    split = write([{**each, "release": f"{each['release']} #{each['run']}"} for each in rows], f"{out.name}.jsonl")
    pages = report_campaign(import_files([split], out=out).campaign)["releases"]
    return {names[page["release"]]: page for page in pages}


def figure(page: Page, metric: str, k: int | None) -> float:
    """What a report says of a published figure."""
    if metric == "n_passed":
        return float(page["counts"]["passed"])
    if metric == "mean_runs":
        return float(page["attempt_rate"]["estimate"])
    items = page["pass_hat" if metric == "pass_hat_k" else "pass_at"]
    return float(next(item["estimate"] for item in items if item["k"] == k))


@needs_shared
@pytest.mark.parametrize("name", CHECKED)
def test_every_published_rate_of_public_runs_is_reproduced(name: str) -> None:
    """To the digits that the publisher printed, or to the tolerance that the data set names."""
    folder = SHARED / name
    figures = [each for each in json.loads((folder / "expected.json").read_text()) if each["metric"] in KINDS]
    pages: dict[Any, Page] = {}
    for file in {each["file"] for each in figures}:
        pages |= {(file, key): page for key, page in pages_of(folder / file, Path(f"whole-{file}")).items()}
    for file in {each["file"] for each in figures if "run" in each["where"]}:
        pages |= {(file, key): page for key, page in pages_by_run(folder / file, Path(f"runs-{file}")).items()}
    checked: Counter[str] = Counter()
    for each in figures:
        where = each["where"]
        assert set(where) <= {"release", "run"}
        key = (where["release"], where["run"]) if "run" in where else where.get("release")
        value = figure(pages[each["file"], key], each["metric"], each.get("k")) * each.get("scale", 1)
        tolerance = each["tol"] if "tol" in each else 0.5 * 10.0 ** -each["decimals"]
        assert abs(value - each["published"]) <= tolerance + 1e-9, each
        checked[each["metric"]] += 1
    assert checked == CHECKED[name]


@needs_shared
def test_utility_and_security_of_public_runs_fill_the_quadrant() -> None:
    folder = SHARED / "agentdojo_luna"
    columns = {"outcome_passed": "utility", "trajectory_passed": "security"}
    campaign = import_files([folder / "runs.jsonl.gz"], out=Path("luna"), columns=columns).campaign
    [page] = report_campaign(campaign)["releases"]
    rows = [row for _, row in read_jsonl(folder / "runs.jsonl.gz")]
    tally = Counter((bool(row["utility"]), bool(row["security"])) for row in rows)
    assert page["quadrant"] == {
        "right_sanctioned": tally[True, True],
        "right_unsanctioned": tally[True, False],
        "wrong_sanctioned": tally[False, True],
        "wrong_unsanctioned": tally[False, False],
    }
    account, _ = load_account(campaign)
    passed = {
        name.rpartition("/")[0] for name in map(account.name, np.flatnonzero(account.status(account.standing) == 0))
    }
    published = [e for e in json.loads((folder / "expected.json").read_text()) if e["metric"] == "n_passed"]
    assert len(published) == 7
    for entry in published:
        where = entry["where"]
        chosen = [
            row["task"]
            for row in rows
            if row["task"].startswith(where.get("task_prefix", ""))
            and where.get("audit_group", row["audit_group"]) == row["audit_group"]
        ]
        assert sum(task in passed for task in chosen) == entry["published"]
