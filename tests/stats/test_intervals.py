"""Wilson and Clopper-Pearson against scipy and statsmodels; the task Dirichlet bound against two other routes."""

from fractions import Fraction
from itertools import pairwise
from math import pi, sqrt

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from passhat.stats.intervals import Interval, clopper_pearson, dirichlet, wilson

COUNTS = [(0, 1), (1, 1), (0, 10), (5, 5), (16, 20), (17, 20), (1, 300), (299, 300), (800, 1000), (123456, 10**6)]


def ends(interval):
    return interval.lower, interval.upper


def spline_cdf(values, x):
    """P(sum w_j values_j <= x) for w uniform on the simplex, in fractions, by the recursion of B-splines."""
    knots, x = sorted(map(Fraction, values)), Fraction(x)
    below = [Fraction(knot <= x) for knot in knots]
    for length in range(1, len(knots)):
        for i in range(len(knots) - length):
            left, right = knots[i], knots[i + length]
            if left <= x < right:
                below[i] = ((x - left) * below[i] + (right - x) * below[i + 1]) / (right - left)
            else:
                below[i] = Fraction(right <= x)
    return below[0]


def series_cdf(values, multiplicities, x):
    """The same with multiplicities as parameters of the Dirichlet law, by the series of Gil-Pelaez."""
    gaps = np.asarray(values) - x
    m = np.asarray(multiplicities)
    span = abs(gaps @ m) + max(10 * sqrt(gaps**2 @ m), 36 * np.abs(gaps).max())
    i = np.arange(20_000) + 0.5
    angles = np.outer(gaps, i * pi / span)
    size = np.exp(-0.5 * (m @ np.log1p(angles**2)))
    assert size[-1] < 1e-13
    return 0.5 - np.sum(size * np.sin(m @ np.arctan(angles)) / i) / pi


@st.composite
def samples(draw, max_categories=5, max_multiplicity=6):
    """Values in [0, 1] and how many tasks have each, often at the limits and often close together."""
    value = st.one_of(st.floats(0, 1), st.integers(0, 8).map(lambda c: c / 8), st.floats(0, 1e-9))
    values = draw(st.lists(value, min_size=1, max_size=max_categories))
    return values, [draw(st.integers(1, max_multiplicity)) for _ in values]


@pytest.mark.parametrize(
    ("successes", "trials", "lower", "upper"),
    [
        (16, 20, 58.4, 91.9),
        (40, 50, 67.0, 88.8),
        (80, 100, 71.1, 86.7),
        (240, 300, 75.1, 84.1),
        (800, 1000, 77.4, 82.4),
        (17, 20, 64.0, 94.8),
        (18, 20, 69.9, 97.2),
    ],
)
def test_wilson_gives_the_figures_of_the_worked_examples(successes, trials, lower, upper):
    interval = wilson(successes, trials)
    assert (round(100 * interval.lower, 1), round(100 * interval.upper, 1)) == (lower, upper)
    assert (interval.method, interval.confidence) == ("wilson", 0.95)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize(("successes", "trials"), COUNTS)
def test_wilson_agrees_with_statsmodels(successes, trials, confidence):
    expected = proportion_confint(successes, trials, alpha=1 - confidence, method="wilson")
    assert ends(wilson(successes, trials, confidence)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize(("successes", "trials"), COUNTS)
def test_clopper_pearson_agrees_with_scipy(successes, trials, confidence):
    expected = stats.binomtest(successes, trials).proportion_ci(confidence, method="exact")
    assert ends(clopper_pearson(successes, trials, confidence)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_outer_ends_are_exactly_0_and_1_and_the_inner_ones_the_closed_forms():
    assert ends(clopper_pearson(0, 10)) == (0.0, pytest.approx(1 - 0.025 ** (1 / 10), rel=1e-13))
    assert ends(clopper_pearson(5, 5)) == (pytest.approx(0.025 ** (1 / 5), rel=1e-13), 1.0)
    upper = clopper_pearson(0, 1000, 1 - 1e-7).upper
    assert upper == pytest.approx(1 - 5e-8 ** (1 / 1000), rel=1e-9)  # 1 - 1e-7 is not exact in floating point
    assert upper == pytest.approx(0.0166707, abs=5e-8)
    assert ends(wilson(38, 38)) == (pytest.approx(0.908190, abs=5e-7), 1.0)
    assert ends(wilson(0, 77)) == (0.0, pytest.approx(0.0475184, abs=5e-8))


@pytest.mark.parametrize("successes", [3, 997])
def test_clopper_pearson_leaves_a_tail_of_the_level_beyond_each_end(successes):
    interval = clopper_pearson(successes, 1000, 0.99)
    assert stats.binom.sf(successes - 1, 1000, interval.lower) == pytest.approx(0.005, rel=1e-9)
    assert stats.binom.cdf(successes, 1000, interval.upper) == pytest.approx(0.005, rel=1e-9)


def test_nothing_observed_has_no_interval():
    assert wilson(0, 0) is None
    assert clopper_pearson(0, 0) is None
    assert dirichlet([], []) is None
    assert dirichlet([0.5], [0]) is None


@pytest.mark.parametrize("interval", [wilson, clopper_pearson])
@pytest.mark.parametrize(("successes", "trials"), [(-1, 3), (4, 3)])
def test_impossible_counts_are_refused(interval, successes, trials):
    with pytest.raises(ValueError, match=f"{successes} successes in {trials} trials"):
        interval(successes, trials)


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 95, float("nan")])
def test_a_confidence_outside_0_to_1_is_refused(confidence):
    for interval in (lambda: wilson(1, 2, confidence), lambda: clopper_pearson(1, 2, confidence)):
        with pytest.raises(ValueError, match="confidence is between 0 and 1"):
            interval()
    with pytest.raises(ValueError, match="confidence is between 0 and 1"):
        dirichlet([0.5], [3], confidence)


