"""Tests that may be looked at before all tasks have run: declared looks, or as many as one likes.

Valid are they only when everything that could lean on the results is fixed before them: the order of the tasks, drawn
at random, and the looks or the betting. The unit is the complete task, all its runs in both arms. To stop for an
observed veto is always allowed, as it can only fail. An estimate after an early stop is biased away from 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp, lgamma, log, pi, sqrt

import numpy as np
import numpy.typing as npt

from passhat.stats.reliability import task_values
from passhat.stats.sign_flips import SMALLEST_P
from passhat.stats.table import FloatArray, OutcomeTable

OBRIEN_FLEMING = "obrien-fleming"
POCOCK = "pocock"

_MOST_LOOKS = 100
_SMALLEST_GAP = 1e-3
# a density is carried no farther than this, in panels of so many standard deviations of a step with so many nodes each
_FARTHEST_SD = 9.0
_PANEL_STEPS = 4.0
_PANEL_NODES = 12
_LARGEST_BET = 0.9


@dataclass(frozen=True, slots=True)
class Boundary:
    """Critical values of Z at declared looks: reject when Z (or |Z|) reaches the value of the look."""

    fractions: tuple[float, ...]  # of the information, that is of the tasks, at each look
    critical: tuple[float, ...]
    levels: tuple[float, ...]  # of a test that had this look alone: what a p-value is compared with
    spent: tuple[float, ...]  # chance of a first false rejection at each look; adds up to alpha
    alpha: float
    sides: int
    shape: str


@dataclass(frozen=True, slots=True, eq=False)
class Bets:
    """The wealth of a bettor against the null after each task; reject once it has ever reached 1 / alpha."""

    log_wealth: FloatArray  # natural logarithm, one entry a task used
    rejected_after: int | None  # tasks
    tasks_used: int
    tasks_waiting: int  # complete, but behind one in the order that is not
    alpha: float
    margin: float | None  # the null: mean <= -margin, or mean = 0 when None
    reason: str | None = None

    @property
    def p_value(self) -> float:
        """Valid at every look: 1 over the largest wealth so far, and 1 before it has grown; never 0."""
        return max(SMALLEST_P, exp(-float(self.log_wealth.max(initial=0.0))))


def group_sequential(
    fractions: Sequence[float], alpha: float = 0.05, *, sides: int = 2, shape: str = OBRIEN_FLEMING
) -> Boundary:
    """The boundary for looks at these fractions of the tasks, the last of which is 1.

    "obrien-fleming" has critical values C / sqrt(fraction) (O'Brien and Fleming 1979), "pocock" one value C (Pocock
    1977). C is found by recursive integration of the density of the score process (Armitage, McPherson and Rowe 1969),
    to about 1e-9. They hold for a statistic that is normal with independent increments, as a mean of tasks in random
    order nearly is. For any other bound, `spent` are levels per look that are valid by the union bound.
    ValueError for fractions that do not ascend to 1 by steps of at least .001, and for more than 100 looks, for which
    betting is meant.

    >>> boundary = group_sequential([0.5, 1.0])
    >>> [round(z, 4) for z in boundary.critical], [round(level, 4) for level in boundary.spent]
    ([2.7965, 1.9774], [0.0052, 0.0448])
    """
    from scipy.special import ndtr, ndtri

    looks = [float(fraction) for fraction in fractions]
    gaps = np.diff([0.0, *looks])
    if not 1 <= len(looks) <= _MOST_LOOKS or looks[-1] != 1 or not (gaps >= _SMALLEST_GAP).all():
        raise ValueError(f"1 to {_MOST_LOOKS} fractions ascend to 1 by at least {_SMALLEST_GAP}, found {looks}")
    if not 0 < alpha < 1 or sides not in (1, 2) or shape not in (OBRIEN_FLEMING, POCOCK):
        raise ValueError(f"alpha {alpha}, {sides} sides, shape {shape!r}: expected (0, 1), 1 or 2, a known shape")
    power = -0.5 if shape == OBRIEN_FLEMING else 0.0
    profile = np.array([fraction**power for fraction in looks])

    def crossings(c: float) -> list[float]:
        return _first_crossings(looks, c * profile, sides)

    # a single look has the smaller value, and Bonferroni the larger
    lowest, highest = (-float(ndtri(alpha / sides / count)) for count in (1, len(looks)))
    c = _root(lambda c: sum(crossings(c)) / alpha - 1, lowest, highest)
    critical = c * profile
    return Boundary(
        fractions=tuple(looks),
        critical=tuple(critical.tolist()),
        levels=tuple((sides * ndtr(-critical)).tolist()),
        spent=tuple(crossings(c)),
        alpha=alpha,
        sides=sides,
        shape=shape,
    )


def _first_crossings(looks: Sequence[float], critical: FloatArray, sides: int) -> list[float]:
    """The chance, under the null, that each look is the first at which Z reaches its critical value.

    Carried from look to look is the density of the score Z sqrt(t) among the paths still inside, at nodes of a
    Gauss-Legendre rule in panels that are narrower than the step of the process.
    """
    from scipy.special import ndtr

    inside, density_at, before, chances = np.array([0.0]), np.array([1.0]), 0.0, []
    points, weights = np.polynomial.legendre.leggauss(_PANEL_NODES)
    for t, z in zip(looks, critical.tolist(), strict=True):
        step, reach = sqrt(t - before), z * sqrt(t)
        beyond = ndtr((inside - reach) / step)
        if sides == 2:
            beyond += ndtr((-inside - reach) / step)
        chances.append(float(density_at @ beyond))

        top = min(z, _FARTHEST_SD) * sqrt(t)
        bottom = -top if sides == 2 else -_FARTHEST_SD * sqrt(t)
        panels = ceil((top - bottom) / (_PANEL_STEPS * step))
        half = (top - bottom) / panels / 2
        nodes = (bottom + half * (2 * np.arange(panels)[:, np.newaxis] + 1 + points)).ravel()
        moves = np.exp(-(((nodes[:, np.newaxis] - inside) / step) ** 2) / 2) / (step * sqrt(2 * pi))
        inside, density_at, before = nodes, (moves @ density_at) * np.tile(half * weights, panels), t
    return chances


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function is 0 between two points on either side of it, by the Illinois method."""
    at_low, at_high = falling(low), falling(high)
    if at_low <= 0 or at_high >= 0:  # but for rounding, one of the ends is it
        return low if at_low <= 0 else high
    while high - low > 1e-11:
        x = (low * at_high - high * at_low) / (at_high - at_low)
        at_x = falling(x)
        if abs(at_x) < 1e-11:
            return x
        if at_x > 0:
            low, at_low, at_high = x, at_x, at_high / 2
        else:
            high, at_high, at_low = x, at_x, at_low / 2
    return (low + high) / 2


