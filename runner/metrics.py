"""What the metrics of a gate come to on a pairing: exact values under every completion of the missing runs, and bounds.

A run without a verdict could have been anything, so a metric has a lowest and a highest value. Values are exact
fractions; only the ends of intervals are floating-point numbers. Knows nothing of thresholds.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import comb, inf

import numpy as np

from passhat.runner.gate_file import Gate, Kind, Rule
from passhat.runner.pairing import EFFICIENCY_FIELDS, Pairing, Runs
from passhat.runner.render import count
from passhat.runner.report import SAFETY_EVENTS, percentile
from passhat.runner.tables import MISSING
from passhat.stats.bootstrap import bootstrap_mean
from passhat.stats.intervals import dirichlet
from passhat.stats.paired import Differences, paired_t
from passhat.stats.table import IntArray
from passhat.workers.records import Status
from passhat.workers.scoring import QUADRANTS

_RIGHT_UNSANCTIONED = QUADRANTS.index("right_unsanctioned")


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of tasks under one completion: `tasks[j]` tasks have `values[j]`."""

    values: tuple[Fraction, ...]
    tasks: tuple[int, ...]
    lower_limit: int  # of a value: 0, of a difference -1

    @classmethod
    def of(cls, values: Iterable[tuple[Fraction, int]], lower_limit: int) -> "Sample":
        counts: Counter[Fraction] = Counter()
        for value, tasks in values:
            counts[value] += tasks
        ordered = sorted(counts)
        return cls(tuple(ordered), tuple(counts[value] for value in ordered), lower_limit)

    @property
    def mean(self) -> Fraction:
        return sum((v * t for v, t in zip(self.values, self.tasks, strict=True)), Fraction()) / sum(self.tasks)

    def ends(self, interval: str, alpha: float) -> tuple[float, float] | None:
        """Return the two one-sided bounds at level alpha each; None where the method gives none."""
        numbers, confidence = [float(value) for value in self.values], 1 - 2 * alpha
        if interval == "task-dirichlet":
            found = dirichlet(numbers, self.tasks, confidence, lower_limit=self.lower_limit)
        else:
            common = np.lcm.reduce([value.denominator for value in self.values], dtype=object)
            numerators = [int(value * common) for value in self.values]
            if interval == "bootstrap":
                found = bootstrap_mean(numerators, int(common), self.tasks, confidence).interval
            else:
                found = paired_t(Differences(1, tuple(numerators), int(common), self.tasks, 0, 0), confidence)
        return None if found is None else (found.lower, found.upper)


@dataclass(frozen=True, slots=True)
class Part:
    """A cohort, or all tasks, under the completions with the lowest and the highest values."""

    weight: Fraction
    low: Sample
    high: Sample


@dataclass(frozen=True, slots=True)
class Observation:
    """What a metric came to. None is unknown, and `reason` then says why."""

    low: Fraction | None  # under the completion that makes it lowest
    high: Fraction | None
    lower: float | None = None  # one-sided bounds of the rule's own level, at those completions
    upper: float | None = None
    reason: str | None = None
    unscored: int = 0  # runs that keep low and high apart
    tasks: int = 0  # that it is of
    parts: tuple[Part, ...] = ()
    grain: int | None = None  # the number of runs that a rate is a share of, where it is one
    examples: tuple[str, ...] = ()  # runs with an event


def observe(rule: Rule, gate: Gate, pairing: Pairing) -> Observation:
    """Return what the metric of a rule comes to."""
    if rule.file.cohort is not None:
        there = dict.fromkeys(pairing.cohorts)
        pairing = pairing.cohort(rule.file.cohort)
        if not pairing.tasks:
            return _unknown(f"no task in the cohort {rule.file.cohort}; there are {', '.join(there)}")
    return replace(_observe(rule, gate, pairing), tasks=len(pairing.tasks))


def _observe(rule: Rule, gate: Gate, pairing: Pairing) -> Observation:
    if rule.kind in (Kind.LEVEL, Kind.DIFFERENCE):
        return _rate(rule, gate, pairing)
    if rule.kind is Kind.EVENTS:
        return _events(rule, pairing)
    if rule.kind is Kind.EFFICIENCY:
        return _efficiency(rule, pairing)
    if rule.kind is Kind.SHARE:
        return _share(rule, pairing)
    return _size(rule, pairing)


def _unknown(reason: str) -> Observation:
    return Observation(None, None, reason=reason)


# Rates: the mean over tasks of a value from 0 to 1

# three numbers of runs of a task → the lowest and the highest value that the task can have
_Value = Callable[[int, int, int], tuple[Fraction, Fraction]]


def _attempts(passed: int, failed: int, unscored: int) -> tuple[Fraction, Fraction]:
    planned = passed + failed + unscored
    return Fraction(passed, planned), Fraction(passed + unscored, planned)


def _flaky(passed: int, failed: int, unscored: int) -> tuple[Fraction, Fraction]:
    """Whether a task has both; a run without a verdict can be either."""
    can_be = passed + failed + unscored > 1 and passed + unscored > 0 and failed + unscored > 0
    return Fraction(passed > 0 and failed > 0), Fraction(can_be)