@pytest.mark.parametrize(
    ("values", "multiplicities", "message"),
    [
        ([1.5], [1], r"every value lies in \[0.0, 1.0\], found 1.5"),
        ([0.5, float("nan")], [1, 1], r"every value lies in \[0.0, 1.0\], found nan"),
        ([0.5], [1.5], "whole number of tasks, found 1.5"),
        ([0.5], [-1], "whole number of tasks, found -1"),
        ([0.5], [float("inf")], "whole number of tasks, found inf"),
        ([0.5, 0.6], [1], "one and the same length"),
    ],
)
def test_the_dirichlet_bound_refuses_what_is_not_a_sample(values, multiplicities, message):
    with pytest.raises(ValueError, match=message):
        dirichlet(values, multiplicities)


@given(st.integers(0, 60), st.integers(0, 60), st.sampled_from([0.5, 0.9, 0.95, 0.9999]))
def test_the_dirichlet_bound_of_passes_and_failures_is_clopper_pearson(passes, failures, confidence):
    assume(passes + failures)
    expected = clopper_pearson(passes, passes + failures, confidence)
    assert ends(dirichlet([1, 0], [passes, failures], confidence)) == pytest.approx(ends(expected), rel=1e-12)


@given(st.floats(0, 1), st.integers(1, 10**6))
def test_tasks_that_are_all_alike_have_the_closed_form_and_a_width(value, tasks):
    interval = dirichlet([value], [tasks])
    factor = 0.025 ** (1 / tasks)
    assert ends(interval) == pytest.approx((value * factor, 1 - (1 - value) * factor), rel=1e-12)
    assert interval.upper - interval.lower == pytest.approx(1 - factor, rel=1e-6)


@given(samples(), st.sampled_from([1e-6, 0.5, 0.95, 0.999999]))
def test_each_end_of_the_dirichlet_bound_leaves_exactly_its_tail(sample, confidence):
    values, multiplicities = sample
    interval = dirichlet(values, multiplicities, confidence)
    tasks = [value for value, count in zip(values, multiplicities, strict=True) for _ in range(count)]
    tail = (1 - confidence) / 2
    # the probability is allowed the rounding of the end itself, which matters where values differ by less
    for sign, end, extra in ((1, interval.lower, 0), (-1, interval.upper, -1)):
        points = [sign * value for value in tasks] + [extra]
        if max(points) > min(points):
            slack = 4 * np.spacing(abs(end))
            inside = spline_cdf(points, sign * end - slack), spline_cdf(points, sign * end + slack)
            assert inside[0] * (1 - Fraction(1, 10**9)) <= tail <= inside[1] * (1 + Fraction(1, 10**9))


@pytest.mark.parametrize("tasks", [40, 1000, 100_000, 1_000_000])
def test_the_dirichlet_bound_of_many_tasks_agrees_with_the_series_of_gil_pelaez(tasks):
    values = np.arange(9) / 8
    multiplicities = np.bincount(np.random.default_rng(tasks).binomial(8, 0.8, tasks), minlength=9)
    interval = dirichlet(values, multiplicities)
    lower = series_cdf(np.append(values, 0), np.append(multiplicities, 1), interval.lower)
    upper = series_cdf(np.append(values, 1), np.append(multiplicities, 1), interval.upper)
    assert (lower, 1 - upper) == pytest.approx((0.025, 0.025), rel=1e-9)


