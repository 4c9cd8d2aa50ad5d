"""Rates over cohorts in declared proportions, and what part of a change is a change of the mix.

A cohort is a slice of tasks that was named before any run. Its sample is the estimate of its tasks' values, such as
`pass_hat(histogram, k)`, or `single_runs(passed, tasks)` where a task has one run or stands for one observation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum, inf, sqrt

import numpy as np

from passhat.stats.bootstrap import Bootstrap, bootstrap_strata
from passhat.stats.closed_form import pseudo_moments, score_interval
from passhat.stats.intervals import TASKS_LIKE_THESE, Interval, dirichlet, tail_level
from passhat.stats.reliability import SuiteEstimate, pass_hat
from passhat.stats.table import Histogram

# a move this small is rounding
_SLIP = 1e-12


@dataclass(frozen=True, slots=True)
class Standardised:
    """A rate in declared proportions of the cohorts beside the raw one; `reason` says why a part is None."""

    weights: tuple[tuple[str, float], ...]  # as used: their sum is 1 but for rounding; by name
    estimate: float | None
    raw: float | None  # the mean over all tasks of the cohorts, in the proportions they happen to have
    standard_error: float | None  # over tasks inside cohorts; takes two tasks in each that counts
    interval: Interval | None  # Wilson's with an effective number of tasks: descriptive
    bound: Interval | None  # task Dirichlet bounds of the cohorts, Bonferroni: holds for any distribution
    effective_tasks: float | None
    degrees_of_freedom: float | None
    reason: str | None = None
    estimand: str = TASKS_LIKE_THESE


@dataclass(frozen=True, slots=True)
class CohortMove:
    """One cohort before and after: its share of the tasks, its rate, and what each adds to the move of the raw rate."""

    name: str
    share_before: float
    share_after: float
    rate_before: float | None  # None without tasks
    rate_after: float | None
    mix: float
    quality: float


@dataclass(frozen=True, slots=True)
class Movement:
    """How a raw rate moved, split into a changed mix and changed quality, beside the standardised move."""

    raw: float | None  # after minus before; mix + quality is the same but for rounding
    mix: float | None
    quality: float | None
    standardised: float | None
    is_reversal: bool  # Simpson: raw and standardised moves have opposite signs
    cohorts: tuple[CohortMove, ...]
    reason: str | None = None


def single_runs(passed: int, tasks: int) -> SuiteEstimate:
    """The sample of a cohort of `tasks` tasks with one run each, of which `passed` pass.

    >>> single_runs(81, 90).estimate
    0.9
    """
    if not 0 <= passed <= tasks:
        raise ValueError(f"{passed} passes of {tasks} tasks")
    counts = np.array([tasks - passed, passed])
    present = np.flatnonzero(counts)
    return pass_hat(Histogram(np.ones_like(present), present, counts[present]), 1)


def standardise(
    cohorts: Mapping[str, SuiteEstimate], weights: Mapping[str, float], confidence: float = 0.95
) -> Standardised:
    """Standardise directly: the sum of w_s p_s with weights declared per cohort, divided by their sum.

    The interval is Wilson's score interval with the effective number of tasks max(x (1 - x) / V, 1 / sum(w_s^2 / T_s)
    - 1), x and V the weighted mean and variance with half a task at 0 and at 1 in every cohort, and a t quantile with
    the degrees of freedom of Satterthwaite (1946). It takes two tasks in each cohort that counts, and is descriptive.
    The bound adds up w_s times the task Dirichlet bound of each of S cohorts at 1 / S of the level: wide, but valid
    wherever those are.

    A cohort of positive weight without tasks, or with tasks that are not estimable, makes everything but the raw rate
    None, and is named; weights are never spread over the others. ValueError for a cohort without a declared weight, and
    for weights that are negative, not finite or all 0.

    >>> week = {"routine": single_runs(45, 50), "destructive": single_runs(15, 50)}
    >>> result = standardise(week, {"routine": 0.6, "destructive": 0.4})
    >>> round(result.estimate, 2), result.raw, round(result.interval.lower, 3), round(result.interval.upper, 3)
    (0.66, 0.6, 0.583, 0.729)
    """
    tail = tail_level(confidence)
    shares = _shares(cohorts, weights)
    named = tuple(sorted(shares.items()))
    raw = _raw(cohorts)
    counted = {name: weight for name, weight in named if weight}
    reason = _without_estimate(cohorts, counted)
    if reason:
        return Standardised(named, None, raw, None, None, None, None, None, reason)

    samples = {name: cohorts[name] for name in counted}
    means = {name: sample.estimate for name, sample in samples.items() if sample.estimate is not None}
    estimate = _weighted(means, counted)
    bound = _bonferroni(samples, counted, tail, confidence)
    single = [name for name, sample in samples.items() if sample.tasks < 2]
    if single:
        reason = f"one task in cohorts with weight: {', '.join(single)}"
        return Standardised(named, estimate, raw, None, None, bound, None, None, reason)
    errors = {
        name: sqrt(
            float((sample.values - means[name]) ** 2 @ sample.multiplicities) / (sample.tasks - 1) / sample.tasks
        )
        for name, sample in samples.items()
    }
    interval, effective, freedom = _wilson(samples, counted, estimate, confidence)
    return Standardised(
        weights=named,
        estimate=estimate,
        raw=raw,
        standard_error=standardised_error(counted, errors),
        interval=interval,
        bound=bound,
        effective_tasks=effective,
        degrees_of_freedom=freedom,
        reason=None if raw is not None else "no raw rate: tasks that are not estimable in cohorts without weight",
    )


def bootstrap_standardised(
    cohorts: Mapping[str, SuiteEstimate], weights: Mapping[str, float], confidence: float = 0.95
) -> Bootstrap:
    """Bootstrap the standardised rate without random numbers, whole tasks being resampled inside their cohorts.

    Weights, cohorts without an estimate and errors are treated as `standardise` does; ends and method are those of
    `bootstrap_strata`. Descriptive: a cohort whose tasks are all alike adds no width, however few they are.

    >>> week = {"routine": single_runs(45, 50), "destructive": single_runs(15, 50)}
    >>> result = bootstrap_standardised(week, {"routine": 0.6, "destructive": 0.4})
    >>> round(result.interval.lower, 3), round(result.interval.upper, 3), result.interval.method
    (0.588, 0.728, 'bootstrap-strata-exact')
    """
    counted = {name: weight for name, weight in sorted(_shares(cohorts, weights).items()) if weight}
    reason = _without_estimate(cohorts, counted)
    if reason:
        return Bootstrap(None, None, None, None, reason)
    return bootstrap_strata([cohorts[name] for name in counted], list(counted.values()), confidence)


def standardised_error(weights: Mapping[str, float], standard_errors: Mapping[str, float]) -> float:
    """The standard error sqrt(sum w_s^2 se_s^2) of a standardised rate from those of independent cohorts.

    Weights are normalised as in `standardise`; a cohort of weight 0 needs no standard error.

    >>> round(standardised_error({"x": 1, "y": 1}, {"x": (0.25 / 100) ** 0.5, "y": (0.09 / 900) ** 0.5}), 5)
    0.0255
    """
    shares = _shares(standard_errors, weights)
    missing = [name for name, share in shares.items() if share and name not in standard_errors]
    if missing:
        raise ValueError(f"cohorts with weight but without a standard error: {', '.join(missing)}")
    return sqrt(fsum((share * standard_errors[name]) ** 2 for name, share in shares.items() if share))


def movement(
    before: Mapping[str, SuiteEstimate],
    after: Mapping[str, SuiteEstimate],
    weights: Mapping[str, float] | None = None,
) -> Movement:
    """Split the move of the raw rate between two windows or releases into mix and quality (Kitagawa 1955).

    quality = sum of (rate after - before) x mean share, mix = sum of (share after - before) x (mean rate - overall
    mean): they add up to the raw move. A cohort with tasks in one window only has no rate to have moved, and all that
    it contributes is mix. The standardised move takes the declared `weights`; without them there is none. No tasks on
    either side, or tasks that are not estimable, make the whole undefined.

    >>> week_1 = {"routine": single_runs(81, 90), "destructive": single_runs(3, 10)}
    >>> week_2 = {"routine": single_runs(45, 50), "destructive": single_runs(15, 50)}
    >>> moved = movement(week_1, week_2, {"routine": 0.6, "destructive": 0.4})
    >>> round(moved.raw, 2), round(moved.mix, 2), round(moved.quality, 2), round(moved.standardised, 2)
    (-0.24, -0.24, 0.0, 0.0)
    """
    raw_before, raw_after = _raw(before), _raw(after)
    if raw_before is None or raw_after is None:
        return Movement(None, None, None, None, False, (), "no tasks, or tasks that are not estimable, on one side")
    overall = (raw_before + raw_after) / 2
    names = sorted({*before, *after})
    moves = tuple(_cohort_move(name, before, after, overall) for name in names)
    raw = raw_after - raw_before
    standardised: float | None = None
    reason: str | None = "no declared weights"
    if weights is not None:
        sides = standardise(before, weights), standardise(after, weights)
        reason = sides[0].reason if sides[0].estimate is None else sides[1].reason
        if sides[0].estimate is not None and sides[1].estimate is not None:
            standardised, reason = sides[1].estimate - sides[0].estimate, None
    return Movement(
        raw=raw,
        mix=fsum(move.mix for move in moves),
        quality=fsum(move.quality for move in moves),
        standardised=standardised,
        is_reversal=standardised is not None and min(raw, standardised) < -_SLIP and max(raw, standardised) > _SLIP,
        cohorts=moves,
        reason=reason,
    )


def _cohort_move(
    name: str, before: Mapping[str, SuiteEstimate], after: Mapping[str, SuiteEstimate], overall: float
) -> CohortMove:
    share_before, share_after = _task_share(before, name), _task_share(after, name)
    rates = [side[name].estimate if name in side else None for side in (before, after)]
    present = [rate for rate in rates if rate is not None]
    moved = present[-1] - present[0] if present else 0.0
    above = fsum(present) / len(present) - overall if present else 0.0
    return CohortMove(
        name=name,
        share_before=share_before,
        share_after=share_after,
        rate_before=rates[0],
        rate_after=rates[1],
        mix=(share_after - share_before) * above,
        quality=moved * (share_before + share_after) / 2,
    )


def _task_share(cohorts: Mapping[str, SuiteEstimate], name: str) -> float:
    return cohorts[name].tasks / sum(cohort.tasks for cohort in cohorts.values()) if name in cohorts else 0.0


def _raw(cohorts: Mapping[str, SuiteEstimate]) -> float | None:
    """The mean over all tasks; None without tasks, or with one that is not estimable."""
    tasks = sum(cohort.tasks for cohort in cohorts.values())
    if not tasks or any(cohort.not_estimable for cohort in cohorts.values()):
        return None
    return fsum(float(cohort.values @ cohort.multiplicities) for cohort in cohorts.values()) / tasks


def _shares(cohorts: Mapping[str, object], weights: Mapping[str, float]) -> dict[str, float]:
    undeclared = sorted(name for name in cohorts if name not in weights)
    if undeclared:
        raise ValueError(f"cohorts without a declared weight: {', '.join(undeclared)}")
    given = {name: float(weight) for name, weight in weights.items()}
    wrong = {name: weight for name, weight in given.items() if not 0 <= weight < inf}
    total = 0.0 if wrong else fsum(given.values())
    if not total:
        raise ValueError(f"weights are at least 0, finite and not all 0, found {wrong or given}")
    return {name: weight / total for name, weight in given.items()}


def _weighted(values: Mapping[str, float], shares: Mapping[str, float]) -> float:
    """The mean of values by shares, which add up to 1 but for rounding: never outside the values' range 0 to 1."""
    return fsum(shares[name] * value for name, value in values.items()) / fsum(shares[name] for name in values)


