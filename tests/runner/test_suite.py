import gzip
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from passhat.runner.errors import InvalidFile, NothingMatched, UsageError
from passhat.runner.names import refuse_lookalikes
from passhat.runner.schemas import KINDS, schema
from passhat.runner.suite import Suite, catalogue, load_suite
from passhat.workers.contract import Contract, PayloadCheck, Task, task_content, task_digest
from passhat.workers.desk_tasks import DEFAULT_WEIGHTS, DeskTasks
from passhat.workers.order import Hermetic, Limits
from passhat.workers.records import Level

HEAD = """\
name: refunds
version: "1.0"
environment: desk
tasks: tasks.jsonl
"""
TWO = [{"id": "a", "request": "one"}, {"id": "b", "request": "two", "cohort": "hard", "inputs": {"n": 1, "x": 0.5}}]


def lines(records: Sequence[Any]) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


def save(folder: Path, head: str | bytes = HEAD, tasks: Sequence[Any] | bytes = TWO) -> Path:
    text = tasks if isinstance(tasks, str | bytes) else lines(tasks)
    for name, content in (("suite.yaml", head), ("tasks.jsonl", text)):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / "suite.yaml"


def refusal(path: Path, error: type[Exception] = InvalidFile, **options: Any) -> list[str]:
    with pytest.raises(error) as caught:
        load_suite(path, **options)
    return str(caught.value).replace(f"{path.parent}/", "").split("\n")


def fingerprint(suite: Suite) -> str:
    return catalogue(suite).digest


# Files


def test_a_suite_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    path = save(tmp_path)
    assert load_suite(path) == Suite(
        name="refunds",
        version="1.0",
        description="",
        environment="desk",
        tasks=(
            Task(id="a", request="one"),
            Task(id="b", request="two", cohort="hard", inputs={"n": 1, "x": 0.5}),
        ),
        declared_tasks=2,
        runs_per_task=4,
        limits=Limits(turns=50, cost_usd=None, virtual_ms=30 * 24 * 3600 * 1000, seconds=300.0),
        hermetic=Hermetic(Level.GUARDED, Level.OPEN, replay_every=100, allow_degraded=False),
        on_missing="fail",
        max_missing=None,
        path=path,
    )


def test_every_key_of_a_suite_file_is_taken(tmp_path: Path) -> None:
    head = """\
name: refunds
version: "2"
description: what it is for
environment: my_world:build
tasks: [tasks.jsonl]
runs: 8
limits: {turns: 30, cost_usd: .5, virtual_seconds: 90.5, seconds: 20}
hermetic: {environment: confined, agent: guarded, replay_every: 0, allow_degraded: true}
on_missing: exclude
max_missing: 0.02
"""
    suite = load_suite(str(save(tmp_path, head)))
    assert (suite.version, suite.description, suite.environment) == ("2", "what it is for", "my_world:build")
    assert (suite.runs_per_task, suite.on_missing, suite.max_missing) == (8, "exclude", 0.02)
    assert suite.limits == Limits(turns=30, cost_usd=0.5, virtual_ms=90_500, seconds=20.0)
    assert suite.hermetic == Hermetic(Level.CONFINED, Level.GUARDED, replay_every=0, allow_degraded=True)


def test_a_suite_saved_in_other_forms_has_the_same_tasks_and_fingerprint(tmp_path: Path) -> None:
    bom = b"\xef\xbb\xbf"
    plain_head, plain_tasks = HEAD.encode(), lines(TWO).encode()
    forms: dict[str, Callable[[bytes], bytes]] = {
        "plain": lambda text: text,
        "bom": lambda text: bom + text,
        "crlf": lambda text: text.replace(b"\n", b"\r\n"),
        "all": lambda text: bom + text.replace(b"\n", b"\r\n").removesuffix(b"\r\n") + b"\r\n \r\n ",
        "gzip": gzip.compress,
    }
    suites = {name: load_suite(save(tmp_path, form(plain_head), form(plain_tasks))) for name, form in forms.items()}
    for name, suite in suites.items():
        assert suite == suites["plain"], name
        assert catalogue(suite) == catalogue(suites["plain"]), name


