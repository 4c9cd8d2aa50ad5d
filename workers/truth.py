"""The truth about scripted releases in closed form: pass rates and pass^k by scorer, how runs end, what they cost, and
in how many cells two releases differ.

All of it is made of one kind of term, the probability that none of a set of flaws happens. There are two truths. That
of the *population* is an expectation over all tasks that might have been drawn with these proportions; an interval that
speaks of new tasks is to be held against it. That of *this suite* is an expectation over the runs alone, with the very
probabilities that its tasks have drawn. Both are about runs that get a verdict; `invalid` says how many do not.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import NamedTuple, Protocol

from passhat.workers.chances import COMONOTONE, INDEPENDENT, Flaws, Latent, propensities
from passhat.workers.contract import Task
from passhat.workers.flaws import FLAWS, INFRA_FAULT, claim_of, flawed_script
from passhat.workers.latents import Latents, moment
from passhat.workers.meter import mean_micros
from passhat.workers.scoring import QUADRANTS

ALL = "all"
SCORERS = (ALL, "outcome", "trajectory", "efficiency")

_UNTIL_LOOP = 4  # the call that is found to be a loop is the fourth: three are let through, and all four are paid for

Names = frozenset[str]  # of flaws
_NONE: Names = frozenset()


class FlawModel(NamedTuple):
    """How often a release has which flaws."""

    flaws: Flaws
    latent: Latent = INDEPENDENT


@dataclass(frozen=True, slots=True)
class ScorerTruth:
    """How often runs pass a scorer."""

    pass_hat: Mapping[int, float]  # k → probability that k runs of a task all pass
    between: float  # variance of the pass probability between tasks
    within: float  # mean variance of a run of a given task

    @property
    def pass_rate(self) -> float:
        return self.pass_hat[1]

    @property
    def icc(self) -> float:
        """Correlation between two runs of a task; 0 where nothing varies."""
        total = self.between + self.within
        return self.between / total if total > 0 else 0.0

    def design_effect(self, runs: int) -> float:
        """Return how much wider the variance of the pass rate is than with as many runs of different tasks."""
        return 1 + (runs - 1) * self.icc

    def tasks_for(self, standard_error: float, runs: int) -> float:
        """Return the number of tasks with which the pass rate has a standard error, at so many runs of each."""
        return (self.between + self.within / runs) / standard_error**2


@dataclass(frozen=True, slots=True)
class ReleaseTruth:
    """What is true of a release."""

    scorers: Mapping[str, ScorerTruth]
    quadrant: Mapping[str, float]  # outcome × trajectory, a scorer that does not apply counting as passed
    terminal: Mapping[str, float]  # how runs end
    cost_usd: float  # mean of a run
    invalid: float  # probability that a run still has no verdict after the last attempt


@dataclass(frozen=True, slots=True)
class Cells:
    """Shares of the cells (task, run-index) that both, one or none of two releases pass."""

    both_pass: float
    base_only: float
    candidate_only: float
    both_fail: float


class Truths(NamedTuple):
    """One of the two truths: of each release, and of each pair of releases by scorer.

    A pair is None where it has no closed form: common noise, and latents of two kinds.
    """

    releases: tuple[ReleaseTruth, ...]
    pairs: Mapping[tuple[int, int], Mapping[str, Cells] | None]


def truths(
    models: Sequence[FlawModel],
    tasks: Iterable[tuple[Task, bytes]],
    ks: Sequence[int],
    *,
    attempts: int = 1,
    common: bool = False,
) -> tuple[Truths, Truths]:
    """Return the truth of the population and that of this suite, given as (task, digest) and gone through once.

    `attempts` is how often a run is tried before it stays invalid, `common` whether releases share the noise of runs.
    """
    books = [_Book(frozenset(model.flaws)) for model in models]
    suite = _Sums(len(models), ks, attempts)
    alike: Counter[tuple[_Page, ...]] = Counter()
    for task, task_digest in tasks:
        pages = tuple(book.page(task) for book in books)
        alike[pages] += 1
        chances = [propensities(flaws, task_digest, latent) for flaws, latent in models]
        suite.add(1, pages, _ThisTask(chances, common))
    population, everywhere = _Sums(len(models), ks, attempts), _Population(models, common)
    for pages, count in alike.items():
        population.add(count, pages, everywhere)
    return population.means(), suite.means()


def observed_rate(rate: float, false_pass: float, false_fail: float) -> float:
    """Return the pass rate that a judge reports who passes this share of failures, and fails this share of passes."""
    return rate * (1 - false_fail) + (1 - rate) * false_pass


# --- what flaws do on a task -----------------------------------------------------------------------------------------

Form = tuple[tuple[float, Names], ...]  # a sum: coefficient × probability that none of these flaws happens


@dataclass(frozen=True, slots=True, eq=False)
class _Page:
    """What the flaws of a release do on all tasks of one kind."""

    failing: Mapping[str, Names]  # scorer → flaws that fail it
    terminal: Mapping[str, Form]
    cost_micros: Form


class _Book:
    """Pages by kind of task: of one kind are tasks on which the same flaws fail the same, with the same calls."""

    def __init__(self, names: Names) -> None:
        self._flaws = {name: flaw for name, flaw in FLAWS.items() if name in names}
        self._pages: dict[object, _Page] = {}

    def page(self, task: Task) -> _Page:
        fails = {name: failed for name, flaw in self._flaws.items() if (failed := flaw.fails(task)) is not None}
        key = (*fails.items(), claim_of(task), tuple(step.tool for step in task.oracle))
        if key not in self._pages:
            failing = {
                scorer: frozenset(
                    name for name, failed in fails.items() if (failed if scorer == ALL else scorer in failed)
                )
                for scorer in SCORERS
            }
            self._pages[key] = _Page(failing, _terminal(task, fails), _cost(task, fails))
        return self._pages[key]


def _terminal(task: Task, names: Iterable[str]) -> dict[str, Form]:
    """Of the flaws that end a run, the one that is applied last decides."""
    forms: dict[str, Form] = {}
    later = _NONE
    for name in reversed([name for name in names if FLAWS[name].ends]):
        ends = FLAWS[name].ends.name
        forms[ends] = (*forms.get(ends, ()), (1.0, later), (-1.0, later | {name}))
        later |= {name}
    claim = claim_of(task).name
    forms[claim] = (*forms.get(claim, ()), (1.0, later))
    return forms


def _cost(task: Task, names: Iterable[str]) -> Form:
    """Expand the mean cost of a run, known for each set of flaws, into probabilities that none of a set happens.

    With x_j = 1 when flaw j does not happen the cost is a polynomial, linear in each x_j; its coefficients are the
    Möbius transform of its values. A flaw that changes no cost alone changes none in company, and is left out.
    """
    costly = [name for name in names if _mean_cost(task, (name,)) != _mean_cost(task, ())]
    values = []
    for absent in range(1 << len(costly)):
        values.append(_mean_cost(task, [name for i, name in enumerate(costly) if not absent >> i & 1]))
    for i in range(len(costly)):
        for absent in range(len(values)):
            if absent >> i & 1:
                values[absent] -= values[absent ^ 1 << i]
    sets = (frozenset(name for i, name in enumerate(costly) if absent >> i & 1) for absent in range(len(values)))
    return tuple((float(value), names) for value, names in zip(values, sets, strict=True) if value)


def _mean_cost(task: Task, plan: Iterable[str]) -> int:
    """Return the expected micro-dollars of a run that has drawn these flaws; a whole number."""
    script = flawed_script(task, frozenset(plan))
    calls = sum(min(move.times, _UNTIL_LOOP) for move in script)
    return mean_micros(calls) + sum(move.extra.micros for move in script)


# --- how often -------------------------------------------------------------------------------------------------------


class _Odds(Protocol):
    """Probabilities about runs of one task, or of tasks at large; releases are numbered."""

    def clean(self, release: int, names: Names, k: int = 1) -> float:
        """Return the probability that none of the flaws happens in k runs of a task."""

    def both_clean(self, one: int, names: Names, other: int, others: Names) -> float | None:
        """Return the probability that in a cell of two releases neither has one of its flaws."""

    def broken(self, release: int, attempts: int) -> float:
        """Return the probability that every attempt at a run is invalid."""


class _ThisTask:
    """Of one task with the probabilities it has drawn."""

    def __init__(self, chances: Sequence[Mapping[str, float]], common: bool) -> None:
        self._chances = chances
        self._common = common

    def clean(self, release: int, names: Names, k: int = 1) -> float:
        return prod([1.0 - chance for name, chance in self._chances[release].items() if name in names]) ** k

    def both_clean(self, one: int, names: Names, other: int, others: Names) -> float:
        if not self._common:
            return self.clean(one, names) * self.clean(other, others)
        first, second = self._chances[one], self._chances[other]
        return prod(
            1.0 - max(first[name] if name in names else 0.0, second[name] if name in others else 0.0)
            for name in sorted(names | others)
        )

    def broken(self, release: int, attempts: int) -> float:
        return self._chances[release].get(INFRA_FAULT, 0.0) ** attempts


class _Population:
    """Of all tasks that might have been drawn."""

    def __init__(self, models: Sequence[FlawModel], common: bool) -> None:
        self._models = models
        self._common = common
        self._latents = Latents([rate for model in models for rate in model.flaws.values()])
        self._clean: dict[tuple[int, Names, int], float] = {}
        self._both: dict[tuple[int, Names, int, Names], float | None] = {}

    def clean(self, release: int, names: Names, k: int = 1) -> float:
        key = (release, names, k)
        if key not in self._clean:
            flaws, latent = self._models[release]
            if latent == COMONOTONE:
                self._clean[key] = self._latents.clean([flaws[name] for name in sorted(names)], k)
            else:
                self._clean[key] = prod(moment(*flaws[name], k) for name in sorted(names))
        return self._clean[key]

    def both_clean(self, one: int, names: Names, other: int, others: Names) -> float | None:
        key = (one, names, other, others)
        if key not in self._both:
            self._both[key] = self._both_clean(*key)
        return self._both[key]

    def _both_clean(self, one: int, names: Names, other: int, others: Names) -> float | None:
        (flaws, latent), (more, other_latent) = self._models[one], self._models[other]
        if latent != other_latent:  # whatever else they share, not which tasks are hard
            return None if self._common else self.clean(one, names) * self.clean(other, others)
        both = [(flaws[name], more[name]) for name in sorted(names & others)]
        first, second = (
            [these[name] for name in sorted(only)] for these, only in ((flaws, names - others), (more, others - names))
        )
        if latent == COMONOTONE:
            return self._latents.both_clean(both, [*first, *second], self._common)
        shared = prod(self._latents.both_clean([pair], [], self._common) for pair in both)
        return shared * prod(moment(*rate, 1) for rate in (*first, *second))

    def broken(self, release: int, attempts: int) -> float:
        """The moment of a Beta law once more, of the probability instead of its complement."""
        p, rho = self._models[release].flaws.get(INFRA_FAULT, (0.0, 0.0))
        return moment(1 - p, rho, attempts)


# --- sums over tasks -------------------------------------------------------------------------------------------------


class _Sums:
    """Weighted sums of everything over tasks, or over kinds of tasks."""

    def __init__(self, releases: int, ks: Sequence[int], attempts: int) -> None:
        self._ks = tuple(dict.fromkeys((1, 2, *ks)))
        self._attempts = attempts
        self._weight = 0.0
        self._releases = [_ReleaseSums() for _ in range(releases)]
        self._both: dict[tuple[int, int], dict[str, float | None]] = {
            pair: dict.fromkeys(SCORERS, 0.0) for pair in combinations(range(releases), 2)
        }

    def add(self, weight: float, pages: Sequence[_Page], odds: _Odds) -> None:
        self._weight += weight
        for release, (page, sums) in enumerate(zip(pages, self._releases, strict=True)):
            sums.add(weight, release, page, odds, self._ks)
            sums.invalid += weight * odds.broken(release, self._attempts)
        for (one, other), both in self._both.items():
            for scorer, total in both.items():
                found = odds.both_clean(one, pages[one].failing[scorer], other, pages[other].failing[scorer])
                both[scorer] = None if total is None or found is None else total + weight * found

    def means(self) -> Truths:
        releases = tuple(sums.means(self._weight) for sums in self._releases)
        return Truths(releases, {pair: self._cells(releases, *pair) for pair in self._both})

    def _cells(self, releases: Sequence[ReleaseTruth], one: int, other: int) -> dict[str, Cells] | None:
        cells = {}
        for scorer, total in self._both[one, other].items():
            if total is None:
                return None
            both = total / self._weight
            first, second = (releases[i].scorers[scorer].pass_rate for i in (one, other))
            cells[scorer] = Cells(both, first - both, second - both, 1 - first - second + both)
        return cells


class _ReleaseSums:
    """The sums of one release."""

    def __init__(self) -> None:
        self._clean: defaultdict[tuple[str, int], float] = defaultdict(float)
        self._both_scorers = 0.0
        self._terminal: defaultdict[str, float] = defaultdict(float)
        self._cost_micros = 0.0
        self.invalid = 0.0

    def add(self, weight: float, release: int, page: _Page, odds: _Odds, ks: Iterable[int]) -> None:
        for scorer, names in page.failing.items():
            for k in ks:
                self._clean[scorer, k] += weight * odds.clean(release, names, k)
        either = page.failing["outcome"] | page.failing["trajectory"]
        self._both_scorers += weight * odds.clean(release, either)
        for outcome, form in page.terminal.items():
            self._terminal[outcome] += weight * sum(a * odds.clean(release, names) for a, names in form)
        self._cost_micros += weight * sum(a * odds.clean(release, names) for a, names in page.cost_micros)

    def means(self, weight: float) -> ReleaseTruth:
        scorers = {}
        for scorer in SCORERS:
            pass_hat = {k: total / weight for (of, k), total in self._clean.items() if of == scorer}
            first, second = pass_hat[1], pass_hat[2]
            scorers[scorer] = ScorerTruth(pass_hat, max(0.0, second - first**2), first - second)
        both = self._both_scorers / weight
        right, sanctioned = scorers["outcome"].pass_rate, scorers["trajectory"].pass_rate
        cells = (1 - right - sanctioned + both, right - both, sanctioned - both, both)
        return ReleaseTruth(
            scorers=scorers,
            quadrant=dict(zip(QUADRANTS, cells, strict=True)),
            terminal={outcome: total / weight for outcome, total in sorted(self._terminal.items())},
            cost_usd=self._cost_micros / weight / 1_000_000,
            invalid=self.invalid / weight,
        )
