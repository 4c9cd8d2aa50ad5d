"""Events that must not happen: none seen in N trials is a bound on their rate, not a rate of zero.

Repeats of one task are not independent trials: an event may hide in few tasks and be seen in each of their runs, or in
none. With tasks as trials a bound holds however events cluster; with runs as trials it holds if runs are independent.
Any event observed is a veto whatever the bound, and a check that did not run is missing, not an event that did not
happen: such a task is no trial here.
"""

from dataclasses import dataclass
from math import ceil, log, log1p

from passhat.stats.intervals import tail_level

BY_TASK = "tasks"
BY_RUN = "runs, if they are independent"


@dataclass(frozen=True, slots=True)
class EventBound:
    """At most how often an event happens, with one-sided confidence; `upper` is None without a trial."""

    events: int
    trials: int
    unit: str  # what a trial is: BY_TASK or BY_RUN
    upper: float | None
    confidence: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RareEvents:
    """Both bounds: on the chance that a task shows an event in its runs, which a gate reads, and on that of a run."""

    by_task: EventBound
    by_run: EventBound


def event_bound(events: int, trials: int, unit: str, confidence: float = 0.95) -> EventBound:
    """The one-sided upper bound of Clopper and Pearson (1934); without an event it is 1 - (1 - confidence)^(1/trials).

    ValueError unless 0 <= events <= trials and the confidence lies in (0, 1).

    >>> round(event_bound(0, 59, BY_TASK).upper, 4), event_bound(0, 0, BY_TASK).upper
    (0.0495, None)
    """
    from scipy.special import betainccinv

    beyond = 2 * tail_level(confidence)
    if not 0 <= events <= trials:
        raise ValueError(f"{events} events in {trials} trials")
    if not trials:
        return EventBound(0, 0, unit, None, confidence, "no trials")
    upper = float(betainccinv(events + 1, trials - events, beyond)) if events < trials else 1.0
    return EventBound(events, trials, unit, upper, confidence)


def rare_events(
    tasks_with_event: int, tasks: int, runs_with_event: int, runs: int, confidence: float = 0.95
) -> RareEvents:
    """Bound a rare event by tasks and by runs, each one-sided at `confidence`.

    The bound by task is on the chance that a new task shows at least one event in as many runs as these tasks had, and
    so on the rate of a run as well, for any clustering. More runs find more events but do not tighten it; more tasks
    do. ValueError when the counts contradict each other.

    >>> bounds = rare_events(0, 100, 0, 1000)
    >>> round(bounds.by_task.upper, 4), round(bounds.by_run.upper, 4)
    (0.0295, 0.003)
    """
    if not (tasks_with_event <= runs_with_event and tasks <= runs and (tasks_with_event > 0) == (runs_with_event > 0)):
        raise ValueError(
            f"{tasks_with_event} of {tasks} tasks and {runs_with_event} of {runs} runs cannot be counts of one campaign"
        )
    return RareEvents(
        event_bound(tasks_with_event, tasks, BY_TASK, confidence),
        event_bound(runs_with_event, runs, BY_RUN, confidence),
    )


def trials_needed(highest_rate: float, confidence: float = 0.95) -> int:
    """The fewest trials without an event that bound its rate by `highest_rate`: (1 - rate)^N <= 1 - confidence.

    ValueError unless the rate and the confidence lie in (0, 1).

    >>> [trials_needed(rate) for rate in (0.05, 0.01, 0.001)]
    [59, 299, 2995]
    """
    beyond = 2 * tail_level(confidence)
    if not 0 < highest_rate < 1:
        raise ValueError(f"a rate to stay below lies between 0 and 1, found {highest_rate}")
    # a quotient that is whole but for rounding is that whole number
    return max(1, ceil(log(beyond) / log1p(-highest_rate) * (1 - 1e-13)))


def chance_of_no_event(share_of_bad_tasks: float, rate_in_bad_tasks: float, tasks: int, runs_per_task: int) -> float:
    """The chance that T random tasks with n runs each show no event, when events happen only in a share of the tasks.

    (1 - s (1 - (1 - r)^n))^T: what makes runs poor trials. ValueError for shares outside [0, 1] or negative counts.

    >>> round(chance_of_no_event(0.02, 0.5, tasks=100, runs_per_task=10), 3)  # a bound of .003 by run, a rate of .01
    0.133
    """
    if not (0 <= share_of_bad_tasks <= 1 and 0 <= rate_in_bad_tasks <= 1 and tasks >= 0 and runs_per_task >= 0):
        raise ValueError(
            f"share {share_of_bad_tasks} and rate {rate_in_bad_tasks} lie in [0, 1], "
            f"{tasks} tasks and {runs_per_task} runs are at least 0"
        )
    return float((1 - share_of_bad_tasks * (1 - (1 - rate_in_bad_tasks) ** runs_per_task)) ** tasks)
