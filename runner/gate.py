"""The verdict of a gate on a pairing: one decision a rule, and GO only when every rule passes (passhat.verdict/1).

A rule is a test at its own one-sided level and the gate is an AND, so no correction is needed: a wrong GO takes a rule
that rejects its own true null. Rules hold whatever the runs without a verdict could have been: a rule passes at the
completion that speaks most against the candidate, and fails only where the one that speaks most for it fails too. What
cannot be evaluated is inconclusive, never skipped and never passed.
"""

from enum import StrEnum
from fractions import Fraction
from math import floor
from typing import Any

from passhat.runner.errors import ExitCode, NotAcceptable
from passhat.runner.gate_file import Gate, Kind, Rule
from passhat.runner.gate_words import observed, required
from passhat.runner.metrics import Observation, observe
from passhat.runner.pairing import Pairing
from passhat.runner.render import count, some
from passhat.runner.tables import records_digest
from passhat.stats.planning import tasks_to_pass
from passhat.stats.rare import trials_needed

SCHEMA = "passhat.verdict/1"
POWER = 0.8  # with which the tasks named would settle a rule

Document = dict[str, Any]


class Decision(StrEnum):
    """What a rule says."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class Verdict(StrEnum):
    """What a gate says."""

    GO = "GO"
    NO_GO = "NO_GO"
    INCONCLUSIVE = "INCONCLUSIVE"


EXIT_CODES = {
    Verdict.GO: ExitCode.DONE,
    Verdict.NO_GO: ExitCode.AGAINST,
    Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}
_ASSUMES = {
    "bootstrap": "the tasks seen stand for all kinds there are; too narrow near 0 and 1 and with few tasks",
    "paired-t": "no rare task moves far: where a few tasks break completely its lower end is too high",
}


def evaluate(gate: Gate, pairing: Pairing) -> Document:
    """Return the verdict with its rules; how the gate was declared is for the caller to add.

    NotAcceptable when some tasks or runs were planned for one release only and the gate does not allow that: what is
    left out of the candidate's plan it cannot fail.
    """
    if gate.file.unmatched == "refuse":
        _refuse_unmatched(pairing)
    rules = [_result(rule, observe(rule, gate, pairing)) for rule in gate.rules]
    return {
        "schema": SCHEMA,
        "verdict": combine([rule["decision"] for rule in rules]).value,
        "base": pairing.base.release,
        "candidate": pairing.candidate.release,
        "campaigns": list(dict.fromkeys(side.campaign.id for side in (pairing.base, pairing.candidate))),
        "records_digests": [records_digest(side.account) for side in (pairing.base, pairing.candidate)],
        "tasks": len(pairing.tasks),
        "counts": {"base": pairing.counts(0), "candidate": pairing.counts(1)},
        "unmatched": pairing.unmatched,
        "unverified": list(pairing.unverified),
        "rules": rules,
    }


def _refuse_unmatched(pairing: Pairing) -> None:
    unmatched = pairing.unmatched
    tasks = [*unmatched["base_only"], *unmatched["candidate_only"]]
    runs = unmatched["base_cells"] + unmatched["candidate_cells"]
    if tasks or runs:
        named = f"{count(len(tasks), 'task')} ({some(tasks, 3)})" if tasks else ""
        lone = f"{count(runs, 'run')} of tasks that both ran" if runs else ""
        raise NotAcceptable(
            f"planned for one release only: {' and '.join(part for part in (named, lone) if part)}; "
            "a gate with `unmatched: allow` compares the rest"
        )


def combine(decisions: list[str]) -> Verdict:
    """Return NO_GO when one rule fails, GO when all pass, else INCONCLUSIVE."""
    if Decision.FAIL in decisions:
        return Verdict.NO_GO
    return Verdict.GO if all(decision == Decision.PASS for decision in decisions) else Verdict.INCONCLUSIVE


def _result(rule: Rule, seen: Observation) -> Document:
    decision, why = decide(rule, seen)
    reasons = [why, seen.reason if decision is not Decision.PASS else None, _attainable(rule, seen, decision)]
    if decision is Decision.INCONCLUSIVE:
        reasons.append(_settle(rule, seen))
    number = {name: None if (v := getattr(seen, name)) is None else float(v) for name in ("low", "high")}
    return {
        "id": rule.file.id,
        "metric": rule.file.metric,
        "cohort": rule.file.cohort,
        "k": rule.file.k,
        "required": required(rule),
        "observed": observed(rule, seen),
        "decision": decision.value,
        "reason": "; ".join(reason for reason in reasons if reason) or None,
        "low": number["low"],
        "high": number["high"],
        "lower": seen.lower,
        "upper": seen.upper,
        "threshold": float(rule.threshold),
        "alpha": rule.alpha if rule.reads_bound or rule.file.max_rate else None,
        "method": _method(rule, seen),
        "assumes": _ASSUMES.get(rule.file.interval) if rule.reads_bound else None,
        "unscored": seen.unscored,
    }


def _method(rule: Rule, seen: Observation) -> str | None:
    if not rule.reads_bound:
        return None
    return f"{rule.file.interval}{'-bonferroni' if len(seen.parts) > 1 else ''}"


def decide(rule: Rule, seen: Observation) -> tuple[Decision, str | None]:
    """Compare what was observed with the threshold: exact fractions, or the bounds where the rule reads them."""
    low, high = (seen.lower, seen.upper) if rule.reads_bound else (seen.low, seen.high)
    if low is None and high is None:
        return Decision.INCONCLUSIVE, None
    # a margin or a gain has to be exceeded by a bound; anything else may be just reached
    is_strict = rule.reads_bound and rule.kind is Kind.DIFFERENCE
    if rule.is_floor:
        passes, fails = _holds(low, rule.threshold, is_strict), high is not None and high < rule.threshold
    else:
        passes = high is not None and (high < rule.threshold if is_strict else high <= rule.threshold)
        fails = low is not None and low > rule.threshold
    if passes:
        return _with_rate(rule, seen)
    if fails and rule.file.if_smaller == "inconclusive":
        return Decision.INCONCLUSIVE, "the gain is shown to be smaller"
    return (Decision.FAIL, None) if fails else (Decision.INCONCLUSIVE, None)


def _holds(low: Fraction | float | None, threshold: Fraction, is_strict: bool) -> bool:
    return low is not None and (low > threshold if is_strict else low >= threshold)


def _with_rate(rule: Rule, seen: Observation) -> tuple[Decision, str | None]:
    """None seen bounds the rate of tasks with an event, and only a rule that asks for it needs that."""
    if rule.file.max_rate is None:
        return Decision.PASS, None
    bound = 1 - rule.alpha ** (1 / seen.tasks)
    text = f"none in {count(seen.tasks, 'task')} bounds the rate of tasks with one by {bound:.3g}"
    if bound <= rule.file.max_rate:
        return Decision.PASS, text
    return Decision.INCONCLUSIVE, f"{text}; {trials_needed(rule.file.max_rate, 1 - rule.alpha):,} would do"


def _attainable(rule: Rule, seen: Observation, decision: Decision) -> str | None:
    """Name the nearest rates that so many runs can have, where the threshold is none of them."""
    if rule.reads_bound or rule.kind is not Kind.LEVEL or decision is Decision.PASS or not seen.grain:
        return None
    steps = rule.threshold * seen.grain
    if steps.denominator == 1:
        return None
    below, above = Fraction(floor(steps), seen.grain), Fraction(floor(steps) + 1, seen.grain)
    return f"the nearest attainable rates are {below} and {above}"


def _settle(rule: Rule, seen: Observation) -> str | None:
    """Say what would settle a rule that is inconclusive."""
    if seen.unscored and _passes_without_gaps(rule, seen):
        return f"{count(seen.unscored, 'run')} without a verdict, or not watched, could settle it"
    if not rule.reads_bound or len(seen.parts) != 1 or rule.file.interval != "task-dirichlet":
        return None
    adverse = seen.parts[0].low if rule.is_floor else seen.parts[0].high
    values, limit, threshold = [float(value) for value in adverse.values], adverse.lower_limit, rule.threshold
    if not rule.is_floor:  # seen from the other end
        values, threshold = [1 + limit - value for value in values], 1 + limit - threshold
    more = tasks_to_pass(values, adverse.tasks, float(threshold), alpha=rule.alpha, power=POWER, lower_limit=limit)
    if more is None:
        return "the estimate does not meet it: more tasks like these would not make it pass"
    return f"{more:,} more {'task' if more == 1 else 'tasks'} like these would make it pass with chance {POWER:g}"


def _passes_without_gaps(rule: Rule, seen: Observation) -> bool:
    """Whether the rule passes at the completion that speaks most for the candidate."""
    if not rule.reads_bound:
        best = seen.high if rule.is_floor else seen.low
        return best is not None and (best >= rule.threshold if rule.is_floor else best <= rule.threshold)
    part = seen.parts[0]
    if len(seen.parts) > 1:
        return False
    ends = (part.high if rule.is_floor else part.low).ends(rule.file.interval, rule.alpha)
    if ends is None:
        return False
    return ends[0] > rule.threshold if rule.is_floor else ends[1] < rule.threshold
