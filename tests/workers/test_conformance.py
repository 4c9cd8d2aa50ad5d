"""What check-env finds: each leak and each broken promise by its own name, and nothing in a world that has none."""

import os
from pathlib import Path
from typing import Any

import pytest

from passhat.workers.conformance import CHECKS, Check, Conformance, examine_environment, schema_problems
from passhat.workers.contract import Step, Task
from passhat.workers.desk_tasks import DEFAULT_WEIGHTS, DeskTasks
from passhat.workers.environment import ToolSpec
from passhat.workers.exploration import Place
from passhat.workers.host import Host
from passhat.workers.loading import WorkerError
from passhat.workers.order import AgentSpec, Hermetic, Limits, Shard, WorkOrder
from passhat.workers.records import Reason, RunRecord, Status
from passhat.workers.traces import read_trace

HERE = Path(__file__).resolve().parent

EMPTY = Place("empty", {})

# World → the checks that it fails, and what a run's first violation is; no violation where a run cannot see it.
LEAKS = {
    "OpensSocket": ({"net"}, "net"),
    "ReadsClock": ({"clock", "wall_time"}, "clock"),
    "WritesFile": ({"fs_write"}, "fs_write"),
    "StartsThread": ({"thread"}, "thread"),
    "KeepsModuleState": ({"same_seed_twice"}, "nondeterminism"),
    "IgnoresSeed": ({"seed_used"}, None),
    "UsesHash": ({"other_processes"}, "nondeterminism"),
    "UsesGlobalRandom": ({"global_random", "same_seed_twice"}, "entropy"),
    "UsesSystemEntropy": ({"entropy", "same_seed_twice"}, "entropy"),
    "StartsProgram": ({"exec"}, "exec"),
    "ChangesVariables": ({"env_mutation"}, "env_mutation"),
    "LoadsLibrary": ({"ffi"}, "ffi"),
}
# World → the check that it fails, alone if not said otherwise, and a part of what is said about it.
PROMISES = {
    "Raises": ("declared_errors", "raised KeyError"),
    "AnswersWithAnObject": ("declared_errors", "frozenset is not a JSON type"),
    "NoReceipt": ("write_receipts", "expected id, mac, and tool 'add'"),
    "WritesWhileReading": ("reads_change_nothing", "the state digest changed"),
    "HidesEffects": ("account", "effects and state digest disagree"),
    "GoesBackInTime": ("account", "virtual time went back"),
    "DigestOfItsAge": ("account", "asked for twice in a row, it is not the same"),
    "TellsNoBreach": ("account", "invariants: found str, expected Breach"),
    "LeavesHalfARunBehind": ("fresh_reset", "after half of another run"),
    "SharesAcrossInstances": ("two_instances", "beside another instance"),
    "RemembersTheLatestSeed": ("no_cross_talk", "beside another instance"),
    "KnowsItsFolder": ("other_processes", '"mark":"/"'),
}
# Instances that share cannot run side by side either, and a digest that changes when asked for repeats nowhere.
ALSO = {
    "SharesAcrossInstances": ("no_cross_talk",),
    "DigestOfItsAge": ("reads_change_nothing", "same_seed_twice"),
}


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def examined(target: str, *places: Place) -> Conformance:
    return examine_environment(target, [str(HERE)], places or (EMPTY,))


def failed(found: Conformance) -> set[str]:
    return {check.name for check in found.checks if check.state == "fail"}


def check_of(found: Conformance, name: str) -> Check:
    return next(check for check in found.checks if check.name == name)


# Leaks


def test_a_world_without_a_leak_passes_every_check() -> None:
    found = examined("leaky_worlds:Till")
    assert [(check.name, check.state) for check in found.checks] == [(name, "pass") for name in CHECKS]
    assert found.passed
    assert found.asked == found.answered == {"take": 36, "count": 36}