def bet_on_tasks(
    base: OutcomeTable,
    candidate: OutcomeTable,
    order: npt.ArrayLike,
    k: int = 1,
    *,
    alpha: float = 0.05,
    margin: float | None = None,
    bet: float | None = None,
) -> Bets:
    """Bet on the differences of pass^k, candidate minus base, of the tasks in their declared random `order`.

    Row t of both tables is task t, and `order` a permutation of all rows that was drawn before the first run. Used are
    the tasks up to the first that still has a run without verdict in either arm: no choice of which tasks are ready
    first can enter. With a margin the null is that the candidate is worse by it or more; where a missing run will never
    come, complete the tables adversely (the candidate's fail, the base's pass) and the test stays valid. See
    `bet_on_differences` for the other options. ValueError when the order is no permutation or a task has less than k
    planned runs.

    >>> all_fail = OutcomeTable([1] * 9, [0] * 9, [1] * 9, [0] * 9)
    >>> all_pass = OutcomeTable([1] * 9, [1] * 9, [0] * 9, [0] * 9)
    >>> bet_on_tasks(all_fail, all_pass, [4, 0, 7, 2, 8, 1, 6, 3, 5]).rejected_after
    7
    """
    rows = np.asarray(order, dtype=np.int64)
    if base.tasks != candidate.tasks or not np.array_equal(np.sort(rows), np.arange(base.tasks)):
        raise ValueError(f"the order is a permutation of the rows of both tables, {base.tasks} and {candidate.tasks}")
    short = np.flatnonzero(np.minimum(base.planned, candidate.planned) < k)
    if k < 1 or short.size:
        raise ValueError(f"pass^{k} takes k of at least 1 and k planned runs in every task, short are {short.tolist()}")
    complete = (base.unscored[rows] == 0) & (candidate.unscored[rows] == 0)
    used = int(np.argmin(complete)) if not complete.all() else len(rows)
    head = rows[:used]
    differences = _values(candidate.select(head), k) - _values(base.select(head), k)
    waiting = int(np.count_nonzero(complete)) - used
    return bet_on_differences(differences, alpha=alpha, margin=margin, bet=bet, tasks_waiting=waiting)


