"""At run time a leaking environment makes its runs invalid and names the leak, wherever in a run it leaks; a sound one
passes at every level with the same digest; what an agent does is judged only where that was asked for.
"""

import itertools
import os
import socket
import sys
from dataclasses import replace
from textwrap import dedent

import pytest

from passhat.workers import worlds
from passhat.workers.confine import obstacle
from passhat.workers.contract import Task
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.host import Host
from passhat.workers.loading import WorkerError
from passhat.workers.order import AgentSpec, Hermetic, Limits, Shard, WorkOrder
from passhat.workers.records import Level, Outcome, Reason, Status
from passhat.workers.traces import read_trace

_names = itertools.count()

needs_bubblewrap = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))

WORLD = """
    import contextlib, ctypes, datetime, os, random, secrets, socket, subprocess, threading, time, uuid
    from pathlib import Path
    import numpy as np
    from passhat.workers.environment import EnvSpec, ToolResult, ToolSpec

    said = []
    native_socket, native_connect = ctypes.CDLL(None).socket, ctypes.CDLL(None).connect

    class Leak:
        spec = EnvSpec("leak", "1", (ToolSpec("act", "", {"type": "object", "properties": {}}),))

        def reset(self, *, seed, options):
            self.seed, self.where, self.said = seed, options.get("where", "call"), []
            self.leak("reset")

        def leak(self, here):
            if here == self.where:
                self.said.append(str(self.act()))

        def act(self):
            return %s

        def swallow(self):
            with contextlib.suppress(OSError):
                socket.socket()

        def call(self, name, arguments, *, principal):
            self.leak("call")
            return ToolResult({"said": list(self.said)})

        def effects(self):
            self.leak("effects")
            return []

        def invariants(self):
            return []

        def state_digest(self):
            self.leak("digest")
            return bytes(8)

        def facts(self):
            return 0

        def virtual_ms(self):
            return 0

        def close(self):
            pass
"""
AGENT = """
    import socket, threading, time, os, random
    from pathlib import Path
    from passhat.workers.agent import Final

    def run(task, tools, ctx):
        tools.call("act")
        return Final("COMPLETED")

    def networking(task, tools, ctx):
        tools.call("act")
        try:
            socket.socket().close()
        except OSError:
            pass
        return Final("COMPLETED")

    def reckless(task, tools, ctx):
        Path("written").write_text("x")

    def own_affair(task, tools, ctx):
        random.random(), os.urandom(2), ctx.log(str(time.time())), ctx.log(os.environ["API_KEY"])
        return Final("COMPLETED")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module of the user's own and return its name."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(source):
        name = f"hermetic_user_{next(_names)}"
        (tmp_path / f"{name}.py").write_text(dedent(source))
        return name

    return write


@pytest.fixture
def host(tmp_path, module):
    """Return a host of an environment that does something, and an agent that calls it once."""
    hosts = []

    def build(act, run="run", *, where="call", runs=1, is_child=False, **hermetic):
        work = WorkOrder(
            environment=f"{module(WORLD % act)}:Leak",
            releases=(AgentSpec("A", f"{module(AGENT)}:{run}"),),
            tasks=(Task(id="T1", request="please", world={"where": where}),),
            runs_per_task=runs,
            seed=7,
            stream="release",
            limits=Limits(seconds=20.0),
            hermetic=Hermetic(**hermetic),
            sys_path=(str(tmp_path),),
            trace_dir=str(tmp_path / "traces"),
            trace_every=1,
        )
        hosts.append(Host(work, is_child=is_child))
        return hosts[-1]

    yield build
    for one in hosts:
        one.close()


def run_all(host, stop=1):
    return [finished.record for finished in host.run(Shard(0, 0, stop, 1, 60.0))]


def trace_of(tmp_path, record):
    return read_trace(tmp_path / "traces", record.trace_file, record.trace_offset)


# Twelve leaks and more: source of what the environment does, and the kind it is caught as

LEAKS = {
    "opens a socket": ("socket.socket()", "net"),
    "resolves a name": ("socket.getaddrinfo('example.org', 80)", "net"),
    "writes a file": ("Path('leaked').write_text('x')", "fs_write"),
    "starts a program": ("subprocess.run(['true'])", "exec"),
    "starts a thread": ("threading.Thread(target=int).start()", "thread"),
    "loads a library": ("ctypes.CDLL('libm.so.6')", "ffi"),
    "sets a variable": ("os.environ.update(LEAKED='1')", "env_mutation"),
    "changes the folder": ("os.chdir('/')", "env_mutation"),
    "draws entropy": ("uuid.uuid4()", "entropy"),
    "draws a secret": ("secrets.token_hex(4)", "entropy"),
    "ignores its seed": ("random.Random().random()", "entropy"),
    "uses the global generator": ("random.random()", "entropy"),
    "seeds the global generator": ("(random.seed(self.seed), random.random())[1]", "entropy"),
    "uses numpy's global generator": ("np.random.rand()", "entropy"),
    "keeps state of the module": ("said.append(1) or len(said)", "nondeterminism"),
    "reads a clock that goes on": ("time.perf_counter()", "nondeterminism"),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_makes_the_run_invalid_and_is_named(host, tmp_path, leak):
    act, kind = LEAKS[leak]
    (record,) = run_all(host(act))
    assert (record.status, record.reason) == (Status.INVALID, Reason.HERMETICITY)
    assert record.violations >= 1
    assert (record.env_requested, record.env_level) == (Level.GUARDED, Level.GUARDED)
    trace = trace_of(tmp_path, record)
    assert kind in trace["error"]
    assert trace["violations"][0]["kind"] == kind
    assert not (tmp_path / "leaked").exists()
    assert "LEAKED" not in os.environ


@pytest.mark.parametrize("act", ["hash('text')", "datetime.datetime.now().hour", "os.getcwd()", "time.tzname"])
def test_what_depends_on_hash_seed_zone_or_folder_is_found_in_another_process(host, tmp_path, act):
    (record,) = run_all(host(act, is_child=True))
    assert (record.status, record.reason) == (Status.INVALID, Reason.HERMETICITY)
    assert trace_of(tmp_path, record)["error"] == (
        "replay: nondeterminism (replayed in a process with other hash seed, time zone, locale and folder call#1 act)"
    )


@pytest.mark.parametrize(
    ("where", "said"), [("reset", "reset"), ("call", "call#1"), ("effects", "score"), ("digest", "score")]
)
def test_a_leak_is_caught_wherever_the_environments_code_runs(host, tmp_path, where, said):
    (record,) = run_all(host("os.system('true')", where=where))
    assert (record.status, record.reason) == (Status.INVALID, Reason.HERMETICITY)
    assert trace_of(tmp_path, record)["error"] == f"{said}: exec (os.system true), denied"


def test_what_the_environment_swallows_is_caught_all_the_same(host):
    (record,) = run_all(host("self.swallow()"))
    assert (record.status, record.reason, record.violations) == (Status.INVALID, Reason.HERMETICITY, 1)


@pytest.mark.parametrize("level", [Level.GUARDED, pytest.param(Level.CONFINED, marks=needs_bubblewrap)])
def test_reading_the_clock_is_counted_once_a_run_and_the_run_stands(host, tmp_path, level):
    act = "(time.time(), datetime.datetime.now(datetime.UTC))"
    records = run_all(host(act, where="reset", runs=2, environment=level), stop=2)
    assert [(record.status, record.violations) for record in records] == [(Status.PASS, 1)] * 2
    assert [found["kind"] for found in trace_of(tmp_path, records[0])["violations"]] == ["clock"]


def test_at_level_0_nothing_is_caught(host):
    (record,) = run_all(host("random.random()", environment=Level.DECLARED))
    assert (record.status, record.env_level, record.violations) == (Status.PASS, Level.DECLARED, 0)


# Replays


def test_the_first_run_of_a_campaign_is_replayed_and_then_a_seeded_share(host):
    every = [record.status for record in run_all(host("said.append(1) or len(said)", runs=8, replay_every=1), stop=8)]
    assert every == [Status.INVALID] * 8
    first = [
        record.status for record in run_all(host("said.append(1) or len(said)", runs=8, replay_every=10**9), stop=8)
    ]
    assert first == [Status.INVALID] + [Status.PASS] * 7
    none = [record.status for record in run_all(host("said.append(1) or len(said)", runs=8, replay_every=0), stop=8)]
    assert none == [Status.PASS] * 8


def test_replaying_changes_no_digest_of_an_environment_that_repeats(host):
    digests = {
        tuple(record.digest for record in run_all(host("self.seed", runs=4, replay_every=every), stop=4))
        for every in (0, 1, 3)
    }
    assert len(digests) == 1


def test_a_replay_that_raises_says_what(host, tmp_path):
    act = "said.append(1) or {1: 'fine'}[len(said)]"
    (record,) = run_all(host(act))
    assert trace_of(tmp_path, record)["error"].startswith(
        "replay: nondeterminism (replayed by a second instance call#1 act: KeyError: 2 at "
    )


# Agents


def test_an_agent_may_do_as_it_likes_unless_it_was_to_be_guarded(host, tmp_path):
    (record,) = run_all(host("'x'", "networking"))
    assert (record.status, record.agent_level, record.violations) == (Status.PASS, Level.OPEN, 0)
    (record,) = run_all(host("'x'", "networking", agent=Level.GUARDED))
    assert (record.status, record.assigned) == (Status.FAIL, Outcome.POLICY_VIOLATION)
    assert (record.agent_requested, record.agent_level, record.violations) == (Level.GUARDED, Level.GUARDED, 1)
    assert trace_of(tmp_path, record)["violations"][0]["plane"] == "agent"


def test_a_guarded_agent_that_stumbles_over_the_guard_has_violated_the_policy(host):
    (record,) = run_all(host("'x'", "reckless", agent=Level.GUARDED))
    assert (record.status, record.assigned) == (Status.FAIL, Outcome.POLICY_VIOLATION)


def test_clock_entropy_and_variables_are_a_guarded_agents_own_affair(host, monkeypatch):
    monkeypatch.setenv("API_KEY", "key")
    (record,) = run_all(host("'x'", "own_affair", agent=Level.GUARDED))
    assert (record.status, record.violations) == (Status.PASS, 0)


# Level 2


def desk(**hermetic):
    flaws = {"wrong_amount": (0.3, 0.2), "loop": (0.2, 0.1)}
    return WorkOrder(
        environment="desk",
        releases=(AgentSpec("A", "scripted"), AgentSpec("B", "scripted", flaws)),
        tasks=DeskTasks(1, 5),
        runs_per_task=3,
        seed=7,
        stream="release",
        limits=Limits(),
        hermetic=Hermetic(**hermetic),
    )


@needs_bubblewrap
def test_the_desk_has_the_same_digests_at_every_level():
    digests = []
    for level in (Level.DECLARED, Level.GUARDED, Level.CONFINED):
        host = Host(desk(environment=level, replay_every=2))
        records = run_all(host, stop=30)
        host.close()
        assert {record.env_level for record in records} == {level}
        digests.append([record.digest for record in records])
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests[0])) > 15


@needs_bubblewrap
@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_named_at_level_2_as_well(host, leak):
    act, _ = LEAKS[leak]
    (record,) = run_all(host(act, environment=Level.CONFINED))
    assert (record.status, record.reason) == (Status.INVALID, Reason.HERMETICITY)
    assert record.env_level == Level.CONFINED


def test_a_level_that_cannot_be_had_ends_the_work_unless_less_will_do(monkeypatch):
    monkeypatch.setattr(worlds, "obstacle", lambda: "bwrap: setting up uid map: Permission denied")
    with pytest.raises(WorkerError, match="level confined cannot be had here: bwrap: setting up uid map"):
        Host(desk(environment=Level.CONFINED))
    records = run_all(Host(desk(environment=Level.CONFINED, allow_degraded=True)), stop=6)
    assert {(record.env_requested, record.env_level) for record in records} == {(Level.CONFINED, Level.GUARDED)}
    plain = run_all(Host(desk()), stop=6)
    assert [record.digest for record in records] == [record.digest for record in plain]


NATIVE = "native_connect(native_socket(2, 1, 0), bytes([2, 0, *(%d).to_bytes(2, 'big'), 127, 0, 0, 1, *[0] * 8]), 16)"


def visitors(server):
    """Return how many have connected to a server that does not block."""
    count = 0
    while True:
        try:
            server.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


@needs_bubblewrap
def test_native_code_gets_out_at_level_1_and_not_at_level_2(host, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        act = NATIVE % server.getsockname()[1]
        (confined,) = run_all(host(act, environment=Level.CONFINED, replay_every=0))
        assert trace_of(tmp_path, confined)["calls"][0]["result"] == {"said": ["-1"]}
        assert visitors(server) == 0
        (guarded,) = run_all(host(act, replay_every=0))
        assert trace_of(tmp_path, guarded)["calls"][0]["result"] == {"said": ["0"]}
        assert visitors(server) == 1


@needs_bubblewrap
def test_level_2_sees_no_files_variables_and_processes_of_this_machine(host, tmp_path, monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    (tmp_path / "beside.txt").write_text("of the user")
    act = (
        "[sorted(os.listdir('/')), [p for p in ('/root', '/home', '/etc/passwd', '/proc/1') if os.path.exists(p)], "
        "'API_KEY' in os.environ, os.listdir('/tmp'), os.getppid(), os.access('/usr', os.W_OK), "
        f"Path({str(tmp_path / 'beside.txt')!r}).read_text()]"
    )
    (record,) = run_all(host(act, environment=Level.CONFINED, replay_every=0))
    said = eval(trace_of(tmp_path, record)["calls"][0]["result"]["said"][0])
    assert said[2] is False
    assert said[5] is False
    assert said[6] == "of the user"
    assert "secret" not in str(said)
    assert said[1] == [path for path in ("/root", "/home") if str(sys.base_prefix).startswith(path)]


@needs_bubblewrap
@pytest.mark.parametrize(
    ("act", "reason", "text"),
    [
        ("os._exit(3)", Reason.ENVIRONMENT_ERROR, "the process of the environment ended: exit code 3"),
        ("1 // 0", Reason.ENVIRONMENT_ERROR, "ZeroDivisionError: "),
        ("{1, 2}.__len__ and (lambda: self.said.append({3}))()", Reason.ENVIRONMENT_ERROR, "what the environment"),
        ("time.sleep(60)", Reason.ENVIRONMENT_TIMEOUT, "the environment did not answer call within 0.5 s"),
        ("len(bytearray(1 << 40))", Reason.HERMETICITY, "call#1: rlimit (memory), denied"),
    ],
)
def test_a_confined_process_that_ends_hangs_or_errs_costs_that_run_alone(host, tmp_path, act, reason, text):
    one = host(f"({act}) if options_bad(self) else 'fine'", environment=Level.CONFINED, replay_every=0)
    module = one._order.environment.partition(":")[0]
    path = tmp_path / f"{module}.py"
    path.write_text(path.read_text() + "\ndef options_bad(world):\n    return world.seed % 2 == 0\n")
    one.close()
    seconds = 0.5 if reason is Reason.ENVIRONMENT_TIMEOUT else 60.0
    again = Host(replace(one._order, runs_per_task=4, limits=Limits(seconds=seconds)))
    records = run_all(again, stop=4)
    again.close()
    bad = [record for record in records if record.status == Status.INVALID]
    assert {record.status for record in records} == {Status.PASS, Status.INVALID}
    assert {record.reason for record in bad} == {reason}
    assert text in trace_of(tmp_path, bad[0])["error"]
