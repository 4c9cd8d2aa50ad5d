"""Boundaries against multivariate normal rectangles; betting against all sequences of coins and simulated campaigns."""

from itertools import pairwise, product
from math import comb, exp, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from passhat.stats.sequential import (
    OBRIEN_FLEMING,
    POCOCK,
    bet_on_differences,
    bet_on_tasks,
    discordant_log_e_value,
    group_sequential,
)
from passhat.stats.table import OutcomeTable


def table(passed, planned=4, unscored=None):
    passed = np.array(passed)
    unscored = np.zeros_like(passed) if unscored is None else np.array(unscored)
    return OutcomeTable(np.full_like(passed, planned), passed, planned - passed - unscored, unscored)


def simulated(rng, tasks, runs, base, candidate):
    return (rng.binomial(runs, candidate, (2000, tasks)) - rng.binomial(runs, base, (2000, tasks))) / runs


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("shape", [OBRIEN_FLEMING, POCOCK])
@pytest.mark.parametrize("looks", [[0.5, 1], [0.2, 0.3, 1], [0.1, 0.4, 0.7, 0.9, 1]])
def test_the_chance_to_stay_inside_is_that_of_a_multivariate_normal_rectangle(looks, shape, sides):
    boundary = group_sequential(looks, 0.05, sides=sides, shape=shape)
    correlation = np.array([[sqrt(min(a, b) / max(a, b)) for a in looks] for b in looks])
    upper = np.minimum(boundary.critical, 12)
    law = stats.multivariate_normal(cov=correlation, seed=np.random.default_rng(1), maxpts=10**6, abseps=1e-7)
    inside = law.cdf(upper, lower_limit=-upper if sides == 2 else np.full(len(looks), -12.0))
    assert 1 - inside == pytest.approx(0.05, abs=1e-5)


@pytest.mark.parametrize("shape", [OBRIEN_FLEMING, POCOCK])
def test_one_look_is_no_sequential_test(shape):
    boundary = group_sequential([1.0], 0.05, shape=shape)
    assert boundary.critical == pytest.approx((stats.norm.ppf(0.975),), rel=1e-12)
    assert boundary.levels == boundary.spent == pytest.approx((0.05,), rel=1e-12)


def test_the_shapes_are_those_they_are_named_after():
    looks = [0.25, 0.5, 0.75, 1.0]
    falling, flat = (group_sequential(looks, shape=shape).critical for shape in (OBRIEN_FLEMING, POCOCK))
    assert [z * sqrt(t) for z, t in zip(falling, looks, strict=True)] == pytest.approx([falling[-1]] * 4)
    assert len(set(flat)) == 1
    assert stats.norm.ppf(0.975) < falling[-1] < flat[0] < stats.norm.ppf(1 - 0.025 / 4)


def test_two_looks_split_a_one_sided_level_as_the_union_bound_may_use_it():
    boundary = group_sequential([0.5, 1.0], 0.025, sides=1)
    assert [round(level, 4) for level in boundary.spent] == [0.0026, 0.0224]
    assert [round(level, 4) for level in boundary.levels] == [0.0026, 0.0240]
    assert sum(boundary.spent) == pytest.approx(0.025, rel=1e-9)


@pytest.mark.parametrize("alpha", [1e-6, 0.01, 0.3])
@pytest.mark.parametrize("looks", [3, 20, 40])
def test_any_number_of_looks_spends_alpha_and_no_more(looks, alpha):
    fractions = [(i + 1) / looks for i in range(looks)]
    for shape in (OBRIEN_FLEMING, POCOCK):
        boundary = group_sequential(fractions, alpha, sides=1, shape=shape)
        assert sum(boundary.spent) == pytest.approx(alpha, rel=1e-7)
        assert min(boundary.spent) >= 0
        assert boundary.spent[0] == pytest.approx(boundary.levels[0], rel=1e-9)


def test_more_looks_and_smaller_levels_ask_for_more():
    flat = [group_sequential(np.linspace(0, 1, n + 1)[1:], shape=POCOCK).critical[0] for n in (1, 2, 5, 30)]
    assert all(a < b for a, b in pairwise(flat))
    levels = [group_sequential([0.5, 1], alpha).critical[1] for alpha in (0.2, 0.05, 0.001)]
    assert all(a < b for a, b in pairwise(levels))


def test_a_thousand_tasks_looked_at_as_declared_err_as_often_as_declared():
    looks = np.array([250, 500, 750, 1000])
    boundary = group_sequential(looks / 1000, 0.05)
    steps = np.random.default_rng(3).standard_normal((40_000, 4))
    z = steps.cumsum(axis=1) / np.sqrt(np.arange(1, 5))
    crossed = np.abs(z) >= boundary.critical
    first = np.where(crossed.any(axis=1), crossed.argmax(axis=1), -1)
    for look, spent in enumerate(boundary.spent):
        assert (first == look).mean() == pytest.approx(spent, abs=4 * sqrt(spent / 40_000))


