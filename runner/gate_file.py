"""The gate file: the question a release has to answer, with its thresholds, written down before the runs.

Each rule names one metric and one threshold. The catalogue says what a metric measures, and with it which thresholds
make sense. Knows nothing of campaigns or of how a metric is computed.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import rfc8785
from pydantic import BaseModel, ConfigDict, Field

from passhat.runner.errors import NotAcceptable, UsageError
from passhat.runner.files import Loc, invalid, nearest, read_yaml, shown, validate
from passhat.runner.names import fault_of

_FORMAT = 1  # of what a gate means: a default that changes makes another format
DEFAULT_ALPHA = 0.025
LEAST_ALPHA = 1e-6  # where bounds are still computed to many digits


class Kind(StrEnum):
    """What a metric is made of, which decides how it can be tested."""

    LEVEL = "level"  # a rate of the candidate: the mean over tasks of a value from 0 to 1
    DIFFERENCE = "difference"  # candidate minus baseline of such a rate, task by task
    EVENTS = "events"  # a number of runs
    EFFICIENCY = "efficiency"  # an order statistic of what runs used
    SHARE = "share"  # a share of the planned runs
    SIZE = "size"  # how much there is


@dataclass(frozen=True, slots=True)
class Metric:
    """An entry of the catalogue."""

    kind: Kind
    about: str


METRICS: Mapping[str, Metric] = {
    "attempt_rate": Metric(Kind.LEVEL, "share of the candidate's runs that pass, mean over tasks"),
    "pass_hat": Metric(Kind.LEVEL, "pass^k of the candidate"),
    "flaky_rate": Metric(Kind.LEVEL, "share of tasks of which the candidate passes some runs and fails others"),
    "right_unsanctioned_share": Metric(Kind.LEVEL, "share of runs with the right outcome by an unsanctioned route"),
    "delta_attempt_rate": Metric(Kind.DIFFERENCE, "attempt rate, candidate minus baseline"),
    "delta_pass_hat": Metric(Kind.DIFFERENCE, "pass^k, candidate minus baseline"),
    "delta_flaky_rate": Metric(Kind.DIFFERENCE, "flaky rate, candidate minus baseline"),
    "delta_right_unsanctioned_share": Metric(Kind.DIFFERENCE, "that share, candidate minus baseline"),
    "forbidden_calls": Metric(Kind.EVENTS, "runs of the candidate with a forbidden call, blocked or not"),
    "skipped_approvals": Metric(Kind.EVENTS, "runs of the candidate that skipped a required approval"),
    "unverified_writes": Metric(Kind.EVENTS, "runs of the candidate that wrote before verifying"),
    "wrong_tenant_writes": Metric(Kind.EVENTS, "runs of the candidate that wrote in another tenant"),
    "phantom_successes": Metric(Kind.EVENTS, "runs of the candidate that claim what was never confirmed"),
    "external_effects": Metric(Kind.EVENTS, "runs of the candidate in which a forbidden call changed something"),
    "injections_followed": Metric(Kind.EVENTS, "runs of the candidate that did what an injection ordered"),
    "cost_usd": Metric(Kind.EFFICIENCY, "cost of a run, in US dollars"),
    "turns": Metric(Kind.EFFICIENCY, "turns of a run"),
    "latency_ms": Metric(Kind.EFFICIENCY, "time of a run inside the environment, in milliseconds"),
    "missing_share": Metric(Kind.SHARE, "runs without a record or still to be judged: the larger share of the two"),
    "invalid_share": Metric(Kind.SHARE, "runs that faulted: the larger share of the two releases"),
    "tasks": Metric(Kind.SIZE, "tasks of which both releases have a run with a verdict"),
    "runs_per_task": Metric(Kind.SIZE, "the fewest runs planned of a task"),
}
_NEW = "new_"  # before the name of events: in cells where the baseline has none
EVENTS = tuple(name for name, metric in METRICS.items() if metric.kind is Kind.EVENTS)
NAMES = (*METRICS, *(f"{_NEW}{name}" for name in EVENTS))


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RuleFile(_File):
    """One rule: a metric, where it is read, and a threshold."""

    id: str = Field(min_length=1, description="Name of the rule.")
    metric: str = Field(description=f"One of {', '.join(NAMES)}.", json_schema_extra={"enum": list(NAMES)})
    at_least: float | None = Field(default=None, allow_inf_nan=False, description="The least value that passes.")
    at_most: float | None = Field(default=None, allow_inf_nan=False, description="The greatest value that passes.")
    k: int | None = Field(default=None, ge=1, le=1_000_000, description="Of pass^k.")
    cohort: str | None = Field(default=None, description="The cohort it is read in; by default all tasks.")
    standardised: bool = Field(default=False, description="In the proportions of the gate's `weights`.")
    by: Literal["bound", "estimate"] = Field(
        default="bound",
        description="Rates: whether the bound of an interval has to hold, or the estimate alone, for these tasks.",
    )
    interval: Literal["task-dirichlet", "bootstrap", "paired-t"] = Field(
        default="task-dirichlet", description="Which bound. Others than the default rest on assumptions, printed."
    )
    alpha: float | None = Field(
        default=None, ge=LEAST_ALPHA, lt=0.5, description="One-sided level of this rule's bound."
    )
    if_smaller: Literal["fail", "inconclusive"] = Field(
        default="fail", description="What a gain that is shown to be smaller than the threshold means."
    )
    statistic: Literal["median", "p90", "p95", "p99"] | None = Field(
        default=None, description="Of cost, turns and latency."
    )
    change: Literal["absolute", "relative"] | None = Field(
        default=None, description="Of cost, turns and latency: candidate against baseline; by default the candidate's."
    )
    max_rate: float | None = Field(
        default=None, gt=0, lt=1, description="Of events: what none seen must bound the rate of tasks with one by."
    )


class GateFile(_File):
    """A gate: GO when every rule passes, NO-GO when one fails."""

    name: str = Field(min_length=1, description="Name of the gate.")
    description: str = Field(default="", description="What it decides.")
    baseline: str | None = Field(default=None, description="Release that is in service.")
    candidate: str | None = Field(default=None, description="Release that is to replace it.")
    alpha: float = Field(
        default=DEFAULT_ALPHA, ge=LEAST_ALPHA, lt=0.5, description="One-sided level of every rule's bound."
    )
    weights: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = Field(
        default=None, min_length=1, description="Proportions of the cohorts for standardised rules."
    )
    unmatched: Literal["refuse", "allow"] = Field(
        default="refuse", description="What tasks that only one release ran mean."
    )
    rules: Annotated[list[RuleFile], Field(min_length=1)] = Field(description="All of them have to pass.")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that makes sense: what is asked of which metric."""

    file: RuleFile
    kind: Kind
    name: str  # of the metric, without "new_"
    is_new: bool
    threshold: Fraction
    is_floor: bool  # at_least; else at_most
    alpha: float
    reads_bound: bool


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate file that makes sense."""

    path: Path
    file: GateFile
    rules: tuple[Rule, ...]

    @property
    def content(self) -> dict[str, Any]:
        """All the file says as JSON values; without defaults, so that a field added later changes no digest."""
        return {"format": _FORMAT, **self.file.model_dump(mode="json", exclude_defaults=True)}

    def names(
        self, baseline: str | None = None, candidate: str | None = None, *, campaigns: int = 1
    ) -> tuple[str | None, str | None]:
        """Return baseline and candidate as the file or whoever asks has them.

        NotAcceptable where the two differ; UsageError when neither names anything and one campaign has both.
        """
        names = (
            _agreed(self.path, "baseline", self.file.baseline, baseline),
            _agreed(self.path, "candidate", self.file.candidate, candidate),
        )
        if campaigns == 1 and names == (None, None):
            raise UsageError(f"{self.path}: names neither baseline nor candidate, and nor do --base and --candidate")
        return names

    @property
    def digest(self) -> str:
        """The digest of the content: how the file is written down does not matter."""
        return digest_of(self.content)


def _agreed(path: Path, field: str, declared: str | None, asked: str | None) -> str | None:
    if declared is not None and asked not in (None, declared):
        raise NotAcceptable(f"{path}  {field}: declared is {shown(declared)}, asked for {shown(asked)}")
    return declared if asked is None else asked


def digest_of(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a gate's content in canonical JSON (RFC 8785)."""
    return f"sha256:{hashlib.sha256(rfc8785.dumps(content)).hexdigest()}"


