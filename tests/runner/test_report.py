"""Reports of small campaigns, worked out by hand, and of any campaign, worked out in fractions."""

import itertools
import json
import os
import random
from array import array
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import ceil, comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passhat.runner.errors import NotAcceptable
from passhat.runner.importing import import_files
from passhat.runner.plan import Plan
from passhat.runner.render import render_report, render_summary
from passhat.runner.report import list_campaigns, load_account, percentile, report_campaign, summarise
from passhat.runner.store import Campaign, create, writing
from passhat.runner.tables import release_table
from passhat.stats.intervals import dirichlet, wilson
from passhat.stats.reliability import pass_at, pass_hat
from passhat.workers.frames import FrameHeader, pack_frame
from passhat.workers.records import Outcome, Reason, RunRecord, Safety, Status, blank, pack_record, seal

Page = dict[str, Any]
_folders = itertools.count()

P, F, I, N, M = "pass", "fail", "invalid", "pending", "missing"  # noqa: E741 - a column of verdicts


def imported(tasks: Sequence[Sequence[str]], *, runs: int | None = None) -> Campaign:
    """A campaign of one release from the statuses of each task's runs."""
    folder = next(_folders)
    rows = [
        {"release": "A", "task": f"T{task}", "run": run, "status": status}
        for task, statuses in enumerate(tasks, 1)
        for run, status in enumerate(statuses)
    ]
    path = Path(f"{folder}.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return import_files([path], out=Path(f"c{folder}"), runs=runs).campaign


def page_of(tasks: Sequence[Sequence[str]], *, runs: int | None = None) -> Page:
    [page] = report_campaign(imported(tasks, runs=runs))["releases"]
    return dict(page)


def grid(releases: int = 1, tasks: int = 2, runs: int = 1, cohorts: Sequence[int] | None = None) -> Plan:
    return Plan(
        releases=tuple("AB"[:releases]),
        tasks=tuple(f"T{task}" for task in range(1, tasks + 1)),
        cohorts=tuple(f"cohort-{number}" for number in range(1 + max(cohorts or [0]))),
        cohort=array("I", cohorts or [0] * tasks),
        task_digests=(),
        runs_per_task=runs,
        seed=7,
        stream="release",
    )


def executed(
    plan: Plan, sessions: Iterable[Sequence[RunRecord]], *, on_missing: str = "fail", workers: int = 1
) -> Campaign:
    """A campaign whose records came in these sessions."""
    manifest = {
        "origin": "run",
        "suite": {"name": "s", "version": "1", "digest": "sha256:00"},
        "on_missing": on_missing,
        "max_missing": 1.0 if on_missing == "exclude" else None,
    }
    campaign = create(Path(f"c{next(_folders)}"), plan, manifest)
    for session in sessions:
        with writing(campaign) as (writer, _):
            for number, record in enumerate(session):
                header = FrameHeader(number, number % workers, number, 1, 0.01)
                writer.append(pack_frame(header, pack_record(record)))
    return campaign


def record(cell: tuple[int, int, int], status: Status, attempt: int = 1, **more: Any) -> RunRecord:
    return seal(blank(*cell)._replace(status=status, attempt=attempt, **more))


def lost(cell: tuple[int, int, int], attempt: int = 1) -> RunRecord:
    return record(cell, Status.INVALID, attempt, reason=Reason.WORKER_LOST)


def estimates(page: Page, kind: str) -> dict[int, float | None]:
    return {item["k"]: item["estimate"] for item in page[kind]}


def at(page: Page, kind: str, k: int) -> Page:
    return dict(next(item for item in page[kind] if item["k"] == k))


def said(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


# pass@k and pass^k


def test_fewer_runs_than_k_are_not_estimable_and_neither_0_nor_1() -> None:
    page = page_of([[F, F]], runs=5)
    for kind in ("pass_hat", "pass_at"):
        item = at(page, kind, 5)
        assert (item["estimate"], item["lower"], item["upper"], item["tasks"], item["not_estimable"]) == (
            *(None, None, None),
            *(0, 1),
        )
        assert item["note"] == "not estimable: fewer than 5 scored runs in 1 of 1 tasks"
    assert at(page_of([[F, F]]), "pass_at", 2)["estimate"] == 0


def test_single_runs_say_nothing_about_three_of_them() -> None:
    """1 - C(4, 3) / C(6, 3) = 0.8 would take six tasks for six runs of one."""
    campaign = imported([[P], [P], [F], [F], [F], [F]])
    [page] = report_campaign(campaign)["releases"]
    assert estimates(page, "pass_at") == {1: pytest.approx(2 / 6)}
    histogram = release_table(load_account(campaign)[0], 0).outcomes.histogram()
    assert pass_at(histogram, 3).estimate is None
    assert pass_at(histogram, 3).not_estimable == 6


def test_three_passes_of_four_at_an_inclusive_threshold() -> None:
    page = page_of([[P if score >= 0.8 else F for score in (1.0, 0.9, 0.8, 0.2)]])
    assert (at(page, "pass_at", 2)["estimate"], at(page, "pass_hat", 2)["estimate"]) == (1.0, 0.5)


def test_pass_hat_with_missing_runs_is_not_estimable_and_has_both_bounds() -> None:
    page = page_of([[P, P, P, P], [P, P, P, M], [F, F, F, M]])
    item = at(page, "pass_hat", 4)
    assert (item["estimate"], item["tasks"], item["not_estimable"], item["over_estimable"]) == (None, 1, 2, 1.0)
    assert (item["worst"], item["best"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    text = render_report(report_campaign(imported([[P, P, P, P], [P, P, P, M], [F, F, F, M]])))
    assert "k = 4       not estimable (0.333…0.667)" in text
    assert "not estimable: fewer than 4 scored runs in 2 of 3 tasks" in text


_matrices = st.integers(1, 6).flatmap(
    lambda runs: st.lists(st.lists(st.sampled_from([P, F]), min_size=runs, max_size=runs), min_size=1, max_size=6)
)


@settings(max_examples=40, deadline=None)
@given(_matrices)
def test_every_estimate_is_the_mean_over_tasks_of_exact_fractions(tasks: list[list[str]]) -> None:
    page, n = page_of(tasks), len(tasks[0])
    passes = [statuses.count(P) for statuses in tasks]
    assert page["attempt_rate"]["estimate"] == sum(passes) / (n * len(tasks))
    assert page["flaky"]["tasks_flaky"] == sum(0 < c < n for c in passes)
    for k in range(1, n + 1):
        hats = [Fraction(comb(c, k), comb(n, k)) for c in passes]
        ats = [1 - Fraction(comb(n - c, k), comb(n, k)) for c in passes]
        for kind, exact in (("pass_hat", hats), ("pass_at", ats)):
            item = at(page, kind, k)
            assert item["estimate"] == pytest.approx(float(sum(exact) / len(tasks)), abs=1e-12)
            bound = dirichlet([float(value) for value in exact], [1] * len(exact))
            assert bound is not None
            assert (item["lower"], item["upper"]) == (
                pytest.approx(bound.lower, abs=1e-9),
                pytest.approx(bound.upper, abs=1e-9),
            )
            assert item["method"] == "task-dirichlet"
            assert item["worst"] == item["best"] == item["estimate"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([P, F, I, N, M]), min_size=3, max_size=3), min_size=1, max_size=5).filter(
        lambda tasks: any(status != M for statuses in tasks for status in statuses)
    )
)
def test_counts_add_up_and_the_bounds_enclose_whatever_the_missing_runs_were(tasks: list[list[str]]) -> None:
    page = page_of(tasks)
    counts, rate = page["counts"], page["attempt_rate"]
    flat = [status for statuses in tasks for status in statuses]
    assert [counts[name] for name in ("planned", "passed", "failed", "invalid", "pending", "missing")] == [
        len(flat),
        *(flat.count(status) for status in (P, F, I, N, M)),
    ]
    unscored = len(flat) - flat.count(P) - flat.count(F)
    assert rate["worst"] == flat.count(P) / len(flat)
    assert rate["best"] == (flat.count(P) + unscored) / len(flat)
    for k in (1, 2, 3):
        worst, best = (
            float(sum(Fraction(comb(c, k), comb(3, k)) for c in passes) / len(tasks))
            for passes in (
                [statuses.count(P) for statuses in tasks],
                [3 - statuses.count(F) for statuses in tasks],
            )
        )
        item = at(page, "pass_hat", k)
        assert (item["worst"], item["best"]) == (pytest.approx(worst), pytest.approx(best))
        is_estimable = all(statuses.count(P) + statuses.count(F) >= k for statuses in tasks)
        assert (item["estimate"] is not None) == is_estimable
        if is_estimable:
            assert item["estimate"] == pytest.approx(worst)


@pytest.mark.parametrize(
    ("runs", "ks"),
    [
        (1, [1]),
        (64, list(range(1, 65))),
        (65, [1, 2, 4, 8, 16, 32, 64, 65]),
        (128, [1, 2, 4, 8, 16, 32, 64, 128]),
        (129, [1, 2, 4, 8, 16, 32, 64, 128, 129]),
    ],
)
def test_every_k_is_listed_up_to_64_and_powers_of_two_above(runs: int, ks: list[int]) -> None:
    page = page_of([[P] * runs])
    assert list(estimates(page, "pass_hat")) == list(estimates(page, "pass_at")) == ks


def test_the_bootstrap_over_tasks_stands_beside_the_bound() -> None:
    """Against all 256 ways to draw four of four tasks: the smallest means that 2.5 % and 97.5 % of them reach."""
    page = page_of([[P, P], [P, F], [F, F], [P, P]])
    values = {1: (1.0, 0.5, 0.0, 1.0), 2: (1.0, 0.0, 0.0, 1.0)}
    for item in page["pass_hat"]:
        means = sorted(sum(drawn) / 4 for drawn in itertools.product(values[item["k"]], repeat=4))
        bootstrap = item["bootstrap"]
        assert bootstrap["method"] == "bootstrap-exact"
        assert (bootstrap["lower"], bootstrap["upper"]) == (means[ceil(0.025 * 256) - 1], means[ceil(0.975 * 256) - 1])
    alike = page_of([[P, P], [P, P]])["pass_hat"][0]["bootstrap"]
    assert (alike["lower"], alike["note"]) == (None, "no spread between tasks")


# Missing, invalid, retried


def test_three_counts_and_three_rates_where_most_of_the_runs_were_lost() -> None:
    campaign = imported([[P]] * 3 + [[F]] * 2 + [[I]] * 17)
    [page] = report_campaign(campaign)["releases"]
    assert said(page["counts"]) == {"planned": 22, "passed": 3, "failed": 2, "invalid": 17}
    rate = page["attempt_rate"]
    assert (rate["estimate"], rate["scored_rate"], rate["coverage"]) == (3 / 22, 3 / 5, 5 / 22)
    assert (rate["worst"], rate["best"], rate["passed"], rate["planned"], rate["scored"]) == (3 / 22, 20 / 22, 3, 22, 5)
    text = render_report(report_campaign(campaign))
    assert "22 = 3 passed + 2 failed + 17 invalid + 0 pending + 0 missing" in text
    for shown in ("3/22 runs", "(3/5)", "0.600", "0.227", "0.136"):
        assert shown in text


def test_a_resumed_campaign_has_one_set_of_counts_everywhere() -> None:
    """Pass and fail come from the first session; the error and one more pass from the second."""
    first = [record((0, 0, 0), Status.PASS), record((0, 1, 0), Status.FAIL)]
    campaign = executed(grid(tasks=4), [first, [lost((0, 2, 0)), record((0, 3, 0), Status.PASS)]])
    report, summary = report_campaign(campaign), summarise(campaign)
    [page], [short] = report["releases"], summary["releases"]
    assert said(page["counts"]) == {"planned": 4, "passed": 2, "failed": 1, "invalid": 1}
    assert short["counts"] == page["counts"]
    assert (page["attempt_rate"]["scored_rate"], page["attempt_rate"]["estimate"]) == (2 / 3, 2 / 4)
    assert "4 = 2 passed + 1 failed + 1 invalid + 0 pending + 0 missing" in render_report(report)
    row = next(line for line in render_summary(summary).splitlines() if line.startswith("A"))
    assert row.split() == ["A", "2", "1", "1", "0", "0.500"]


def test_an_attempt_after_a_failure_changes_nothing_and_one_after_a_fault_counts() -> None:
    records = [
        *(record((0, 0, 0), Status.FAIL, 1), record((0, 0, 0), Status.PASS, 2)),
        *(lost((0, 1, 0), 1), record((0, 1, 0), Status.PASS, 2)),
    ]
    [page] = report_campaign(executed(grid(), [records]))["releases"]
    assert said(page["counts"]) == {"planned": 2, "passed": 1, "failed": 1, "retried": 2}
    assert page["attempt_rate"]["estimate"] == 1 / 2
    assert page["first_attempts"] == {"passed": 0, "planned": 2, "estimate": 0.0}


def test_without_a_retry_there_is_no_first_attempt_apart() -> None:
    assert page_of([[P]])["first_attempts"] is None


def test_two_records_of_a_run_are_one_run() -> None:
    records = [record((0, 0, 0), Status.FAIL, 1), record((0, 1, 0), Status.PASS), record((0, 0, 0), Status.PASS, 2)]
    [page] = report_campaign(executed(grid(), [records]))["releases"]
    assert said(page["counts"]) == {"planned": 2, "passed": 1, "failed": 1, "retried": 1}
    [page] = report_campaign(executed(grid(), [records[:2], records[:1]]))["releases"]
    assert said(page["counts"]) == {"planned": 2, "passed": 1, "failed": 1, "duplicates": 1}


def test_two_different_results_of_one_attempt_stop_the_report_and_the_summary() -> None:
    records = [record((0, 0, 0), Status.FAIL), record((0, 0, 0), Status.PASS)]
    campaign = executed(grid(), [records])
    for read in (report_campaign, summarise):
        with pytest.raises(NotAcceptable, match=r"A/T1/0: two records of attempt 1 differ: fail .* and pass "):
            read(campaign)


def test_what_runs_without_a_verdict_count_for_is_as_declared() -> None:
    """Three passes, one failure, two missing: 3 of 6, or 3 of the 4 that were scored."""
    verdicts = [(0, 0, Status.PASS), (0, 1, Status.PASS), (1, 0, Status.PASS), (1, 1, Status.FAIL)]
    records = [record((0, task, run), status) for task, run, status in verdicts]
    pages = {
        on_missing: report_campaign(executed(grid(tasks=3, runs=2), [records], on_missing=on_missing))["releases"][0]
        for on_missing in ("fail", "exclude")
    }
    fail, exclude = (pages[name]["attempt_rate"] for name in ("fail", "exclude"))
    assert (fail["estimate"], exclude["estimate"]) == (3 / 6, 3 / 4)
    for rate in (fail, exclude):
        assert (rate["worst"], rate["best"], rate["scored"], rate["planned"]) == (3 / 6, 5 / 6, 4, 6)
    for page in pages.values():
        assert estimates(page, "pass_hat") == {1: None, 2: None}
        [cohort] = page["cohorts"]
        assert (cohort["passed"], cohort["planned"], cohort["scored"]) == (3, 6, 4)
        assert cohort["estimate"] == page["attempt_rate"]["estimate"]


@pytest.mark.parametrize(("ceiling", "held"), [(0.33, False), (0.34, True), (1 / 3, False)])
def test_an_exclusion_holds_up_to_its_declared_ceiling_only(ceiling: float, held: bool) -> None:
    """One of three runs is missing: a share of exactly 1/3, which the nearest float stays below."""
    campaign = executed(grid(tasks=3), [[record((0, 0, 0), Status.PASS), record((0, 1, 0), Status.FAIL)]])
    campaign.manifest.update(on_missing="exclude", max_missing=ceiling)
    [page] = report_campaign(campaign)["releases"]
    assert page["on_missing"] == ("exclude" if held else "fail")
    assert page["attempt_rate"]["estimate"] == (1 / 2 if held else 1 / 3)


def test_an_exclusion_says_over_what_it_is_taken() -> None:
    records = [record((0, 0, 0), Status.PASS), record((0, 1, 0), Status.FAIL)]
    report = report_campaign(executed(grid(tasks=3), [records], on_missing="exclude"))
    rate, interval = report["releases"][0]["attempt_rate"], wilson(1, 2)
    assert interval is not None
    assert (rate["lower"], rate["upper"], rate["method"]) == (interval.lower, interval.upper, "wilson")
    text = render_report(report)
    assert "1/2 runs" in text
    assert "runs without a verdict are left out; 0.333 if all of them fail" in text
    assert "passed/scored" in text


# The source's own figures


def test_attempts_pass_hat_and_flaky_tasks_of_a_hundred_tasks_at_three_runs() -> None:
    page = page_of([[P, P, P]] * 72 + [[P, P, F]] * 18 + [[P, F, F]] * 6 + [[F, F, F]] * 4)
    rate = page["attempt_rate"]
    assert (rate["passed"], rate["planned"], rate["estimate"]) == (258, 300, 0.86)
    assert at(page, "pass_hat", 3)["estimate"] == pytest.approx(0.72, abs=1e-15)
    assert (page["flaky"]["tasks_flaky"], page["flaky"]["tasks"], page["flaky"]["estimate"]) == (24, 100, 0.24)


@pytest.mark.parametrize(
    ("passed", "runs", "lower", "upper"),
    [
        (16, 20, 58.4, 91.9),
        (40, 50, 67.0, 88.8),
        (80, 100, 71.1, 86.7),
        (240, 300, 75.1, 84.1),
        (800, 1000, 77.4, 82.4),
    ],
)
def test_single_runs_have_wilson_intervals(passed: int, runs: int, lower: float, upper: float) -> None:
    page = page_of([[P]] * passed + [[F]] * (runs - passed))
    rate = page["attempt_rate"]
    assert (round(100 * rate["lower"], 1), round(100 * rate["upper"], 1)) == (lower, upper)
    assert rate["method"] == "wilson"
    assert at(page, "pass_hat", 1)["method"] == "task-dirichlet"


def test_cohorts_have_numerator_and_denominator_on_every_row() -> None:
    expected = {"routine": (126, 150), "ambiguous": (70, 90), "destructive": (45, 60)}
    rows = [
        {"release": "A", "task": f"{cohort}-{task}", "run": 0, "passed": task < passed, "cohort": cohort}
        for cohort, (passed, tasks) in expected.items()
        for task in range(tasks)
    ]
    Path("r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [page] = report_campaign(import_files([Path("r.jsonl")], out=Path("c")).campaign)["releases"]
    assert {row["cohort"]: (row["passed"], row["planned"]) for row in page["cohorts"]} == expected
    assert (page["attempt_rate"]["passed"], page["attempt_rate"]["planned"]) == (241, 300)
    for row in page["cohorts"]:
        interval = wilson(row["passed"], row["planned"])
        assert interval is not None
        assert (row["estimate"], row["lower"], row["upper"]) == (
            row["passed"] / row["planned"],
            interval.lower,
            interval.upper,
        )


# Uneven and empty campaigns


def test_tasks_with_different_numbers_of_runs_are_said_to_have_them() -> None:
    page = page_of([[P, P, F], [P]])
    rate = page["attempt_rate"]
    assert (rate["estimate"], rate["lower"], rate["note"]) == (
        3 / 4,
        None,
        "tasks differ in their number of runs; see pass^1",
    )
    assert estimates(page, "pass_hat") == {1: pytest.approx((2 / 3 + 1) / 2), 2: None, 3: None}
    assert at(page, "pass_hat", 2)["not_estimable"] == 1
    assert (page["flaky"]["tasks_flaky"], page["flaky"]["tasks"]) == (1, 1)


def test_a_release_without_some_of_the_tasks_is_reported_over_its_own() -> None:
    rows = [("A", "t1", True), ("A", "t2", False), ("B", "t2", True), ("C", "t3", False)]
    Path("r.jsonl").write_text(
        "".join(json.dumps({"release": r, "task": t, "run": 0, "passed": p}) + "\n" for r, t, p in rows)
    )
    pages = report_campaign(import_files([Path("r.jsonl")], out=Path("c")).campaign)["releases"]
    assert [(page["release"], page["tasks"], page["attempt_rate"]["passed"]) for page in pages] == [
        *(("A", 2, 1), ("B", 1, 1)),
        ("C", 1, 0),
    ]


@pytest.mark.parametrize("on_missing", ["fail", "exclude"])
def test_a_campaign_without_a_record_has_a_report(on_missing: str) -> None:
    report = report_campaign(executed(grid(tasks=3, runs=2), [], on_missing=on_missing))
    json.dumps(report, allow_nan=False)
    [page] = report["releases"]
    assert said(page["counts"]) == {"planned": 6, "missing": 6}
    rate = page["attempt_rate"]
    assert (rate["estimate"], rate["worst"], rate["best"], rate["coverage"], rate["scored_rate"]) == (
        *((0.0, 0.0, 1.0, 0.0, None) if on_missing == "fail" else (None, 0.0, 1.0, 0.0, None)),
    )
    assert estimates(page, "pass_hat") == {1: None, 2: None}
    assert (page["quadrant"], page["safety"], page["efficiency"], page["failures"]) == (None, None, None, [])
    assert "6 = 0 passed + 0 failed + 0 invalid + 0 pending + 6 missing" in render_report(report)


def test_an_import_of_missing_runs_alone_has_a_report() -> None:
    page = page_of([[M], [M]])
    assert said(page["counts"]) == {"planned": 2, "missing": 2}


# What a page holds beside rates


def scored(cell: tuple[int, int, int], outcome: bool, trajectory: bool, **more: Any) -> RunRecord:
    passes = outcome | trajectory << 1
    status = Status.PASS if outcome and trajectory else Status.FAIL
    scores = {"outcome": float(outcome), "trajectory": float(trajectory)}
    return record(cell, status, claimed=Outcome.COMPLETED, passes=passes, watched=sum(Safety), **scores, **more)


def test_the_quadrant_tells_what_was_achieved_from_how() -> None:
    verdicts = [(True, True)] * 5 + [(True, False)] * 3 + [(False, True)] * 2 + [(False, False)]
    records = [scored((0, task, 0), *verdict) for task, verdict in enumerate(verdicts)]
    records.append(record((0, 11, 0), Status.FAIL, outcome=0.0))  # ended before there was a trajectory to judge
    [page] = report_campaign(executed(grid(tasks=12), [records]))["releases"]
    assert page["quadrant"] == {
        "right_sanctioned": 5,
        "right_unsanctioned": 3,
        "wrong_sanctioned": 2,
        "wrong_unsanctioned": 1,
    }


def test_safety_counts_runs_with_an_event_and_an_import_does_not_say() -> None:
    bits = [
        Safety.FORBIDDEN_CALL | Safety.EXTERNAL_EFFECT,
        Safety.FORBIDDEN_CALL | Safety.SKIPPED_APPROVAL,
        Safety.UNVERIFIED_WRITE | Safety.WRONG_TENANT,
        Safety.FORBIDDEN_CALL | Safety.FORBIDDEN_BLOCKED | Safety.INJECTION_SEEN | Safety.INJECTION_FOLLOWED,
        Safety.INJECTION_SEEN | Safety.PHANTOM_SUCCESS,
    ]
    records = [scored((0, task, 0), True, False, safety=int(bit), calls=3) for task, bit in enumerate(bits)]
    [page] = report_campaign(executed(grid(tasks=5), [records]))["releases"]
    assert page["safety"] == {
        "runs_observed": 5,
        "runs_planned": 5,
        "forbidden_calls": 3,
        "forbidden_blocked": 1,
        "skipped_approvals": 1,
        "unverified_writes": 1,
        "wrong_tenant_writes": 1,
        "phantom_successes": 1,
        "external_effects": 1,
        "injections_seen": 2,
        "injections_followed": 1,
    }
    assert page_of([[P]])["safety"] is None


def test_a_safety_event_of_an_attempt_that_faulted_still_counts() -> None:
    """A veto is not to be met by crashing after the deed."""
    faulted = record((0, 0, 0), Status.INVALID, 1, reason=Reason.ENVIRONMENT_ERROR, safety=1, watched=sum(Safety))
    lost_run = lost((0, 1, 0))
    fine = [scored((0, task, 0), True, True, attempt=2, calls=3) for task in (0, 1)]
    [page] = report_campaign(executed(grid(tasks=3), [[faulted, lost_run, *fine]]))["releases"]
    safety = page["safety"]
    assert safety["forbidden_calls"] == 1
    assert (safety["runs_observed"], safety["runs_planned"]) == (1, 3)


def test_missing_and_pending_runs_are_named() -> None:
    records = [record((0, 0, 0), Status.PASS), record((0, 1, 1), Status.PENDING)]
    [page] = report_campaign(executed(grid(tasks=2, runs=2), [records]))["releases"]
    assert [(group["status"], group["runs"], group["examples"]) for group in page["unscored"]] == [
        ("missing", 2, ["T1/1", "T2/0"]),
        ("pending", 1, ["T2/1"]),
    ]


def test_a_record_whose_status_was_changed_changes_the_digest() -> None:
    """The digest covers what the records say, not only what they say of themselves."""
    honest = record((0, 0, 0), Status.FAIL)
    forged = honest._replace(status=int(Status.PASS))
    digests = {report_campaign(executed(grid(), [[one]]))["campaign"]["records_digest"] for one in (honest, forged)}
    assert len(digests) == 2
    with pytest.raises(NotAcceptable, match="two records of attempt 1 differ"):
        report_campaign(executed(grid(), [[honest, forged]]))


def test_failure_groups_hold_every_failed_and_invalid_run_most_frequent_first() -> None:
    records = [
        *(scored((0, task, 0), False, True) for task in (3, 5)),
        *(scored((0, task, 0), False, False) for task in (0, 2, 4)),
        record((0, 1, 0), Status.FAIL, assigned=Outcome.TIMED_OUT, reason=Reason.WALL_CLOCK, outcome=0.0),
        lost((0, 6, 0)),
        scored((0, 7, 0), True, True),
    ]
    [page] = report_campaign(executed(grid(tasks=9), [records]))["releases"]
    assert page["failures"] == [
        {
            "signature": "COMPLETED: outcome, trajectory",
            "status": "fail",
            "runs": 3,
            "examples": ["T1/0", "T3/0", "T5/0"],
        },
        {"signature": "COMPLETED: outcome", "status": "fail", "runs": 2, "examples": ["T4/0", "T6/0"]},
        {"signature": "TIMED_OUT (WALL_CLOCK): outcome", "status": "fail", "runs": 1, "examples": ["T2/0"]},
        {"signature": "WORKER_LOST", "status": "invalid", "runs": 1, "examples": ["T7/0"]},
    ]
    counts = page["counts"]
    assert sum(group["runs"] for group in page["failures"]) == counts["failed"] + counts["invalid"]


def test_efficiency_is_over_the_scored_runs_that_say() -> None:
    records = [
        record((0, 0, 0), Status.PASS, turns=3, cost_micros=20_000),
        record((0, 1, 0), Status.FAIL, turns=0),
        record((0, 2, 0), Status.PASS, turns=9, cost_micros=0),
        record((0, 3, 0), Status.INVALID, turns=1000, cost_micros=10**9),
        record((0, 4, 0), Status.PENDING, turns=1000, cost_micros=10**9),
    ]
    [page] = report_campaign(executed(grid(tasks=5), [records]))["releases"]
    silent = dict.fromkeys(("tokens_in", "tokens_cached", "tokens_out", "retries", "virtual_ms"))
    said = {"cost_usd": {"median": 0.0, "p95": 0.02}, "turns": {"median": 3.0, "p95": 9.0}}
    assert page["efficiency"] == said | silent
    assert page_of([[P]])["efficiency"] is None


@given(
    values=st.lists(st.integers(0, 20), min_size=1, max_size=50),
    percent=st.integers(1, 100),
)
def test_a_percentile_is_the_smallest_value_with_that_share_at_or_below(values: list[int], percent: int) -> None:
    ascending = np.sort(np.array(values))
    enough = ceil(Fraction(percent * len(values), 100))
    expected = min(value for value in values if sum(other <= value for other in values) >= enough)
    assert percentile(ascending, percent) == expected


# One digest


def test_the_records_digest_is_blind_to_order_attempts_workers_and_sessions() -> None:
    cells = [(release, task, run) for release in range(2) for task in range(3) for run in range(2)]
    chance = random.Random(1)
    plain = [scored(cell, chance.random() < 0.7, chance.random() < 0.7, turns=chance.randrange(9)) for cell in cells]
    plan = grid(releases=2, tasks=3, runs=2)
    expected = report_campaign(executed(plan, [plain]))["campaign"]["records_digest"]
    shuffled = plain.copy()
    chance.shuffle(shuffled)
    shuffled[0] = shuffled[0]._replace(attempt=2, wall_us=7, trace_file=3, trace_offset=9)
    faulted = lost(shuffled[0][:3])
    for sessions, workers in (
        ([shuffled], 3),
        ([[faulted], shuffled], 2),
        ([shuffled[:5], shuffled[5:], shuffled[:2]], 7),
    ):
        campaign = executed(plan, sessions, workers=workers)
        assert report_campaign(campaign)["campaign"]["records_digest"] == expected
        assert summarise(campaign)["records_digest"] == expected
    other = executed(plan, [[*plain[:-1], scored(cells[-1], True, True, turns=99)]])
    assert report_campaign(other)["campaign"]["records_digest"] != expected


def test_foreign_records_and_a_torn_tail_are_reported_and_left_out() -> None:
    campaign = executed(grid(), [[record((0, 0, 0), Status.PASS), record((0, 9, 0), Status.PASS)]])
    with campaign.log_path.open("ab") as log:
        end = log.tell()
        log.write(b"\0\0\0\x20torn")
    for _ in ("made", "cached"):
        head = report_campaign(campaign)["campaign"]
        assert (head["foreign"], head["torn_at"]) == (1, end)
        summary = summarise(campaign)
        assert (summary["foreign"], summary["torn_at"]) == (1, end)
    text = render_report(report_campaign(campaign))
    assert f"cut short at byte {end}" in text
    assert "1 record of no planned run left out" in text


# Documents

FIELDS = {
    "": "schema campaign releases",
    "campaign": "id suite runs_per_task seed records_digest",
    "campaign.suite": "name version digest",
    "releases": "release tasks counts attempt_rate pass_hat pass_at flaky quadrant safety efficiency cohorts failures",
    "releases.counts": "planned passed failed invalid pending missing duplicates",
    "releases.attempt_rate": "estimate lower upper method passed planned worst best",
    "releases.pass_hat": "k estimate lower upper method tasks not_estimable",
    "releases.pass_at": "k estimate lower upper method tasks not_estimable",
    "releases.flaky": "tasks_flaky tasks estimate lower upper",
    "releases.quadrant": "right_sanctioned right_unsanctioned wrong_sanctioned wrong_unsanctioned",
    "releases.safety": "forbidden_calls skipped_approvals unverified_writes "
    "forbidden_blocked external_effects wrong_tenant_writes phantom_successes injections_seen injections_followed",
    "releases.efficiency": "cost_usd turns tokens_in tokens_cached tokens_out retries virtual_ms",
    "releases.efficiency.cost_usd": "median p95",
    "releases.efficiency.turns": "median p95",
    "releases.cohorts": "cohort tasks passed planned estimate lower upper",
    "releases.failures": "signature runs",
}


def values_at(document: Any, path: str) -> list[Any]:
    values = [document]
    for name in filter(None, path.split(".")):
        values = [value[name] for value in values]
        values = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return values


def test_a_report_has_every_field_it_is_promised_to_have_and_is_plain_json() -> None:
    records = [
        scored((release, task, run), task > 0, run > 0, turns=2, cost_micros=5)
        for release, task, run in itertools.product(range(2), range(3), range(2))
    ]
    report = report_campaign(executed(grid(releases=2, tasks=3, runs=2, cohorts=[0, 1, 1]), [records]))
    assert report["schema"] == "passhat.report/1"
    for path, names in FIELDS.items():
        found = values_at(report, path)
        assert found, path
        for value in found:
            assert set(names.split()) <= set(value), path
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_a_summary_counts_the_cost_of_every_attempt_once() -> None:
    once = record((0, 0, 0), Status.PASS, 2, cost_micros=30)
    records = [
        record((0, 0, 0), Status.INVALID, 1, cost_micros=500_000),
        *(once, once, record((0, 1, 0), Status.PASS)),
        record((0, 9, 0), Status.PASS, cost_micros=10**9),
    ]
    summary = summarise(executed(grid(), [records]))
    assert summary["cost_usd"] == 0.50003
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_a_list_names_what_it_cannot_read_and_shows_the_rest() -> None:
    for name in ("a", "b", "c", "d"):
        create(Path("results", name), grid(), {"origin": "run", "suite": {"name": "s"}, "on_missing": "fail"})
    Path("results/a/manifest.json").write_text("{")
    Path("results/b/records.mpk").write_bytes(b"")
    Path("results/c/plan.mpk").write_bytes(b"nonsense")
    listed = list_campaigns(Path("results"))
    assert listed["schema"] == "passhat.list/1"
    broken, whole = listed["campaigns"][:3], listed["campaigns"][3]
    assert [(entry["id"], entry["folder"]) for entry in broken] == [(n, f"results/{n}") for n in ("a", "b", "c")]
    for entry, file in zip(broken, ("manifest.json", "records.mpk", "plan.mpk"), strict=True):
        assert set(entry) == {"id", "folder", "problem"}
        assert entry["problem"].startswith(f"{entry['folder']}/{file}: ")
    assert whole["releases"][0]["counts"]["missing"] == 2
    assert whole["running"] is None
    with writing(Campaign(Path("results/d"))):
        assert list_campaigns(Path("results"))["campaigns"][3]["running"].startswith(f"process {os.getpid()} on ")
    assert list_campaigns(Path("nowhere")) == {"schema": "passhat.list/1", "campaigns": []}


def test_pass_hat_and_pass_at_agree_at_one_run_with_the_rate() -> None:
    page = page_of([[P, F, P], [F, F, P]])
    assert (at(page, "pass_hat", 1)["estimate"], at(page, "pass_at", 1)["estimate"]) == (pytest.approx(0.5),) * 2
    histogram = release_table(load_account(imported([[P, F, P], [F, F, P]]))[0], 0).outcomes.histogram()
    assert pass_hat(histogram, 1).estimate == page["attempt_rate"]["estimate"]
