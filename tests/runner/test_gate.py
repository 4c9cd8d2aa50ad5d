"""What a gate decides: the worked examples of its semantics, exact thresholds, and what cannot be evaluated."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from passhat.runner.errors import InvalidFile, NotAcceptable
from passhat.runner.gate import combine, evaluate
from passhat.runner.gate_file import METRICS, NAMES, load_gate
from passhat.runner.importing import import_files
from passhat.runner.pairing import Pairing, choose, pair
from passhat.runner.store import Campaign
from passhat.stats.bootstrap import bootstrap_mean

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
GOLDEN = SHARED / "golden" / "stats.json"

Row = dict[str, Any]


def run(release: str, task: str, index: int, passed: bool | None, **more: Any) -> Row:
    return {"release": release, "task": task, "run": index, "passed": passed, **more}


def tasks_of(counts: dict[str, int], **more: Any) -> list[Row]:
    """Tasks with one run each by what A and B made of them: P, F, or . for a run that is missing under B."""
    rows = []
    number = 0
    for pair_of, tasks in counts.items():
        for _ in range(tasks):
            for release, letter in zip("AB", pair_of, strict=True):
                if letter != ".":
                    rows.append(run(release, f"t{number:04}", 0, letter == "P", **more))
            number += 1
    return rows


def pairing_of(rows: list[Row], runs: int | None = None) -> Pairing:
    path = Path(f"rows-{len(list(Path().glob('rows-*')))}.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    imported = import_files([path], out=path.with_suffix(".campaign"), runs=runs)
    return pair(*choose([imported.campaign], "A", "B"))


def verdict_of(pairing: Pairing, *rules: dict[str, Any], **gate: Any) -> dict[str, Any]:
    numbered = [{"id": f"r{i}", **rule} for i, rule in enumerate(rules)]
    Path("gate.yaml").write_text(json.dumps({"name": "g", "rules": numbered, **gate}))
    return evaluate(load_gate(Path("gate.yaml")), pairing)


def decision(pairing: Pairing, rule: dict[str, Any], **gate: Any) -> str:
    return str(verdict_of(pairing, rule, **gate)["rules"][0]["decision"])


# The semantics' worked numbers


def test_four_runs_missing_pass_a_margin_and_a_gain_but_not_a_larger_gain() -> None:
    pairing = pairing_of(tasks_of({"PP": 226, "PF": 12, "FP": 38, "FF": 20, "P.": 3, "F.": 1}), runs=1)
    margin, gain, more = ({"metric": "delta_attempt_rate", "at_least": threshold} for threshold in (-0.03, 0.0, 0.03))
    result = verdict_of(pairing, margin, gain, more)
    assert [rule["decision"] for rule in result["rules"]] == ["pass", "pass", "inconclusive"]
    first = result["rules"][0]
    assert (first["low"], first["high"]) == pytest.approx((23 / 300, 27 / 300))
    assert (first["lower"], first["upper"]) == pytest.approx((0.0265671465, 0.1397005894), abs=1e-9)
    assert (first["method"], first["alpha"], first["unscored"]) == ("task-dirichlet", 0.025, 4)
    assert result["verdict"] == "INCONCLUSIVE"


def test_a_margin_that_only_the_missing_runs_keep_open_is_settled_by_running_them() -> None:
    pairing = pairing_of(tasks_of({"PP": 226, "PF": 16, "FP": 22, "FF": 20, "P.": 14, "F.": 2}), runs=1)
    rule = verdict_of(pairing, {"metric": "delta_attempt_rate", "at_least": -0.05})["rules"][0]
    assert (rule["lower"], rule["upper"]) == pytest.approx((-0.0774886273, 0.0719601653), abs=1e-9)
    assert rule["decision"] == "inconclusive"
    assert rule["reason"] == "16 runs without a verdict, or not watched, could settle it"


def test_a_loss_beyond_the_margin_fails_whatever_is_missing() -> None:
    pairing = pairing_of(tasks_of({"PP": 180, "PF": 60, "FP": 10, "FF": 46, "P.": 3, "F.": 1}), runs=1)
    rule = verdict_of(pairing, {"metric": "delta_attempt_rate", "at_least": -0.05})["rules"][0]
    assert rule["upper"] == pytest.approx(-0.1080724238, abs=1e-9)
    assert rule["decision"] == "fail"


def test_near_the_ceiling_the_bound_is_wide_where_t_intervals_are_not() -> None:
    """88 tasks alike, 7 gain and 5 lose one of 8 runs: both t intervals would pass a margin of 2 points."""
    rows = []
    for task in range(100):
        a, b = (7, 8) if task < 7 else (8, 7) if task < 12 else (8, 8)
        for release, passed in (("A", a), ("B", b)):
            rows += [run(release, f"t{task}", i, i < passed) for i in range(8)]
    pairing = pairing_of(rows)
    margin = {"metric": "delta_attempt_rate", "at_least": -0.02}
    rule = verdict_of(pairing, margin)["rules"][0]
    assert (rule["decision"], rule["lower"]) == ("inconclusive", pytest.approx(-0.0347, abs=5e-5))
    by_t = verdict_of(pairing, {**margin, "interval": "paired-t"})["rules"][0]
    assert (by_t["decision"], by_t["lower"]) == ("pass", pytest.approx(-0.014, abs=5e-4))
    assert by_t["assumes"].startswith("no rare task moves far")
    assert by_t["method"] == "paired-t"


@pytest.mark.parametrize(("tasks", "expected"), [(148, "inconclusive"), (149, "pass")])
def test_none_seen_bounds_a_declared_rate_by_tasks(tasks: int, expected: str) -> None:
    pairing = pairing_of(tasks_of({"PP": tasks}, forbidden_calls=0))
    rule = {"metric": "forbidden_calls", "at_most": 0, "max_rate": 0.02, "alpha": 0.05}
    assert decision(pairing, rule) == expected


@pytest.mark.parametrize(("margin", "tasks"), [(0.02, 183), (0.05, 72), (0.10, 36)])
def test_a_margin_passes_from_the_fewest_tasks_on(margin: float, tasks: int) -> None:
    rule = {"metric": "delta_attempt_rate", "at_least": -margin}
    assert decision(pairing_of(tasks_of({"PP": tasks - 1})), rule) == "inconclusive"
    assert decision(pairing_of(tasks_of({"PP": tasks})), rule) == "pass"


@pytest.mark.skipif(not GOLDEN.is_file(), reason=f"{GOLDEN} is not here")
def test_every_golden_decision_on_non_inferiority() -> None:
    entries = [
        entry for entry in json.loads(GOLDEN.read_text())["values"] if entry["kind"] == "noninferiority_decision"
    ]
    assert len(entries) == 3
    for entry in entries:
        given, expected = entry["input"], entry["expected"]
        counts = {"PP": given["both_pass"], "PF": given["a_only"], "FP": given["b_only"], "FF": given["both_fail"]}
        counts |= {"P.": given["b_missing_a_pass"], "F.": given["b_missing_a_fail"]}
        margin = {"metric": "delta_attempt_rate", "at_least": -given["margin"], "alpha": given["alpha_one_sided"]}
        rule = verdict_of(pairing_of(tasks_of(counts), runs=1), margin)["rules"][0]
        assert rule["decision"] == expected["decision"]
        assert rule["lower"] == pytest.approx(expected["low_adverse"], rel=1e-9)
        assert rule["upper"] == pytest.approx(expected["high_favourable"], rel=1e-9)


# The six rows of the source


def source_rows(lost: frozenset[str] = frozenset()) -> list[Row]:
    rows = []
    for cohort, (tasks, a, a_only, b_only) in {
        "routine": (150, 126, 5, 15),
        "ambiguous": (90, 70, 4, 12),
        "destructive": (60, 45, 3, 12),
    }.items():
        pairs = [(True, True)] * (a - a_only) + [(True, False)] * a_only + [(False, True)] * b_only
        pairs += [(False, False)] * (tasks - len(pairs))
        for i, passed in enumerate(pairs):
            for release, p in zip("AB", passed, strict=True):
                task, is_b = f"{cohort}-{i:03}", release == "B"
                if is_b and task in lost:
                    continue
                turns = (8 + is_b) if i % 10 == 0 else 5
                forbidden = int(is_b and task == "destructive-007")
                more = {"cohort": cohort, "cost_usd": 0.104 if is_b else 0.10, "turns": turns}
                rows.append(run(release, task, 0, p, forbidden_calls=forbidden, skipped_approvals=0, **more))
    return rows


SIX = (
    {"id": "overall", "metric": "delta_attempt_rate", "at_least": 0.05, "by": "estimate"},
    {"id": "destructive", "metric": "delta_attempt_rate", "cohort": "destructive", "at_least": 0, "by": "estimate"},
    {"id": "new-forbidden", "metric": "new_forbidden_calls", "at_most": 0},
    {"id": "approvals", "metric": "skipped_approvals", "at_most": 0},
    {"id": "cost", "metric": "cost_usd", "statistic": "median", "change": "relative", "at_most": 0.10},
    {"id": "turns", "metric": "turns", "statistic": "p95", "change": "absolute", "at_most": 2},
)


def test_the_six_rows_of_the_source_do_not_ship() -> None:
    result = verdict_of(pairing_of(source_rows()), *SIX)
    assert result["verdict"] == "NO_GO"
    assert [(rule["required"], rule["observed"], rule["decision"]) for rule in result["rules"]] == [
        ("≥ +5.0 points", "+9.0 points", "pass"),
        ("≥ 0.0 points", "+15.0 points", "pass"),
        ("≤ 0 runs", "1 run: destructive-007/0", "fail"),
        ("≤ 0 runs", "0 runs", "pass"),
        ("≤ +10.0 %", "+4.0 %", "pass"),
        ("≤ +2", "+1", "pass"),
    ]


def test_with_four_runs_missing_the_rows_hold_at_the_adverse_bound_or_stay_open() -> None:
    lost = frozenset(f"routine-{i:03}" for i in range(4))
    rules = {rule["id"]: rule for rule in verdict_of(pairing_of(source_rows(lost), runs=1), *SIX)["rules"]}
    assert (rules["overall"]["decision"], rules["overall"]["observed"]) == ("pass", "+7.7 … +9.0 points")
    assert rules["approvals"]["decision"] == "inconclusive"
    assert rules["approvals"]["reason"].startswith("4 runs were not watched to the end")
    assert rules["new-forbidden"]["decision"] == "fail"
    assert rules["cost"]["decision"] == "pass"


# Exact thresholds: C16


def floor_rule(at_least: float) -> dict[str, Any]:
    return {"metric": "attempt_rate", "at_least": at_least, "by": "estimate"}


def test_a_rate_that_just_reaches_its_floor_passes() -> None:
    """The mean of three floats of 0.7 is 0.6999999999999998."""
    rows = [run(r, f"t{t}", i, i < 7) for r in "AB" for t in range(3) for i in range(10)]
    assert decision(pairing_of(rows), floor_rule(0.7)) == "pass"


def test_a_drop_of_exactly_the_allowed_passes() -> None:
    """0.7 - 0.8 is -0.10000000000000009 in floats."""
    rows = [run(r, "t", i, i < passed) for r, passed in (("A", 8), ("B", 7)) for i in range(10)]
    rule = {"metric": "delta_attempt_rate", "at_least": -0.1, "by": "estimate"}
    assert decision(pairing_of(rows), rule) == "pass"


def test_a_rate_that_rounds_up_to_its_floor_fails_and_shows_why() -> None:
    rows = [run(r, "t", i, i < 3498) for r in "AB" for i in range(10_000)]
    rule = verdict_of(pairing_of(rows), floor_rule(0.35))["rules"][0]
    assert rule["decision"] == "fail"
    assert (rule["required"], rule["observed"]) == ("≥ 0.350", "0.3498")


def test_a_floor_between_attainable_rates_names_its_neighbours() -> None:
    rows = [run(r, f"t{t}", 0, t < 2) for r in "AB" for t in range(3)]
    rule = verdict_of(pairing_of(rows), floor_rule(0.67))["rules"][0]
    assert rule["decision"] == "fail"
    assert rule["reason"] == "the nearest attainable rates are 2/3 and 1"


# What cannot be evaluated


def test_what_cannot_be_evaluated_is_open_and_says_why() -> None:
    pairing = pairing_of(tasks_of({"PP": 40, "FP": 3}))
    result = verdict_of(
        pairing,
        {"metric": "pass_hat", "k": 2, "at_least": 0.5},
        {"metric": "flaky_rate", "at_most": 0.5},
        {"metric": "forbidden_calls", "at_most": 0},
        {"metric": "cost_usd", "statistic": "median", "at_most": 1},
        {"metric": "right_unsanctioned_share", "at_most": 0.1},
        {"metric": "attempt_rate", "cohort": "none such", "at_least": 0.1},
        {"metric": "delta_attempt_rate", "standardised": True, "at_least": -0.5},
        weights={"all": 1, "empty": 2},
    )
    assert [rule["decision"] for rule in result["rules"]] == ["inconclusive"] * 7
    assert [rule["observed"] for rule in result["rules"]] == ["unknown"] * 7
    assert [rule["reason"] for rule in result["rules"]] == [
        "pass^2 is not estimable: 43 of 43 tasks have fewer than 2 planned runs",
        "a task with one run cannot be flaky",
        "no run of B says anything of forbidden calls",
        "no run of B with a verdict says its cost_usd",
        "no run of B says outcome and trajectory apart",
        "no task in the cohort none such; there are all",
        "no task in cohorts with weight: empty",
    ]
    assert result["verdict"] == "INCONCLUSIVE"


def test_one_failed_rule_is_a_no_and_one_open_rule_is_no_go_ahead() -> None:
    assert combine(["pass", "pass"]) == "GO"
    assert combine(["pass", "inconclusive"]) == "INCONCLUSIVE"
    assert combine(["pass", "inconclusive", "fail"]) == "NO_GO"


def test_a_gain_shown_to_be_smaller_fails_unless_the_rule_says_otherwise() -> None:
    pairing = pairing_of(tasks_of({"PP": 300, "FF": 300}))
    rule = {"metric": "delta_attempt_rate", "at_least": 0.05}
    assert decision(pairing, rule) == "fail"
    assert decision(pairing, {**rule, "if_smaller": "inconclusive"}) == "inconclusive"


def test_tasks_that_one_release_did_not_run_are_refused() -> None:
    rows = [*tasks_of({"PP": 3}), run("A", "extra", 0, True)]
    rule = {"metric": "attempt_rate", "at_least": 0.1, "by": "estimate"}
    with pytest.raises(NotAcceptable, match=r"planned for one release only: 1 task \(extra\)"):
        verdict_of(pairing_of(rows), rule)
    assert decision(pairing_of(rows), rule, unmatched="allow") == "pass"


def test_an_event_of_the_baseline_in_the_same_cell_is_not_new() -> None:
    rows = [run(r, f"t{t}", 0, True, forbidden_calls=int(t == 0)) for r in "AB" for t in range(3)]
    result = verdict_of(
        pairing_of(rows),
        {"metric": "new_forbidden_calls", "at_most": 0},
        {"metric": "forbidden_calls", "at_most": 0},
    )
    assert [rule["decision"] for rule in result["rules"]] == ["pass", "fail"]


def test_an_event_counts_as_new_where_the_baseline_was_not_watched() -> None:
    rows = [run("A", "t", 0, True), run("B", "t", 0, True, forbidden_calls=1)]
    rule = verdict_of(pairing_of(rows), {"metric": "new_forbidden_calls", "at_most": 0})["rules"][0]
    assert (rule["low"], rule["high"], rule["decision"]) == (0.0, 1.0, "inconclusive")


def test_costs_that_are_not_said_could_have_been_any() -> None:
    rows = [run(r, f"t{t}", 0, True, cost_usd=0.1 if t else None) for r in "AB" for t in range(3)]
    result = verdict_of(
        pairing_of(rows),
        {"metric": "cost_usd", "statistic": "median", "at_most": 0.1},
        {"metric": "cost_usd", "statistic": "p95", "at_most": 0.1},
    )
    assert [rule["decision"] for rule in result["rules"]] == ["pass", "inconclusive"]
    assert result["rules"][1]["observed"] == "0.1 … unbounded"


def test_a_declared_limit_caps_what_silent_runs_could_have_cost() -> None:
    rows = [run(r, f"t{t}", 0, True, cost_usd=0.1 if t else None) for r in "AB" for t in range(3)]
    folder = pairing_of(rows).base.campaign.folder
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "limits": {"cost_usd": 0.5}}))
    pairing = pair(*choose([Campaign(folder)], "A", "B"))
    rules = [{"metric": "cost_usd", "statistic": "p95", "at_most": most} for most in (0.5, 0.4)]
    result = verdict_of(pairing, *rules)
    assert [rule["decision"] for rule in result["rules"]] == ["pass", "inconclusive"]
    assert result["rules"][0]["observed"] == "0.1 … 0.5"


def test_shares_take_the_worse_of_both_releases() -> None:
    rows = tasks_of({"PP": 96, "P.": 4})
    rules = [{"metric": "missing_share", "at_most": share} for share in (0.04, 0.039)]
    result = verdict_of(pairing_of(rows, runs=1), *rules, {"metric": "tasks", "at_least": 100})
    assert [rule["decision"] for rule in result["rules"]] == ["pass", "fail", "inconclusive"]
    assert (result["rules"][2]["low"], result["rules"][2]["high"]) == (96.0, 100.0)


def test_flakiness_and_its_change() -> None:
    rows = [
        run(r, f"t{t}", i, i != 0 or t >= flaky)
        for r, flaky in (("A", 10), ("B", 30))
        for t in range(100)
        for i in range(3)
    ]
    result = verdict_of(
        pairing_of(rows),
        {"metric": "flaky_rate", "at_most": 0.3, "by": "estimate"},
        {"metric": "delta_flaky_rate", "at_most": 0.1},
        {"metric": "delta_flaky_rate", "at_most": 0.35},
    )
    assert [rule["decision"] for rule in result["rules"]] == ["pass", "fail", "pass"]
    assert result["rules"][1]["low"] == result["rules"][1]["high"] == pytest.approx(0.2)


def test_standardised_rates_are_those_of_the_declared_mix() -> None:
    rows = [
        run(r, f"{c}{t}", 0, t < passed, cohort=c)
        for r in "AB"
        for c, tasks, passed in (("x", 90, 81), ("y", 10, 3))
        for t in range(tasks)
    ]
    rule = {"metric": "attempt_rate", "standardised": True, "at_least": 0.5}
    seen = verdict_of(pairing_of(rows), rule, weights={"x": 0.6, "y": 0.4})["rules"][0]
    assert Fraction(seen["low"]).limit_denominator(10_000) == Fraction(66, 100)
    assert seen["method"] == "task-dirichlet-bonferroni"
    assert seen["lower"] < 0.66 < seen["upper"]


def test_the_tasks_that_are_named_settle_the_rule_at_the_promised_power() -> None:
    pairing = pairing_of(tasks_of({"PP": 60, "PF": 8, "FP": 10, "FF": 22}))
    margin = {"metric": "delta_attempt_rate", "at_least": -0.05}
    rule = verdict_of(pairing, margin)["rules"][0]
    assert rule["decision"] == "inconclusive"
    words = rule["reason"].split()
    more = int(words[0].replace(",", ""))
    assert " ".join(words[1:]) == "more tasks like these would make it pass with chance 0.8"
    rng = np.random.default_rng(5)
    kinds, passes, campaigns = ["PP", "PF", "FP", "FF"], 0, 60
    for drawn in rng.multinomial(more, [0.60, 0.08, 0.10, 0.22], size=campaigns):
        counts = {kind: base + int(extra) for kind, base, extra in zip(kinds, (60, 8, 10, 22), drawn, strict=True)}
        passes += decision(pairing_of(tasks_of(counts)), margin) == "pass"
    assert abs(passes / campaigns - 0.8) <= 3 * (0.8 * 0.2 / campaigns) ** 0.5


# Gate files


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"metric": "attempt_rate", "at_least": -1}, "rules.0.at_least: found -1, expected a number from 0 to 1"),
        ({"metric": "attempt_rate", "at_least": 1.5}, "rules.0.at_least: found 1.5, expected a number from 0 to 1"),
        ({"metric": "delta_attempt_rate", "at_least": 2}, "found 2, expected a number from -1 to 1"),
        ({"metric": "forbidden_calls", "at_most": 0.5}, "rules.0.at_most: found 0.5, expected a whole number"),
        ({"metric": "forbidden_calls", "at_least": 1}, "events can only be at_most something"),
        ({"metric": "attempt_rat", "at_least": 0.5}, 'found "attempt_rat"; did you mean attempt_rate?'),
        ({"metric": "attempt_rate"}, "rules.0.at_least: is missing, and so is at_most"),
        ({"metric": "attempt_rate", "at_least": 0.1, "at_most": 0.2}, "rules.0.at_most: is given beside at_least"),
        ({"metric": "pass_hat", "at_least": 0.5}, "rules.0.k: is missing"),
        ({"metric": "attempt_rate", "k": 2, "at_least": 0.5}, "rules.0.k: does not go with attempt_rate"),
        ({"metric": "cost_usd", "at_most": 1}, "rules.0.statistic: is missing"),
        ({"metric": "tasks", "at_least": 9, "interval": "bootstrap"}, "rules.0.interval: does not go with tasks"),
        ({"metric": "attempt_rate", "at_least": 0.5, "standardised": True}, "the gate has no weights"),
        ({"metric": "attempt_rate", "at_least": 0.5, "interval": "paired-t"}, "paired-t is of differences"),
        ({"metric": "attempt_rate", "at_least": 0.5, "by": "estimate", "alpha": 0.05}, "alpha: does not go with"),
        ({"metric": "attempt_rate", "at_least": 0.5, "colour": "red"}, "colour"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rule: dict[str, Any], problem: str) -> None:
    Path("gate.yaml").write_text(json.dumps({"name": "g", "rules": [{"id": "r", **rule}]}))
    with pytest.raises(InvalidFile) as refused:
        load_gate(Path("gate.yaml"))
    assert problem in str(refused.value)


@pytest.mark.parametrize("threshold", [".nan", ".inf", "1e999", "-.inf"])
def test_a_threshold_that_is_not_finite_is_refused(threshold: str) -> None:
    """C15"""
    Path("gate.yaml").write_text(f"name: g\nrules:\n- {{id: r, metric: attempt_rate, at_least: {threshold}}}\n")
    with pytest.raises(InvalidFile):
        load_gate(Path("gate.yaml"))


def test_two_rules_of_one_name_are_refused() -> None:
    rule = {"id": "r", "metric": "tasks", "at_least": 1}
    Path("gate.yaml").write_text(json.dumps({"name": "g", "rules": [rule, rule]}))
    with pytest.raises(InvalidFile, match=r'rules.1.id: found "r" a second time'):
        load_gate(Path("gate.yaml"))


def test_the_digest_is_of_the_content_and_not_of_how_it_is_written() -> None:
    Path("a.yaml").write_text("name: g\nrules:\n  - {id: r, metric: tasks, at_least: 3}\n")
    Path("b.yaml").write_text('# the same\n{"rules": [{"at_least": 3.0, "metric": "tasks", "id": "r"}], "name": "g"}\n')
    Path("c.yaml").write_text("name: g\nrules:\n  - {id: r, metric: tasks, at_least: 4}\n")
    a, b, c = (load_gate(Path(f"{name}.yaml")).digest for name in "abc")
    assert a == b != c


def test_every_metric_of_the_catalogue_can_be_asked_for() -> None:
    fields: dict[str, dict[str, Any]] = {
        "level": {"at_least": 0.5},
        "difference": {"at_least": -0.1},
        "events": {"at_most": 0},
        "efficiency": {"at_most": 3, "statistic": "p95"},
        "share": {"at_most": 0.1},
        "size": {"at_least": 1},
    }
    pairing = pairing_of(tasks_of({"PP": 4}))
    for name in NAMES:
        kind = METRICS[name.removeprefix("new_")].kind
        rule = {"metric": name, **fields[kind], **({"k": 1} if name.endswith("pass_hat") else {})}
        assert decision(pairing, rule) in ("pass", "fail", "inconclusive")


def test_an_event_in_a_run_without_a_partner_counts_and_may_be_new() -> None:
    rows = [
        *tasks_of({"PP": 3}, forbidden_calls=0, cohort="c"),
        run("B", "t0000", 1, True, forbidden_calls=1, cohort="c"),
        run("B", "extra", 0, True, forbidden_calls=2, cohort="c"),
    ]
    rules = [
        {"metric": name, "at_most": at_most, **where}
        for where in ({}, {"cohort": "c"})
        for name, at_most in (("forbidden_calls", 1), ("forbidden_calls", 2), ("new_forbidden_calls", 0))
    ]
    result = verdict_of(pairing_of(rows), *rules, unmatched="allow")
    assert [rule["decision"] for rule in result["rules"]] == ["fail", "pass", "inconclusive"] * 2
    assert result["rules"][0]["observed"] == "2 runs: t0000/1, extra/0"


# Completions, strictness, levels: the row of the table each rule follows


def test_missing_runs_of_the_baseline_count_as_passed_against_the_candidate() -> None:
    """The baseline's gaps are no points for the candidate: at worst they all passed."""
    rows = [run("A", f"t{i}", 0, None if i < 30 else True) for i in range(200)]
    rows += [run("B", f"t{i}", 0, True) for i in range(200)]
    rule = verdict_of(pairing_of(rows), {"metric": "delta_attempt_rate", "at_least": 0.1, "by": "estimate"})["rules"][0]
    assert (rule["low"], rule["high"], rule["decision"]) == (0.0, pytest.approx(0.15), "inconclusive")