def load_gate(path: Path) -> Gate:
    """Return the gate of a file; raise InvalidFile that lists everything that is wrong with it."""
    document = read_yaml(path)
    file = validate(GateFile, document)
    problems = [document.problem(loc, text) for loc, text in _problems(file)]
    if problems:
        raise invalid(problems)
    return Gate(path, file, tuple(_rule(file, rule) for rule in file.rules))


def _problems(file: GateFile) -> Iterator[tuple[Loc, str]]:
    """Yield what makes no sense in a file whose fields are each of the right form."""
    seen: set[str] = set()
    if fault := fault_of(file.name):
        yield ("name",), f"found {shown(file.name)}, {fault}"
    for number, rule in enumerate(file.rules):
        loc: Loc = ("rules", number)
        if rule.id in seen:
            yield (*loc, "id"), f"found {shown(rule.id)} a second time"
        seen.add(rule.id)
        if fault := fault_of(rule.id):
            yield (*loc, "id"), f"found {shown(rule.id)}, {fault}"
        if rule.metric not in NAMES:
            yield (*loc, "metric"), f"found {shown(rule.metric)}; {nearest(rule.metric, NAMES)}"
            continue
        for field, text in _misfits(file, rule, METRICS[rule.metric.removeprefix(_NEW)].kind):
            yield (*loc, field), text
    if file.weights is not None and not any(file.weights.values()):
        yield ("weights",), "all are 0, expected at least one above"


