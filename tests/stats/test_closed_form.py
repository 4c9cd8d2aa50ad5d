"""The closed forms against tasks written out one by one, roots of the score equation, and their own known weakness."""

from itertools import pairwise
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from passhat.stats.closed_form import cluster_wilson, pseudo_task_t, these_tasks_normal
from passhat.stats.intervals import dirichlet
from passhat.stats.table import histogram
from passhat.stats.variance import spread

SAMPLES = [([0.0, 0.25, 1.0], [2, 3, 9]), ([0.5], [7]), ([1.0], [40]), ([0.0], [3]), ([0.1, 0.9], [1, 1])]
values_and_tasks = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 9)), min_size=2, max_size=6).map(
    lambda pairs: tuple(zip(*pairs, strict=True))
)


def ends(result):
    return result.interval.lower, result.interval.upper


@pytest.mark.parametrize(("values", "tasks"), SAMPLES)
def test_cluster_wilson_solves_the_score_equation_of_the_effective_tasks(values, tasks):
    written_out = np.repeat(values, tasks)
    total, mean = len(written_out), np.mean(written_out)
    center = (written_out.sum() + 0.5) / (total + 1)
    variance = ((written_out**2).sum() + 0.5 - (total + 1) * center**2) / total
    trials = max(center * (1 - center) / (variance / total), total - 1)
    q = stats.t.ppf(0.95, total - 1)
    # (p - x)^2 n = q^2 x (1 - x)
    roots = np.roots([trials + q**2, -(2 * mean * trials + q**2), mean**2 * trials])
    result = cluster_wilson(values, tasks, 0.9)
    assert result.effective_tasks == pytest.approx(trials, rel=1e-12)
    assert ends(result) == pytest.approx(tuple(sorted(roots)), abs=1e-9)
    assert result.estimate == pytest.approx(mean)
    assert (result.interval.method, result.interval.confidence) == ("cluster-wilson", 0.9)


@pytest.mark.parametrize(("values", "tasks"), SAMPLES)
def test_pseudo_task_t_is_the_t_interval_of_the_tasks_with_one_more_at_either_end(values, tasks):
    written_out = np.append(np.repeat(values, tasks), [0.0, 1.0])
    half = stats.t.ppf(0.975, len(written_out) - 3) * stats.sem(written_out)
    expected = max(0, written_out.mean() - half), min(1, written_out.mean() + half)
    result = pseudo_task_t(values, tasks)
    assert ends(result) == pytest.approx(expected, rel=1e-12)
    assert result.center == pytest.approx(written_out.mean(), rel=1e-13)


def test_the_interval_of_these_tasks_is_normal_with_the_variance_inside_them():
    tasks = histogram([8] * 6, [8, 7, 5, 4, 8, 2])
    variance = np.mean([c * (8 - c) / (8 * 8 * 7) for c in (8, 7, 5, 4, 8, 2)]) / 6
    result = these_tasks_normal(spread(tasks, 1))
    assert ends(result) == pytest.approx(stats.norm.interval(0.95, 34 / 48, sqrt(variance)), rel=1e-12)
    assert (result.estimand, result.interval.method) == ("these tasks", "these-tasks-normal")
    assert result.interval.estimand == "these tasks"
    others = cluster_wilson([0.5, 1.0], [1, 1])
    assert (others.estimand, others.interval.estimand) == ("tasks like these", "tasks like these")


def test_these_tasks_have_no_interval_where_their_runs_do_not_say():
    all_or_nothing = these_tasks_normal(spread(histogram([4] * 5, [4, 4, 0, 4, 4]), 1))
    assert (all_or_nothing.estimate, all_or_nothing.interval) == (0.8, None)
    assert all_or_nothing.reason == "the runs of no task differ"
    single = these_tasks_normal(spread(histogram([1] * 5, [1, 1, 0, 1, 1]), 1))
    assert (single.interval, single.reason) == (None, "5 tasks have fewer than 2 runs: no variance inside tasks")
    assert these_tasks_normal(spread(histogram([], []), 1)).reason == "no tasks"
    one = these_tasks_normal(spread(histogram([4], [3]), 1))
    assert (one.interval.upper, one.reason) == (1.0, None)


@pytest.mark.parametrize("method", [cluster_wilson, pseudo_task_t])
def test_no_task_and_one_task_have_no_interval(method):
    none, one = method([], []), method([0.75], [1])
    assert (none.estimate, none.interval, none.reason) == (None, None, "no tasks")
    assert (one.estimate, one.interval, one.reason) == (0.75, None, "one task: no degree of freedom")


@pytest.mark.parametrize("method", [cluster_wilson, pseudo_task_t])
def test_what_is_not_a_sample_is_refused(method):
    with pytest.raises(ValueError, match=r"lies in \[0, 1\]"):
        method([0.5, 1.5], [1, 1])
    with pytest.raises(ValueError, match="whole number of tasks"):
        method([0.5, 1.0], [1, 0.5])
    with pytest.raises(ValueError, match="one and the same length"):
        method([0.5, 1.0], [1])
    with pytest.raises(ValueError, match="pseudo_tasks is positive"):
        method([0.5, 1.0], [1, 1], pseudo_tasks=0)
    with pytest.raises(ValueError, match="confidence is between 0 and 1"):
        method([0.5, 1.0], [1, 1], 95)


@given(values_and_tasks)
def test_the_intervals_have_width_lie_in_the_unit_range_and_widen_with_confidence(sample):
    for method in (cluster_wilson, pseudo_task_t):
        results = [method(*sample, confidence) for confidence in (0.8, 0.9, 0.99)]
        for result in results:
            assert 0 <= result.interval.lower < result.interval.upper <= 1
            assert result.interval.lower - 1e-12 <= result.estimate <= result.interval.upper + 1e-12
        for inner, outer in pairwise(results):
            assert outer.interval.lower <= inner.interval.lower
            assert inner.interval.upper <= outer.interval.upper


@pytest.mark.parametrize(("tasks", "coverage"), [(10, 0.873), (20, 0.855), (50, 0.845)])
def test_cluster_wilson_misses_rare_broken_tasks_where_the_dirichlet_bound_does_not(tasks, coverage):
    # tasks that pass or fail as a whole, and a truth right above the upper end after one failure
    truth = cluster_wilson([0.0, 1.0], [1, tasks - 1]).interval.upper + 1e-9
    covered = {cluster_wilson: 0.0, dirichlet: 0.0}
    for passed in range(tasks + 1):
        chance = stats.binom.pmf(passed, tasks, truth)
        wilson, bound = (
            cluster_wilson([0, 1], [tasks - passed, passed]).interval,
            dirichlet([0, 1], [tasks - passed, passed]),
        )
        covered[cluster_wilson] += chance * (wilson.lower <= truth <= wilson.upper)
        covered[dirichlet] += chance * (bound.lower <= truth <= bound.upper)
    assert covered[cluster_wilson] == pytest.approx(coverage, abs=0.0006)
    assert covered[dirichlet] >= 0.95
