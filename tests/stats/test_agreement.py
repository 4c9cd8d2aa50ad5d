"""A judge against labels: counts by hand, kappa against statsmodels and enumeration, corrected rates by simulation."""

from math import lgamma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.inter_rater import cohens_kappa

from passhat.stats.agreement import (
    Confusion,
    Estimate,
    cohen_kappa,
    confusion,
    confusions,
    corrected_rate,
    judge_quality,
)
from passhat.stats.intervals import clopper_pearson, dirichlet
from passhat.stats.table import histogram

CONFUSIONS = st.builds(Confusion, *[st.integers(0, 40)] * 4)


def test_labelled_runs_are_counted_by_class():
    judge = np.array([True, True, False, False, True, False])
    label = np.array([True, False, True, False, True, False])
    group = np.array([0, 0, 2, 2, 2, 0])
    by_class = confusions(judge, label, group, 3)
    assert by_class == [Confusion(1, 1, 0, 1), Confusion(0, 0, 0, 0), Confusion(1, 0, 1, 1)]
    assert confusion(judge, label) == Confusion(2, 1, 1, 2)
    assert confusion(judge, label).total == 6
    assert confusion(judge[:0], label[:0]) == Confusion(0, 0, 0, 0)


def test_error_rates_are_shares_of_what_the_label_says():
    quality = judge_quality(Confusion(both_pass=126, false_pass=3, false_fail=14, both_fail=67), 0.9)
    assert (quality.agreement.count, quality.agreement.total) == (193, 210)
    assert quality.false_pass.estimate == 3 / 70
    assert quality.false_pass.interval == clopper_pearson(3, 70, 0.9)
    assert quality.false_fail.estimate == 14 / 140
    assert quality.false_fail.interval == clopper_pearson(14, 140, 0.9)


def test_rates_of_nothing_are_undefined_with_their_reason():
    empty = judge_quality(Confusion(0, 0, 0, 0))
    reasons = [empty.agreement.reason, empty.false_pass.reason, empty.false_fail.reason]
    assert reasons == ["no labelled runs", "no run is labelled a fail", "no run is labelled a pass"]
    assert empty.agreement.estimate is empty.agreement.interval is None
    one_sided = judge_quality(Confusion(9, 0, 1, 0))
    assert one_sided.false_pass.estimate is None
    assert one_sided.false_fail.estimate == 0.1


@given(CONFUSIONS)
def test_kappa_is_that_of_statsmodels_and_its_interval_has_width_around_it(counted):
    kappa = cohen_kappa(counted)
    if kappa.estimate is None:
        assert counted.total in (0, counted.both_pass, counted.both_fail)
        return
    table = np.array([[counted.both_pass, counted.false_pass], [counted.false_fail, counted.both_fail]])
    assert kappa.estimate == pytest.approx(cohens_kappa(table, return_results=False), abs=1e-14)
    assert -1 <= kappa.interval.lower <= kappa.estimate <= kappa.interval.upper <= 1
    assert kappa.interval.lower < kappa.interval.upper
    # half a run more in each cell, and the standard error of the large-sample theory
    augmented = cohens_kappa(table + 0.5)
    expected = augmented.kappa + np.array([-1.6448536269514722, 1.6448536269514722]) * augmented.std_kappa
    ends = cohen_kappa(counted, 0.9).interval
    assert ends.lower == pytest.approx(max(-1, min(kappa.estimate, expected[0])), abs=1e-12)
    assert ends.upper == pytest.approx(min(1, max(kappa.estimate, expected[1])), abs=1e-12)


def test_kappa_does_not_depend_on_who_is_the_judge_or_what_is_called_a_pass():
    counted = Confusion(120, 3, 14, 73)
    for other in (Confusion(120, 14, 3, 73), Confusion(73, 3, 14, 120)):
        assert cohen_kappa(other).estimate == pytest.approx(cohen_kappa(counted).estimate, rel=1e-14)
        assert cohen_kappa(other).interval.lower == pytest.approx(cohen_kappa(counted).interval.lower, rel=1e-12)


def test_agreement_on_everything_is_a_kappa_of_1_whose_interval_has_width():
    kappa = cohen_kappa(Confusion(15, 0, 0, 5))
    assert (kappa.estimate, kappa.interval.upper) == (1.0, 1.0)
    assert 0.5 < kappa.interval.lower < 0.8
    assert kappa.interval.method == "fleiss-cohen-everitt-plus-half"


def test_kappa_is_undefined_when_there_is_one_verdict_only():
    one_verdict = Estimate(None, None, "judge and labels give all runs one and the same verdict")
    assert cohen_kappa(Confusion(20, 0, 0, 0)) == cohen_kappa(Confusion(0, 0, 0, 20)) == one_verdict
    assert cohen_kappa(Confusion(0, 0, 0, 0)) == Estimate(None, None, "no labelled runs")
    assert cohen_kappa(Confusion(0, 12, 0, 0)).estimate == 0.0