@pytest.mark.parametrize("leak", LEAKS)
def test_each_leak_fails_its_own_checks_at_a_named_call(leak: str, own_folder: Path) -> None:
    found = examined(f"leaky_worlds:{leak}")
    names, kind = LEAKS[leak]
    assert failed(found) == names
    assert not found.passed
    for name in names:
        offence = check_of(found, name).offence
        assert offence is not None
        assert (offence.place, offence.tool, offence.number >= 1) == ("empty", "take", True)
        assert list(offence.arguments or ()) == ["kind"]
    if kind not in (None, "nondeterminism", "entropy"):
        assert f"{kind} (" in check_of(found, str(kind)).text
    assert list(own_folder.iterdir()) == []
    assert "COIN" not in os.environ


def run_once(leak: str, folder: Path) -> tuple[RunRecord, dict[str, Any]]:
    """Run the leaky world for one task, with every run replayed, and return the record and its trace."""
    order = WorkOrder(
        environment=f"leaky_worlds:{leak}",
        releases=(AgentSpec("mine", "leaky_worlds:customer"),),
        tasks=(Task(id="pay", request="Pay."),),
        runs_per_task=1,
        seed=3,
        stream="release",
        limits=Limits(),
        hermetic=Hermetic(replay_every=1),
        sys_path=(str(HERE),),
        trace_dir=str(folder),
        trace_every=1,
    )
    host = Host(order, is_child=True)
    try:
        (finished,) = host.run(Shard(0, 0, 1, 1, 60.0))
    finally:
        host.close()
    record = finished.record
    assert record.trace_file is not None
    assert record.trace_offset is not None
    return record, read_trace(folder, record.trace_file, record.trace_offset)


@pytest.mark.parametrize("leak", [leak for leak in LEAKS if leak not in ("IgnoresSeed", "ReadsClock")])
def test_each_leak_makes_its_runs_invalid_and_is_named(leak: str, own_folder: Path) -> None:
    record, trace = run_once(leak, own_folder)
    assert (record.status, record.reason) == (Status.INVALID, Reason.HERMETICITY)
    assert record.violations >= 1
    assert trace["violations"][0]["kind"] == LEAKS[leak][1]


def test_a_run_that_reads_the_frozen_clock_stands_and_says_so(own_folder: Path) -> None:
    record, trace = run_once("ReadsClock", own_folder)
    assert (record.status, record.violations) == (Status.PASS, 1)
    assert [found["kind"] for found in trace["violations"]] == ["clock"]


def test_a_run_cannot_see_that_its_seed_is_ignored(own_folder: Path) -> None:
    record, _ = run_once("IgnoresSeed", own_folder)
    assert (record.status, record.violations) == (Status.PASS, 0)


def test_a_world_without_a_leak_passes_its_run(own_folder: Path) -> None:
    record, _ = run_once("Till", own_folder)
    assert (record.status, record.violations) == (Status.PASS, 0)


# Promises


@pytest.mark.parametrize("world", PROMISES)
def test_each_broken_promise_fails_its_own_check(world: str) -> None:
    name, text = PROMISES[world]
    found = examined(f"odd_worlds:{world}")
    assert failed(found) == {name, *ALSO.get(world, ())}
    check = check_of(found, name)
    assert text in check.text
    assert check.offence is not None
    assert check.times >= 1


def test_a_world_without_chance_is_noted_and_passes() -> None:
    found = examined("odd_worlds:Reads")
    assert found.passed
    assert check_of(found, "seed_used").state == "note"
    assert check_of(found, "write_receipts") == Check("write_receipts", "skipped", "no write went through")


def test_a_tool_that_raises_does_not_keep_the_others_from_being_tried() -> None:
    found = examined("odd_worlds:Raises")
    assert found.asked == {"add": found.answered["add"], "total": found.answered["total"], "crash": 1}
    assert min(found.answered["add"], found.answered["total"]) >= 36


def test_a_schema_that_takes_unknown_arguments_is_named_and_the_rest_is_tried() -> None:
    found = examined("odd_worlds:Loose")
    assert "strict_schemas" in failed(found)
    assert check_of(found, "strict_schemas").times == 2
    assert found.stories == 12


