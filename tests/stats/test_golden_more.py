"""Right values computed elsewhere for BCa, spread, closed forms, cohorts, rare events, plans and looks."""

import json
from collections import Counter
from math import comb, exp, gcd
from pathlib import Path

import numpy as np
import pytest
from scipy import special

from passhat.stats.bootstrap import bootstrap_pass_hat
from passhat.stats.closed_form import cluster_wilson, pseudo_task_t
from passhat.stats.cohorts import single_runs, standardise, standardised_error
from passhat.stats.planning import BetaModel, beta_model, fewest_tasks_for_margin, mcnemar_power, tasks_needed
from passhat.stats.rare import BY_RUN, chance_of_no_event, event_bound, trials_needed
from passhat.stats.reliability import pass_hat
from passhat.stats.sequential import bet_on_differences, discordant_log_e_value, group_sequential
from passhat.stats.table import Histogram, histogram
from passhat.stats.variance import band_over_k, clustering, optimal_repeats, spread, within_task_variance

GOLDEN = Path(__file__).resolve().parents[2].parent / "shared" / "golden" / "stats.json"


def suite(given):
    """The histogram of `tasks_by_success_count[c]` tasks with c successes each."""
    counts = np.array(given["tasks_by_success_count"])
    c = np.flatnonzero(counts)
    return Histogram(np.full_like(c, given["repeats"]), c, counts[c])


def naive_standard_error(given):
    c, n = given["successes"], given["trials"]
    return clustering(Histogram(np.array([1, 1]), np.array([0, 1]), np.array([n - c, c]))).naive_standard_error


def wilson_of_suite(given):
    estimate = pass_hat(suite(given), given["k"])
    result = cluster_wilson(
        estimate.values,
        estimate.multiplicities,
        given["confidence"],
        pseudo_tasks=given["pseudo_tasks_each_end"],
    )
    return {"n_eff": result.effective_tasks, "low": result.interval.lower, "high": result.interval.upper}


def wilson_of_unequal(given):
    estimate = pass_hat(histogram(given["n"], given["c"]), given["k"])
    result = cluster_wilson(
        estimate.values,
        estimate.multiplicities,
        given["confidence"],
        pseudo_tasks=given["pseudo_tasks_each_end"],
    )
    return {
        "n_eff": result.effective_tasks,
        "low": result.interval.lower,
        "high": result.interval.upper,
        "estimate": estimate.over_estimable,
        "estimable_tasks": estimate.tasks,
        "not_estimable": estimate.not_estimable,
    }


def pseudo_t(given):
    estimate = pass_hat(suite(given), given["k"])
    result = pseudo_task_t(
        estimate.values,
        estimate.multiplicities,
        given["confidence"],
        pseudo_tasks=given["pseudo_tasks_each_end"],
    )
    return {"center": result.center, "low": result.interval.lower, "high": result.interval.upper}


def weights_of(strata):
    return {str(i): stratum["weight"] for i, stratum in enumerate(strata)}


def of_single_runs(strata):
    cohorts = {str(i): single_runs(stratum["successes"], stratum["trials"]) for i, stratum in enumerate(strata)}
    return standardise(cohorts, weights_of(strata))


def standardised_rate(given):
    result = of_single_runs(given["strata"])
    return None if result.estimate is None else {"standardised": result.estimate, "crude": result.raw}


def standardised_pair(given):
    a, b = of_single_runs(given["a"]), of_single_runs(given["b"])
    return {"a": a.estimate, "b": b.estimate, "crude_a": a.raw, "crude_b": b.raw}


def standardised_se(given):
    errors = {str(i): stratum["se"] for i, stratum in enumerate(given["strata"])}
    return standardised_error(weights_of(given["strata"]), errors)


def standardised_interval(given):
    cohorts = {str(i): pass_hat(suite(stratum), stratum["k"]) for i, stratum in enumerate(given["strata"])}
    result = standardise(cohorts, weights_of(given["strata"]), given["confidence"])
    return {
        "estimate": result.estimate,
        "se": result.standard_error,
        "df": result.degrees_of_freedom,
        "n_eff": result.effective_tasks,
        "low": result.interval.lower,
        "high": result.interval.upper,
    }


def needed_by_normal(given):
    within = given["within_a"] + given["within_b"]
    needed = tasks_needed(
        given["effect"],
        given["var_between_task_effect"],
        within,
        given["repeats"],
        alpha=given["alpha"],
        power=given["power"],
    )
    return {"tasks_exact": needed.normal, "tasks": int(np.ceil(needed.normal))}


def needed_by_t(given):
    needed = tasks_needed(
        given["effect"],
        given["var_between_task_effect"],
        given["within_sum"],
        given["repeats"],
        alpha=given["alpha"],
        power=given["power"],
    )
    return {"tasks": needed.tasks, "power": needed.power}


def boundary(given):
    shape = given["shape"].replace("_", "-")
    return group_sequential(given["information_fractions"], given["alpha"], sides=given["sides"], shape=shape).critical


def equal_looks(given):
    looks = given["looks"]
    return group_sequential([(look + 1) / looks for look in range(looks)], given["alpha"]).critical


def band(given):
    result = band_over_k(suite(given), given["k"], given["confidence"])
    return {"correlation": result.correlation.tolist(), "critical": result.critical}


