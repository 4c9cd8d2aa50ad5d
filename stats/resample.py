"""Bootstraps by random numbers, for statistics of tasks that are not means; a mean has an exact one without any.

Tasks with the same counts are one category, and a resample only says how many tasks of each category it has: the cost
does not grow with the number of tasks. Runs stay with their tasks. The intervals are descriptive: like every bootstrap
they cannot know of what no task of the suite shows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from passhat.stats.intervals import TASKS_LIKE_THESE, Interval, tail_level
from passhat.stats.table import FloatArray, Histogram, IntArray

MULTINOMIAL = "bootstrap-multinomial"
BAYESIAN = "bootstrap-bayesian"

# numbers drawn at a time
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Resampled:
    """What resampling whole tasks says about a statistic, and what it takes to draw the same numbers again."""

    estimate: float | None
    interval: Interval | None
    standard_error: float | None
    resamples: int
    generator: str
    seed: int | None  # None when the generator was not fresh from one: then the caller's records have to tell
    reason: str | None = None
    estimand: str = TASKS_LIKE_THESE


def bootstrap_statistic(
    multiplicities: npt.ArrayLike,
    statistic: Callable[[FloatArray], FloatArray],
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    method: str = MULTINOMIAL,
) -> Resampled:
    """Bootstrap a statistic of tasks in categories, `multiplicities[j]` of which are in category j.

    `statistic` gets weights of shape (B, J), each row the shares of the categories in one resample, and returns B
    values; it is also asked once for the suite itself. "bootstrap-multinomial" draws T tasks with replacement (Efron
    1979); "bootstrap-bayesian" draws the shares from a Dirichlet distribution with the multiplicities (Rubin 1981).
    The ends are percentiles, the smallest value of which enough resamples are at or below it. Without tasks, or where
    no resample differs, there is no interval. ValueError when the statistic is not finite on a resample.

    >>> n, c = np.array([8, 8, 2]), np.array([8, 4, 1])
    >>> result = bootstrap_statistic([6, 3, 3], lambda w: (w @ c) / (w @ n), np.random.default_rng(7), resamples=2000)
    >>> round(result.estimate, 3), result.interval.method, result.generator, result.seed
    (0.808, 'bootstrap-multinomial', 'PCG64', 7)
    """
    tail = tail_level(confidence)
    counts = np.asarray(multiplicities)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise ValueError(f"multiplicities are whole numbers of tasks, found {counts.tolist()}")
    if method not in (MULTINOMIAL, BAYESIAN) or resamples < 1:
        raise ValueError(f"{resamples} resamples by {method}: expected some, by {MULTINOMIAL} or {BAYESIAN}")
    generator, seed = type(rng.bit_generator).__name__, seed_of(rng)
    tasks = int(counts.sum())
    if not tasks:
        return Resampled(None, None, None, resamples, generator, seed, "no tasks")

    estimate = float(statistic(counts[np.newaxis] / tasks)[0])
    values = np.empty(resamples)
    rows = max(1, _CHUNK // len(counts))
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        drawn = (
            resample_counts(counts, tasks, rng, size)
            if method == MULTINOMIAL
            else rng.gamma(counts, 1, (size, len(counts)))
        )
        values[start : start + size] = statistic(drawn / drawn.sum(axis=1, keepdims=True))
    undefined = int(np.count_nonzero(~np.isfinite(values)))
    if undefined or not np.isfinite(estimate):
        raise ValueError(
            f"the statistic is not finite on {undefined} of {resamples} resamples, {estimate} on the suite"
        )
    if np.ptp(values) <= 1e-12 * np.abs(values).max():  # nothing but rounding
        return Resampled(estimate, None, 0.0, resamples, generator, seed, "no spread between tasks")
    lower, upper = np.quantile(values, [tail, 1 - tail], method="inverted_cdf").tolist()
    interval = Interval(lower, upper, method, confidence)
    return Resampled(estimate, interval, float(values.std(ddof=1)), resamples, generator, seed)


def bootstrap_attempt_rate(
    histogram: Histogram,
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    method: str = MULTINOMIAL,
) -> Resampled:
    """Bootstrap all passes of all runs over whole tasks: with unequal n a ratio of sums, and not a mean.

    Tasks without a run have no part in it.

    >>> from passhat.stats.table import histogram
    >>> bootstrap_attempt_rate(histogram([2, 8, 0], [2, 4, 0]), np.random.default_rng(1)).estimate
    0.6
    """
    ran = histogram.n > 0
    n, c = histogram.n[ran], histogram.c[ran]
    return bootstrap_statistic(
        histogram.tasks[ran],
        lambda shares: (shares @ c) / (shares @ n),
        rng,
        confidence=confidence,
        resamples=resamples,
        method=method,
    )


def resample_counts(weights: npt.ArrayLike, draws: int, rng: np.random.Generator, resamples: int) -> IntArray:
    """How often each category is drawn in `draws` draws with chances proportional to `weights`, per resample.

    Weights are relative: they are carried to float64 first and then divided by their sum, whatever it is. A category
    with weight 0 is never drawn. ValueError for weights that are negative, not finite or all 0.

    >>> resample_counts([0.25, 0.25, 0.0], 4, np.random.default_rng(1), 1000).sum(axis=0)[2]
    np.int64(0)
    """
    chances = np.asarray(weights, dtype=np.float64)
    possible = chances > 0
    if chances.ndim != 1 or not possible.any() or not np.isfinite(chances).all() or (chances < 0).any():
        raise ValueError(f"weights are finite, at least 0 and not all 0, found {chances.tolist()}")
    counts = np.zeros((resamples, len(chances)), dtype=np.int64)
    counts[:, possible] = rng.multinomial(draws, chances[possible] / chances.sum(), size=resamples)
    return counts


def seed_of(rng: np.random.Generator) -> int | None:
    """The seed that gives this generator again, if one number does and nothing has been drawn from it.

    >>> seed_of(np.random.default_rng(7))
    7
    """
    bits = rng.bit_generator
    entropy = getattr(bits.seed_seq, "entropy", None)
    if not isinstance(entropy, int) or repr(type(bits)(entropy).state) != repr(bits.state):
        return None
    return entropy