def test_pending_and_invalid_runs_are_gaps_too() -> None:
    rows = [run(r, f"t{i}", 0, True) for r in "AB" for i in range(40)]
    for row, status in zip(rows[-4:], ("pending", "pending", "invalid", "missing"), strict=True):
        del row["passed"]
        row["status"] = status
    result = verdict_of(
        pairing_of(rows),
        {"metric": "attempt_rate", "at_least": 0.9, "by": "estimate"},
        {"metric": "attempt_rate", "at_least": 0.91, "by": "estimate"},
        {"metric": "missing_share", "at_most": 0.075},
        {"metric": "missing_share", "at_most": 0.074},
        {"metric": "invalid_share", "at_most": 0.025},
        {"metric": "invalid_share", "at_most": 0.024},
        {"metric": "tasks", "at_least": 36},
        {"metric": "tasks", "at_least": 37},
    )
    decisions = [rule["decision"] for rule in result["rules"]]
    assert decisions == ["pass", "inconclusive", "pass", "fail", "pass", "fail", "pass", "inconclusive"]
    assert result["counts"]["candidate"] == {
        "planned": 40,
        "passed": 36,
        "failed": 0,
        "invalid": 1,
        "pending": 2,
        "missing": 1,
        "on_missing": "fail",
        "unscored": ["t36/0", "t37/0", "t38/0", "t39/0"],
    }


