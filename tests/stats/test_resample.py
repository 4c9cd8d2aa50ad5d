"""Bootstraps by random numbers against the exact one, closed forms and resampling task by task."""

from math import sqrt

import numpy as np
import pytest
from scipy import stats

from passhat.stats.bootstrap import bootstrap_pass_hat
from passhat.stats.reliability import attempt_rate, task_values
from passhat.stats.resample import (
    BAYESIAN,
    MULTINOMIAL,
    bootstrap_attempt_rate,
    bootstrap_statistic,
    resample_counts,
    seed_of,
)
from passhat.stats.table import histogram

UNEQUAL = histogram([8] * 20 + [4] * 10 + [1] * 10, [8] * 8 + [6] * 7 + [2] * 5 + [4] * 4 + [1] * 6 + [0] * 6 + [1] * 4)


def mean_of(values):
    return lambda weights: weights @ values


def test_a_resampled_mean_has_the_percentiles_of_the_exact_bootstrap_within_their_noise():
    suite = histogram([8] * 60, [8] * 20 + [7] * 15 + [5] * 10 + [2] * 10 + [0] * 5)
    exact = bootstrap_pass_hat(suite, 4)
    values = task_values(8, 4, 4)[suite.c]
    drawn = bootstrap_statistic(suite.tasks, mean_of(values), np.random.default_rng(3), resamples=40_000)
    assert drawn.estimate == pytest.approx(exact.estimate)
    # the noise of a 2.5 % point of a normal law, in its standard deviations: sqrt(.025 .975 / B) / density
    noise = 4 * sqrt(0.025 * 0.975 / 40_000) / stats.norm.pdf(1.96) * exact.sd
    assert drawn.interval.lower == pytest.approx(exact.interval.lower, abs=noise)
    assert drawn.interval.upper == pytest.approx(exact.interval.upper, abs=noise)
    assert drawn.standard_error == pytest.approx(exact.sd, rel=4 / sqrt(2 * 40_000))
    assert (drawn.interval.method, drawn.estimand) == (MULTINOMIAL, "tasks like these")


def test_a_bayesian_mean_has_the_moments_of_its_dirichlet_law():
    values, tasks = np.array([0.0, 0.5, 1.0]), np.array([3, 5, 12])
    drawn = bootstrap_statistic(tasks, mean_of(values), np.random.default_rng(3), resamples=40_000, method=BAYESIAN)
    variance = (values - drawn.estimate) ** 2 @ tasks / 20 / 21
    assert drawn.standard_error == pytest.approx(sqrt(variance), rel=4 / sqrt(2 * 40_000))
    # all weight on the 12 and the 3: a beta law
    two = bootstrap_statistic([3, 12], mean_of([0, 1]), np.random.default_rng(4), resamples=40_000, method=BAYESIAN)
    assert two.interval.lower == pytest.approx(stats.beta.ppf(0.025, 12, 3), abs=0.006)
    assert two.interval.method == BAYESIAN


def draw_tasks(rng, tasks):
    """The weights of single tasks: how often each is drawn."""
    return rng.multinomial(tasks, np.full(tasks, 1 / tasks), 20_000)


def weigh_tasks(rng, tasks):
    """The weights of single tasks: exponential, as the Dirichlet law with all parameters 1 has them."""
    return rng.exponential(size=(20_000, tasks))


@pytest.mark.parametrize(("method", "weights_of_tasks"), [(MULTINOMIAL, draw_tasks), (BAYESIAN, weigh_tasks)])
def test_the_attempt_rate_of_unequal_runs_has_the_interval_of_resampling_task_by_task(method, weights_of_tasks):
    n, c = np.repeat(UNEQUAL.n, UNEQUAL.tasks), np.repeat(UNEQUAL.c, UNEQUAL.tasks)
    drawn = bootstrap_attempt_rate(UNEQUAL, np.random.default_rng(8), method=method, resamples=20_000)
    weights = weights_of_tasks(np.random.default_rng(9), 40)
    by_task = (weights @ c) / (weights @ n)
    assert drawn.estimate == pytest.approx(attempt_rate(UNEQUAL).estimate, rel=1e-13)
    # four standard deviations of the noise of two standard deviations, and of two quantiles at 2.5 %
    assert drawn.standard_error == pytest.approx(by_task.std(), rel=4 / sqrt(20_000))
    noise = 4 * sqrt(2 * 0.025 * 0.975 / 20_000) / stats.norm.pdf(1.96) * by_task.std()
    assert drawn.interval.lower == pytest.approx(np.quantile(by_task, 0.025), abs=noise)
    assert drawn.interval.upper == pytest.approx(np.quantile(by_task, 0.975), abs=noise)


def test_weights_left_over_from_a_removed_task_are_brought_back_to_a_sum_of_one():
    counts = resample_counts([0.25, 0.25, 0.25], 4, np.random.default_rng(1), 30_000)
    assert (counts.sum(axis=1) == 4).all()
    noise = 4 * sqrt(4 * (1 / 3) * (2 / 3) / 30_000)
    assert counts.mean(axis=0) == pytest.approx([4 / 3] * 3, abs=noise)


