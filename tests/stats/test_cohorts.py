"""Standardised rates on the worked examples; mix and quality against their identity; one cohort by itself."""

import doctest
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passhat.stats import cohorts as module
from passhat.stats.closed_form import cluster_wilson
from passhat.stats.cohorts import movement, single_runs, standardise, standardised_error
from passhat.stats.intervals import dirichlet
from passhat.stats.reliability import pass_hat
from passhat.stats.spread import spread
from passhat.stats.table import histogram

WEIGHTS = {"routine": 0.6, "destructive": 0.4}
WEEK_1 = {"routine": single_runs(81, 90), "destructive": single_runs(3, 10)}
WEEK_2 = {"routine": single_runs(45, 50), "destructive": single_runs(15, 50)}


@st.composite
def weeks(draw):
    """Counts of up to four cohorts, some of them without a task, but not all."""
    names = ["a", "b", "c", "d"][: draw(st.integers(1, 4))]
    totals = draw(st.lists(st.integers(0, 40), min_size=len(names), max_size=len(names)).filter(any))
    return {name: single_runs(draw(st.integers(0, total)), total) for name, total in zip(names, totals, strict=True)}


def test_the_examples_in_the_docstrings_hold():
    result = doctest.testmod(module)
    assert (result.failed, result.attempted >= 7) == (0, True)


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
