"""How hard tasks are, how releases move them, and the law of a task's value that follows, for interval_coverage.py.

Rates of passes are a mixture of kinds of tasks; runs of a task are independent given its rate. Every law is exact.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import comb, lcm

import numpy as np
import numpy.typing as npt
from scipy.special import roots_jacobi
from scipy.stats import binom

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Kinds of tasks: the share of each, and the chance that a run passes under A and under B."""

    shares: FloatArray
    a: FloatArray
    b: FloatArray


@dataclass(frozen=True, slots=True)
class Design:
    """How tasks are run and valued: any of `runs`, less those that go missing by chance, and pass^k of the rest.

    Tasks that are left with fewer than k runs are not in the sample: being so says nothing about them.
    """

    runs: tuple[int, ...]
    k: int
    missing: float = 0.0

    def __str__(self) -> str:
        runs = f"{self.runs[0]}" if len(self.runs) == 1 else f"{self.runs[0]}..{self.runs[-1]}"
        return f"n={runs} k={self.k}" + (f" {self.missing:.0%} missing" if self.missing else "")

    def chances_of_n(self) -> dict[int, float]:
        chances: dict[int, float] = {}
        for planned in self.runs:
            for n in range(self.k, planned + 1):
                chances[n] = chances.get(n, 0.0) + float(binom.pmf(n, planned, 1 - self.missing))
        total = sum(chances.values())
        return {n: chance / total for n, chance in chances.items() if chance}


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """What the value of a random task can be, as numerators over one denominator, and the chance of each."""

    numerators: tuple[int, ...]
    denominator: int
    chances: FloatArray

    @property
    def truth(self) -> float:
        return float(np.array([numerator / self.denominator for numerator in self.numerators]) @ self.chances)


def points(*kinds: tuple[float, float]) -> Mixture:
    """Tasks of a few kinds, each a share and the rate of passes under either release."""
    return pairs(*((share, rate, rate) for share, rate in kinds))


def pairs(*kinds: tuple[float, float, float]) -> Mixture:
    """Tasks of a few kinds, each a share and the rates under A and B."""
    shares, a, b = np.array(kinds, dtype=np.float64).T
    return Mixture(shares / shares.sum(), a, b)


def beta(alpha: float, beta: float) -> Mixture:
    """Rates from a Beta distribution, as the 20 points that have the same chances of c passes in up to 39 runs."""
    x, weights = roots_jacobi(20, beta - 1, alpha - 1)
    rates = (1 + x) / 2
    return Mixture(weights / weights.sum(), rates, rates)


def shifted(base: Mixture, *kinds: tuple[float, float]) -> Mixture:
    """B's rates are A's, changed by an amount in each share of the tasks of every kind, and cut to [0, 1]."""
    parts = [(base.shares * share, base.a, np.clip(base.a + change, 0, 1)) for share, change in kinds]
    shares, a, b = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Mixture(shares, a, b)


def difficulties(tasks: int) -> dict[str, Mixture]:
    """Mixtures for one release, among them some with tasks that a suite of this size shows twice or hardly ever."""
    rare, rarer = 2 / tasks, 0.15 / tasks
    return SMOOTH | {
        "Beta(2,1)": beta(2, 1),
        "Beta(8,3)": beta(8, 3),
        "Beta(1,10)": beta(1, 10),
        "all .99": points((1, 0.99)),
        "all .1": points((1, 0.1)),
        "2/T never, rest .97": points((rare, 0), (1 - rare, 0.97)),
        "2/T never, rest .995": points((rare, 0), (1 - rare, 0.995)),
        "2% never, rest .99": points((0.02, 0), (0.98, 0.99)),
        "1% at .3, rest .97": points((0.01, 0.3), (0.99, 0.97)),
        "5% at .2, rest .95": points((0.05, 0.2), (0.95, 0.95)),
        "all or nothing .5": points((0.5, 0), (0.5, 1)),
        "all or nothing .9": points((0.1, 0), (0.9, 1)),
        "all or nothing .98": points((0.02, 0), (0.98, 1)),
        "all or nothing 1-2/T": points((rare, 0), (1 - rare, 1)),
        "all or nothing 1-.15/T": points((rarer, 0), (1 - rarer, 1)),
    }


