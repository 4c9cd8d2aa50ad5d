"""Intervals for rates: Wilson and Clopper-Pearson for independent tasks, the task Dirichlet bound for any value a task.

All are two-sided with (1 - confidence) / 2 beyond either end; for a one-sided level alpha ask for 1 - 2 alpha and
read one end. None means there is nothing to estimate from.
"""

from dataclasses import dataclass
from math import log, pi, sqrt

import numpy as np
import numpy.typing as npt

from passhat.stats.table import FloatArray

# what an estimate can be about: the suite taken as it is, or the tasks that it is a sample of
THESE_TASKS = "these tasks"
TASKS_LIKE_THESE = "tasks like these"

# a path's points are evaluated in batches until what is left is below rounding
_PATH_STEP = 0.125
_PATH_POINTS = 40


@dataclass(frozen=True, slots=True)
class Interval:
    """Two ends, the method that gave them, the confidence it was asked for, and what it is an interval of."""

    lower: float
    upper: float
    method: str
    confidence: float
    estimand: str = TASKS_LIKE_THESE


def tail_level(confidence: float) -> float:
    """The chance left beyond either end of a two-sided interval; ValueError when the confidence is not in (0, 1).

    >>> tail_level(0.5)
    0.25
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is between 0 and 1, found {confidence}")
    return (1 - confidence) / 2


def wilson(successes: int, trials: int, confidence: float = 0.95) -> Interval | None:
    """Wilson's score interval (1927) for independent trials; its outer end is exactly 0 or 1 at 0 or all successes.

    Its coverage dips to .84 near 0 and 1: for reading, not for deciding. None without a trial; ValueError unless
    0 <= successes <= trials and 0 < confidence < 1.

    >>> interval = wilson(80, 100)
    >>> round(interval.lower, 4), round(interval.upper, 4), interval.estimand
    (0.7112, 0.8666, 'tasks like these')
    """
    from scipy.special import ndtri

    _check_counts(successes, trials)
    z = -float(ndtri(tail_level(confidence)))
    if trials == 0:
        return None
    rate = successes / trials
    shrink = 1 + z * z / trials
    center = (rate + z * z / (2 * trials)) / shrink
    half = z * sqrt(rate * (1 - rate) / trials + (z / (2 * trials)) ** 2) / shrink
    lower = center - half if successes > 0 else 0.0
    upper = center + half if successes < trials else 1.0
    return Interval(lower, upper, "wilson", confidence)


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> Interval | None:
    """The exact interval of Clopper and Pearson (1934) for independent trials, never too narrow.

    None without a trial; ValueError unless 0 <= successes <= trials and 0 < confidence < 1.

    >>> interval = clopper_pearson(20, 20)
    >>> round(interval.lower, 4), interval.upper
    (0.8316, 1.0)
    """
    from scipy.special import betainccinv, betaincinv

    _check_counts(successes, trials)
    tail = tail_level(confidence)
    if trials == 0:
        return None
    failures = trials - successes
    lower = float(betaincinv(successes, failures + 1, tail)) if successes else 0.0
    upper = float(betainccinv(successes + 1, failures, tail)) if failures else 1.0
    return Interval(lower, upper, "clopper-pearson", confidence)


def dirichlet(
    values: npt.ArrayLike,
    multiplicities: npt.ArrayLike,
    confidence: float = 0.95,
    *,
    lower_limit: float = 0.0,
    upper_limit: float = 1.0,
) -> Interval | None:
    """The task Dirichlet bound of a mean over tasks: `multiplicities[j]` tasks have the value `values[j]`.

    The lower end is the (1 - confidence) / 2 quantile of sum w_j v_j with w ~ Dirichlet(multiplicities, 1) and the last
    weight on an extra task at `lower_limit`; the upper end mirrors it at `upper_limit` (Gaffke 2005; Learned-Miller and
    Thomas 2019, arXiv 1905.06208). The tasks are the sample: independent draws with values within the limits, of any
    distribution, such as pass^k of whole tasks.

    Validity: for values at the two limits this is Clopper-Pearson, and coverage is proven for two-point laws. For other
    laws on a bounded range it is conjectured; no counterexample is known. The interval contains the mean, always has
    width, is nested in confidence, and neither end falls when a task's value rises. No random numbers are drawn: the
    tail probabilities are computed, to about 1e-12 of their value, for any number of tasks.

    None without a task. ValueError when the two are not one-dimensional and of one length, a value is outside the
    limits, or a multiplicity is not a whole number.

    >>> interval = dirichlet([0, 1 / 3, 2 / 3, 1], [4, 6, 18, 72])
    >>> round(interval.lower, 4), round(interval.upper, 4), interval.method
    (0.7943, 0.9067, 'task-dirichlet')
    """
    values, weights = checked_sample(values, multiplicities, lower_limit, upper_limit)
    tail = tail_level(confidence)
    if not weights.any():
        return None
    lower = _dirichlet_quantile(*_atoms(values, weights, lower_limit), tail)
    upper = -_dirichlet_quantile(*_atoms(-values, weights, -upper_limit), tail)
    return Interval(lower, upper, "task-dirichlet", confidence)


def expected_lower_end(
    values: npt.ArrayLike, weights: npt.ArrayLike, level: float, *, lower_limit: float = 0.0
) -> float:
    """The lower end of `dirichlet` at the one-sided `level` for numbers of tasks that need not be whole.

    For planning: `weights[j]`, at least 1, is how many tasks of a larger sample are expected to have `values[j]`.

    >>> bound = dirichlet([0, 1], [2, 8], 0.95)
    >>> expected_lower_end([0, 1], [2, 8], 0.025) == bound.lower < expected_lower_end([0, 1], [2.5, 10], 0.025)
    True
    """
    values, weights = np.asarray(values, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    if values.shape != weights.shape or not (weights >= 1).all():
        raise ValueError(f"expected one weight of at least 1 a value, found {weights.tolist()}")
    return _dirichlet_quantile(*_atoms(values, weights, lower_limit), level)


def checked_sample(
    values: npt.ArrayLike, multiplicities: npt.ArrayLike, lower_limit: float, upper_limit: float
) -> tuple[FloatArray, FloatArray]:
    """Values and how many tasks have each, as arrays; ValueError for one outside the limits or for parts of a task.

    >>> values, weights = checked_sample([0, 1], [2, 3], 0, 1)
    >>> values.tolist(), weights.tolist()
    ([0.0, 1.0], [2.0, 3.0])
    """
    values = np.asarray(values, dtype=np.float64)
    weights = np.asarray(multiplicities, dtype=np.float64)
    if values.shape != weights.shape or values.ndim != 1:
        raise ValueError(f"values {values.shape} and multiplicities {weights.shape} need one and the same length")
    outside = values[~((values >= lower_limit) & (values <= upper_limit))]
    if outside.size:
        raise ValueError(f"every value lies in [{lower_limit}, {upper_limit}], found {outside[0]}")
    uncounted = weights[~((weights >= 0) & (weights == np.floor(weights)) & (weights < np.inf))]
    if uncounted.size:
        raise ValueError(f"a multiplicity is a whole number of tasks, found {uncounted[0]}")
    return values, weights


def _atoms(values: FloatArray, weights: FloatArray, extra: float) -> tuple[FloatArray, FloatArray]:
    """The distinct values in order and their weights, one extra task included."""
    present = weights > 0
    atoms, inverse = np.unique(np.append(values[present], extra), return_inverse=True)
    merged = np.zeros(len(atoms))
    np.add.at(merged, inverse, np.append(weights[present], 1.0))
    return atoms, merged


def _dirichlet_quantile(atoms: FloatArray, weights: FloatArray, level: float) -> float:
    """The quantile of sum w_j atoms_j, w ~ Dirichlet(weights), for ascending distinct atoms and weights of 1 or more.

    Such a sum has a log-concave distribution function, so Newton's method on its logarithm climbs to the solution
    from any point below it, and a point above it is followed by one below.
    """
    from scipy.special import betaincinv, ndtri

    low, width = float(atoms[0]), float(atoms[-1] - atoms[0])
    if len(atoms) == 1:
        return low
    if len(atoms) == 2:
        return low + width * float(betaincinv(weights[1], weights[0], level))

    atoms = (atoms - low) / width
    total = float(weights.sum())
    mean = float(weights @ atoms) / total
    sd = sqrt(float(weights @ (atoms - mean) ** 2) / (total * (total + 1)))
    x, before, saddle = mean + float(ndtri(level)) * sd, mean, 1 / (sd * total)
    for _ in range(100):
        if x <= 0:
            x = before / 2
        log_p, slope, saddle = _log_probability(atoms - x, weights, saddle)
        excess = log_p - log(level)
        before, x = x, x - excess / slope
        if abs(excess) < 1e-7:  # after this step it is about the square of that
            break
    return low + width * x


def _log_probability(gaps: FloatArray, weights: FloatArray, start: float) -> tuple[float, float, float]:
    """log P(Q <= 0) for Q = sum gaps_j Gamma(weights_j), its derivative in -gaps, and the saddle point found.

    P is the integral of prod (1 + gaps_j s)^-weights_j / (2 pi i s) along any path that crosses the real axis between
    0 and the first pole at -1 / min(gaps), which has to be there. Along the path of steepest descent nothing cancels,
    and the trapezoidal rule is accurate to rounding for weights that are few or many, alike or unlike.
    """
    saddle = _saddle_point(gaps, weights, start)
    # 1 / s is one more factor; all are taken relative to their values at the saddle point
    pulls = np.append(gaps / (1 + gaps * saddle), 1 / saddle)
    counts = np.append(weights, 1.0)
    scale = 1 / sqrt(float(counts @ pulls**2))

    integral = derivative = 0.0
    first = 0.5
    while True:
        t = _PATH_STEP * np.arange(first, first + _PATH_POINTS)
        height = scale * np.sinh(t)
        side, side_slope = _steepest_descent(pulls, counts, height)
        changes = np.outer(pulls, side + 1j * height)
        # the logarithm and angle of 1 + changes: ten times faster than a complex logarithm, and exact for small ones
        log_size = counts @ np.log1p(changes.real * (2 + changes.real) + changes.imag**2) / -2
        angle = -(counts @ np.arctan2(changes.imag, 1 + changes.real))
        terms = np.exp(log_size + 1j * angle) * (side_slope + 1j) * np.cosh(t)
        integral += float(np.sum(terms).imag)
        shares = (weights / (1 + gaps * saddle)) @ (1 / (1 + changes[:-1]))
        derivative += float(np.sum(terms * shares * (1 + changes[-1])).imag)
        if abs(terms[-1]) < 1e-16:
            break
        first += _PATH_POINTS
    log_p = log(integral * _PATH_STEP * scale / (pi * saddle)) - float(weights @ np.log1p(gaps * saddle))
    return log_p, saddle * derivative / integral, saddle


def _steepest_descent(pulls: FloatArray, counts: FloatArray, height: FloatArray) -> tuple[FloatArray, FloatArray]:
    """How far to the side of the saddle point the path is at each height above it, and the derivative of that.

    It is where a Newton step from straight above makes prod (1 + pulls_j z)^-counts_j real, drawn in so that the path
    never leaves by more than 45 degrees. The sum of counts_j pulls_j is 0.
    """
    turns = np.outer(pulls, height)
    damped = 1 / (1 + turns**2)
    first = counts * pulls
    fall = first @ (turns * damped)
    step = counts @ np.arctan(turns) / fall
    step_slope = (first @ damped - step * ((first * pulls) @ ((1 - turns**2) * damped**2))) / fall
    tilt = step / height
    return step / np.sqrt(1 + tilt**2), (step_slope + tilt**3) / (1 + tilt**2) ** 1.5


def _saddle_point(gaps: FloatArray, weights: FloatArray, start: float) -> float:
    """Near enough to where prod (1 + gaps_j s)^-weights_j / s is smallest for s between 0 and -1 / min(gaps).

    Its logarithm is self-concordant, so damped Newton steps stay between the two poles and always arrive.
    """
    s = min(start, -0.9 / float(gaps.min()))
    while True:
        pulls = gaps / (1 + gaps * s)
        gradient = -float(weights @ pulls) - 1 / s
        curvature = float(weights @ pulls**2) + 1 / s**2
        decrement = abs(gradient) / sqrt(curvature)
        s -= gradient / curvature / (1 + decrement)
        if decrement < 1e-4:
            return s


def _check_counts(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials")
