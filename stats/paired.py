"""Two releases, A and B, on the same tasks: paired counts, and the mean over tasks of B's value minus A's.

A row is a task in both tables; matching tasks by name, and naming those without a partner, is the caller's work. Each
release keeps its own number of runs: the difference of two unbiased estimates needs no more. A test that swaps the two
within a task does need equal numbers, and is refused where they differ, with the reason in place of a p-value.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import comb, lcm, prod, sqrt

import numpy as np
import numpy.typing as npt

from passhat.stats.bootstrap import Bootstrap, bootstrap_mean
from passhat.stats.intervals import Interval, dirichlet, tail_level
from passhat.stats.reliability import task_values
from passhat.stats.table import FloatArray, IntArray, OutcomeTable

BoolArray = npt.NDArray[np.bool_]

# differences are exact fractions as long as their common denominator is no longer than this
_LONGEST_DENOMINATOR_BITS = 4096
_ROUNDED_DENOMINATOR = 1 << 60
# two values of `task_values`, each within 1e-13 of itself
_ROUNDING = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class PairHistogram:
    """How many tasks have c_a passes in n_a runs of A and c_b in n_b of B, one entry for each that occurs."""

    n_a: IntArray
    c_a: IntArray
    n_b: IntArray
    c_b: IntArray
    tasks: IntArray  # at least 1 in every entry

    @property
    def total(self) -> int:
        """The number of tasks."""
        return int(self.tasks.sum())

    @property
    def refusal(self) -> str | None:
        """Why A and B cannot be swapped within every task, None when they can."""
        unequal = int(self.tasks[self.n_a != self.n_b].sum())
        return f"{unequal} of {self.total} tasks have unequal numbers of runs under A and B" if unequal else None


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells (task, run-index) by what became of them under A and B; the four and `unscored` are all of them."""

    both: int
    a_only: int
    b_only: int
    neither: int
    unscored: int  # without a verdict under A, B or both


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Rows of tasks by whether the share of passes among their scored runs fell or rose from A to B."""

    regressions: IntArray
    fixes: IntArray
    not_comparable: IntArray  # without a scored run under A or B


@dataclass(frozen=True, slots=True)
class Differences:
    """B's pass^k minus A's of every task that has one: `tasks[j]` tasks have `numerators[j] / denominator`."""

    k: int
    numerators: tuple[int, ...]  # ascending, each once
    denominator: int
    tasks: tuple[int, ...]
    not_estimable: int  # tasks with fewer than k runs under A or B
    rounding: int  # how far a numerator can be from the exact one; 0 unless runs are in the thousands

    @property
    def values(self) -> FloatArray:
        """The differences as numbers between -1 and 1."""
        return np.array([numerator / self.denominator for numerator in self.numerators])

    @property
    def over_estimable(self) -> float | None:
        """The mean over the tasks that have a difference; None without any."""
        weighted = sum(numerator * count for numerator, count in zip(self.numerators, self.tasks, strict=True))
        return weighted / (self.denominator * sum(self.tasks)) if self.tasks else None

    @property
    def estimate(self) -> float | None:
        """The mean over all tasks; None when one of them has no difference, or there is no task."""
        return None if self.not_estimable else self.over_estimable


@dataclass(frozen=True, slots=True)
class Completions:
    """The pairs under the two extremes of what the unscored runs could have been."""

    adverse: PairHistogram  # B's fail and A's pass
    favourable: PairHistogram  # B's pass and A's fail


@dataclass(frozen=True, slots=True)
class CompletedDifference:
    """What holds of the mean difference whatever the unscored runs would have been."""

    worst: float | None  # None when a task is planned with fewer than k runs
    best: float | None
    interval: Interval | None  # from the lower end at the adverse completion to the upper end at the favourable one


def pair_tables(a: OutcomeTable, b: OutcomeTable) -> PairHistogram:
    """Pair two tables whose rows are the same tasks in the same order.

    ValueError when their lengths differ, or a run is unscored: take `observed()` of both, or `completions`.

    >>> a = OutcomeTable(planned=[1, 1, 3], passed=[1, 0, 2], failed=[0, 1, 1], unscored=[0, 0, 0])
    >>> b = OutcomeTable(planned=[1, 1, 2], passed=[0, 0, 2], failed=[1, 1, 0], unscored=[0, 0, 0])
    >>> pair_tables(a, b).refusal
    '1 of 3 tasks have unequal numbers of runs under A and B'
    """
    if a.tasks != b.tasks:
        raise ValueError(f"A has {a.tasks} tasks and B {b.tasks}: a pair is one task in both")
    if not (a.is_complete and b.is_complete):
        raise ValueError(
            f"{a.unscored.sum()} runs of A and {b.unscored.sum()} of B are unscored: take completions() or observed()"
        )
    columns = [a.planned, a.passed, b.planned, b.passed]
    highest = [int(column.max(initial=0)) for column in columns]
    lowest = [int(column.min(initial=high)) for column, high in zip(columns, highest, strict=True)]
    spans = [high - low + 1 for low, high in zip(lowest, highest, strict=True)]
    if prod(spans) > max(1 << 16, 4 * a.tasks):
        (n_a, c_a, n_b, c_b), tasks = np.unique(np.stack(columns), axis=1, return_counts=True)
        return PairHistogram(n_a, c_a, n_b, c_b, tasks)
    key = np.ravel_multi_index([column - low for column, low in zip(columns, lowest, strict=True)], spans)
    tasks = np.bincount(key)
    occupied = np.flatnonzero(tasks)
    categories = zip(np.unravel_index(occupied, spans), lowest, strict=True)
    n_a, c_a, n_b, c_b = (offset + low for offset, low in categories)
    return PairHistogram(n_a, c_a, n_b, c_b, tasks[occupied])


def pair_counts(n_a: npt.ArrayLike, c_a: npt.ArrayLike, n_b: npt.ArrayLike, c_b: npt.ArrayLike) -> PairHistogram:
    """Pair tasks with c_a passes in n_a runs of A and c_b in n_b runs of B; one integer a task in each of the four.

    ValueError where 0 <= c <= n does not hold or the lengths differ, TypeError for anything but integers.

    >>> pairs = pair_counts([1, 1, 1], [1, 0, 1], [1, 1, 1], [0, 1, 0])
    >>> pairs.c_a.tolist(), pairs.c_b.tolist(), pairs.tasks.tolist()
    ([0, 1], [1, 0], [1, 2])
    """
    return pair_tables(_scored(n_a, c_a), _scored(n_b, c_b))


def completions(a: OutcomeTable, b: OutcomeTable) -> Completions:
    """Complete the unscored runs of both releases against B, and for B.

    The worst for B is that its own unscored runs fail and those of A pass: failing both would count A's gaps as points
    for B. A value never falls when a run turns into a pass, so these are the extremes of the difference, and of the
    ends of its Dirichlet bound, over all completions. ValueError when the lengths differ.

    >>> a = OutcomeTable(planned=[2], passed=[1], failed=[0], unscored=[1])
    >>> b = OutcomeTable(planned=[2], passed=[1], failed=[0], unscored=[1])
    >>> both = completions(a, b)
    >>> pass_hat_differences(both.adverse).estimate, pass_hat_differences(both.favourable).estimate
    (-0.5, 0.5)
    """
    return Completions(pair_tables(a.best(), b.worst()), pair_tables(a.worst(), b.best()))


def count_cells(passed_a: BoolArray, passed_b: BoolArray, scored: BoolArray | None = None) -> Cells:
    """Count cells by outcome: arrays of one shape with an entry a cell, `scored` where both runs have a verdict.

    For reading; their test is of tasks (`mcnemar_tasks`, `sign_flip_pass_hat`). ValueError when the shapes differ,
    TypeError for anything but booleans.

    >>> count_cells(np.array([[True, True], [False, False]]), np.array([[True, False], [True, True]]))
    Cells(both=1, a_only=1, b_only=2, neither=0, unscored=0)
    """
    passed_a, passed_b = np.asarray(passed_a), np.asarray(passed_b)
    scored = np.ones(passed_a.shape, dtype=np.bool_) if scored is None else np.asarray(scored)
    if not passed_a.shape == passed_b.shape == scored.shape:
        raise ValueError(f"cells of the shapes {passed_a.shape}, {passed_b.shape} and {scored.shape} do not match")
    if not passed_a.dtype == passed_b.dtype == scored.dtype == np.bool_:
        raise TypeError(f"cells hold {passed_a.dtype}, {passed_b.dtype} and {scored.dtype}, expected bool")
    both = int(np.count_nonzero(scored & passed_a & passed_b))
    a_only = int(np.count_nonzero(scored & passed_a)) - both
    b_only = int(np.count_nonzero(scored & passed_b)) - both
    matched = int(np.count_nonzero(scored))
    return Cells(both, a_only, b_only, matched - both - a_only - b_only, scored.size - matched)


def moved_tasks(a: OutcomeTable, b: OutcomeTable) -> Moves:
    """Find the tasks whose share of passes among scored runs fell or rose, by their rows.

    A net change of 0 can hide as many regressions as fixes. ValueError when the lengths differ.

    >>> a = OutcomeTable(planned=[1, 1, 10], passed=[1, 0, 5], failed=[0, 1, 5], unscored=[0, 0, 0])
    >>> b = OutcomeTable(planned=[1, 1, 8], passed=[0, 1, 6], failed=[1, 0, 2], unscored=[0, 0, 0])
    >>> moved_tasks(a, b).regressions.tolist(), moved_tasks(a, b).fixes.tolist()
    ([0], [1, 2])
    """
    if a.tasks != b.tasks:
        raise ValueError(f"A has {a.tasks} tasks and B {b.tasks}: a pair is one task in both")
    # the shares on their common denominator, exact; both 0 where either has no runs
    share_a, share_b = a.passed * b.scored, b.passed * a.scored
    return Moves(
        regressions=np.flatnonzero(share_b < share_a),
        fixes=np.flatnonzero(share_b > share_a),
        not_comparable=np.flatnonzero((a.scored == 0) | (b.scored == 0)),
    )


def pass_hat_differences(pairs: PairHistogram, k: int = 1) -> Differences:
    """Estimate B's pass^k minus A's of every task, C(c_b, k) / C(n_b, k) - C(c_a, k) / C(n_a, k).

    k = 1 compares attempt rates, c / n. Each release keeps its own n, and the difference is unbiased. A task with fewer
    than k runs under either has none. ValueError when k is below 1.

    >>> pass_hat_differences(pair_counts([10], [5], [8], [6])).estimate
    0.25
    >>> pass_hat_differences(pair_counts([3, 3], [3, 1], [3, 3], [2, 2]), k=2).values.tolist()
    [-0.6666666666666666, 0.3333333333333333]
    """
    if k < 1:
        raise ValueError(f"pass^{k}: k is at least 1")
    estimable = np.minimum(pairs.n_a, pairs.n_b) >= k
    n_a, c_a, n_b, c_b, tasks = (
        column[estimable].tolist() for column in (pairs.n_a, pairs.c_a, pairs.n_b, pairs.c_b, pairs.tasks)
    )
    numerator, denominator, rounding = _pass_hat_numerators(sorted({*n_a, *n_b}), k)
    counts: Counter[int] = Counter()
    for runs_a, passes_a, runs_b, passes_b, count in zip(n_a, c_a, n_b, c_b, tasks, strict=True):
        counts[numerator(runs_b, passes_b) - numerator(runs_a, passes_a)] += count
    return Differences(
        k=k,
        numerators=tuple(sorted(counts)),
        denominator=denominator,
        tasks=tuple(counts[value] for value in sorted(counts)),
        not_estimable=pairs.total - counts.total(),
        rounding=rounding,
    )


def paired_dirichlet(differences: Differences, confidence: float = 0.95) -> Interval | None:
    """The task Dirichlet bound of the mean difference over estimable tasks, in [-1, 1]: the one that decides.

    See `dirichlet` for its source and validity. It has width whatever the differences are, rises with every task of B
    that improves, and needs no equal numbers of runs. None without an estimable task.

    >>> bound = paired_dirichlet(pass_hat_differences(pair_counts([8] * 20, [8] * 20, [8] * 20, [8] * 20)))
    >>> round(bound.lower, 4), round(bound.upper, 4), bound.method
    (-0.1684, 0.1684, 'task-dirichlet')
    """
    return dirichlet(differences.values, differences.tasks, confidence, lower_limit=-1)


def paired_t(differences: Differences, confidence: float = 0.95, *, pseudo_tasks: float = 0.25) -> Interval | None:
    """Student's t interval of the mean difference, cut to [-1, 1]: descriptive, a gate must not read it.

    Its spread is that of the tasks and of `pseudo_tasks` more at -1 and at +1 each, so that it never vanishes; with 0
    of them it is the plain paired t. When a few tasks in a hundred break completely, its lower end is too high in up to
    23 % of samples (nominal 2.5 %). None with fewer than two estimable tasks, or when nothing spreads.

    >>> pairs = pair_counts([1] * 200, [1] * 39 + [0] * 161, [1] * 200, [0] * 188 + [1] * 12)
    >>> t = paired_t(pass_hat_differences(pairs))
    >>> round(t.lower, 4), round(t.upper, 4), t.method
    (-0.2033, -0.0667, 'augmented-paired-t-descriptive')
    """
    from scipy.special import stdtrit

    if not pseudo_tasks >= 0:
        raise ValueError(f"the number of pseudo tasks at either end is at least 0, found {pseudo_tasks}")
    tail, tasks = tail_level(confidence), sum(differences.tasks)
    mean = differences.over_estimable
    if mean is None or tasks < 2 or (len(differences.tasks) == 1 and not pseudo_tasks):
        return None
    size = tasks + 2 * pseudo_tasks
    center = float(differences.values @ differences.tasks) / size
    squares = float((differences.values - center) ** 2 @ differences.tasks) + 2 * pseudo_tasks * (1 + center**2)
    half = -float(stdtrit(tasks - 1, tail)) * sqrt(squares / (size - 1) / tasks)
    method = "augmented-paired-t-descriptive" if pseudo_tasks else "paired-t-descriptive"
    return Interval(max(-1.0, mean - half), min(1.0, mean + half), method, confidence)


def bootstrap_difference(differences: Differences, confidence: float = 0.95) -> Bootstrap:
    """Bootstrap the mean difference over tasks, exactly and without random numbers, as `bootstrap_mean` does.

    No estimate when a task has fewer than k runs, and no interval when all differences are alike; the reason is said.

    >>> result = bootstrap_difference(pass_hat_differences(pair_counts([1] * 4, [1, 0, 0, 0], [1] * 4, [1, 1, 1, 0])))
    >>> result.estimate, result.interval.lower, result.interval.upper
    (0.5, 0.0, 1.0)
    """
    if differences.not_estimable:
        reason = f"{differences.not_estimable} tasks have fewer than {differences.k} runs"
        return Bootstrap(None, None, None, None, reason)
    return bootstrap_mean(differences.numerators, differences.denominator, differences.tasks, confidence)


def completed_difference(both: Completions, k: int = 1, confidence: float = 0.95) -> CompletedDifference:
    """Bound the mean difference of pass^k over everything that the unscored runs could have been.

    The interval holds at its level with no model of why runs are unscored; the price is about their share of all runs.
    Of a one-sided level alpha, ask for 1 - 2 alpha and read one end.

    >>> a = OutcomeTable(planned=[1] * 40, passed=[1] * 40, failed=[0] * 40, unscored=[0] * 40)
    >>> b = OutcomeTable(planned=[1] * 40, passed=[1] * 38 + [0] * 2, failed=[0] * 40, unscored=[0] * 38 + [1] * 2)
    >>> difference = completed_difference(completions(a, b))
    >>> difference.worst, difference.best, round(difference.interval.lower, 4), round(difference.interval.upper, 4)
    (-0.05, 0.0, -0.1692, 0.0881)
    """
    adverse, favourable = pass_hat_differences(both.adverse, k), pass_hat_differences(both.favourable, k)
    low, high = paired_dirichlet(adverse, confidence), paired_dirichlet(favourable, confidence)
    interval = None
    if low and high and not adverse.not_estimable:
        interval = Interval(low.lower, high.upper, low.method, confidence)
    return CompletedDifference(adverse.estimate, favourable.estimate, interval)


def _scored(n: npt.ArrayLike, c: npt.ArrayLike) -> OutcomeTable:
    n, c = np.asarray(n), np.asarray(c)
    return OutcomeTable(n, c, n - c, np.zeros_like(n))


def _pass_hat_numerators(runs: list[int], k: int) -> tuple[Callable[[int, int], int], int, int]:
    """pass^k of c passes in n runs, for n among `runs`: a function to its numerator, its denominator, and its error."""
    # C(n, k) is below n^min(k, n - k) and below 2^n
    if sum(min(n, min(k, n - k) * n.bit_length()) for n in runs) <= _LONGEST_DENOMINATOR_BITS:
        denominator = lcm(*(comb(n, k) for n in runs))
        shares = {n: denominator // comb(n, k) for n in runs}
        return lambda n, c: comb(c, k) * shares[n], denominator, 0
    values = {n: task_values(n, k, k) for n in runs}
    return lambda n, c: round(float(values[n][c]) * _ROUNDED_DENOMINATOR), _ROUNDED_DENOMINATOR, _ROUNDING