def test_utf_16_is_refused_in_both_files(tmp_path: Path) -> None:
    assert refusal(save(tmp_path, HEAD.encode("utf-16"))) == [
        "suite.yaml: found UTF-16, expected UTF-8; save the file as UTF-8"
    ]
    assert refusal(save(tmp_path, HEAD, lines(TWO).encode("utf-16"))) == [
        "tasks.jsonl: found UTF-16, expected UTF-8; save the file as UTF-8"
    ]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085"])
def test_a_line_separator_inside_a_string_does_not_end_a_task(tmp_path: Path, separator: str) -> None:
    tasks = f'{{"id": "a", "request": "x{separator}y"}}\n{{"id": "b", "request": "z"}}\n'
    assert [task.request for task in load_suite(save(tmp_path, HEAD, tasks)).tasks] == [f"x{separator}y", "z"]


@pytest.mark.parametrize(
    ("head", "problems"),
    [
        (
            HEAD.replace('"1.0"', "1.0").replace("environment", "enviroment") + "runs: 0\n",
            [
                "suite.yaml:1  environment: missing",
                "suite.yaml:2  version: found 1.0, expected a string; put it in quotes",
                "suite.yaml:3  enviroment: unknown key; did you mean environment?",
                "suite.yaml:5  runs: found 0, expected at least 1",
            ],
        ),
        (HEAD.replace('"1.0"', "2"), ['suite.yaml:2  version: found 2, expected a string; write "2"']),
        (HEAD + "runs: '8'\n", ['suite.yaml:5  runs: found "8", expected a whole number']),
        (HEAD + "runs: 8.0\n", ["suite.yaml:5  runs: found 8.0, expected a whole number"]),
        (HEAD + "limits:\n  seconds: 12:30\n", ['suite.yaml:6  limits.seconds: found "12:30", expected a number']),
        (HEAD + "limits:\n  turn: 3\n", ["suite.yaml:6  limits.turn: unknown key; did you mean turns?"]),
        (HEAD + "limits: {cost_usd: -1}\n", ["suite.yaml:5  limits.cost_usd: found -1, expected at least 0"]),
        (HEAD + "on_missing: no\n", ["suite.yaml:5  on_missing: found \"no\", expected 'fail' or 'exclude'"]),
        (HEAD + "on_missing: exclude\n", ["suite.yaml:5  on_missing: exclude needs max_missing, the greatest share"]),
        (HEAD + "max_missing: 0.1\n", ["suite.yaml:5  max_missing: has a meaning only with on_missing: exclude"]),
        (HEAD + "generate: {}\n", ["suite.yaml:5  generate: expected either tasks or generate, found both"]),
        (HEAD.replace("tasks: tasks.jsonl", ""), ["suite.yaml:1  expected either tasks or generate, found neither"]),
        (
            HEAD.replace("tasks: tasks.jsonl", "generate:\n  cohorts:\n    rutine: 1"),
            ["suite.yaml:6  generate.cohorts.rutine: no such cohort; did you mean routine?"],
        ),
        (
            HEAD.replace("desk", "my:world").replace("tasks: tasks.jsonl", "generate: {}"),
            ['suite.yaml:4  generate: makes tasks of the environment desk, found environment "my:world"'],
        ),
        (HEAD.replace("desk", "dusk"), ['suite.yaml:3  environment: found "dusk", expected desk or module:factory']),
        (HEAD.replace("tasks.jsonl", "other.jsonl"), ["suite.yaml:4  tasks: no such file: other.jsonl"]),
        (HEAD.replace("tasks.jsonl", "[tasks.jsonl, x]"), ["suite.yaml:4  tasks.1: no such file: x"]),
        (HEAD.replace("tasks.jsonl", "3"), ['suite.yaml:4  tasks: found 3, expected a string or a list; write "3"']),
        ("", ["suite.yaml  found null, expected a mapping"]),
    ],
)
def test_what_is_wrong_with_a_suite_file_is_listed_with_its_lines(
    tmp_path: Path, head: str, problems: list[str]
) -> None:
    found = refusal(save(tmp_path, head))
    assert len(found) == len(problems)
    assert [line[: len(problem)] for line, problem in zip(found, problems, strict=True)] == problems


