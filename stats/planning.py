"""How many tasks and runs a decision needs, and what a test would show: powers under a design written down before.

A design says how tasks differ, V = Var(p_B - p_A) over tasks, and how runs do, W = E[p (1 - p)] of either release. The
mean difference of T tasks with n runs has the variance (V + (W_A + W_B) / n) / T. The same formulas serve one rate
(V = Var(p), W its own) and two suites that are not paired (V and W summed over the two).
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, comb, floor, gcd, inf, lgamma, log, log1p, sqrt

import numpy as np
import numpy.typing as npt

from passhat.stats.intervals import checked_sample, expected_lower_end
from passhat.stats.resample import seed_of
from passhat.stats.table import FloatArray, IntArray

# p may exceed alpha by its rounding and still be called equal to it
_SLIP = 1e-9
_MOST_HISTOGRAMS = 3000
_NODES = 64
_MOST_TASKS = 100_000_000


@dataclass(frozen=True, slots=True)
class TasksNeeded:
    """The fewest tasks with which a paired t test reaches a power, and what the normal formula alone would say."""

    tasks: int
    power: float  # with as many tasks
    normal: float  # not rounded; falls short of the power by about z^2 / 2 tasks


@dataclass(frozen=True, slots=True)
class Power:
    """The chance that a test rejects. `method` is "exact" or "simulation"; only the latter has an error and draws."""

    power: float
    standard_error: float
    method: str
    draws: int
    generator: str | None = None
    seed: int | None = None  # None also when the generator was not fresh from one


@dataclass(frozen=True, slots=True)
class BetaModel:
    """Tasks whose chance p that a run passes is Beta(a, b) distributed; a and b are positive."""

    a: float
    b: float

    def __post_init__(self) -> None:
        if not (0 < self.a < inf and 0 < self.b < inf):
            raise ValueError(f"a and b are positive and finite, found {self.a} and {self.b}")

    @property
    def mean(self) -> float:
        """The attempt rate."""
        return self.a / (self.a + self.b)

    @property
    def icc(self) -> float:
        """The correlation of two runs of a task."""
        return 1 / (self.a + self.b + 1)

    def pass_hat(self, k: int) -> float:
        """E[p^k] = prod (a + i) / (a + b + i), i < k."""
        i = np.arange(k)
        return float(np.prod((self.a + i) / (self.a + self.b + i)))

    def chances(self, n: int) -> FloatArray:
        """The chance of c = 0 … n passes in n runs of a random task: the beta-binomial law (Skellam 1948).

        >>> BetaModel(2, 1).chances(2).round(6).tolist()
        [0.166667, 0.333333, 0.5]
        """
        from scipy.special import betaln, gammaln

        c = np.arange(n + 1)
        ways = lgamma(n + 1) - gammaln(c + 1) - gammaln(n - c + 1)
        chances: FloatArray = np.exp(ways + betaln(self.a + c, self.b + n - c) - betaln(self.a, self.b))
        return chances


@dataclass(frozen=True, slots=True, eq=False)
class PairedDesign:
    """A law of tasks: a share `shares[j]` passes with chance `base[j]` in the base, `candidate[j]` in the candidate."""

    base: FloatArray
    candidate: FloatArray
    shares: FloatArray  # add up to 1

    def __post_init__(self) -> None:
        chances = np.concatenate((self.base, self.candidate, self.shares))
        if not len(self.base) == len(self.candidate) == len(self.shares):
            raise ValueError("base, candidate and shares need one and the same length")
        if not (((chances >= 0) & (chances <= 1)).all() and abs(self.shares.sum() - 1) < 1e-9):
            raise ValueError("chances and shares lie in [0, 1], and shares add up to 1")

    @property
    def effect(self) -> float:
        """The mean difference, candidate minus base."""
        return float(self.shares @ (self.candidate - self.base))

    @property
    def between(self) -> float:
        """V, the variance of the difference between tasks."""
        return float(self.shares @ (self.candidate - self.base - self.effect) ** 2)

    @property
    def within_run(self) -> float:
        """W_A + W_B, the variances of a single run of either inside its task."""
        return float(self.shares @ (self.base * (1 - self.base) + self.candidate * (1 - self.candidate)))

    def differences(self, n: int) -> dict[int, float]:
        """The chance of every difference of passes in n runs of each, from -n to n, for a random task.

        >>> PairedDesign(np.array([0.5]), np.array([1.0]), np.array([1.0])).differences(1)
        {-1: 0.0, 0: 0.5, 1: 0.5}
        """
        law_base, law_candidate = (
            _binomial_chances(np.arange(n + 1), n, p[:, np.newaxis]) for p in (self.base, self.candidate)
        )
        joint = (self.shares[:, np.newaxis] * law_base).T @ law_candidate
        # the diagonal at offset d holds the candidate's passes less the base's
        return {d: float(np.trace(joint, offset=d)) for d in range(-n, n + 1)}


def beta_model(rate: float, icc: float) -> BetaModel:
    """The Beta model with an attempt rate and a correlation of two runs of a task, both inside (0, 1).

    >>> beta_model(0.75, 0.2)
    BetaModel(a=3.0, b=1.0)
    """
    if not (0 < rate < 1 and 0 < icc < 1):
        raise ValueError(f"rate and correlation lie between 0 and 1, found {rate} and {icc}")
    size = (1 - icc) / icc
    return BetaModel(rate * size, (1 - rate) * size)


def shifted_design(base: BetaModel, effect: float, scatter: float = 0.0) -> PairedDesign:
    """A candidate whose log odds are the base's plus a shift plus `scatter` times a normal deviate, per task.

    The shift is what makes the mean difference the `effect`; a scatter of 0 moves all tasks alike. The laws are
    discrete, by Gauss-Jacobi and Gauss-Hermite quadrature with 64 nodes each. ValueError when the effect leaves (0, 1).

    >>> design = shifted_design(BetaModel(2.1, 0.9), 0.05, 0.7)
    >>> round(design.effect, 6), round(design.between, 4), round(design.within_run, 4)
    (0.05, 0.0131, 0.2937)
    """
    from scipy.special import expit, logit

    if not (0 < base.mean + effect < 1 and 0 <= scatter < inf):
        raise ValueError(f"a rate of {base.mean} with an effect of {effect} is no rate, or the scatter is negative")
    rates, weights = _beta_nodes(base)
    deviates, normal_weights = np.polynomial.hermite_e.hermegauss(_NODES if scatter else 1)
    shares = np.outer(weights, normal_weights / normal_weights.sum())
    moved = logit(rates)[:, np.newaxis] + scatter * deviates

    low, high = -700.0, 700.0
    while high - low > 1e-13 * max(1.0, abs(low)):
        shift = (low + high) / 2
        if float((shares * expit(moved + shift)).sum()) < base.mean + effect:
            low = shift
        else:
            high = shift
    return PairedDesign(np.repeat(rates, len(deviates)), expit(moved + high).ravel(), shares.ravel())


def _beta_nodes(model: BetaModel) -> tuple[FloatArray, FloatArray]:
    """Gauss-Jacobi nodes and weights for a mean over the Beta law, by the eigenvalues of Golub and Welsch (1969)."""
    p, q, i = model.b - 1, model.a - 1, np.arange(1, _NODES)
    s = 2 * i + p + q
    middle = np.append((q - p) / (p + q + 2), (q - p) * (q + p) / (s * (s + 2)))
    # the factor (i + p + q) / (s - 1) is 1 at i = 1, where it may be 0 / 0
    last = np.append(1.0, (i[1:] + p + q) / (s[1:] - 1))
    beside = np.sqrt(4 * i * (i + p) * (i + q) / s**2 / (s + 1) * last)
    nodes, vectors = np.linalg.eigh(np.diag(middle) + np.diag(beside, 1) + np.diag(beside, -1))
    return np.clip((1 + nodes) / 2, 0, 1), vectors[0] ** 2


def tasks_needed(
    effect: float, between: float, within_run: float, runs_per_task: int, *, alpha: float = 0.05, power: float = 0.8
) -> TasksNeeded:
    """The fewest tasks with which a paired t test, two-sided at `alpha`, finds an effect with the power asked for.

    Noncentral t, in the tail of the effect; `normal` is (z_(1 - alpha/2) + z_power)^2 (V + W / n) / effect^2 (Miller
    2024, arXiv 2411.00640). V is `between`, W is `within_run`, of a paired difference W_A + W_B. Without any variance
    two tasks are enough. ValueError for an effect of 0, a negative variance or levels outside (0, 1).

    >>> needed = tasks_needed(0.05, 0.01308, 0.2939, 8)
    >>> needed.tasks, round(needed.power, 4), round(needed.normal, 1)
    (159, 0.8017, 156.4)
    """
    from scipy.special import ndtri

    variance = _variance_of_task(between, within_run, runs_per_task)
    if effect == 0 or not abs(effect) < inf or not 0 < power < 1:
        raise ValueError(f"an effect other than 0 and a power between 0 and 1, found {effect} and {power}")
    reach = float(ndtri(power)) - float(ndtri(_half(alpha)))
    normal = max(reach, 0.0) ** 2 * variance / effect**2
    tasks = max(2, floor(normal))
    while (reached := t_power(effect, between, within_run, tasks, runs_per_task, alpha=alpha)) < power:
        tasks += 1
    return TasksNeeded(tasks, reached, normal)


def t_power(
    effect: float, between: float, within_run: float, tasks: int, runs_per_task: int, *, alpha: float = 0.05
) -> float:
    """The chance that the paired t test finds the effect in its own direction; 0 with fewer than two tasks.

    >>> round(t_power(0.05, 0.01308, 0.2939, 159, 8), 4)
    0.8017
    """
    from scipy.special import nctdtr, stdtrit

    variance, tail = _variance_of_task(between, within_run, runs_per_task), _half(alpha)
    if tasks < 2:
        return 0.0
    if variance == 0:
        return 1.0 if effect else 0.0
    critical = -float(stdtrit(tasks - 1, tail))
    return 1 - float(nctdtr(tasks - 1, abs(effect) * sqrt(tasks / variance), critical))


def detectable_effect(
    between: float, within_run: float, tasks: int, runs_per_task: int, *, alpha: float = 0.05, power: float = 0.8
) -> float | None:
    """The smallest effect that so many tasks find with the power asked for, to 1e-7; None with fewer than two tasks.

    >>> round(detectable_effect(0.01308, 0.2939, 159, 8), 4)
    0.0499
    """
    from scipy.special import nctdtrinc, stdtrit

    variance, tail = _variance_of_task(between, within_run, runs_per_task), _half(alpha)
    if not tail < power < 1:
        raise ValueError(f"a power lies between alpha / 2 and 1, found {power}")
    if tasks < 2:
        return None
    critical = -float(stdtrit(tasks - 1, tail))
    return float(nctdtrinc(tasks - 1, 1 - power, critical)) * sqrt(variance / tasks)


def fewest_tasks_for_margin(margin: float, alpha: float = 0.025) -> int:
    """The fewest tasks with which non-inferiority can be shown at all, with every difference 0: 1 - alpha^(1/T) < m.

    `alpha` is one-sided; 1 - alpha^(1/T) is how far below 0 the task Dirichlet bound then lies. ValueError unless both
    lie in (0, 1).

    >>> [fewest_tasks_for_margin(m) for m in (0.02, 0.05)]
    [183, 72]
    """
    if not (0 < margin < 1 and 0 < alpha < 1):
        raise ValueError(f"margin and alpha lie between 0 and 1, found {margin} and {alpha}")
    return floor(log(alpha) / log1p(-margin) * (1 + 1e-13)) + 1


def tasks_to_pass(
    values: npt.ArrayLike,
    multiplicities: npt.ArrayLike,
    threshold: float,
    *,
    alpha: float = 0.025,
    power: float = 0.8,
    lower_limit: float = 0.0,
) -> int | None:
    """How many more tasks like these it takes until their Dirichlet bound exceeds a threshold with chance `power`.

    `multiplicities[j]` tasks had the value `values[j]`; the new ones are draws from them. With T' tasks in all the
    bound is taken to be normal around its value at the expected numbers of tasks, with the standard error that the new
    tasks give to the mean; `alpha` is one-sided. 0 when the bound exceeds the threshold now; None when the mean does
    not, or a hundred million tasks would not do. ValueError unless alpha and power lie in (0, 1), and for what
    `dirichlet` refuses.

    >>> tasks_to_pass([0], [100], -0.02, lower_limit=-1)  # 183 in all: every difference is 0
    83
    """
    from scipy.special import ndtri

    if not (0 < alpha < 1 and 0 < power < 1):
        raise ValueError(f"alpha and power lie between 0 and 1, found {alpha} and {power}")
    values, weights = checked_sample(values, multiplicities, lower_limit, np.inf)
    values, weights = values[weights > 0], weights[weights > 0]
    tasks = float(weights.sum())
    if not tasks or float(weights @ values) / tasks <= threshold:
        return None
    sd = sqrt(float(weights @ (values - weights @ values / tasks) ** 2) / tasks)
    step = float(ndtri(power)) * sd

    def passes(more: int) -> bool:
        total = tasks + more
        bound = expected_lower_end(values, weights * (total / tasks), alpha, lower_limit=lower_limit)
        return bound - step * sqrt(more) / total > threshold

    enough = 1
    while not passes(enough):
        enough *= 2
        if enough > _MOST_TASKS:
            return None
    return bisect_left(range(enough), True, lo=enough // 2, key=passes)


def mcnemar_power(tasks: int, base_only: float, candidate_only: float, alpha: float = 0.05) -> float:
    """The chance that the exact two-sided McNemar test rejects, whatever number of tasks turns out discordant.

    A task passes only in the base with the chance `base_only` and only in the candidate with `candidate_only`. Exact
    and unconditional: the power given N discordant tasks, averaged over N ~ Binomial(T, sum of both); N with less than
    1e-15 of the chance are left out. 0 when no task can be discordant.

    >>> round(mcnemar_power(200, 0.05, 0.12), 4)
    0.6176
    """
    from scipy.special import bdtr, bdtrc

    tail, discordant = _half(alpha), base_only + candidate_only
    if not (base_only >= 0 and candidate_only >= 0 and discordant <= 1 and tasks >= 0):
        raise ValueError(
            f"chances {base_only} and {candidate_only} add up to at most 1, and tasks {tasks} to at least 0"
        )
    if discordant == 0:
        return 0.0
    # Bernstein: a count strays further with a chance below 2 exp(-37)
    spread = 37 / 3 + sqrt((37 / 3) ** 2 + 74 * tasks * discordant * (1 - discordant))
    counts = np.arange(max(0, floor(tasks * discordant - spread)), min(tasks, ceil(tasks * discordant + spread)) + 1)
    weights = _binomial_chances(counts, tasks, discordant)
    critical = _largest_rejected(counts, tail)
    reachable = critical >= 0
    counts, critical, weights = counts[reachable], critical[reachable], weights[reachable] / weights.sum()
    share = base_only / discordant
    rejected = bdtr(critical, counts, share) + bdtrc(counts - critical - 1, counts, share)
    return min(1.0, float(weights @ rejected))


def _largest_rejected(counts: IntArray, tail: float) -> IntArray:
    """For each N the largest x with P(Binomial(N, 1/2) <= x) <= tail, or -1."""
    from scipy.special import bdtr

    low, high = np.full(len(counts), -1), counts // 2
    while (low < high).any():
        middle = (low + high + 1) // 2
        rejected = bdtr(middle, counts, 0.5) <= tail * (1 + _SLIP)
        low, high = np.where(rejected, middle, low), np.where(rejected, high, middle - 1)
    return low


def _binomial_chances(counts: IntArray, trials: int, chance: float | FloatArray) -> FloatArray:
    from scipy.special import gammaln, xlog1py, xlogy

    ways = lgamma(trials + 1) - gammaln(counts + 1) - gammaln(trials - counts + 1)
    chances: FloatArray = np.exp(ways + xlogy(counts, chance) + xlog1py(trials - counts, -chance))
    return chances


def sign_flip_power(
    differences: Mapping[int, float],
    tasks: int,
    alpha: float = 0.05,
    *,
    rng: np.random.Generator | None = None,
    draws: int = 400,
) -> Power:
    """The chance that the exact sign-flip test rejects, two-sided, when tasks differ by `differences[d]` of chance.

    Given how many tasks have a difference of each size, the test's threshold and the chance to pass it are found by
    convolution. That is averaged over all such histograms while there are at most 3,000 ("exact"), else over `draws`
    of them ("simulation", for which an `rng` is needed). With one run per task this is `mcnemar_power`.

    >>> sign_flip_power({-1: 0.05, 0: 0.83, 1: 0.12}, 200).method
    'exact'
    """
    tail = _half(alpha)
    chances = np.array(list(differences.values()), dtype=np.float64)
    if tasks < 0 or draws < 2 or not ((chances >= 0).all() and abs(chances.sum() - 1) < 1e-9):
        raise ValueError(f"chances of differences are at least 0 and add up to 1, found {dict(differences)}")
    sizes = sorted({abs(d) for d, chance in differences.items() if d and chance})
    if not sizes:
        return Power(0.0, 0.0, "exact", 0)
    upward = np.array([differences.get(size, 0.0) for size in sizes])
    either = upward + np.array([differences.get(-size, 0.0) for size in sizes])
    lattice = np.array(sizes) // gcd(*sizes)
    still = max(0.0, 1 - float(either.sum()))

    if comb(tasks + len(sizes), len(sizes)) <= _MOST_HISTOGRAMS:
        power = 0.0
        for counts in _histograms(tasks, len(sizes)):
            weight = _multinomial_chance(np.array([tasks - sum(counts), *counts]), np.array([still, *either]))
            if weight:
                power += weight * _rejection_chance(lattice, np.array(counts), upward / either, tail)
        return Power(min(1.0, power), 0.0, "exact", 0)
    if rng is None:
        raise ValueError(f"{tasks} tasks with {len(sizes)} sizes of differences need a simulation: pass an rng")
    seed = seed_of(rng)
    drawn = rng.multinomial(tasks, np.array([still, *either]) / (still + either.sum()), size=draws)[:, 1:]
    powers = np.array([_rejection_chance(lattice, counts, upward / either, tail) for counts in drawn])
    error = float(powers.std(ddof=1)) / sqrt(draws)
    return Power(float(powers.mean()), error, "simulation", draws, type(rng.bit_generator).__name__, seed)


def _histograms(tasks: int, kinds: int) -> Iterator[tuple[int, ...]]:
    """Every way to have at most `tasks` tasks in so many kinds."""
    if not kinds:
        yield ()
        return
    for count in range(tasks + 1):
        for rest in _histograms(tasks - count, kinds - 1):
            yield (count, *rest)


def _multinomial_chance(counts: IntArray, chances: FloatArray) -> float:
    from scipy.special import gammaln, xlogy

    return float(np.exp(gammaln(counts.sum() + 1) + (xlogy(counts, chances) - gammaln(counts + 1)).sum()))


def _rejection_chance(sizes: IntArray, counts: IntArray, upward: FloatArray, tail: float) -> float:
    """The chance to reject when `counts[j]` tasks differ by `sizes[j]`, each upwards with chance `upward[j]`.

    U, the sum of the sizes that go upwards, has the law of a sum of scaled binomials, under the null and in truth.
    """
    reach = int(sizes @ counts)
    period = 1 << reach.bit_length()
    turns = np.exp(-2j * np.pi / period * np.outer(sizes, np.arange(period // 2 + 1)))
    null, truth = (
        np.fft.irfft(np.prod((1 - up + up * turns) ** counts[:, np.newaxis], axis=0), period)[: reach + 1]
        for up in (0.5, upward[:, np.newaxis])
    )
    tails = np.cumsum(np.maximum(null[::-1], 0))
    rejected = int(np.searchsorted(tails, tail * (1 + _SLIP), side="right"))  # so many values of U at either end
    return float(truth[:rejected].sum() + truth[reach + 1 - rejected :].sum())


def _variance_of_task(between: float, within_run: float, runs_per_task: int) -> float:
    if not (0 <= between < inf and 0 <= within_run < inf and runs_per_task >= 1):
        raise ValueError(
            f"variances are at least 0 and finite and a task has a run, found V = {between}, W = {within_run}, "
            f"n = {runs_per_task}"
        )
    return between + within_run / runs_per_task


def _half(alpha: float) -> float:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha lies between 0 and 1, found {alpha}")
    return alpha / 2