def _without_estimate(cohorts: Mapping[str, SuiteEstimate], counted: Mapping[str, float]) -> str | None:
    empty = [name for name in counted if name not in cohorts or cohorts[name].estimate is None]
    return f"no estimate in cohorts with weight: {', '.join(empty)}" if empty else None


def _bonferroni(
    samples: Mapping[str, SuiteEstimate], shares: Mapping[str, float], tail: float, confidence: float
) -> Interval:
    single = 1 - 2 * tail / len(samples)
    bounds = {name: dirichlet(sample.values, sample.multiplicities, single) for name, sample in samples.items()}
    lower = _weighted({name: bound.lower for name, bound in bounds.items() if bound}, shares)
    upper = _weighted({name: bound.upper for name, bound in bounds.items() if bound}, shares)
    return Interval(lower, upper, "task-dirichlet-bonferroni", confidence)


def _wilson(
    samples: Mapping[str, SuiteEstimate], shares: Mapping[str, float], estimate: float, confidence: float
) -> tuple[Interval, float, float]:
    from scipy.special import stdtrit

    center, variances, fineness = 0.0, [], 0.0
    for name, sample in samples.items():
        mean, variance = pseudo_moments(sample.values, sample.multiplicities.astype(np.float64), 0.5)
        center += shares[name] * mean
        variances.append(shares[name] ** 2 * variance / sample.tasks)
        fineness += shares[name] ** 2 / sample.tasks
    total = fsum(variances)
    effective = max(center * (1 - center) / total, 1 / fineness - 1)
    tasks = [sample.tasks for sample in samples.values()]
    freedom = total**2 / fsum(part**2 / (count - 1) for part, count in zip(variances, tasks, strict=True))
    quantile = -float(stdtrit(freedom, tail_level(confidence)))
    return score_interval(estimate, effective, quantile, "standardised-wilson", confidence), effective, freedom
