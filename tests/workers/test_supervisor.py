"""A supervisor answers for every run of a shard exactly once, whatever runs in its child, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from passhat.workers.confine import obstacle
from passhat.workers.contract import Task
from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.frames import unpack_frame
from passhat.workers.host import Host
from passhat.workers.loading import WorkerError
from passhat.workers.order import AgentSpec, Hermetic, Limits, Shard, WorkOrder
from passhat.workers.records import Level, Outcome, Reason, Status
from passhat.workers.supervisor import LostZygote, Supervisor

MODULE = """
    import ctypes, itertools, os, signal, socket, subprocess, threading, time

    from passhat.workers.agent import Final
    from passhat.workers.environment import EnvSpec

    def act(task, tools, ctx):
        print("from the agent")
        done = ACTIONS[task.inputs["do"]](task.inputs)
        return Final("COMPLETED", str(done))

    def leave_process(inputs):
        process = subprocess.Popen(["sleep", "600"])
        with open(inputs["pid_file"], "w") as stream:
            stream.write(str(process.pid))

    def leave_thread(inputs):
        def spin():
            while True:
                time.sleep(0.001)
        threading.Thread(target=spin, daemon=True).start()

    def loop(inputs):
        while True:
            try:
                time.sleep(0)
            except BaseException:
                pass

    ACTIONS = {
        "nothing": lambda inputs: None,
        "wait": lambda inputs: time.sleep(inputs["seconds"]),
        "hash": lambda inputs: sorted({hash(text) for text in ("a", "b")}),
        "refuse": lambda inputs: 1 / 0,
        "loop": loop,
        "loop in C": lambda inputs: sum(itertools.repeat(0)),
        "blocked socket": lambda inputs: (pair := socket.socketpair())[0].recv(1),
        "stopped": lambda inputs: os.kill(os.getpid(), signal.SIGSTOP),
        "exit 137": lambda inputs: os._exit(137),
        "killed": lambda inputs: os.kill(os.getpid(), signal.SIGKILL),
        "segfault": lambda inputs: ctypes.string_at(0),
        "fork": lambda inputs: os.fork() and None,
        "process": leave_process,
        "thread": leave_thread,
    }

    class World:
        spec = EnvSpec("world", "1", ())

        def reset(self, *, seed, options):
            self.state = bytes(8)
            if options.get("hang"):
                time.sleep(600)
            if options.get("slow"):
                time.sleep(0.6)
            if options.get("hash"):
                self.state = hash("text").to_bytes(8, "big", signed=True)

        def call(self, name, arguments, *, principal):
            raise NotImplementedError

        def effects(self):
            return []

        def invariants(self):
            return []

        def state_digest(self):
            return self.state

        def facts(self):
            return 0

        def virtual_ms(self):
            return 0

        def close(self):
            pass
