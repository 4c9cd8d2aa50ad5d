"""Whole campaigns on Ray, started as a user starts them: the same records for any number of workers, whatever dies."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PASSHAT = [sys.executable, "-m", "passhat.runner.cli"]
DESK = ["desk", "--runs", "8", "--tasks", "200", "--seed", "7"]
SLOW = ["desk", "-r", "slow=slow_agent:run", "--runs", "10", "--tasks", "60", "--seed", "7"]
SLOW_AGENT = """
import time
from passhat.workers.agent import Final

def run(task, tools, ctx):
    print("this line must not reach standard output")
    time.sleep(0.01)
    if ctx.seed % 4 == 0:
        return Final("REFUSED", "no")
    tools.call("get_account", account_id=task.inputs.get("account_id"))
    return Final("COMPLETED", f"seed {ctx.seed}")
"""
WHERE_AGENT = """
from passhat.workers.agent import Final

def run(task, tools, ctx):
    return Final("COMPLETED", __file__)
"""
CLUSTER = """
import sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 128 << 20})
print("address", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""

Popen = subprocess.Popen[str]


def passhat(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PASSHAT, *arguments], capture_output=True, text=True, timeout=120, **options)


def report(folder: str | Path) -> Any:
    reported = passhat("report", str(folder), "--json")
    assert reported.returncode == 0, reported.stderr
    return json.loads(reported.stdout)


def digest(folder: str | Path) -> str:
    """Return the digest of a campaign's records, all of which are there once."""
    document = report(folder)
    for release in document["releases"]:
        counts = release["counts"]
        assert (counts["missing"], counts["invalid"], counts["duplicates"]) == (0, 0, 0)
    return str(document["campaign"]["records_digest"])


def write_slow_agent(folder: Path) -> None:
    """An agent of the user's own, beside files that carry the names of our folders."""
    (folder / "slow_agent.py").write_text(SLOW_AGENT)
    (folder / "stats.py").write_text("raise ImportError('the wrong stats')\n")
    (folder / "workers").mkdir()
    (folder / "workers/__init__.py").write_text("raise ImportError('the wrong workers')\n")


@pytest.fixture
def slow_agent() -> None:
    write_slow_agent(Path.cwd())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of the slow agent's campaign when it is carried out in one process and in one piece."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_slow_agent(folder)
    ran = passhat("run", *SLOW, "--workers", "0", "--out", "c", "--json", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["schema"] == "passhat.summary/1"
    return digest(folder / "c")


@pytest.fixture
def start() -> Iterator[Callable[..., Popen]]:
    """Start a command in a session of its own, and end it with the test."""
    started: list[Popen] = []

    def launch(*command: str, **options: Any) -> Popen:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, start_new_session=True, **pipes, **options))
        return started[-1]

    yield launch
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to this"
        time.sleep(0.02)


def log_bytes(folder: str) -> int:
    log = Path(folder) / "records.mpk"
    return log.stat().st_size if log.exists() else 0


def wait_for_records(folder: str, more: int = 3000) -> None:
    """Wait until the campaign is in its middle: a hundredth of a second's work a worker or so is in the log."""
    until = log_bytes(folder) + more
    wait_until(lambda: log_bytes(folder) >= until)


class Process(NamedTuple):
    pid: int
    parent: int
    command: str


def processes_below(parent: int) -> list[Process]:
    """Return all descendants of a process."""
    children: dict[int, list[Process]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                ppid = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            children.setdefault(ppid, []).append(Process(int(entry.name), ppid, command))
    found: list[Process] = []
    waiting = [parent]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += [process.pid for process in below]
    return found


def actors_of(driver: int) -> list[int]:
    return [process.pid for process in processes_below(driver) if process.command.startswith("ray::Worker")]


def children_of(driver: int) -> list[int]:
    """Return the processes in which episodes run: each was forked from a process of the same command line."""
    hosts = [process for process in processes_below(driver) if "passhat.workers.child" in process.command]
    zygotes = {process.pid for process in hosts}
    return [process.pid for process in hosts if process.parent in zygotes]


def events(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(folder) / "events.jsonl").read_text().splitlines()]


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes under /proc")


def test_any_number_of_workers_gives_the_same_records() -> None:
    for workers in range(4):
        ran = passhat("run", *DESK, "--workers", str(workers), "--out", f"w{workers}", "--json")
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["schema"] == "passhat.summary/1"
    assert len({digest(f"w{workers}") for workers in range(4)}) == 1


