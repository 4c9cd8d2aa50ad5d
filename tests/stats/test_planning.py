"""Numbers of tasks and powers against statsmodels, scipy, full enumeration and simulation of the tests themselves."""

from collections import Counter
from itertools import product
from math import prod, sqrt

import numpy as np
import pytest
from scipy import integrate, stats
from statsmodels.stats.power import TTestPower

from passhat.stats.intervals import dirichlet, expected_lower_end
from passhat.stats.planning import (
    BetaModel,
    PairedDesign,
    beta_model,
    detectable_effect,
    fewest_tasks_for_margin,
    mcnemar_power,
    shifted_design,
    sign_flip_power,
    t_power,
    tasks_needed,
    tasks_to_pass,
)
from passhat.stats.sign_flips import sign_flip

LAW = {-2: 0.05, -1: 0.1, 0: 0.25, 1: 0.25, 2: 0.35}


def enumerate_power(law, tasks, alpha):
    """The chance that the sign-flip test rejects, over every list of differences and every pattern of signs."""
    power = 0.0
    for differences in product(law, repeat=tasks):
        sums = [abs(np.dot(signs, differences)) for signs in product((1, -1), repeat=tasks)]
        p_value = np.mean([total >= abs(sum(differences)) for total in sums])
        power += prod(law[d] for d in differences) * (p_value <= alpha)
    return power


@pytest.mark.parametrize(("effect", "variance", "alpha", "power"), [(0.05, 0.05, 0.05, 0.8), (-0.3, 0.2, 0.01, 0.95)])
def test_the_tasks_needed_are_the_first_with_the_power_that_statsmodels_computes(effect, variance, alpha, power):
    needed = tasks_needed(effect, variance / 2, variance * 2, 4, alpha=alpha, power=power)

    def oracle(tasks):
        return TTestPower().power(abs(effect) / sqrt(variance), tasks, alpha / 2, alternative="larger")

    assert needed.power == pytest.approx(oracle(needed.tasks), rel=1e-7)
    assert oracle(needed.tasks) >= power > oracle(needed.tasks - 1)
    reach = stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power)
    assert needed.normal == pytest.approx(reach**2 * variance / effect**2, rel=1e-12)
    assert needed.tasks - needed.normal == pytest.approx(stats.norm.ppf(1 - alpha / 2) ** 2 / 2, abs=1.2)


@pytest.mark.parametrize("tasks", [2, 3, 20, 500, 10**6])
def test_the_detectable_effect_is_found_with_the_power_it_was_computed_for(tasks):
    effect = detectable_effect(0.02, 0.3, tasks, 5, alpha=0.1, power=0.9)
    assert t_power(effect, 0.02, 0.3, tasks, 5, alpha=0.1) == pytest.approx(0.9, rel=1e-7)


def test_plans_at_the_edges_have_an_answer():
    assert tasks_needed(1e-4, 0.01, 0.3, 8).tasks == 37_282_181
    assert (tasks_needed(0.1, 0, 0, 3).tasks, tasks_needed(0.1, 0, 0, 3).power) == (2, 1.0)
    assert tasks_needed(10, 0.01, 0.3, 8).tasks == 2
    assert (t_power(0.1, 0.02, 0.3, 1, 5), t_power(0.1, 0.02, 0.3, 0, 5)) == (0.0, 0.0)
    assert (t_power(0.0, 0.0, 0.0, 9, 5), t_power(0.1, 0.0, 0.0, 9, 5)) == (0.0, 1.0)
    assert detectable_effect(0.02, 0.3, 1, 5) is None
    assert detectable_effect(0.0, 0.0, 9, 5) == 0.0
    assert t_power(0.0, 0.02, 0.3, 30, 5) == pytest.approx(0.025, rel=1e-9)