def bet_on_differences(
    differences: npt.ArrayLike,
    *,
    alpha: float = 0.05,
    margin: float | None = None,
    bet: float | None = None,
    tasks_waiting: int = 0,
) -> Bets:
    """The wealth prod (1 + lambda_t x_t) of bets on differences in [-1, 1], in the order of their tasks.

    Without a margin the null is a mean of 0, and half of the wealth bets on either sign; with one it is a mean of
    -margin or less, and x = d + margin. Under the null the wealth is not expected to grow, so that it ever reaches
    1 / alpha with a chance of at most alpha (Ville 1939; Waudby-Smith and Ramdas 2024). lambda is `bet`, or without it
    sum x / (1/4 + sum x^2) over the tasks before, from 0 to .9 / (1 - margin). ValueError for differences outside
    [-1, 1], and for a bet that could lose everything.

    >>> bets = bet_on_differences([0.25, 0.5, -0.125, 0.75], bet=0.5)
    >>> round(float(np.exp(bets.log_wealth[-1])), 4), bets.rejected_after
    (1.1243, None)
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha lies between 0 and 1, found {alpha}")
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim != 1 or not ((d >= -1) & (d <= 1)).all():
        raise ValueError("differences are one row of values in [-1, 1]")
    if margin is not None and not -1 < margin < 1:
        raise ValueError(f"a margin lies between -1 and 1, found {margin}")
    shift = margin or 0.0
    if bet is not None and not 0 <= bet < 1 / (1 - shift):
        raise ValueError(f"a bet lies between 0 and {1 / (1 - shift):g}, found {bet}")
    upward = _log_wealth(d + shift, bet, _LARGEST_BET / (1 - shift))
    log_wealth = upward if margin is not None else np.logaddexp(upward, _log_wealth(-d, bet, _LARGEST_BET)) - log(2)
    reached = np.flatnonzero(log_wealth >= -log(alpha))
    return Bets(
        log_wealth=log_wealth,
        rejected_after=int(reached[0]) + 1 if reached.size else None,
        tasks_used=len(d),
        tasks_waiting=tasks_waiting,
        alpha=alpha,
        margin=margin,
        reason=None if len(d) else "no complete task at the head of the order",
    )


def _log_wealth(x: FloatArray, bet: float | None, largest: float) -> FloatArray:
    if bet is None:
        sums, squares = np.cumsum(x) - x, np.cumsum(x * x) - x * x
        bets = np.clip(sums / (0.25 + squares), 0, largest)
    else:
        bets = np.full(len(x), bet)
    log_wealth: FloatArray = np.cumsum(np.log1p(bets * x))
    return log_wealth


def _values(table: OutcomeTable, k: int) -> FloatArray:
    values = np.empty(table.tasks)
    for n in np.unique(table.planned).tolist():
        same = table.planned == n
        values[same] = task_values(n, k, k)[table.passed[same]]
    return values


def discordant_log_e_value(base_only: int, candidate_only: int) -> float:
    """The natural logarithm of 2^N / ((N + 1) C(N, b)), N = b + c: evidence that discordant tasks are no fair coins.

    A uniform mixture over their bias (Robbins 1970); reject when it reaches log(1 / alpha), at any look. `base_only`
    and `candidate_only` count *tasks* with one run each, complete and in a declared random order: pooled runs of
    several per task break it. 0 without discordant tasks.

    >>> round(discordant_log_e_value(0, 8), 4), discordant_log_e_value(0, 0)
    (3.348, 0.0)
    """
    if base_only < 0 or candidate_only < 0:
        raise ValueError(f"counts of tasks are at least 0, found {base_only} and {candidate_only}")
    total = base_only + candidate_only
    log_ways = lgamma(total + 1) - lgamma(base_only + 1) - lgamma(candidate_only + 1)
    return total * log(2) - log(total + 1) - log_ways
