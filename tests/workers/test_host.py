"""A host turns shards into records: in order, each run in a world of its own, the same wherever it is cut."""

import itertools
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from passhat.workers import seeds
from passhat.workers.contract import Contract, Task, task_digest
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.host import Host
from passhat.workers.loading import WorkerError
from passhat.workers.order import AgentSpec, Cell, Hermetic, Limits, Shard, WorkOrder
from passhat.workers.records import Level, Outcome, Reason, Status, pack_record, unpack_record
from passhat.workers.traces import read_trace, trace_name

_names = itertools.count()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module of the user's own and return its name; it is found because its folder is on the order's path."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(source):
        name = f"users_own_{next(_names)}"
        (tmp_path / f"{name}.py").write_text(dedent(source))
        return name

    return write


AGENTS = """
    from passhat.workers.agent import Final

    seen = []

    def fine(task, tools, ctx):
        seen.append(ctx.seed)
        return Final("COMPLETED", "done", dict(task.inputs))

    def odd_one_out(task, tools, ctx):
        seen.append(ctx.seed)
        return Final("COMPLETED" if ctx.seed % 2 == 0 else "REFUSED")

    def grabby(task, tools, ctx):
        final = Final("COMPLETED", "", {"parts": len(task.inputs["parts"])})
        task.inputs["parts"].append("mine")
        task.inputs.clear()
        return final

    def writing(task, tools, ctx):
        tools.call("put", key="row")
        return Final("COMPLETED")
"""

ENVIRONMENT = """
    from passhat.workers.environment import EnvSpec, ToolResult, ToolSpec

    put = ToolSpec("put", "", {"type": "object", "properties": {"key": {"type": "string"}}}, "write")

    class Store:
        spec = EnvSpec("store", "1", (put,))
        seeds = []

        def reset(self, *, seed, options):
            self.seeds.append(seed)
            if options.get("broken"):
                raise RuntimeError("the store of T3 is broken")
            self.rows = options["rows"]  # the task's own list, if it were not a copy

        def call(self, name, arguments, *, principal):
            self.rows.append(arguments["key"])
            return ToolResult({"rows": len(self.rows)})

        def effects(self):
            return []

        def invariants(self):
            return []

        def state_digest(self):
            return len(self.rows).to_bytes(8, "big")

        def facts(self):
            return 0

        def virtual_ms(self):
            return 0

        def close(self):
            raise RuntimeError("cannot close")
"""


def task(name, **parts):
    return Task(id=name, request="please", **{"world": {"rows": []}, **parts})


def order(tmp_path, *releases, environment, tasks, runs=1, **settings):
    return WorkOrder(
        environment=environment,
        releases=tuple(AgentSpec(f"release-{i}", target) for i, target in enumerate(releases)),
        tasks=tasks,
        runs_per_task=runs,
        hermetic=Hermetic(replay_every=0),  # these environments count how often they are reset
        **{"seed": 7, "stream": "release", "limits": Limits(), "sys_path": (str(tmp_path),), **settings},
    )


def run_all(work, *, first=0, stop=None, attempt=1, shard=0):
    host = Host(work)
    stop = len(work.grid) if stop is None else stop
    return [finished.record for finished in host.run(Shard(shard, first, stop, attempt, 60.0))]


def desk_order(**settings):
    flaws = {"wrong_amount": (0.3, 0.2), "loop": (0.2, 0.1)}
    releases = (AgentSpec("A", "scripted"), AgentSpec("B", "scripted", flaws))
    parts = {"environment": "desk", "tasks": DeskTasks(1, 6), "runs_per_task": 3, "seed": 7, "stream": "release"}
    return WorkOrder(releases=releases, limits=Limits(), **{**parts, **settings})


# Shards


def test_a_shard_is_carried_out_in_the_order_of_the_grid_and_sent_as_packed():
    work = desk_order()
    finished = list(Host(work).run(Shard(3, 5, 12, 2, 60.0)))
    assert [one.position for one in finished] == list(range(5, 12))
    for one in finished:
        record = one.record
        assert Cell(record.release, record.task, record.run) == work.grid.locate(one.position)
        assert one.packed == pack_record(record)
        assert (record.attempt, record.env_level, record.agent_level) == (2, Level.GUARDED, Level.OPEN)
        assert record.wall_us > 0
        assert len(record.state_digest) == len(record.digest) == 8


def test_a_shard_is_left_off_once_its_time_is_used_up_but_never_without_a_run():
    host = Host(desk_order())
    assert [one.position for one in host.run(Shard(0, 4, 9, 1, 0.0))] == [4]
    assert [one.position for one in host.run(Shard(0, 5, 9, 1, -1.0))] == [5]


