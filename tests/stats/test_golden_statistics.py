"""Right values computed elsewhere, by other routes and at high precision; absent on a user's machine."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from passhat.stats.bootstrap import bootstrap_pass_hat
from passhat.stats.intervals import clopper_pearson, dirichlet, wilson
from passhat.stats.reliability import all_fail, at_least_m_of_k, attempt_rate, flaky, pass_at, pass_hat
from passhat.stats.table import OutcomeTable, histogram

GOLDEN = Path(__file__).resolve().parents[2].parent / "shared" / "golden" / "stats.json"
ESTIMATORS = {
    "C(c,k)/C(n,k)": lambda c, n, k: pass_hat(histogram([n], [c]), k).estimate,
    "1-C(n-c,k)/C(n,k)": lambda c, n, k: pass_at(histogram([n], [c]), k).estimate,
    "(c/n)^k": lambda c, n, k: (c / n) ** k,
}


def suite(given):
    """The histogram of `tasks_by_success_count[c]` tasks with c successes each."""
    counts = given["tasks_by_success_count"]
    return histogram([given["repeats"]] * sum(counts), np.repeat(np.arange(len(counts)), counts))


def task(given):
    return histogram([given["n"]], [given["c"]])


def ends(interval):
    return None if interval is None else [interval.lower, interval.upper]


def unequal(given):
    estimate = pass_hat(histogram(given["n"], given["c"]), given["k"])
    return {
        "estimate": estimate.over_estimable,
        "estimable_tasks": estimate.tasks,
        "not_estimable": estimate.not_estimable,
    }


def expectation(given):
    values = [ESTIMATORS[given["estimator"]](c, given["n"], given["k"]) for c in range(given["n"] + 1)]
    return stats.binom.pmf(np.arange(given["n"] + 1), given["n"], given["p"]) @ values


def dirichlet_of_suite(given):
    estimate = pass_hat(suite(given), given["k"])
    interval = dirichlet(estimate.values, estimate.multiplicities, given["confidence"])
    return {"estimate": estimate.estimate, "low": interval.lower, "high": interval.upper}


def dirichlet_of_differences(given):
    values = [int(difference) / given["repeats"] for difference in given["difference_counts"]]
    tasks = list(given["difference_counts"].values())
    interval = dirichlet(values, tasks, given["confidence"], lower_limit=-1)
    return {"estimate": np.average(values, weights=tasks), "low": interval.lower, "high": interval.upper}


def bootstrap(given):
    result = bootstrap_pass_hat(suite(given), given["k"], given["confidence"])
    return {
        "estimate": result.estimate,
        "low": result.interval.lower,
        "median": result.median,
        "high": result.interval.upper,
        "bootstrap_sd": result.sd,
    }


def missing_runs(given):
    passed, failed = np.array(given["passed"]), np.array(given["failed"])
    planned = np.full(len(passed), given["planned_repeats"])
    table = OutcomeTable(planned, passed, failed, planned - passed - failed)
    observed = pass_hat(table.observed().histogram(), given["k"])
    return {
        "worst": pass_hat(table.worst().histogram(), given["k"]).estimate,
        "best": pass_hat(table.best().histogram(), given["k"]).estimate,
        "observed_only": observed.over_estimable,
        "not_estimable": observed.not_estimable,
        "missing": table.unscored.sum(),
    }


def all_pass(given):
    passed, tasks, confidence = given["tasks_all_pass"], given["tasks"], given["confidence"]
    return {
        "wilson_tasks": ends(wilson(passed, tasks, confidence)),
        "clopper_pearson_tasks": ends(clopper_pearson(passed, tasks, confidence)),
        "one_sided_lower": clopper_pearson(passed, tasks, 2 * confidence - 1).lower,
    }


COMPUTE = {
    "pass_hat_k": lambda given: pass_hat(suite(given), given["k"]).estimate,
    "pass_at_k": lambda given: pass_at(suite(given), given["k"]).estimate,
    "pass_hat_k_task": lambda given: pass_hat(task(given), given["k"]).estimate,
    "pass_at_k_task": lambda given: pass_at(task(given), given["k"]).estimate,
    "at_least_m_of_k": lambda given: at_least_m_of_k(task(given), given["k"], given["m"]).estimate,
    "pass_hat_k_unequal": unequal,
    "expectation_of_estimator": expectation,
    "attempt_rate": lambda given: attempt_rate(suite(given)).estimate,
    "flaky_rate": lambda given: flaky(suite(given)).estimate,
    "all_fail_rate": lambda given: all_fail(suite(given)).estimate,
    "missing_run_bounds": missing_runs,
    "wilson": lambda given: ends(wilson(**given)),
    "clopper_pearson": lambda given: ends(clopper_pearson(**given)),
    "events_upper_one_sided": lambda given: (
        clopper_pearson(given["events"], given["trials"], 2 * given["confidence"] - 1).upper
    ),
    "zero_events_upper_one_sided": lambda given: clopper_pearson(0, given["trials"], 2 * given["confidence"] - 1).upper,
    "all_pass_interval": all_pass,
    "dirichlet_interval": dirichlet_of_suite,
    "paired_dirichlet_interval": dirichlet_of_differences,
    "exact_bootstrap_percentile": bootstrap,
}


def same(found, expected, tolerance):
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key], tolerance) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected, [tolerance] * len(expected)))
    if expected is None or found is None:
        return found is expected
    return abs(found - expected) <= tolerance["abs"] + tolerance["rel"] * abs(expected)


@pytest.mark.skipif(not GOLDEN.exists(), reason=f"{GOLDEN} is not part of the package")
@pytest.mark.parametrize("kind", COMPUTE)
def test_every_golden_value_of_this_kind_is_reproduced(kind):
    records = [record for record in json.loads(GOLDEN.read_text())["values"] if record["kind"] == kind]
    wrong = {
        record["name"]: (found, record["expected"])
        for record in records
        if not same(found := COMPUTE[kind](record["input"]), record["expected"], record["tolerance"])
    }
    assert wrong == {}
    assert records
    print(f"{len(records)} golden values of {kind}")
