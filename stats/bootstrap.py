"""The bootstrap over whole tasks, computed instead of drawn: no random numbers, no seed, one answer.

A resampled mean is a sum of T draws from the values that the tasks have. Those lie on a lattice, so the distribution of
the sum is the T-th power of a discrete Fourier transform, taken over a window that misses less than 1e-15 of it; with
strata, whose tasks are resampled inside them, it is the product of their powers.
Resampled are tasks with all their runs; resampling the runs inside them too would count their noise twice.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, comb, fsum, gcd, inf, lcm, lgamma, log, sqrt

import numpy as np

from passhat.stats.intervals import TASKS_LIKE_THESE, Interval, tail_level
from passhat.stats.reliability import SuiteEstimate, pass_hat
from passhat.stats.table import FloatArray, Histogram, IntArray

_WIDEST_WINDOW_STEPS = 1 << 18
_GRID_STEPS_PER_SD = 32
# longer integers C(n, k) are slow, and next to never have a lattice that fits the window
_LONGEST_INTEGER_BITS = 4096
# of steps of which the longest is 1: a remainder that is rounding, and how far a multiple may be off
_NO_STEP = 1e-7
_SLIP = 1e-12


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What resampling whole tasks says about a mean over them; `reason` says why there is no interval.

    The same distribution is read at three pairs of levels: by `interval` at those of the confidence; by `expanded` a
    little farther out, at those of sqrt(T / (T - 1)) times Student's t (Hesterberg 2015); by `bca` corrected for its
    bias z0 and the `acceleration` a (Efron 1987), except where 1 - a (z0 + z) is not positive.
    """

    estimate: float | None
    interval: Interval | None
    median: float | None  # of the resampled mean, as is sd
    sd: float | None
    reason: str | None = None
    expanded: Interval | None = None
    bca: Interval | None = None
    z0: float | None = None
    acceleration: float | None = None
    estimand: str = TASKS_LIKE_THESE


@dataclass(frozen=True, slots=True, eq=False)
class _Draws:
    """`tasks` draws from `positions`, the lowest of which is 0, with the chances `shares`."""

    positions: IntArray
    shares: FloatArray
    tasks: int


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """The distribution of a sum on consecutive integers, from `first` on."""

    first: int
    cumulated: FloatArray

    def quantile(self, level: float) -> int:
        """The smallest sum whose cumulated chance reaches the level, or falls short of it by rounding."""
        return self.first + int(np.searchsorted(self.cumulated, level - 1e-12))

    def middle_level(self, total: float) -> float:
        """The chance of less plus half of that of exactly as much, interpolated between the integers."""
        below, share = divmod(total - self.first, 1)
        reached = np.append(0.0, self.cumulated)[int(below) : int(below) + 3]
        middles = (reached[:-1] + reached[1:]) / 2
        return float(np.interp(share, np.arange(len(middles)), middles))