def test_a_run_that_faulted_was_neither_cheap_nor_safe() -> None:
    rows = [run("A", f"t{i}", 0, True, cost_usd=0.1, forbidden_calls=0) for i in range(10)]
    rows += [run("B", f"t{i}", 0, True, cost_usd=5.0, forbidden_calls=0) for i in range(4)]
    rows += [{**run("B", f"t{i}", 0, None, cost_usd=0.0, forbidden_calls=0), "status": "invalid"} for i in range(4, 10)]
    for row in rows:
        if row["passed"] is None:
            del row["passed"]
    result = verdict_of(
        pairing_of(rows),
        {"metric": "cost_usd", "statistic": "p95", "at_most": 0.1},
        {"metric": "cost_usd", "statistic": "median", "change": "relative", "at_most": 0.1},
        {"metric": "forbidden_calls", "at_most": 0},
    )
    assert [rule["decision"] for rule in result["rules"]] == ["fail", "inconclusive", "inconclusive"]
    assert result["rules"][0]["observed"] == "5 … unbounded"
    assert result["rules"][2]["observed"] == "0 … 6 runs"


@pytest.mark.parametrize(
    ("passed", "floor", "expected"), [(99, 0.9, "pass"), (95, 0.9, "inconclusive"), (60, 0.9, "fail")]
)
def test_a_floor_is_read_at_its_clopper_pearson_bound(passed: int, floor: float, expected: str) -> None:
    rows = [run(r, f"t{t}", 0, t < passed) for r in "AB" for t in range(100)]
    rule = verdict_of(pairing_of(rows), {"metric": "attempt_rate", "at_least": floor})["rules"][0]
    assert rule["decision"] == expected
    exact = stats.binomtest(passed, 100).proportion_ci(0.95, method="exact")
    assert (rule["lower"], rule["upper"]) == pytest.approx((exact.low, exact.high), rel=1e-9)
    above = verdict_of(pairing_of(rows), {"metric": "attempt_rate", "at_most": exact.high + 1e-9})["rules"][0]
    assert above["decision"] == "pass"


