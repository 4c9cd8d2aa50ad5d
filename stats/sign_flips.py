"""The exact sign-flip test over tasks: could the sign of every task's difference be a fair coin?

Under the sharp null, in which the releases can be swapped within any task, the differences add up to S = sum e_t |d_t|
with fair signs e_t, and p = P(|S| >= |observed|). A small p says that more went one way than the other, not that the
mean moved: a few tasks that lose everything can hide behind many that gain a little. A gate reads the interval.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, floor, gcd, inf, log, log1p, pi, sqrt

import numpy as np

from passhat.stats.paired import PairHistogram, pass_hat_differences
from passhat.stats.table import FloatArray, IntArray

SMALLEST_P = float(np.finfo(np.float64).tiny)  # the smallest double that has all its digits

# up to here an addition of arrays for each task costs no more than an inversion, and no count leaves the doubles
_FEW_TASKS = 200
_WIDEST_WINDOW_STEPS = 1 << 22
# a characteristic function below exp(-45) is nothing beside the rounding of its largest values
_NEGLIGIBLE = -45.0
# the share of p by which a bracket allows for rounding errors that happen to add up
_SLIP = 1e-6


@dataclass(frozen=True, slots=True)
class SignFlip:
    """The two-sided p of a sign-flip test; `reason` says why there is none, or that it is 1 by definition."""

    p_value: float | None  # never 0: 2.2e-308 stands for anything below, and log10_p has the value
    log10_p: float | None
    p_lower: float | None  # below p_value only for the method "sign-flip-bracket": p lies between the two
    method: str | None
    tasks_discordant: int | None  # with a difference other than 0
    reason: str | None = None


def sign_flip(differences: Sequence[int], tasks: Sequence[int], *, rounding: int = 0) -> SignFlip:
    """Test integer differences of any size, of which `tasks[j]` tasks have `differences[j]`; zeros change nothing.

    "sign-flip-closed-form": the sum is 0 and p is 1, or all N differences have one sign and p is 2^(1 - N).
    "sign-flip-convolution": the sign patterns of few tasks are counted.
    "sign-flip-inversion": the characteristic function is inverted after an exponential tilt that moves the mean to the
    observed sum, so that the smallest p is as accurate as any, to about 1e-11 of itself.
    "sign-flip-bracket": the lattice of the differences has too many steps for that, or all but their signs is known
    only to within `rounding`. They are put on a grid, with 2^22 steps for the window of their sum, and p lies between
    `p_lower` and `p_value`.

    ValueError when the lengths differ or a number of tasks is negative.

    >>> sign_flip([3, 2, 1, -1], [1, 1, 1, 1]).p_value
    0.375
    >>> sign_flip([1], [1100]).log10_p  # 2^-1099 is below the smallest double
    -330.8319652347153
    """
    sizes: Counter[int] = Counter()
    total = 0
    for difference, count in zip(differences, tasks, strict=True):
        if count < 0:
            raise ValueError(f"a number of tasks is at least 0, found {count}")
        total += int(difference) * int(count)
        if difference and count:
            sizes[abs(int(difference))] += int(count)
    discordant, observed = sizes.total(), abs(total)
    if not sizes or not (observed or rounding):
        reason = None if sizes else "no discordant tasks"
        return SignFlip(1.0, 0.0, 1.0, "sign-flip-closed-form", discordant, reason)
    largest = sum(size * count for size, count in sizes.items())
    if observed == largest:
        return _exact("sign-flip-closed-form", discordant, _all_alike(discordant))

    unit = gcd(*sizes)
    steps = max(sizes) // unit
    widest = _widest_grid(sizes)
    if rounding or steps > widest:
        return _bracket(sizes, observed, rounding, widest)
    method = "sign-flip-convolution" if discordant <= _FEW_TASKS else "sign-flip-inversion"
    lattice = np.array([size // unit for size in sizes], dtype=np.int64)
    counts = np.array(list(sizes.values()), dtype=np.int64)
    return _exact(method, discordant, _tail(lattice, counts, (largest - observed) // (2 * unit)))


def sign_flip_pass_hat(pairs: PairHistogram, k: int = 1) -> SignFlip:
    """Test the differences of pass^k of the tasks, whose mean `pass_hat_differences` estimates; k = 1 tests attempts.

    With equal numbers of runs everywhere, k = 1 tests the numbers of passes, c_b - c_a. Refused, with None and the
    reason, where a task ran a different number of times under A and B, or fewer than k times.

    >>> from passhat.stats.paired import pair_counts
    >>> pairs = pair_counts([8] * 4, [7, 8, 5, 3], [8] * 4, [8, 8, 7, 6])
    >>> sign_flip_pass_hat(pairs).p_value, sign_flip_pass_hat(pairs, k=4).p_value
    (0.25, 0.25)
    >>> sign_flip_pass_hat(pairs, k=9).reason
    '4 tasks have fewer than 9 runs'
    """
    differences = pass_hat_differences(pairs, k)
    reason = pairs.refusal
    if differences.not_estimable and not reason:
        reason = f"{differences.not_estimable} tasks have fewer than {k} runs"
    if reason:
        return SignFlip(None, None, None, None, None, reason)
    return sign_flip(differences.numerators, differences.tasks, rounding=differences.rounding)


def _exact(method: str, discordant: int, one_tail: tuple[float, float]) -> SignFlip:
    p_value, log10_p = _two_sided(*one_tail)
    return SignFlip(p_value, log10_p, p_value, method, discordant)


def _two_sided(chance: float, log_chance: float) -> tuple[float, float]:
    return max(min(1.0, 2 * chance), SMALLEST_P), min(0.0, (log_chance + log(2)) / log(10))


def _widest_grid(sizes: Counter[int]) -> int:
    """How many steps the largest difference may have if the window of the sum is to be no wider than allowed."""
    counts = np.array(list(sizes.values()), dtype=np.float64)
    relative = np.array([size / max(sizes) for size in sizes])
    width = min(float(counts @ relative), 2 * _half_window(1.0, float(counts @ relative**2) / 4))
    return max(1, int(_WIDEST_WINDOW_STEPS / width))


def _bracket(sizes: Counter[int], observed: int, rounding: int, steps: int) -> SignFlip:
    """Two values that p lies between, from differences rounded to multiples of a `steps`-th of the largest.

    The errors e_t of that, with the signs that are tossed, add up to more than y with a chance of at most
    exp(-y^2 / (2 sum e_t^2)) (Hoeffding 1963), and never to more than sum |e_t|.
    """
    discordant, largest = sizes.total(), max(sizes)
    counts = np.array(list(sizes.values()), dtype=np.int64)
    on_grid = [(2 * size * steps + largest) // (2 * largest) for size in sizes]
    errors = np.array(
        [
            (abs(size * steps - near * largest) + rounding * steps) / largest
            for size, near in zip(sizes, on_grid, strict=True)
        ]
    )
    lattice = np.array(on_grid, dtype=np.int64)
    moving = lattice > 0
    reach, position = int(lattice @ counts), observed * steps / largest

    def log_tail(shift: float) -> float:
        most = min(floor((reach - position - shift) / 2), reach // 2)
        return _tail(lattice[moving], counts[moving], most)[1] if most >= 0 else -inf

    log_fewest = _all_alike(discordant)[1]  # what the observed signs alone contribute
    log_slip = max(log_tail(0), log_fewest) + log(_SLIP)
    # one step more for the rounding of the position itself
    slack = 1 + min(float(counts @ errors), sqrt(-2 * log_slip * float(counts @ errors**2)))
    log_upper = float(np.logaddexp(log_tail(-slack), log_slip))
    log_lower = log_tail(slack)
    log_lower = max(log_fewest, log_lower + log1p(-exp(log_slip - log_lower)) if log_lower > log_slip else -inf)
    p_value, log10_p = _two_sided(exp(log_upper), log_upper)
    return SignFlip(p_value, log10_p, min(1.0, 2 * exp(log_lower)), "sign-flip-bracket", discordant)


def _tail(sizes: IntArray, tasks: IntArray, most: int) -> tuple[float, float]:
    """P(U <= most) and its logarithm, U being the sum of sizes[j] times the heads of tasks[j] fair coins.

    `most` goes from 0 to half of what U can reach. S = 2 U - reach has the law of the signed sum.
    """
    if most == 0:
        return _all_alike(int(tasks.sum()))
    if tasks.sum() <= _FEW_TASKS:
        return _tail_by_convolution(sizes, tasks, most)
    return _tail_by_inversion(sizes, tasks, most)


def _all_alike(tasks: int) -> tuple[float, float]:
    """The chance of one pattern of signs, and its logarithm."""
    return 0.5**tasks, -tasks * log(2)


def _tail_by_convolution(sizes: IntArray, tasks: IntArray, most: int) -> tuple[float, float]:
    """The tail as a share of all patterns: those of each sum up to `most` are counted, one coin more at a time."""
    patterns = np.zeros(most + 1)
    patterns[0] = 1
    for size, count in zip(sizes.tolist(), tasks.tolist(), strict=True):
        for _ in range(count):
            patterns[size:] += patterns[:-size]
    chance = float(patterns.sum()) * 0.5 ** int(tasks.sum())
    return chance, log(chance)


def _tail_by_inversion(sizes: IntArray, tasks: IntArray, most: int) -> tuple[float, float]:
    """The tail as a sum over the frequencies of a discrete transform.

    With f the law of U under a tilt z that brings its mean to about `most`, and M = E exp(-z U) for fair coins,
    P(U <= most) = M exp(z most) sum_{v >= 0} f(most - v) exp(-z v), a sum of positive terms that is largest at v = 0.
    The transform of f has a closed form, so f itself is never computed. Its period is a window that holds all of f but
    2 exp(-37). M exp(z most) is prod cosh(z a_j / 2)^tasks_j exp(-z (reach / 2 - most)).
    """
    tilt, heads = _tilt(sizes, tasks, most)
    mean = float(tasks @ (sizes * heads))
    half_window = _half_window(float(sizes.max()), float(tasks @ (sizes**2 * heads * (1 - heads))))
    reach = int(sizes @ tasks)
    first = max(0, floor(mean - half_window))
    # odd, so that every frequency but 0 is one of a conjugate pair
    period = (min(reach, ceil(mean + half_window)) - first + 1) | 1
    frequency, log_size, angle = _characteristic(sizes, tasks, heads, period)

    angle -= 2 * pi / period * (most * frequency % period)
    terms_of_v = most - first + 1
    geometric = np.expm1(-tilt * terms_of_v + 2j * pi / period * (terms_of_v * frequency % period))
    geometric /= np.expm1(-tilt + 2j * pi / period * frequency)
    parts = (np.exp(log_size + 1j * angle) * geometric).real
    log_sum = log((2 * float(parts.sum()) - float(parts[0])) / period)
    log_chance = float(tasks @ _log_cosh(tilt / 2, sizes)) - tilt * (reach / 2 - most) + log_sum
    return exp(log_chance), log_chance


def _tilt(sizes: IntArray, tasks: IntArray, most: int) -> tuple[float, FloatArray]:
    """The tilt z under which U has its mean at `most` or little above, and 1 / (1 + exp(z a)), the chances of heads.

    One standard deviation is the least, which keeps the geometric sum away from 0 / 0. From there the mean falls along
    a convex curve, so that Newton's steps approach from one side.
    """
    from scipy.special import expit

    tilt = 2 / sqrt(float(tasks @ sizes.astype(np.float64) ** 2))
    while True:
        heads: FloatArray = expit(-tilt * sizes)
        variance = float(tasks @ (sizes**2 * heads * (1 - heads)))
        excess = float(tasks @ (sizes * heads)) - most
        if excess <= 0.1 * sqrt(variance):
            return tilt, heads
        tilt += excess / variance


def _characteristic(
    sizes: IntArray, tasks: IntArray, heads: FloatArray, period: int
) -> tuple[IntArray, FloatArray, FloatArray]:
    """The frequencies up to half the period where E exp(i theta U) is not negligible, its log size, and its angle."""
    spread = heads * (1 - heads)
    # most frequencies are ruled out by the first few sizes
    order = np.argsort(-tasks * spread)
    sizes, tasks, heads, spread = sizes[order], tasks[order], heads[order], spread[order]
    frequency = np.arange(period // 2 + 1)
    log_size = np.zeros(len(frequency))
    for j in range(len(sizes)):
        sine = np.sin(pi / period * (sizes[j] * frequency % period))
        with np.errstate(divide="ignore"):  # where fair coins cancel
            log_size += tasks[j] / 2 * np.log1p(-4 * spread[j] * sine**2)
        kept = log_size > _NEGLIGIBLE
        frequency, log_size = frequency[kept], log_size[kept]

    angle = np.zeros(len(frequency))
    for j in range(len(sizes)):
        turn = 2 * pi / period * ((sizes[j] * frequency + period // 2) % period - period // 2)
        angle += tasks[j] * np.arctan2(heads[j] * np.sin(turn), 1 - 2 * heads[j] * np.sin(turn / 2) ** 2)
    return frequency, log_size, angle


def _half_window(largest: float, variance: float) -> float:
    """How far a sum of independent terms, none above `largest`, strays with a chance of 2 exp(-37) (Bernstein)."""
    third = 37 / 3 * largest
    return third + sqrt(third**2 + 74 * variance)


def _log_cosh(factor: float, sizes: IntArray) -> FloatArray:
    """log cosh(factor * sizes) to rounding, for small and large products that are not negative."""
    x = factor * sizes.astype(np.float64)
    small = np.log1p(np.sinh(np.minimum(x, 1)) ** 2) / 2
    return np.where(x < 1, small, x + np.log1p(np.exp(-2 * x)) - log(2))