def test_a_suite_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent.yaml", UsageError) == [
        "absent.yaml: no such suite file; the built-in suite is called desk"
    ]


# Tasks


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        ({"id": "c"}, "request: missing"),
        ({"id": "c", "request": 1}, 'request: found 1, expected a string; write "1"'),
        ({"id": "c", "request": "x", "cohrt": "y"}, "cohrt: unknown key; did you mean cohort?"),
        (
            {"id": "c", "request": "x", "contract": {"must_cal": []}},
            "contract.must_cal: unknown key; did you mean must_call?",
        ),
        (
            {"id": "c", "request": "x", "contract": {"must_call": [{"tool": "t", "at_last": 1}]}},
            "contract.must_call.0.at_last: unknown key; did you mean at_least?",
        ),
        (
            {"id": "c", "request": "x", "contract": {"expect_effects": [{"table": "t", "kez": "k"}]}},
            "contract.expect_effects.0.kez: unknown key; did you mean key?",
        ),
        (
            {"id": "c", "request": "x", "contract": {"outcomes": ["DONE"]}},
            "contract.outcomes.0: found \"DONE\", expected 'COMPLETED', 'ESCALATED', 'REFUSED' or",
        ),
        (
            {"id": "c", "request": "x", "contract": {"ceilings": {"turns": "3"}}},
            'contract.ceilings.turns: found "3", expected a whole number',
        ),
        (
            {"id": "c", "request": "x", "contract": {"ceilings": {"cost_usd": -0.5}}},
            "contract.ceilings.cost_usd: found -0.5, expected at least 0",
        ),
        (
            {"id": "c", "request": "x", "contract": {"payload": [{"path": "p", "equals": 1, "absolute": -1}]}},
            "contract.payload.0.absolute: found -1.0, expected at least 0",
        ),
        (
            {"id": "c", "request": "x", "contract": {"payload": [{"path": "p", "equals": 1, "receipt": "t"}]}},
            "contract.payload.0.equals: not beside `receipt`",
        ),
        (
            {"id": "c", "request": "x", "contract": {"confirmed_by": {"ESCALATED": "t"}}},
            "contract.confirmed_by.ESCALATED: not one of the right outcomes (COMPLETED)",
        ),
        (
            {"id": "c", "request": "x", "contract": {"must_call": [{"tool": "t", "at_most": 0}]}},
            "contract.must_call.0.at_most: found 0, expected at least 1 (at_least)",
        ),
        (
            {"id": "c", "request": "x", "principal": {"user": 7}},
            'principal.user: found 7, expected a string; write "7"',
        ),
    ],
)
def test_what_is_wrong_with_a_task_is_told_with_its_line(tmp_path: Path, task: Any, problem: str) -> None:
    (found,) = refusal(save(tmp_path, HEAD, [*TWO, task]))
    assert found[: len(problem) + 15] == f"tasks.jsonl:3  {problem}"


def test_a_file_without_tasks_is_refused(tmp_path: Path) -> None:
    assert refusal(save(tmp_path, HEAD, "\n")) == ["suite.yaml: its task files hold no task"]


def ids(*values: Any) -> list[Any]:
    return [{"id": value, "request": "x"} for value in values]