def _pass_hat(k: int) -> _Value:
    def value(passed: int, failed: int, unscored: int) -> tuple[Fraction, Fraction]:
        ways = comb(passed + failed + unscored, k)
        return Fraction(comb(passed, k), ways), Fraction(comb(passed + unscored, k), ways)

    return value


_VALUES: Mapping[str, _Value] = {
    "attempt_rate": _attempts,
    "flaky_rate": _flaky,
    "right_unsanctioned_share": _attempts,  # of runs in the cell, others, and runs that were not judged so
}


def _rate(rule: Rule, gate: Gate, pairing: Pairing) -> Observation:
    name = rule.name.removeprefix("delta_")
    reason = _refusal(rule, name, pairing)
    if reason is not None:
        return _unknown(reason)
    value = _pass_hat(rule.file.k) if rule.file.k is not None else _VALUES[name]
    weights = gate.file.weights if rule.file.standardised else None
    if weights is None:
        strata = [(Fraction(1), np.ones(len(pairing.tasks), dtype=np.bool_))]
    else:
        cohorts = np.array(pairing.cohorts)
        undeclared = sorted(set(pairing.cohorts) - weights.keys())
        if undeclared:
            return _unknown(f"no weight is declared for {', '.join(undeclared)}")
        total = sum(Fraction(str(weight)) for weight in weights.values())
        strata = [(Fraction(str(weight)) / total, cohorts == cohort) for cohort, weight in weights.items() if weight]
        empty = [cohort for cohort, weight in weights.items() if weight and not (cohorts == cohort).any()]
        if empty:
            return _unknown(f"no task in cohorts with weight: {', '.join(empty)}")
    numbers = _numbers(name, pairing)
    parts = tuple(_part(weight, [column[mask] for column in numbers], value, rule.kind) for weight, mask in strata)
    sides = numbers if rule.kind is Kind.DIFFERENCE else numbers[3:]
    unscored = int(sum(int(column.sum()) for column in sides[2::3]))
    low = sum((part.weight * part.low.mean for part in parts), Fraction())
    high = sum((part.weight * part.high.mean for part in parts), Fraction())
    observation = Observation(low, high, unscored=unscored, parts=parts, grain=_grain(name, weights, sides))
    return _bounded(rule, observation) if rule.reads_bound else observation


def _grain(name: str, weights: Mapping[str, float] | None, numbers: list[IntArray]) -> int | None:
    planned = np.sum(numbers[-3:], axis=0)
    is_share = name == "attempt_rate" and weights is None and planned.min() == planned.max()
    return int(planned.sum()) if is_share else None


def _refusal(rule: Rule, name: str, pairing: Pairing) -> str | None:
    """Why a rate cannot be had, if so."""
    base, candidate = pairing.outcomes_base.planned, pairing.outcomes_candidate.planned
    k = rule.file.k
    if k is not None:
        planned = np.minimum(base, candidate) if rule.kind is Kind.DIFFERENCE else candidate
        few = int(np.sum(planned < k))
        if few:
            return f"pass^{k} is not estimable: {few} of {len(planned)} tasks have fewer than {k} planned runs"
    if name == "flaky_rate":
        numbers = np.concatenate([base, candidate]) if rule.kind is Kind.DIFFERENCE else candidate
        if numbers.min() != numbers.max():
            return f"tasks with {numbers.min()} to {numbers.max()} runs are not comparable by flakiness"
        if numbers.min() < 2:
            return "a task with one run cannot be flaky"
    if name == "right_unsanctioned_share":
        asked = pairing.runs if rule.kind is Kind.DIFFERENCE else pairing.runs[1:]
        silent = [runs.side.release for runs in asked if (runs.quadrant < 0).all()]
        if silent:
            return f"no run of {' and '.join(silent)} says outcome and trajectory apart"
    return None


def _numbers(name: str, pairing: Pairing) -> list[IntArray]:
    """Three numbers of runs of every task for the baseline, then three for the candidate."""
    if name != "right_unsanctioned_share":
        return [
            column
            for outcomes in (pairing.outcomes_base, pairing.outcomes_candidate)
            for column in (outcomes.passed, outcomes.failed, outcomes.unscored)
        ]
    columns = []
    for runs, outcomes in zip(pairing.runs, (pairing.outcomes_base, pairing.outcomes_candidate), strict=True):
        runs, tasks = runs.take(runs.task >= 0), len(pairing.tasks)
        seen = np.bincount(runs.task[runs.quadrant >= 0], minlength=tasks)
        there = np.bincount(runs.task[runs.quadrant == _RIGHT_UNSANCTIONED], minlength=tasks)
        columns += [there, seen - there, outcomes.planned - seen]
    return columns


def _part(weight: Fraction, numbers: list[IntArray], value: _Value, kind: Kind) -> Part:
    is_level = kind is Kind.LEVEL
    rows, tasks = np.unique(np.stack(numbers[3:] if is_level else numbers), axis=1, return_counts=True)
    lows, highs = [], []
    for row, number in zip(rows.T.tolist(), tasks.tolist(), strict=True):
        low, high = value(*row[-3:])
        if not is_level:
            base_low, base_high = value(*row[:3])
            low, high = low - base_high, high - base_low
        lows.append((low, number))
        highs.append((high, number))
    limit = 0 if is_level else -1
    return Part(weight, Sample.of(lows, limit), Sample.of(highs, limit))


