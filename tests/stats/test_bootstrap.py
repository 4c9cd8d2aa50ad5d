"""The bootstrap over tasks against full enumeration, exact integer distributions and the binomial law."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise, product
from math import comb, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from passhat.stats.bootstrap import Bootstrap, bootstrap_mean, bootstrap_pass_hat
from passhat.stats.table import histogram


def quantile(chances, level):
    """The smallest value whose cumulated chance reaches the level."""
    cumulated = Fraction(0)
    for value in sorted(chances):
        cumulated += chances[value]
        if cumulated >= level:
            return value
    raise AssertionError("chances do not add up to 1")


def enumerate_means(values):
    """The distribution of the mean of every resample of the tasks."""
    resamples = Counter(sum(draw) / len(values) for draw in product(values, repeat=len(values)))
    return {mean: Fraction(count, len(values) ** len(values)) for mean, count in resamples.items()}


def ends(bootstrap):
    return bootstrap.interval.lower, bootstrap.median, bootstrap.interval.upper


def test_the_suite_of_a_hundred_tasks_has_the_exact_percentiles_of_pass_3():
    bootstrap = bootstrap_pass_hat(histogram([3] * 100, [3] * 72 + [2] * 18 + [1] * 6 + [0] * 4), 3)
    assert (bootstrap.estimate, *ends(bootstrap)) == (0.72, 0.63, 0.72, 0.81)
    assert bootstrap.interval.method == "bootstrap-exact"
    assert bootstrap.sd == pytest.approx(sqrt(0.72 * 0.28 / 100), rel=1e-13)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 6), min_size=2, max_size=4), st.integers(1, 6), st.sampled_from([0.5, 0.8, 0.95]))
def test_a_small_suite_has_the_percentiles_of_all_its_resamples(passes, k, confidence):
    bootstrap = bootstrap_pass_hat(histogram([6] * len(passes), passes), k, confidence)
    values = [Fraction(comb(c, k), comb(6, k)) for c in passes]
    assert bootstrap.estimate == float(sum(values) / len(values))
    if len(set(values)) == 1:
        assert (bootstrap.interval, bootstrap.reason) == (None, "no spread between tasks")
        return
    means = enumerate_means(values)
    tail = Fraction((1 - confidence) / 2)
    assert ends(bootstrap) == tuple(float(quantile(means, level)) for level in (tail, Fraction(1, 2), 1 - tail))
    variance = sum(chance * (mean - sum(values) / len(values)) ** 2 for mean, chance in means.items())
    assert bootstrap.sd == pytest.approx(sqrt(variance), rel=1e-12)


def test_five_tasks_with_different_numbers_of_runs_have_the_percentiles_of_all_their_resamples():
    n, c = (2, 3, 4, 5, 5), (1, 2, 3, 5, 2)
    means = enumerate_means([Fraction(comb(passed, 2), comb(runs, 2)) for runs, passed in zip(n, c, strict=True)])
    expected = tuple(float(quantile(means, level)) for level in (Fraction(5, 100), Fraction(1, 2), Fraction(95, 100)))
    assert ends(bootstrap_pass_hat(histogram(n, c), 2, 0.9)) == expected


def test_thirty_tasks_have_the_percentiles_of_the_integer_distribution_of_their_sum():
    passes = [8] * 11 + [7] * 6 + [6] * 5 + [5] * 4 + [3] * 3 + [0]
    ways = {0: 1}
    for _ in passes:
        drawn = Counter()
        for total, count in ways.items():
            for c, tasks in Counter(passes).items():
                drawn[total + comb(c, 4)] += count * tasks
        ways = drawn
    chances = {Fraction(total, 30 * comb(8, 4)): Fraction(count, 30**30) for total, count in ways.items()}
    expected = tuple(float(quantile(chances, Fraction(level))) for level in (0.025, 0.5, 0.975))
    assert ends(bootstrap_pass_hat(histogram([8] * 30, passes), 4)) == expected


@pytest.mark.parametrize(("passes", "tasks"), [(1, 2), (7, 10), (40, 50), (1, 1000), (9_990, 10_000), (7, 10**6)])
def test_single_runs_have_the_quantiles_of_the_binomial_law(passes, tasks):
    bootstrap = bootstrap_mean([0, 1], 1, [tasks - passes, passes], 0.9)
    expected = stats.binom.ppf([0.05, 0.5, 0.95], tasks, passes / tasks) / tasks
    assert ends(bootstrap) == tuple(expected)


def test_a_lattice_too_wide_for_its_window_goes_on_a_grid_and_stays_within_a_hundredth_of_a_standard_error():
    passes = np.random.default_rng(3).binomial(32, np.random.default_rng(4).beta(4, 2, 60))
    bootstrap = bootstrap_pass_hat(histogram([32] * 60, passes), 4)
    assert bootstrap.interval.method == "bootstrap-grid"

    atoms = [comb(c, 4) for c in passes.tolist()]
    size = 1 << (60 * max(atoms)).bit_length()
    spectrum = np.fft.rfft(np.bincount(atoms, minlength=size) / 60)
    cumulated = np.cumsum(np.fft.irfft(spectrum**60, size))
    exact = np.searchsorted(cumulated, [0.025, 0.5, 0.975]) / (60 * comb(32, 4))
    assert np.abs(np.array(ends(bootstrap)) - exact).max() < 0.01 * bootstrap.sd
    assert bootstrap.sd == pytest.approx(np.std(atoms) / comb(32, 4) / sqrt(60), rel=1e-12)


def test_two_kinds_of_tasks_are_exact_however_wide_the_lattice_is():
    bootstrap = bootstrap_pass_hat(histogram([64] * 40, [64] * 30 + [60] * 10), 32)
    low = Fraction(comb(60, 32), comb(64, 32))
    drawn = [Fraction(int(x), 40) for x in stats.binom.ppf([0.025, 0.5, 0.975], 40, 0.75)]
    assert bootstrap.interval.method == "bootstrap-exact"
    assert ends(bootstrap) == tuple(float(low + share * (1 - low)) for share in drawn)


@pytest.mark.parametrize(("n", "k"), [(64, 32), (1000, 500), (4000, 2000), (20_000, 10_000), (100_000, 1)])
def test_many_runs_give_ends_around_the_estimate_without_overflow(n, k):
    passes = np.random.default_rng(n).binomial(n, np.random.default_rng(k).beta(30, 1, 200))
    bootstrap = bootstrap_pass_hat(histogram([n] * 200, passes), k)
    assert 0 <= bootstrap.interval.lower < bootstrap.estimate < bootstrap.interval.upper <= 1
    # the resampled mean is roughly normal, as far as two hundred tasks go
    assert bootstrap.interval.upper - bootstrap.interval.lower == pytest.approx(3.92 * bootstrap.sd, rel=0.1)


def test_one_task_that_carries_all_of_a_million_gives_the_poisson_quantiles():
    bootstrap = bootstrap_pass_hat(histogram([8] * 10**6, [8] + [0] * (10**6 - 1)), 4)
    assert ends(bootstrap) == tuple(stats.poisson.ppf([0.025, 0.5, 0.975], 1) / 10**6)


@given(st.lists(st.integers(0, 8), min_size=2, max_size=30), st.randoms())
def test_the_order_and_the_grouping_of_tasks_do_not_matter(passes, random):
    atoms = [comb(c, 3) for c in passes]
    counted = Counter(atoms)
    grouped = bootstrap_mean(list(counted), comb(8, 3), list(counted.values()))
    random.shuffle(atoms)
    assert bootstrap_mean(atoms, comb(8, 3), [1] * len(atoms)) == grouped
    assert bootstrap_pass_hat(histogram([8] * len(passes), passes), 3) == grouped


@given(st.lists(st.integers(0, 8), min_size=2, max_size=40), st.integers(1, 8))
def test_the_interval_widens_with_confidence_and_lies_among_the_values(passes, k):
    tasks = histogram([8] * len(passes), passes)
    results = [bootstrap_pass_hat(tasks, k, confidence) for confidence in (0.5, 0.9, 0.99)]
    intervals = [result.interval for result in results if result.interval]
    values = [comb(c, k) / comb(8, k) for c in passes]
    for inner, outer in pairwise(intervals):
        assert min(values) <= outer.lower <= inner.lower <= inner.upper <= outer.upper <= max(values)


def test_tasks_that_are_all_alike_have_no_interval_and_the_reason_is_said():
    alike = Bootstrap(1.0, None, 1.0, 0.0, "no spread between tasks")
    assert bootstrap_pass_hat(histogram([4] * 20, [4] * 20), 4) == alike
    assert bootstrap_pass_hat(histogram([4], [4]), 4) == alike
    # values below the smallest double, none told from another
    assert bootstrap_pass_hat(histogram([20_000] * 2, [12_000, 12_001]), 10_000).reason == "no spread between tasks"


def test_without_tasks_or_without_enough_runs_there_is_no_estimate_and_the_reason_is_said():
    assert bootstrap_pass_hat(histogram([], []), 1) == Bootstrap(None, None, None, None, "no tasks")
    assert bootstrap_mean([1], 2, [0]) == Bootstrap(None, None, None, None, "no tasks")
    short = bootstrap_pass_hat(histogram([4, 3, 2], [4, 1, 0]), 4)
    assert short == Bootstrap(None, None, None, None, "2 tasks have fewer than 4 runs")


def test_what_is_not_a_sample_is_refused():
    with pytest.raises(ValueError, match="denominator 0 is below 1"):
        bootstrap_mean([0, 1], 0, [1, 1])
    with pytest.raises(ValueError, match="a multiplicity is negative"):
        bootstrap_mean([0, 1], 1, [1, -1])
    with pytest.raises(ValueError, match="confidence is between 0 and 1"):
        bootstrap_mean([0, 1], 1, [1, 1], 95)


@pytest.mark.parametrize(
    ("passes", "k", "confidence"),
    [
        ([6, 5, 2, 0], 1, 0.95),
        ([6, 6, 6, 1], 2, 0.8),
        ([5, 4, 1], 1, 0.5),
        ([0, 0, 0, 0, 6], 3, 0.9),
        ([3, 6], 2, 0.95),
    ],
)
def test_the_corrected_and_the_expanded_interval_of_a_small_suite_are_those_of_all_its_resamples(passes, k, confidence):
    values = [Fraction(comb(c, k), comb(6, k)) for c in passes]
    means, estimate, tasks = enumerate_means(values), sum(values) / len(values), len(values)
    below = sum(chance for mean, chance in means.items() if mean < estimate)
    z0 = stats.norm.ppf(float(below + means.get(estimate, 0) / 2))
    without_one = np.array([float((sum(values) - value) / (tasks - 1)) for value in values])
    deviations = without_one.mean() - without_one
    acceleration = (deviations**3).sum() / (6 * (deviations**2).sum() ** 1.5)
    z = stats.norm.ppf((1 - confidence) / 2)
    levels = [stats.norm.cdf(z0 + shifted / (1 - acceleration * shifted)) for shifted in (z0 + z, z0 - z)]

    result = bootstrap_pass_hat(histogram([6] * tasks, passes), k, confidence)
    assert (result.z0, result.acceleration) == pytest.approx((z0, acceleration), abs=1e-12)
    assert (result.bca.lower, result.bca.upper) == tuple(float(quantile(means, Fraction(level))) for level in levels)
    tail = stats.norm.cdf(sqrt(tasks / (tasks - 1)) * stats.t.ppf((1 - confidence) / 2, tasks - 1))
    expected = tuple(float(quantile(means, Fraction(level))) for level in (tail, 1 - tail))
    assert (result.expanded.lower, result.expanded.upper) == expected
    assert (result.bca.method, result.expanded.method) == ("bootstrap-exact-bca", "bootstrap-exact-expanded")
    assert result.estimand == "tasks like these"


def test_the_corrected_interval_is_where_scipy_draws_it():
    passes = np.random.default_rng(2).binomial(8, np.random.default_rng(3).beta(4, 1, 80))
    result = bootstrap_pass_hat(histogram([8] * 80, passes), 1)
    drawn = stats.bootstrap((passes / 8,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(4))
    # four times the noise of a drawn 2.5 % point, and as much again for that of the drawn z0
    noise = 8 * sqrt(0.025 * 0.975 / 20_000) / stats.norm.pdf(1.96) * result.sd
    assert result.bca.lower == pytest.approx(drawn.confidence_interval.low, abs=noise)
    assert result.bca.upper == pytest.approx(drawn.confidence_interval.high, abs=noise)


def test_the_corrected_interval_on_a_grid_is_near_the_one_on_the_lattice():
    passes = np.random.default_rng(3).binomial(8, np.random.default_rng(4).beta(4, 1, 60))
    exact = bootstrap_pass_hat(histogram([8] * 60, passes), 4)
    # one more task, with its share of 1e-6 of a step, makes the lattice too fine for its window
    atoms = [comb(c, 4) * 10**6 + (i == 0) for i, c in enumerate(passes.tolist())]
    grid = bootstrap_mean(atoms, comb(8, 4) * 10**6, [1] * 60)
    assert grid.bca.method == "bootstrap-grid-bca"
    assert (grid.z0, grid.acceleration) == pytest.approx((exact.z0, exact.acceleration), abs=5e-3)
    for end in ("lower", "upper"):
        for name in ("interval", "expanded", "bca"):
            found, expected = (getattr(getattr(result, name), end) for result in (grid, exact))
            assert found == pytest.approx(expected, abs=0.02 * exact.sd)


@given(st.lists(st.integers(0, 8), min_size=2, max_size=40).filter(lambda passes: len(set(passes)) > 1))
def test_the_expanded_interval_holds_the_plain_one_and_the_corrected_one_turns_with_the_outcomes(passes):
    result = bootstrap_pass_hat(histogram([8] * len(passes), passes), 1)
    assert result.expanded.lower <= result.interval.lower <= result.interval.upper <= result.expanded.upper
    turned = bootstrap_pass_hat(histogram([8] * len(passes), [8 - c for c in passes]), 1)
    assert (turned.z0, turned.acceleration) == pytest.approx((-result.z0, -result.acceleration), abs=1e-9)


def test_a_correction_that_would_leave_the_levels_is_not_given():
    lopsided = bootstrap_mean([0, 1], 1, [400, 1], 1 - 1e-9)
    assert lopsided.acceleration > 0.16
    assert (lopsided.bca, lopsided.interval is None, lopsided.expanded is None) == (None, False, False)