def bootstrap_pass_hat(histogram: Histogram, k: int, confidence: float = 0.95) -> Bootstrap:
    """Bootstrap pass^k over tasks, as `bootstrap_mean` does; no estimate when a task has fewer than k runs.

    >>> from passhat.stats.table import histogram
    >>> result = bootstrap_pass_hat(histogram([3] * 100, [3] * 72 + [2] * 18 + [1] * 6 + [0] * 4), 3)
    >>> result.estimate, result.interval.lower, result.interval.upper
    (0.72, 0.63, 0.81)
    """
    estimated = pass_hat(histogram, k)
    if estimated.not_estimable:
        return Bootstrap(None, None, None, None, f"{estimated.not_estimable} tasks have fewer than {k} runs")
    runs = np.unique(histogram.n).tolist()
    if sum(_log2_comb(n, k) for n in runs) > _LONGEST_INTEGER_BITS:
        return _bootstrap_on_grid(estimated.values, estimated.multiplicities, confidence)
    denominator = lcm(*(comb(n, k) for n in runs))
    numerators = [
        comb(c, k) * (denominator // comb(n, k))
        for n, c in zip(histogram.n.tolist(), histogram.c.tolist(), strict=True)
    ]
    return bootstrap_mean(numerators, denominator, histogram.tasks.tolist(), confidence)


def bootstrap_mean(
    numerators: Sequence[int], denominator: int, multiplicities: Sequence[int], confidence: float = 0.95
) -> Bootstrap:
    """Bootstrap a mean over tasks, `multiplicities[j]` of which have the value `numerators[j]` / `denominator`.

    An end is the smallest value of the resampled mean whose cumulated chance reaches the level. The method of the
    interval is "bootstrap-exact" when the window has at most 2^18 steps of the values' lattice, else "bootstrap-grid":
    then values are split between the points of a grid of 1/32 of their standard deviation, which moves an end by less
    than .01 standard errors. The methods of the others end in "-expanded" and "-bca". ValueError when the lengths
    differ, a multiplicity is negative or the denominator is below 1.

    >>> result = bootstrap_mean([0, 1], 1, [20, 80])
    >>> result.interval.lower, result.interval.upper, result.bca.lower, result.bca.upper
    (0.72, 0.88, 0.71, 0.87)
    """
    if denominator < 1 or min(multiplicities, default=0) < 0:
        raise ValueError(f"denominator {denominator} is below 1, or a multiplicity is negative: {multiplicities}")
    counts: Counter[int] = Counter()
    for numerator, multiplicity in zip(numerators, multiplicities, strict=True):
        counts[int(numerator)] += int(multiplicity)
    atoms = sorted(atom for atom in counts if counts[atom])
    values = np.array([atom / denominator for atom in atoms])
    tasks_with = np.array([counts[atom] for atom in atoms], dtype=np.int64)
    if len(atoms) < 2:
        return _no_spread(values)

    step = gcd(*(atom - atoms[0] for atom in atoms))
    positions = [(atom - atoms[0]) // step for atom in atoms]
    spread = np.array([position / positions[-1] for position in positions])
    window = _half_window([(spread, tasks_with)])
    tasks = sum(counts.values())
    if min(window, tasks) > _WIDEST_WINDOW_STEPS / positions[-1]:
        return _bootstrap_on_grid(values, tasks_with, confidence)
    return _read(
        _distribution([_Draws(np.array(positions), tasks_with / tasks, tasks)], window * positions[-1]),
        spread,
        tasks_with,
        width=float(np.ptp(values)),
        estimate=sum(atom * counts[atom] for atom in atoms) / (tasks * denominator),
        observed=sum(position * counts[atom] for position, atom in zip(positions, atoms, strict=True)),
        mean_of=lambda total: (tasks * atoms[0] + step * total) / (tasks * denominator),
        method="bootstrap-exact",
        confidence=confidence,
    )


def bootstrap_strata(samples: Sequence[SuiteEstimate], weights: Sequence[float], confidence: float = 0.95) -> Bootstrap:
    """Bootstrap the mean over strata, by `weights`, of the means of `samples`; tasks are resampled inside strata.

    An end is the smallest value whose cumulated chance reaches the level. The method is "bootstrap-strata-exact" where
    all that one task can add is a multiple of one step and the window has at most 2^18 of them, else
    "bootstrap-strata-grid", with a step of 1/32 of the root mean square of the tasks' standard deviations. There is no
    expanded or corrected interval. No estimate when a stratum has none, and no interval when the tasks of every stratum
    with weight are alike. ValueError when the lengths differ, or weights are negative, not finite or all 0.

    >>> from passhat.stats.table import histogram
    >>> samples = [pass_hat(histogram([1] * 50, [1] * passed + [0] * (50 - passed)), 1) for passed in (45, 15)]
    >>> result = bootstrap_strata(samples, [0.6, 0.4])
    >>> round(result.estimate, 12), round(result.interval.lower, 12), round(result.interval.upper, 12)
    (0.66, 0.588, 0.728)
    """
    tail = tail_level(confidence)
    if not all(0 <= weight < inf for weight in weights) or (samples and not any(weights)):
        raise ValueError(f"weights are at least 0, finite and not all 0, found {list(weights)}")
    means = [sample.estimate for sample in samples if sample.estimate is not None]
    if not means or len(means) < len(samples):
        return Bootstrap(None, None, None, None, "a stratum has no estimate" if samples else "no strata")

    total = fsum(weights)
    strata = [(sample, weight / total) for sample, weight in zip(samples, weights, strict=True)]
    # divided once more than weights need, so that ones have a mean of exactly 1
    estimate, lowest, highest = (
        fsum(weight * value for weight, value in zip(weights, values, strict=True)) / total
        for values in (
            means,
            [float(sample.values.min()) for sample in samples],
            [float(sample.values.max()) for sample in samples],
        )
    )
    # the most that one task adds to the lowest result; in that unit, what each adds, and how many tasks add it
    longest = max(weight / sample.tasks * float(np.ptp(sample.values)) for sample, weight in strata)
    if not longest:
        return Bootstrap(estimate, None, estimate, 0.0, "no spread between tasks")
    steps = [
        (weight / sample.tasks * (sample.values - sample.values.min()) / longest, sample.multiplicities)
        for sample, weight in strata
        if weight and np.ptp(sample.values)
    ]
    tasks = sum(int(tasks_with.sum()) for _, tasks_with in steps)
    sd = sqrt(fsum(int(tasks_with.sum()) * _sd(added, tasks_with) ** 2 for added, tasks_with in steps))
    window, cell, method = _half_window(steps), _common_step(np.concatenate([added for added, _ in steps])), "exact"
    reach = fsum(int(tasks_with.sum()) * float(added.max()) for added, tasks_with in steps)
    if min(window, reach) > _WIDEST_WINDOW_STEPS * cell:
        cell, method = sd / sqrt(tasks) / _GRID_STEPS_PER_SD, "grid"
    places = [np.rint(added / cell) if method == "exact" else added / cell for added, _ in steps]
    draws = [_on_grid(positions, tasks_with) for positions, (_, tasks_with) in zip(places, steps, strict=True)]
    sums = _distribution(draws, window / cell)
    lower, median, upper = (
        min(highest, lowest + longest * cell * sums.quantile(level)) for level in (tail, 0.5, 1 - tail)
    )
    interval = Interval(lower, upper, f"bootstrap-strata-{method}", confidence)
    return Bootstrap(estimate, interval, median, longest * sd)


def _bootstrap_on_grid(values: FloatArray, tasks_with: IntArray, confidence: float) -> Bootstrap:
    """The bootstrap of values of any kind, at least one."""
    low, width = float(values.min()), float(np.ptp(values))
    if not width:
        return _no_spread(values)
    tasks = int(tasks_with.sum())
    spread = (values - low) / width
    cell = _sd(spread, tasks_with) / _GRID_STEPS_PER_SD
    return _read(
        _distribution([_on_grid(spread / cell, tasks_with)], _half_window([(spread, tasks_with)]) / cell),
        spread,
        tasks_with,
        width=width,
        estimate=float(values @ tasks_with) / tasks,
        observed=float(spread @ tasks_with) / cell,
        mean_of=lambda total: low + width * cell * total / tasks,
        method="bootstrap-grid",
        confidence=confidence,
    )


def _read(
    sums: _Sums,
    spread: FloatArray,
    tasks_with: IntArray,
    *,
    width: float,
    estimate: float,
    observed: float,
    mean_of: Callable[[int], float],
    method: str,
    confidence: float,
) -> Bootstrap:
    """The intervals from the distribution of the sum, of which `observed` is the value of the suite itself.

    `spread` are the values brought to the range from 0 to 1, `width` is the range they had.
    """
    from scipy.special import ndtr, ndtri, stdtrit

    tail, tasks = tail_level(confidence), int(tasks_with.sum())

    def interval(lower_level: float, upper_level: float, name: str) -> Interval:
        return Interval(mean_of(sums.quantile(lower_level)), mean_of(sums.quantile(upper_level)), name, confidence)

    expanded_tail = float(ndtr(sqrt(tasks / (tasks - 1)) * stdtrit(tasks - 1, tail)))
    deviations = spread - float(spread @ tasks_with) / tasks
    squares = float(deviations**2 @ tasks_with)
    acceleration = float(deviations**3 @ tasks_with) / (6 * squares**1.5)
    z, z0 = float(ndtri(tail)), float(ndtri(sums.middle_level(observed)))
    bca = None
    if acceleration * (z0 + z) < 1 and acceleration * (z0 - z) < 1:
        lower, upper = (float(ndtr(z0 + shifted / (1 - acceleration * shifted))) for shifted in (z0 + z, z0 - z))
        bca = interval(lower, upper, f"{method}-bca")
    return Bootstrap(
        estimate=estimate,
        interval=interval(tail, 1 - tail, method),
        median=mean_of(sums.quantile(0.5)),
        sd=width * sqrt(squares) / tasks,
        expanded=interval(expanded_tail, 1 - expanded_tail, f"{method}-expanded"),
        bca=bca,
        z0=z0,
        acceleration=acceleration,
    )


def _no_spread(values: FloatArray) -> Bootstrap:
    """The answer for tasks that are all alike: a resample is like them too, which says nothing about other tasks."""
    if not len(values):
        return Bootstrap(None, None, None, None, "no tasks")
    value = float(values[0])
    return Bootstrap(value, None, value, 0.0, "no spread between tasks")


def _on_grid(positions: FloatArray, tasks_with: IntArray) -> _Draws:
    """Draws from positions that need not be whole: each is split between its neighbours so that the mean is kept."""
    tasks = int(tasks_with.sum())
    below = np.floor(positions)
    above_share = positions - below
    return _Draws(
        np.concatenate((below, below + 1)).astype(np.int64),
        np.concatenate((tasks_with * (1 - above_share), tasks_with * above_share)) / tasks,
        tasks,
    )


def _common_step(steps: FloatArray) -> float:
    """The longest length of which all steps are multiples, by Euclid's algorithm; 0 when there is none to speak of.

    The longest step is 1.
    """
    common = 1.0
    for step in np.unique(steps).tolist():
        remainder = step
        while remainder > _NO_STEP:
            common, remainder = remainder, abs(common - round(common / remainder) * remainder)
    common = 1 / round(1 / common)
    off = float(np.abs(steps - common * np.rint(steps / common)).max())
    return common if off <= _SLIP else 0.0


def _distribution(strata: Sequence[_Draws], half_window: float) -> _Sums:
    """The distribution of the sum of all draws of all strata."""
    highest = sum(draws.tasks * int(draws.positions.max()) for draws in strata)
    size = 1 << (min(highest, 2 * ceil(half_window)) + 1).bit_length()
    center = round(sum(draws.tasks * float(draws.shares @ draws.positions) for draws in strata))
    first = max(0, min(center - size // 2, highest + 1 - size))

    product = np.ones(size // 2 + 1, dtype=np.complex128)
    for draws in strata:
        spectrum = np.fft.rfft(np.bincount(draws.positions, weights=draws.shares, minlength=size))
        kept = np.abs(spectrum) > 1e-20 ** (1 / draws.tasks)
        spectrum[~kept] = 0
        spectrum[kept] **= draws.tasks
        product *= spectrum
    # the transform has the sums modulo its size
    chances = np.roll(np.fft.irfft(product, size), -(first % size))
    cumulated = np.cumsum(np.maximum(chances, 0))
    return _Sums(first, cumulated / cumulated[-1])


def _half_window(strata: Sequence[tuple[FloatArray, IntArray]]) -> float:
    """How far a sum of draws strays from its mean with a chance above 2 exp(-37) (Bernstein's inequality).

    Each stratum has values from 0 on and how many tasks have each; the answer is in their unit.
    """
    means = [_mean(values, tasks_with) for values, tasks_with in strata]
    farthest = max(max(mean, float(values.max()) - mean) for mean, (values, _) in zip(means, strata, strict=True))
    third = 37 / 3 * farthest
    variance = sum(int(tasks_with.sum()) * _sd(values, tasks_with) ** 2 for values, tasks_with in strata)
    return third + sqrt(third**2 + 74 * variance)


def _mean(values: FloatArray, tasks_with: IntArray) -> float:
    return float(values @ tasks_with) / int(tasks_with.sum())


def _sd(values: FloatArray, tasks_with: IntArray) -> float:
    return sqrt(_mean((values - _mean(values, tasks_with)) ** 2, tasks_with))


def _log2_comb(n: int, k: int) -> float:
    return (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)) / log(2)
