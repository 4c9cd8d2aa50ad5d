"""Pairs of releases: counts by hand, differences in fractions, intervals against scipy, completions by enumeration."""

from collections import Counter
from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from passhat.stats.discordant import mcnemar_tasks
from passhat.stats.intervals import Interval, clopper_pearson, dirichlet
from passhat.stats.paired import (
    Cells,
    CompletedDifference,
    bootstrap_difference,
    completed_difference,
    completions,
    count_cells,
    moved_tasks,
    pair_counts,
    pair_tables,
    paired_dirichlet,
    paired_t,
    pass_hat_differences,
)
from passhat.stats.table import OutcomeTable

RUN_COUNTS = st.integers(0, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
TASKS = st.lists(st.tuples(RUN_COUNTS, RUN_COUNTS), max_size=10)  # (n, c) under A and under B
STATUSES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=2)


def pairs_of(tasks):
    return pair_counts(*np.array(tasks, dtype=int).reshape(-1, 4).T)


def single_runs(both, a_only, b_only, neither):
    """One run a task."""
    a, b = np.repeat([[1, 1, 0, 0], [1, 0, 1, 0]], [both, a_only, b_only, neither], axis=1)
    return pair_counts(np.ones_like(a), a, np.ones_like(b), b)


def table_of(rows):
    """A table of (passed, failed, unscored) rows."""
    passed, failed, unscored = np.array(rows).T
    return OutcomeTable(passed + failed + unscored, passed, failed, unscored)


def ends(interval):
    return interval.lower, interval.upper


def entries(pairs):
    columns = (pairs.n_a, pairs.c_a, pairs.n_b, pairs.c_b, pairs.tasks)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(TASKS)
def test_pairs_have_each_combination_that_occurs_once_and_in_order(tasks):
    counted = Counter((*a, *b) for a, b in tasks)
    pairs = pairs_of(tasks)
    assert entries(pairs) == [(*combination, counted[combination]) for combination in sorted(counted)]
    assert pairs.total == len(tasks)
    unequal = sum(a[0] != b[0] for a, b in tasks)
    reason = f"{unequal} of {len(tasks)} tasks have unequal numbers of runs under A and B"
    assert pairs.refusal == (reason if unequal else None)


def test_runs_in_the_hundred_thousands_are_paired_as_well():
    pairs = pair_counts([10**5, 3, 10**5], [99_999, 2, 99_999], [10**5, 10**5, 10**5], [7, 0, 7])
    assert entries(pairs) == [(3, 2, 10**5, 0, 1), (10**5, 99_999, 10**5, 7, 2)]


def test_tables_that_cannot_be_paired_are_refused():
    one, two = table_of([(1, 0, 0)]), table_of([(1, 0, 0), (0, 1, 2)])
    with pytest.raises(ValueError, match="A has 1 tasks and B 2"):
        pair_tables(one, two)
    with pytest.raises(ValueError, match="0 runs of A and 2 of B are unscored"):
        pair_tables(two.worst(), two)
    with pytest.raises(ValueError, match="A has 2 tasks and B 1"):
        moved_tasks(two, one)
    with pytest.raises(ValueError, match="task row 0: planned 3 is not passed 4"):
        pair_counts([3], [4], [3], [3])
    with pytest.raises(TypeError, match="planned holds float64"):
        pair_counts([3.0], [1], [3], [3])


def test_cells_are_counted_and_those_without_two_verdicts_are_kept_apart():
    a = np.repeat([True, True, False, False], [229, 12, 39, 20]).reshape(100, 3)
    b = np.repeat([True, False, True, False], [229, 12, 39, 20]).reshape(100, 3)
    assert count_cells(a, b) == Cells(both=229, a_only=12, b_only=39, neither=20, unscored=0)
    scored = np.ones_like(a)
    scored[0] = False
    assert count_cells(a, b, scored) == Cells(both=226, a_only=12, b_only=39, neither=20, unscored=3)
    assert count_cells(b, a) == Cells(both=229, a_only=39, b_only=12, neither=20, unscored=0)
    with pytest.raises(ValueError, match="do not match"):
        count_cells(a, b[:1])
    with pytest.raises(TypeError, match="expected bool"):
        count_cells(a.astype(int), b)