def test_records_do_not_depend_on_where_shards_begin_or_on_the_order_they_come_in():
    work = desk_order()
    whole = [record.digest for record in run_all(work)]
    assert len(set(whole)) > len(whole) // 2
    host = Host(work)
    pieces = {}
    for number, first in enumerate(range(len(work.grid) - 1, -1, -1)):
        for one in host.run(Shard(number, first, first + 1, 2, 60.0)):
            pieces[one.position] = one.record.digest
    assert [pieces[position] for position in sorted(pieces)] == whole


# Seeds and independence


def test_eight_runs_of_one_task_are_eight_runs_with_eight_seeds_and_repeat_exactly(tmp_path, module):
    agents = module(AGENTS)
    only = task("T1")
    work = order(tmp_path, f"{agents}:odd_one_out", environment=f"{module(ENVIRONMENT)}:Store", tasks=[only], runs=8)
    first, second = run_all(work), run_all(work)
    assert len({(record.release, record.task, record.run) for record in first}) == 8
    expected = [seeds.agent_seed(7, task_digest(only), run, "release-0") for run in range(8)]
    assert sys.modules[agents].seen == expected * 2
    assert len(set(expected)) == 8
    passed = [record.status == Status.PASS for record in first]
    assert passed == [seed % 2 == 0 for seed in expected]
    assert 0 < sum(passed) < 8
    assert [record.digest for record in second] == [record.digest for record in first]


@pytest.mark.parametrize("stream", ["release", "common"])
def test_releases_share_the_worlds_noise_and_share_their_own_only_when_asked(tmp_path, module, stream):
    agents, store = module(AGENTS), module(ENVIRONMENT)
    targets = (f"{agents}:fine", f"{agents}:fine")
    run_all(order(tmp_path, *targets, environment=f"{store}:Store", tasks=[task("T1")], runs=2, stream=stream))
    world, own = sys.modules[store].Store.seeds, sys.modules[agents].seen
    assert world[0] == world[1] != world[2] == world[3]
    assert (own[0] == own[1]) is (own[2] == own[3]) is (stream == "common")
    assert len({own[0], own[2]}) == 2


def test_every_task_ends_the_same_in_whatever_order_they_are_run(tmp_path, module):
    """T1 writes into the store, T2 sees an empty one all the same, the store of T3 is broken, T4 is plain."""
    environment, agent = f"{module(ENVIRONMENT)}:Store", f"{module(AGENTS)}:writing"
    tasks = [task("T1"), task("T2"), task("T3", world={"rows": [], "broken": True}), task("T4")]

    def ends(these):
        work = order(tmp_path, agent, environment=environment, tasks=these, runs=2, trace_dir=str(tmp_path / "t"))
        records = run_all(work)
        named = {(these[record.task].id, record.run): record for record in records}
        errors = {
            key: read_trace(tmp_path / "t", record.trace_file, record.trace_offset)["error"]
            for key, record in named.items()
            if record.trace_file is not None
        }
        return {key: (record.status, record.reason, record.state_digest) for key, record in named.items()}, errors

    forward, errors = ends(tasks)
    backward, other_errors = ends(tasks[::-1])
    one_row = (1).to_bytes(8, "big")
    good, bad = (Status.PASS, Reason.NONE, one_row), (Status.INVALID, Reason.ENVIRONMENT_ERROR, b"")
    assert forward == backward == {(t.id, run): bad if t.id == "T3" else good for t in tasks for run in range(2)}
    assert errors == other_errors
    assert all(("T3" in text) == (name == "T3") for (name, _), text in errors.items())


def test_an_agent_that_changes_its_task_changes_it_for_itself_alone(tmp_path, module):
    only = task("T1", inputs={"parts": ["a", "b"]}, contract=Contract())
    environment = f"{module(ENVIRONMENT)}:Store"
    records = run_all(order(tmp_path, f"{module(AGENTS)}:grabby", environment=environment, tasks=[only], runs=3))
    assert [record.status for record in records] == [Status.PASS] * 3
    assert only.inputs == {"parts": ["a", "b"]}


# Traces


