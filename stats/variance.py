"""How far an estimate may be off, and why: tasks differ from one another, and so do the runs of one task.

Two questions have two answers. About *these tasks*, a suite taken as it is, only the noise inside tasks counts; about
*tasks like these*, of which the suite is a sample, the variance between tasks counts too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, inf, pi, sqrt

import numpy as np

from passhat.stats.intervals import Interval, dirichlet, tail_level
from passhat.stats.reliability import attempt_rate, pass_hat, task_values
from passhat.stats.table import FloatArray, Histogram

_FEWEST_TASKS_FOR_NORMALITY = 30
_DIRECTIONS = 1 << 17
# a direction in which no Z_k moves by more than a ten-thousandth is left out
_NEGLIGIBLE_VARIANCE = 1e-8


@dataclass(frozen=True, slots=True)
class Spread:
    """The variance of the tasks' values of pass^k; `reason` says why a part is None, or that the tasks are all alike.

    Both parts are unbiased. Their difference, the variance between tasks, may come out below 0 and is then given as 0.
    """

    k: int
    tasks: int
    estimate: float | None
    total: float | None  # the tasks' values about their mean, T - 1 below; takes two tasks
    within: float | None  # what the runs of a task add, on average over the tasks; takes 2 k runs in each
    reason: str | None = None

    @property
    def between(self) -> float | None:
        """What the tasks themselves differ by: the total less what the runs add."""
        return None if self.total is None or self.within is None else max(0.0, self.total - self.within)

    @property
    def standard_error(self) -> float | None:
        """The standard error of the estimate for tasks like these, whole tasks being the sample ("cluster")."""
        return None if self.total is None else sqrt(self.total / self.tasks)

    @property
    def standard_error_these_tasks(self) -> float | None:
        """The standard error of the estimate for these tasks and no others: never above it in expectation."""
        return None if self.within is None else sqrt(self.within / self.tasks)


@dataclass(frozen=True, slots=True)
class Clustering:
    """How much the runs of a task resemble each other; `reason` says why a part is None."""

    tasks: int
    runs: int
    within_run: float | None  # W: the mean over tasks of p (1 - p), the variance of one run inside its task
    between: float | None  # V: the variance of p between tasks, 0 where its unbiased estimate is negative
    naive_standard_error: float | None  # of the attempt rate if runs were independent
    design_effect: float | None  # the variance of the attempt rate relative to that
    reason: str | None = None

    @property
    def icc(self) -> float | None:
        """The intra-task correlation V / (V + W) of two runs of a task; None when no run differs from another."""
        if self.within_run is None or self.between is None or self.between + self.within_run == 0:
            return None
        return self.between / (self.between + self.within_run)


@dataclass(frozen=True, slots=True)
class Allocation:
    """The best use of a budget, beside the same budget at the present number of runs; None where there is none."""

    runs_per_task: int | None
    tasks: int | None
    standard_error: float | None
    present_tasks: int
    present_standard_error: float | None
    advice: str | None  # "more tasks", "more repeats" or "as it is"
    reason: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """Intervals of pass^k for several k that all hold together with the confidence asked for."""

    k: tuple[int, ...]
    estimates: tuple[float, ...]
    intervals: tuple[Interval, ...]  # their own confidence is that of one interval by itself
    confidence: float
    critical: float | None  # of max |Z_k|; None where Bonferroni took its place
    correlation: FloatArray | None  # between tasks, of the values of each two k
    method: str | None
    reason: str | None = None


def within_task_variance(n: int, k: int) -> FloatArray:
    """The sampling variance of C(c, k) / C(n, k) inside a task, for c = 0 … n passes, without bias; n >= 2 k >= 2.

    v^2 - C(c, 2k) / C(n, 2k), because the last term is unbiased for p^2k. It is computed as v^2 (1 - R(c)), where
    R(c) / R(c + 1) = 1 / (1 + k^2 / ((c + 1) (c + 1 - 2k))) and R(n) = 1, and so loses no digits; it is never negative.

    >>> within_task_variance(8, 2)[6].round(12)
    np.float64(0.072704081633)
    """
    if not 2 <= 2 * k <= n:
        raise ValueError(f"k = {k}, n = {n}: the variance inside a task takes 2 k runs, and k of at least 1")
    values = task_values(n, k, k)
    c = np.arange(2 * k + 1, n + 1, dtype=np.float64)
    log_ratio = np.zeros(n + 1)
    log_ratio[: 2 * k] = -inf
    log_ratio[2 * k : n] = -np.cumsum(np.log1p(k * k / (c * (c - 2 * k)))[::-1])[::-1]
    return -(values**2) * np.expm1(log_ratio)


def spread(histogram: Histogram, k: int) -> Spread:
    """Split the variance of pass^k into what tasks and what runs contribute (Miller 2024, arXiv 2411.00640).

    The mean over T independent tasks has the variance (V + W_k) / T: V between tasks, W_k the mean of
    `within_task_variance`. The sample variance of the tasks' values estimates V + W_k, whatever the numbers of runs.

    >>> from passhat.stats.table import histogram
    >>> suite = spread(histogram([3] * 100, [3] * 72 + [2] * 18 + [1] * 6 + [0] * 4), 1)
    >>> round(suite.standard_error, 6), round(suite.standard_error_these_tasks, 6)
    (0.026028, 0.01633)
    """
    estimated = pass_hat(histogram, k)
    tasks = histogram.total
    if estimated.estimate is None:
        short_of_k = f"{estimated.not_estimable} tasks have fewer than {k} runs"
        return Spread(k, tasks, None, None, None, short_of_k if tasks else "no tasks")
    centered = estimated.values - estimated.estimate
    total = float(centered**2 @ histogram.tasks) / (tasks - 1) if tasks > 1 else None
    short = int(histogram.tasks[histogram.n < 2 * k].sum())
    within = None if short else _mean_within(histogram, k)
    reason: str | None = None
    if total is None:
        reason = "one task: no variance between tasks"
    elif short:
        reason = f"{short} tasks have fewer than {2 * k} runs: no variance inside tasks"
    elif not np.ptp(estimated.values):
        total, reason = 0.0, "no spread between tasks"
    return Spread(k, tasks, estimated.estimate, total, within, reason)


def _mean_within(histogram: Histogram, k: int, *, of_a_run: bool = False) -> float:
    """The mean over tasks of the variance inside them, or for k = 1 of n times that: the variance of one run."""
    total = 0.0
    for n in np.unique(histogram.n).tolist():
        same = histogram.n == n
        variance = within_task_variance(n, k)[histogram.c[same]] @ histogram.tasks[same]
        total += float(variance) * (n if of_a_run else 1)
    return total / histogram.total


def clustering(histogram: Histogram) -> Clustering:
    """Compare runs of one task with runs of different tasks: intra-task correlation and design effect (Kish 1965).

    The parts of the variance take two runs in every task. The design effect is the squared ratio of the standard error
    over tasks to that of independent runs; with unequal n the two belong to different rates, and there is none.

    >>> from passhat.stats.table import histogram
    >>> suite = clustering(histogram([3] * 100, [3] * 72 + [2] * 18 + [1] * 6 + [0] * 4))
    >>> round(suite.design_effect, 4), round(suite.icc, 4)
    (1.688, 0.3393)
    """
    attempts = attempt_rate(histogram)
    rate = attempts.estimate
    naive = None if rate is None else sqrt(rate * (1 - rate) / attempts.total)
    pass_1 = spread(histogram, 1)
    reason = pass_1.reason
    within_run = None if pass_1.within is None else _mean_within(histogram, 1, of_a_run=True)
    design_effect = None
    if naive == 0:
        reason = "no run differs from another"
    elif len(np.unique(histogram.n)) > 1:
        reason = reason or "tasks have unequal numbers of runs: no design effect"
    elif naive and pass_1.total is not None:
        design_effect = pass_1.total / histogram.total / naive**2
    return Clustering(histogram.total, attempts.total, within_run, pass_1.between, naive, design_effect, reason)


def optimal_repeats(between: float, within_run: float, cost_ratio: float) -> float | None:
    """The number of runs per task, not rounded, that costs least for a given standard error; None without limit.

    sqrt(W / V · cost per task / cost per run), the optimum of two-stage sampling (Cochran 1977, section 10.6). V and W
    are the variances between tasks and of one run, of a rate or of a paired difference (then W is W_A + W_B). Without
    variance between tasks there is no optimum: repeats do what tasks do, and cost less.

    >>> round(optimal_repeats(0.01308, 0.2939, 5), 3)
    10.599
    """
    _check_not_negative(between=between, within_run=within_run, cost_ratio=cost_ratio)
    if between == 0:
        return None
    return sqrt(within_run / between * cost_ratio)


def allocate(
    between: float,
    within_run: float,
    *,
    budget: float,
    cost_per_task: float,
    cost_per_run: float,
    runs_per_task: int,
    fewest_runs: int = 1,
) -> Allocation:
    """More tasks or more repeats: how a budget gives the smallest standard error sqrt((V + W / n) / T).

    `between` and `within_run` are V and W of `optimal_repeats`; a task costs `cost_per_task` once and `cost_per_run` a
    run, in the unit of the budget (count a run of both releases where a pair is meant). `runs_per_task` is the present
    number of runs, to compare with; `fewest_runs` keeps n at what pass^k takes, k or better 2 k.

    >>> allocate(0.02, 0.16, budget=400, cost_per_task=0, cost_per_run=1, runs_per_task=4).advice
    'more tasks'
    """
    _check_not_negative(between=between, within_run=within_run, cost_per_task=cost_per_task)
    if not (0 < cost_per_run < inf and 0 < budget < inf and runs_per_task >= 1 and fewest_runs >= 1):
        raise ValueError("budget, cost_per_run, runs_per_task and fewest_runs are positive and finite")

    def tasks_for(runs: int) -> int:
        return floor(budget / (cost_per_task + runs * cost_per_run))

    def error(runs: int) -> float:
        return sqrt((between + within_run / runs) / tasks_for(runs))

    present_tasks = tasks_for(runs_per_task)
    present_error = error(runs_per_task) if present_tasks >= 2 else None
    best = optimal_repeats(between, within_run, cost_per_task / cost_per_run)
    if best is None:
        unlimited = "no variance between tasks: repeats pay without limit"
        return Allocation(None, None, None, present_tasks, present_error, None, unlimited)
    most_runs = floor((budget / 2 - cost_per_task) / cost_per_run)
    if most_runs < fewest_runs:
        short = f"the budget does not reach for two tasks of {fewest_runs} runs"
        return Allocation(None, None, None, present_tasks, present_error, None, short)
    candidates = (min(max(runs, fewest_runs), most_runs) for runs in (floor(best), ceil(best)))
    runs = min(candidates, key=error)
    advice = "as it is"
    if runs != runs_per_task:
        advice = "more tasks" if runs < runs_per_task else "more repeats"
    return Allocation(runs, tasks_for(runs), error(runs), present_tasks, present_error, advice)


def band_over_k(histogram: Histogram, ks: Sequence[int], confidence: float = 0.95) -> Band:
    """Task Dirichlet bounds of pass^k, for tasks like these, that hold for every k of `ks` at once.

    "task-dirichlet-simultaneous": each bound has the confidence P(|Z| <= c), where c is the critical value of max |Z_k|
    for normal Z with the correlation that the tasks' values have (Montiel Olea and Plagborg-Møller 2019). With fewer
    than 30 tasks, or a k without spread between tasks, "task-dirichlet-bonferroni" divides the level among the k and
    assumes nothing. ValueError when `ks` is empty or does not ascend.

    >>> from passhat.stats.table import histogram
    >>> band = band_over_k(histogram([3] * 100, [3] * 72 + [2] * 18 + [1] * 6 + [0] * 4), [1, 2, 3])
    >>> round(band.critical, 4), round(band.intervals[2].lower, 3), round(band.intervals[2].upper, 3)
    (2.1386, 0.612, 0.812)
    """
    from scipy.special import ndtr

    if not ks or any(b <= a for a, b in zip((0, *ks), ks, strict=False)):
        raise ValueError(f"ks is an ascending list of positive integers, found {list(ks)}")
    tail = tail_level(confidence)
    estimated = [pass_hat(histogram, k) for k in ks]
    if estimated[-1].estimate is None:
        short = f"{estimated[-1].not_estimable} tasks have fewer than {ks[-1]} runs"
        return Band(tuple(ks), (), (), confidence, None, None, None, short if histogram.total else "no tasks")
    correlation = _correlation([each.values for each in estimated], histogram)
    if correlation is None or histogram.total < _FEWEST_TASKS_FOR_NORMALITY:
        method, critical, single_tail = "task-dirichlet-bonferroni", None, tail / len(ks)
    else:
        method = "task-dirichlet-simultaneous"
        critical = critical_value(correlation, confidence)
        single_tail = float(ndtr(-critical))
    intervals = (dirichlet(each.values, each.multiplicities, 1 - 2 * single_tail) for each in estimated)
    return Band(
        k=tuple(ks),
        estimates=tuple(each.estimate for each in estimated if each.estimate is not None),
        intervals=tuple(interval for interval in intervals if interval is not None),
        confidence=confidence,
        critical=critical,
        correlation=correlation,
        method=method,
    )


def _correlation(values: list[FloatArray], histogram: Histogram) -> FloatArray | None:
    """The correlation between tasks of each two rows of values; None when a row has no spread."""
    rows = np.array(values)
    rows -= (rows @ histogram.tasks / histogram.total)[:, np.newaxis]
    largest = np.abs(rows).max(axis=1)
    if not np.ptp(values, axis=1).all():
        return None
    rows *= np.sqrt(histogram.tasks) / largest[:, np.newaxis]
    rows /= np.sqrt((rows**2).sum(axis=1))[:, np.newaxis]
    correlation: FloatArray = rows @ rows.T
    return correlation


def critical_value(correlation: FloatArray, confidence: float = 0.95) -> float:
    """The c with P(max |Z_k| <= c) = confidence for standard normal Z_k with this correlation matrix.

    Z = A x with x uniform in direction and chi distributed in length, so that P(max |Z_k| > c) is the mean over
    directions u of P(chi > c / max |A u|) (Deák 1980). The directions are the 2^17 points of a Kronecker sequence with
    the square roots of primes, carried to the sphere: no random numbers, c within 1e-5 for three k and within 5e-4 for
    up to a dozen. Correlations may be singular. ValueError unless the matrix is a correlation.

    >>> round(critical_value(np.array([[1.0, 0.5], [0.5, 1.0]])), 4)
    2.2121
    """
    from scipy.special import gammaincc, gammaln, ndtri

    alpha = 2 * tail_level(confidence)
    loadings = _loadings(np.asarray(correlation, dtype=np.float64))
    size, rank = loadings.shape
    low, high = -float(ndtri(alpha / 2)), -float(ndtri(alpha / 2 / size))
    if rank == 1:
        return low
    longest = np.abs(loadings @ _directions(rank)).max(axis=0)
    log_scale = (rank / 2 - 1) * np.log(2) + gammaln(rank / 2)
    c = low
    while high - low > 1e-12:
        radii = c / longest
        excess = float(gammaincc(rank / 2, radii**2 / 2).mean()) - alpha
        low, high = (c, high) if excess > 0 else (low, c)
        density = np.exp((rank - 1) * np.log(radii) - radii**2 / 2 - log_scale) / longest
        before, c = c, c + excess / float(density.mean())
        if abs(c - before) < 1e-12:
            break
        if not low < c < high:
            c = (low + high) / 2
    return c


def _loadings(correlation: FloatArray) -> FloatArray:
    """A with A A' = the correlation and rows of length 1, in as few columns as matter."""
    size = len(correlation)
    if correlation.shape != (size, size) or not size or not np.allclose(correlation, correlation.T, atol=1e-9):
        raise ValueError(f"a correlation matrix is square and symmetric, found shape {correlation.shape}")
    variances, axes = np.linalg.eigh(correlation)
    if not np.allclose(np.diag(correlation), 1, atol=1e-9) or variances[0] < -1e-8 * size:
        raise ValueError("a correlation matrix has a diagonal of 1 and no negative eigenvalue")
    loadings = (axes * np.sqrt(np.maximum(variances, 0)))[:, ::-1]
    missing = 1 - np.cumsum(loadings**2, axis=1)
    rank = 1 + int(np.argmax(missing.max(axis=0) < _NEGLIGIBLE_VARIANCE))
    kept = loadings[:, :rank]
    unit: FloatArray = kept / np.sqrt((kept**2).sum(axis=1))[:, np.newaxis]
    return unit


@lru_cache(maxsize=4)
def _directions(rank: int) -> FloatArray:
    """Points spread evenly over half of the sphere in `rank` >= 2 dimensions, one a column.

    Coordinates come in pairs: the share of the squared length that a pair takes of what is left, then its angle.
    """
    primes = (p for p in range(2, rank**2 + 10) if all(p % q for q in range(2, p)))
    steps = np.arange(1, _DIRECTIONS + 1)
    rest = np.ones(_DIRECTIONS)
    coordinates: list[FloatArray] = []
    for left in range(rank, 1, -2):
        share = 1 - (steps * sqrt(next(primes)) % 1) ** (2 / (left - 2)) if left > 2 else np.ones(_DIRECTIONS)
        angle = 2 * pi * (steps * sqrt(next(primes)) % 1)
        radius = np.sqrt(rest * share)
        coordinates += [radius * np.cos(angle), radius * np.sin(angle)]
        rest = rest * (1 - share)
    if rank % 2:
        coordinates.append(np.sqrt(rest))
    return np.array(coordinates)


def _check_not_negative(**amounts: float) -> None:
    for name, amount in amounts.items():
        if not 0 <= amount < inf:
            raise ValueError(f"{name} is at least 0 and finite, found {amount}")
