"""Variances against exact fractions and the Beta model; critical values against Šidák, scipy and simulation."""

from fractions import Fraction
from itertools import pairwise
from math import comb, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from passhat.stats.intervals import dirichlet
from passhat.stats.planning import BetaModel
from passhat.stats.reliability import pass_hat
from passhat.stats.table import Histogram, histogram
from passhat.stats.variance import (
    allocate,
    band_over_k,
    clustering,
    critical_value,
    optimal_repeats,
    spread,
    within_task_variance,
)

SUITE = histogram([3] * 100, [3] * 72 + [2] * 18 + [1] * 6 + [0] * 4)


def exact_within(n, c, k):
    return Fraction(comb(c, k), comb(n, k)) ** 2 - Fraction(comb(c, 2 * k), comb(n, 2 * k))


@pytest.mark.parametrize(("n", "k"), [(2, 1), (8, 1), (8, 4), (9, 4), (100, 50), (1000, 3)])
def test_the_variance_inside_a_task_is_exact_to_its_last_digits_for_every_count(n, k):
    expected = [float(exact_within(n, c, k)) for c in range(n + 1)]
    np.testing.assert_allclose(within_task_variance(n, k), expected, rtol=1e-12)


@pytest.mark.parametrize(("c", "k"), [(99_999, 1), (50_000, 1), (99_990, 1000), (70_000, 20)])
def test_the_variance_inside_a_task_of_a_hundred_thousand_runs_loses_no_digits(c, k):
    assert within_task_variance(100_000, k)[c] == pytest.approx(float(exact_within(100_000, c, k)), rel=1e-9)