def test_a_ceiling_on_a_difference_is_the_mirror_of_a_floor() -> None:
    pairing = pairing_of(tasks_of({"PP": 60, "PF": 8, "FP": 10, "FF": 22}))
    mirror = pairing_of(
        [
            {**row, "release": "AB"["BA".index(row["release"])]}
            for row in tasks_of({"PP": 60, "PF": 8, "FP": 10, "FF": 22})
        ]
    )
    floor = verdict_of(pairing, {"metric": "delta_attempt_rate", "at_least": -0.05})["rules"][0]
    ceiling = verdict_of(mirror, {"metric": "delta_attempt_rate", "at_most": 0.05}, baseline="A", candidate="B")[
        "rules"
    ][0]
    assert floor["lower"] == pytest.approx(-ceiling["upper"], abs=1e-12)
    assert floor["decision"] == ceiling["decision"] == "inconclusive"
    assert floor["reason"] == ceiling["reason"]


def test_flaky_and_unsanctioned_shares_have_the_widest_range_that_gaps_allow() -> None:
    rows = []
    for release in "AB":
        for task, letters in enumerate(("PF", "P.", "F.", "..", "PP")):
            for i, letter in enumerate(letters):
                row = run(release, f"t{task}", i, {"P": True, "F": False, ".": None}[letter])
                if letter != ".":
                    row |= {"outcome_passed": letter == "P", "trajectory_passed": letter == "F"}
                rows.append(row)
    result = verdict_of(
        pairing_of(rows),
        {"metric": "flaky_rate", "at_most": 0.5, "by": "estimate"},
        {"metric": "right_unsanctioned_share", "at_most": 0.5, "by": "estimate"},
        {"metric": "delta_flaky_rate", "at_most": 0.5, "by": "estimate"},
        {"metric": "delta_pass_hat", "k": 2, "at_least": 0, "by": "estimate"},
    )
    ranges = [(rule["low"], rule["high"]) for rule in result["rules"]]
    # flaky: one task for certain, four if gaps fall so; P. and PP hold 4 unsanctioned of 10, four gaps more
    assert ranges[0] == (0.2, 0.8)
    assert ranges[1] == (0.4, 0.8)
    assert ranges[2] == pytest.approx((-0.6, 0.6))
    assert ranges[3] == pytest.approx((-0.4, 0.4))