def test_a_net_change_of_nothing_still_names_what_fell_and_what_rose():
    # C14: T1 goes from pass to fail, T2 the other way, T3 has 5 of 10 under A and 6 of 8 under B
    a, b = table_of([(1, 0, 0), (0, 1, 0), (5, 5, 0)]), table_of([(0, 1, 0), (1, 0, 0), (6, 2, 0)])
    moves = moved_tasks(a, b)
    assert (moves.regressions.tolist(), moves.fixes.tolist(), moves.not_comparable.tolist()) == ([0], [1, 2], [])
    first_two = pair_tables(a.select(np.array([0, 1])), b.select(np.array([0, 1])))
    assert pass_hat_differences(first_two).estimate == 0.0
    assert (mcnemar_tasks(first_two).a_only, mcnemar_tasks(first_two).b_only, mcnemar_tasks(first_two).p_value) == (
        1,
        1,
        1,
    )
    third = pair_tables(a.select(np.array([2])), b.select(np.array([2])))
    assert pass_hat_differences(third).estimate == 0.25
    assert pass_hat_differences(third, 8).estimate == 0.0
    assert pass_hat_differences(third, 9).estimate is None


def test_moves_are_of_scored_runs_and_tasks_without_one_cannot_be_compared():
    a, b = table_of([(1, 1, 2), (0, 0, 3), (3, 0, 0)]), table_of([(2, 1, 0), (1, 0, 0), (0, 0, 1)])
    moves = moved_tasks(a, b)
    assert (moves.regressions.tolist(), moves.fixes.tolist(), moves.not_comparable.tolist()) == ([], [0], [1, 2])


@given(TASKS, st.integers(1, 4))
def test_the_estimate_is_the_mean_over_tasks_of_exact_differences(tasks, k):
    values = [
        Fraction(comb(c_b, k), comb(n_b, k)) - Fraction(comb(c_a, k), comb(n_a, k))
        for (n_a, c_a), (n_b, c_b) in tasks
        if min(n_a, n_b) >= k
    ]
    differences = pass_hat_differences(pairs_of(tasks), k)
    assert differences.not_estimable == len(tasks) - len(values)
    assert differences.over_estimable == (float(sum(values) / len(values)) if values else None)
    assert differences.estimate == (differences.over_estimable if len(values) == len(tasks) else None)
    found = {
        Fraction(x, differences.denominator): m for x, m in zip(differences.numerators, differences.tasks, strict=True)
    }
    assert found == Counter(values)
    assert differences.values.tolist() == [float(value) for value in sorted(found)]
    assert differences.rounding == 0


@given(TASKS, st.integers(1, 4))
def test_swapping_the_releases_flips_every_sign(tasks, k):
    one = pass_hat_differences(pairs_of(tasks), k)
    other = pass_hat_differences(pairs_of([(b, a) for a, b in tasks]), k)
    assert other.numerators == tuple(-numerator for numerator in reversed(one.numerators))
    assert (other.tasks, other.denominator, other.not_estimable) == (
        one.tasks[::-1],
        one.denominator,
        one.not_estimable,
    )
    for interval in (paired_dirichlet, paired_t):
        if interval(one) is None:
            assert interval(other) is None
            continue
        lower, upper = ends(interval(one))
        assert ends(interval(other)) == pytest.approx((-upper, -lower), rel=1e-9, abs=1e-12)


@given(TASKS, st.randoms())
def test_the_order_of_tasks_does_not_matter(tasks, random):
    shuffled = tasks.copy()
    random.shuffle(shuffled)
    assert pass_hat_differences(pairs_of(shuffled)) == pass_hat_differences(pairs_of(tasks))