def test_a_schema_that_cannot_be_compiled_leaves_nothing_to_try() -> None:
    found = examined("odd_worlds:Unusable")
    assert failed(found) == {"strict_schemas"}
    assert found.checks[1] == Check("declared_errors", "skipped", "the schemas cannot be used, so nothing was tried")
    assert {check.state for check in found.checks[1:]} == {"skipped"}
    assert (found.stories, found.asked) == (0, {})


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (ToolSpec("go there", "", {"type": "object", "additionalProperties": False}), "tool 'go there': a name is"),
        (ToolSpec("go", "", {"type": "array", "additionalProperties": False}), "found type 'array'"),
        (ToolSpec("go", "", {"type": "object"}), "unknown arguments reach it"),
        (
            ToolSpec("go", "", {"type": "object", "additionalProperties": False, "properties": {"b": {}, "a": {}}}),
            "go: a, b must be required",
        ),
        (ToolSpec("go", "", {"type": "object", "additionalProperties": False}, "wrote"), "found effect 'wrote'"),
    ],
)
def test_what_is_not_strict_about_a_schema_is_named(spec: ToolSpec, problem: str) -> None:
    (found,) = schema_problems([spec])
    assert problem in found


def test_two_tools_of_one_name_are_a_problem() -> None:
    spec = ToolSpec("go", "", {"type": "object", "additionalProperties": False})
    assert list(schema_problems([spec, spec])) == ["2 tools are called go"]


# Worlds


def test_a_world_that_cannot_be_reset_is_an_offence_at_the_reset_and_the_rest_is_skipped() -> None:
    found = examined("odd_worlds:NeedsAWorld")
    assert failed(found) == {"declared_errors"}
    offence = check_of(found, "declared_errors").offence
    assert offence is not None
    assert (offence.number, offence.tool, offence.arguments) == (0, "", None)
    assert "KeyError: 'floor'" in offence.text
    assert check_of(found, "same_seed_twice") == Check("same_seed_twice", "skipped", "no world could be reset")


def test_a_limit_that_is_reached_is_not_lost_among_the_kinds() -> None:
    found = examined("odd_worlds:RunsOutOfMemoryElsewhere")
    assert failed(found) == {"declared_errors", "other_processes"}
    assert "rlimit (memory), denied" in check_of(found, "declared_errors").text


def test_each_world_is_tried() -> None:
    found = examined("odd_worlds:NeedsAWorld", Place("open", {"floor": "open"}), Place("closed", {"floor": "closed"}))
    assert found.passed
    assert found.stories == 12
    assert (found.asked["add"], found.answered["add"]) == (36, 18)


def test_an_oracle_is_followed_as_a_run_of_its_own() -> None:
    place = Place("task", {"floor": "open"}, oracle=(Step(tool="add", arguments={"step": 5}), Step(tool="total")))
    found = examined("odd_worlds:NeedsAWorld", place)
    assert (found.stories, found.answered) == (13, {"add": 37, "total": 37})


def test_the_desk_passes_in_worlds_of_every_cohort_and_no_tool_is_left_out() -> None:
    tasks = DeskTasks(1, 20, DEFAULT_WEIGHTS)
    found = examined("desk", *(Place(task.id, task.world, task.principal, task.oracle) for task in tasks))
    assert [(check.name, check.state) for check in found.checks] == [(name, "pass") for name in CHECKS]
    assert found.stories == 60
    assert min(found.asked.values()) >= 10


def test_an_examination_is_the_same_every_time() -> None:
    one, other = (examined("leaky_worlds:ReadsClock") for _ in range(2))
    assert [check.offence and check.offence[2:] for check in one.checks] == [
        check.offence and check.offence[2:] for check in other.checks
    ]


def test_a_factory_that_raises_is_told_as_such() -> None:
    with pytest.raises(WorkerError, match="broken_factory: the environment cannot be set up: RuntimeError"):
        examined("odd_worlds:broken_factory")


def test_what_a_process_of_its_own_cannot_set_up_is_an_offence() -> None:
    found = examine_environment("odd_worlds:Counter", [], [EMPTY])
    assert failed(found) == {"other_processes"}
    assert "cannot import 'odd_worlds'" in check_of(found, "other_processes").text