def _misfits(file: GateFile, rule: RuleFile, kind: Kind) -> Iterator[tuple[str, str]]:
    """Yield the fields of a rule that do not go with its metric, with what is allowed."""
    if rule.at_least is None and rule.at_most is None:
        yield "at_least", "is missing, and so is at_most: expected one of them"
    elif rule.at_least is not None and rule.at_most is not None:
        yield "at_most", "is given beside at_least: expected one of them"
    field = "at_most" if rule.at_least is None else "at_least"
    threshold = getattr(rule, field)
    if threshold is not None and (range_of := _range(rule, kind)) and not range_of[0] <= threshold <= range_of[1]:
        yield field, f"found {threshold:g}, expected a number from {range_of[0]:g} to {range_of[1]:g}"
    if threshold is not None and kind in (Kind.EVENTS, Kind.SIZE) and threshold != int(threshold):
        yield field, f"found {threshold:g}, expected a whole number"
    needs_k = rule.metric.endswith("pass_hat")
    if needs_k and rule.k is None:
        yield "k", "is missing"
    if kind is Kind.EFFICIENCY and rule.statistic is None:
        yield "statistic", "is missing; allowed are median, p90, p95, p99"
    if kind is Kind.EVENTS and rule.at_most is None:
        yield "at_least", "events can only be at_most something"
    if rule.standardised and file.weights is None:
        yield "standardised", "the gate has no weights"
    if rule.standardised and rule.cohort is not None:
        yield "cohort", "a standardised rate is of all cohorts"
    rates = kind in (Kind.LEVEL, Kind.DIFFERENCE)
    allowed = {
        "k": needs_k,
        "standardised": rates,
        "by": rates,
        "interval": rates and rule.by == "bound" and not rule.standardised,
        "alpha": (rates and rule.by == "bound") or rule.max_rate is not None,
        "if_smaller": kind is Kind.DIFFERENCE and rule.by == "bound" and (rule.at_least or -1) >= 0,
        "statistic": kind is Kind.EFFICIENCY,
        "change": kind is Kind.EFFICIENCY,
        "max_rate": kind is Kind.EVENTS and rule.at_most == 0 and rule.metric.removeprefix(_NEW) == rule.metric,
    }
    for field in rule.model_fields_set:
        if not allowed.get(field, True) and getattr(rule, field) != RuleFile.model_fields[field].default:
            yield field, f"does not go with {rule.metric}{' by estimate' if rates and rule.by == 'estimate' else ''}"
    if rule.interval == "paired-t" and kind is not Kind.DIFFERENCE:
        yield "interval", "paired-t is of differences"


def _range(rule: RuleFile, kind: Kind) -> tuple[float, float] | None:
    if kind in (Kind.LEVEL, Kind.SHARE):
        return 0, 1
    if kind is Kind.DIFFERENCE:
        return -1, 1
    if kind is Kind.EFFICIENCY and rule.change is not None:
        return None
    return 0, float("inf")


def _rule(file: GateFile, rule: RuleFile) -> Rule:
    name = rule.metric.removeprefix(_NEW)
    kind = METRICS[name].kind
    threshold = rule.at_least if rule.at_least is not None else rule.at_most
    return Rule(
        file=rule,
        kind=kind,
        name=name,
        is_new=rule.metric != name,
        threshold=Fraction(str(threshold)),
        is_floor=rule.at_least is not None,
        alpha=rule.alpha or file.alpha,
        reads_bound=kind in (Kind.LEVEL, Kind.DIFFERENCE) and rule.by == "bound",
    )
