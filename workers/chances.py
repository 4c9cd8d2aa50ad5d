"""How often which flaw happens on which task, and in which runs of it.

A run draws its plan before its first call, one number a flaw. Rates vary between tasks: the probability of flaw j on
task i is Beta with mean p and correlation rho between runs of the task, a = p(1-rho)/rho and b = (1-p)(1-rho)/rho, at a
quantile fixed by the task. Releases thus share which tasks are hard, and a larger p at the same rho never removes a
failure. The quantiles of a task's flaws are drawn one by one, or are one and the same: then a task is hard in all.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from passhat.workers.contract import Task
from passhat.workers.flaws import FLAWS, INFRA_FAULT
from passhat.workers.seeds import derive

Latent = Literal["independent", "comonotone"]
INDEPENDENT: Latent = "independent"
COMONOTONE: Latent = "comonotone"


class Rate(NamedTuple):
    """How often a flaw happens: mean over tasks, and correlation between the runs of one task."""

    p: float
    rho: float = 0.0


Flaws = Mapping[str, tuple[float, float]]  # flaw → (p, rho)


def validate_flaws(flaws: Mapping[str, Any]) -> dict[str, Rate]:
    """Return the rates of flaws given as p, (p, rho) or {"p": …, "rho": …}; raise ValueError that names the fault."""
    rates = {}
    for name, given in flaws.items():
        if name not in FLAWS:
            near = get_close_matches(name, FLAWS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(FLAWS)}"
            raise ValueError(f"no flaw is called {name!r}: {hint}")
        rates[name] = _rate(name, given)
    return rates


def _rate(name: str, given: Any) -> Rate:
    try:
        rate = (
            Rate(**given) if isinstance(given, Mapping) else Rate(*given) if isinstance(given, tuple) else Rate(given)
        )
    except TypeError:
        raise ValueError(f"flaw {name}: expected p and rho, found {given!r}") from None
    for field, value in zip(rate._fields, rate, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ValueError(f"flaw {name}: {field} must be a number from 0 to 1, found {value!r}")
    return rate


def propensity(p: float, rho: float, u: float) -> float:
    """Return the quantile at `u`, a multiple of 2^-53, of the Beta law with mean p and correlation rho."""
    if p in (0, 1) or rho == 0:
        return float(p)
    if rho == 1:
        return float(u >= 1 - p)
    from scipy.special import betaincinv

    odds = (1 - rho) / rho
    return float(betaincinv(p * odds, (1 - p) * odds, u))


@lru_cache(maxsize=256)
def _propensities(
    task_digest: bytes, rates: tuple[tuple[str, tuple[float, float]], ...], latent: Latent
) -> tuple[float, ...]:
    names = [(name,) if latent == INDEPENDENT else () for name, _ in rates]
    return tuple(
        propensity(p, rho, _uniform(derive("latent", task_digest, *name)))
        for name, (_, (p, rho)) in zip(names, rates, strict=True)
    )


def propensities(flaws: Flaws, task_digest: bytes, latent: Latent = INDEPENDENT) -> dict[str, float]:
    """Return the probability of each flaw on one task, wherever it can happen at all."""
    return dict(zip(flaws, _propensities(task_digest, tuple(flaws.items()), latent), strict=True))


def draw_plan(
    task: Task, flaws: Flaws, task_digest: bytes, agent_seed: int, latent: Latent = INDEPENDENT
) -> tuple[str, ...]:
    """Return the flaws of one run, in the order in which they are applied.

    Each flaw has a draw of its own, so that adding one to a release does not change the others.
    """
    chances = propensities(flaws, task_digest, latent)
    return tuple(
        name
        for name in FLAWS
        if name in chances
        and name != INFRA_FAULT
        and chances[name] > _uniform(derive("flaw", agent_seed, name))
        and FLAWS[name].fails(task) is not None
    )


def draw_fault(flaws: Flaws, task_digest: bytes, agent_seed: int, attempt: int, latent: Latent = INDEPENDENT) -> bool:
    """Say whether the machinery breaks down in an attempt at a run: the only draw that a retry repeats."""
    if INFRA_FAULT not in flaws:
        return False
    chance = propensities(flaws, task_digest, latent)[INFRA_FAULT]
    return chance > _uniform(derive("flaw", agent_seed, INFRA_FAULT, attempt))


def _uniform(bits: int) -> float:
    """Return a number in [0, 1) from 64 random bits."""
    return (bits >> 11) * 2.0**-53
