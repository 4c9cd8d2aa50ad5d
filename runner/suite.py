"""Suites: which tasks to run, in which environment and within which limits, from a file or built in.

Tasks stand in JSONL files beside the suite, or are generated when they are asked for. Knows nothing of releases, plans
or results.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import rfc8785
from pydantic import BaseModel, ConfigDict, Field

from passhat.runner.errors import InvalidFile, NothingMatched, UsageError
from passhat.runner.files import Document, Loc, invalid, nearest, read_jsonl, read_yaml, shown, validate
from passhat.runner.names import refuse_lookalikes
from passhat.runner.targets import is_target
from passhat.workers.contract import Contract, Task, task_content, task_digest
from passhat.workers.desk_tasks import DEFAULT_WEIGHTS, DeskTasks
from passhat.workers.order import Hermetic, Limits
from passhat.workers.records import Level

OnMissing = Literal["fail", "exclude"]

DESK = "desk"  # name of the built-in environment, and of the built-in suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What a campaign runs."""

    name: str
    version: str
    description: str
    environment: str  # "desk", or "module:factory"
    tasks: Sequence[Task]  # a tuple, or DeskTasks that makes them one by one
    declared_tasks: int  # how many there are before some are chosen
    runs_per_task: int
    limits: Limits
    hermetic: Hermetic
    on_missing: OnMissing
    max_missing: float | None  # share of the planned runs that may be excluded; None unless `on_missing` is "exclude"
    path: Path | None  # of the suite file; None when built in


class Catalogue(NamedTuple):
    """What identifies a suite: its tasks in order, and one digest of the whole."""

    ids: tuple[str, ...]
    cohorts: tuple[str, ...]  # of each task
    task_digests: tuple[bytes, ...]  # 32 bytes each
    digest: str  # "sha256:…"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GenerateFile(_File):
    """Tasks of the built-in desk, made from a seed."""

    seed: int = Field(default=1, ge=0, description="The same seed gives the same tasks.")
    tasks: int = Field(default=200, ge=1, le=100_000_000, description="How many tasks to make.")
    cohorts: dict[str, Annotated[float, Field(gt=0)]] | None = Field(
        default=None, min_length=1, description=f"Weight of each cohort; by default {dict(DEFAULT_WEIGHTS)}."
    )


_LIMITS = Limits()


class LimitsFile(_File):
    """Where a run is ended. What ends there has failed."""

    turns: int = Field(default=_LIMITS.turns, ge=1, description="Most tool calls of a run.")
    cost_usd: float | None = Field(default=None, ge=0, description="Most a run may cost, in US dollars.")
    virtual_seconds: float = Field(
        default=_LIMITS.virtual_ms / 1000, gt=0, description="Most time inside the environment, in its own seconds."
    )
    seconds: float = Field(
        default=_LIMITS.seconds, gt=0, description="Most wall-clock time: a guard, not part of the suite."
    )

    def to_limits(self) -> Limits:
        virtual_ms = round(self.virtual_seconds * 1000)
        return Limits(turns=self.turns, cost_usd=self.cost_usd, virtual_ms=virtual_ms, seconds=self.seconds)


_HERMETIC = Hermetic()


class HermeticFile(_File):
    """How the world of a run is kept to itself. A violation by the environment makes the run invalid."""

    environment: Literal["declared", "guarded", "confined"] = Field(
        default="guarded",
        description="declared: on its author's word; guarded: slips are caught; confined: under bubblewrap.",
    )
    agent: Literal["open", "guarded"] = Field(
        default="open", description="guarded: an agent that uses network, files, programs or threads fails."
    )
    replay_every: int = Field(
        default=_HERMETIC.replay_every, ge=0, description="One run in so many must repeat when played again; 0: none."
    )
    allow_degraded: bool = Field(
        default=False, description="Whether to go on with less where confined cannot be had; each record says so."
    )

    def to_hermetic(self) -> Hermetic:
        environment, agent = Level[self.environment.upper()], Level[self.agent.upper()]
        return Hermetic(environment, agent, self.replay_every, self.allow_degraded)


