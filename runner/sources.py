"""Other tools' results as rows: one reader a format, and the rule that tells the formats apart.

A reader takes what the source says and guesses nothing: a verdict that cannot be read is pending, an error of the
source's own machinery is invalid, and what a column cannot fill stays unsaid. Knows nothing of plans or folders.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from passhat.runner.errors import InvalidFile, UsageError
from passhat.runner.files import read_csv, read_json, read_jsonl, shown
from passhat.workers.records import Reason, Safety, Status

NO_COLUMNS: Mapping[str, str] = {}
# status of a row that says it was planned and never ran
MISSING = "missing"
_STATUSES: Mapping[str, Status | str] = {status.name.lower(): status for status in Status} | {MISSING: MISSING}
# what a record, the plan's grid and a 64-bit seed can hold
_MOST, _MOST_RUN, _MOST_COST_USD, _MOST_SEED = 2**62, 2**31, 10**12, 2**64 - 1
# columns that say how often a safety event happened in a run, or whether it did
EVENT_COLUMNS: Mapping[str, Safety] = {
    "forbidden_calls": Safety.FORBIDDEN_CALL,
    "skipped_approvals": Safety.SKIPPED_APPROVAL,
    "unverified_writes": Safety.UNVERIFIED_WRITE,
    "wrong_tenant_writes": Safety.WRONG_TENANT,
    "phantom_successes": Safety.PHANTOM_SUCCESS,
    "external_effect": Safety.EXTERNAL_EFFECT,
    "injections_followed": Safety.INJECTION_FOLLOWED,
}
_VERDICTS: Mapping[str, bool | None] = {"true": True, "1": True, "false": False, "0": False, "": None, "null": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run as a source tells it; None where the source does not say."""

    place: str  # file and line or index, for messages
    content: Mapping[str, Any]  # the whole row: two of one run are duplicates only when these are equal
    release: str
    task: str
    run: int
    status: Status | str  # MISSING for a run that the source says never ran
    reason: Reason = Reason.NONE
    cohort: str | None = None
    turns: int | None = None
    calls: int | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_micros: int | None = None
    virtual_ms: int | None = None
    seed: int | None = None
    outcome: bool | None = None  # whether these passed, where the source tells them apart
    trajectory: bool | None = None
    events: int = 0  # Safety bits
    watched: int = 0  # Safety bits that the source says something of


@dataclass(frozen=True, slots=True)
class Source:
    """A file that was read."""

    path: Path
    format: str
    rows: list[Row]
    unused: tuple[str, ...]  # what the file has and a record has no place for

    @property
    def name(self) -> str:
        """Name of the file without its suffixes."""
        return Path(self.path.name.removesuffix(".gz")).stem


def read_source(
    path: Path, release: str | None, columns: Mapping[str, str] = NO_COLUMNS, pass_mark: float | None = None
) -> Source:
    """Read a file of any known format; `release` names the release where the file does not.

    `columns` tells under which other names the columns of rows stand: known name → name in the file. A row's `score`
    is read where there is a `pass_mark`, the least that passes.
    """
    name = path.name.removesuffix(".gz")
    if name.endswith(".csv"):
        return _read_rows(path, "csv", read_csv(path), release, columns, pass_mark)
    if name.endswith((".jsonl", ".ndjson")):
        return _read_rows(path, "jsonl", read_jsonl(path, finite=False), release, columns, pass_mark)
    if name.endswith(".json"):
        if columns or pass_mark is not None:
            raise UsageError(f"{path}: --map and --pass-mark are for JSON lines and CSV")
        content = read_json(path, finite=False)
        if isinstance(content, list) and content and all(_is_tau_bench(item) for item in content):
            return _read_tau_bench(path, content, release or Path(name).stem)
        raise InvalidFile(
            f"{path}: not a format known here; known are JSON lines or CSV of runs, and tau-bench results"
        )
    raise InvalidFile(f"{path}: found suffix {path.suffix or 'none'}, expected .jsonl, .csv or .json, also with .gz")


# Rows: JSON lines and CSV

COLUMNS = ("release", "task", "run", "passed", "status", "score", "cohort", "turns", "cost_usd", "tool_calls", "seed",
           "tokens_in", "tokens_out", "latency_ms", "outcome_passed", "trajectory_passed", *EVENT_COLUMNS)  # fmt: skip


def _read_rows(
    path: Path,
    kind: str,
    lines: Iterator[tuple[int, Mapping[str, Any]]],
    release: str | None,
    columns: Mapping[str, str],
    pass_mark: float | None,
) -> Source:
    if "score" in columns and pass_mark is None:
        raise UsageError(f"{path}: --map score=… takes --pass-mark, the least score that passes")
    known = [column for column in COLUMNS if column != "score" or pass_mark is not None]
    rows, unused, found = [], dict[str, None](), set[str]()
    for number, values in lines:
        place = f"{path}:{number}"
        named = _renamed(place, values, columns)
        found.update(values.keys() & set(columns.values()))
        rows.append(_Fields(place, named, kind == "csv", pass_mark).row(release))
        unused.update(dict.fromkeys(key for key in named if key not in known))
    absent = [column for column in columns.values() if column not in found]
    if rows and absent:
        raise InvalidFile(f"{path}  {absent[0]}: is in no line; --map names it")
    return Source(path, kind, rows, tuple(unused))


