"""Traces are found again where their records say, whatever else is written, and hold whatever a run brings."""

import dataclasses
import sys

import pytest

from passhat.workers.agent import Final
from passhat.workers.contract import Task
from passhat.workers.environment import Breach, Effect, Principal, Receipt, ToolResult
from passhat.workers.episode import Episode
from passhat.workers.evidence import Call, Evidence, Usage
from passhat.workers.frames import DamagedFrame
from passhat.workers.guard import Violation
from passhat.workers.records import Outcome, Reason, Safety, blank
from passhat.workers.scoring import Finding, Judgement
from passhat.workers.traces import (
    TraceFile,
    as_of_now,
    compose,
    copy_traces,
    open_traces,
    read_trace,
    storage_problem,
    trace_name,
)

CLERK = Principal("u", "acme", "clerk")
RECEIPT = Receipt("R-1", "put", "shelf", "mac")
CALL = Call("put", {"key": "b"}, ToolResult({"rows": 2}, receipt=RECEIPT), CLERK, 1)
TASK = Task(id="t", request="please", inputs={"x": 1})


def episode(*, calls=(CALL,), effects=(), facts=0, log=(), error=""):
    final = Final("COMPLETED", "done", {"x": 1})
    usage = Usage()
    evidence = Evidence(
        calls=calls, final=final, claimed=Outcome.COMPLETED, assigned=Outcome.NONE, effects=effects,
        breaches=(Breach("sum", "off"),), facts=facts, usage=usage, turns=1, virtual_ms=0,
    )  # fmt: skip
    return Episode(
        calls=calls, final=final, claimed=Outcome.COMPLETED, assigned=Outcome.NONE, reason=Reason.NONE, usage=usage,
        bad_calls=0, virtual_ms=0, state_digest=b"", trajectory=b"", safety=0, evidence=evidence, log=list(log),
        error=error, judgement=Judgement(0.5, None, None, 0, (Finding("outcome", "sum does not hold"),)),
    )  # fmt: skip


def compose_one(**parts):
    return compose(TASK, "A", blank(0, 0, 3), episode(**parts))


def test_a_trace_holds_everything_there_is_to_see(tmp_path):
    file = TraceFile(str(tmp_path / "new" / "folder"), 7)
    place = file.append(compose_one(effects=(Effect("rows", "b", "*", None, {"n": 2}),), log=("looked",)))
    file.close()
    assert read_trace(tmp_path / "new" / "folder", *place) == {
        "release": "A",
        "task": "t",
        "run": 3,
        "attempt": 1,
        "request": "please",
        "inputs": {"x": 1},
        "calls": [
            {
                "tool": "put",
                "arguments": {"key": "b"},
                "error": None,
                "result": {"rows": 2},
                "receipt": dataclasses.asdict(RECEIPT),
                "principal": {"user": "u", "tenant": "acme", "role": "clerk"},
                "facts": [],
            }
        ],
        "final": {"status": "COMPLETED", "message": "done", "payload": {"x": 1}},
        "effects": [{"table": "rows", "key": "b", "column": "*", "before": None, "after": {"n": 2}, "call": None}],
        "breaches": [{"invariant": "sum", "detail": "off", "process": False}],
        "findings": [{"scorer": "outcome", "text": "sum does not hold", "call": None}],
        "violations": [],
        "log": ["looked"],
        "error": "",
    }


def test_a_fact_is_told_with_the_call_that_brought_it_about():
    seen, wrote = int(Safety.INJECTION_SEEN), int(Safety.INJECTION_SEEN | Safety.UNVERIFIED_WRITE)
    calls = tuple(dataclasses.replace(CALL, turn=turn, facts=facts) for turn, facts in enumerate((0, seen, seen), 1))
    assert told_facts(episode(calls=calls, facts=wrote)) == [["INJECTION_SEEN"], [], ["UNVERIFIED_WRITE"]]
    faulted = dataclasses.replace(episode(calls=calls), evidence=None, judgement=None)
    assert told_facts(faulted) == [["INJECTION_SEEN"], [], []]
    assert told_facts(episode(calls=(), facts=wrote)) == []


def told_facts(one):
    return [call["facts"] for call in compose(TASK, "A", blank(0, 0, 3), one)["calls"]]


def test_violations_are_kept():
    found = Violation("environment", "net", "socket.connect", "127.0.0.1", "call#1", True, "audit")
    trace = compose(TASK, "A", blank(0, 0, 3), dataclasses.replace(episode(), violations=(found,)))
    assert trace["violations"] == [dataclasses.asdict(found)]


def test_a_trace_of_an_older_version_is_read_as_one_of_this():
    now = compose_one(effects=(Effect("rows", "b", "value", 1, 2),))
    older = {name: part for name, part in now.items() if name != "violations"}
    older["calls"] = [{name: part for name, part in call.items() if name != "facts"} for call in now["calls"]]
    older["effects"] = [{name: part for name, part in effect.items() if name != "call"} for effect in now["effects"]]
    older["findings"] = ["outcome: sum does not hold"]
    assert as_of_now(older) == now == as_of_now(now)


