"""The sign-flip test against enumeration, big integers, the binomial law and scipy."""

from collections import Counter
from fractions import Fraction
from math import comb, log10, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from passhat.stats.paired import pair_counts
from passhat.stats.sign_flips import SMALLEST_P, SignFlip, sign_flip, sign_flip_pass_hat

DIFFERENCES = st.lists(st.integers(-9, 9), min_size=1, max_size=10)


def flip(differences):
    return sign_flip(differences, [1] * len(differences))


def signed_sums(differences):
    """How many patterns of signs give each sum."""
    sums = Counter({0: 1})
    for size in map(abs, differences):
        flipped = Counter()
        for total, patterns in sums.items():
            flipped[total + size] += patterns
            flipped[total - size] += patterns
        sums = flipped
    return sums


def enumerated_p(differences):
    sums, observed = signed_sums(differences), abs(sum(differences))
    return Fraction(sum(patterns for total, patterns in sums.items() if abs(total) >= observed), sums.total())


def big_integer_p(sizes, minority, tasks):
    """p when of `tasks[j]` differences of `sizes[j]`, `minority[j]` go the other way: one polynomial as one integer."""
    bits = sum(tasks) + 1  # of a coefficient
    polynomial = 1
    for size, count in zip(sizes, tasks, strict=True):
        polynomial *= (1 + (1 << (bits * size))) ** count
    most = sum(size * count for size, count in zip(sizes, minority, strict=True))
    patterns = sum((polynomial >> (bits * total)) & ((1 << bits) - 1) for total in range(most + 1))
    return min(Fraction(1), Fraction(2 * patterns, 2 ** sum(tasks)))


def log10_of(fraction):
    shift = fraction.numerator.bit_length() - fraction.denominator.bit_length()
    return log10(fraction / Fraction(2) ** shift) + shift * log10(2)


def test_the_differences_of_six_tasks_have_the_p_of_their_64_sign_patterns():
    # 24 of 64 patterns sum to 7 or more in size
    assert flip([-2, 0, 4, 2, 4, -1]) == SignFlip(
        0.375, pytest.approx(log10(0.375), rel=1e-15), 0.375, "sign-flip-convolution", 5
    )


@given(DIFFERENCES)
def test_a_few_tasks_have_exactly_the_p_of_enumeration(differences):
    result = flip(differences)
    expected = enumerated_p(differences)
    assert result.p_value == result.p_lower == float(expected)
    assert result.log10_p == pytest.approx(log10(expected), rel=1e-14, abs=1e-15)
    assert result.tasks_discordant == sum(d != 0 for d in differences)


