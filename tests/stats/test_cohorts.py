"""Standardised rates on the worked examples; mix and quality against their identity; one cohort by itself."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise, product
from math import comb, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passhat.stats.bootstrap import Bootstrap, bootstrap_pass_hat, bootstrap_strata
from passhat.stats.closed_form import cluster_wilson
from passhat.stats.cohorts import bootstrap_standardised, movement, single_runs, standardise, standardised_error
from passhat.stats.intervals import dirichlet
from passhat.stats.reliability import pass_hat
from passhat.stats.resample import resample_counts
from passhat.stats.table import histogram
from passhat.stats.variance import spread

WEIGHTS = {"routine": 0.6, "destructive": 0.4}
WEEK_1 = {"routine": single_runs(81, 90), "destructive": single_runs(3, 10)}
WEEK_2 = {"routine": single_runs(45, 50), "destructive": single_runs(15, 50)}


PASSES = st.lists(st.integers(0, 4), min_size=1, max_size=3)


def suite(passes, k, n=4):
    return pass_hat(histogram([n] * len(passes), passes), k)


def enumerated(strata, k, levels):
    """Exact quantiles of the sum of weight times mean of pass^k, over all resamples of four-run tasks in strata."""
    results = {Fraction(0): Fraction(1)}
    for weight, passes in strata:
        ways = Counter(sum(comb(c, k) for c in draw) for draw in product(passes, repeat=len(passes)))
        joined = Counter()
        for total, count in ways.items():
            added = weight * Fraction(total, comb(4, k) * len(passes))
            for result, chance in results.items():
                joined[result + added] += chance * Fraction(count, len(passes) ** len(passes))
        results = joined
    reached, quantiles = Fraction(0), []
    for result in sorted(results):
        reached += results[result]
        quantiles += [float(result)] * (sum(level <= reached for level in levels) - len(quantiles))
    mean = sum(result * chance for result, chance in results.items())
    return quantiles, sqrt(sum(chance * (result - mean) ** 2 for result, chance in results.items()))


def resampled(cohorts, weights, size, rng):
    """Standardised rates of many resamples, each of a number of tasks with each value."""
    total = sum(weights.values())
    return sum(
        weights[name] / total * (resample_counts(c.multiplicities, c.tasks, rng, size) @ c.values) / c.tasks
        for name, c in cohorts.items()
    )


@st.composite
def weeks(draw):
    """Counts of up to four cohorts, some of them without a task, but not all."""
    names = ["a", "b", "c", "d"][: draw(st.integers(1, 4))]
    totals = draw(st.lists(st.integers(0, 40), min_size=len(names), max_size=len(names)).filter(any))
    return {name: single_runs(draw(st.integers(0, total)), total) for name, total in zip(names, totals, strict=True)}


def test_the_raw_rate_falls_from_84_to_60_percent_while_both_weeks_standardise_to_66():
    first, second = standardise(WEEK_1, WEIGHTS), standardise(WEEK_2, WEIGHTS)
    assert (first.raw, second.raw) == (0.84, 0.6)
    assert (first.estimate, second.estimate) == pytest.approx((0.66, 0.66), rel=1e-14)
    assert first.weights == (("destructive", 0.4), ("routine", 0.6))
    for week in (first, second):
        assert week.bound.lower < week.interval.lower < 0.66 < week.interval.upper < week.bound.upper
    moved = movement(WEEK_1, WEEK_2, WEIGHTS)
    assert (moved.raw, moved.mix) == pytest.approx((-0.24, -0.24), rel=1e-13)
    assert (moved.quality, moved.standardised) == pytest.approx((0, 0), abs=1e-15)
    assert not moved.is_reversal


def test_every_row_of_a_cohort_table_has_its_numerator_and_denominator():
    before = {"routine": single_runs(126, 150), "ambiguous": single_runs(70, 90), "destructive": single_runs(45, 60)}
    after = {"routine": single_runs(136, 150), "ambiguous": single_runs(78, 90), "destructive": single_runs(54, 60)}
    moved = movement(before, after)
    assert moved.raw == pytest.approx((268 - 241) / 300, rel=1e-13)
    assert (moved.mix, moved.quality) == pytest.approx((0, 27 / 300), abs=1e-15)
    assert [(move.name, move.rate_before, move.rate_after) for move in moved.cohorts] == [
        ("ambiguous", 70 / 90, 78 / 90),
        ("destructive", 0.75, 0.9),
        ("routine", 0.84, 136 / 150),
    ]
    assert (moved.standardised, moved.reason) == (None, "no declared weights")


def test_equal_weights_and_pooled_weights_have_the_rates_and_standard_errors_of_their_own():
    cohorts = {"x": single_runs(50, 100), "y": single_runs(810, 900)}
    errors = {"x": sqrt(0.25 / 100), "y": sqrt(0.09 / 900)}
    equal, pooled = {"x": 0.5, "y": 0.5}, {"x": 100, "y": 900}
    assert standardise(cohorts, equal).estimate == pytest.approx(0.7, rel=1e-14)
    assert standardised_error(equal, errors) == pytest.approx(0.02550, abs=5e-6)
    result = standardise(cohorts, pooled)
    assert (result.estimate, result.raw) == pytest.approx((0.86, 0.86), rel=1e-14)
    assert result.weights == (("x", 0.1), ("y", 0.9))
    assert standardised_error(pooled, errors) == pytest.approx(0.01030, abs=5e-6)
    # over tasks, with T - 1 in the variance
    assert standardise(cohorts, equal).standard_error == pytest.approx(0.5 * sqrt(0.25 / 99 + 0.09 / 899), rel=1e-13)


def test_weights_are_carried_to_double_precision_and_to_a_sum_of_one_and_a_weight_of_zero_needs_no_data():
    names = [f"cohort {i}" for i in range(10)]
    weights = {name: np.float32(0.1) for name in names} | {"none": np.float32(0)}
    cohorts = {name: single_runs(i, 10) for i, name in enumerate(names)}
    result = standardise(cohorts, weights)
    assert result.estimate == pytest.approx(0.45, rel=1e-14)
    assert sum(weight for _, weight in result.weights) == pytest.approx(1, rel=1e-15)
    assert dict(result.weights)["none"] == 0.0
    assert standardise(cohorts | {"none": single_runs(0, 0)}, weights).estimate == result.estimate


def test_a_weighted_cohort_without_data_leaves_no_standardised_rate_and_is_named():
    for cohorts in ({"routine": single_runs(9, 10)}, {"routine": single_runs(9, 10), "destructive": single_runs(0, 0)}):
        result = standardise(cohorts, WEIGHTS)
        assert (result.estimate, result.interval, result.bound, result.standard_error) == (None, None, None, None)
        assert result.raw == 0.9
        assert result.reason == "no estimate in cohorts with weight: destructive"
    moved = movement(WEEK_1, {"routine": single_runs(9, 10)}, WEIGHTS)
    assert (moved.standardised, moved.is_reversal) == (None, False)
    assert moved.reason == "no estimate in cohorts with weight: destructive"
    assert moved.raw == pytest.approx(0.06)


def test_tasks_that_are_not_estimable_leave_no_rate():
    cohorts = {"routine": pass_hat(histogram([3, 2], [3, 2]), 3), "destructive": pass_hat(histogram([3], [3]), 3)}
    result = standardise(cohorts, WEIGHTS)
    assert (result.estimate, result.raw) == (None, None)
    assert result.reason == "no estimate in cohorts with weight: routine"
    without = standardise(cohorts, {"routine": 0, "destructive": 1})
    assert (without.estimate, without.raw, without.bound.upper) == (1.0, None, 1.0)
    assert movement(cohorts, WEEK_2).raw is None


def test_one_task_in_a_weighted_cohort_has_a_rate_and_a_bound_but_no_standard_error():
    result = standardise({"routine": single_runs(9, 10), "destructive": single_runs(1, 1)}, WEIGHTS)
    assert result.estimate == pytest.approx(0.94)
    assert (result.standard_error, result.interval) == (None, None)
    assert 0 < result.bound.lower < 0.94 < result.bound.upper <= 1
    assert result.reason == "one task in cohorts with weight: destructive"


@pytest.mark.parametrize("passes", [[8, 7, 5, 2, 0, 8, 8], [8] * 20, [0] * 5])
def test_a_single_cohort_has_the_intervals_that_it_has_by_itself(passes):
    estimate = pass_hat(histogram([8] * len(passes), passes), 4)
    result = standardise({"all": estimate}, {"all": 7})
    alone = cluster_wilson(estimate.values, estimate.multiplicities)
    bound = dirichlet(estimate.values, estimate.multiplicities)
    assert result.effective_tasks == pytest.approx(alone.effective_tasks, rel=1e-12)
    assert result.degrees_of_freedom == pytest.approx(len(passes) - 1, rel=1e-12)
    assert (result.interval.lower, result.interval.upper) == pytest.approx(
        (alone.interval.lower, alone.interval.upper), rel=1e-12
    )
    assert (result.bound.lower, result.bound.upper) == pytest.approx((bound.lower, bound.upper), rel=1e-9)
    assert result.standard_error == pytest.approx(spread(histogram([8] * len(passes), passes), 4).standard_error)
    assert result.bound.method == "task-dirichlet-bonferroni"


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=30))
def test_no_weights_make_a_rate_above_one(weights):
    passed = {str(i): single_runs(2, 2) for i in range(len(weights))}
    result = standardise(passed, {str(i): weight for i, weight in enumerate(weights)})
    assert result.estimate == 1.0


def test_cohorts_that_all_pass_still_have_width():
    result = standardise({"routine": single_runs(20, 20), "destructive": single_runs(5, 5)}, WEIGHTS)
    assert (result.estimate, result.interval.upper, result.bound.upper) == (1.0, 1.0, 1.0)
    assert result.bound.lower < result.interval.lower < 0.95
    assert result.standard_error == 0.0


def test_a_mix_that_hides_a_loss_is_a_reversal():
    before = {"easy": single_runs(18, 20), "hard": single_runs(24, 80)}
    after = {"easy": single_runs(64, 80), "hard": single_runs(4, 20)}
    moved = movement(before, after, {"easy": 1, "hard": 1})
    assert (moved.raw, moved.standardised) == pytest.approx((0.26, -0.1))
    assert moved.is_reversal
    assert moved.mix > 0 > moved.quality
    assert moved.mix + moved.quality == pytest.approx(0.26)


def test_a_cohort_of_one_window_only_adds_to_the_mix_alone():
    moved = movement({"old": single_runs(9, 10)}, {"old": single_runs(9, 10), "new": single_runs(1, 10)})
    new = moved.cohorts[0]
    assert (new.name, new.rate_before, new.rate_after, new.quality) == ("new", None, 0.1, 0.0)
    assert (moved.raw, moved.mix, moved.quality) == pytest.approx((-0.4, -0.4, 0.0))


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 7), PASSES), min_size=1, max_size=3),
    st.integers(1, 4),
    st.sampled_from([0.5, 0.8, 0.95]),
)
def test_the_bootstrap_of_small_cohorts_has_the_percentiles_of_all_their_resamples(strata, k, confidence):
    total = sum(weight for weight, _ in strata)
    cohorts = {str(i): suite(passes, k) for i, (_, passes) in enumerate(strata)}
    result = bootstrap_standardised(cohorts, {str(i): weight for i, (weight, _) in enumerate(strata)}, confidence)
    tail = Fraction((1 - confidence) / 2)
    levels = [tail, Fraction(1, 2), 1 - tail]
    quantiles, sd = enumerated([(Fraction(weight, total), passes) for weight, passes in strata], k, levels)
    assert result.sd == pytest.approx(sd, rel=1e-12, abs=1e-15)
    if result.interval is None:
        assert (quantiles[0], result.reason) == (pytest.approx(quantiles[2]), "no spread between tasks")
        return
    assert result.interval.method == "bootstrap-strata-exact"
    assert [result.interval.lower, result.median, result.interval.upper] == pytest.approx(quantiles, abs=1e-12)


@pytest.mark.parametrize(
    ("weights", "method"),
    [({"easy": 2, "hard": 1, "all": 1}, "exact"), ({"easy": sqrt(2), "hard": 1, "all": 0.3}, "grid")],
)
def test_the_bootstrap_of_larger_cohorts_is_where_random_resamples_are(weights, method):
    rng = np.random.default_rng(11)
    cohorts = {
        "easy": suite(rng.binomial(8, rng.beta(8, 1, 60)), 4, n=8),
        "hard": suite(rng.binomial(8, rng.beta(1, 2, 40)), 4, n=8),
        "all": suite([8] * 30, 4, n=8),
    }
    result = bootstrap_standardised(cohorts, weights)
    drawn = resampled(cohorts, weights, 200_000, rng)
    assert result.interval.method == f"bootstrap-strata-{method}"
    assert result.sd == pytest.approx(drawn.std(), rel=0.01)
    # five times the noise of a drawn 2.5 % point of a law that is about normal
    noise = 5 * sqrt(0.025 * 0.975 / 200_000) / 0.0584 * result.sd
    ends = np.quantile(drawn, [0.025, 0.975], method="inverted_cdf")
    assert [result.interval.lower, result.interval.upper] == pytest.approx(ends.tolist(), abs=noise)
    assert result.median == pytest.approx(np.median(drawn), abs=noise)


def test_a_weight_off_by_a_trifle_goes_on_a_grid_and_stays_within_a_hundredth_of_a_standard_error():
    rng = np.random.default_rng(5)
    cohorts = {"x": suite(rng.binomial(8, rng.beta(4, 1, 50)), 2, n=8), "y": suite(rng.binomial(8, 0.4, 70), 2, n=8)}
    exact, grid = (bootstrap_standardised(cohorts, {"x": 3, "y": weight}) for weight in (2, 2 + 1e-7))
    assert (exact.interval.method, grid.interval.method) == ("bootstrap-strata-exact", "bootstrap-strata-grid")
    for end in ("lower", "upper"):
        assert getattr(grid.interval, end) == pytest.approx(getattr(exact.interval, end), abs=0.01 * exact.sd)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40), st.integers(1, 8))
def test_the_bootstrap_of_a_single_cohort_is_the_one_that_it_has_by_itself(passes, k):
    result = bootstrap_standardised({"all": suite(passes, k, n=8)}, {"all": 3})
    alone = bootstrap_pass_hat(histogram([8] * len(passes), passes), k)
    assert (result.estimate, result.median, result.sd) == pytest.approx((alone.estimate, alone.median, alone.sd))
    assert result.reason == alone.reason
    if alone.interval:
        found = (result.interval.lower, result.interval.upper)
        assert found == pytest.approx((alone.interval.lower, alone.interval.upper), rel=1e-12)


@given(weeks(), st.randoms())
def test_the_bootstrap_knows_no_order_of_cohorts_and_widens_with_confidence_inside_0_and_1(week, random):
    names = list(week)
    random.shuffle(names)
    weights = {name: len(name) + week[name].tasks for name in names}
    results = [bootstrap_standardised(week, weights, confidence) for confidence in (0.5, 0.9, 0.99)]
    assert bootstrap_standardised({name: week[name] for name in names}, weights, 0.9) == results[1]
    ends = [(result.interval.lower, result.interval.upper) for result in results if result.interval]
    for (inner_low, inner_high), (outer_low, outer_high) in pairwise(ends):
        assert 0 <= outer_low <= inner_low <= inner_high <= outer_high <= 1


def test_a_bootstrap_without_data_or_without_spread_has_no_interval_and_the_reason_is_said():
    empty = bootstrap_standardised({"routine": single_runs(9, 10)}, WEIGHTS)
    assert empty == Bootstrap(None, None, None, None, "no estimate in cohorts with weight: destructive")
    alike = bootstrap_standardised({"routine": single_runs(9, 9), "destructive": single_runs(0, 1)}, WEIGHTS)
    assert alike == Bootstrap(0.6, None, 0.6, 0.0, "no spread between tasks")
    assert bootstrap_strata([], []).reason == "no strata"
    assert bootstrap_strata([single_runs(0, 0)], [1]).reason == "a stratum has no estimate"
    for weight in (-1, 0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="weights are at least 0, finite and not all 0, found"):
            bootstrap_strata([single_runs(1, 2)], [weight])


def test_values_far_below_one_and_weights_far_apart_keep_their_digits():
    tiny = suite([505, 510, 520, 530], 500, n=1000)
    assert 0 < tiny.values.max() < 1e-150
    result = bootstrap_standardised({"tiny": tiny, "none": suite([0, 0], 500, n=1000)}, {"tiny": 1, "none": 1})
    assert result.sd == pytest.approx(np.std(tiny.values / tiny.values.max()) / 4 * tiny.values.max(), rel=1e-12)
    assert result.interval.lower < result.estimate < result.interval.upper
    both = {"large": single_runs(700_000, 10**6), "small": single_runs(3, 5)}
    apart = bootstrap_standardised(both, {"large": 1, "small": 1e-12})
    assert (apart.interval.upper - apart.interval.lower) / apart.sd == pytest.approx(3.92, rel=1e-2)


@given(weeks(), weeks(), st.randoms())
def test_mix_and_quality_add_up_to_the_raw_move_and_swap_signs_with_the_windows(before, after, random):
    moved = movement(before, after)
    assert moved.mix + moved.quality == pytest.approx(moved.raw, abs=1e-12)
    back = movement(after, before)
    assert (back.raw, back.mix, back.quality) == pytest.approx((-moved.raw, -moved.mix, -moved.quality), abs=1e-12)
    names = list(before)
    random.shuffle(names)
    assert movement({name: before[name] for name in names}, after) == moved
    still = movement(before, before)
    assert (still.raw, still.mix, still.quality) == (0, 0, 0)


@given(weeks(), st.randoms())
def test_the_order_of_cohorts_does_not_matter_to_a_standardised_rate(week, random):
    weights = {name: float(i + 1) for i, name in enumerate(week)}
    names = list(week)
    random.shuffle(names)
    shuffled = standardise({name: week[name] for name in names}, {name: weights[name] for name in names})
    assert shuffled == standardise(week, weights)


def test_weights_and_counts_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="cohorts without a declared weight: destructive"):
        standardise(WEEK_1, {"routine": 1.0})
    for wrong in ({"routine": -0.1, "destructive": 1}, {"routine": float("nan"), "destructive": 1}):
        with pytest.raises(ValueError, match="at least 0, finite and not all 0, found"):
            standardise(WEEK_1, wrong)
    with pytest.raises(ValueError, match="not all 0"):
        standardise(WEEK_1, {"routine": 0, "destructive": 0})
    with pytest.raises(ValueError, match="without a standard error: destructive"):
        standardised_error(WEIGHTS, {"routine": 0.1})
    with pytest.raises(ValueError, match="11 passes of 10 tasks"):
        single_runs(11, 10)


def test_no_cohort_at_all_moves_nothing():
    assert movement({}, {}).reason == "no tasks, or tasks that are not estimable, on one side"
    assert single_runs(0, 0).estimate is None
