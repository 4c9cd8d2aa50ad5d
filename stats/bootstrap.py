"""The bootstrap over whole tasks, computed instead of drawn: no random numbers, no seed, one answer.

A resampled mean is a sum of T draws from the values that the tasks have. Those lie on a lattice, so the distribution of
the sum is the T-th power of a discrete Fourier transform, taken over a window that misses less than 1e-15 of it.
Resampled are tasks with all their runs; resampling the runs inside them too would count their noise twice.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, comb, gcd, lcm, lgamma, log, sqrt

import numpy as np

from passhat.stats.intervals import Interval, tail_level
from passhat.stats.reliability import pass_hat
from passhat.stats.spread import TASKS_LIKE_THESE
from passhat.stats.table import FloatArray, Histogram, IntArray

_WIDEST_WINDOW_STEPS = 1 << 18
_GRID_STEPS_PER_SD = 32
# longer integers C(n, k) are slow, and next to never have a lattice that fits the window
_LONGEST_INTEGER_BITS = 4096


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
    window = _half_window(spread, tasks_with)
    tasks = sum(counts.values())
    if min(window, tasks) > _WIDEST_WINDOW_STEPS / positions[-1]:
        return _bootstrap_on_grid(values, tasks_with, confidence)
    return _read(
        _distribution(np.array(positions), tasks_with / tasks, tasks, window * positions[-1]),
        spread,
        tasks_with,
        width=float(np.ptp(values)),
        estimate=sum(atom * counts[atom] for atom in atoms) / (tasks * denominator),
        observed=sum(position * counts[atom] for position, atom in zip(positions, atoms, strict=True)),
        mean_of=lambda total: (tasks * atoms[0] + step * total) / (tasks * denominator),
        method="bootstrap-exact",
        confidence=confidence,
    )


def _bootstrap_on_grid(values: FloatArray, tasks_with: IntArray, confidence: float) -> Bootstrap:
    """The bootstrap of values of any kind, at least one."""
    low, width = float(values.min()), float(np.ptp(values))
    if not width:
        return _no_spread(values)
    tasks = int(tasks_with.sum())
    spread = (values - low) / width
    cell = _sd(spread, tasks_with) / _GRID_STEPS_PER_SD
    below = np.floor(spread / cell)
    above_share = spread / cell - below
    sums = _distribution(
        np.concatenate((below, below + 1)).astype(np.int64),
        np.concatenate((tasks_with * (1 - above_share), tasks_with * above_share)) / tasks,
        tasks,
        _half_window(spread, tasks_with) / cell,
    )
    return _read(
        sums,
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


def _distribution(positions: IntArray, shares: FloatArray, tasks: int, half_window: float) -> _Sums:
    """The distribution of a sum of `tasks` draws from `positions`, the lowest of which is 0."""
    highest = tasks * int(positions.max())
    size = 1 << (min(highest, 2 * ceil(half_window)) + 1).bit_length()
    center = round(tasks * float(shares @ positions))
    first = max(0, min(center - size // 2, highest + 1 - size))

    spectrum = np.fft.rfft(np.bincount(positions, weights=shares, minlength=size))
    kept = np.abs(spectrum) > 1e-20 ** (1 / tasks)
    spectrum[~kept] = 0
    spectrum[kept] **= tasks
    # the transform has the sums modulo its size
    chances = np.roll(np.fft.irfft(spectrum, size), -(first % size))
    cumulated = np.cumsum(np.maximum(chances, 0))
    return _Sums(first, cumulated / cumulated[-1])


def _half_window(spread: FloatArray, tasks_with: IntArray) -> float:
    """How far a sum of T draws strays from its mean with a chance above 2 exp(-37) (Bernstein's inequality).

    `spread` goes from 0 to 1; the answer is in the same unit.
    """
    tasks = int(tasks_with.sum())
    mean = float(spread @ tasks_with) / tasks
    third = 37 / 3 * max(mean, 1 - mean)
    return third + sqrt(third**2 + 74 * tasks * _sd(spread, tasks_with) ** 2)


def _sd(values: FloatArray, tasks_with: IntArray) -> float:
    tasks = int(tasks_with.sum())
    mean = float(values @ tasks_with) / tasks
    return sqrt(float((values - mean) ** 2 @ tasks_with) / tasks)


def _log2_comb(n: int, k: int) -> float:
    return (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)) / log(2)