@pytest.mark.parametrize(
    ("pass_rate", "true_pass", "true_fail"),
    [(0.5, 0.95, 0.95), (0.8, 0.99, 0.99), (0.8, 0.8, 0.7), (0.9, 0.9, 0.6), (0.7, 0.5, 0.5)],
)
def test_of_all_that_twenty_labels_can_be_neither_end_of_kappa_misses_more_than_one_in_twenty(
    pass_rate, true_pass, true_fail
):
    chances = np.array(
        [
            pass_rate * true_pass,
            (1 - pass_rate) * (1 - true_fail),
            pass_rate * (1 - true_pass),
            (1 - pass_rate) * true_fail,
        ]
    )
    agreed, judged = chances[0] + chances[3], chances[0] + chances[1]
    by_chance = judged * pass_rate + (1 - judged) * (1 - pass_rate)
    truth = (agreed - by_chance) / (1 - by_chance)
    too_high = too_low = defined = 0.0
    for a in range(21):
        for b in range(21 - a):
            for c in range(21 - a - b):
                counts = np.array([a, b, c, 20 - a - b - c])
                kappa = cohen_kappa(Confusion(*counts.tolist()))
                if kappa.interval is None:
                    continue
                log_ways = lgamma(21) - sum(lgamma(count + 1) for count in counts)
                chance = float(np.exp(log_ways + counts @ np.log(chances)))
                defined += chance
                too_high += chance * (kappa.interval.lower > truth)
                too_low += chance * (kappa.interval.upper < truth)
    assert too_high / defined < 0.055
    assert too_low / defined < 0.055


def test_the_worked_rate_of_0_79_is_corrected_to_0_87():
    labels = Confusion(both_pass=902, false_pass=41, false_fail=98, both_fail=959)
    rate = corrected_rate(histogram([1] * 1000, [1] * 790 + [0] * 210), labels)
    assert rate.estimate == pytest.approx((0.790 + 0.959 - 1) / (0.902 + 0.959 - 1), rel=1e-13)
    assert f"{rate.estimate:.3f}" == "0.870"
    assert rate.interval.method == "rogan-gladen-mover"


def test_a_judge_without_errors_leaves_the_rate_and_more_labels_leave_its_dirichlet_bound():
    judged = histogram([8] * 60, [8] * 30 + [6] * 20 + [0] * 10)
    assert corrected_rate(judged, Confusion(30, 0, 0, 30)).estimate == pytest.approx(0.75, rel=1e-14)
    many = 10**12
    rate = corrected_rate(judged, Confusion(many * 9, many * 2, many, many * 8))
    bound = dirichlet([1, 0.75, 0], [30, 20, 10])
    ends = (rate.estimate, rate.interval.lower, rate.interval.upper)
    assert ends == pytest.approx([(q - 0.2) / 0.7 for q in (0.75, bound.lower, bound.upper)], rel=1e-5)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), CONFUSIONS, st.sampled_from([0.5, 0.95, 0.999]))
def test_a_corrected_rate_lies_in_its_interval_which_has_width_or_a_reason(passes, counted, confidence):
    rate = corrected_rate(histogram([4] * len(passes), passes), counted, confidence)
    if rate.interval is None:
        assert rate.reason
        return
    assert 0 <= rate.interval.lower <= rate.estimate <= rate.interval.upper <= 1
    assert rate.interval.lower < rate.interval.upper


@pytest.mark.parametrize(
    ("rate", "true_pass", "true_fail"), [(0.5, 0.95, 0.95), (0.8, 0.95, 0.9), (0.9, 0.98, 0.8), (0.3, 0.9, 0.7)]
)
def test_neither_end_of_a_corrected_rate_misses_more_often_than_it_may(rate, true_pass, true_fail):
    rng = np.random.default_rng(int(100 * rate))
    reported = rate * true_pass + (1 - rate) * (1 - true_fail)
    samples, too_high, too_low = 400, 0, 0
    for _ in range(samples):
        judged, passes, fails = rng.binomial(200, reported), rng.binomial(60, true_pass), rng.binomial(40, true_fail)
        counted = Confusion(int(passes), int(40 - fails), int(60 - passes), int(fails))
        interval = corrected_rate(histogram([1] * 200, [1] * judged + [0] * (200 - judged)), counted).interval
        too_high += interval.lower > rate
        too_low += interval.upper < rate
    # .025 and three standard errors of 400 samples
    assert max(too_high, too_low) / samples <= 0.025 + 3 * (0.025 * 0.975 / samples) ** 0.5


@pytest.mark.parametrize(
    ("n", "c", "counted", "reason"),
    [
        ([], [], Confusion(9, 1, 1, 9), "no tasks"),
        ([4, 0], [3, 0], Confusion(9, 1, 1, 9), "1 of 2 tasks have no judged run"),
        ([4], [3], Confusion(9, 0, 1, 0), "no run is labelled a fail"),
        ([4], [3], Confusion(0, 1, 0, 9), "no run is labelled a pass"),
        ([4], [3], Confusion(5, 5, 5, 5), "the judge passes fails at least as often as passes"),
        ([4], [3], Confusion(1, 9, 9, 1), "the judge passes fails at least as often as passes"),
    ],
)
def test_a_rate_that_cannot_be_corrected_is_undefined_with_its_reason(n, c, counted, reason):
    assert corrected_rate(histogram(n, c), counted) == Estimate(None, None, reason)


def test_a_rate_below_what_the_judges_false_passes_alone_explain_has_no_interval():
    rate = corrected_rate(histogram([1] * 1000, [0] * 1000), Confusion(900, 500, 100, 500))
    assert rate == Estimate(0.0, None, "the judge's errors on labelled runs cannot explain the rate that it reports")


def test_what_is_not_a_verdict_is_refused():
    verdicts = np.array([True, False])
    with pytest.raises(TypeError, match="judge holds int64 and label bool, expected bool"):
        confusion(np.array([1, 0]), verdicts)
    with pytest.raises(ValueError, match="need one and the same length"):
        confusion(verdicts, verdicts[:1])
    with pytest.raises(ValueError, match="groups go from 0 to 1, found 0 to 2"):
        confusions(verdicts, verdicts, np.array([0, 2]), 2)
    with pytest.raises(ValueError, match="a number of runs is at least 0"):
        Confusion(1, 2, -1, 0)
