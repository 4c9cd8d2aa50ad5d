"""Right values of paired statistics, computed elsewhere by other routes; absent on a user's machine."""

import json
from pathlib import Path

import numpy as np
import pytest

from passhat.stats.discordant import mcnemar
from passhat.stats.multiplicity import benjamini_hochberg, holm
from passhat.stats.paired import (
    completed_difference,
    completions,
    pair_counts,
    pair_tables,
    paired_dirichlet,
    paired_t,
    pass_hat_differences,
)
from passhat.stats.sign_flips import sign_flip
from passhat.stats.table import OutcomeTable

GOLDEN = Path(__file__).resolve().parents[2].parent / "shared" / "golden" / "stats.json"


def differences(given):
    """`difference_counts[d]` tasks of which B passes d runs more than A."""
    counts = {int(d): tasks for d, tasks in given["difference_counts"].items()}
    d = np.repeat(list(counts), list(counts.values()))
    n = np.full(len(d), given["repeats"])
    return pass_hat_differences(pair_counts(n, np.maximum(-d, 0), n, np.maximum(d, 0)))


def estimate_and_ends(found, interval):
    return {"estimate": found.over_estimable, "low": interval.lower, "high": interval.upper}


def flipped(given):
    if "differences" in given:
        return sign_flip(given["differences"], [1] * len(given["differences"]))
    return sign_flip([int(d) for d in given["difference_counts"]], list(given["difference_counts"].values()))


def mcnemar_p(given):
    test = mcnemar(given["b"], given["c"])
    return {"p": test.p_value, "mid_p": test.mid_p}


def t_interval(given):
    found = differences(given)
    pseudo_tasks = given.get("pseudo_tasks_each_end", 0)
    return estimate_and_ends(found, paired_t(found, given["confidence"], pseudo_tasks=pseudo_tasks))


def t_interval_of_unequal_runs(given):
    found = pass_hat_differences(pair_counts(given["n_a"], given["c_a"], given["n_b"], given["c_b"]), given["k"])
    interval = paired_t(found, given["confidence"], pseudo_tasks=given["pseudo_tasks_each_end"])
    return {
        **estimate_and_ends(found, interval),
        "tasks": sum(found.tasks),
        "not_estimable": found.not_estimable,
    }


def bound_when_nothing_differs(given):
    n = np.ones(given["tasks"], dtype=int)
    return paired_dirichlet(pass_hat_differences(pair_counts(n, n, n, n)), 2 * given["confidence"] - 1).upper


def table(passed, failed, planned):
    passed, failed = np.array(passed), np.array(failed)
    return OutcomeTable(np.full(len(passed), planned), passed, failed, planned - passed - failed)


def missing_delta_bounds(given):
    a = table(given["passed_a"], given["failed_a"], given["planned_repeats"])
    b = table(given["passed_b"], given["failed_b"], given["planned_repeats"])
    bounds = completed_difference(completions(a, b), given["k"])
    all_missing_fail = pass_hat_differences(pair_tables(a.worst(), b.worst()), given["k"]).estimate
    return {"worst": bounds.worst, "best": bounds.best, "all_missing_fail": all_missing_fail}


def noninferiority(given):
    outcomes = [  # A passes, B passes, B fails
        (1, 1, 0, given["both_pass"]),
        (1, 0, 1, given["a_only"]),
        (0, 1, 0, given["b_only"]),
        (0, 0, 1, given["both_fail"]),
        (1, 0, 0, given["b_missing_a_pass"]),
        (0, 0, 0, given["b_missing_a_fail"]),
    ]
    a, b, b_failed, tasks = np.array(outcomes).T
    a, b, b_failed = np.repeat(a, tasks), np.repeat(b, tasks), np.repeat(b_failed, tasks)
    bounds = completed_difference(completions(table(a, 1 - a, 1), table(b, b_failed, 1)), 1, 0.95)
    lower, upper, margin = bounds.interval.lower, bounds.interval.upper, given["margin"]
    return {
        "delta_adverse": bounds.worst,
        "delta_favourable": bounds.best,
        "low_adverse": lower,
        "high_favourable": upper,
        "decision": "pass" if lower > -margin else "fail" if upper < -margin else "inconclusive",
    }


COMPUTE = {
    "mcnemar_exact": (15, mcnemar_p),
    "mcnemar_log10_p": (1, lambda given: mcnemar(given["b"], given["c"]).log10_p),
    "sign_flip_exact": (17, lambda given: flipped(given).p_value),
    "sign_flip_log10_p": (1, lambda given: flipped(given).log10_p),
    "paired_dirichlet_interval": (
        6,
        lambda given: estimate_and_ends(differences(given), paired_dirichlet(differences(given), given["confidence"])),
    ),
    "paired_augmented_t": (4, t_interval),
    "paired_augmented_t_unequal": (2, t_interval_of_unequal_runs),
    "paired_t": (3, t_interval),
    "paired_all_zero_bound": (1, bound_when_nothing_differs),
    "missing_delta_bounds": (2, missing_delta_bounds),
    "noninferiority_decision": (3, noninferiority),
    "holm": (2, lambda given: holm(given["p"]).tolist()),
    "benjamini_hochberg": (2, lambda given: benjamini_hochberg(given["p"]).tolist()),
}


def same(found, expected, tolerance):
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key], tolerance) for key in expected)
    if isinstance(expected, str):
        return found == expected
    return found == pytest.approx(expected, rel=tolerance["rel"], abs=tolerance["abs"])


@pytest.mark.skipif(not GOLDEN.exists(), reason=f"{GOLDEN} is not part of the package")
@pytest.mark.parametrize("kind", COMPUTE)
def test_every_golden_value_of_this_kind_is_reproduced(kind):
    expected_records, compute = COMPUTE[kind]
    records = [record for record in json.loads(GOLDEN.read_text())["values"] if record["kind"] == kind]
    wrong = {}
    for record in records:
        found = compute(record["input"])
        if not same(found, record["expected"], record["tolerance"]):
            wrong[record["name"]] = (found, record["expected"])
    assert wrong == {}
    assert len(records) == expected_records
    print(f"{len(records)} golden values of {kind}")