@pytest.mark.parametrize("margin", [0.01, 0.03, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("alpha", [0.025, 0.1])
def test_fewer_tasks_than_the_fewest_leave_the_bound_below_the_margin_though_nothing_changed(margin, alpha):
    fewest = fewest_tasks_for_margin(margin, alpha)

    def bound(tasks):
        return dirichlet([0.0], [tasks], 1 - 2 * alpha, lower_limit=-1).lower

    assert bound(fewest) > -margin
    assert fewest == 1 or bound(fewest - 1) <= -margin


def test_a_margin_met_exactly_needs_one_task_more():
    assert fewest_tasks_for_margin(0.5, 0.25) == 3
    assert [fewest_tasks_for_margin(margin) for margin in (0.01, 0.02, 0.03, 0.05, 0.1)] == [368, 183, 122, 72, 36]


@pytest.mark.parametrize(("tasks", "base_only", "candidate_only"), [(7, 0.1, 0.4), (12, 0.05, 0.6), (12, 0.0, 1.0)])
@pytest.mark.parametrize("alpha", [0.05, 0.125])
def test_the_power_of_mcnemar_is_the_sum_over_all_tables(tasks, base_only, candidate_only, alpha):
    expected = sum(
        stats.multinomial.pmf([b, c, tasks - b - c], tasks, [base_only, candidate_only, 1 - base_only - candidate_only])
        for b in range(tasks + 1)
        for c in range(tasks + 1 - b)
        if b + c and stats.binomtest(b, b + c).pvalue <= alpha * (1 + 1e-12)
    )
    assert mcnemar_power(tasks, base_only, candidate_only, alpha) == pytest.approx(expected, rel=1e-10)


def test_the_power_of_mcnemar_with_many_tasks_is_near_the_normal_one():
    b, c, tasks = 0.05, 0.0505, 10**6
    # the exact test with half a task of correction, conditional on the discordant tasks being about their mean
    shift = (tasks * (c - b) - 1) / sqrt(tasks * (b + c))
    assert mcnemar_power(tasks, b, c) == pytest.approx(stats.norm.sf(1.959964 - shift), abs=2e-3)


def test_where_no_task_can_be_discordant_or_there_is_none_nothing_is_rejected():
    assert mcnemar_power(100, 0.0, 0.0) == 0.0
    assert mcnemar_power(0, 0.1, 0.2) == 0.0
    assert mcnemar_power(5, 0.0, 1.0) == 0.0  # p = 1/16 at best
    assert mcnemar_power(6, 0.0, 1.0) == pytest.approx(1.0)
    assert sign_flip_power({0: 1.0}, 100).power == 0.0
    assert sign_flip_power({1: 1.0}, 0).power == 0.0


@pytest.mark.parametrize("alpha", [0.125, 0.3])
def test_the_power_of_the_sign_flip_test_is_that_of_full_enumeration(alpha):
    found = sign_flip_power(LAW, 5, alpha)
    assert (found.method, found.standard_error) == ("exact", 0.0)
    assert found.power == pytest.approx(enumerate_power(LAW, 5, alpha), rel=1e-12)
    scaled = {3 * d: chance for d, chance in LAW.items()}
    assert sign_flip_power(scaled, 5, alpha).power == pytest.approx(found.power, rel=1e-12)


@pytest.mark.parametrize(("tasks", "down", "up"), [(40, 0.05, 0.3), (200, 0.05, 0.12), (200, 0.1, 0.1)])
def test_with_one_run_a_task_the_sign_flip_test_has_the_power_of_mcnemar(tasks, down, up):
    law = {-1: down, 0: 1 - down - up, 1: up}
    assert sign_flip_power(law, tasks).power == pytest.approx(mcnemar_power(tasks, down, up), rel=1e-9)


def test_the_simulated_power_agrees_with_simulating_the_test_itself():
    law = shifted_design(BetaModel(2.1, 0.9), 0.1, 0.7).differences(8)
    found = sign_flip_power(law, 40, rng=np.random.default_rng(5))
    assert (found.method, found.draws, found.generator, found.seed) == ("simulation", 400, "PCG64", 5)
    rng = np.random.default_rng(6)
    suites = rng.choice(list(law), size=(2000, 40), p=np.array(list(law.values())) / sum(law.values()))
    rejected = np.mean(
        [sign_flip(*zip(*Counter(suite.tolist()).items(), strict=True)).p_value <= 0.05 for suite in suites]
    )
    error = sqrt(rejected * (1 - rejected) / 2000 + found.standard_error**2)
    assert found.power == pytest.approx(rejected, abs=3 * error)
    # knowing the power of every drawn suite leaves less noise than drawing whether it rejects
    assert found.standard_error < 0.5 * sqrt(0.25 / 400)


def test_too_many_histograms_ask_for_a_generator():
    with pytest.raises(ValueError, match="40 tasks with 8 sizes of differences need a simulation"):
        sign_flip_power(shifted_design(BetaModel(2, 1), 0.1).differences(8), 40)


@pytest.mark.parametrize(("a", "b"), [(2.0, 1.0), (0.5, 0.5), (0.01, 3.0), (200.0, 30.0)])
def test_the_beta_model_agrees_with_scipy_and_integration(a, b):
    model = BetaModel(a, b)
    for n in (1, 8, 300):
        expected = stats.betabinom.pmf(np.arange(n + 1), n, a, b)
        np.testing.assert_allclose(model.chances(n), expected, rtol=1e-9)
    assert model.pass_hat(5) == pytest.approx(stats.beta.expect(lambda p: p**5, (a, b)), rel=1e-7)
    mean, variance = stats.beta.stats(a, b)
    assert model.mean == pytest.approx(mean)
    assert model.icc == pytest.approx(variance / (mean * (1 - mean)))
    again = beta_model(model.mean, model.icc)
    assert (again.a, again.b) == pytest.approx((a, b))
    assert model.pass_hat(0) == 1.0


def test_a_shifted_design_has_the_effect_and_variances_of_integration_over_tasks():
    design = shifted_design(BetaModel(2.1, 0.9), 0.05, 0.7)
    plain = shifted_design(BetaModel(2.1, 0.9), 0.05)
    assert (design.effect, plain.effect) == pytest.approx((0.05, 0.05), rel=1e-10)
    odds = np.log(plain.candidate / (1 - plain.candidate)) - np.log(plain.base / (1 - plain.base))
    shift = odds[30]
    np.testing.assert_allclose(odds, shift, rtol=1e-6)  # one shift of the log odds for all

    def difference(p):
        return p / (p + (1 - p) * np.exp(-shift)) - p

    density = stats.beta(2.1, 0.9).pdf
    second = integrate.quad(lambda p: density(p) * difference(p) ** 2, 0, 1)[0]
    assert plain.between == pytest.approx(second - 0.05**2, rel=1e-6)
    within_base = 2.1 * 0.9 / 3 / 4
    assert plain.shares @ (plain.base * (1 - plain.base)) == pytest.approx(within_base, rel=1e-12)

    rng = np.random.default_rng(8)
    p = rng.beta(2.1, 0.9, 10**6)
    scattered = np.log(p / (1 - p)) + 0.7 * rng.standard_normal(10**6)
    moved = 1 / (1 + np.exp(-scattered - solve_shift(scattered, p.mean() + 0.05)))
    assert design.between == pytest.approx((moved - p).var(), rel=0.01)
    assert design.within_run == pytest.approx((p * (1 - p) + moved * (1 - moved)).mean(), rel=0.005)


@pytest.mark.parametrize(
    ("a", "b", "effect"), [(0.01, 3, 0.01), (1e-5, 1e-5, 0.2), (20_000, 10, 2e-4), (1e5, 1e5, -0.3), (0.5, 0.5, 0.1)]
)
def test_designs_of_tasks_that_are_very_alike_or_very_unlike_keep_their_moments(a, b, effect):
    model = BetaModel(a, b)
    for scatter in (0.0, 0.7, 3.0):
        design = shifted_design(model, effect, scatter)
        assert design.effect == pytest.approx(effect, rel=1e-7)
        assert design.shares @ design.base == pytest.approx(model.mean, rel=1e-10)
        assert design.shares @ design.base**3 == pytest.approx(model.pass_hat(3), rel=1e-9)


def solve_shift(log_odds, mean):
    low, high = -5.0, 5.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(-log_odds - middle))).mean() < mean else (low, middle)
    return low