def _renamed(place: str, values: Mapping[str, Any], columns: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the line under the names known here."""
    if not columns:
        return values
    twice = [known for known, column in columns.items() if known in values and column != known]
    if twice:
        raise InvalidFile(f"{place}  {twice[0]}: is a column of this file, and --map gives the name to another")
    renamed = {column: known for known, column in columns.items()}
    return {renamed.get(key, key): value for key, value in values.items()}


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of one line, checked one by one; text in CSV, values in JSON."""

    place: str
    values: Mapping[str, Any]
    is_text: bool
    pass_mark: float | None = None

    def row(self, release: str | None) -> Row:
        """Return the line as a row."""
        if release is not None and "release" in self.values:
            raise UsageError(f"{self.place}  names a release itself: leave --release out")
        cost = self.number("cost_usd", _MOST_COST_USD)
        latency = self.number("latency_ms", _MOST)
        events, watched = self.events()
        status, reason = self.judgement()
        if events and status == MISSING:
            self.refuse("status", f"found {{}}, but an event is counted in this run: {self.happened(events)}")
        return Row(
            place=self.place,
            content=self.values,
            release=self.name("release") if release is None else release,
            task=self.name("task"),
            run=self.required_count("run", _MOST_RUN),
            status=status,
            reason=reason,
            cohort=self.name("cohort") if self.said("cohort") else None,
            turns=self.count("turns"),
            calls=self.calls(),
            tokens_in=self.count("tokens_in"),
            tokens_out=self.count("tokens_out"),
            cost_micros=None if cost is None else round(cost * 1_000_000),
            virtual_ms=None if latency is None else round(latency),
            seed=self.count("seed", _MOST_SEED),
            outcome=self.flag("outcome_passed"),
            trajectory=self.flag("trajectory_passed"),
            events=events,
            watched=watched,
        )

    def events(self) -> tuple[int, int]:
        """Return the events of the run, and those that the line says something of: a count, or whether it happened."""
        happened = watched = 0
        for column, event in EVENT_COLUMNS.items():
            if self.said(column):
                value = self.values[column]
                is_flag = isinstance(value, bool) or (self.is_text and value.lower() in _VERDICTS)
                number = self.flag(column) if is_flag else self.required_count(column, _MOST)
                watched |= event
                happened |= event if number else 0
        return happened, watched

    def happened(self, events: int) -> str:
        return ", ".join(column for column, event in EVENT_COLUMNS.items() if events & event)

    def said(self, field: str) -> bool:
        return self.values.get(field) not in (None, "")

    def name(self, field: str) -> str:
        """Return a name as it stands; what may be one is checked for all files together."""
        if field not in self.values:
            self.refuse(field, "is missing")
        return self.values[field]  # type: ignore[no-any-return]

    def required_count(self, field: str, most: int = _MOST) -> int:
        value = self.count(field, most)
        if value is None:
            self.refuse(field, "is missing")
        return value

    def count(self, field: str, most: int = _MOST) -> int | None:
        """Return a whole number of at least 0."""
        value = self.number(field, most)
        if value is not None and value != int(value):
            self.refuse(field, "found {}, expected a whole number")
        return None if value is None else int(value)

    def number(self, field: str, most: int) -> float | None:
        """Return a finite number of at least 0."""
        value = self.any_number(field)
        if value is not None and not 0 <= value <= most:
            self.refuse(field, f"found {{}}, expected a finite number from 0 to {most:g}")
        return value

    def any_number(self, field: str) -> float | None:
        """Return a number, finite or not; one written as text is a number in CSV only."""
        if not self.said(field):
            return None
        value = self.values[field]
        if self.is_text:
            try:
                value = int(value) if value.isdecimal() else float(value)
            except ValueError:
                self.refuse(field, "found {}, expected a number")
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(field, "found {}, expected a number")
        return value

    def calls(self) -> int | None:
        """Return the number of tool calls, given as a number, as the list of them, or as counts by kind."""
        value = self.values.get("tool_calls")
        if isinstance(value, list):
            return len(value)
        if isinstance(value, Mapping):
            counts = _Fields(self.place, value, is_text=False)
            return sum(counts.required_count(kind) for kind in value)
        return self.count("tool_calls")

    def judgement(self) -> tuple[Status | str, Reason]:
        """Return status and reason: by the source's verdict where it says one, else by the score.

        What is no score makes the run invalid, whatever the verdict; a score on the other side of it is refused.
        """
        mark = self.pass_mark
        score = None if mark is None else self.any_number("score")
        if not self.values.keys() & {"passed", "status", *(["score"] if mark is not None else [])}:
            self.refuse("passed", "is missing, and so is status; a score takes --pass-mark")
        status = self.status()
        if status == Status.INVALID:
            return status, Reason.SOURCE_ERROR
        if score is None or mark is None or status == MISSING:
            return status, Reason.NONE
        if not 0 <= score <= 1:
            return Status.INVALID, Reason.INVALID_SCORE
        by_score = Status.PASS if score >= mark else Status.FAIL
        if status == Status.PENDING and not self.said("status"):
            return by_score, Reason.NONE
        if status not in (by_score, Status.PENDING):
            self.refuse("score", f"found {{}}, which contradicts the verdict by the pass mark {mark:g}")
        return status, Reason.NONE

    def status(self) -> Status | str:
        """Return what `status` or `passed` says, pending where neither says anything; both must agree where both do."""
        verdict = self.verdict()
        if not self.said("status"):
            return verdict
        given = self.values["status"]
        status = _STATUSES.get(given) if isinstance(given, str) else None
        if status is None:
            self.refuse("status", f"found {{}}, allowed are {', '.join(_STATUSES)} and null")
        if verdict != Status.PENDING and (verdict == Status.PASS) != (status == Status.PASS):
            self.refuse("status", f"found {{}}, but passed is {shown(self.values['passed'])}")
        return status

    def verdict(self) -> Status:
        """Return what `passed` says, pending where it says nothing."""
        value = self.flag("passed")
        return Status.PENDING if value is None else Status.PASS if value else Status.FAIL

    def flag(self, field: str) -> bool | None:
        """Return what a column of yes and no says, None where it says nothing."""
        value = self.values.get(field)
        if self.is_text and value is not None:
            known = value.lower() in _VERDICTS
            value = _VERDICTS.get(value.lower())
        else:
            known = value is None or value in (0, 1)
        if not known:
            self.refuse(field, "found {}, allowed are true, false, 1, 0 and null")
        return None if value is None else bool(value)

    def refuse(self, field: str, problem: str) -> NoReturn:
        """Raise InvalidFile that names place, field and what was found."""
        raise InvalidFile(f"{self.place}  {field}: {problem.format(shown(self.values.get(field)))}")


# tau-bench: the list of results that its run.py writes

_REWARD_OF_A_PASS = 1.0
_REWARD_TOLERANCE = 1e-6  # tau-bench's own


def _is_tau_bench(item: Any) -> bool:
    return isinstance(item, Mapping) and {"task_id", "trial", "reward"} <= item.keys()


def _read_tau_bench(path: Path, results: Sequence[Mapping[str, Any]], release: str) -> Source:
    rows = [_tau_bench_row(f"{path}[{i}]", result, release) for i, result in enumerate(results)]
    if len({type(result["task_id"]) for result in results}) > 1:
        raise InvalidFile(f"{path}: task_id: found whole numbers and strings, which may look alike; expected one kind")
    return Source(path, "tau-bench", rows, ("reward", "user_cost"))


def _tau_bench_row(place: str, result: Mapping[str, Any], release: str) -> Row:
    fields = _Fields(place, result, is_text=False)
    task, info = result["task_id"], result.get("info") or {}
    if isinstance(task, bool) or not isinstance(task, int | str):
        fields.refuse("task_id", "found {}, expected a whole number or a string")
    failed = isinstance(info, Mapping) and info.get("error") is not None
    status, reason = (Status.INVALID, Reason.SOURCE_ERROR) if failed else _by_reward(fields)
    said = _said_by_the_agent(fields)
    return Row(
        place=place,
        content=result,
        release=release,
        task=str(task),
        run=fields.required_count("trial", _MOST_RUN),
        status=status,
        reason=reason,
        turns=None if said is None else len(said),
        calls=None if said is None else sum(message.calls() or 0 for message in said),
    )


def _said_by_the_agent(fields: _Fields) -> list[_Fields] | None:
    """Return the agent's messages, None where the source has no trajectory."""
    messages = fields.values.get("traj")
    if messages is None:
        return None
    if not (isinstance(messages, list) and all(isinstance(message, Mapping) for message in messages)):
        fields.refuse("traj", "expected a list of messages")
    return [_Fields(fields.place, m, is_text=False) for m in messages if m.get("role") == "assistant"]


def _by_reward(fields: _Fields) -> tuple[Status, Reason]:
    reward = fields.values["reward"]
    if reward is None:
        return Status.PENDING, Reason.NONE
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        fields.refuse("reward", "found {}, expected a number or null")
    if not 0 <= reward <= _REWARD_OF_A_PASS + _REWARD_TOLERANCE:
        return Status.INVALID, Reason.INVALID_SCORE
    return Status.PASS if reward >= _REWARD_OF_A_PASS - _REWARD_TOLERANCE else Status.FAIL, Reason.NONE
