"""`--flaw` changes what scripted releases do, for this campaign and when it is resumed; its errors name the fault."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from passhat.runner import launch
from passhat.runner.errors import InvalidFile, NotAcceptable, UsageError
from passhat.runner.release import load_release, load_releases, with_flaws
from passhat.runner.report import summarise
from passhat.runner.request import Request
from passhat.runner.store import Campaign


def changed(*texts: str, releases: tuple[str, ...] = ("incumbent", "candidate")) -> dict[str, dict[str, object]]:
    return {release.name: dict(release.flaws) for release in with_flaws(load_releases(releases), texts)}


def test_a_flaw_is_set_in_all_scripted_releases_or_in_one() -> None:
    before = changed()
    after = changed("loop=.5", "candidate:timeout=.25,.1", "candidate:loop=0")
    assert after["incumbent"] == {**before["incumbent"], "loop": (0.5, 0.0)}
    assert after["candidate"] == {**before["candidate"], "loop": (0.0, 0.0), "timeout": (0.25, 0.1)}


def test_flaws_are_part_of_a_releases_identity() -> None:
    plain, other = load_releases(["incumbent"])[0], with_flaws(load_releases(["incumbent"]), ["loop=.5"])[0]
    assert plain.digest != other.digest
    assert with_flaws([plain], ["loop=.02,.05"])[0].digest == plain.digest  # as it was
    assert with_flaws([plain], []) == (plain,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loop", '--flaw loop: expected [RELEASE:]NAME=P[,RHO], found "loop"'),
        ("loop=", '--flaw loop=: expected [RELEASE:]NAME=P[,RHO], found "loop="'),
        ("loop=.1,.2,.3", '--flaw loop=.1,.2,.3: expected [RELEASE:]NAME=P[,RHO], found "loop=.1,.2,.3"'),
        ("lop=.1", "--flaw lop=.1: no flaw is called 'lop': did you mean 'loop'?"),
        ("loop=2", "--flaw loop=2: flaw loop: p must be a number from 0 to 1, found 2.0"),
        ("loop=.1,-1", "--flaw loop=.1,-1: flaw loop: rho must be a number from 0 to 1, found -1.0"),
        ("loop=often", "--flaw loop=often: flaw loop: p must be a number from 0 to 1, found 'often'"),
        ("loop=nan", "--flaw loop=nan: flaw loop: p must be a number from 0 to 1, found nan"),
        (
            "candidat:loop=.1",
            '--flaw candidat:loop=.1: no scripted release is called "candidat"; did you mean candidate?',
        ),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as found:
        changed(text)
    assert str(found.value) == message


def test_only_scripted_releases_have_flaws() -> None:
    Path("agents.py").write_text("def run(task, tools, ctx): pass\n")
    with pytest.raises(UsageError, match="only the agent scripted has flaws, and no release here is scripted"):
        changed("loop=.1", releases=("agents:run",))
    with pytest.raises(UsageError, match=r'no scripted release is called "mine"; allowed are incumbent'):
        changed("mine:loop=.1", releases=("mine=agents:run", "incumbent"))
    after = changed("loop=.1", releases=("mine=agents:run", "incumbent"))
    assert (after["mine"], after["incumbent"]["loop"]) == ({}, (0.1, 0.0))


def test_a_release_file_says_whether_a_task_is_hard_in_all() -> None:
    Path("r.yaml").write_text("agent: scripted\nflaws: {loop: .1}\nlatent: comonotone\n")
    Path("s.yaml").write_text("agent: scripted\nflaws: {loop: .1}\n")
    hard, plain = load_release("r.yaml"), load_release("s.yaml")
    assert (hard.latent, plain.latent) == ("comonotone", "independent")
    assert hard.digest != plain.digest
    Path("t.yaml").write_text("agent: scripted\nflaws: {loop: .1}\nlatent: shared\n")
    with pytest.raises(InvalidFile, match=r"t.yaml:3  latent: .*shared"):
        load_release("t.yaml")


REQUEST = Request(suite="desk", releases=("incumbent",), runs=2, tasks=10, flaws=("loop=1", "infra_fault=.3"))


def test_a_campaign_runs_with_its_flaws_and_is_resumed_with_them() -> None:
    campaign = launch.run(REQUEST, launch.Place(workers=0), out=Path("c"))
    counts = summarise(campaign)["releases"][0]["counts"]
    assert counts["passed"] == 0
    assert campaign.manifest["releases"][0]["flaws"]["loop"] == [1.0, 0.0]
    again = launch.resume(Campaign(Path("c")), launch.Place(workers=0))
    assert summarise(again)["releases"][0]["counts"] == counts
    with pytest.raises(NotAcceptable, match=r"releases.incumbent.flaws.loop"):
        launch.run(
            Request(suite="desk", releases=("incumbent",), runs=2, tasks=10, flaws=("infra_fault=.3",)),
            launch.Place(workers=0),
            out=Path("c"),
            resume=True,
        )


def test_the_command_takes_the_option_more_than_once() -> None:
    command = [
        sys.executable,
        "-m",
        "passhat.runner.cli",
        "run",
        "desk",
        "-r",
        "incumbent",
        "--tasks",
        "5",
        "--runs",
        "1",
    ]
    options = ["--flaw", "loop=0", "--flaw", "incumbent:timeout=1", "--dry-run", "--json"]
    printed = subprocess.run([*command, *options], capture_output=True, text=True, check=True).stdout
    flaws = json.loads(printed)["releases"][0]["flaws"]
    assert (flaws["loop"], flaws["timeout"]) == ([0.0, 0.0], [1.0, 0.0])
    failed = subprocess.run([*command, "--flaw", "lop=1"], capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == "passhat: --flaw lop=1: no flaw is called 'lop': did you mean 'loop'?\n"


@pytest.mark.parametrize(
    "oracle",
    [
        [{"tool": "get_account", "arguments": {"account_id": "A"}}],
        [{"tool": "submit_result", "arguments": {"status": "DONE", "message": "", "payload": {}}}],
        [{"tool": "submit_result", "arguments": {"status": {"$result": [0]}, "message": "", "payload": {}}}],
    ],
)
def test_a_script_without_an_end_is_refused_before_anything_runs(oracle: list[object]) -> None:
    task = {"id": "t", "request": "please", "world": {"tables": {}, "today": "2026-06-01"}, "oracle": oracle}
    Path("tasks.jsonl").write_text(json.dumps(task) + "\n")
    Path("suite.yaml").write_text("name: s\nversion: '1'\nenvironment: desk\ntasks: tasks.jsonl\n")
    request = Request(suite="suite.yaml", releases=("incumbent",))
    with pytest.raises(UsageError, match="the oracle of task t does not end with submit_result or escalate_case"):
        launch.load(request)
