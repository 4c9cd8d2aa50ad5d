"""Exact McNemar against exact fractions, scipy's binomial test and statsmodels."""

from decimal import Context, Decimal, localcontext
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from passhat.stats.discordant import McNemar, mcnemar, mcnemar_tasks, mcnemar_tests
from passhat.stats.paired import pair_counts
from passhat.stats.sign_flips import SMALLEST_P, sign_flip_pass_hat

COUNTS = st.integers(0, 60)


def exact_p(a_only, b_only):
    """p and mid-p as fractions."""
    fewer, pairs = min(a_only, b_only), a_only + b_only
    point = comb(pairs, fewer)
    at_most = sum(comb(pairs, i) for i in range(fewer + 1))
    p = min(Fraction(1), Fraction(2 * at_most, 2**pairs))
    return p, Fraction(1) if a_only == b_only else Fraction(2 * at_most - point, 2**pairs)


def exact_log10(fraction):
    with localcontext(Context(prec=30, Emin=-(10**6), Emax=10**6)):
        return float((Decimal(fraction.numerator) / Decimal(fraction.denominator)).log10())


def test_12_against_39_tasks_have_a_p_of_0_000198():
    test = mcnemar(12, 39)
    assert f"{test.p_value:.6f}" == "0.000198"
    assert test.p_value == pytest.approx(0.000198039451337, rel=1e-12)
    assert test.mid_p == pytest.approx(0.000127538783856, rel=1e-11)
    n = [1] * 300
    tasks = pair_counts(n, [1] * 241 + [0] * 59, n, [1] * 229 + [0] * 12 + [1] * 39 + [0] * 20)
    assert mcnemar_tasks(tasks) == test


def test_no_discordant_task_has_a_p_of_1_and_says_so():
    # C12: five tasks that both pass and five that both fail, and a release compared with itself
    same = [1] * 5 + [0] * 5
    nothing = McNemar(0, 0, 1.0, 1.0, 0.0, 0.0, "no discordant tasks")
    assert mcnemar_tasks(pair_counts([1] * 10, same, [1] * 10, same)) == nothing
    assert mcnemar_tasks(pair_counts([], [], [], [])) == mcnemar(0, 0) == nothing


def test_the_pairs_are_tasks_and_not_their_runs():
    # C13 (a): of five runs of each task A fails all and B passes all on two tasks, three tie
    test = mcnemar_tasks(pair_counts([5] * 5, [0, 0, 3, 5, 0], [5] * 5, [5, 5, 3, 5, 0]))
    assert (test.a_only, test.b_only, test.p_value) == (0, 2, 0.5)
    assert mcnemar(0, 10).p_value == 2 / 1024  # what ten cells would have claimed


def test_nine_fixes_and_one_regression_have_the_p_of_11_of_512():
    # C13 (b): 100 single runs, A passes 70 and B 78
    test = mcnemar_tasks(pair_counts([1] * 100, [1] * 70 + [0] * 30, [1] * 100, [1] * 69 + [0] + [1] * 9 + [0] * 21))
    assert (test.a_only, test.b_only, test.p_value, test.mid_p) == (1, 9, 11 / 512, 12 / 1024)


def test_one_fix_and_one_regression_cancel():
    # C14
    test = mcnemar_tasks(pair_counts([1, 1], [1, 0], [1, 1], [0, 1]))
    assert (test.a_only, test.b_only, test.p_value, test.reason) == (1, 1, 1.0, None)


def test_unequal_numbers_of_runs_are_refused_with_the_reason():
    test = mcnemar_tasks(pair_counts([1, 1, 10], [1, 0, 5], [1, 1, 8], [0, 1, 6]))
    reason = "1 of 3 tasks have unequal numbers of runs under A and B"
    assert test == McNemar(None, None, None, None, None, None, reason)


@given(COUNTS, COUNTS)
def test_p_and_mid_p_are_the_exact_fractions(a_only, b_only):
    p, mid_p = exact_p(a_only, b_only)
    test = mcnemar(a_only, b_only)
    assert (test.p_value, test.mid_p) == pytest.approx((float(p), float(mid_p)), rel=1e-13)
    assert (test.log10_p, test.log10_mid_p) == pytest.approx((exact_log10(p), exact_log10(mid_p)), rel=1e-12, abs=1e-15)
    assert 0 < test.mid_p <= test.p_value <= 1