@given(TASKS.filter(len), st.sampled_from([0.5, 0.95, 0.999]))
def test_intervals_contain_the_estimate_lie_within_1_and_have_width(tasks, confidence):
    differences = pass_hat_differences(pairs_of(tasks))
    for interval in (paired_dirichlet(differences, confidence), paired_t(differences, confidence)):
        if interval is None:
            assert sum(differences.tasks) < 2
            continue
        assert -1 <= interval.lower <= differences.over_estimable <= interval.upper <= 1
        assert interval.lower < interval.upper


def test_no_tasks_have_no_estimate_and_no_interval():
    nothing = pass_hat_differences(pair_counts([], [], [], []))
    assert (nothing.estimate, nothing.over_estimable, nothing.values.tolist()) == (None, None, [])
    assert paired_dirichlet(nothing) is paired_t(nothing) is None
    assert bootstrap_difference(nothing).reason == "no tasks"


def test_one_task_has_a_dirichlet_bound_and_no_t():
    one = pass_hat_differences(pair_counts([8], [8], [8], [2]))
    # -.75 and an extra task at an end share the weight uniformly
    assert ends(paired_dirichlet(one)) == pytest.approx((-1 + 0.25 * 0.025, 1 - 1.75 * 0.025), rel=1e-12)
    assert paired_t(one) is None
    assert bootstrap_difference(one).reason == "no spread between tasks"


def test_tasks_that_only_get_worse_by_whole_steps_have_the_bound_of_clopper_and_pearson():
    lower, upper = ends(paired_dirichlet(pass_hat_differences(single_runs(0, 7, 33, 0))))
    expected = clopper_pearson(33, 40)
    assert (lower, upper) == pytest.approx((2 * expected.lower - 1, 2 * expected.upper - 1), rel=1e-12)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=2, max_size=30).filter(
        lambda c: len({b - a for a, b in c}) > 1
    )
)
def test_without_pseudo_tasks_the_t_interval_is_scipys(passes):
    a, b = np.array(passes).T
    n = np.full(len(a), 8)
    interval = paired_t(pass_hat_differences(pair_counts(n, a, n, b)), 0.9, pseudo_tasks=0)
    expected = stats.ttest_rel(b / 8, a / 8).confidence_interval(0.9)
    assert ends(interval) == pytest.approx((max(expected.low, -1), min(expected.high, 1)), rel=1e-10, abs=1e-12)
    assert (interval.method, interval.confidence) == ("paired-t-descriptive", 0.9)


def test_the_t_interval_is_undefined_where_nothing_spreads_and_refuses_negative_pseudo_tasks():
    alike = pass_hat_differences(single_runs(20, 0, 0, 0))
    assert paired_t(alike, pseudo_tasks=0) is None
    assert paired_t(alike).method == "augmented-paired-t-descriptive"
    with pytest.raises(ValueError, match="pseudo tasks at either end is at least 0, found -1"):
        paired_t(alike, pseudo_tasks=-1)
    with pytest.raises(ValueError, match="k is at least 1"):
        pass_hat_differences(single_runs(1, 0, 0, 0), 0)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=5), st.integers(1, 4))
