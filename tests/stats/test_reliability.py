"""pass^k, pass@k and their kin against exact fractions, and what is said where nothing can be estimated."""

from decimal import Context, Decimal, localcontext
from fractions import Fraction
from itertools import combinations, pairwise
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from passhat.stats.reliability import (
    Share,
    all_fail,
    at_least_m_of_k,
    attempt_rate,
    flaky,
    pass_at,
    pass_hat,
    task_values,
)
from passhat.stats.table import histogram

# 72, 18, 6 and 4 tasks with 3, 2, 1 and 0 passes in 3 runs
SUITE_100 = histogram([3] * 100, [3] * 72 + [2] * 18 + [1] * 6 + [0] * 4)


def exact_value(n, c, k, m):
    """The share of k-subsets with at least m passes, as a fraction."""
    return Fraction(sum(comb(c, i) * comb(n - c, k - i) for i in range(m, k + 1)), comb(n, k))


@st.composite
def histograms(draw, max_tasks=12, max_runs=9, min_runs=1):
    runs = draw(st.lists(st.integers(min_runs, max_runs), min_size=1, max_size=max_tasks))
    return histogram(runs, [draw(st.integers(0, n)) for n in runs])


def test_the_suite_of_a_hundred_tasks_has_86_percent_of_attempts_72_percent_pass_3_and_24_percent_flaky():
    assert attempt_rate(SUITE_100) == Share(258, 300)
    assert pass_hat(SUITE_100, 3).estimate == 0.72
    assert flaky(SUITE_100) == Share(24, 100)
    assert all_fail(SUITE_100) == Share(4, 100)
    assert pass_hat(SUITE_100, 1).estimate == pytest.approx(0.86, rel=1e-15)
    assert pass_at(SUITE_100, 3).estimate == pytest.approx(0.96, rel=1e-15)


def test_two_failed_runs_estimate_neither_pass_at_5_nor_pass_hat_5_but_pass_at_2_is_0():
    failed = histogram([2], [0])
    for estimate in (pass_at(failed, 5), pass_hat(failed, 5)):
        assert (estimate.estimate, estimate.over_estimable, estimate.tasks, estimate.not_estimable) == (
            None,
            None,
            0,
            1,
        )
    assert pass_at(failed, 2).estimate == 0.0


def test_single_runs_of_six_tasks_estimate_pass_at_1_and_not_pass_at_3():
    six = histogram([1] * 6, [1, 1, 0, 0, 0, 0])
    assert pass_at(six, 1).estimate == pytest.approx(1 / 3, rel=1e-15)
    estimate = pass_at(six, 3)
    assert (estimate.estimate, estimate.not_estimable) == (None, 6)


def test_three_passes_in_four_runs_have_pass_at_2_of_1_and_pass_hat_2_of_one_half():
    four = histogram([4], [3])
    assert pass_at(four, 2).estimate == 1.0
    assert pass_hat(four, 2).estimate == 0.5


def test_one_short_task_leaves_the_suite_without_an_estimate_but_not_without_the_mean_of_the_others():
    estimate = pass_hat(histogram([8, 8, 4, 2], [8, 6, 2, 2]), 4)
    assert (estimate.estimate, estimate.tasks, estimate.not_estimable) == (None, 3, 1)
    assert estimate.over_estimable == pytest.approx(float((1 + Fraction(15, 70) + 0) / 3), rel=1e-15)


def test_no_tasks_have_no_estimate():
    estimate = pass_hat(histogram([], []), 1)
    assert (estimate.estimate, estimate.over_estimable, estimate.tasks, estimate.not_estimable) == (None, None, 0, 0)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 20])
def test_task_values_are_the_exact_fractions(n):
    for k in range(1, n + 1):
        for m in range(1, k + 1):
            exact = [float(exact_value(n, c, k, m)) for c in range(n + 1)]
            np.testing.assert_allclose(task_values(n, k, m), exact, rtol=3e-15, atol=0)


def test_at_least_m_of_k_counts_subsets():
    runs = [1, 1, 1, 1, 0, 0, 0]
    for k in range(1, 8):
        subsets = list(combinations(runs, k))
        for m in range(1, k + 1):
            share = sum(sum(subset) >= m for subset in subsets) / len(subsets)
            assert at_least_m_of_k(histogram([7], [4]), k, m).estimate == pytest.approx(share, rel=1e-14)