SMOOTH = {
    "uniform": beta(1, 1),
    "bimodal .1 .9": points((0.5, 0.1), (0.5, 0.9)),
    "Beta(5,1)": beta(5, 1),
    "U-shaped Beta(.4,.4)": beta(0.4, 0.4),
    "hard Beta(1,2)": beta(1, 2),
    "all .8": points((1, 0.8)),
    "Beta(20,1)": beta(20, 1),
    "80% at .99, 20% at .7": points((0.8, 0.99), (0.2, 0.7)),
}


def movements(tasks: int) -> dict[str, Mixture]:
    """Mixtures for two releases: smooth changes, and a few tasks that fall far or break completely."""
    near_ceiling, uniform = beta(20, 1), beta(1, 1)
    broken, more_broken = 1.5 / tasks, 2 / tasks
    return {
        "no change, uniform": uniform,
        "no change, Beta(20,1)": near_ceiling,
        "+.05, Beta(2,1)": shifted(beta(2, 1), (1, 0.05)),
        "half +.25, half -.25": shifted(beta(2, 2), (0.5, 0.25), (0.5, -0.25)),
        "90% +.05, 10% -.45": shifted(points((0.5, 0.5), (0.5, 0.8)), (0.9, 0.05), (0.1, -0.45)),
        "-.02, Beta(20,1)": shifted(near_ceiling, (1, -0.02)),
        **{f"{r:.0%} fall .97 to .30": pairs((r, 0.97, 0.3), (1 - r, 0.97, 0.97)) for r in (0.02, 0.05, 0.1, 0.3)},
        "1.5/T break, rest 1": pairs((broken, 1, 0), (1 - broken, 1, 1)),
        "1.5/T break, rest .995": pairs((broken, 0.995, 0), (1 - broken, 0.995, 0.995)),
        "2/T break, rest .995": pairs((more_broken, 0.995, 0), (1 - more_broken, 0.995, 0.995)),
        "2/T break, rest gain .02": pairs((more_broken, 1, 0), (1 - more_broken, 0.95, 0.97)),
    }


def nulls(tasks: int) -> dict[str, Mixture]:
    """Mixtures without a difference in the mean; the first two have none in any task."""
    broken = 2 / tasks
    gain = broken / (1 - broken)  # by the others, so that the mean stays
    return {
        "identical, Beta(2,1)": beta(2, 1),
        "identical, Beta(20,1)": beta(20, 1),
        "half +.25, half -.25": shifted(points((1, 0.5), (1, 0.6), (1, 0.7), (1, 0.75)), (0.5, 0.25), (0.5, -0.25)),
        "90% +.05, 10% -.45": shifted(points((0.5, 0.5), (0.5, 0.8)), (0.9, 0.05), (0.1, -0.45)),
        "2/T break, rest gain": pairs((broken, 1, 0), (1 - broken, 1 - 1.3 * gain, 1 - 0.3 * gain)),
    }


def law_of_pass_hat(mixture: Mixture, design: Design) -> Law:
    """The law of a task's unbiased value of pass^k; its mean is the mean of rate^k."""
    chances: dict[Fraction, float] = {}
    for n, chance in design.chances_of_n().items():
        counts = mixture.shares @ _chances_of_c(n, mixture.a)
        for c in range(n + 1):
            value = Fraction(comb(c, design.k), comb(n, design.k))
            chances[value] = chances.get(value, 0.0) + chance * float(counts[c])
    return _law(chances)


def law_of_differences(mixture: Mixture, design: Design) -> Law:
    """The law of a task's difference of pass^k, B's less A's, with the same number of runs of both."""
    (n,) = design.runs
    joint = np.einsum("i,ia,ib->ab", mixture.shares, _chances_of_c(n, mixture.a), _chances_of_c(n, mixture.b))
    chances: dict[Fraction, float] = {}
    for (c_a, c_b), chance in np.ndenumerate(joint):
        value = Fraction(comb(c_b, design.k) - comb(c_a, design.k), comb(n, design.k))
        chances[value] = chances.get(value, 0.0) + float(chance)
    return _law(chances)


def _chances_of_c(n: int, rates: FloatArray) -> FloatArray:
    """One row a rate, one column a number of passes."""
    chances: FloatArray = binom.pmf(np.arange(n + 1), n, rates[:, np.newaxis])
    return chances


def _law(chances: dict[Fraction, float]) -> Law:
    values = sorted(value for value, chance in chances.items() if chance > 0)
    denominator = lcm(*(value.denominator for value in values))
    likely = np.array([chances[value] for value in values])
    return Law(tuple(int(value * denominator) for value in values), denominator, likely / likely.sum())