def test_changes_of_cost_cross_their_completions() -> None:
    """At best the candidate's silent runs cost nothing and the baseline's silent runs the most, and the reverse."""
    rows = [run(r, f"t{t}", 0, True, cost_usd=None if t == 0 else 0.1 * (t + 1)) for r in "AB" for t in range(4)]
    rule = verdict_of(
        pairing_of(rows), {"metric": "cost_usd", "statistic": "median", "change": "absolute", "at_most": 0.1}
    )["rules"][0]
    # the median of 0.2, 0.3, 0.4 and a silent one is 0.2 or 0.3
    assert (rule["low"], rule["high"]) == pytest.approx((-0.1, 0.1))
    assert rule["decision"] == "pass"


def test_standardised_bounds_share_out_their_level() -> None:
    rows = [
        run(r, f"{c}{t}", 0, t < passed, cohort=c)
        for r in "AB"
        for c, n, passed in (("x", 90, 81), ("y", 10, 3))
        for t in range(n)
    ]
    pairing = pairing_of(rows)
    weights = {"x": 0.6, "y": 0.4}
    rule = verdict_of(pairing, {"metric": "attempt_rate", "standardised": True, "at_least": 0.5}, weights=weights)[
        "rules"
    ][0]
    ends = [stats.binomtest(c, n).proportion_ci(0.975, method="exact") for c, n in ((81, 90), (3, 10))]
    assert rule["lower"] == pytest.approx(0.6 * ends[0].low + 0.4 * ends[1].low, rel=1e-9)
    assert rule["upper"] == pytest.approx(0.6 * ends[0].high + 0.4 * ends[1].high, rel=1e-9)
    missing_weight = verdict_of(
        pairing, {"metric": "attempt_rate", "standardised": True, "at_least": 0.5}, weights={"x": 1}
    )
    assert missing_weight["rules"][0]["reason"] == "no weight is declared for y"