class SuiteFile(_File):
    """A suite of tasks: what to run, where, how often and within which limits."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["tasks"]}, {"required": ["generate"]}]})

    name: str = Field(min_length=1, description="Name of the suite.")
    version: str = Field(min_length=1, description='Version of the suite, in quotes: "1.0".')
    description: str = Field(default="", description="What the suite is for.")
    environment: str = Field(description='"desk", or "module:factory" of an environment of your own.')
    tasks: str | Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None, description="JSONL file or files with one task a line, relative to the suite file."
    )
    generate: GenerateFile | None = Field(default=None, description="Instead of `tasks`: tasks of the built-in desk.")
    runs: int = Field(default=4, ge=1, description="Runs of each task for each release.")
    limits: LimitsFile = Field(default=LimitsFile(), description="Where a run is ended.")
    hermetic: HermeticFile = Field(default=HermeticFile(), description="How the world of a run is kept to itself.")
    on_missing: OnMissing = Field(
        default="fail", description="Whether invalid and missing runs count as not passed or are left out."
    )
    max_missing: float | None = Field(
        default=None, ge=0, le=1, description="With `on_missing: exclude`: the greatest share that may be left out."
    )


_DESK_SUITE = SuiteFile(
    name=DESK,
    version="1",
    description="The built-in back-office desk, with tasks in five cohorts.",
    environment=DESK,
    generate=GenerateFile(),
)


def load_suite(
    name_or_path: str | Path,
    *,
    tasks: int | None = None,
    filter: str | None = None,  # noqa: A002 - named as on the command line
) -> Suite:
    """Return the built-in suite "desk", or the one of a file.

    `tasks` is how many to generate, or how many of the tasks of files to take, from the first; `filter` then keeps
    those whose id matches a pattern like "refund-*", or those of one cohort: "cohort=NAME".
    """
    if tasks is not None and tasks < 1:
        raise UsageError(f"--tasks: found {tasks}, expected at least 1")
    path = None if name_or_path == DESK else Path(name_or_path)
    file, listed = (_DESK_SUITE, ()) if path is None else _read_suite(path)
    chosen = _generate(file.generate, tasks) if file.generate else _first(listed, tasks, path)
    if filter is not None:
        chosen = _matching(chosen, filter)
    return Suite(
        name=file.name,
        version=file.version,
        description=file.description,
        environment=file.environment,
        tasks=chosen,
        declared_tasks=file.generate.tasks if file.generate else len(listed),
        runs_per_task=file.runs,
        limits=file.limits.to_limits(),
        hermetic=file.hermetic.to_hermetic(),
        on_missing=file.on_missing,
        max_missing=file.max_missing,
        path=path,
    )


def catalogue(suite: Suite) -> Catalogue:
    """Return ids, cohorts and digests of the tasks, and the digest of the suite.

    The suite's digest covers what the results depend on: environment, limits other than the wall-clock guard, and every
    task in order. It does not depend on names and versions, on formatting, on how tasks are spread over files, or on
    whether they were written or generated.
    """
    ids, cohorts, digests = [], [], []
    for task in suite.tasks:
        ids.append(task.id)
        cohorts.append(task.cohort)
        digests.append(_digest(task))
    limits = {name: value for name, value in asdict(suite.limits).items() if value is not None and name != "seconds"}
    content: Any = {"environment": suite.environment, "limits": limits, "tasks": [digest.hex() for digest in digests]}
    digest = f"sha256:{hashlib.sha256(rfc8785.dumps(content)).hexdigest()}"
    return Catalogue(tuple(ids), tuple(cohorts), tuple(digests), digest)


def _digest(task: Task) -> bytes:
    try:
        return task_digest(task)
    except ValueError as error:
        field = ".".join(map(str, _without_canonical_form(task_content(task))))
        raise InvalidFile(f"task {shown(task.id)}  {field}: {error}; write it as a string") from None


def _without_canonical_form(value: Any) -> Loc:
    """Return the place of the first value that canonical JSON cannot hold."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, part in parts:
        try:
            rfc8785.dumps(part)
        except ValueError:
            return (key, *_without_canonical_form(part))
    return ()


# The suite file


def _read_suite(path: Path) -> tuple[SuiteFile, tuple[Task, ...]]:
    if not path.is_file():
        raise UsageError(f"{path}: no such suite file; the built-in suite is called {DESK}")
    document = read_yaml(path)
    file = validate(SuiteFile, document)
    problems = [document.problem(loc, text) for loc, text in _contradictions(file)]
    if problems:
        raise invalid(problems)
    return file, read_tasks(list(_task_files(file, document)))


def _contradictions(file: SuiteFile) -> Iterator[tuple[Loc, str]]:
    """Yield what is wrong between the keys of a suite file, each of which is right in itself."""
    if file.environment != DESK and not is_target(file.environment):
        yield ("environment",), f"found {shown(file.environment)}, expected desk or module:factory"
    if file.tasks is None and file.generate is None:
        yield (), "expected either tasks or generate, found neither"
    if file.generate is not None:
        if file.tasks is not None:
            yield ("generate",), "expected either tasks or generate, found both"
        if file.environment != DESK:
            yield ("generate",), f"makes tasks of the environment desk, found environment {shown(file.environment)}"
        for name in file.generate.cohorts or ():
            if name not in DEFAULT_WEIGHTS:
                yield ("generate", "cohorts", name), f"no such cohort; {nearest(name, DEFAULT_WEIGHTS)}"
    if file.on_missing == "exclude" and file.max_missing is None:
        yield ("on_missing",), "exclude needs max_missing, the greatest share of runs that may be left out"
    if file.on_missing != "exclude" and file.max_missing is not None:
        yield ("max_missing",), "has a meaning only with on_missing: exclude"


