"""The percentile bootstrap over whole tasks, computed instead of drawn: no random numbers, no seed, one answer.

A resampled mean is a sum of T draws from the values that the tasks have. Those lie on a lattice, so the distribution of
the sum is the T-th power of a discrete Fourier transform, taken over a window that misses less than 1e-15 of it.
Resampled are tasks with all their runs; resampling the runs inside them too would count their noise twice.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, comb, gcd, lcm, lgamma, log, sqrt

import numpy as np

from passhat.stats.intervals import Interval, tail_level
from passhat.stats.reliability import pass_hat
from passhat.stats.table import FloatArray, Histogram, IntArray

_WIDEST_WINDOW_STEPS = 1 << 18
_GRID_STEPS_PER_SD = 32
# longer integers C(n, k) are slow, and next to never have a lattice that fits the window
_LONGEST_INTEGER_BITS = 4096


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What resampling whole tasks says about a mean over them; `reason` says why there is no interval."""

    estimate: float | None
    interval: Interval | None
    median: float | None  # of the resampled mean, as is sd
    sd: float | None
    reason: str | None = None


def bootstrap_pass_hat(histogram: Histogram, k: int, confidence: float = 0.95) -> Bootstrap:
    """Bootstrap pass^k over tasks, as `bootstrap_mean` does; no estimate when a task has fewer than k runs."""
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
    than .01 standard errors.
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
    sums = _quantiles(np.array(positions), tasks_with / tasks, tasks, window * positions[-1], confidence)
    lower, median, upper = ((tasks * atoms[0] + step * total) / (tasks * denominator) for total in sums)
    return Bootstrap(
        estimate=sum(atom * counts[atom] for atom in atoms) / (tasks * denominator),
        interval=Interval(lower, upper, "bootstrap-exact", confidence),
        median=median,
        sd=_sd(spread, tasks_with) * float(np.ptp(values)) / sqrt(tasks),
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
    sums = _quantiles(
        np.concatenate((below, below + 1)).astype(np.int64),
        np.concatenate((tasks_with * (1 - above_share), tasks_with * above_share)) / tasks,
        tasks,
        _half_window(spread, tasks_with) / cell,
        confidence,
    )
    lower, median, upper = (low + width * cell * total / tasks for total in sums)
    return Bootstrap(
        estimate=float(values @ tasks_with) / tasks,
        interval=Interval(lower, upper, "bootstrap-grid", confidence),
        median=median,
        sd=_sd(spread, tasks_with) * width / sqrt(tasks),
    )


def _no_spread(values: FloatArray) -> Bootstrap:
    """The answer for tasks that are all alike: a resample is like them too, which says nothing about other tasks."""
    if not len(values):
        return Bootstrap(None, None, None, None, "no tasks")
    value = float(values[0])
    return Bootstrap(value, None, value, 0.0, "no spread between tasks")


def _quantiles(
    positions: IntArray, shares: FloatArray, tasks: int, half_window: float, confidence: float
) -> tuple[int, int, int]:
    """The lower, middle and upper quantile of a sum of `tasks` draws from `positions`, the lowest of which is 0."""
    tail = tail_level(confidence)
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
    levels = np.array([tail, 0.5, 1 - tail])
    # a cumulated chance that equals its level is allowed its rounding
    lower, median, upper = first + np.searchsorted(cumulated, (levels - 1e-12) * cumulated[-1])
    return int(lower), int(median), int(upper)


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