@given(DIFFERENCES, st.integers(0, 5), st.integers(1, 10**30), st.randoms())
def test_swapping_the_releases_ties_order_grouping_and_unit_leave_p_as_it_is(differences, ties, unit, random):
    result = flip(differences)
    assert flip([-d for d in differences]) == result
    changed = [unit * d for d in differences] + [0] * ties
    random.shuffle(changed)
    grouped = Counter(changed)
    assert flip(changed) == sign_flip(list(grouped), list(grouped.values())) == result


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_many_tasks_have_the_p_of_big_integers_to_ten_digits_however_small_it_is(data):
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True))
    tasks = [data.draw(st.integers(1, 90)) for _ in sizes]
    tasks[0] += 201
    minority = [data.draw(st.integers(0, count // 2) | st.integers(0, min(3, count // 2))) for count in tasks]
    majority = [count - other for count, other in zip(tasks, minority, strict=True)]
    result = sign_flip([*sizes, *(-size for size in sizes)], [*majority, *minority])
    expected = big_integer_p(sizes, minority, tasks)
    assert 10 ** (result.log10_p - log10_of(expected)) == pytest.approx(1, rel=1e-10)
    assert result.p_value == result.p_lower == pytest.approx(float(expected), rel=1e-10)


@pytest.mark.parametrize(
    ("sizes", "minority", "tasks"),
    [
        ([1, 2, 4, 8], [64, 16, 2, 1], [300, 200, 60, 100]),  # about 5e-100
        ([1, 3, 8], [1, 0, 0], [300, 250, 200]),  # one step from the end, 4e-224
        ([1, 40], [1, 0], [1, 300]),
        ([14, 7, 5, 3, 1], [0, 20, 40, 3, 100], [150, 150, 150, 150, 150]),
    ],
)
def test_the_far_tail_keeps_ten_digits(sizes, minority, tasks):
    majority = [count - other for count, other in zip(tasks, minority, strict=True)]
    result = sign_flip([*sizes, *(-size for size in sizes)], [*majority, *minority])
    assert result.method == "sign-flip-inversion"
    assert result.p_value == pytest.approx(float(big_integer_p(sizes, minority, tasks)), rel=1e-10)


def test_a_p_below_the_smallest_double_is_kept_as_its_logarithm():
    result = sign_flip([1, 2, -1], [800, 700, 5])
    expected = log10_of(big_integer_p([1, 2], [5, 0], [805, 700]))
    assert expected < -430
    assert result.log10_p == pytest.approx(expected, rel=1e-13)
    assert result.p_value == SMALLEST_P
    assert sign_flip([8], [1100]).log10_p == pytest.approx(-1099 * log10(2), rel=1e-15)
    assert sign_flip([8], [1100]).p_value == SMALLEST_P


@pytest.mark.parametrize(
    ("tasks", "fewer"),
    [
        *[(201, 100), (201, 93), (201, 65), (201, 1), (1000, 499), (1000, 420), (1000, 1)],
        *[(100_001, 50_000), (100_001, 49_000), (100_001, 45_000), (10**7, 4_999_500), (10**7, 4_950_000)],
    ],
)
def test_differences_of_one_size_follow_the_binomial_law(tasks, fewer):
    expected = stats.binomtest(fewer, tasks).pvalue
    assert sign_flip([-3, 3], [fewer, tasks - fewer]).p_value == pytest.approx(expected, rel=1e-10)


def test_ten_tasks_have_the_p_of_scipys_permutation_test():
    differences = np.array([5, -2, 1, 3, -1, 4, 2, -1, 0, 2])
    exact = stats.permutation_test(
        (differences,), np.sum, permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert flip(differences.tolist()).p_value == exact.pvalue


@settings(deadline=None)
@given(st.lists(st.integers(-(10**12), 10**12), min_size=3, max_size=12))
def test_a_lattice_too_fine_for_a_transform_gives_a_bracket_around_p(differences):
    result = flip(differences)
    expected = enumerated_p(differences)
    assert result.p_lower <= expected <= result.p_value
    if result.method == "sign-flip-bracket":
        assert result.p_lower < result.p_value


@settings(deadline=None)
@given(st.lists(st.integers(-70, 70), min_size=3, max_size=12), st.data())
def test_rounded_differences_give_a_bracket_around_the_p_of_the_exact_ones(differences, data):
    unit, rounding = 10**6, 10**3
    # only ties stay what they are
    known = [d and d * unit + data.draw(st.integers(-rounding, rounding)) for d in differences]
    result = sign_flip(known, [1] * len(known), rounding=rounding)
    expected = enumerated_p(differences)
    assert result.p_lower <= expected <= result.p_value <= 1


def test_a_bracket_of_a_few_hundred_tasks_is_within_two_percent():
    rng = np.random.default_rng(3)
    a = rng.binomial(32, rng.beta(3, 1, 300))
    b = rng.binomial(32, np.minimum(1, a / 32 + 0.02))
    result = sign_flip_pass_hat(pair_counts([32] * 300, a, [32] * 300, b), 16)
    assert result.method == "sign-flip-bracket"
    assert 0 < result.p_lower < result.p_value < 1.02 * result.p_lower

    numerators = np.array([comb(int(y), 16) - comb(int(x), 16) for x, y in zip(a, b, strict=True)], dtype=float)
    signs = np.random.default_rng(4).choice([-1.0, 1.0], (20_000, 300))
    drawn = np.mean(np.abs(signs @ numerators) >= abs(numerators.sum()))
    assert drawn == pytest.approx(result.p_value, abs=5 * sqrt(result.p_value / 20_000))


def test_a_single_run_of_five_tasks_is_mcnemars_test_of_them():
    # C13 (a): of five runs of each task A fails all and B passes all on two tasks, three tie
    pairs = pair_counts([5] * 5, [0, 0, 3, 5, 0], [5] * 5, [5, 5, 3, 5, 0])
    assert sign_flip_pass_hat(pairs).p_value == 0.5
    assert sign_flip_pass_hat(pairs, 5).p_value == 0.5
    single = pair_counts([1] * 300, [1] * 241 + [0] * 59, [1] * 300, [1] * 229 + [0] * 12 + [1] * 39 + [0] * 20)
    assert sign_flip_pass_hat(single).p_value == pytest.approx(stats.binomtest(12, 51).pvalue, rel=1e-12)


def test_attempts_are_tested_by_their_counts_and_pass_hat_by_the_binomial_coefficients():
    a, b = [7, 8, 5, 3, 6, 0, 2], [8, 8, 3, 6, 7, 1, 2]
    pairs = pair_counts([8] * 7, a, [8] * 7, b)
    assert sign_flip_pass_hat(pairs) == flip([y - x for x, y in zip(a, b, strict=True)])
    assert sign_flip_pass_hat(pairs, 4) == flip([comb(y, 4) - comb(x, 4) for x, y in zip(a, b, strict=True)])


def test_tasks_of_different_length_weigh_the_same():
    # +1 of 2 runs and -2 of 4 cancel
    assert sign_flip_pass_hat(pair_counts([2, 4], [1, 2], [2, 4], [2, 0])).p_value == 1.0
    assert sign_flip_pass_hat(pair_counts([2, 4], [1, 2], [2, 4], [2, 1])).p_value == 1.0
    assert sign_flip_pass_hat(pair_counts([2, 4], [1, 2], [2, 4], [2, 3])).p_value == 0.5


def test_nothing_to_flip_has_a_p_of_1_and_says_so():
    nothing = SignFlip(1.0, 0.0, 1.0, "sign-flip-closed-form", 0, "no discordant tasks")
    assert sign_flip([], []) == sign_flip([0, 5], [12, 0]) == nothing
    assert sign_flip_pass_hat(pair_counts([], [], [], [])) == nothing
    assert flip([2, -2]) == SignFlip(1.0, 0.0, 1.0, "sign-flip-closed-form", 2)
    assert flip([3]).p_value == 1.0


def test_unequal_or_too_few_runs_are_refused_with_the_reason():
    def refused(reason):
        return SignFlip(None, None, None, None, None, reason)

    unequal = pair_counts([1, 1, 10], [1, 0, 5], [1, 1, 8], [0, 1, 6])
    assert sign_flip_pass_hat(unequal) == refused("1 of 3 tasks have unequal numbers of runs under A and B")
    assert sign_flip_pass_hat(pair_counts([4, 2], [4, 2], [4, 2], [3, 2]), 3) == refused(
        "1 tasks have fewer than 3 runs"
    )


def test_thousands_of_runs_a_task_are_bracketed():
    rng = np.random.default_rng(2)
    a, b = rng.binomial(20_000, 0.9995, 40), rng.binomial(20_000, 0.9996, 40)
    result = sign_flip_pass_hat(pair_counts([20_000] * 40, a, [20_000] * 40, b), 10_000)
    assert result.method == "sign-flip-bracket"
    assert 0 < result.p_lower <= result.p_value < 1.001 * result.p_lower


@pytest.mark.parametrize("k", [1, 4, 8])
def test_a_million_tasks_have_a_p_that_the_normal_law_confirms(k):
    rng = np.random.default_rng(k)
    p = rng.beta(2, 1, 10**6)
    a, b = rng.binomial(8, p), rng.binomial(8, p + 0.0005 * (1 - p))
    result = sign_flip_pass_hat(pair_counts(np.full(10**6, 8), a, np.full(10**6, 8), b), k)
    weights = np.array([comb(c, k) for c in range(9)], dtype=float)
    d = weights[b] - weights[a]
    assert result.method == "sign-flip-inversion"
    assert result.p_value == pytest.approx(2 * stats.norm.sf(abs(d.sum()) / sqrt((d**2).sum())), rel=0.01)


def test_lists_that_do_not_match_and_negative_numbers_of_tasks_are_refused():
    with pytest.raises(ValueError, match="is shorter than argument 1"):
        sign_flip([1, 2], [1])
    with pytest.raises(ValueError, match="a number of tasks is at least 0, found -1"):
        sign_flip([1], [-1])