@given(COUNTS, COUNTS)
def test_swapping_the_releases_keeps_p(a_only, b_only):
    one, other = mcnemar(a_only, b_only), mcnemar(b_only, a_only)
    assert (one.p_value, one.mid_p, one.log10_p) == (other.p_value, other.mid_p, other.log10_p)


@pytest.mark.parametrize(
    ("a_only", "b_only"),
    [(0, 1000), (3, 900), (250, 750), (1000, 2000), (9000, 9400), (99_000, 101_000), (490_000, 510_000)],
)
def test_thousands_of_pairs_keep_ten_digits_down_to_the_smallest_p(a_only, b_only):
    p, mid_p = exact_p(a_only, b_only) if a_only < 3000 else (None, None)
    test = mcnemar(a_only, b_only)
    assert test.p_value == pytest.approx(stats.binomtest(a_only, a_only + b_only).pvalue, rel=1e-10)
    if p is not None:
        assert (test.p_value, test.mid_p) == pytest.approx((float(p), float(mid_p)), rel=1e-11)


@pytest.mark.parametrize(("a_only", "b_only"), [(0, 1100), (1, 1100), (40, 1500), (700, 3000), (3000, 7000)])
def test_a_p_below_the_smallest_double_is_kept_as_its_logarithm(a_only, b_only):
    p, mid_p = exact_p(a_only, b_only)
    test = mcnemar(a_only, b_only)
    assert test.p_value == test.mid_p == SMALLEST_P
    assert (test.log10_p, test.log10_mid_p) == pytest.approx((exact_log10(p), exact_log10(mid_p)), rel=1e-12)


@pytest.mark.parametrize("b_only", [960, 963, 964, 1020, 1021, 1022, 1023, 1024])
def test_p_and_its_logarithm_join_where_doubles_end(b_only):
    test = mcnemar(0, b_only)
    assert test.log10_p == pytest.approx((1 - b_only) * np.log10(2), rel=1e-13)
    assert test.p_value == max(2.0 ** (1 - b_only), SMALLEST_P)
    assert test.log10_mid_p == pytest.approx(-b_only * np.log10(2), rel=1e-13)


def test_many_tables_at_once_are_those_of_statsmodels():
    rng = np.random.default_rng(1)
    a_only, b_only = rng.integers(0, 80, (2, 300))
    tests = mcnemar_tests(a_only.reshape(3, 100), b_only.reshape(3, 100))
    expected = [statsmodels_mcnemar([[7, a], [b, 9]], exact=True).pvalue for a, b in zip(a_only, b_only, strict=True)]
    assert tests.p_value.shape == (3, 100)
    np.testing.assert_allclose(tests.p_value.ravel(), expected, rtol=1e-12)


@given(st.lists(st.tuples(COUNTS, COUNTS), max_size=20))
def test_a_table_has_the_same_p_in_any_company(tables):
    tests = mcnemar_tests([a for a, _ in tables], [b for _, b in tables])
    alone = [mcnemar(a, b) for a, b in tables]
    assert tests.p_value.tolist() == [test.p_value for test in alone]
    assert tests.mid_p.tolist() == [test.mid_p for test in alone]
    assert tests.log10_p.tolist() == [test.log10_p for test in alone]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_single_runs_have_the_p_of_the_sign_flip_test(outcomes):
    pairs = pair_counts(
        [1] * len(outcomes), [int(a) for a, _ in outcomes], [1] * len(outcomes), [int(b) for _, b in outcomes]
    )
    assert mcnemar_tasks(pairs).p_value == pytest.approx(sign_flip_pass_hat(pairs).p_value, rel=1e-13)


def test_what_is_not_a_count_is_refused():
    with pytest.raises(ValueError, match="b_only counts pairs, found -1"):
        mcnemar_tests([1, 2], [3, -1])
    with pytest.raises(TypeError, match="a_only holds float64, expected integers"):
        mcnemar_tests([1.0], [3])
    with pytest.raises(ValueError, match=r"a_only has the shape \(2,\) and b_only \(1,\)"):
        mcnemar_tests([1, 2], [3])