@pytest.mark.parametrize(
    ("values", "problems"),
    [
        (
            (1, "1"),
            [
                'tasks.jsonl:1  task id: found integer 1, expected a string; write "1"',
                'tasks.jsonl:2  task id: string "1" looks like integer 1 at tasks.jsonl:1',
            ],
        ),
        (("t", "t"), ['tasks.jsonl:2  task id: string "t" is already at tasks.jsonl:1']),
        (
            (1, 1.0),
            [
                'tasks.jsonl:1  task id: found integer 1, expected a string; write "1"',
                "tasks.jsonl:2  task id: found number 1.0, expected a string; put it in quotes",
                "tasks.jsonl:2  task id: number 1.0 looks like integer 1 at tasks.jsonl:1",
            ],
        ),
        (("t", "t "), ['tasks.jsonl:2  task id: string "t " looks like string "t" at tasks.jsonl:1']),
        (("007", 7), ['tasks.jsonl:2  task id: found integer 7, expected a string; write "7"']),
        (
            ("é", "e\u0301"),
            ['tasks.jsonl:2  task id: string "e\u0301" (U+0301) looks like string "é" (U+00E9) at tasks.jsonl:1'],
        ),
        (("a", True), ["tasks.jsonl:2  task id: found boolean true, expected a string; put it in quotes"]),
        (("a", None), ["tasks.jsonl:2  task id: found null, expected a string"]),
        (("a", ["b"]), ['tasks.jsonl:2  task id: found list ["b"], expected a string']),
        (("a", " "), ['tasks.jsonl:2  task id: found string " ", expected at least one character that is not blank']),
        (("a", "b\x07"), ['tasks.jsonl:2  task id: found string "b\\u0007", expected no control characters']),
    ],
)
def test_ids_that_are_no_strings_or_could_be_confused_are_refused_with_both_lines(
    tmp_path: Path, values: tuple[Any, ...], problems: list[str]
) -> None:
    assert refusal(save(tmp_path, HEAD, ids(*values))) == problems


def test_ids_that_differ_are_kept_as_they_are(tmp_path: Path) -> None:
    names = ("007", "7", "airline/0", "T", "t", "x²", "x2", "名前", "a b")
    assert [task.id for task in load_suite(save(tmp_path, HEAD, ids(*names))).tasks] == list(names)


def test_the_same_file_given_twice_repeats_its_ids(tmp_path: Path) -> None:
    path = save(tmp_path, HEAD.replace("tasks.jsonl", "[tasks.jsonl, tasks.jsonl]"))
    assert refusal(path)[0] == 'tasks.jsonl:1  task id: string "a" is already at tasks.jsonl:1'


def test_cohorts_may_repeat_but_not_look_alike(tmp_path: Path) -> None:
    tasks = [{"id": str(i), "request": "x", "cohort": cohort} for i, cohort in enumerate(["a", "a", "a "])]
    assert refusal(save(tmp_path, HEAD, tasks)) == [
        'tasks.jsonl:3  cohort: string "a " looks like string "a" at tasks.jsonl:1'
    ]


def test_names_of_an_import_may_repeat() -> None:
    refuse_lookalikes("release", [("a", "f:1"), ("b", "f:2"), ("a", "f:3")])
    with pytest.raises(InvalidFile, match='g:1  release: string "a" is already at f:1'):
        refuse_lookalikes("release", [("a", "f:1"), ("a", "g:1")], unique=True)


# Choosing


def test_the_built_in_suite_generates_tasks_of_every_cohort() -> None:
    suite = load_suite("desk", tasks=40)
    assert (suite.name, suite.environment, suite.path) == ("desk", "desk", None)
    assert isinstance(suite.tasks, DeskTasks)
    assert list(suite.tasks) == list(DeskTasks(1, 40))
    assert set(catalogue(suite).cohorts) == set(DEFAULT_WEIGHTS)
    assert len(load_suite("desk").tasks) == 200


def test_a_suite_file_may_generate_with_a_seed_and_weights_of_its_own(tmp_path: Path) -> None:
    generate = "generate: {seed: 5, tasks: 8, cohorts: {routine: 3, ambiguous: 1}}"
    path = save(tmp_path, HEAD.replace("tasks: tasks.jsonl", generate))
    assert list(load_suite(path).tasks) == list(DeskTasks(5, 8, {"routine": 3, "ambiguous": 1}))
    assert len(load_suite(path, tasks=12).tasks) == 12