"""

FINE = (Status.PASS, Outcome.COMPLETED, Reason.NONE)
LATE = (Status.FAIL, Outcome.TIMED_OUT, Reason.WALL_CLOCK)
DIED = (Status.INVALID, Outcome.NONE, Reason.WORKER_LOST)
HUNG = (Status.INVALID, Outcome.NONE, Reason.ENVIRONMENT_TIMEOUT)


def task(number, do="nothing", *, world=None, **inputs):
    return Task(id=f"T{number}", request="", inputs={"do": do, **inputs}, world=world or {})


def order_of(folder, tasks, *, module="users_world", **settings):
    (folder / "users_world.py").write_text(dedent(MODULE))
    return WorkOrder(
        **{
            "environment": f"{module}:World",
            "releases": (AgentSpec("A", f"{module}:act"),),
            "tasks": tasks,
            "runs_per_task": 1,
            "seed": 7,
            "stream": "release",
            "limits": Limits(seconds=30.0),
            "sys_path": (str(folder),),
            **settings,
        }
    )


@pytest.fixture
def supervise(tmp_path):
    """Start a supervisor for tasks that say what their agent does, and close it in the end."""
    started = []

    def start(tasks, **settings):
        started.append(Supervisor(order_of(tmp_path, tasks, **settings), 4))
        return started[-1]

    yield start
    for supervisor in started:
        supervisor.close()


def whole(tasks, attempt=1, seconds=60.0):
    return Shard(9, 0, len(tasks), attempt, seconds)


def carry_out(supervisor, shard):
    """Run a shard; check that its frames follow one another without gap or overlap; return frames and records."""
    frames = [unpack_frame(data) for data in supervisor.run(shard)]
    position = shard.first
    for frame in frames:
        assert (frame.header.shard, frame.header.worker, frame.header.first) == (shard.id, 4, position)
        position += frame.header.runs
    records = [record for frame in frames for record in frame.records]
    assert [record.task for record in records] == list(range(shard.first, position))
    assert {record.attempt for record in records} == {shard.attempt}
    return frames, records


def ends(records):
    return [(Status(record.status), record.terminal, Reason(record.reason)) for record in records]


def child_of(supervisor):
    (child,) = children_of(supervisor._zygote.pid)
    return child


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(*pids):
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if is_running(pid)]
        time.sleep(0.01)


# What comes back


def test_records_wait_for_others_as_long_as_the_shard_says(supervise):
    """All but what the first frame takes at once travel together at the end."""
    tasks = [task(number, "wait", seconds=0.05) for number in range(6)]
    frames, records = carry_out(supervise(tasks), whole(tasks)._replace(frame_s=60.0))
    assert (len(frames), len(records)) == (2, 6)


def test_the_records_are_those_of_a_host_in_this_process(supervise):
    flaws = {"wrong_amount": (0.3, 0.2), "loop": (0.2, 0.1)}
    settings = {
        "environment": "desk",
        "releases": (AgentSpec("A", "scripted"), AgentSpec("B", "scripted", flaws)),
        "runs_per_task": 3,
    }
    supervisor = supervise(tasks := DeskTasks(1, 20), **settings)
    shard = Shard(9, 5, 115, 1, 60.0)
    records = [record for data in supervisor.run(shard) for record in unpack_frame(data).records]
    work = supervisor._order
    assert work.tasks is tasks
    expected = [finished.record for finished in Host(work).run(shard)]
    assert [record.digest for record in records] == [record.digest for record in expected]
    assert [record[:4] for record in records] == [record[:4] for record in expected]


def test_a_record_does_not_wait_for_the_runs_after_it(supervise):
    tasks = [task(0), task(1, "wait", seconds=0.4), task(2)]
    frames, _ = carry_out(supervise(tasks), whole(tasks))
    assert [frame.header.runs for frame in frames] == [1, 2]
    assert frames[0].header.seconds < 0.2 < frames[1].header.seconds


def test_frames_stay_small_enough_to_travel_inline(supervise):
    tasks = [task(0)]
    supervisor = supervise(tasks, runs_per_task=4000)
    frames = list(supervisor.run(Shard(9, 0, 4000, 1, 60.0)))
    assert max(map(len, frames)) < 100_000 < sum(map(len, frames))
    assert sum(unpack_frame(data).header.runs for data in frames) == 4000


def test_a_shard_is_left_off_when_its_time_is_used_up(supervise):
    tasks = [task(number, "wait", seconds=0.1) for number in range(9)]
    supervisor = supervise(tasks)
    _, records = carry_out(supervisor, whole(tasks, seconds=0.25))
    assert 2 <= len(records) <= 3
    _, rest = carry_out(supervisor, Shard(9, len(records), 9, 1, 0.0))
    assert len(rest) == 1


def test_being_set_up_counts_neither_as_time_of_the_shard_nor_of_its_runs(tmp_path, supervise):
    (tmp_path / "slow_world.py").write_text("import time; time.sleep(0.5)\nfrom users_world import *")
    tasks = [task(number) for number in range(40)]
    frames, records = carry_out(supervise(tasks, module="slow_world"), whole(tasks, seconds=0.4))
    assert len(records) == 40
    assert sum(frame.header.seconds for frame in frames) < 0.4


def test_what_agents_print_goes_to_stderr(supervise, capfd):
    tasks = [task(0)]
    carry_out(supervise(tasks), whole(tasks))
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "from the agent\n")


def test_sets_are_in_the_same_order_in_every_child(supervise):
    tasks = [task(0, "hash")]
    digests = {carry_out(supervise(tasks), whole(tasks))[1][0].digest for _ in range(2)}
    assert len(digests) == 1


# Hermetic levels


def test_an_environment_that_depends_on_the_hash_seed_is_found_though_every_child_has_the_same(supervise):
    tasks = [task(0, world={"hash": True}), task(1, world={"hash": True}), task(2)]
    _, records = carry_out(supervise(tasks, hermetic=Hermetic(replay_every=1)), whole(tasks))
    assert ends(records) == [(Status.INVALID, Outcome.COMPLETED, Reason.HERMETICITY)] * 2 + [FINE]
    _, records = carry_out(supervise(tasks, hermetic=Hermetic(replay_every=0)), whole(tasks))
    assert ends(records) == [FINE] * 3


def test_replays_are_not_taken_for_a_run_that_hangs(supervise):
    tasks = [task(0, world={"slow": True})]
    _, records = carry_out(supervise(tasks, limits=Limits(seconds=1.0)), whole(tasks))
    assert ends(records) == [FINE]
    assert records[0].wall_us < 1_000_000


def test_every_record_says_which_levels_were_asked_for_and_achieved(supervise):
    tasks = [task(0), task(1, "killed"), task(2, "loop"), task(3)]
    hermetic = Hermetic(Level.DECLARED)
    _, records = carry_out(supervise(tasks, limits=Limits(seconds=0.2), hermetic=hermetic), whole(tasks))
    levels = {(r.env_requested, r.env_level, r.agent_requested, r.agent_level) for r in records}
    assert levels == {(Level.DECLARED, Level.DECLARED, Level.OPEN, Level.OPEN)}


@pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))
def test_a_confined_environment_outlives_its_own_faults_and_ends_with_its_child(supervise):
    tasks = [task(0), task(1, world={"hang": True}), task(2), task(3, "killed"), task(4)]
    hermetic = Hermetic(Level.CONFINED, replay_every=0)
    supervisor = supervise(tasks, limits=Limits(seconds=0.5), hermetic=hermetic)
    _, records = carry_out(supervisor, Shard(9, 0, 3, 1, 60.0))
    assert ends(records) == [FINE, HUNG, FINE]
    child = child_of(supervisor)
    confined = children_of(child)
    assert len(confined) == 1
    _, records = carry_out(supervisor, Shard(9, 3, 5, 1, 60.0))
    assert ends(records) == [DIED, FINE]
    wait_until_gone(child, *confined)
    assert {(record.env_requested, record.env_level) for record in records} == {(Level.CONFINED, Level.CONFINED)}


# Runs that do not end


def test_a_run_that_hangs_is_ended_and_blamed_on_whose_code_was_running(supervise):
    hanging = ["loop", "loop in C", "blocked socket", "stopped"]
    tasks = [task(0), *(task(1, do) for do in hanging), task(5, world={"hang": True}), task(6)]
    supervisor = supervise(tasks, limits=Limits(seconds=0.2))
    frames, records = carry_out(supervisor, whole(tasks, attempt=2))
    assert ends(records) == [FINE, LATE, LATE, LATE, LATE, HUNG, FINE]
    notes = [frame.header.note for frame in frames if frame.header.note]
    assert notes == ["ended by the wall-clock limit of 0.2 s"] * 5
    assert all(record.wall_us >= 200_000 for record in records[1:6])
    assert [record.outcome for record in records[1:6]] == [0.0] * 4 + [None]


# Runs that take their process with them


def test_a_run_that_ends_its_process_is_lost_and_no_other(supervise):
    deadly = {3: "exit 137", 4: "killed", 11: "segfault"}
    tasks = [task(number, deadly.get(number, "nothing")) for number in range(20)]
    supervisor = supervise(tasks)
    for attempt in (1, 2):
        frames, records = carry_out(supervisor, whole(tasks, attempt))
        assert ends(records) == [DIED if number in deadly else FINE for number in range(20)]
        notes = [frame.header.note for frame in frames if frame.header.note]
        assert notes == ["exited with code 137", "was killed by signal 9", "was killed by signal 11"]
    assert child_of(supervisor)


def test_a_child_that_ends_in_the_last_run_of_a_shard_is_lost_in_that_run_alone(supervise):
    tasks = [task(0), task(1, "killed"), task(2)]
    supervisor = supervise(tasks)
    assert ends(carry_out(supervisor, Shard(9, 0, 2, 1, 60.0))[1]) == [FINE, DIED]
    assert ends(carry_out(supervisor, Shard(9, 2, 3, 1, 60.0))[1]) == [FINE]


def test_a_child_lost_between_two_shards_is_replaced_and_nobody_blamed(supervise):
    tasks = [task(number) for number in range(4)]
    supervisor = supervise(tasks)
    carry_out(supervisor, Shard(9, 0, 2, 1, 60.0))
    before = child_of(supervisor)
    os.kill(before, signal.SIGKILL)
    wait_until_gone(before)
    _, records = carry_out(supervisor, Shard(9, 2, 4, 1, 60.0))
    assert ends(records) == [FINE, FINE]
    assert child_of(supervisor) != before


def test_a_process_that_an_agent_forks_and_forgets_does_not_report_the_run_twice(supervise):
    tasks = [task(number, "fork" if number == 1 else "nothing") for number in range(4)]
    supervisor = supervise(tasks)
    assert ends(carry_out(supervisor, whole(tasks))[1]) == [FINE] * 4
    assert ends(carry_out(supervisor, whole(tasks))[1]) == [FINE] * 4


def test_threads_and_processes_left_behind_disturb_no_run_and_end_with_the_child(supervise, tmp_path):
    pid_file = tmp_path / "pid"
    tasks = [task(0, "thread"), task(1, "process", pid_file=str(pid_file)), task(2), task(3, "killed"), task(4)]
    supervisor = supervise(tasks)
    _, records = carry_out(supervisor, whole(tasks))
    assert ends(records) == [FINE, FINE, FINE, DIED, FINE]
    wait_until_gone(int(pid_file.read_text()))


# Work that cannot be done


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (None, "broken_world:World: cannot import 'broken_world': ModuleNotFoundError: No module named 'broken_world'"),
        (
            "raise SystemExit('closed today')",
            "broken_world:World: cannot import 'broken_world': SystemExit: closed today",
        ),
        ("import os; os._exit(3)", "the worker's child exited with code 3 while it was being set up"),
        ("import os; os.kill(os.getpid(), 9)", "the worker's child was killed by signal 9 while it was being set up"),
    ],
)
def test_a_child_that_cannot_be_set_up_ends_the_work_with_a_readable_reason(supervise, tmp_path, source, complaint):
    if source is not None:
        (tmp_path / "broken_world.py").write_text(source)
    tasks = [task(0)]
    supervisor = supervise(tasks, module="broken_world")
    for _ in range(2):
        with pytest.raises(WorkerError) as refused:
            list(supervisor.run(whole(tasks)))
        assert str(refused.value).startswith(complaint)


def test_an_error_that_is_no_runs_ends_the_work_after_what_was_finished(supervise, tmp_path):
    (tmp_path / "in the way").write_text("")
    tasks = [task(0), task(1), task(2, "refuse"), task(3)]
    supervisor = supervise(tasks, trace_dir=str(tmp_path / "in the way"), trace_every=2**70)
    frames = supervisor.run(whole(tasks))
    records = unpack_frame(next(frames)).records
    with pytest.raises(WorkerError, match="FileExistsError"):
        records += [record for data in frames for record in unpack_frame(data).records]
    assert ends(records) == [FINE, FINE]


def test_without_its_zygote_a_slot_is_lost_after_what_was_finished(supervise):
    tasks = [task(0), task(1, "wait", seconds=60.0)]
    supervisor = supervise(tasks)
    frames = supervisor.run(whole(tasks))
    assert ends(unpack_frame(next(frames)).records) == [FINE]
    child = child_of(supervisor)
    supervisor._zygote.kill()
    with pytest.raises(LostZygote):
        next(frames)
    with pytest.raises(LostZygote):
        list(supervisor.run(whole(tasks)))
    wait_until_gone(child)


# What is left behind


def test_closing_ends_the_zygote_its_child_and_what_the_child_has_started(tmp_path):
    pid_file = tmp_path / "pid"
    tasks = [task(0, "process", pid_file=str(pid_file))]
    supervisor = Supervisor(order_of(tmp_path, tasks), 4)
    carry_out(supervisor, whole(tasks))
    pids = [supervisor._zygote.pid, child_of(supervisor), int(pid_file.read_text())]
    assert all(map(is_running, pids))
    supervisor.close()
    wait_until_gone(*pids)


def test_a_supervisor_that_is_killed_takes_everything_with_it(tmp_path):
    program = f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from test_supervisor import Supervisor, carry_out, child_of, order_of, task, whole
        tasks = [task(0, "process", pid_file="pid"), task(1, "loop")]
        supervisor = Supervisor(order_of(Path.cwd(), tasks), 4)
        next(supervisor.run(whole(tasks)))
        print(supervisor._zygote.pid, child_of(supervisor), Path("pid").read_text(), flush=True)
        time.sleep(600)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", dedent(program)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 3
        assert all(map(is_running, pids))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    wait_until_gone(*pids)
