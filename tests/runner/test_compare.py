"""Two releases on the same tasks: what is matched, how large the difference is, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from passhat.runner import launch
from passhat.runner.compare import compare
from passhat.runner.errors import NotAcceptable, NothingMatched, UsageError
from passhat.runner.importing import import_files
from passhat.runner.pairing import choose, pair
from passhat.runner.render_compare import points, render_comparison
from passhat.runner.request import Request
from passhat.runner.store import Campaign

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not here")

# cohort: tasks, passes of A, passes of B, tasks that only A passes, tasks that only B passes
SOURCE = {"routine": (150, 126, 136, 5, 15), "ambiguous": (90, 70, 78, 4, 12), "destructive": (60, 45, 54, 3, 12)}


def source_rows() -> list[dict[str, Any]]:
    rows = []
    for cohort, (tasks, a, b, a_only, b_only) in SOURCE.items():
        assert a - a_only == b - b_only
        pairs = [(True, True)] * (a - a_only) + [(True, False)] * a_only + [(False, True)] * b_only
        pairs += [(False, False)] * (tasks - len(pairs))
        for i, passed in enumerate(pairs):
            rows += [run(release, f"{cohort}-{i:03}", 0, p, cohort) for release, p in zip("AB", passed, strict=True)]
    return rows


def run(release: str, task: str, index: int, passed: bool | None, cohort: str = "all", **more: Any) -> dict[str, Any]:
    return {"release": release, "task": task, "run": index, "passed": passed, "cohort": cohort, **more}


def runs(release: str, task: str, passed: str, cohort: str = "all") -> list[dict[str, Any]]:
    """Runs of a task, P for a pass and F for a fail."""
    return [run(release, task, i, letter == "P", cohort) for i, letter in enumerate(passed)]


def campaign(rows: list[dict[str, Any]], name: str = "runs", **options: Any) -> Campaign:
    Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return import_files(
        [Path(f"{name}.jsonl")], release=None, out=Path(f"{name}-campaign"), **{"runs": None, **options}
    ).campaign


def compared(*campaigns: Campaign, common: bool = False) -> dict[str, Any]:
    return compare(pair(*choose(list(campaigns), None, None), common=common))


def test_the_comparison_of_the_source_in_every_figure() -> None:
    result = compared(campaign(source_rows()))
    assert result["tasks"] == 300
    assert result["cells"] == {"both_pass": 229, "base_only": 12, "candidate_only": 39, "both_fail": 20, "unscored": 0}
    assert result["mcnemar"]["p_value"] == pytest.approx(0.000198039, rel=1e-5)
    assert result["mcnemar"]["mid_p"] == pytest.approx(0.000127539, rel=1e-5)
    assert result["sign_flip"]["p_value"] == pytest.approx(result["mcnemar"]["p_value"], rel=1e-9)
    assert result["sign_flip"]["tasks_discordant"] == 51
    assert (len(result["fixes"]), len(result["regressions"])) == (39, 12)
    assert result["delta"]["attempt_rate"]["estimate"] == pytest.approx(27 / 300)
    names = ("cohort", "base_passed", "base_planned", "cand_passed", "cand_planned")
    assert [tuple(row[name] for name in names) for row in result["cohorts"]] == [
        ("routine", 126, 150, 136, 150),
        ("ambiguous", 70, 90, 78, 90),
        ("destructive", 45, 60, 54, 60),
    ]
    assert [points(row["delta"]) for row in result["cohorts"]] == ["+6.7", "+8.9", "+15.0"]
    assert points(result["delta"]["attempt_rate"]["estimate"]) == "+9.0"


def test_the_page_of_the_source_prints_its_figures() -> None:
    page = render_comparison(compared(campaign(source_rows())))
    for line in (
        "  baseline    241 of 300 passed",
        "  candidate   268 of 300 passed",
        "  baseline passes               229               12",
        "  baseline fails                 39               20",
        "McNemar       p 0.000198 exact, mid-p 0.000128; 12 tasks only baseline, 39 only",
    ):
        assert line in page.splitlines()
    rows = {line.split()[0]: line.split()[1:5] for line in page.splitlines() if line.startswith("  ")}
    assert rows["routine"] == ["150", "126/150", "136/150", "+6.7"]
    assert rows["ambiguous"] == ["90", "70/90", "78/90", "+8.9"]
    assert rows["destructive"] == ["60", "45/60", "54/60", "+15.0"]


def test_missing_runs_are_counted_named_and_bounded() -> None:
    lost = {f"routine-{i:03}" for i in range(4)}
    rows = [row for row in source_rows() if not (row["release"] == "B" and row["task"] in lost)]
    result = compared(campaign(rows, runs=1))
    assert result["counts"]["candidate"] == {
        "planned": 300,
        "passed": 264,
        "failed": 32,
        "invalid": 0,
        "pending": 0,
        "missing": 4,
        "on_missing": "fail",
        "unscored": [f"{task}/0" for task in sorted(lost)],
    }
    delta = result["delta"]["attempt_rate"]
    assert (delta["worst"], delta["best"]) == pytest.approx((23 / 300, 27 / 300))
    assert delta["worst_lower"] < delta["worst"] < delta["best"] < delta["best_upper"]
    page = " ".join(render_comparison(result).split())
    assert (
        "missing 4/300, which count as not passed: routine-000/0, routine-001/0, routine-002/0, routine-003/0" in page
    )
    assert "+7.7 … +9.0" in page


def test_runs_missing_under_the_baseline_are_the_worst_case_as_passes() -> None:
    rows = [*runs("A", "t", "F"), run("A", "u", 0, None), *runs("B", "t", "P"), *runs("B", "u", "F")]
    delta = compared(campaign(rows))["delta"]["attempt_rate"]
    assert (delta["estimate"], delta["worst"], delta["best"]) == (0.5, 0.0, 0.5)


def test_tasks_that_agree_have_p_one_and_no_discordant_task() -> None:
    """C12"""
    rows = [row for release in "AB" for i in range(10) for row in runs(release, f"t{i}", "PF"[i % 2])]
    result = compared(campaign(rows))
    assert result["mcnemar"] == {
        "p_value": 1.0,
        "mid_p": 1.0,
        "log10_p": 0.0,
        "base_only": 0,
        "candidate_only": 0,
        "note": "no discordant tasks",
    }
    assert result["delta"]["attempt_rate"]["estimate"] == 0.0
    assert (result["fixes"], result["regressions"]) == ([], [])


def test_repeats_are_tested_by_task_and_not_by_run() -> None:
    """C13 (a): pooled over the 10 discordant cells p would be 2 / 1024."""
    rows = [
        row
        for i, (a, b) in enumerate((("FFFFF", "PPPPP"),) * 2 + (("PPPPP", "PPPPP"),) * 3)
        for row in runs("A", f"t{i}", a) + runs("B", f"t{i}", b)
    ]
    result = compared(campaign(rows))
    assert result["mcnemar"] is None
    assert (result["sign_flip"]["p_value"], result["sign_flip"]["tasks_discordant"]) == (0.5, 2)
    assert result["cells"]["candidate_only"] == 10


def test_single_runs_are_tested_in_pairs() -> None:
    """C13 (b): the unpaired z would give p = 0.1953."""
    passed = [(True, True)] * 69 + [(True, False)] + [(False, True)] * 9 + [(False, False)] * 21
    rows = [run(release, f"t{i}", 0, p[j]) for i, p in enumerate(passed) for j, release in enumerate("AB")]
    result = compared(campaign(rows))
    assert result["mcnemar"]["p_value"] == pytest.approx(2 * (1 + 10) / 1024)
    assert [result["counts"][side]["passed"] for side in ("base", "candidate")] == [70, 78]


def test_a_net_change_of_nothing_names_what_moved_and_unequal_runs_stay_in() -> None:
    """C14"""
    rows = runs("A", "T1", "P") + runs("B", "T1", "F") + runs("A", "T2", "F") + runs("B", "T2", "P")
    result = compared(campaign(rows))
    assert (result["fixes"], result["regressions"]) == (["T2"], ["T1"])
    assert (result["mcnemar"]["p_value"], result["delta"]["attempt_rate"]["estimate"]) == (1.0, 0.0)

    rows = runs("A", "T3", "PPPPPFFFFF") + runs("B", "T3", "PPPPPPFF")
    result = compared(campaign(rows, "unequal"))
    assert result["delta"]["attempt_rate"]["estimate"] == 0.25
    assert result["moves"] == [
        {"task": "T3", "cohort": "all", "base_passed": 5, "base_scored": 10, "cand_passed": 6, "cand_scored": 8}
        | {"delta": 0.25}
    ]
    assert [delta["k"] for delta in result["delta"]["pass_hat"]] == list(range(1, 9))
    assert result["sign_flip"]["p_value"] is None
    assert result["sign_flip"]["note"] == "1 of 1 tasks have unequal numbers of runs under A and B"
    assert result["unmatched"]["base_cells"] == 2


def test_tasks_of_one_side_alone_are_named() -> None:
    rows = runs("A", "both", "P") + runs("B", "both", "P") + runs("A", "a", "P") + runs("B", "b", "P")
    result = compared(campaign(rows))
    assert (result["tasks"], result["unmatched"]["base_only"], result["unmatched"]["candidate_only"]) == (
        1,
        ["a"],
        ["b"],
    )
    page = render_comparison(result)
    assert "only baseline: 1 task: a" in page
    assert "only candidate: 1 task: b" in page


def test_two_campaigns_compare_like_one() -> None:
    rows = source_rows()
    whole = compared(campaign(rows))
    halves = [campaign([row for row in rows if row["release"] == name], name) for name in "AB"]
    apart = compared(*halves)
    for key in ("tasks", "cells", "mcnemar", "sign_flip", "delta", "fixes", "regressions", "moves", "cohorts"):
        assert apart[key] == whole[key]


def test_swapping_the_sides_turns_the_signs_and_keeps_p() -> None:
    one = campaign([row for row in source_rows() if row["release"] == "A"], "A")
    other = campaign([row for row in source_rows() if row["release"] == "B"], "B")
    there, back = compared(one, other), compared(other, one)
    assert there["mcnemar"]["p_value"] == back["mcnemar"]["p_value"]
    assert (there["fixes"], there["regressions"]) == (back["regressions"], back["fixes"])
    for one_way, other_way in zip(there["cohorts"], back["cohorts"], strict=True):
        assert one_way["delta"] == -other_way["delta"]
        assert one_way["lower"] == pytest.approx(-other_way["upper"], abs=1e-12)


def test_order_of_records_does_not_matter() -> None:
    rows = source_rows()
    one, other = compared(campaign(rows)), compared(campaign(rows[:1] + rows[:0:-1], "backwards"))
    for key in ("cells", "mcnemar", "sign_flip", "delta"):
        assert one[key] == other[key]


def test_a_task_in_another_cohort_is_refused_unless_the_common_part_is_asked_for() -> None:
    one = campaign(runs("A", "t", "P", "easy") + runs("A", "u", "P", "easy"), "A")
    other = campaign(runs("B", "t", "P", "hard") + runs("B", "u", "F", "easy"), "B")
    with pytest.raises(NotAcceptable, match="1 tasks are in different cohorts: t"):
        compared(one, other)
    result = compared(one, other, common=True)
    assert result["differences"] == ["1 tasks are in different cohorts: t"]
    assert "compared all the same" in render_comparison(result)


def test_sides_have_to_be_named_where_they_are_not_clear() -> None:
    three = campaign([row for name in "ABC" for row in runs(name, "t", "P")])
    with pytest.raises(UsageError, match="has the releases A, B, C: name two"):
        choose([three], "A", None)
    with pytest.raises(NothingMatched, match="no such release"):
        choose([three], "A", "D")
    with pytest.raises(UsageError, match="both baseline and candidate"):
        pair(*choose([three], "A", "A"))
    base, candidate = choose([three], "C", "A")
    assert (base.release, candidate.release) == ("C", "A")


def test_nothing_in_common_is_refused() -> None:
    with pytest.raises(NothingMatched, match="no task in common"):
        compared(campaign(runs("A", "t", "P"), "A"), campaign(runs("B", "u", "P"), "B"))


def test_efficiency_is_compared_on_the_same_cells() -> None:
    costs = {"A": (0.10, 0.20, 0.30, 0.40), "B": (0.10, 0.30, 0.50, None)}
    rows = [
        run(release, f"t{i}", 0, True, cost_usd=cost, turns=3)
        for release in "AB"
        for i, cost in enumerate(costs[release])
    ]
    efficiency = compared(campaign(rows))["efficiency"]
    cost = efficiency["cost_usd"]
    assert (cost["cells"], cost["tasks"]) == (3, 3)
    assert (cost["base"], cost["candidate"]) == ({"median": 0.2, "p95": 0.3}, {"median": 0.3, "p95": 0.5})
    assert cost["delta"]["estimate"] == pytest.approx(0.1)
    assert (cost["delta"]["lower"], cost["delta"]["upper"]) == pytest.approx((0.0, 0.2))
    assert efficiency["turns"]["delta"]["note"] == "no spread between tasks"
    assert efficiency["latency_ms"] is None


@needs_data
@pytest.mark.parametrize("folder", ["swe_bench_pro", "tau2_bench"])
def test_the_paired_figures_of_public_runs(folder: str) -> None:
    expected = [e for e in json.loads((DATA / folder / "expected.json").read_text()) if "releases" in e]
    (file,) = {entry["file"] for entry in expected}
    imported = import_files([DATA / folder / file], release=None, out=Path("public"), runs=None)
    for entry in expected:
        pairing = pair(*choose([imported.campaign], *entry["releases"]))
        prefix = entry.get("where", {}).get("task_prefix", "")
        result = compare(pairing.select(np.array([task.startswith(prefix) for task in pairing.tasks])))
        if entry["metric"] == "paired":
            cells = [result["cells"][name] for name in ("both_pass", "base_only", "candidate_only", "both_fail")]
            assert cells == entry["published"]
        else:
            assert entry["metric"] == "mcnemar_p"
            assert result["mcnemar"]["p_value"] == pytest.approx(entry["published"], rel=1e-9)


def executed(name: str, **options: Any) -> Campaign:
    """A campaign of the desk that was really run, in this process."""
    request = Request(
        **{"suite": "desk", "releases": ("incumbent",), "runs": 2, "tasks": 5, "folder": str(Path.cwd()), **options}
    )
    return launch.run(request, launch.Place(0), out=Path(name))


def test_evidence_gathered_under_other_conditions_is_refused_with_the_difference() -> None:
    here = executed("here")
    with pytest.raises(NotAcceptable, match="seed 0 and 1"):
        compared(here, executed("seed", seed=1, releases=("candidate",)))
    with pytest.raises(NotAcceptable, match=r"limits.seconds 120.0 and 5.0|limits.seconds .* and 5.0"):
        compared(here, executed("limits", timeout_s=5.0, releases=("candidate",)))
    with pytest.raises(NotAcceptable, match="suite digest sha256:"):
        compared(here, executed("tasks", tasks=6, releases=("candidate",)))


def test_two_campaigns_under_the_same_conditions_are_compared_and_nothing_is_left_unverified() -> None:
    together = compared(executed("both", releases=("incumbent", "candidate")))
    apart = compared(executed("one"), executed("other", releases=("candidate",)))
    for key in ("cells", "sign_flip", "delta", "moves", "cohorts", "movement", "safety", "efficiency", "unverified"):
        assert apart[key] == together[key]
    assert together["unverified"] == []


def test_tasks_whose_content_changed_have_no_partner() -> None:
    task = {"request": "Do it.", "world": {"today": "2026-06-01", "tables": {}}}
    for version, request in (("1", "Do it."), ("2", "Do it now.")):
        tasks = [{**task, "id": "same"}, {**task, "id": "changed", "request": request}]
        Path("tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in tasks))
        Path("suite.yaml").write_text(f'name: s\nversion: "{version}"\nenvironment: desk\ntasks: tasks.jsonl\n')
        Path("nothing.py").write_text("def run(task, tools, ctx):\n    return None\n")
        executed(f"v{version}", suite="suite.yaml", releases=(f"r{version}=nothing:run",), tasks=None)
    campaigns = Campaign(Path("v1")), Campaign(Path("v2"))
    with pytest.raises(NotAcceptable, match="1 tasks of one id have different contents: changed"):
        compared(*campaigns)
    result = compared(*campaigns, common=True)
    assert (result["tasks"], result["unmatched"]["base_only"]) == (1, ["changed"])
    assert any("different contents" in difference for difference in result["differences"])


def test_movement_between_quadrants_is_counted_cell_by_cell() -> None:
    moves = [((True, True), (True, False))] * 3 + [((True, False), (True, True))] + [((False, True), (False, True))] * 2
    rows = [
        run(release, f"t{i}", 0, all(verdict), outcome_passed=verdict[0], trajectory_passed=verdict[1])
        for i, pair_of in enumerate(moves)
        for release, verdict in zip("AB", pair_of, strict=True)
    ]
    movement = compared(campaign(rows))["movement"]
    assert movement["from_to"]["right_sanctioned"]["right_unsanctioned"] == 3
    assert movement["from_to"]["right_unsanctioned"]["right_sanctioned"] == 1
    assert movement["from_to"]["wrong_sanctioned"]["wrong_sanctioned"] == 2
    assert (movement["into_right_unsanctioned"], movement["out_of_right_unsanctioned"]) == (3, 1)


def test_events_are_new_only_where_the_baseline_is_known_to_have_none() -> None:
    events = {"A": (0, 1, None, 0), "B": (1, 1, 1, 0)}
    rows = [
        run(r, f"t{i}", 0, True, **({} if number is None else {"forbidden_calls": number}))
        for r in "AB"
        for i, number in enumerate(events[r])
    ]
    rows.append(run("B", "t0", 1, True, forbidden_calls=1))
    forbidden = compared(campaign(rows))["safety"]["events"]["forbidden_calls"]
    assert forbidden == {
        "base": 1,
        "candidate": 4,
        "new": 1,
        "may_be_new": 2,
        "examples": ["t0/0"],
        "base_observed": 3,
        "candidate_observed": 5,
    }


def test_p_values_of_cohorts_are_adjusted_for_their_number() -> None:
    result = compared(campaign(source_rows()))
    tests = [row["sign_flip"] for row in result["cohorts"]]
    expected = multipletests([test["p_value"] for test in tests], method="holm")[1]
    assert [test["p_holm"] for test in tests] == pytest.approx(list(expected))


def test_runs_left_out_by_declaration_are_left_out_of_both_sides() -> None:
    rows = [row for r in "AB" for t in range(10) for row in runs(r, f"t{t}", "PPF")]
    both = campaign([row for row in rows if (row["release"], row["task"], row["run"]) != ("B", "t0", 2)], runs=3)
    manifest = json.loads((both.folder / "manifest.json").read_text())
    (both.folder / "manifest.json").write_text(json.dumps({**manifest, "on_missing": "exclude", "max_missing": 0.5}))
    delta = compared(Campaign(both.folder))["delta"]["attempt_rate"]
    assert delta["estimate"] == pytest.approx((1 - 2 / 3) / 10)
    assert (delta["worst"], delta["best"]) == pytest.approx((0.0, 1 / 30))


def test_a_cohort_counts_all_its_tasks() -> None:
    rows = [row for r in "AB" for t in range(4) for row in runs(r, f"t{t}", "P", "x")]
    rows = [row for row in rows if (row["release"], row["task"]) != ("B", "t0")]
    [cohort] = compared(campaign([*rows, run("B", "t0", 0, None, "x")]))["cohorts"]
    assert (cohort["tasks"], cohort["base_planned"], cohort["cand_passed"]) == (4, 4, 3)