@pytest.mark.parametrize(("n", "k", "p"), [(6, 2, Fraction(2, 3)), (7, 3, Fraction(9, 10)), (2, 1, Fraction(1, 5))])
def test_its_expectation_is_the_variance_of_the_estimate(n, k, p):
    chances = [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    values = [Fraction(comb(c, k), comb(n, k)) for c in range(n + 1)]
    variance = sum(chance * value**2 for chance, value in zip(chances, values, strict=True)) - p ** (2 * k)
    assert np.array(chances, dtype=float) @ within_task_variance(n, k) == pytest.approx(float(variance), rel=1e-13)


def test_fewer_than_two_k_runs_are_refused():
    with pytest.raises(ValueError, match="takes 2 k runs"):
        within_task_variance(7, 4)
    with pytest.raises(ValueError, match="k of at least 1"):
        within_task_variance(7, 0)


def test_the_parts_of_the_variance_are_those_of_the_tasks_one_by_one():
    n, c = [4, 8, 5, 4, 6], [4, 6, 2, 0, 5]
    found = spread(histogram(n, c), 2)
    values = [comb(passed, 2) / comb(runs, 2) for runs, passed in zip(n, c, strict=True)]
    within = np.mean([float(exact_within(runs, passed, 2)) for runs, passed in zip(n, c, strict=True)])
    assert found.total == pytest.approx(np.var(values, ddof=1), rel=1e-13)
    assert found.within == pytest.approx(within, rel=1e-13)
    assert found.between == pytest.approx(np.var(values, ddof=1) - within, rel=1e-12)
    assert found.standard_error == pytest.approx(stats.sem(values), rel=1e-13)
    assert found.standard_error_these_tasks == pytest.approx(sqrt(within / 5), rel=1e-13)
    assert found.reason is None


def test_a_suite_drawn_from_the_beta_model_shows_its_correlation_and_design_effect():
    # Beta(2, 1) gives c = 0 … 8 of 8 runs the chances (c + 1) / 45
    suite = Histogram(np.full(9, 8), np.arange(9), 10**8 * np.arange(1, 10))
    found, model = clustering(suite), BetaModel(2, 1)
    assert found.icc == pytest.approx(model.icc, rel=1e-8)
    assert found.within_run == pytest.approx(model.mean - model.pass_hat(2), rel=1e-12)
    assert found.between == pytest.approx(model.pass_hat(2) - model.mean**2, rel=1e-8)
    assert found.design_effect == pytest.approx(1 + 7 * model.icc, rel=1e-8)


def test_independent_runs_have_a_design_effect_near_1_and_no_correlation():
    suite = Histogram(np.full(5, 4), np.arange(5), np.array([1, 4, 6, 4, 1]) * 10**6)
    assert clustering(suite).design_effect == pytest.approx(1, rel=1e-6)
    assert clustering(suite).icc == pytest.approx(0, abs=1e-6)


def test_degenerate_suites_say_what_they_lack():
    empty, one = spread(histogram([], []), 1), spread(histogram([4], [3]), 2)
    assert (empty.estimate, empty.total, empty.within, empty.reason) == (None, None, None, "no tasks")
    assert (one.total, one.within, one.between) == (None, pytest.approx(0.25), None)
    assert (one.standard_error, one.reason) == (None, "one task: no variance between tasks")
    short = spread(histogram([3, 2], [3, 1]), 2)
    assert (short.within, short.between, short.reason) == (
        None,
        None,
        "2 tasks have fewer than 4 runs: no variance inside tasks",
    )
    assert short.standard_error == pytest.approx(0.5)
    lacking = spread(histogram([3, 2], [3, 1]), 3)
    assert (lacking.estimate, lacking.reason) == (None, "1 tasks have fewer than 3 runs")
    alike = spread(histogram([4] * 9, [4] * 9), 2)
    assert (alike.total, alike.within, alike.between, alike.reason) == (0.0, 0.0, 0.0, "no spread between tasks")


def test_clustering_has_no_ratio_where_nothing_differs_or_runs_are_unequal():
    same = clustering(histogram([4] * 9, [4] * 9))
    assert (same.naive_standard_error, same.design_effect, same.icc) == (0.0, None, None)
    assert same.reason == "no run differs from another"
    unequal = clustering(histogram([2, 4, 4], [1, 2, 4]))
    assert (unequal.design_effect, unequal.reason) == (None, "tasks have unequal numbers of runs: no design effect")
    assert unequal.icc is not None
    single = clustering(histogram([1, 1, 1], [1, 0, 1]))
    assert (single.icc, single.reason) == (None, "3 tasks have fewer than 2 runs: no variance inside tasks")
    assert single.design_effect == pytest.approx(3 / 2)  # T / (T - 1) for one run a task
    assert clustering(histogram([], [])).reason == "no tasks"


@pytest.mark.parametrize(
    ("between", "within", "budget", "per_task", "per_run"),
    [(0.013, 0.29, 500, 5, 1), (0.2, 0.1, 400, 0.5, 1), (0.01, 0.2, 10_000, 30, 0.5), (0.05, 0.0, 300, 1, 1)],
)
def test_the_best_number_of_runs_is_within_rounding_of_the_best_of_all(between, within, budget, per_task, per_run):
    found = allocate(between, within, budget=budget, cost_per_task=per_task, cost_per_run=per_run, runs_per_task=1)
    errors = {
        runs: sqrt((between + within / runs) / tasks)
        for runs in range(1, 200)
        if (tasks := int(budget / (per_task + runs * per_run))) >= 2
    }
    assert found.tasks == int(budget / (per_task + found.runs_per_task * per_run))
    assert found.standard_error == pytest.approx(errors[found.runs_per_task], rel=1e-12)
    # the optimum is flat: what whole numbers of tasks add to it is less than a task in a hundred
    assert found.standard_error <= min(errors.values()) * 1.01
    unrounded = optimal_repeats(between, within, per_task / per_run)
    assert abs(found.runs_per_task - max(1, unrounded)) < 1


def test_the_advice_compares_with_the_present_number_of_runs():
    budget = {"budget": 600, "cost_per_task": 5, "cost_per_run": 1}
    assert allocate(0.013, 0.29, runs_per_task=3, **budget).advice == "more repeats"
    assert allocate(0.013, 0.29, runs_per_task=30, **budget).advice == "more tasks"
    best = allocate(0.013, 0.29, runs_per_task=3, **budget)
    assert allocate(0.013, 0.29, runs_per_task=best.runs_per_task, **budget).advice == "as it is"
    assert best.standard_error < best.present_standard_error
    assert allocate(0.5, 0.01, runs_per_task=4, fewest_runs=8, **budget).runs_per_task == 8


def test_a_budget_without_an_optimum_says_why():
    flat = allocate(0.0, 0.2, budget=100, cost_per_task=1, cost_per_run=1, runs_per_task=4)
    assert (flat.runs_per_task, flat.advice, flat.present_tasks) == (None, None, 20)
    assert flat.reason == "no variance between tasks: repeats pay without limit"
    poor = allocate(0.1, 0.2, budget=9, cost_per_task=1, cost_per_run=1, runs_per_task=8, fewest_runs=4)
    assert (poor.runs_per_task, poor.present_tasks, poor.present_standard_error) == (None, 1, None)
    assert poor.reason == "the budget does not reach for two tasks of 4 runs"
    assert optimal_repeats(0.0, 0.2, 5) is None
    with pytest.raises(ValueError, match="between is at least 0"):
        optimal_repeats(-0.1, 0.2, 5)
    with pytest.raises(ValueError, match="positive and finite"):
        allocate(0.1, 0.2, budget=0, cost_per_task=1, cost_per_run=1, runs_per_task=1)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_independent_normals_have_the_critical_value_of_sidak(size, confidence):
    expected = -stats.norm.ppf((1 - confidence ** (1 / size)) / 2)
    assert critical_value(np.eye(size), confidence) == pytest.approx(expected, abs=5e-4)


def test_normals_that_are_one_and_the_same_have_the_critical_value_of_one():
    signs = np.array([1.0, -1.0, 1.0])
    assert critical_value(np.outer(signs, signs)) == pytest.approx(stats.norm.ppf(0.975), rel=1e-12)


def test_the_rectangle_of_the_critical_value_has_its_chance_by_another_integration():
    correlation = 0.3 + 0.7 * np.eye(4)
    c = critical_value(correlation, 0.9)
    law = stats.multivariate_normal(cov=correlation, seed=np.random.default_rng(1))
    assert law.cdf(np.full(4, c), lower_limit=np.full(4, -c)) == pytest.approx(0.9, abs=5e-5)


def test_the_chance_of_a_singular_correlation_agrees_with_simulation():
    passes = np.random.default_rng(5).binomial(8, np.random.default_rng(6).beta(3, 1.5, 200))
    band = band_over_k(histogram([8] * 200, passes), [1, 2, 4, 6, 8])
    root = np.linalg.svd(band.correlation)
    normals = (root.U * np.sqrt(root.S)) @ np.random.default_rng(7).standard_normal((5, 400_000))
    covered = (np.abs(normals).max(axis=0) <= band.critical).mean()
    assert covered == pytest.approx(0.95, abs=3 * sqrt(0.95 * 0.05 / 400_000))


def test_what_is_no_correlation_is_refused():
    for wrong in ([[1.0, 2.0], [2.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]]):
        with pytest.raises(ValueError, match="diagonal of 1 and no negative eigenvalue"):
            critical_value(np.array(wrong))
    for wrong in ([[1.0, 0.5]], [[1.0, 0.5], [0.4, 1.0]], [[]]):
        with pytest.raises(ValueError, match="square and symmetric"):
            critical_value(np.array(wrong))


def test_the_band_is_of_dirichlet_bounds_at_the_level_of_the_critical_value():
    band = band_over_k(SUITE, [1, 2, 3])
    single = 2 * stats.norm.cdf(band.critical) - 1
    assert band.method == "task-dirichlet-simultaneous"
    for k, estimate, interval in zip(band.k, band.estimates, band.intervals, strict=True):
        expected = pass_hat(SUITE, k)
        alone = dirichlet(expected.values, expected.multiplicities, single)
        assert estimate == expected.estimate
        assert (interval.lower, interval.upper) == pytest.approx((alone.lower, alone.upper), rel=1e-9)


@pytest.mark.parametrize(
    "tasks", [histogram([3] * 29, [3] * 20 + [1] * 9), histogram([3] * 50, [2] * 20 + [1] * 30), histogram([3], [3])]
)
def test_few_tasks_or_a_k_without_spread_get_the_band_of_bonferroni(tasks):
    band = band_over_k(tasks, [1, 2, 3], 0.9)
    assert (band.method, band.critical, band.reason) == ("task-dirichlet-bonferroni", None, None)
    for k, interval in zip(band.k, band.intervals, strict=True):
        expected = pass_hat(tasks, k)
        assert interval == dirichlet(expected.values, expected.multiplicities, 1 - 0.1 / 3)
        assert interval.lower < interval.upper


def test_the_band_is_wider_than_single_bounds_narrower_than_bonferroni_and_widens_with_confidence():
    criticals = [band_over_k(SUITE, [1, 2, 3], confidence).critical for confidence in (0.5, 0.8, 0.95, 0.99)]
    assert all(a < b for a, b in pairwise(criticals))
    assert stats.norm.ppf(0.975) < criticals[2] < stats.norm.ppf(1 - 0.025 / 3)


def test_a_band_without_estimates_says_why():
    assert band_over_k(histogram([], []), [1]).reason == "no tasks"
    short = band_over_k(histogram([3, 2], [1, 1]), [1, 2, 3])
    assert (short.k, short.intervals, short.reason) == ((1, 2, 3), (), "1 tasks have fewer than 3 runs")
    for wrong in ([], [2, 1], [0, 1], [1, 1]):
        with pytest.raises(ValueError, match="ascending list of positive"):
            band_over_k(SUITE, wrong)


@given(st.lists(st.integers(0, 6), min_size=2, max_size=30), st.integers(1, 3), st.randoms())
def test_the_order_of_tasks_does_not_matter_and_no_part_is_negative(passes, k, random):
    found = spread(histogram([6] * len(passes), passes), k)
    random.shuffle(passes)
    assert spread(histogram([6] * len(passes), passes), k) == found
    assert min(found.total, found.within, found.between) >= 0
    assert found.between <= found.total