def test_the_differences_of_a_design_are_those_of_pairs_of_binomials():
    design = PairedDesign(np.array([0.9, 0.2]), np.array([0.95, 0.0]), np.array([0.7, 0.3]))
    expected = Counter()
    for base, candidate, share in zip(design.base, design.candidate, design.shares, strict=True):
        for a, b in product(range(4), repeat=2):
            expected[b - a] += share * stats.binom.pmf(a, 3, base) * stats.binom.pmf(b, 3, candidate)
    assert design.differences(3) == pytest.approx(dict(expected), rel=1e-10)
    mean = sum(d * chance for d, chance in design.differences(3).items())
    assert mean == pytest.approx(3 * design.effect)
    variance = sum(d**2 * chance for d, chance in design.differences(3).items()) - mean**2
    # (V + W / n) of the rates, in counts
    assert variance == pytest.approx(9 * (design.between + design.within_run / 3))


def test_a_plan_by_formula_has_about_its_power_with_the_exact_test():
    design = shifted_design(BetaModel(2.1, 0.9), 0.05, 0.7)
    needed = tasks_needed(design.effect, design.between, design.within_run, 3)
    power = sign_flip_power(design.differences(3), needed.tasks, rng=np.random.default_rng(2))
    assert power.power == pytest.approx(0.8, abs=0.025)


