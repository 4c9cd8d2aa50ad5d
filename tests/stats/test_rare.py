"""Bounds on rare events against the binomial law, and what clustering does to them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from passhat.stats.rare import BY_RUN, BY_TASK, chance_of_no_event, event_bound, rare_events, trials_needed


def test_rare_severe_events_are_bounded_by_a_rate_only_with_enough_trials():
    assert [trials_needed(rate) for rate in (0.05, 0.01, 0.001)] == [59, 299, 2995]
    bounds = [event_bound(0, trials, BY_RUN).upper for trials in (59, 299, 2995)]
    assert bounds == pytest.approx([0.04951, 0.00997, 0.0009997], abs=5e-6)


@given(st.integers(1, 10**6), st.integers(0, 20), st.floats(0.5, 0.9999))
def test_at_the_bound_so_few_events_have_the_chance_that_confidence_leaves(trials, events, confidence):
    if events >= trials:
        assert event_bound(trials, trials, BY_TASK, confidence).upper == 1.0
        return
    upper = event_bound(events, trials, BY_TASK, confidence).upper
    assert events / trials < upper < 1
    assert stats.binom.cdf(events, trials, upper) == pytest.approx(1 - confidence, rel=1e-6)


@given(st.floats(1e-8, 0.999), st.floats(0.5, 0.999999))
def test_one_trial_less_than_needed_is_not_enough(rate, confidence):
    needed = trials_needed(rate, confidence)
    assert event_bound(0, needed, BY_RUN, confidence).upper <= rate * (1 + 1e-9)
    if needed > 1:
        assert event_bound(0, needed - 1, BY_RUN, confidence).upper > rate * (1 - 1e-9)


def test_a_whole_quotient_of_logarithms_needs_no_trial_more():
    assert trials_needed(0.5, 0.9375) == 4
    assert trials_needed(0.1, 1 - 0.9**7) == 7


def test_tasks_and_runs_are_labelled_and_only_tasks_tighten_the_bound_a_gate_reads():
    bounds = rare_events(0, 100, 0, 1000)
    assert (bounds.by_task.unit, bounds.by_run.unit) == ("tasks", "runs, if they are independent")
    assert bounds.by_task.upper == pytest.approx(1 - 0.05 ** (1 / 100), rel=1e-12)
    assert bounds.by_run.upper == pytest.approx(1 - 0.05 ** (1 / 1000), rel=1e-12)
    assert rare_events(0, 100, 0, 10_000).by_task == bounds.by_task
    seen = rare_events(2, 100, 9, 1000)
    assert (seen.by_task.events, seen.by_run.events) == (2, 9)
    assert seen.by_run.upper > 0.009


def test_without_trials_there_is_no_bound_and_never_a_rate_of_zero():
    nothing = rare_events(0, 0, 0, 0)
    assert (nothing.by_task.upper, nothing.by_task.reason) == (None, "no trials")


def test_counts_that_contradict_each_other_are_refused():
    for counts in ((1, 10, 0, 100), (3, 10, 2, 100), (0, 10, 1, 100), (1, 10, 1, 9)):
        with pytest.raises(ValueError, match="cannot be counts of one campaign"):
            rare_events(*counts)
    with pytest.raises(ValueError, match="3 events in 2 trials"):
        event_bound(3, 2, BY_TASK)
    with pytest.raises(ValueError, match="confidence is between 0 and 1"):
        event_bound(0, 2, BY_TASK, 95)
    for rate in (0.0, 1.0):
        with pytest.raises(ValueError, match="lies between 0 and 1"):
            trials_needed(rate)
    with pytest.raises(ValueError, match="lie in"):
        chance_of_no_event(1.5, 0.5, 1, 1)


def test_events_hidden_in_few_tasks_stay_unseen_as_often_as_the_mixture_over_those_tasks_says():
    mixture = sum(stats.binom.pmf(bad, 100, 0.02) * 0.5 ** (10 * bad) for bad in range(101))
    assert chance_of_no_event(0.02, 0.5, 100, 10) == pytest.approx(mixture, rel=1e-12)
    # nothing seen in 13 % of campaigns, all of which the bound by runs would call better than the true .01
    assert rare_events(0, 100, 0, 1000).by_run.upper < 0.02 * 0.5 < rare_events(0, 100, 0, 1000).by_task.upper
    assert chance_of_no_event(0.3, 0.5, 0, 10) == chance_of_no_event(0.0, 1.0, 9, 9) == 1.0
    assert chance_of_no_event(1.0, 1.0, 2, 1) == 0.0
