"""How often the default interval holds the truth: exactly for few tasks, by simulation in the tests marked slow.

The simulations are those of tests/benchmarks/interval_coverage.py: `pytest -m slow` runs a few of its settings.
"""

import importlib
from collections.abc import Iterator
from itertools import product
from math import prod
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.special import gammaln, xlogy
from scipy.stats import betabinom, binom, binomtest

from passhat.stats.closed_form import cluster_wilson
from passhat.stats.intervals import dirichlet
from passhat.stats.reliability import task_values

LEVELS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 20, 100)


@pytest.fixture(scope="module")
def simulation() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[1] / "benchmarks")
        yield importlib.import_module("interval_coverage")


def suites_of(tasks, kinds):
    """All suites of this many tasks of these kinds, one a row of numbers of tasks."""
    return np.array([row for row in product(range(tasks + 1), repeat=kinds) if sum(row) == tasks])


def misses(values, tasks, laws, truths, interval=dirichlet, **limits):
    """The chances that the lower end is above the truth and the upper one below, one a law, over all suites.

    A law is a row of chances of the values.
    """
    suites = suites_of(tasks, len(values))
    ends = np.array([(found.lower, found.upper) for found in (interval(values, row, **limits) for row in suites)])
    laws, truths = np.atleast_2d(laws), np.atleast_1d(truths)[:, np.newaxis]
    ways = gammaln(tasks + 1) - gammaln(suites + 1).sum(axis=1)
    chances = np.exp(ways + xlogy(suites[np.newaxis], laws[:, np.newaxis]).sum(axis=2))
    assert chances.sum(axis=1) == pytest.approx(1, abs=1e-12)
    return (chances * (ends[:, 0] > truths)).sum(axis=1), (chances * (ends[:, 1] < truths)).sum(axis=1)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("tasks", [2, 5])
def test_five_tasks_of_three_runs_are_covered_whatever_beta_law_their_rates_have(tasks, k):
    shapes = list(product(LEVELS, LEVELS))
    laws = [betabinom.pmf(range(4), 3, alpha, beta) for alpha, beta in shapes]
    truths = [prod((alpha + i) / (alpha + beta + i) for i in range(k)) for alpha, beta in shapes]
    low, high = misses(task_values(3, k, k), tasks, laws, truths)
    assert max(low) <= 0.025
    assert max(high) <= 0.025


@pytest.mark.parametrize("values", [(0, 0.1, 1), (0, 0.5, 1), (0, 0.9, 1), (0.2, 0.5, 0.6), (0, 0.01, 0.02)])
@pytest.mark.parametrize("tasks", [3, 8])
def test_every_law_of_three_values_is_covered(values, tasks):
    laws = suites_of(20, 3) / 20
    low, high = misses(np.array(values), tasks, laws, laws @ values)
    assert max(low) <= 0.025
    assert max(high) <= 0.025


@pytest.mark.parametrize("tasks", [1, 2, 7, 20, 40])
def test_tasks_that_pass_or_fail_are_covered_as_by_clopper_and_pearson(tasks):
    rates = np.linspace(0, 1, 2001)
    low, high = misses(np.array([0.0, 1.0]), tasks, np.stack((1 - rates, rates), axis=1), rates)
    exact = [binomtest(passes, tasks).proportion_ci(0.95, "exact") for passes in range(tasks + 1)]
    chances = binom.pmf(np.arange(tasks + 1), tasks, rates[:, np.newaxis])
    assert low == pytest.approx((chances * ([one.low for one in exact] > rates[:, np.newaxis])).sum(axis=1), abs=1e-12)
    assert high == pytest.approx(
        (chances * ([one.high for one in exact] < rates[:, np.newaxis])).sum(axis=1), abs=1e-12
    )
    assert max(*low, *high) <= 0.025