def test_the_bootstrap_of_the_difference_has_the_percentiles_of_all_resamples(passes, k):
    a, b = np.array(passes).T
    n = np.full(len(a), 4)
    result = bootstrap_difference(pass_hat_differences(pair_counts(n, a, n, b), k), 0.9)
    values = [Fraction(comb(y, k) - comb(x, k), comb(4, k)) for x, y in passes]
    assert result.estimate == float(sum(values) / len(values))
    if len(set(values)) == 1:
        assert result.reason == "no spread between tasks"
        return
    means = sorted(sum(draw) for draw in product(values, repeat=len(values)))
    for level, end in ((Fraction(5, 100), result.interval.lower), (Fraction(95, 100), result.interval.upper)):
        position = -int(-level * len(means) // 1) - 1
        assert end == float(means[position] / len(values))


def test_the_bootstrap_of_a_suite_with_too_few_runs_says_so():
    result = bootstrap_difference(pass_hat_differences(pair_counts([3, 2], [1, 2], [3, 3], [2, 2]), 3))
    assert (result.estimate, result.interval, result.reason) == (None, None, "1 tasks have fewer than 3 runs")


@settings(max_examples=40, deadline=None)
@given(STATUSES, STATUSES, st.integers(1, 2))
def test_the_two_completions_are_the_extremes_over_all(rows_a, rows_b, k):
    tasks = min(len(rows_a), len(rows_b))
    a, b = table_of(rows_a[:tasks]), table_of(rows_b[:tasks])
    bounds = completed_difference(completions(a, b), k)
    estimates, lowers, uppers = [], [], []
    for extra_a in product(*(range(count + 1) for count in a.unscored)):
        for extra_b in product(*(range(count + 1) for count in b.unscored)):
            differences = pass_hat_differences(
                pair_counts(a.planned, a.passed + extra_a, b.planned, b.passed + extra_b), k
            )
            if differences.estimate is not None:
                estimates.append(differences.estimate)
                lower, upper = ends(paired_dirichlet(differences))
                lowers.append(lower)
                uppers.append(upper)
    if not estimates:
        assert bounds == CompletedDifference(None, None, None)
        return
    assert (bounds.worst, bounds.best) == (min(estimates), max(estimates))
    assert ends(bounds.interval) == pytest.approx((min(lowers), max(uppers)), rel=1e-9, abs=1e-9)


def test_failing_both_releases_missing_runs_is_not_the_adverse_completion():
    a, b = table_of([(0, 0, 1), (1, 0, 0)]), table_of([(1, 0, 0), (0, 0, 1)])
    bounds = completed_difference(completions(a, b))
    assert (bounds.worst, bounds.best) == (-0.5, 0.5)
    assert pass_hat_differences(pair_tables(a.worst(), b.worst())).estimate == 0.0


def test_complete_tables_have_one_completion():
    a, b = table_of([(3, 1, 0), (2, 2, 0)]), table_of([(4, 0, 0), (1, 3, 0)])
    both = completions(a, b)
    assert entries(both.adverse) == entries(both.favourable) == entries(pair_tables(a, b))
    bound = dirichlet([0.25, -0.25], [1, 1], 0.9, lower_limit=-1)
    assert completed_difference(both, 1, 0.9) == CompletedDifference(
        0.0, 0.0, Interval(*ends(bound), "task-dirichlet", 0.9)
    )


def test_thousands_of_runs_have_differences_within_their_rounding():
    n, k = 6000, 3000
    pairs = pair_counts([n, n, n], [5999, 5990, 6000], [n, n, n], [6000, 5995, 6000])
    differences = pass_hat_differences(pairs, k)
    exact = sorted(Fraction(comb(b, k) - comb(a, k), comb(n, k)) for a, b in [(5999, 6000), (5990, 5995), (6000, 6000)])
    errors = [
        abs(Fraction(numerator, differences.denominator) - value)
        for numerator, value in zip(differences.numerators, exact, strict=True)
    ]
    assert max(errors) <= Fraction(differences.rounding, differences.denominator)
    assert paired_dirichlet(differences).lower < differences.estimate < paired_dirichlet(differences).upper
    # k = 1 has a short denominator however many runs there are
    assert pass_hat_differences(pair_counts([10**5], [3], [10**5], [5])).numerators == (2,)


def test_a_million_tasks_are_paired_and_bounded():
    rng = np.random.default_rng(7)
    n = np.full(10**6, 8)
    a, b = rng.integers(0, 9, 10**6), rng.integers(0, 9, 10**6)
    pairs = pair_counts(n, a, n, b)
    assert len(pairs.tasks) == 81
    differences = pass_hat_differences(pairs)
    assert differences.estimate == pytest.approx(np.mean(b - a) / 8, rel=1e-12)
    width = paired_dirichlet(differences).upper - paired_dirichlet(differences).lower
    # the normal law's, and the extra task at either end
    assert width == pytest.approx(2 * 1.959964 * np.std((b - a) / 8) / 10**3 + 2 / 10**6, rel=1e-5)
