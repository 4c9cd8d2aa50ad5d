"""What readers of other tools' results take from a row, what they refuse, and where they say it stands."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from passhat.runner.errors import InvalidFile, UsageError
from passhat.runner.sources import Row, Source, read_source
from passhat.workers.records import Reason, Status

KEY = {"release": "A", "task": "t", "run": 0}


def source(*rows: dict[str, Any] | str, release: str | None = None) -> Source:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    Path("r.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return read_source(Path("r.jsonl"), release)


def row(**fields: Any) -> Row:
    [only] = source({**KEY, "passed": True, **fields}).rows
    return only


def csv_row(**fields: str) -> Row:
    values = {"release": "A", "task": "t", "run": "0", "passed": "true", **fields}
    Path("r.csv").write_text(f"{','.join(values)}\n{','.join(values.values())}\n")
    [only] = read_source(Path("r.csv"), None).rows
    return only


# A row


def test_a_row_has_what_its_columns_say_and_the_rest_is_not_said() -> None:
    said = {"cohort": "x", "turns": 4, "cost_usd": 0.0125, "tool_calls": 2, "tokens_in": 10, "tokens_out": 20}
    content = {"release": "A", "task": "t", "run": 3, "passed": False, **said, "seed": 2**64 - 1, "colour": "red"}
    [full] = source(content).rows
    assert full == Row(
        place="r.jsonl:1",
        content=content,
        release="A",
        task="t",
        run=3,
        status=Status.FAIL,
        cohort="x",
        turns=4,
        calls=2,
        tokens_in=10,
        tokens_out=20,
        cost_micros=12_500,
        seed=2**64 - 1,
    )
    bare = {**KEY, "status": "invalid"}
    assert source(bare).rows == [
        Row(
            place="r.jsonl:1",
            content=bare,
            release="A",
            task="t",
            run=0,
            status=Status.INVALID,
            reason=Reason.SOURCE_ERROR,
        )
    ]


def test_columns_without_a_place_are_listed_once() -> None:
    rows = [{**KEY, "passed": 1, "colour": "red"}, {**KEY, "passed": 1, "size": 3, "colour": None}]
    assert source(*rows).unused == ("colour", "size")


@pytest.mark.parametrize(
    ("calls", "number"),
    [(3, 3), ([], 0), (["a", "b"], 2), ([{"name": "a"}], 1), ({"read": 2, "write": 3}, 5), ({}, 0), (None, None)],
)
def test_tool_calls_are_a_number_a_list_or_counts_by_kind(calls: Any, number: int | None) -> None:
    assert row(tool_calls=calls).calls == number


def test_zero_is_said_and_null_and_blank_are_not() -> None:
    assert (row(turns=0).turns, row(turns=None).turns, csv_row(turns="0").turns, csv_row(turns="").turns) == (
        *(0, None),
        *(0, None),
    )


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert (row(turns=4.0).turns, csv_row(turns="4.0").turns, csv_row(run="1e2").run) == (4, 4, 100)


def test_the_release_may_be_named_from_outside_when_the_rows_have_none() -> None:
    [named] = source({"task": "t", "run": 0, "passed": 1}, release="B").rows
    assert named.release == "B"
    with pytest.raises(UsageError, match=r"r.jsonl:1  names a release itself: leave --release out"):
        source({**KEY, "passed": 1}, release="B")


# Verdicts


@pytest.mark.parametrize(
    ("passed", "status"),
    [
        *((True, Status.PASS), (1, Status.PASS), (1.0, Status.PASS)),
        *((False, Status.FAIL), (0, Status.FAIL), (None, Status.PENDING)),
    ],
)
def test_passed_is_a_verdict_and_null_is_none(passed: Any, status: Status) -> None:
    assert row(passed=passed).status is status


@pytest.mark.parametrize(
    ("passed", "status"),
    [
        *(("true", Status.PASS), ("TRUE", Status.PASS), ("1", Status.PASS), ("False", Status.FAIL), ("0", Status.FAIL)),
        *(("", Status.PENDING), ("null", Status.PENDING)),
    ],
)
def test_passed_in_csv_is_text(passed: str, status: Status) -> None:
    assert csv_row(passed=passed).status is status


@pytest.mark.parametrize("passed", ["true", "yes", "", 2, 0.5, -1, [], {}])
def test_nothing_else_is_a_verdict(passed: Any) -> None:
    with pytest.raises(InvalidFile, match=r"r.jsonl:1  passed: found .*, allowed are true, false, 1, 0 and null"):
        row(passed=passed)
    with pytest.raises(InvalidFile, match=r"r.csv:2  passed: found \"yes\""):
        csv_row(passed="yes")


@pytest.mark.parametrize(
    ("given", "status"),
    [
        *(("pass", Status.PASS), ("fail", Status.FAIL), ("invalid", Status.INVALID), ("pending", Status.PENDING)),
        *(("missing", "missing"), (None, Status.PENDING)),
    ],
)
def test_status_says_more_than_passed_can(given: str | None, status: Any) -> None:
    assert source({**KEY, "status": given}).rows[0].status == status


@pytest.mark.parametrize("given", ["passed", "PASS", "error", 1, True, ["pass"]])
def test_no_other_status_is_known(given: Any) -> None:
    with pytest.raises(InvalidFile, match=r"r.jsonl:1  status: found .*, allowed are pass, fail, invalid, pending, mi"):
        source({**KEY, "status": given})


@pytest.mark.parametrize(
    ("passed", "given", "status"),
    [
        *((True, "pass", Status.PASS), (False, "fail", Status.FAIL), (True, None, Status.PASS)),
        *((None, "pass", Status.PASS), (None, "fail", Status.FAIL), (None, None, Status.PENDING)),
        *((False, "invalid", Status.INVALID), (False, "pending", Status.PENDING), (False, "missing", "missing")),
    ],
)
def test_passed_and_status_may_both_be_given_and_null_says_nothing(
    passed: bool | None, given: str | None, status: Any
) -> None:
    assert row(passed=passed, status=given).status == status


@pytest.mark.parametrize(
    ("passed", "given"), [(True, "fail"), (False, "pass"), (True, "invalid"), (True, "missing"), (True, "pending")]
)
def test_passed_and_status_that_contradict_each_other_are_refused(passed: bool, given: str) -> None:
    with pytest.raises(InvalidFile, match=f'r.jsonl:1  status: found "{given}", but passed is {str(passed).lower()}'):
        row(passed=passed, status=given)


def test_a_row_without_a_verdict_column_is_refused() -> None:
    with pytest.raises(InvalidFile, match=r"r.jsonl:2  passed: is missing, and so is status"):
        source({**KEY, "passed": 1}, KEY)


# Scores


def scored(*rows: dict[str, Any], pass_mark: float | None = 0.8) -> list[tuple[Any, Reason]]:
    Path("r.jsonl").write_text("".join(json.dumps({**KEY, **row}) + "\n" for row in rows))
    return [(each.status, each.reason) for each in read_source(Path("r.jsonl"), None, pass_mark=pass_mark).rows]


def test_a_score_passes_from_the_pass_mark_on() -> None:
    """C3: the threshold is an inclusive minimum."""
    statuses = [status for status, _ in scored(*({"score": score} for score in (1.0, 0.9, 0.8, 0.2, 0, None)))]
    assert statuses == [Status.PASS] * 3 + [Status.FAIL] * 2 + [Status.PENDING]


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf"), -0.1, 1.0000001, 7])
@pytest.mark.parametrize("verdict", [{}, {"passed": True}, {"passed": None}, {"status": "pass"}, {"status": "pending"}])
def test_what_is_no_score_makes_the_run_invalid_whatever_the_verdict(score: float, verdict: dict[str, Any]) -> None:
    """C15"""
    assert scored({"score": score, **verdict}) == [(Status.INVALID, Reason.INVALID_SCORE)]


def test_a_verdict_of_the_source_stands_beside_its_score() -> None:
    rows = (
        {"score": 0.9, "passed": True},
        {"score": 0.9, "status": "pending"},
        {"score": 0.9, "status": "invalid"},
        {"score": float("nan"), "status": "missing"},
    )
    assert scored(*rows) == [
        (Status.PASS, Reason.NONE),
        (Status.PENDING, Reason.NONE),
        (Status.INVALID, Reason.SOURCE_ERROR),
        ("missing", Reason.NONE),
    ]
    with pytest.raises(InvalidFile, match=r"score: found 0.7, which contradicts the verdict by the pass mark 0.8"):
        scored({"score": 0.7, "passed": True})


def test_a_score_says_nothing_without_a_pass_mark() -> None:
    with pytest.raises(InvalidFile, match="passed: is missing, and so is status; a score takes --pass-mark"):
        scored({"score": 0.7}, pass_mark=None)
    assert scored({"score": 70, "passed": True}, pass_mark=None) == [(Status.PASS, Reason.NONE)]
    assert source({**KEY, "score": 70, "passed": True}).unused == ("score",)
    with pytest.raises(UsageError, match="--map score=… takes --pass-mark"):
        read_source(Path("r.jsonl"), None, {"score": "reward"})


@pytest.mark.parametrize("score", ["0.9", True, [0.9]])
def test_a_score_is_a_number(score: Any) -> None:
    with pytest.raises(InvalidFile, match=r"r.jsonl:1  score: found .*, expected a number"):
        scored({"score": score})


def test_scores_in_csv_are_text() -> None:
    Path("r.csv").write_text("release,task,run,points\nA,t,0,0.80\nA,u,0,nan\nA,v,0,\n")
    rows = read_source(Path("r.csv"), None, {"score": "points"}, 0.8).rows
    assert [row.status for row in rows] == [Status.PASS, Status.INVALID, Status.PENDING]


# Numbers


@pytest.mark.parametrize("field", ["run", "turns", "tool_calls", "tokens_in", "tokens_out", "seed", "cost_usd"])
@pytest.mark.parametrize("value", [-1, 1e300, 10**400, True, "3", {"x": -1}])
def test_what_a_number_cannot_be_is_refused_with_its_place(field: str, value: Any) -> None:
    where = "x" if field == "tool_calls" and isinstance(value, dict) else field
    with pytest.raises(InvalidFile, match=rf"^r.jsonl:2  {where}: found .*, expected a (finite )?number"):
        source({**KEY, "passed": 1}, {**KEY, "passed": 1, field: value})


@pytest.mark.parametrize(
    ("field", "value"), [("cost_usd", 2e12), ("run", 2**31 + 1), ("turns", 2**62 + 1), ("seed", 2**64)]
)
def test_what_a_record_cannot_hold_is_refused_with_its_place(field: str, value: float) -> None:
    with pytest.raises(InvalidFile, match=rf"^r.jsonl:1  {field}: found .*, expected a finite number from 0 to "):
        row(**{field: value})


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_json_numbers_are_finite(number: str) -> None:
    with pytest.raises(InvalidFile, match=r"r.jsonl:1  turns: found .*, expected a finite number"):
        source(json.dumps({**KEY, "passed": 1, "turns": 0})[:-2] + number + "}")


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e999", "many", "0x10"])
def test_csv_numbers_are_finite_and_not_negative(value: str) -> None:
    with pytest.raises(InvalidFile, match=r"r.csv:2  cost_usd: found .*, expected a (finite )?number"):
        csv_row(cost_usd=value)


@pytest.mark.parametrize("field", ["run", "turns", "tool_calls", "tokens_in", "tokens_out", "seed"])
def test_a_count_is_a_whole_number(field: str) -> None:
    with pytest.raises(InvalidFile, match=f"r.jsonl:1  {field}: found 1.5, expected a whole number"):
        row(**{field: 1.5})


def test_the_smallest_cost_is_a_millionth_of_a_dollar() -> None:
    assert [row(cost_usd=cost).cost_micros for cost in (0, 4e-7, 6e-7, 1e12)] == [0, 0, 1, 10**18]


@pytest.mark.parametrize("field", ["release", "task", "run"])
def test_a_row_that_does_not_name_its_run_is_refused(field: str) -> None:
    key = {name: value for name, value in KEY.items() if name != field}
    with pytest.raises(InvalidFile, match=f"r.jsonl:1  {field}: is missing"):
        source({**key, "passed": 1})


# Files

JSONL = (
    '{"release": "A", "task": "t", "run": 0, "passed": true}\n{"release": "A", "task": "u", "run": 0, "passed": null}\n'
)
CSV = "release,task,run,passed\nA,t,0,true\nA,u,0,\n"
FORMS = {
    "plain": str.encode,
    "with a byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "with CR LF": lambda text: text.replace("\n", "\r\n").encode(),
    "with both, a blank line and no last line end": lambda text: (
        b"\xef\xbb\xbf" + text.rstrip().replace("\n", "\r\n\r\n").encode()
    ),
    "compressed": lambda text: gzip.compress(text.encode()),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("suffix", "text"), [(".jsonl", JSONL), (".ndjson", JSONL), (".csv", CSV)])
def test_every_form_of_a_file_gives_the_same_rows(suffix: str, text: str, form: str) -> None:
    path = Path(f"r{suffix}{'.gz' if form == 'compressed' else ''}")
    path.write_bytes(FORMS[form](text))
    assert [(each.release, each.task, each.run, each.status) for each in read_source(path, None).rows] == [
        ("A", "t", 0, Status.PASS),
        ("A", "u", 0, Status.PENDING),
    ]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_a_line_ends_at_a_line_feed_and_nowhere_else(separator: str) -> None:
    task = f"a{separator}b"
    two = source(json.dumps({**KEY, "task": task, "passed": 1}, ensure_ascii=False), {**KEY, "passed": 0})
    assert [each.task for each in two.rows] == [task, "t"]


def test_utf_16_is_refused_by_name() -> None:
    for suffix, text in ((".jsonl", JSONL), (".csv", CSV)):
        path = Path(f"r{suffix}")
        path.write_bytes(text.encode("utf-16"))
        with pytest.raises(InvalidFile, match=f"r{suffix}.*UTF-16"):
            read_source(path, None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.txt", "", "r.txt: found suffix .txt, expected .jsonl, .csv or .json, also with .gz"),
        ("r", "", "r: found suffix none, expected"),
        ("r.json", "[]", "r.json: not a format known here"),
        ("r.json", '{"task_id": 1}', "r.json: not a format known here"),
        ("r.json", '[{"task_id": 1, "trial": 0, "reward": 1}, {"task_id": 2}]', "r.json: not a format known here"),
        ("r.jsonl", "[1]\n", r"r.jsonl:1  found \[1\], expected an object"),
        ("r.jsonl", '\n{"a"\n', "r.jsonl:2  not JSON"),
        ("r.csv", "", "r.csv: found nothing, expected a header"),
    ],
)
def test_a_file_of_no_known_format_is_refused(name: str, content: str, message: str) -> None:
    Path(name).write_text(content)
    with pytest.raises(InvalidFile, match=message):
        read_source(Path(name), None)


@pytest.mark.parametrize(
    ("file", "name"), [("gpt-4.1_base.jsonl.gz", "gpt-4.1_base"), ("r.csv", "r"), ("a.b.json.gz", "a.b")]
)
def test_a_source_is_called_by_its_file_without_the_suffix_of_its_format(file: str, name: str) -> None:
    assert Source(Path("folder", file), "jsonl", [], ()).name == name


# tau-bench


def tau_bench(*results: dict[str, Any], release: str | None = None) -> Source:
    path = Path("gpt-4.1-airline.json")
    path.write_text(json.dumps([{"task_id": 0, "trial": 0, "reward": 1.0, **result} for result in results]))
    return read_source(path, release)


def test_a_tau_bench_result_is_a_row() -> None:
    messages = [
        {"role": "system", "content": "…"},
        {"role": "assistant", "tool_calls": [{"id": 1}, {"id": 2}]},
        {"role": "tool", "content": "…"},
        {"role": "assistant", "content": "…", "tool_calls": None},
    ]
    [only] = tau_bench({"task_id": 7, "trial": 2, "reward": 0.0, "info": {"error": None}, "traj": messages}).rows
    assert (only.place, only.release, only.task, only.run) == ("gpt-4.1-airline.json[0]", "gpt-4.1-airline", "7", 2)
    assert (only.status, only.reason, only.turns, only.calls) == (Status.FAIL, Reason.NONE, 2, 2)


def test_tau_bench_tasks_are_never_merged_over_their_type() -> None:
    with pytest.raises(InvalidFile, match=r"gpt-4.1-airline.json: task_id: found whole numbers and strings"):
        tau_bench({"task_id": 1}, {"task_id": "1", "trial": 1})


def test_without_a_trajectory_turns_and_calls_are_not_said() -> None:
    rows = tau_bench({"trial": 0}, {"trial": 1, "traj": None}, {"trial": 2, "traj": []}).rows
    assert [(each.turns, each.calls) for each in rows] == [(None, None), (None, None), (0, 0)]


def test_the_release_of_a_tau_bench_file_may_be_named() -> None:
    assert tau_bench({}, release="mine").rows[0].release == "mine"


@pytest.mark.parametrize(
    ("reward", "status"),
    [
        *((1.0, Status.PASS), (1, Status.PASS), (1 - 1e-7, Status.PASS), (1 - 2e-6, Status.FAIL)),
        *((0.99, Status.FAIL), (0.0, Status.FAIL), (None, Status.PENDING)),
        *((1 + 1e-7, Status.PASS), (1 + 2e-6, Status.INVALID), (-0.1, Status.INVALID), (float("nan"), Status.INVALID)),
    ],
)
def test_a_reward_passes_within_a_millionth_of_one(reward: float | None, status: Status) -> None:
    assert tau_bench({"reward": reward}).rows[0].status is status


def test_an_error_of_the_harness_is_invalid_and_not_failed() -> None:
    [only] = tau_bench({"reward": 0.0, "info": {"error": "rate limited", "traceback": "…"}, "traj": []}).rows
    assert (only.status, only.reason) == (Status.INVALID, Reason.SOURCE_ERROR)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"reward": "1"}, r"reward: found \"1\", expected a number or null"),
        ({"reward": True}, "reward: found true, expected a number or null"),
        ({"task_id": None}, "task_id: found null, expected a whole number or a string"),
        ({"task_id": True}, "task_id: found true, expected a whole number or a string"),
        ({"trial": None}, "trial: is missing"),
        ({"trial": -1}, "trial: found -1"),
        ({"trial": 2**40}, "trial: found"),
        ({"traj": 5}, "traj: expected a list of messages"),
        ({"traj": ["hello"]}, "traj: expected a list of messages"),
        ({"traj": [{"role": "assistant", "tool_calls": "two"}]}, r"tool_calls: found \"two\", expected a number"),
    ],
)
def test_a_tau_bench_result_that_makes_no_sense_is_refused_with_its_place(result: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidFile, match=rf"gpt-4.1-airline.json\[1\]  {message}"):
        tau_bench({}, result)