def test_no_file_is_made_when_no_trace_is_kept(tmp_path):
    TraceFile(str(tmp_path / "traces"), 1).close()
    assert not (tmp_path / "traces").exists()


def test_traces_are_found_where_they_were_put_though_others_write_into_the_same_file(tmp_path):
    """A shard's file is opened anew by the child that takes the place of a lost one, whose last trace may be torn."""
    one, other = (TraceFile(str(tmp_path), 1) for _ in range(2))
    places = {}
    for number in range(6):
        places[number] = (one, other)[number % 2].append(compose_one(log=(str(number) * 100 * number,)))
        with (tmp_path / trace_name(1)).open("ab") as stream:
            stream.write(b"torn")
    one.close()
    other.close()
    assert [read_trace(tmp_path, *places[number])["log"] for number in range(6)] == [
        [str(number) * 100 * number] for number in range(6)
    ]


@pytest.mark.parametrize(
    ("effects", "log", "kept"),
    [
        ((Effect("rows", "b", "value", {1}, object),), (), [{"before": "{1}", "after": "<class 'object'>"}]),
        ((Effect("rows", "b", "value", 2**70, -0.0),), (), [{"before": 2**70, "after": -0.0}]),
        ((), ("half a pair \ud800", "snow ☃\n"), []),
    ],
)
def test_odd_values_are_kept_as_they_can_be(tmp_path, effects, log, kept):
    file = TraceFile(str(tmp_path), 1)
    trace = read_trace(tmp_path, *file.append(compose_one(effects=effects, log=log)))
    file.close()
    assert [{"before": e["before"], "after": e["after"]} for e in trace["effects"]] == kept
    assert trace["log"] == list(log)


def test_a_trace_that_json_cannot_hold_is_kept_without_calls_and_effects(tmp_path):
    file = TraceFile(str(tmp_path), 1)
    unwritable = Effect("rows", "b", "value", None, {("a", 1): 2})
    trace = read_trace(tmp_path, *file.append(compose_one(effects=(unwritable,), error="late")))
    file.close()
    assert (trace["task"], trace["calls"], trace["effects"], trace["final"]) == ("t", [], [], None)
    assert trace["findings"] == [{"scorer": "outcome", "text": "sum does not hold", "call": None}]
    assert trace["error"].startswith("late (calls and effects are no JSON: keys must be str")


def test_a_trace_that_was_cut_or_altered_is_refused(tmp_path):
    file = TraceFile(str(tmp_path), 1)
    _, offset = file.append(compose_one())
    file.close()
    path = tmp_path / trace_name(1)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFrame):
            read_trace(tmp_path, 1, offset)


def test_a_full_disk_is_an_error_not_a_trace_that_cannot_be_read(tmp_path):
    (tmp_path / trace_name(1)).symlink_to("/dev/full")
    file = TraceFile(str(tmp_path), 1)
    with pytest.raises(OSError, match="No space left"):
        file.append(compose_one())
    file.close()


def test_under_a_url_each_trace_is_an_object_of_its_own_and_can_be_brought_into_a_folder(tmp_path):
    url = f"file://{tmp_path}/store/campaign"
    places = []
    for log in ("first", "second"):  # as two children that carry out one shard after the other
        objects = open_traces(url, 7)
        run = 3 + len(places)
        places.append(objects.append({**compose_one(log=(log,)), "run": run}))
        objects.close()
    assert [file for file, _ in places] == [7, 7]
    assert len(list((tmp_path / "store/campaign").iterdir())) == 2
    assert [read_trace(url, *place)["log"] for place in places] == [["first"], ["second"]]
    copy_traces(url, tmp_path / "here")
    assert [read_trace(tmp_path / "here", *place)["log"] for place in places] == [["first"], ["second"]]
    with pytest.raises(OSError, match=r"cannot be read: FileNotFoundError"):
        read_trace(url, 8, 0)


def test_a_run_that_is_traced_again_by_the_same_shard_takes_the_place_of_the_first(tmp_path):
    one, other = open_traces("memory://again", 1), open_traces("memory://again", 1)
    assert one.append(compose_one(log=("old",))) == (place := other.append(compose_one(log=("new",))))
    assert read_trace("memory://again", *place)["log"] == ["new"]


def test_files_are_brought_into_a_folder_as_they_are(tmp_path):
    file = open_traces(str(tmp_path / "there"), 7)
    place = file.append(compose_one(log=("kept",)))
    file.close()
    copy_traces(str(tmp_path / "nowhere"), tmp_path / "here")
    assert not (tmp_path / "here").exists()
    copy_traces(str(tmp_path / "there"), tmp_path / "here")
    assert read_trace(tmp_path / "here", *place)["log"] == ["kept"]


def test_storage_that_cannot_be_had_says_what_is_missing(monkeypatch):
    assert storage_problem("memory://x") is None
    assert storage_problem("nix://x") == "Protocol not known: nix"
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert "URLs need fsspec" in storage_problem("memory://x")
    with pytest.raises(OSError, match=r"memory://x/.*cannot be written: .*fsspec"):
        open_traces("memory://x", 1).append(compose_one())