@pytest.mark.parametrize(("n", "k", "m"), [(64, 32, 1), (64, 32, 32), (1000, 500, 1), (1000, 3, 3), (1000, 500, 240)])
def test_task_values_of_many_runs_keep_their_relative_precision(n, k, m):
    values = task_values(n, k, m)
    for c in range(0, n + 1, 1 + n // 60):
        exact = exact_value(n, c, k, m)
        if exact == 0:
            assert values[c] == 0
        elif exact > Fraction(1, 10**300):
            assert abs(Fraction(float(values[c])) / exact - 1) < 1e-13


@pytest.mark.parametrize("k", [1, 2, 7, 1000, 99_990])
def test_values_of_a_hundred_thousand_runs_are_within_1e12_of_themselves(k):
    n = 100_000
    hat, at = task_values(n, k, k), task_values(n, k, 1)
    # C(c, k) / C(n, k) as the product of its n - c or k factors, whichever are fewer
    with localcontext(Context(prec=40, Emin=-(10**9))):
        for c in (1, 5, n // 2, n - 700, n - 2, n):
            wanted = Decimal(1)
            for i in range(min(k, n - c)):
                wanted *= Decimal(c - i if k <= n - c else n - k - i) / (n - i)
            if wanted > Decimal("1e-300"):
                assert abs(Decimal(float(hat[c])) / wanted - 1) < Decimal("1e-12")
            if wanted != 1:  # the mirror image of c has pass@k = 1 - this
                assert abs(Decimal(float(at[n - c])) / (1 - wanted) - 1) < Decimal("1e-12")


@given(st.integers(1, 12), st.data())
def test_the_estimator_is_unbiased_for_every_pass_probability(n, data):
    k = data.draw(st.integers(1, n))
    m = data.draw(st.integers(1, k))
    p = data.draw(st.fractions(0, 1, max_denominator=50))
    values = [exact_value(n, c, k, m) for c in range(n + 1)]
    np.testing.assert_allclose(task_values(n, k, m), [float(value) for value in values], rtol=1e-14)
    expected = sum(values[c] * comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1))
    assert expected == sum(comb(k, i) * p**i * (1 - p) ** (k - i) for i in range(m, k + 1))


def test_at_85_percent_the_estimator_of_pass_4_averages_52_percent_where_the_plug_in_averages_59():
    chances = stats.binom.pmf(np.arange(9), 8, 0.85)
    assert chances @ task_values(8, 4, 4) == pytest.approx(0.85**4, rel=1e-14)
    assert chances @ (np.arange(9) / 8) ** 4 == pytest.approx(0.5871744384765625, rel=1e-12)


def test_beta_distributed_tasks_have_the_closed_form_of_pass_k():
    n, a, b = 12, 2.1, 0.9
    chances = stats.betabinom.pmf(np.arange(n + 1), n, a, b)
    for k in range(1, n + 1):
        closed = np.prod([(a + i) / (a + b + i) for i in range(k)])
        assert chances @ task_values(n, k, k) == pytest.approx(closed, rel=1e-12)


@given(histograms(min_runs=6))
def test_pass_hat_falls_and_pass_at_rises_with_k_and_both_start_at_the_mean_rate(tasks):
    hat = [pass_hat(tasks, k).estimate for k in range(1, 7)]
    at = [pass_at(tasks, k).estimate for k in range(1, 7)]
    assert hat[0] == at[0] == pytest.approx(np.average(tasks.c / tasks.n, weights=tasks.tasks), rel=1e-14)
    # a rounding of slack: values that are equal in exact arithmetic are computed on different paths
    assert all(later <= earlier + 1e-15 for earlier, later in pairwise(hat))
    assert all(later >= earlier - 1e-15 for earlier, later in pairwise(at))


@given(histograms())
def test_the_estimate_is_the_mean_of_its_values(tasks):
    for k in (1, 3, 9):
        estimate = pass_hat(tasks, k)
        assert estimate.tasks + estimate.not_estimable == tasks.total
        assert estimate.multiplicities.sum() == estimate.tasks
        if estimate.tasks:
            mean = np.average(estimate.values, weights=estimate.multiplicities)
            assert estimate.over_estimable == pytest.approx(mean, rel=1e-14)
            assert 0 <= estimate.over_estimable <= 1


@pytest.mark.parametrize(("k", "m"), [(0, 0), (3, 0), (2, 3), (-1, -1)])
def test_a_question_that_makes_no_sense_is_refused(k, m):
    with pytest.raises(ValueError, match="expected 1 ≤ m ≤ k"):
        at_least_m_of_k(SUITE_100, k, m)
    with pytest.raises(ValueError, match="expected 1 ≤ m ≤ k ≤ n"):
        task_values(3, k, m)


def test_the_attempt_rate_weighs_runs_where_pass_1_weighs_tasks():
    uneven = histogram([4, 1], [4, 0])
    assert attempt_rate(uneven) == Share(4, 5)
    assert pass_hat(uneven, 1).estimate == 0.5


@pytest.mark.parametrize(
    ("n", "c", "expected"),
    [
        ([3, 3, 3], [0, 1, 3], Share(1, 3)),
        ([1, 1], [0, 1], Share(0, 0, "no task has two runs")),
        ([0], [0], Share(0, 0, "no task has two runs")),
        ([], [], Share(0, 0, "no tasks")),
        ([3, 8, 8], [1, 8, 4], Share(2, 3, "tasks have 3 to 8 runs: not comparable with another share")),
        ([1, 4, 4], [1, 2, 4], Share(1, 2, "tasks have 1 to 4 runs: not comparable with another share")),
    ],
)
def test_flaky_tasks_are_a_share_of_those_with_two_runs_and_say_when_they_cannot_be_compared(n, c, expected):
    assert flaky(histogram(n, c)) == expected


def test_a_share_of_nothing_is_undefined():
    nothing = histogram([], [])
    assert attempt_rate(nothing) == Share(0, 0, "no runs")
    assert attempt_rate(nothing).estimate is None
    assert flaky(nothing).estimate is None
    assert all_fail(nothing) == Share(0, 0, "no runs")
    assert all_fail(histogram([0, 2], [0, 0])) == Share(1, 1)