def _task_files(file: SuiteFile, document: Document) -> Iterator[Path]:
    for index, name in enumerate([file.tasks] if isinstance(file.tasks, str) else file.tasks or ()):
        path = document.path.parent / name
        if not path.is_file():
            loc: Loc = ("tasks",) if isinstance(file.tasks, str) else ("tasks", index)
            raise InvalidFile(document.problem(loc, f"no such file: {path}"))
        yield path


# Tasks


def read_tasks(paths: Sequence[Path]) -> tuple[Task, ...]:
    """Return the tasks of JSONL files in order; raise InvalidFile that lists what is wrong with them."""
    documents = [Document(path, record, {(): line}) for path in paths for line, record in read_jsonl(path)]
    ids = ((document.data["id"], document.place()) for document in documents if "id" in document.data)
    refuse_lookalikes("task id", ids, unique=True)
    tasks, problems = [], []
    for document in documents:
        try:
            tasks.append(_read_task(document))
        except InvalidFile as error:
            problems += str(error).split("\n")
    if problems:
        raise invalid(problems)
    refuse_lookalikes("cohort", ((task.cohort, doc.place()) for task, doc in zip(tasks, documents, strict=True)))
    return tuple(tasks)


def _read_task(document: Document) -> Task:
    task = validate(Task, document)
    problems = [document.problem(("contract", *loc), text) for loc, text in _impossible(task.contract)]
    if problems:
        raise invalid(problems)
    return task


def _impossible(contract: Contract) -> Iterator[tuple[Loc, str]]:
    """Yield what no run can meet in a contract, or what means nothing there."""
    for name, ceiling in asdict(contract.ceilings).items():
        if ceiling is not None and ceiling < 0:
            yield ("ceilings", name), f"found {ceiling}, expected at least 0"
    for claim in contract.confirmed_by:
        if claim not in contract.outcomes:
            yield ("confirmed_by", claim), f"not one of the right outcomes ({', '.join(contract.outcomes)})"
    for index, check in enumerate(contract.payload):
        if check.receipt and check.equals is not None:
            yield ("payload", index, "equals"), "not beside `receipt`, which says what the value must be"
        for name, tolerance in (("absolute", check.absolute), ("relative", check.relative)):
            if tolerance < 0:
                yield ("payload", index, name), f"found {tolerance}, expected at least 0"
    for index, rule in enumerate(contract.must_call):
        if rule.at_least < 0:
            yield ("must_call", index, "at_least"), f"found {rule.at_least}, expected at least 0"
        if rule.at_most is not None and rule.at_most < rule.at_least:
            yield ("must_call", index, "at_most"), f"found {rule.at_most}, expected at least {rule.at_least} (at_least)"


def _generate(file: GenerateFile, tasks: int | None) -> Sequence[Task]:
    return DeskTasks(file.seed, file.tasks if tasks is None else tasks, file.cohorts or DEFAULT_WEIGHTS)


def _first(listed: tuple[Task, ...], tasks: int | None, path: Path | None) -> tuple[Task, ...]:
    if not listed:
        raise InvalidFile(f"{path}: its task files hold no task")
    if tasks is not None and tasks > len(listed):
        raise UsageError(f"--tasks: found {tasks}, {path} has {len(listed)} tasks")
    return listed[:tasks]


def _matching(tasks: Sequence[Task], expression: str) -> tuple[Task, ...]:
    wanted = expression.removeprefix("cohort=")
    by_cohort = wanted != expression
    labels = _labels(tasks, by_cohort)
    kept = [i for i, label in enumerate(labels) if label == wanted or (not by_cohort and fnmatchcase(label, wanted))]
    if not kept:
        hint = f"; {nearest(wanted, set(labels))}" if by_cohort else ""
        raise NothingMatched(f"--filter {expression}: matches none of {len(tasks)} tasks{hint}")
    return tuple(tasks[index] for index in kept)


def _labels(tasks: Sequence[Task], by_cohort: bool) -> list[str]:
    """Return id or cohort of each task, without making tasks that are generated."""
    if isinstance(tasks, DeskTasks):
        label = tasks.cohort if by_cohort else tasks.id
        return [label(index) for index in range(len(tasks))]
    return [task.cohort if by_cohort else task.id for task in tasks]
