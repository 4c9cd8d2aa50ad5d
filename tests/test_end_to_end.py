"""Whole campaigns on Ray, started as a user starts them: the same records for any number of workers, whatever dies."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def passhat(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PASSHAT, *arguments], capture_output=True, text=True, timeout=120, **options)


def digest(folder: str) -> str:
    report = passhat("report", folder, "--json")
    assert report.returncode == 0, report.stderr
    document = json.loads(report.stdout)
    for release in document["releases"]:
        counts = release["counts"]
        assert (counts["missing"], counts["invalid"], counts["duplicates"]) == (0, 0, 0)
    return str(document["campaign"]["records_digest"])


def write_agent(folder: Path) -> None:
    """An agent of the user's own, beside files that carry the names of our folders."""
    (folder / "slow_agent.py").write_text(SLOW_AGENT)
    (folder / "stats.py").write_text("raise ImportError('the wrong stats')\n")
    (folder / "workers").mkdir()
    (folder / "workers/__init__.py").write_text("raise ImportError('the wrong workers')\n")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The records digest of the slow campaign, executed in one process without incident."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_agent(folder)
    assert passhat("run", *SLOW, "--workers", "0", "--out", "c", cwd=folder).returncode == 0
    return digest(str(folder / "c"))


@pytest.fixture
def slow_agent(own_folder: Path) -> None:
    write_agent(own_folder)


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start a campaign in a session of its own, and end it with the test."""
    started: list[subprocess.Popen[str]] = []

    def launch(*arguments: str) -> "subprocess.Popen[str]":
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([*PASSHAT, *arguments], start_new_session=True, **pipes))
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


def records_of(folder: str) -> Callable[[], bool]:
    """Whether the campaign is in its middle: some frames are in the log."""
    log = Path(folder) / "records.mpk"
    return lambda: log.exists() and log.stat().st_size > 4000


def processes_below(parent: int) -> dict[int, str]:
    """Command lines of all descendants of a process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(after_name[1]), []).append(int(entry.name))
            except OSError:
                continue
    found, waiting = {}, [parent]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            waiting.append(pid)
            try:
                found[pid] = (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    return found


def kill_one(driver: int, named: str) -> None:
    victim = next(pid for pid, command in processes_below(driver).items() if named in command)
    os.kill(victim, signal.SIGKILL)


def test_any_number_of_workers_gives_the_same_records() -> None:
    for workers in range(4):
        ran = passhat("run", *DESK, "--workers", str(workers), "--out", f"w{workers}", "--json")
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["schema"] == "passhat.summary/1"
    assert len({digest(f"w{workers}") for workers in range(4)}) == 1


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes under /proc")


@needs_proc
@pytest.mark.parametrize("victim", ["ray::Worker", "passhat.workers.child"], ids=["actor", "child"])
def test_a_killed_worker_costs_time_and_nothing_else(
    undisturbed: str, slow_agent: None, start: Callable[..., "subprocess.Popen[str]"], victim: str
) -> None:
    running = start("run", *SLOW, "--workers", "2", "--out", "c", "--json")
    wait_until(records_of("c"))
    kill_one(running.pid, victim)
    out, err = running.communicate(timeout=90)
    assert running.returncode == 0, err
    assert "this line" not in out
    assert digest("c") == undisturbed
    counts = json.loads(out)["releases"][0]["counts"]
    assert counts["retried"] == 1
    events = [json.loads(line) for line in Path("c/events.jsonl").read_text().splitlines()]
    retry = next(event for event in events if event["event"] == "retry")
    assert retry["reason"] == "WORKER_LOST"


@needs_proc
def test_a_killed_driver_is_resumed_to_the_same_records(
    undisturbed: str, slow_agent: None, start: Callable[..., "subprocess.Popen[str]"]
) -> None:
    running = start("run", *SLOW, "--workers", "2", "--out", "c")
    wait_until(records_of("c"))
    below = processes_below(running.pid)
    running.kill()
    running.communicate()
    before = json.loads(passhat("report", "c", "--json").stdout)["releases"][0]["counts"]
    assert 0 < before["missing"] < before["planned"]
    resumed = passhat("resume", "c", "--workers", "2")
    assert resumed.returncode == 0, resumed.stderr
    assert digest("c") == undisturbed
    ours = [pid for pid, command in below.items() if "passhat.workers.child" in command]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ours))


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(
    undisturbed: str, slow_agent: None, start: Callable[..., "subprocess.Popen[str]"]
) -> None:
    running = start("run", *SLOW, "--workers", "2", "--out", "c")
    wait_until(records_of("c"))
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, "")
    kept = re.search(r"(\d+) of 600 runs kept", err)
    assert kept is not None
    advice = re.search(r"^resume   passhat (resume c)$", err, re.M)
    assert advice is not None, err
    before = json.loads(passhat("report", "c", "--json").stdout)["releases"][0]["counts"]
    assert before["planned"] - before["missing"] == int(kept[1]) > 0
    assert passhat(*advice[1].split(), "--workers", "1").returncode == 0
    assert digest("c") == undisturbed


def test_a_worker_that_cannot_be_set_up_ends_the_campaign_resumably(slow_agent: None) -> None:
    Path("world.py").write_text("def build():\n    raise RuntimeError('no database here')\n")
    Path("tasks.jsonl").write_text('{"id": "t", "request": "Do it."}\n')
    Path("suite.yaml").write_text('name: s\nversion: "1"\nenvironment: world:build\ntasks: tasks.jsonl\n')
    ended = passhat("run", "suite.yaml", "-r", "slow_agent:run", "--workers", "1", "--out", "c")
    assert (ended.returncode, ended.stdout) == (6, "")
    assert "no database here" in ended.stderr
    assert "passhat resume c" in ended.stderr