def test_every_law_of_the_difference_of_two_runs_each_is_covered():
    values = np.array([-1, -0.5, 0, 0.5, 1])
    rates = np.array([0, 0.02, 0.1, 0.5, 0.9, 0.98, 1])
    passes = binom.pmf(np.arange(3), 2, rates[:, np.newaxis])
    pairs = np.array([np.convolve(b, a[::-1]) for a in passes for b in passes])
    two_kinds = [share * one + (1 - share) * other for share in (0.1, 0.3) for one in pairs for other in pairs[::3]]
    laws = np.concatenate((two_kinds, np.random.default_rng(1).dirichlet([0.3] * 5, 500)))
    low, high = misses(values, 5, laws, laws @ values, lower_limit=-1)
    assert max(low) <= 0.025
    assert max(high) <= 0.025


def test_a_rare_broken_task_is_what_cluster_wilson_does_not_cover():
    tasks, broken = 100, 0.0015
    low, high = misses(np.array([0.0, 1.0]), tasks, [broken, 1 - broken], 1 - broken)
    assert max(*low, *high) <= 0.025

    def wilson(values, multiplicities):
        return cluster_wilson(values, multiplicities).interval

    low, high = misses(np.array([0.0, 1.0]), tasks, [broken, 1 - broken], 1 - broken, wilson)
    assert high == pytest.approx(1 - (1 - broken) ** tasks)  # as soon as the suite has one
    assert high > 0.13


@pytest.mark.parametrize(("alpha", "beta"), [(0.4, 0.4), (1, 2), (20, 1)])
def test_the_simulated_laws_are_beta_binomial_with_the_moments_as_the_truth(simulation, alpha, beta):
    mixture = simulation.task_laws.beta(alpha, beta)
    attempts = simulation.task_laws.law_of_pass_hat(mixture, simulation.Design((32,), 1))
    assert attempts.chances == pytest.approx(betabinom.pmf(range(33), 32, alpha, beta), rel=1e-9)
    for design in (simulation.Design((8,), 4), simulation.Design((2, 5, 8), 4, missing=0.1)):
        moment = prod((alpha + i) / (alpha + beta + i) for i in range(design.k))
        assert simulation.task_laws.law_of_pass_hat(mixture, design).truth == pytest.approx(moment, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [10, 50])
def test_simulated_rates_are_covered_by_the_default_interval_and_not_by_cluster_wilson(simulation, tasks):
    rows = simulation.measure(simulation.TABLES["rates"], tasks, draws=400, most=2_000)
    assert [row for row in rows if row.method == simulation.DEFAULT and row.exceeds()] == []
    assert min(row.coverage for row in rows if row.method == "cluster Wilson") < 0.91


@pytest.mark.slow
def test_simulated_rates_are_covered_by_the_default_interval_and_not_by_bootstraps(simulation):
    rows = simulation.measure(simulation.TABLES["bootstraps"], 20, draws=400, most=2_000)
    assert [row for row in rows if row.method == simulation.DEFAULT and row.exceeds()] == []
    for method in ("percentile", "expanded percentile", "BCa"):
        assert min(row.coverage for row in rows if row.method == method) < 0.4


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [20, 100])
def test_simulated_differences_are_covered_by_the_default_interval_and_not_by_student(simulation, tasks):
    rows = simulation.measure(simulation.TABLES["differences"], tasks, draws=400, most=2_000)
    assert [row for row in rows if row.method == simulation.DEFAULT and row.exceeds()] == []
    for method in ("augmented t", "plain t"):
        assert max(row.low_miss for row in rows if row.method == method) > 0.2


@pytest.mark.slow
def test_simulated_tests_keep_their_level_over_tasks_and_not_over_cells(simulation):
    rows = list(simulation.measure_tests(50, draws=1_000, runs=8))
    assert [row for row in rows if row.is_sharp and row.test == simulation.SIGN_FLIP and row.exceeds()] == []
    assert max(row.rate for row in rows if row.test == "McNemar of all cells") > 0.12