@pytest.mark.parametrize("looks", [[], [0.5], [0.5, 0.5, 1], [0.0, 1], [0.6, 0.4, 1], [0.5, 1, 1.5], [0.9995, 1]])
def test_looks_that_do_not_ascend_to_all_tasks_are_refused(looks):
    with pytest.raises(ValueError, match="fractions ascend to 1"):
        group_sequential(looks)


def test_levels_sides_and_shapes_that_are_none_are_refused():
    for options in ({"alpha": 0.0}, {"alpha": 1.0}, {"sides": 3}, {"shape": "haybittle"}):
        with pytest.raises(ValueError, match="a known shape"):
            group_sequential([0.5, 1], **options)
    with pytest.raises(ValueError, match="1 to 100 fractions"):
        group_sequential(np.linspace(0, 1, 202)[1:])


@pytest.mark.parametrize("bet", [None, 0.5])
@pytest.mark.parametrize("size", [1.0, 0.375])
def test_over_all_signs_the_wealth_is_1_on_average_and_reaches_its_goal_no_more_often_than_it_may(size, bet):
    signs = np.array(list(product((1, -1), repeat=11)))
    paths = np.exp([bet_on_differences(size * row, bet=bet).log_wealth for row in signs])
    np.testing.assert_allclose(paths.mean(axis=0), 1, rtol=1e-12)
    for alpha in (0.5, 0.2, 0.05, 0.01):
        reached = [bet_on_differences(size * row, alpha=alpha, bet=bet).rejected_after is not None for row in signs]
        assert np.mean(reached) <= alpha


@pytest.mark.parametrize("margin", [0.25, 0.0, -0.1])
def test_a_candidate_at_the_margin_keeps_the_wealth_at_1_on_average_and_a_worse_one_lowers_it(margin):
    # three values with their chances, the mean of which is -margin or less
    for loss, exactly in ((margin, True), (margin + 0.05, False)):
        chances = {1.0: (0.5 - loss) / 2, 0.0: 0.5, -1.0: (0.5 + loss) / 2}
        mean = np.zeros(7)
        for row in product(chances, repeat=7):
            wealth = np.exp(bet_on_differences(row, margin=margin).log_wealth)
            mean += wealth * np.prod([chances[d] for d in row])
        if exactly:
            np.testing.assert_allclose(mean, 1, rtol=1e-12)
        else:
            assert (np.diff(mean) < 1e-12).all()
            assert mean[-1] < 1


@pytest.mark.parametrize("swing", [0.0, 0.25])
def test_campaigns_without_a_mean_difference_are_rejected_no_more_often_than_alpha(swing):
    rng = np.random.default_rng(4)
    base = rng.uniform(0.25, 0.75, (2000, 200))
    candidate = base + swing * rng.choice([-1, 1], (2000, 200))
    reached = [bet_on_differences(d).rejected_after for d in simulated(rng, 200, 8, base, candidate)]
    share = np.mean([task is not None for task in reached])
    assert share <= 0.05 + 3 * sqrt(0.05 * 0.95 / 2000)
    assert share <= 0.03  # what Ville leaves unused


def test_a_real_gain_is_found_before_all_tasks_have_run():
    rng = np.random.default_rng(5)
    base = rng.uniform(0.2, 0.8, (2000, 200))
    results = [bet_on_differences(d).rejected_after for d in simulated(rng, 200, 8, base, base + 0.15)[:300]]
    assert None not in results
    assert np.median(results) < 60
    lost = [bet_on_differences(d, margin=0.1).rejected_after for d in simulated(rng, 200, 8, base, base - 0.15)[:300]]
    assert sum(task is not None for task in lost) <= 3
    kept = [bet_on_differences(d, margin=0.1).rejected_after for d in simulated(rng, 200, 8, base, base)[:300]]
    assert sum(task is not None for task in kept) > 250


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_swapping_the_releases_changes_nothing_without_a_margin(differences):
    forward, backward = bet_on_differences(differences), bet_on_differences(np.negative(differences))
    np.testing.assert_allclose(forward.log_wealth, backward.log_wealth, rtol=1e-9, atol=1e-12)
    assert 0 < forward.p_value <= 1


def test_a_bet_looks_only_at_the_tasks_before():
    differences = np.random.default_rng(6).uniform(-1, 1, 20)
    whole = bet_on_differences(differences).log_wealth
    for seen in (1, 7, 19):
        changed = np.append(differences[:seen], np.ones(20 - seen))
        np.testing.assert_array_equal(bet_on_differences(changed).log_wealth[:seen], whole[:seen])
        np.testing.assert_array_equal(bet_on_differences(differences[:seen]).log_wealth, whole[:seen])
    assert whole[0] == 0.0  # nothing is known before the first


