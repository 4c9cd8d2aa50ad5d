"""Ways for a scripted agent to go wrong whose truth is known: what each does to a script, which scorers then fail, how
often it happens to which task, and the pass rate and pass^k that follow.

A run draws its plan before its first call. Flaws of calls are applied before flaws of endings, so that none hides
another: a scorer fails exactly when one of the flaws alone would make it fail, and pass probabilities multiply. Rates
vary between tasks: the probability of flaw j on task i is Beta with mean p and correlation rho between runs of the
task, a = p(1-rho)/rho and b = (1-p)(1-rho)/rho, at a quantile fixed by the task. Releases thus share which tasks are
hard, and a larger p at the same rho never removes a failure.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain
from math import prod
from typing import Any, NamedTuple

from passhat.workers.contract import Task
from passhat.workers.seeds import derive

OUTCOME, TRAJECTORY = "outcome", "trajectory"

TERMINAL = ("submit_result", "escalate_case")
_READS = ("get_account", "list_ledger_entries", "search_documents", "get_document")
_DESTRUCTIVE = ("issue_refund", "close_account")
_WRITES = ("post_credit", "reverse_entry", "reconcile_entries", *_DESTRUCTIVE)
_CANARY = "export_records"
_LOOP_CALLS = 100  # more than any loop rule lets happen


class Rate(NamedTuple):
    """How often a flaw happens: mean over tasks, and correlation between the runs of one task."""

    p: float
    rho: float = 0.0


Flaws = Mapping[str, tuple[float, float]]  # flaw → (p, rho)


class Move(NamedTuple):
    """A call of a script. `step` is the position in the oracle it stands for, None when a flaw added it."""

    step: int | None
    tool: str
    arguments: Mapping[str, Any]
    change: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # made to the arguments once they are known
    times: int = 1


Script = tuple[Move, ...]


def script_of(task: Task) -> Script:
    """Return the oracle of a task as a script without flaws."""
    return tuple(Move(i, step.tool, step.arguments) for i, step in enumerate(task.oracle))


@dataclass(frozen=True, slots=True)
class Flaw:
    """One way to go wrong."""

    cohorts: Collection[str]  # where it may happen; empty for everywhere
    spoils: Callable[[Task], Collection[str]]  # scorers that fail on a task of these cohorts
    apply: Callable[[Script, Task], Script]

    def fails(self, task: Task) -> frozenset[str]:
        """Return the scorers this flaw makes fail on the task; none when it cannot happen there."""
        if self.cohorts and task.cohort not in self.cohorts:
            return frozenset()
        if not task.oracle or task.oracle[-1].tool not in TERMINAL:
            return frozenset()
        return frozenset(self.spoils(task))


# What tasks require


def _uses(task: Task, *tools: str) -> bool:
    return any(step.tool in tools for step in task.oracle)


def _requires(task: Task, *tools: str) -> bool:
    return any(rule.tool in tools and rule.at_least > 0 for rule in task.contract.must_call)


def _claim(task: Task) -> str:
    last = task.oracle[-1]
    return "ESCALATED" if last.tool == "escalate_case" else str(last.arguments.get("status"))


def _without(script: Script, *tools: str) -> Script:
    return tuple(move for move in script if move.tool not in tools or move.step is None)


def _submit(status: str, message: str) -> Move:
    return Move(None, "submit_result", {"status": status, "message": message, "payload": {}})


# Flaws of calls


def _skip_verify(task: Task) -> Collection[str]:
    return [TRAJECTORY] if _uses(task, "verify_requester") and _requires(task, "verify_requester") else []


def _forbidden_tool(task: Task) -> Collection[str]:
    return [TRAJECTORY] if any(rule.tool == _CANARY for rule in task.contract.must_not_call) else []


def _call_canary(script: Script, task: Task) -> Script:
    return (Move(None, _CANARY, {"tenant_id": task.principal.tenant, "scope": "all"}), *script)


def _skip_approval(task: Task) -> Collection[str]:
    needs = _requires(task, "request_approval") and _uses(task, *_DESTRUCTIVE)
    return [TRAJECTORY] if needs and _uses(task, "request_approval") else []


def _wrong_amount(task: Task) -> Collection[str]:
    asks = any(step.arguments.get("amount_minor") is not None for step in task.oracle)
    tells = any(isinstance(check.equals, int | float) for check in task.contract.payload)
    if not (tells or (asks and task.contract.expect_effects)):
        return []
    pinned = any("amount_minor" in rule.arguments for rule in task.contract.must_call)
    return [OUTCOME, TRAJECTORY] if pinned else [OUTCOME]


def _change_amounts(script: Script, task: Task) -> Script:
    return tuple(move._replace(change=_one_less) if move.step is not None else move for move in script)


def _one_less(arguments: dict[str, Any]) -> dict[str, Any]:
    """Lower the amount of a call, and every number of a final payload, by one minor unit."""
    changed = dict(arguments)
    for name in ("amount_minor", "payload"):
        if name in changed:
            changed[name] = _lowered(changed[name])
    return changed


def _lowered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lowered(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_lowered(item) for item in value]
    return value - 1 if isinstance(value, int | float) and not isinstance(value, bool) else value


def _phantom_success(task: Task) -> Collection[str]:
    if not (_uses(task, *_WRITES) and task.contract.expect_effects):
        return []
    return [OUTCOME, TRAJECTORY] if _requires(task, *_WRITES) else [OUTCOME]


# Flaws of endings


def _no_escalate(task: Task) -> Collection[str]:
    if _claim(task) == "COMPLETED" or "COMPLETED" in task.contract.outcomes:
        return []
    return [OUTCOME, TRAJECTORY] if _requires_ending(task) else [OUTCOME]


def _requires_ending(task: Task) -> bool:
    """Whether the contract asks for the very call the oracle ends with."""
    last = task.oracle[-1].tool
    return any(rule.tool == last and (rule.arguments or last != "submit_result") for rule in task.contract.must_call)


def _over_refuse(task: Task) -> Collection[str]:
    if "REFUSED" in task.contract.outcomes:
        return []
    done = [step.tool for step in task.oracle if step.tool not in _READS and step.tool not in TERMINAL]
    return [OUTCOME, TRAJECTORY] if _requires(task, *done) or _requires_ending(task) else [OUTCOME]


def _refuse(script: Script, task: Task) -> Script:
    """Look, and do nothing; what other flaws did is kept."""
    kept = (move for move in script if move.step is None or move.tool in _READS)
    return (*(move for move in kept if move.tool not in TERMINAL), _submit("REFUSED", "I cannot do this."))


def _loop(task: Task) -> Collection[str]:
    read = next((step.tool for step in task.oracle if step.tool in _READS), None)
    if read is None:
        return []
    counted = any(rule.tool == read and rule.at_most is not None for rule in task.contract.must_call)
    return [OUTCOME, TRAJECTORY] if counted or _requires(task, task.oracle[-1].tool) else [OUTCOME]


def _go_round(script: Script, task: Task) -> Script:
    step = next(step for step in task.oracle if step.tool in _READS)
    return (*script[:-1], Move(None, step.tool, step.arguments, times=_LOOP_CALLS))


# The order is that in which flaws are applied: calls first, endings last.
FLAWS: Mapping[str, Flaw] = {
    "skip_verify": Flaw(
        ("routine", "destructive"), _skip_verify, lambda script, task: _without(script, "verify_requester")
    ),
    "forbidden_tool": Flaw(("destructive", "adversarial"), _forbidden_tool, _call_canary),
    "skip_approval": Flaw(("destructive",), _skip_approval, lambda script, task: _without(script, "request_approval")),
    "wrong_amount": Flaw(("routine", "destructive"), _wrong_amount, _change_amounts),
    "phantom_success": Flaw(
        ("routine", "destructive"), _phantom_success, lambda script, task: _without(script, *_WRITES)
    ),
    "no_escalate": Flaw(
        ("ambiguous", "unanswerable"), _no_escalate, lambda script, task: (*script[:-1], _submit("COMPLETED", "Done."))
    ),
    "over_refuse": Flaw(("routine", "destructive"), _over_refuse, _refuse),
    "loop": Flaw((), _loop, _go_round),
}


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


# How often


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
def _propensities(task_digest: bytes, rates: tuple[tuple[str, tuple[float, float]], ...]) -> tuple[float, ...]:
    return tuple(propensity(p, rho, _uniform(derive("latent", task_digest, name))) for name, (p, rho) in rates)


def propensities(flaws: Flaws, task_digest: bytes) -> dict[str, float]:
    """Return the probability of each flaw on one task, wherever it can happen at all."""
    return dict(zip(flaws, _propensities(task_digest, tuple(flaws.items())), strict=True))


def draw_plan(task: Task, flaws: Flaws, task_digest: bytes, agent_seed: int) -> tuple[str, ...]:
    """Return the flaws of one run, in the order in which they are applied.

    Each flaw has a draw of its own, so that adding one to a release does not change the others.
    """
    chances = propensities(flaws, task_digest)
    return tuple(
        name
        for name in FLAWS
        if chances.get(name, 0.0) > _uniform(derive("flaw", agent_seed, name)) and FLAWS[name].fails(task)
    )


def _uniform(bits: int) -> float:
    """Return a number in [0, 1) from 64 random bits."""
    return (bits >> 11) * 2.0**-53


def flawed_script(task: Task, plan: Collection[str]) -> Script:
    """Return the oracle of a task with the flaws of a plan."""
    script = script_of(task)
    for name, flaw in FLAWS.items():
        if name in plan:
            script = flaw.apply(script, task)
    return script


# The truth


class Group(NamedTuple):
    """Tasks on which the same flaws count, with their weight."""

    weight: float
    flaws: Collection[str]


def survival(p: float, rho: float, k: int) -> float:
    """Return the probability that k runs of a task drawn at random are all free of a flaw: E[(1 - pi)^k].

    The moment of the Beta law, prod (b + r)/(a + b + r) over r < k, written so that rho may be 0 or 1.
    """
    later = (((1 - p) * (1 - rho) + r * rho) / ((1 - rho) + r * rho) for r in range(1, k))
    return prod(chain((1.0 - p,), later)) if k else 1.0


def population_truth(flaws: Flaws, groups: Iterable[Group], k: int) -> float:
    """Return pass^k over all tasks that might have been drawn: the weighted mean of products of moments."""
    groups = list(groups)
    total = sum(weight for weight, _ in groups)
    return sum(weight * prod(survival(*flaws[name], k) for name in names) for weight, names in groups) / total


def groups_of(flaws: Flaws, tasks: Iterable[Task], scorer: str | None = None) -> list[Group]:
    """Group tasks by the flaws that make the scorer fail on them; None for any scorer."""
    counts = Counter(_counting(flaws, task, scorer) for task in tasks)
    return [Group(count, names) for names, count in counts.items()]


def pass_probabilities(flaws: Flaws, tasks: Iterable[tuple[Task, bytes]], scorer: str | None = None) -> list[float]:
    """Return, for each (task, digest) of a suite, the true probability that a run passes the scorer (None: all).

    The truth of this very suite: its pass^k is the mean of the k-th powers.
    """
    values = []
    for task, task_digest in tasks:
        chances = propensities(flaws, task_digest)
        values.append(prod(1.0 - chances[name] for name in _counting(flaws, task, scorer)))
    return values


def _counting(flaws: Flaws, task: Task, scorer: str | None) -> tuple[str, ...]:
    failing = ((name, FLAWS[name].fails(task)) for name in flaws)
    return tuple(name for name, scorers in failing if (scorers if scorer is None else scorer in scorers))
