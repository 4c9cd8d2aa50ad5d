"""Expectations over the latent difficulty of a task, of probabilities that follow Beta laws.

One flaw alone has moments in closed form. Several that share a latent are integrated over it: by the double exponential
rule (Takahasi and Mori, 1974), made for what is smooth within an interval and steep at its ends, on intervals that end
where one of the integrands rises, jumps or bends.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, pairwise
from math import cosh, exp, fsum, pi, prod, sinh
from operator import mul

from passhat.workers.chances import propensity

Rate = tuple[float, float]  # mean, and correlation between the runs of a task

_STEP, _REACH = 1 / 10, 35  # of the rule: distance of its points in its own variable, and their number to each side
_GRID = 256  # points between which two quantile functions are taken to cross once at most


def moment(p: float, rho: float, k: int) -> float:
    """Return the probability that k runs of a task drawn at random are all free of a flaw: E[(1 - pi)^k].

    The moment of the Beta law, prod (b + r)/(a + b + r) over r < k, written so that rho may be 0 or 1.
    """
    later = (((1 - p) * (1 - rho) + r * rho) / ((1 - rho) + r * rho) for r in range(1, k))
    return prod(chain((1.0 - p,), later)) if k else 1.0


def gamma_moment(hazard: float, shape: float, k: int) -> float:
    """Return E[exp(-k H Z)] for a Gamma law of Z with mean 1: pass^k where a task multiplies the hazards of all flaws.

    `hazard` is the sum of -ln(1 - p) over the flaws.
    """
    return float((1 + k * hazard / shape) ** -shape)


class Latents:
    """Integrals over one latent that is shared by flaws of these rates."""

    def __init__(self, rates: Iterable[Rate]) -> None:
        self._rates = sorted({rate for rate in rates if rate[1] > 0 and 0 < rate[0] < 1})
        self._known: dict[Rate, list[float]] = {}

    def clean(self, rates: Iterable[Rate], k: int) -> float:
        """Return E[prod (1 - pi_j)^k]."""
        together = [prod(values) ** k for values in zip(*map(self._clean, rates), strict=True)]
        return self._mean(together) if together else 1.0

    def both_clean(self, pairs: Iterable[tuple[Rate, Rate]], alone: Iterable[Rate], common: bool) -> float:
        """Return the probability that in a cell of two releases no flaw happens to either.

        `pairs` are the rates of a flaw in both. With common noise the flaw of the smaller probability happens only
        where the other does, otherwise they happen independently of one another for a given task.
        """
        parts = [self._clean(rate) for rate in alone]
        for one, other in pairs:
            meet = min if common else mul
            parts.append(list(map(meet, self._clean(one), self._clean(other))))
        return self._mean(list(map(prod, zip(*parts, strict=True)))) if parts else 1.0

    def _mean(self, values: Sequence[float]) -> float:
        return fsum(map(mul, values, self._rule[1]))

    def _clean(self, rate: Rate) -> list[float]:
        """Return 1 - pi at the points of the rule."""
        if rate not in self._known:
            self._known[rate] = [1.0 - chance for chance in _quantiles(rate, self._rule[0])]
        return self._known[rate]

    @cached_property
    def _rule(self) -> tuple[list[float], list[float]]:
        """Points and weights over [0, 1]."""
        ends = {0.0, 1.0, *(1 - p for p, _ in self._rates)}
        for i, one in enumerate(self._rates):
            for other in self._rates[i + 1 :]:
                if one[1] != other[1]:
                    ends.update(_crossings(one, other))
        points: list[float] = []
        weights: list[float] = []
        for low, high in pairwise(sorted(ends)):
            for n in range(-_REACH, _REACH + 1):
                t = n * _STEP
                share = 1 / (1 + exp(-pi * sinh(t)))  # from 0 to 1, slowly towards both ends
                points.append(low + (high - low) * share)
                weights.append((high - low) * _STEP * pi * cosh(t) * share * (1 - share))
        return points, weights


def _crossings(one: Rate, other: Rate) -> list[float]:
    """Return where the quantile functions of two Beta laws cross."""
    grid = [(i + 0.5) / _GRID for i in range(_GRID)]
    found = []
    for low, high in pairwise(grid):
        sign = _difference(one, other, low) > 0
        if sign != (_difference(one, other, high) > 0):
            for _ in range(50):
                middle = (low + high) / 2
                low, high = (middle, high) if (_difference(one, other, middle) > 0) == sign else (low, middle)
            found.append(low)
    return found


def _difference(one: Rate, other: Rate, u: float) -> float:
    return propensity(*one, u) - propensity(*other, u)


def _quantiles(rate: Rate, us: Sequence[float]) -> list[float]:
    """Return the quantiles of the Beta law with this mean and correlation."""
    p, rho = rate
    if p in (0, 1) or rho in (0, 1):
        return [propensity(p, rho, u) for u in us]
    from scipy.special import betaincinv

    odds = (1 - rho) / rho
    quantiles: list[float] = betaincinv(p * odds, (1 - p) * odds, us).tolist()
    return quantiles