def test_of_a_file_the_first_tasks_are_taken_and_never_more_than_there_are(tmp_path: Path) -> None:
    path = save(tmp_path)
    assert [task.id for task in load_suite(path, tasks=1).tasks] == ["a"]
    assert refusal(path, UsageError, tasks=3) == ["--tasks: found 3, suite.yaml has 2 tasks"]
    assert refusal(path, UsageError, tasks=0) == ["--tasks: found 0, expected at least 1"]


@pytest.mark.parametrize(
    ("expression", "kept"),
    [
        ("refund-*", ["refund-1", "refund-2"]),
        ("*[1]", ["refund-1", "credit-1"]),
        ("a[1]", ["a[1]"]),
        ("cohort=hard", ["refund-2", "credit-1"]),
    ],
)
def test_a_filter_keeps_ids_that_match_or_a_cohort(tmp_path: Path, expression: str, kept: list[str]) -> None:
    cohorts = {"refund-1": "easy", "refund-2": "hard", "a[1]": "easy", "credit-1": "hard"}
    tasks = [{"id": name, "request": "x", "cohort": cohort} for name, cohort in cohorts.items()]
    suite = load_suite(save(tmp_path, HEAD, tasks), filter=expression)
    assert [task.id for task in suite.tasks] == kept


def test_a_filter_of_generated_tasks_is_applied_to_as_many_as_were_asked_for() -> None:
    chosen = load_suite("desk", tasks=40, filter="cohort=destructive").tasks
    assert list(chosen) == [task for task in DeskTasks(1, 40) if task.cohort == "destructive"]
    assert [task.id for task in load_suite("desk", tasks=40, filter="*-0000").tasks] == [
        task.id for task in DeskTasks(1, 40) if task.id.endswith("-0000")
    ]


def test_a_filter_that_matches_nothing_says_so(tmp_path: Path) -> None:
    assert refusal(save(tmp_path), NothingMatched, filter="x*") == ["--filter x*: matches none of 2 tasks"]
    assert refusal(save(tmp_path), NothingMatched, filter="cohort=hrad") == [
        "--filter cohort=hrad: matches none of 2 tasks; did you mean hard?"
    ]


# Digests


def test_the_digest_does_not_depend_on_how_a_suite_is_written_down(tmp_path: Path) -> None:
    reference = catalogue(load_suite(save(tmp_path)))
    reordered = "# comment\ntasks:\n- first.jsonl\n- second.jsonl\nenvironment: 'desk'\nversion: '1.0'\nname: refunds\n"
    (tmp_path / "first.jsonl").write_text('{"cohort": "all", "request": "\\u006fne",\t"id": "a", "contract": {}}')
    (tmp_path / "second.jsonl").write_text(
        '{"inputs": {"x": 5e-1, "n": 1.0}, "request":"two","cohort":"hard","id":"b"}'
    )
    assert catalogue(load_suite(save(tmp_path, reordered))) == reference


def test_a_generated_suite_has_the_digest_of_the_same_tasks_in_a_file(tmp_path: Path) -> None:
    generated = load_suite("desk", tasks=20)
    written = load_suite(save(tmp_path, HEAD, [task_content(task) for task in generated.tasks]))
    assert list(written.tasks) == list(generated.tasks)
    assert catalogue(written) == catalogue(generated)


@pytest.mark.parametrize(
    "change",
    [
        lambda suite: replace(suite, environment="my:world"),
        lambda suite: replace(suite, limits=replace(suite.limits, turns=51)),
        lambda suite: replace(suite, limits=replace(suite.limits, cost_usd=1.0)),
        lambda suite: replace(suite, limits=replace(suite.limits, virtual_ms=1000)),
        lambda suite: replace(suite, tasks=suite.tasks[:1]),
        lambda suite: replace(suite, tasks=suite.tasks[::-1]),
        lambda suite: replace(suite, tasks=(suite.tasks[0], replace(suite.tasks[1], cohort="easy"))),
        lambda suite: replace(suite, tasks=(suite.tasks[0], replace(suite.tasks[1], inputs={"n": 1}))),
    ],
)
def test_the_digest_changes_with_whatever_results_depend_on(tmp_path: Path, change: Callable[[Suite], Suite]) -> None:
    suite = load_suite(save(tmp_path))
    assert fingerprint(change(suite)) != fingerprint(suite)