def test_wealth_beyond_the_largest_double_is_carried_as_its_logarithm():
    bets = bet_on_differences(np.ones(5000))
    assert bets.log_wealth[-1] > 3000
    assert 0 < bets.p_value < 1e-300
    assert bets.rejected_after == 7


def test_tasks_are_used_in_their_declared_order_up_to_the_first_that_is_not_complete():
    order = [3, 0, 4, 1, 2]
    base, candidate = table([1, 2, 0, 1, 0]), table([2, 4, 0, 3, 4])
    all_used = bet_on_tasks(base, candidate, order)
    expected = bet_on_differences(np.array([0.5, 0.25, 1.0, 0.5, 0.0]))
    np.testing.assert_array_equal(all_used.log_wealth, expected.log_wealth)
    assert (all_used.tasks_used, all_used.tasks_waiting) == (5, 0)
    # task 4 lacks a run of the base: 1 and 2 are complete, and wait
    waiting = bet_on_tasks(table([1, 2, 0, 1, 0], unscored=[0, 0, 0, 0, 1]), candidate, order)
    assert (waiting.tasks_used, waiting.tasks_waiting) == (2, 2)
    np.testing.assert_array_equal(waiting.log_wealth, all_used.log_wealth[:2])
    none = bet_on_tasks(base, table([2, 4, 0, 2, 4], unscored=[0, 0, 0, 1, 0]), order)
    assert (none.tasks_used, none.tasks_waiting, none.rejected_after, none.p_value) == (0, 4, None, 1.0)
    assert none.reason == "no complete task at the head of the order"


def test_the_unit_is_pass_hat_k_of_a_task_with_its_own_number_of_runs():
    base = OutcomeTable([4, 3], [2, 3], [2, 0], [0, 0])
    candidate = OutcomeTable([4, 5], [4, 3], [0, 2], [0, 0])
    bets = bet_on_tasks(base, candidate, [0, 1], 2, bet=0.5)
    up = np.cumsum(np.log1p(0.5 * np.array([1 - 1 / 6, 3 / 10 - 1])))
    down = np.cumsum(np.log1p(-0.5 * np.array([1 - 1 / 6, 3 / 10 - 1])))
    np.testing.assert_allclose(bets.log_wealth, np.logaddexp(up, down) - log(2), rtol=1e-12)


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [1, 2, 3], [0, 1, 2, 3]])
def test_an_order_that_leaves_tasks_out_or_repeats_them_is_refused(order):
    with pytest.raises(ValueError, match="the order is a permutation of the rows"):
        bet_on_tasks(table([1, 2, 3]), table([1, 2, 3]), order)


def test_bets_and_tasks_that_break_the_conditions_are_refused():
    with pytest.raises(ValueError, match="of both tables, 3 and 2"):
        bet_on_tasks(table([1, 2, 3]), table([1, 2]), [0, 1, 2])
    with pytest.raises(ValueError, match=r"short are \[1\]"):
        bet_on_tasks(OutcomeTable([4, 2], [2, 2], [2, 0], [0, 0]), table([1, 2]), [1, 0], 3)
    with pytest.raises(ValueError, match=r"values in \[-1, 1\]"):
        bet_on_differences([1.5])
    with pytest.raises(ValueError, match="a margin lies between -1 and 1"):
        bet_on_differences([0.5], margin=1.0)
    for bet, margin in ((1.0, None), (-0.1, None), (1.25, 0.2)):
        with pytest.raises(ValueError, match="a bet lies between 0 and"):
            bet_on_differences([0.5], bet=bet, margin=margin)
    with pytest.raises(ValueError, match="alpha lies between 0 and 1"):
        bet_on_differences([0.5], alpha=5)
    with pytest.raises(ValueError, match="counts of tasks are at least 0"):
        discordant_log_e_value(-1, 3)


def test_without_tasks_there_is_no_evidence():
    nothing = bet_on_tasks(table([]), table([]), [])
    assert (nothing.tasks_used, nothing.p_value, nothing.rejected_after) == (0, 1.0, None)


@pytest.mark.parametrize("discordant", [1, 9, 60])
def test_the_e_value_of_discordant_tasks_is_1_on_average_under_fair_coins(discordant):
    values = [exp(discordant_log_e_value(b, discordant - b)) for b in range(discordant + 1)]
    chances = [comb(discordant, b) / 2**discordant for b in range(discordant + 1)]
    assert np.dot(values, chances) == pytest.approx(1, rel=1e-11)


def test_the_e_value_of_many_discordant_tasks_is_carried_as_its_logarithm():
    expected = 5000 * log(2) - log(5001) - log(comb(5000, 10))
    assert discordant_log_e_value(10, 4990) == pytest.approx(expected, rel=1e-12)
    assert discordant_log_e_value(4990, 10) == pytest.approx(expected, rel=1e-12)
