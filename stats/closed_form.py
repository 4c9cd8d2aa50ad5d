"""Intervals in closed form, to be read beside the task Dirichlet bound: descriptive, never for a gate.

Their coverage is near the nominal one away from the edges and falls to .84 to .89 where few tasks carry all the
failures; their ends can move the wrong way when a task improves. All take tasks as the sample, except the one that
says otherwise.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from passhat.stats.intervals import TASKS_LIKE_THESE, THESE_TASKS, Interval, checked_sample, tail_level
from passhat.stats.table import FloatArray
from passhat.stats.variance import Spread


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """A mean over tasks with an interval in closed form; `reason` says why there is none."""

    estimate: float | None
    center: float | None  # the middle of the interval before it is cut to [0, 1]
    effective_tasks: float | None  # how many pass/fail tasks would be as precise, where the method asks for it
    interval: Interval | None
    reason: str | None = None
    estimand: str = TASKS_LIKE_THESE


def cluster_wilson(
    values: npt.ArrayLike, multiplicities: npt.ArrayLike, confidence: float = 0.95, *, pseudo_tasks: float = 0.5
) -> ClosedForm:
    """Wilson's interval for a mean over tasks: `multiplicities[j]` tasks have the value `values[j]` in [0, 1].

    The number of trials is x (1 - x) / (s^2 / T), the effective sample size of Korn and Graubard (1998), but at least
    T - 1; x and s^2 are the mean and variance with `pseudo_tasks` more tasks at 0 and as many at 1, and a t quantile
    with T - 1 degrees of freedom takes the place of the normal one. An end is exactly 0 or 1 where the mean is. One
    task has no degree of freedom and no interval.

    >>> interval = cluster_wilson([0, 1 / 3, 2 / 3, 1], [4, 6, 18, 72]).interval
    >>> round(interval.lower, 4), round(interval.upper, 4)
    (0.7997, 0.9043)
    """
    from scipy.special import stdtrit

    values, weights = checked_sample(values, multiplicities, 0, 1)
    tasks = float(weights.sum())
    tail = tail_level(confidence)
    if tasks < 2:
        return _too_few(values, weights)
    mean = float(values @ weights) / tasks
    shrunken, variance = pseudo_moments(values, weights, pseudo_tasks)
    trials = max(shrunken * (1 - shrunken) / (variance / tasks), tasks - 1)
    interval = score_interval(mean, trials, -float(stdtrit(tasks - 1, tail)), "cluster-wilson", confidence)
    return ClosedForm(mean, (interval.lower + interval.upper) / 2, trials, interval)


def pseudo_task_t(
    values: npt.ArrayLike, multiplicities: npt.ArrayLike, confidence: float = 0.95, *, pseudo_tasks: float = 1.0
) -> ClosedForm:
    """A t interval around the mean over tasks, `pseudo_tasks` more of which are put at 0 and as many at 1.

    x +- t(T - 1) s / sqrt(T + 2 a), cut to [0, 1], after the idea of Agresti and Caffo (2000). The middle is drawn
    towards 1/2, so that at confidences below .7 the mean itself may lie outside. One task has no interval.

    >>> interval = pseudo_task_t([1.0], [20]).interval
    >>> round(interval.lower, 4), interval.upper
    (0.8594, 1.0)
    """
    from scipy.special import stdtrit

    values, weights = checked_sample(values, multiplicities, 0, 1)
    tasks = float(weights.sum())
    tail = tail_level(confidence)
    if tasks < 2:
        return _too_few(values, weights)
    center, variance = pseudo_moments(values, weights, pseudo_tasks)
    half = -float(stdtrit(tasks - 1, tail)) * sqrt(variance / (tasks + 2 * pseudo_tasks))
    interval = Interval(max(0.0, center - half), min(1.0, center + half), "pseudo-task-t", confidence)
    return ClosedForm(float(values @ weights) / tasks, center, None, interval)


def these_tasks_normal(spread: Spread, confidence: float = 0.95) -> ClosedForm:
    """A normal interval for pass^k of *these tasks*, as if no others were of interest: runs are the only noise.

    The estimate +- z sqrt(W_k / T), cut to [0, 1] (Miller 2024, arXiv 2411.00640). It is narrower than one for tasks
    like these, and takes 2 k runs in every task. None, with the reason, where the runs of no task differ.

    >>> from passhat.stats.table import histogram
    >>> from passhat.stats.variance import spread
    >>> interval = these_tasks_normal(spread(histogram([3] * 100, [3] * 72 + [2] * 18 + [1] * 6 + [0] * 4), 1)).interval
    >>> round(interval.lower, 3), round(interval.upper, 3), interval.method
    (0.828, 0.892, 'these-tasks-normal')
    """
    from scipy.special import ndtri

    z = -float(ndtri(tail_level(confidence)))
    estimate, error = spread.estimate, spread.standard_error_these_tasks
    interval, reason = None, spread.reason
    if estimate is not None and error:
        lower, upper = max(0.0, estimate - z * error), min(1.0, estimate + z * error)
        interval, reason = Interval(lower, upper, "these-tasks-normal", confidence, THESE_TASKS), None
    elif error == 0:
        reason = "the runs of no task differ"
    return ClosedForm(estimate, None if interval is None else estimate, None, interval, reason, THESE_TASKS)


def pseudo_moments(values: FloatArray, weights: FloatArray, pseudo_tasks: float) -> tuple[float, float]:
    """The mean and variance of tasks among which are `pseudo_tasks` > 0 at 0 and as many at 1; never a variance of 0.

    >>> pseudo_moments(np.array([1.0]), np.array([18.0]), 1.0)
    (0.95, 0.05)
    """
    if not 0 < pseudo_tasks < np.inf:
        raise ValueError(f"pseudo_tasks is positive and finite, found {pseudo_tasks}")
    tasks = float(weights.sum()) + 2 * pseudo_tasks
    mean = (float(values @ weights) + pseudo_tasks) / tasks
    squares = float((values - mean) ** 2 @ weights) + pseudo_tasks * (mean**2 + (1 - mean) ** 2)
    return mean, squares / (tasks - 1)


def score_interval(mean: float, trials: float, quantile: float, method: str, confidence: float) -> Interval:
    """Wilson's score interval (1927) of a mean in [0, 1] with a number of trials that need not be whole.

    >>> interval = score_interval(0.8, 20, 1.959964, "wilson", 0.95)
    >>> round(interval.lower, 3), round(interval.upper, 3)
    (0.584, 0.919)
    """
    shrink = 1 + quantile**2 / trials
    center = (mean + quantile**2 / (2 * trials)) / shrink
    half = quantile * sqrt(mean * (1 - mean) / trials + (quantile / (2 * trials)) ** 2) / shrink
    # by the product of the two solutions, which is exact at 0 and at 1 and next to them
    lower = mean**2 / (shrink * (center + half))
    upper = 1 - (1 - mean) ** 2 / (shrink * (1 - center + half))
    return Interval(lower, upper, method, confidence)


def _too_few(values: FloatArray, weights: FloatArray) -> ClosedForm:
    if not weights.any():
        return ClosedForm(None, None, None, None, "no tasks")
    return ClosedForm(float(values @ weights), None, None, None, "one task: no degree of freedom")