def test_plans_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="an effect other than 0"):
        tasks_needed(0.0, 0.1, 0.1, 3)
    with pytest.raises(ValueError, match="a power between 0 and 1"):
        tasks_needed(0.1, 0.1, 0.1, 3, power=1.0)
    with pytest.raises(ValueError, match="variances are at least 0"):
        tasks_needed(0.1, -0.1, 0.1, 3)
    with pytest.raises(ValueError, match="a task has a run"):
        t_power(0.1, 0.1, 0.1, 9, 0)
    with pytest.raises(ValueError, match="alpha lies between 0 and 1"):
        t_power(0.1, 0.1, 0.1, 9, 1, alpha=5)
    with pytest.raises(ValueError, match="power lies between alpha / 2 and 1"):
        detectable_effect(0.1, 0.1, 9, 1, power=0.01)
    with pytest.raises(ValueError, match="add up to at most 1"):
        mcnemar_power(10, 0.6, 0.6)
    with pytest.raises(ValueError, match="add up to 1"):
        sign_flip_power({0: 0.5, 1: 0.4}, 10)
    with pytest.raises(ValueError, match="margin and alpha lie between 0 and 1"):
        fewest_tasks_for_margin(0.0)
    with pytest.raises(ValueError, match="a and b are positive"):
        BetaModel(0, 1)
    with pytest.raises(ValueError, match="lie between 0 and 1"):
        beta_model(1.0, 0.2)
    with pytest.raises(ValueError, match="is no rate"):
        shifted_design(BetaModel(2, 1), 0.4)
    with pytest.raises(ValueError, match="one and the same length"):
        PairedDesign(np.array([0.5]), np.array([0.5]), np.array([0.5, 0.5]))
    with pytest.raises(ValueError, match="shares add up to 1"):
        PairedDesign(np.array([0.5]), np.array([0.5]), np.array([0.5]))


@pytest.mark.parametrize(("passed", "tasks", "threshold"), [(160, 200, 0.76), (45, 50, 0.8), (120, 200, 0.55)])
def test_tasks_to_pass_gives_the_promised_power_where_it_can_be_enumerated(passed, tasks, threshold):
    """Values 0 and 1: the bound is Clopper-Pearson, and the passes among the new tasks are binomial."""
    more = tasks_to_pass([0, 1], [tasks - passed, passed], threshold)
    drawn = np.arange(more + 1)
    successes, trials = passed + drawn, tasks + more
    lower = stats.beta.ppf(0.025, successes, trials - successes + 1)
    power = stats.binom.pmf(drawn, more, passed / tasks)[lower > threshold].sum()
    assert 0.75 < power < 0.85


def test_tasks_to_pass_with_tasks_that_are_all_alike_is_exact():
    for tasks in (1, 50, 182):
        assert tasks + tasks_to_pass([0], [tasks], -0.02, lower_limit=-1) == fewest_tasks_for_margin(0.02)
    assert tasks_to_pass([0], [183], -0.02, lower_limit=-1) == 0


def test_tasks_to_pass_is_none_where_more_tasks_like_these_do_not_help():
    assert tasks_to_pass([0, 1], [5, 5], 0.5) is None
    assert tasks_to_pass([0, 1], [5, 5], 0.6) is None
    assert tasks_to_pass([], [], 0.6) is None
    assert tasks_to_pass([0, 1], [50_000, 50_000], 0.5 - 1e-6) is None
    with pytest.raises(ValueError, match="alpha and power"):
        tasks_to_pass([0, 1], [5, 5], 0.4, power=1.0)


def test_the_expected_lower_end_is_the_bound_where_tasks_are_whole():
    values, tasks = [0, 0.25, 0.5, 1], [3, 4, 5, 8]
    assert expected_lower_end(values, tasks, 0.025) == dirichlet(values, tasks).lower
    halves = expected_lower_end(values, np.array(tasks) * 1.5, 0.025)
    assert dirichlet(values, tasks).lower < halves < dirichlet(values, np.array(tasks) * 2).lower
    with pytest.raises(ValueError, match="weight of at least 1"):
        expected_lower_end([0, 1], [0.5, 2], 0.025)