@needs_proc
def test_killed_workers_cost_time_and_nothing_else(
    undisturbed: str, slow_agent: None, start: Callable[..., Popen]
) -> None:
    running = start(*PASSHAT, "run", *SLOW, "--workers", "2", "--out", "c", "--json")
    wait_for_records("c")
    os.kill(children_of(running.pid)[0], signal.SIGKILL)
    wait_for_records("c")
    os.kill(actors_of(running.pid)[0], signal.SIGKILL)
    out, err = running.communicate(timeout=90)
    assert running.returncode == 0, err
    assert digest("c") == undisturbed
    counts = json.loads(out)["releases"][0]["counts"]
    assert (counts["passed"] + counts["failed"], counts["invalid"]) == (600, 0)
    told = events("c")
    assert [event["event"] for event in told].count("worker_lost") == 1
    retries = [event["reason"] for event in told if event["event"] == "retry"]
    assert set(retries) <= {"WORKER_LOST"}
    assert counts["retried"] == len(retries) <= 2  # less when one was hit between two runs


@needs_proc
def test_a_driver_that_is_killed_and_then_interrupted_is_resumed_to_the_same_records(
    undisturbed: str, slow_agent: None, start: Callable[..., Popen]
) -> None:
    running = start(*PASSHAT, "run", *SLOW, "--workers", "2", "--out", "c")
    wait_for_records("c")
    ours = children_of(running.pid)
    running.kill()
    running.communicate()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ours))
    before = report("c")["releases"][0]["counts"]
    assert 0 < before["missing"] < before["planned"]

    resumed = start(*PASSHAT, "resume", "c", "--workers", "2")
    wait_for_records("c")
    os.killpg(resumed.pid, signal.SIGINT)
    out, err = resumed.communicate(timeout=60)
    assert (resumed.returncode, out) == (130, "")
    kept = re.search(r"(\d+) of 600 runs kept", err)
    advice = re.search(r"^resume   passhat (resume .*)$", err, re.M)
    assert kept is not None, err
    assert advice is not None, err
    after = report("c")["releases"][0]["counts"]
    assert after["planned"] - after["missing"] == int(kept[1]) > before["planned"] - before["missing"]

    assert passhat(*shlex.split(advice[1]), "--workers", "0").returncode == 0
    assert digest("c") == undisturbed
    assert [event["event"] for event in events("c") if event["event"] in ("start", "stopped", "end")] == [
        "start", "start", "stopped", "start", "end",
    ]  # fmt: skip


def test_a_worker_that_cannot_be_set_up_ends_the_campaign_resumably(slow_agent: None) -> None:
    Path("world.py").write_text("def build():\n    raise RuntimeError('no database here')\n")
    Path("tasks.jsonl").write_text('{"id": "t", "request": "Do it."}\n')
    Path("suite.yaml").write_text('name: s\nversion: "1"\nenvironment: world:build\ntasks: tasks.jsonl\n')
    ended = passhat("run", "suite.yaml", "-r", "slow_agent:run", "--workers", "1", "--out", "c")
    assert (ended.returncode, ended.stdout) == (6, "")
    assert "no database here" in ended.stderr
    assert "passhat resume c" in ended.stderr


def test_a_cluster_that_is_there_is_joined_and_left_running(
    undisturbed: str, slow_agent: None, start: Callable[..., Popen]
) -> None:
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}  # else a token is kept in the home folder
    cluster = start(sys.executable, "-c", CLUSTER, stdin=subprocess.PIPE, env=environment)
    assert cluster.stdout is not None
    address = next(line.split()[1] for line in cluster.stdout if line.startswith("address "))
    ran = passhat("run", *SLOW, "--address", address, "--out", "c", "--json", env=environment)
    assert ran.returncode == 0, ran.stderr
    assert f"on 2 workers of Ray at {address}" in ran.stderr
    assert json.loads(ran.stdout)["schema"] == "passhat.summary/1"
    assert digest("c") == undisturbed

    Path("where_agent.py").write_text(WHERE_AGENT)
    where = ["desk", "-r", "where=where_agent:run", "--tasks", "1", "--runs", "1", "--working-dir", "."]
    copied = passhat("run", *where, "--address", address, "--out", "w", env=environment)
    assert copied.returncode == 0, copied.stderr
    (failed,) = json.loads(passhat("show", "w/where", "--json").stdout)["failures"][0]["runs"]
    said = json.loads(passhat("show", f"w/where/{failed}", "--json").stdout)["trace"]["final"]["message"]
    assert Path(said).name == "where_agent.py"
    assert Path(said).parent.name.startswith("_ray_pkg_")  # what Ray calls a node's copy

    assert cluster.poll() is None
    again = passhat("run", *SLOW, "--address", "ray://127.0.0.1:10001", "--out", "d")
    assert (again.returncode, again.stdout) == (2, "")
    assert "ray job submit" in again.stderr
    assert not Path("d").exists()


def test_ctrl_c_while_ray_is_starting_is_an_interrupt_like_any_other(
    undisturbed: str, slow_agent: None, start: Callable[..., Popen]
) -> None:
    running = start(*PASSHAT, "run", *SLOW, "--workers", "1", "--out", "c")
    wait_until(Path("c/.writer").exists)  # from here on it waits for Ray
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, "")
    assert "interrupted while Ray was starting" in err
    assert passhat("resume", "c", "--workers", "0").returncode == 0
    assert digest("c") == undisturbed