def test_the_digest_does_not_cover_labels_and_the_wall_clock_guard(tmp_path: Path) -> None:
    suite = load_suite(save(tmp_path))
    other = replace(
        suite, name="x", version="2", description="y", runs_per_task=9, limits=replace(suite.limits, seconds=1.0)
    )
    assert fingerprint(other) == fingerprint(suite)


TASK = Task(id="t", request="r", contract=Contract(payload=(PayloadCheck(path="p", equals=1),)))


@pytest.mark.parametrize(
    "other",
    [
        replace(TASK, id="t2"),
        replace(TASK, request="r2"),
        replace(TASK, cohort="c"),
        replace(TASK, inputs={"a": None}),
        replace(TASK, policy="p"),
        replace(TASK, output_schema={}),
        replace(TASK, world={"a": [1]}),
        replace(TASK, principal={"user": "u"}),
        replace(TASK, template="x"),
        replace(TASK, contract=Contract()),
        replace(TASK, contract=replace(TASK.contract, payload=(PayloadCheck(path="p", equals=True),))),
        replace(TASK, contract=replace(TASK.contract, payload=(PayloadCheck(path="p", equals=None),))),
        replace(TASK, contract=replace(TASK.contract, expect_effects=())),
        replace(TASK, contract=replace(TASK.contract, outcomes=())),
    ],
)
def test_a_task_digest_changes_with_any_part_of_the_task(other: Task) -> None:
    assert task_digest(other) != task_digest(TASK)


def test_what_a_task_says_is_the_line_that_makes_it_and_leaves_out_defaults() -> None:
    assert task_content(TASK) == {
        "id": "t",
        "request": "r",
        "contract": {"payload": [{"path": "p", "equals": 1}]},
    }


canonical_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(canonical_values)
def test_a_task_digest_is_the_sha_256_of_its_canonical_json(value: Any) -> None:
    task = replace(TASK, world={"value": value})
    assert task_digest(task) == hashlib.sha256(rfc8785.dumps(task_content(task))).digest()


@pytest.mark.parametrize("value", [2**53, -(2**53), 10**30])
def test_a_number_that_canonical_json_cannot_hold_is_refused_with_task_and_field(tmp_path: Path, value: int) -> None:
    tasks = [*TWO, {"id": "c", "request": "x", "inputs": {"account": [{"number": value}]}}]
    suite = load_suite(save(tmp_path, HEAD, tasks))
    with pytest.raises(InvalidFile, match=r'^task "c"  inputs.account.0.number: .*; write it as a string$'):
        catalogue(suite)
    assert catalogue(replace(suite, tasks=(Task(id="d", request="", inputs={"n": 2**53 - 1}),))).ids == ("d",)


# Schemas


def test_schemas_describe_the_files_that_are_accepted() -> None:
    import fastjsonschema

    accepts = fastjsonschema.compile({**schema("task"), "$schema": "http://json-schema.org/draft-07/schema#"})
    for task in DeskTasks(1, 20):
        content = task_content(task)
        accepts(content)
        with pytest.raises(fastjsonschema.JsonSchemaValueException):
            accepts({**content, "cohrt": "x"})


def test_every_kind_of_file_has_a_schema_with_title_and_descriptions() -> None:
    for kind in KINDS:
        found = schema(kind)
        assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert found["title"]
        assert found["description"]
        assert found["additionalProperties"] is False
    assert all("description" in key for key in schema("suite")["properties"].values())
    with pytest.raises(UsageError, match=r"schema siute: no such kind; did you mean suite\?"):
        schema("siute")
