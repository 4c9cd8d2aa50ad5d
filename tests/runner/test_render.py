"""Pages as they are printed: what stands on them, that it fits, and that no rate is rounded into certainty."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passhat.runner.render import (
    estimate,
    number,
    render_doctor,
    render_import,
    render_list,
    render_plan,
    render_report,
    render_summary,
    short,
    table,
)

Document = dict[str, Any]
WIDTH = 80
DIGEST = "sha256:" + "0123456789abcdef" * 4


def ends(lower: float | None, upper: float | None, method: str | None = "task-dirichlet") -> Document:
    return {"lower": lower, "upper": upper, "method": method, "estimand": "tasks like these"}


def rate(passed: int, planned: int, scored: int | None = None) -> Document:
    scored = planned if scored is None else scored
    return {
        "estimate": passed / planned,
        "passed": passed,
        "planned": planned,
        "scored": scored,
        **ends(passed / planned / 2, (1 + passed / planned) / 2),
        "worst": passed / planned,
        "best": (passed + planned - scored) / planned,
        "scored_rate": passed / scored if scored else None,
        "coverage": scored / planned,
    }


def at_k(k: int, value: float | None, **more: Any) -> Document:
    interval = ends(None, None, None) if value is None else ends(value / 2, (1 + value) / 2)
    return {
        "k": k,
        "estimate": value,
        "tasks": 40,
        "not_estimable": 0,
        "worst": value,
        "best": value,
        **interval,
        **more,
    }


def failures_of(signature: str, runs: int, *examples: str, status: str = "fail") -> Document:
    return {"signature": signature, "status": status, "runs": runs, "examples": list(examples)}


def page(**more: Any) -> Document:
    document = {
        "release": "candidate",
        "tasks": 40,
        "counts": {
            "planned": 160,
            "passed": 148,
            "failed": 12,
            "invalid": 0,
            "pending": 0,
            "missing": 0,
            "duplicates": 0,
            "retried": 0,
        },
        "attempt_rate": rate(148, 160),
        "first_attempts": None,
        "pass_hat": [at_k(k, value) for k, value in ((1, 0.925), (2, 0.875), (3, 0.85), (4, 0.825))],
        "pass_at": [at_k(k, value) for k, value in ((1, 0.925), (2, 0.95), (3, 0.975), (4, 1.0))],
        "flaky": {"tasks_flaky": 6, "tasks": 40, "estimate": 0.15, **ends(0.07, 0.29, "wilson")},
        "quadrant": None,
        "safety": None,
        "efficiency": None,
        "cohorts": [
            {"cohort": "routine", "tasks": 28, **rate(100, 112)},
            {"cohort": "unanswerable", "tasks": 12, **rate(48, 48)},
        ],
        "failures": [],
        "unscored": [],
    }
    assert set(more) <= set(document)
    return {**document, **more}


def report(*pages: Document, **more: Any) -> str:
    campaign = {
        "id": "20261130T210455Z-3f9c",
        "suite": {"name": "desk", "version": "1", "digest": DIGEST},
        "runs_per_task": 4,
        "seed": 7,
        "stream": "release",
        "on_missing": "fail",
        "max_missing": None,
        "records_digest": DIGEST,
        "foreign": 0,
        "torn_at": None,
        "overrides": {},
    }
    declared = {**campaign, **more}
    releases = [{"on_missing": declared["on_missing"], **one} for one in pages]
    return render_report({"campaign": declared, "releases": releases})


def full_page(scale: int = 1) -> Document:
    """A page with something in every part of it."""
    quadrant = {"right_sanctioned": 140, "right_unsanctioned": 5, "wrong_sanctioned": 4, "wrong_unsanctioned": 3}
    safety = {
        "runs_observed": 160 * scale,
        "runs_planned": 160 * scale,
        "forbidden_calls": 3,
        "forbidden_blocked": 1,
        "external_effects": 2,
        "skipped_approvals": 1,
        "unverified_writes": 4,
        "wrong_tenant_writes": 0,
        "phantom_successes": 5,
        "injections_seen": 24,
        "injections_followed": 2,
    }
    failures = [
        failures_of("COMPLETED: outcome, trajectory, efficiency", 4, "destructive-0003/10"),
        failures_of("WORKER_LOST", 1, "unanswerable-0001/2", status="invalid"),
    ]
    counts = {
        "planned": 160,
        "passed": 140,
        "failed": 10,
        "invalid": 4,
        "pending": 2,
        "missing": 4,
        "duplicates": 1,
        "retried": 12,
    }
    return page(
        counts={name: count * scale for name, count in counts.items()},
        attempt_rate=rate(140 * scale, 160 * scale, 150 * scale),
        first_attempts={"passed": 138, "planned": 160, "estimate": 138 / 160},
        pass_hat=[
            at_k(1, 0.875),
            at_k(2, None, worst=0.8, best=0.9, note="not estimable: fewer than 2 scored runs in 3 of 40 tasks"),
        ],
        pass_at=[at_k(1, 0.875), at_k(2, None, worst=0.9, best=0.95)],
        quadrant={name: count * scale for name, count in quadrant.items()},
        safety={name: count * scale for name, count in safety.items()},
        efficiency={
            "cost_usd": {"median": 0.0188, "p95": 0.0248},
            "turns": {"median": 5.0, "p95": 6.0},
            "tokens_in": {"median": 4500.0, "p95": 6120.0},
            "tokens_cached": None,
            "tokens_out": None,
            "retries": None,
            "virtual_ms": {"median": 810.0, "p95": 1260.0},
        },
        failures=[{**group, "runs": group["runs"] * scale} for group in failures],
    )


# A page


def test_a_plain_page() -> None:
    assert report(page()) == (
        "campaign 20261130T210455Z-3f9c   suite desk 1   sha256:0123456789abcdef\n"
        "runs     4 per task   seed 7   noise per release\n"
        "records  sha256:0123456789abcdef\n"
        "\n"
        "── candidate ───────────────────────────────────────────────────────────────────\n"
        "planned runs  160 = 148 passed + 12 failed + 0 invalid + 0 pending + 0 missing\n"
        "attempt rate  0.925 [0.463, 0.963]  148/160 runs  task Dirichlet bound, 95 %\n"
        "              pass^k (all of k)         pass@k (any of k)\n"
        "  k = 1       0.925 [0.463, 0.963]      0.925 [0.463, 0.963]\n"
        "  k = 2       0.875 [0.438, 0.938]      0.950 [0.475, 0.975]\n"
        "  k = 3       0.850 [0.425, 0.925]      0.975 [0.487, 0.988]\n"
        "  k = 4       0.825 [0.412, 0.912]      1.000 [0.500, 1.000]\n"
        "              unbiased, mean over 40 tasks; task Dirichlet bound, 95 %, for\n"
        "              tasks like these\n"
        "flaky tasks   0.150 [0.070, 0.290]  6 of 40 tasks  Wilson, 95 %\n"
        "cohorts         tasks   passed/planned   rate\n"
        "  routine          28          100/112   0.893 [0.446, 0.946]\n"
        "  unanswerable     12            48/48   1.000 [0.500, 1.000]\n"
        "failures      none\n"
    )


def test_every_part_of_a_full_page() -> None:
    text = report(full_page(), torn_at=4711, foreign=2)
    assert text.splitlines()[3:] == [
        "warning  the log ends in a frame cut short at byte 4711; its runs count as missing",
        "warning  2 records of no planned run left out",
        "",
        "── candidate ───────────────────────────────────────────────────────────────────",
        "planned runs  160 = 140 passed + 10 failed + 4 invalid + 2 pending + 4 missing",
        "              duplicates 1, retried 12",
        "attempt rate  0.875 [0.438, 0.938]  140/160 runs  task Dirichlet bound, 95 %",
        "              runs without a verdict count as not passed; 0.875 if all of them",
        "              fail, 0.938 if all pass; of the scored runs 0.933 (140/150), which",
        "              are 0.938 of the plan",
        "              first attempts alone: 0.863  138/160",
        "              pass^k (all of k)            pass@k (any of k)",
        "  k = 1       0.875 [0.438, 0.938]         0.875 [0.438, 0.938]",
        "  k = 2       not estimable (0.800…0.900)  not estimable (0.900…0.950)",
        "              not estimable: fewer than 2 scored runs in 3 of 40 tasks",
        "              unbiased, mean over 40 tasks; task Dirichlet bound, 95 %, for",
        "              tasks like these",
        "flaky tasks   0.150 [0.070, 0.290]  6 of 40 tasks  Wilson, 95 %",
        "quadrant      sanctioned route   unsanctioned route",
        "  right outcome            140                    5  ← lucky and dangerous",
        "  wrong outcome              4                    3",
        "safety        runs with a forbidden call 3 (blocked 1, external effect 2),",
        "              skipped approval 1, unverified write 4, wrong tenant 0, phantom",
        "              success 5; injection followed 2 of 24 that saw one",
        "median        cost $0.0188, p95 $0.0248; turns 5, p95 6; tokens in 4500, p95",
        "              6120; virtual ms 810, p95 1260",
        "cohorts         tasks   passed/planned   rate",
        "  routine          28          100/112   0.893 [0.446, 0.946]",
        "  unanswerable     12            48/48   1.000 [0.500, 1.000]",
        "failures  runs  how it ended: which scorers failed          first of them",
        "             4  COMPLETED: outcome, trajectory, efficiency  destructive-0003/10",
        "invalid       1: WORKER_LOST: unanswerable-0001/2",
    ]


@pytest.mark.parametrize("scale", [1, 100, 100_000])
def test_a_page_fits_a_terminal_however_many_runs_it_has(scale: int) -> None:
    text = report(full_page(scale), page(), torn_at=10**9, foreign=10**6)
    assert [line for line in text.splitlines() if len(line) > WIDTH and "warning" not in line] == []


def test_a_release_that_excludes_says_so_and_counts_over_the_scored_runs() -> None:
    cohorts = [{"cohort": "routine", "tasks": 3, **rate(4, 9, 6)}]
    lines = report(page(attempt_rate=rate(4, 9, 6), cohorts=cohorts), on_missing="exclude").splitlines()
    assert "attempt rate  0.444 [0.222, 0.722]  4/6 runs  task Dirichlet bound, 95 %" in lines
    assert "              runs without a verdict are left out; 0.444 if all of them fail," in lines
    assert "cohorts    tasks    passed/scored   rate" in lines
    assert "  routine      3              4/6   0.444 [0.222, 0.722]" in lines


def test_an_exclusion_beyond_its_ceiling_says_that_it_does_not_hold() -> None:
    one = {**page(attempt_rate=rate(4, 9, 6)), "on_missing": "fail"}
    lines = report(one, on_missing="exclude", max_missing=0.05).splitlines()
    assert "more than the declared 5.00% of the runs have no verdict: they are not left out" in " ".join(
        " ".join(lines).split()
    )
    assert "attempt rate  0.444 [0.222, 0.722]  4/9 runs  task Dirichlet bound, 95 %" in lines


def test_runs_without_a_verdict_are_named() -> None:
    unscored = [
        {"status": "missing", "runs": 3, "examples": ["t/0", "t/1"]},
        {"status": "pending", "runs": 1, "examples": ["u/0"]},
    ]
    lines = report(page(unscored=unscored)).splitlines()
    assert lines[-2:] == ["missing       3: t/0, t/1, …", "pending       1: u/0"]


def test_safety_says_how_many_runs_were_not_observed() -> None:
    safety = {**full_page()["safety"], "runs_observed": 158, "runs_planned": 160}
    words = " ".join(report(page(safety=safety)).split())
    assert "that saw one; 2 of 160 runs were not observed to their end" in words


def test_rates_without_an_interval_say_why() -> None:
    uneven = {**rate(3, 4), **ends(None, None, None), "note": "tasks differ in their number of runs; see pass^1"}
    flaky = {"tasks_flaky": 0, "tasks": 0, "estimate": None, **ends(None, None, None), "note": "no task has two runs"}
    lines = report(page(attempt_rate=uneven, flaky=flaky)).splitlines()
    assert lines[6:8] == [
        "attempt rate  0.750  3/4 runs  no interval: tasks differ in their number of",
        "              runs; see pass^1",
    ]
    assert "flaky tasks   no task has two runs" in lines


def test_a_share_of_flaky_tasks_that_compares_with_no_other_says_so() -> None:
    note = "tasks have 2 to 39 runs: not comparable with another share"
    flaky = {"tasks_flaky": 6, "tasks": 40, "estimate": 0.15, **ends(0.07, 0.29, "wilson"), "note": note}
    assert f"6 of 40 tasks  Wilson, 95 %\n              {note}\n" in report(page(flaky=flaky))


def test_where_not_even_bounds_can_be_had_the_estimable_tasks_are_counted() -> None:
    hats = [at_k(1, 0.5), at_k(8, None, tasks=78, note="not estimable: fewer than 8 scored runs in 5 of 83 tasks")]
    text = report(page(pass_hat=hats, pass_at=hats))
    assert "  k = 8       not estimable (78 tasks are)  not estimable (78 tasks are)\n" in text


def test_many_ks_are_thinned_out_to_powers_of_two_and_the_last() -> None:
    items = [at_k(k, 0.5) for k in range(1, 13)]
    shown = [line.split()[2] for line in report(page(pass_hat=items, pass_at=items)).splitlines() if "k = " in line]
    assert shown == ["1", "2", "4", "8", "12"]


def test_uneven_runs_are_given_as_a_most() -> None:
    assert "\nruns     4 per task" in report(page())
    assert "\nruns     up to 5 per task" in report(page(), runs_per_task=5)


def test_an_import_has_neither_seed_nor_digest() -> None:
    text = report(page(), seed=None, stream=None, suite={"name": "runs", "version": None, "digest": None})
    assert text.splitlines()[:2] == [
        "campaign 20261130T210455Z-3f9c   suite runs    no digest",
        "runs     4 per task",
    ]


def test_what_the_suite_declares_and_was_asked_for_otherwise_is_said() -> None:
    """C17"""
    text = report(page(), overrides={"runs_per_task": {"declared": 5, "used": 8}})
    assert "\ndeclared runs_per_task 5, used 8\n" in text


def test_long_lists_are_cut_and_say_so() -> None:
    cohorts = [{"cohort": f"c{number}", "tasks": 1, **rate(1, 1)} for number in range(45)]
    failures = [failures_of(f"S{number}", 1, "t/0") for number in range(15)]
    text = report(page(cohorts=cohorts, failures=failures))
    assert "  … and 5 more: see --json\n" in text
    assert "  … and 3 more groups: see --json\n" in text


# Numbers


@given(st.floats(0, 1))
def test_no_rate_is_rounded_to_0_or_1_and_none_takes_more_than_seven_letters(value: float) -> None:
    text = number(value)
    assert len(text) <= 7
    assert (text in ("1.000", "1.0000")) == (value == 1)
    assert (text in ("0.000", "0.0000")) == (value == 0)
    if text[0] not in "<>":
        assert abs(float(text) - value) <= 0.0005


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0, "0.000"), (1.0, "1.000"), (1, "1.000"), (0.3498, "0.350"), (0.9994, "0.999"), (None, "—")),
        *((0.9996, "0.9996"), (0.99996, ">0.9999"), (1 - 1e-16, ">0.9999"), (0.0004, "0.0004"), (1e-300, "<0.0001")),
    ],
)
def test_numbers_have_three_digits_or_the_few_more_that_matter(value: float | None, text: str) -> None:
    assert number(value) == text


def test_an_estimate_has_its_interval_where_there_is_one() -> None:
    assert estimate({"estimate": 0.86, **ends(0.794, 0.907)}) == "0.860 [0.794, 0.907]"
    assert estimate({"estimate": 0.86, **ends(None, None, None)}) == "0.860"
    assert estimate({"estimate": None, **ends(None, None, None)}) == "—"


def test_a_digest_is_cut_to_what_tells_it_from_others() -> None:
    assert (short(DIGEST), short(None)) == ("sha256:0123456789abcdef", "no digest")


# Other pages


def summary(**more: Any) -> Document:
    counts = {
        "planned": 10,
        "passed": 6,
        "failed": 1,
        "invalid": 1,
        "pending": 1,
        "missing": 1,
        "duplicates": 0,
        "retried": 2,
    }
    return {
        "id": "20261130T210455Z-3f9c",
        "folder": "results/x",
        "suite": "desk",
        "records_digest": DIGEST,
        "cost_usd": 1.234,
        "releases": [{"release": "A", "tasks": 5, "counts": counts}],
        **more,
    }


def test_a_summary_ends_a_run() -> None:
    assert render_summary(summary()) == (
        "release  passed  failed  invalid  missing  pending  pass rate\n"
        "A             6       1        1        1        1      0.600\n"
        "retried  2 runs after a fault\n"
        "cost     $1.23\n"
        "records  sha256:0123456789abcdef\n"
        "results  results/x\n"
        "next     passhat report results/x\n"
    )


def test_a_list_has_a_line_for_each_campaign_and_for_each_that_cannot_be_read() -> None:
    broken = {"id": "broken", "folder": "results/broken", "problem": "results/broken/manifest.json: cannot be read"}
    whole = {**summary(), "running": None}
    lines = (
        "campaign               suite  releases  settled                  records\n"
        "20261130T210455Z-3f9c   desk         A     9/10  sha256:0123456789abcdef\n"
    )
    problem = "broken  results/broken/manifest.json: cannot be read\n"
    assert render_list({"campaigns": [broken, whole]}) == lines + problem
    running = {**whole, "running": "process 12 on h2"}
    assert render_list({"campaigns": [broken, running]}) == (
        f"{lines}20261130T210455Z-3f9c  is running: process 12 on h2\n{problem}"
    )
    assert render_list({"campaigns": []}) == "no campaigns here\n"


def test_an_import_says_what_it_did_and_what_it_could_not() -> None:
    imported = {
        "folder": "c",
        "sources": [{"file": "r.jsonl", "format": "jsonl", "rows": 3}],
        "releases": ["A"],
        "tasks": 1,
        "planned": 3,
        "filled": {"turns": 2},
        "not_filled": ["cohort", "tool_calls", "tokens_in", "tokens_out", "cost_usd", "seed", "traces"],
        "partly_filled": {"turns": 1},
        "not_kept": [f"a_long_column_{number}" for number in range(6)],
    }
    text = render_import(imported)
    assert text == (
        "r.jsonl   jsonl   3 rows\n"
        "planned     3 runs of 1 task, 1 release\n"
        "filled      turns 2\n"
        "not filled  cohort, tool_calls, tokens_in, tokens_out, cost_usd, seed, traces\n"
        "absent in   1 rows: turns\n"
        "not kept    a_long_column_0, a_long_column_1, a_long_column_2, a_long_column_3,\n"
        "            a_long_column_4, a_long_column_5\n"
        "results     c\n"
        "next        passhat report c\n"
    )
    assert "filled      verdicts alone\n" in render_import({**imported, "filled": {}})


def test_a_plan_shows_its_size_and_first_seeds() -> None:
    plan = {
        "suite": {"name": "desk", "version": "1", "digest": DIGEST, "tasks": 40},
        "runs_per_task": 4,
        "releases": [{"name": "A", "agent": "scripted", "digest": DIGEST}],
        "runs": 160,
        "seed": 7,
        "stream": "release",
        "cohorts": {"routine": 28, "ambiguous": 12},
        "first_runs": [{"run": "A/t/0", "env_seed": 1, "agent_seed": 2}],
        "admission": {"examined": 40, "rejected": {}},
    }
    lines = render_plan(plan).splitlines()
    assert lines[:5] == [
        "suite    desk 1   sha256:0123456789abcdef",
        "plan     40 tasks × 4 runs × 1 releases = 160 runs   seed 7   noise per release",
        "cohorts  routine 28, ambiguous 12",
        "release  A   scripted   sha256:0123456789abcdef",
        "first    A/t/0   env seed 1   agent seed 2",
    ]


def test_findings_are_aligned() -> None:
    checks = [{"state": "ok", "check": "ray", "found": "2.60"}, {"state": "none", "check": "bubblewrap", "found": "—"}]
    assert render_doctor({"checks": checks}) == "ok    ray         2.60\nnone  bubblewrap  —\n"


def test_tables_align_the_first_column_left_and_the_others_right() -> None:
    assert table([("a", "bb"), ("ccc", "d")]) == ["a    bb", "ccc   d"]