def test_traces_are_kept_of_all_that_did_not_pass_and_of_a_seeded_share_of_the_rest(tmp_path):
    work = desk_order(trace_dir=str(tmp_path / "traces"), trace_every=4, tasks=DeskTasks(1, 10))
    records = run_all(work, shard=12)
    kept = [record for record in records if record.trace_file is not None]
    sampled = {
        (index, run)
        for index, one in enumerate(work.tasks)
        for run in range(3)
        if seeds.derive("trace", 7, task_digest(one), run) % 4 == 0
    }
    assert {(r.release, r.task, r.run) for r in kept} == {
        (r.release, r.task, r.run) for r in records if r.status != Status.PASS or (r.task, r.run) in sampled
    }
    assert {record.status for record in kept} == {Status.PASS, Status.FAIL}
    for record in kept:
        trace = read_trace(tmp_path / "traces", record.trace_file, record.trace_offset)
        assert (trace["task"], trace["run"]) == (work.tasks[record.task].id, record.run)
        assert (trace["release"], trace["attempt"]) == ("AB"[record.release], 1)
        assert len(trace["calls"]) == record.calls
    assert [path.name for path in (tmp_path / "traces").iterdir()] == [trace_name(12)]


def test_keeping_traces_changes_no_digest(tmp_path):
    plain = [record.digest for record in run_all(desk_order())]
    traced = [record.digest for record in run_all(desk_order(trace_dir=str(tmp_path), trace_every=1))]
    assert traced == plain


def test_an_invalid_run_has_a_record_of_its_own(tmp_path, module):
    broken = task("T3", world={"rows": [], "broken": True})
    environment = f"{module(ENVIRONMENT)}:Store"
    (record,) = run_all(order(tmp_path, f"{module(AGENTS)}:fine", environment=environment, tasks=[broken]))
    assert (record.status, record.reason) == (Status.INVALID, Reason.ENVIRONMENT_ERROR)
    assert (record.claimed, record.assigned) == (Outcome.NONE, Outcome.NONE)
    assert (record.outcome, record.trajectory, record.efficiency, record.passes) == (None, None, None, 0)
    assert len(record.digest) == 8


# What cannot be set up


@pytest.mark.parametrize(
    ("source", "name", "complaint"),
    [
        (None, "run", "users_missing:run: cannot import 'users_missing': ModuleNotFoundError: No module named"),
        ("x = 1", "run", " has no 'run'"),
        ("1 / 0", "run", ": ZeroDivisionError: division by zero at "),
        ("import sys; sys.exit('not today')", "run", ": SystemExit: not today at "),
        ("def run(: pass", "run", ": SyntaxError: invalid syntax"),
    ],
)
def test_an_agent_that_cannot_be_had_ends_the_work_with_a_readable_reason(tmp_path, module, source, name, complaint):
    target = f"{'users_missing' if source is None else module(source)}:{name}"
    with pytest.raises(WorkerError) as refused:
        Host(order(tmp_path, target, environment="desk", tasks=DeskTasks(1, 1)))
    assert str(refused.value).startswith(target)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def Store(): raise OSError('no licence')", "the environment cannot be set up: OSError: no licence at "),
        ("def Store(): raise SystemExit(1)", "the environment cannot be set up: SystemExit: 1 at "),
        (
            "class Store: pass",
            "the environment cannot be set up: AttributeError: 'Store' object has no attribute 'spec'",
        ),
        (
            """
            from passhat.workers.environment import EnvSpec, ToolSpec
            class Store:
                spec = EnvSpec("s", "1", (ToolSpec("t", "", {"type": "nothing"}),))
            """,
            "the environment cannot be set up: ValueError: tool t: its input schema cannot be used: Unknown type",
        ),
    ],
)
def test_an_environment_that_cannot_be_set_up_ends_the_work_with_a_readable_reason(tmp_path, module, source, complaint):
    target = f"{module(source)}:Store"
    with pytest.raises(WorkerError) as refused:
        Host(order(tmp_path, "scripted", environment=target, tasks=[task("T1")]))
    assert str(refused.value).startswith(f"{target}: {complaint}")


def test_an_environment_that_fails_to_close_says_nothing_about_any_run(tmp_path, module):
    Host(order(tmp_path, "scripted", environment=f"{module(ENVIRONMENT)}:Store", tasks=[task("T1")])).close()


def test_a_record_is_read_back_as_it_was_sent():
    for one in Host(desk_order()).run(Shard(0, 0, 6, 1, 60.0)):
        import msgpack

        back = unpack_record(msgpack.unpackb(one.packed))
        assert back._replace(outcome=None, trajectory=None, efficiency=None) == one.record._replace(
            outcome=None, trajectory=None, efficiency=None
        )
        scores = [(back.outcome, one.record.outcome), (back.trajectory, one.record.trajectory)]
        assert all(read == pytest.approx(sent, rel=1e-7) for read, sent in scores)


def test_the_users_folders_are_searched_first_and_named_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    for _ in range(2):
        Host(desk_order(sys_path=(str(tmp_path), str(tmp_path / "b"))))
    assert sys.path[:2] == [str(tmp_path), str(tmp_path / "b")]
    assert sys.path.count(str(tmp_path)) == 1
    assert Path(sys.path[0]) == tmp_path