def _bounded(rule: Rule, observation: Observation) -> Observation:
    """Add the one-sided bounds; of several parts each is taken at its share of the level (Bonferroni)."""
    alpha = rule.alpha / len(observation.parts)
    lower, upper = 0.0, 0.0
    for part in observation.parts:
        lows, highs = part.low.ends(rule.file.interval, alpha), part.high.ends(rule.file.interval, alpha)
        if lows is None or highs is None:
            return replace(observation, reason=f"{rule.file.interval} gives no bound: no spread between tasks")
        lower += float(part.weight) * lows[0]
        upper += float(part.weight) * highs[1]
    return replace(observation, lower=lower, upper=upper)


# Counts, order statistics and shares


def _events(rule: Rule, pairing: Pairing) -> Observation:
    """Runs of the candidate with an event in any attempt; one that was not watched to its end may have had one."""
    bit, runs = SAFETY_EVENTS[rule.name], pairing.runs[1]
    has, seen = runs.events(bit)
    if not (has | seen).any():
        return _unknown(f"no run of {runs.side.release} says anything of {rule.name.replace('_', ' ')}")
    event, may_be = pairing.events(bit, new=rule.is_new)
    known, unknown = int(event.sum()), int(may_be.sum())
    return Observation(
        Fraction(known),
        Fraction(known + unknown),
        reason=f"{_runs(unknown)} not watched to the end" if unknown else None,
        unscored=unknown,
        examples=runs.names(event),
    )


def _runs(number: int) -> str:
    return "1 run was" if number == 1 else f"{number} runs were"


def _efficiency(rule: Rule, pairing: Pairing) -> Observation:
    """An order statistic over all runs of the candidate, or its change over cells.

    What a run does not say may be nothing, or the limit it ran under, or without limit.
    """
    sides = pairing.runs[1:] if rule.file.change is None else pairing.cells
    for runs in sides:
        if (runs.values(EFFICIENCY_FIELDS[rule.name][0])[runs.status <= Status.FAIL] < 0).all():
            return _unknown(f"no run of {runs.side.release} with a verdict says its {rule.name}")
    spans = [_order_statistic(rule, runs) for runs in sides]
    low, high, silent = spans[-1]
    if rule.file.change is not None:
        base_low, base_high, also = spans[0]
        silent += also
        change = _relative if rule.file.change == "relative" else _absolute
        low, high = change(low, base_high), change(high, base_low)
    reason = f"{count(silent, 'run')} without a verdict or silent about it" if silent else None
    if rule.file.change == "relative" and spans[0][1] == 0:
        reason = f"the baseline's {rule.file.statistic} {rule.name} is 0: nothing to relate to"
    return Observation(low, high, reason=reason, unscored=silent)


def _order_statistic(rule: Rule, runs: Runs) -> tuple[Fraction | None, Fraction | None, int]:
    """Return the lowest and the highest value of the statistic, None where it has no limit, and the silent runs."""
    field, per_unit = EFFICIENCY_FIELDS[rule.name]
    percent = 50 if rule.file.statistic == "median" else int(str(rule.file.statistic)[1:])
    values = np.where(runs.status <= Status.FAIL, runs.values(field), -1)
    most = (runs.side.campaign.manifest["limits"] or {}).get("virtual_ms" if rule.name == "latency_ms" else rule.name)
    highest = inf if most is None else float(most) * per_unit
    low, high = (percentile(np.sort(np.where(values >= 0, values, unsaid)), percent) for unsaid in (0.0, highest))
    return Fraction(int(low), per_unit), None if high == inf else Fraction(int(high), per_unit), int(np.sum(values < 0))


def _absolute(value: Fraction | None, base: Fraction | None) -> Fraction | None:
    return None if value is None or base is None else value - base


def _relative(value: Fraction | None, base: Fraction | None) -> Fraction | None:
    return None if value is None or not base else value / base - 1


def _share(rule: Rule, pairing: Pairing) -> Observation:
    """The larger share of the two releases: gaps of the baseline are gaps too."""
    wanted = {Status.INVALID} if rule.name == "invalid_share" else {MISSING, Status.PENDING}
    shares = [Fraction(int(np.isin(runs.status, list(wanted)).sum()), len(runs)) for runs in pairing.runs]
    return Observation(max(shares), max(shares))


def _size(rule: Rule, pairing: Pairing) -> Observation:
    base, candidate = pairing.outcomes_base, pairing.outcomes_candidate
    if rule.name == "tasks":
        scored = int(np.sum((base.scored > 0) & (candidate.scored > 0)))
        return Observation(Fraction(scored), Fraction(len(pairing.tasks)), unscored=len(pairing.tasks) - scored)
    fewest = Fraction(int(min(base.planned.min(), candidate.planned.min())))
    return Observation(fewest, fewest)