@pytest.mark.parametrize(
    ("values", "multiplicities", "confidence"),
    [
        ([0.4975954, 0.87379534], [9, 14_192_769], 0.9995),
        ([5e-5, 0.61923], [13, 162], 0.9988),
        ([0.52858926, 0.45933588, 0.06234958], [361, 60, 6], 0.988),
        ([0.2227734, 0.90849528, 0.78106336], [810, 9, 60], 0.999),
        ([0.0028873, 0.19651757, 0.41854395, 0.31936856], [2, 70, 675, 1], 0.5),
    ],
)
def test_a_few_tasks_beside_very_many_cost_no_precision(values, multiplicities, confidence):
    interval = dirichlet(values, multiplicities, confidence)
    tail = (1 - confidence) / 2
    lower = series_cdf([*values, 0], [*multiplicities, 1], interval.lower)
    upper = series_cdf([*values, 1], [*multiplicities, 1], interval.upper)
    assert (lower, 1 - upper) == pytest.approx((tail, tail), rel=1e-8)


@pytest.mark.parametrize("value", [1e-3, 0.5, 0.999])
@pytest.mark.parametrize("tasks", [3, 10, 1000, 10**6, 10**9])
def test_two_odd_tasks_among_any_number_of_failures_cost_no_precision(tasks, value):
    lower = dirichlet([0, value, 1], [tasks - 2, 1, 1]).lower
    # the weights of the two are a corner of the simplex: above a line through it lie differences of two powers
    above = np.exp(tasks * np.log1p(-lower))
    if lower < value:
        above -= value * np.exp(tasks * np.log1p(-lower / value))
    assert 1 - above / (1 - value) == pytest.approx(0.025, rel=1e-9)


@given(samples(), st.sampled_from([0.5, 0.95, 0.999]))
def test_the_dirichlet_bound_contains_the_mean_lies_within_the_limits_and_has_width(sample, confidence):
    values, multiplicities = sample
    interval = dirichlet(values, multiplicities, confidence)
    mean = np.average(values, weights=multiplicities)
    assert 0 <= interval.lower <= mean <= interval.upper <= 1
    assert interval.lower < interval.upper


@given(samples(), st.data())
def test_neither_end_falls_when_a_task_improves(sample, data):
    values, multiplicities = sample
    j = data.draw(st.integers(0, len(values) - 1))
    better = data.draw(st.floats(values[j], 1))
    before = dirichlet(values, multiplicities)
    one_moved = [*values, better], [*(m - (i == j) for i, m in enumerate(multiplicities)), 1]
    after = dirichlet(*one_moved)
    assert after.lower >= before.lower - 1e-12
    assert after.upper >= before.upper - 1e-12


@given(samples())
def test_more_confidence_gives_a_wider_dirichlet_bound(sample):
    intervals = [dirichlet(*sample, confidence) for confidence in (0.5, 0.9, 0.95, 0.99, 0.999999)]
    for inner, outer in pairwise(intervals):
        assert outer.lower <= inner.lower
        assert outer.upper >= inner.upper


@given(samples(), st.randoms())
def test_the_dirichlet_bound_does_not_depend_on_order_or_on_how_tasks_are_grouped(sample, random):
    values, multiplicities = sample
    tasks = [value for value, count in zip(values, multiplicities, strict=True) for _ in range(count)]
    random.shuffle(tasks)
    assert dirichlet(tasks, [1] * len(tasks)) == dirichlet(values, multiplicities)


@given(samples())
def test_the_dirichlet_bound_moves_and_mirrors_with_its_limits(sample):
    values, multiplicities = np.array(sample[0]), sample[1]
    lower, upper = ends(dirichlet(values, multiplicities))
    moved = dirichlet(2 * values - 1, multiplicities, lower_limit=-1)
    assert ends(moved) == pytest.approx((2 * lower - 1, 2 * upper - 1), rel=1e-9, abs=1e-12)
    assert ends(dirichlet(1 - values, multiplicities)) == pytest.approx((1 - upper, 1 - lower), rel=1e-9, abs=1e-12)


def test_an_interval_says_its_method_its_confidence_and_what_it_is_about():
    assert dirichlet([1], [1], 0.9) == Interval(pytest.approx(0.05), 1.0, "task-dirichlet", 0.9)
    assert clopper_pearson(0, 1, 0.9) == Interval(0.0, pytest.approx(0.95), "clopper-pearson", 0.9)
    about = {interval.estimand for interval in (dirichlet([1], [1]), wilson(1, 2), clopper_pearson(1, 2))}
    assert about == {"tasks like these"}
