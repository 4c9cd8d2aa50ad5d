"""Moments and integrals over the difficulty of a task, against quadrature that is not ours and published numbers."""

from itertools import product
from math import exp, log, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import betaln

from passhat.workers.chances import propensity
from passhat.workers.latents import Latents, gamma_moment, moment

RATES = [(0.06, 0.10), (0.03, 0.20), (0.20, 0.35), (0.5, 0.02), (0.9, 0.05), (0.3, 0.6)]

rates = st.floats(1e-3, 0.999)


def integral(integrand, *breaks):
    value, _ = quad(integrand, 0, 1, epsabs=1e-11, limit=500, points=sorted({0.5, *breaks}))
    return value


@pytest.mark.parametrize(("p", "rho"), RATES)
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_the_moment_is_the_integral_over_propensities(p, rho, k):
    """Integration over the latent checks quantile and moment against each other."""
    expected = integral(lambda u: (1 - propensity(p, rho, u)) ** k, 1 - p)
    assert moment(p, rho, k) == pytest.approx(expected, abs=1e-8)
    assert Latents([(p, rho)]).clean([(p, rho)], k) == pytest.approx(moment(p, rho, k), abs=1e-8)


@given(rates, rates, st.integers(0, 40))
def test_the_moment_is_that_of_the_beta_law(p, rho, k):
    a, b = p * (1 - rho) / rho, (1 - p) * (1 - rho) / rho
    assert moment(p, rho, k) == pytest.approx(exp(betaln(a, b + k) - betaln(a, b)), rel=1e-9)


@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_the_moment_at_the_limits(k):
    assert moment(0.25, 0.0, k) == 0.75**k
    assert moment(0.25, 1.0, k) == (0.75 if k else 1.0)
    assert moment(0.0, 0.3, k) == 1.0
    assert moment(1.0, 0.3, k) == (0.0 if k else 1.0)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_flaws_that_share_a_latent_are_integrated_over_it(k):
    together = Latents(RATES).clean(RATES, k)
    expected = integral(lambda u: prod(1 - propensity(*rate, u) for rate in RATES) ** k, *(1 - p for p, _ in RATES))
    assert together == pytest.approx(expected, abs=1e-8)
    assert together > prod(moment(*rate, k) for rate in RATES)


def test_rates_that_do_not_vary_or_are_all_or_nothing_need_no_smoothness():
    latents = Latents([(0.3, 1.0), (0.2, 0.0), (0.4, 1.0), (0.0, 0.5), (1.0, 0.5)])
    assert latents.clean([(0.3, 1.0), (0.2, 0.0), (0.4, 1.0)], 2) == pytest.approx(0.6 * 0.8**2, abs=1e-12)
    assert latents.clean([(0.0, 0.5)], 3) == pytest.approx(1, abs=1e-12)
    assert latents.clean([(1.0, 0.5), (0.2, 0.0)], 3) == 0
    assert latents.clean([], 3) == 1
    assert latents.both_clean([], [], True) == 1


@pytest.mark.parametrize(("one", "other"), list(product(RATES, RATES)))
def test_a_cell_of_two_releases_with_both_kinds_of_noise(one, other):
    latents = Latents([one, other])
    first, second = (lambda u, rate=rate: 1 - propensity(*rate, u) for rate in (one, other))
    breaks = (1 - one[0], 1 - other[0])
    apart = integral(lambda u: first(u) * second(u), *breaks)
    assert latents.both_clean([(one, other)], [], False) == pytest.approx(apart, abs=1e-8)
    common = integral(lambda u: min(first(u), second(u)), *breaks)
    assert latents.both_clean([(one, other)], [], True) == pytest.approx(common, abs=1e-7)


def test_discordance_on_one_flaw_at_equal_correlation():
    """b = P(A passes, B fails), c the reverse, at p_A = .10, p_B = .15, rho = .2: worked out independently."""
    latents = Latents([(0.10, 0.2), (0.15, 0.2)])
    both = latents.both_clean([((0.10, 0.2), (0.15, 0.2))], [], False)
    assert (round(0.90 - both, 3), round(0.85 - both, 3)) == (0.114, 0.064)
    both = latents.both_clean([((0.10, 0.2), (0.15, 0.2))], [], True)
    assert (0.90 - both, 0.85 - both) == (pytest.approx(0.05, abs=1e-10), pytest.approx(0, abs=1e-10))


def test_a_flaw_that_only_one_release_has_is_its_own():
    latents = Latents([(0.1, 0.2), (0.3, 0.4)])
    assert latents.both_clean([], [(0.1, 0.2)], True) == pytest.approx(0.9, abs=1e-10)
    expected = integral(lambda u: (1 - propensity(0.1, 0.2, u)) * (1 - propensity(0.3, 0.4, u)), 0.9, 0.7)
    assert latents.both_clean([], [(0.1, 0.2), (0.3, 0.4)], False) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("k", "value"), [(1, 0.8264), (4, 0.5102)])
def test_tasks_that_multiply_all_hazards_by_a_gamma_law(k, value):
    """Worked out and simulated independently, for a hazard of 0.2 and shape 2."""
    assert round(gamma_moment(0.2, 2.0, k), 4) == value
    expected = quad(lambda z: exp(-k * 0.2 * z) * 4 * z * exp(-2 * z), 0, 50)[0]  # density of the law, shape 2, mean 1
    assert gamma_moment(0.2, 2.0, k) == pytest.approx(expected, abs=1e-9)


def test_a_gamma_law_without_spread_is_no_spread_between_tasks():
    hazard = -log(0.9) - log(0.8)
    assert gamma_moment(hazard, 1e9, 3) == pytest.approx((0.9 * 0.8) ** 3, rel=1e-6)