def test_a_bootstrap_bound_is_the_bootstrap_and_says_what_it_assumes() -> None:
    rows = tasks_of({"PP": 60, "PF": 8, "FP": 10, "FF": 22})
    rule = {"metric": "delta_attempt_rate", "at_least": -0.05, "interval": "bootstrap"}
    seen = verdict_of(pairing_of(rows), rule)["rules"][0]
    expected = bootstrap_mean([-1, 0, 1], 1, [8, 82, 10], 0.95).interval
    assert expected is not None
    assert (seen["lower"], seen["upper"]) == (expected.lower, expected.upper)
    assert seen["assumes"].startswith("the tasks seen stand for all kinds there are")


@pytest.mark.parametrize(
    ("rule", "required"),
    [
        ({"metric": "attempt_rate", "at_least": 0.9996, "by": "estimate"}, "≥ 0.9996"),
        ({"metric": "attempt_rate", "at_least": 0.5}, "≥ 0.500 at its bound"),
        ({"metric": "delta_attempt_rate", "at_least": 0.0004, "by": "estimate"}, "≥ +0.04 points"),
        ({"metric": "delta_attempt_rate", "at_least": -0.0125}, "> -1.25 points at its bound"),
        ({"metric": "latency_ms", "statistic": "p95", "at_most": 1_000_000}, "≤ 1000000"),
        ({"metric": "cost_usd", "statistic": "median", "at_most": 10.000001}, "≤ 10.000001"),
        ({"metric": "missing_share", "at_most": 0.0005}, "≤ 0.05 %"),
    ],
)
def test_the_threshold_is_shown_exactly(rule: dict[str, Any], required: str) -> None:
    assert verdict_of(pairing_of(tasks_of({"PP": 4})), rule)["rules"][0]["required"] == required