def test_single_precision_weights_that_add_up_to_more_than_one_are_fine_and_zero_is_never_drawn():
    weights = np.array([0.1] * 10 + [0.0], dtype=np.float32)
    assert float(weights.astype(np.float64).sum()) > 1
    counts = resample_counts(weights, 20, np.random.default_rng(2), 20_000)
    assert (counts[:, 10] == 0).all()
    assert counts[:, :10].mean(axis=0) == pytest.approx([2.0] * 10, abs=4 * sqrt(20 * 0.1 * 0.9 / 20_000))


@pytest.mark.parametrize("weights", [[0.0, 0.0], [], [-1.0, 2.0], [np.nan, 1.0], [[1.0]]])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(ValueError, match="weights are finite, at least 0 and not all 0"):
        resample_counts(weights, 4, np.random.default_rng(1), 10)


def test_the_order_of_records_and_other_random_numbers_change_nothing():
    rates = [(4, 0), (4, 0), (4, 4), (4, 4), (4, 1), (8, 4), (4, 3), (4, 4), (4, 0), (4, 2)]
    forward, backward = (histogram(*zip(*order, strict=True)) for order in (rates, rates[::-1]))
    first = bootstrap_attempt_rate(forward, np.random.default_rng(5), resamples=500)
    np.random.default_rng(77).random(1000)
    assert bootstrap_attempt_rate(backward, np.random.default_rng(5), resamples=500) == first
    assert bootstrap_attempt_rate(forward, np.random.default_rng(6), resamples=500) != first


def test_resamples_drawn_in_pieces_are_those_drawn_at_once():
    counts = np.full(300, 2)
    rng = np.random.default_rng(4)
    at_once = resample_counts(counts, 600, np.random.default_rng(4), 900)
    pieces = np.concatenate([resample_counts(counts, 600, rng, size) for size in (400, 400, 100)])
    assert (at_once == pieces).all()


def test_the_seed_is_recorded_when_it_is_enough_to_draw_the_same_again():
    fresh = np.random.default_rng(123)
    result = bootstrap_attempt_rate(UNEQUAL, fresh, resamples=50)
    assert (result.generator, result.seed, result.resamples) == ("PCG64", 123, 50)
    assert bootstrap_attempt_rate(UNEQUAL, fresh, resamples=50).seed is None
    assert seed_of(np.random.default_rng(7).spawn(1)[0]) is None
    assert seed_of(np.random.default_rng([1, 2])) is None
    other = np.random.Generator(np.random.MT19937(9))
    assert (seed_of(other), other.random() < 1, seed_of(other)) == (9, True, None)
    unseeded = np.random.default_rng()
    again = np.random.default_rng(seed_of(unseeded))
    assert again.random() == unseeded.random()


def test_what_has_no_spread_or_no_tasks_has_no_interval_and_says_why():
    nothing = bootstrap_attempt_rate(histogram([], []), np.random.default_rng(1))
    assert (nothing.estimate, nothing.interval, nothing.reason) == (None, None, "no tasks")
    assert bootstrap_attempt_rate(histogram([0, 0], [0, 0]), np.random.default_rng(1)).reason == "no tasks"
    for suite in (histogram([4], [3]), histogram([4, 8], [3, 6]), histogram([4, 2], [0, 0]), histogram([4, 2], [4, 2])):
        for method in (MULTINOMIAL, BAYESIAN):
            alike = bootstrap_attempt_rate(suite, np.random.default_rng(1), resamples=50, method=method)
            assert (alike.interval, alike.standard_error, alike.reason) == (None, 0.0, "no spread between tasks")
            assert alike.estimate == pytest.approx(attempt_rate(suite).estimate)


def test_a_statistic_that_is_not_finite_is_an_error_that_says_how_often():
    def rate_of_the_first(weights):
        return np.where(weights[:, 0] > 0, weights[:, 0], np.nan)

    with pytest.raises(ValueError, match=r"the statistic is not finite on [1-9][0-9]* of 100 resamples"):
        bootstrap_statistic([1, 4], rate_of_the_first, np.random.default_rng(1), resamples=100)


def test_arguments_that_make_no_sense_are_refused():
    rng = np.random.default_rng(1)
    with pytest.raises(ValueError, match="whole numbers of tasks"):
        bootstrap_statistic([1.5, 2.0], mean_of([0, 1]), rng)
    with pytest.raises(ValueError, match="whole numbers of tasks"):
        bootstrap_statistic([-1, 2], mean_of([0, 1]), rng)
    with pytest.raises(ValueError, match="expected some"):
        bootstrap_statistic([1, 2], mean_of([0, 1]), rng, resamples=0)
    with pytest.raises(ValueError, match="by jackknife"):
        bootstrap_statistic([1, 2], mean_of([0, 1]), rng, method="jackknife")