def corrected_bootstrap(given):
    tasks = suite(given)
    result = bootstrap_pass_hat(tasks, given["k"], given["confidence"])
    numerators = [comb(c, given["k"]) for c in tasks.c.tolist()]
    step = gcd(*(numerator - numerators[0] for numerator in numerators)) / comb(given["repeats"], given["k"])
    return {
        "z0": result.z0,
        "acceleration": result.acceleration,
        "low": result.bca.lower,
        "high": result.bca.upper,
        "step": step / tasks.total,
    }


def wealth(given):
    log_wealth = bet_on_differences(given["differences"], bet=given["bet"]).log_wealth
    return {"final": exp(log_wealth[-1]), "running_max": exp(log_wealth.max())}


COMPUTE = {
    "within_task_variance": lambda given: within_task_variance(given["n"], given["k"])[given["c"]],
    "cluster_se": lambda given: spread(suite(given), given["k"]).standard_error,
    "naive_se": naive_standard_error,
    "design_effect": lambda given: clustering(suite(given)).design_effect,
    "cluster_wilson": wilson_of_suite,
    "cluster_wilson_unequal": wilson_of_unequal,
    "pseudo_task_t": pseudo_t,
    "standardised_rate": standardised_rate,
    "standardised_rate_pair": standardised_pair,
    "standardised_se": standardised_se,
    "standardised_cluster_wilson": standardised_interval,
    "zero_events_upper_one_sided": lambda given: event_bound(0, given["trials"], BY_RUN, given["confidence"]).upper,
    "events_upper_one_sided": lambda given: (
        event_bound(given["events"], given["trials"], BY_RUN, given["confidence"]).upper
    ),
    "zero_events_trials_needed": lambda given: trials_needed(given["max_rate"], given["confidence"]),
    "prob_zero_events_clustered": lambda given: chance_of_no_event(
        given["share_bad_tasks"], given["rate_in_bad_tasks"], given["tasks"], given["repeats"]
    ),
    "tasks_needed_normal": needed_by_normal,
    "tasks_needed_t": needed_by_t,
    "mcnemar_exact_power": lambda given: mcnemar_power(given["pairs"], given["p10"], given["p01"], given["alpha"]),
    "optimal_repeats": lambda given: optimal_repeats(
        given["var_between_task_effect"], given["within_sum"], given["cost_task_over_cost_run"]
    ),
    "beta_model_pass_hat": lambda given: BetaModel(given["a"], given["b"]).pass_hat(given["k"]),
    # tasks that all pass alike, but for a correlation too small to see
    "power_of_rate": lambda given: beta_model(given["p"], 1e-13).pass_hat(given["k"]),
    "beta_model_icc": lambda given: BetaModel(given["a"], given["b"]).icc,
    "beta_binomial_pmf": lambda given: BetaModel(given["a"], given["b"]).chances(given["n"])[given["c"]],
    "beta_binomial_evalue": lambda given: exp(discordant_log_e_value(given["b"], given["c"])),
    "group_sequential_boundary": boundary,
    "group_sequential_obrien_fleming": equal_looks,
    "simultaneous_critical_value": band,
    "betting_wealth_fixed": wealth,
    "exact_bca": corrected_bootstrap,
    "noninferiority_min_tasks": lambda given: fewest_tasks_for_margin(given["margin"], given["alpha_one_sided"]),
    # what scipy.special is relied on for
    "t_quantile": lambda given: special.stdtrit(given["df"], given["p"]),
    "normal_quantile": lambda given: special.ndtri(given["p"]),
    "beta_quantile": lambda given: special.betaincinv(given["a"], given["b"], given["p"]),
}
COUNTS = {
    "within_task_variance": 4,
    "cluster_se": 1,
    "naive_se": 1,
    "design_effect": 1,
    "cluster_wilson": 11,
    "cluster_wilson_unequal": 2,
    "pseudo_task_t": 7,
    "standardised_rate": 3,
    "standardised_rate_pair": 1,
    "standardised_se": 1,
    "standardised_cluster_wilson": 2,
    "zero_events_upper_one_sided": 10,
    "events_upper_one_sided": 2,
    "zero_events_trials_needed": 4,
    "prob_zero_events_clustered": 1,
    "tasks_needed_normal": 7,
    "tasks_needed_t": 2,
    "mcnemar_exact_power": 4,
    "optimal_repeats": 1,
    "beta_model_pass_hat": 5,
    "power_of_rate": 1,
    "beta_model_icc": 1,
    "beta_binomial_pmf": 3,
    "beta_binomial_evalue": 5,
    "group_sequential_boundary": 7,
    "group_sequential_obrien_fleming": 1,
    "simultaneous_critical_value": 1,
    "betting_wealth_fixed": 1,
    "exact_bca": 10,
    "noninferiority_min_tasks": 2,
    "t_quantile": 7,
    "normal_quantile": 4,
    "beta_quantile": 4,
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
def test_every_golden_value_of_this_further_kind_is_reproduced(kind):
    records = [record for record in json.loads(GOLDEN.read_text())["values"] if record["kind"] == kind]
    wrong = {
        record["name"]: (found, record["expected"])
        for record in records
        if not same(found := COMPUTE[kind](record["input"]), record["expected"], record["tolerance"])
    }
    assert wrong == {}
    print(f"{len(records)} golden values of {kind}")


@pytest.mark.skipif(not GOLDEN.exists(), reason=f"{GOLDEN} is not part of the package")
def test_none_of_the_golden_values_of_these_kinds_is_left_out():
    kinds = Counter(record["kind"] for record in json.loads(GOLDEN.read_text())["values"])
    assert {kind: kinds[kind] for kind in COMPUTE} == COUNTS