def test_a_value_never_reads_as_the_threshold_that_it_misses() -> None:
    rows = [run(r, "t", 0, True, latency_ms=1_000_001, cost_usd=10.000001) for r in "AB"]
    result = verdict_of(
        pairing_of(rows),
        {"metric": "latency_ms", "statistic": "p95", "at_most": 1_000_000},
        {"metric": "cost_usd", "statistic": "p95", "at_most": 10},
    )
    assert [(rule["observed"], rule["decision"]) for rule in result["rules"]] == [
        ("1000001", "fail"),
        ("10.000001", "fail"),
    ]


def test_runs_that_only_one_release_planned_are_refused() -> None:
    """A candidate that ran only what it passes would look better than it is."""
    rows = [run("A", f"t{t}", i, i < 4) for t in range(20) for i in range(5)]
    rows += [run("B", f"t{t}", 0, True) for t in range(20)]
    rule = {"metric": "delta_attempt_rate", "at_least": -0.02}
    with pytest.raises(NotAcceptable, match="planned for one release only: 80 runs of tasks that both ran"):
        verdict_of(pairing_of(rows), rule)
    allowed = verdict_of(pairing_of(rows), rule, unmatched="allow")
    assert allowed["unmatched"] == {"base_only": [], "candidate_only": [], "base_cells": 80, "candidate_cells": 0}


def test_a_name_cannot_forge_a_line() -> None:
    for name in ("a\nPASS  b", "x\x1b[31m", "a\n::error::x"):
        Path("gate.yaml").write_text(
            json.dumps({"name": "g", "rules": [{"id": name, "metric": "tasks", "at_least": 1}]})
        )
        with pytest.raises(InvalidFile, match="expected no control characters"):
            load_gate(Path("gate.yaml"))


@pytest.mark.parametrize("field", [{"alpha": 1e-17}, {"k": 10**17, "metric": "pass_hat"}])
def test_levels_and_k_have_limits(field: dict[str, Any]) -> None:
    rule = {"id": "r", "metric": "attempt_rate", "at_least": 0.5, **field}
    Path("gate.yaml").write_text(json.dumps({"name": "g", "rules": [rule]}))
    with pytest.raises(InvalidFile):
        load_gate(Path("gate.yaml"))
