"""Starting and resuming: what is written down, and what a campaign refuses to continue with."""

import json
from pathlib import Path
from typing import Any

import pytest

from passhat.runner import launch
from passhat.runner.errors import InvalidFile, NotAcceptable, UsageError
from passhat.runner.report import summarise
from passhat.runner.request import Request
from passhat.runner.store import Campaign
from passhat.workers import worlds

IN_PROCESS = launch.Place(workers=0)
AGENT = """
from passhat.workers.agent import Final

def run(task, tools, ctx):
    if ctx.seed % 3 == 0:
        raise RuntimeError("slipped")
    return Final("COMPLETED", "done")
"""
TASK = {"id": "t1", "request": "Do it.", "contract": {"outcomes": ["COMPLETED"]}}


def write_suite(tasks: list[dict[str, Any]], **more: Any) -> None:
    Path("tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    lines = {"name": "s", "version": '"1"', "environment": "desk", "tasks": "tasks.jsonl", "runs": 4, **more}
    Path("suite.yaml").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))


def request(**more: Any) -> Request:
    return Request(**{"suite": "suite.yaml", "releases": ("mine=agent:run",), "folder": str(Path.cwd()), **more})


def world(**more: Any) -> dict[str, Any]:
    """A task whose world the desk accepts."""
    return {**TASK, "world": {"today": "2026-06-01", "tables": {}}, **more}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Campaign:
    """A campaign of two tasks that was interrupted after its first frames."""
    import sys

    sys.modules.pop("agent", None)
    Path("agent.py").write_text(AGENT)
    write_suite([world(), world(id="t2")])
    campaign = launch.run(request(), IN_PROCESS, out=Path("c"))
    log = campaign.log_path.read_bytes()
    campaign.log_path.write_bytes(log[: len(log) - 5])  # as a crash would leave it
    return Campaign(campaign.folder)


def test_a_torn_campaign_is_resumed_to_the_same_records(begun: Campaign) -> None:
    torn = summarise(begun)
    assert torn["torn_at"] is not None
    assert torn["releases"][0]["counts"]["missing"] > 0
    whole = summarise(launch.resume(begun, IN_PROCESS))
    assert whole["releases"][0]["counts"]["missing"] == 0
    assert whole["torn_at"] is None
    again = launch.run(request(), IN_PROCESS, out=Path("d"))
    assert summarise(again)["records_digest"] == whole["records_digest"]
    events = [event["event"] for event in Campaign(begun.folder).events()]
    assert events == ["start", "end", "torn_tail", "start", "end"]


def test_resuming_what_is_whole_runs_nothing(begun: Campaign) -> None:
    whole = launch.resume(begun, IN_PROCESS)
    size = whole.log_path.stat().st_size
    launch.resume(whole, IN_PROCESS)
    assert whole.log_path.stat().st_size == size


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: write_suite([world(), world(id="t2", request="Do that.")]), "suite.digest"),
        (lambda: write_suite([world()]), "suite.tasks: 2 then, 1 now"),
        (lambda: write_suite([world(), world(id="t2")], limits="{turns: 7}"), "limits.turns: 50 then, 7 now"),
        (lambda: write_suite([world(), world(id="t2")], runs="5"), "runs_per_task: 4 then, 5 now"),
        (
            lambda: write_suite([world(), world(id="t2")], hermetic="{environment: declared}"),
            "hermetic.environment: 'GUARDED' then, 'DECLARED' now",
        ),
        (
            lambda: write_suite([world(), world(id="t2")], hermetic="{replay_every: 3}"),
            "hermetic.replay_every: 100 then, 3 now",
        ),
        (lambda: write_suite([world(), world(id="t2")], version='"2"'), "suite.version: '1' then, '2' now"),
        (lambda: Path("agent.py").write_text(AGENT + "\n# changed\n"), "releases.mine.code"),
    ],
)
def test_a_change_refuses_to_resume_and_is_named(begun: Campaign, change: Any, named: str) -> None:
    before = begun.log_path.read_bytes()
    change()
    with pytest.raises(NotAcceptable, match="changed since") as refused:
        launch.resume(begun, IN_PROCESS)
    assert named in str(refused.value)
    assert begun.log_path.read_bytes() == before


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"seed": 1}, "seed: 0 then, 1 now"),
        ({"stream": "common"}, "stream"),
        ({"retries": 0}, "retries: 2 then, 0 now"),
        ({"hermetic": "declared"}, "hermetic.environment: 'GUARDED' then, 'DECLARED' now"),
    ],
)
def test_other_settings_refuse_to_continue_and_are_named(begun: Campaign, more: dict[str, Any], named: str) -> None:
    with pytest.raises(NotAcceptable, match=named):
        launch.run(request(**more), IN_PROCESS, out=begun.folder, resume=True)


def test_the_same_request_continues(begun: Campaign) -> None:
    launch.run(request(), IN_PROCESS, out=begun.folder, resume=True)
    assert summarise(Campaign(begun.folder))["releases"][0]["counts"]["missing"] == 0


def test_the_manifest_names_every_identity(begun: Campaign) -> None:
    manifest = begun.manifest
    assert manifest["suite"]["digest"].startswith("sha256:")
    assert manifest["releases"][0]["code"].startswith("sha256:")
    assert manifest["versions"].keys() == {"python", "platform", "passhat", "ray", "numpy", "scipy", "msgpack"}
    assert manifest["limits"] == {"turns": 50, "cost_usd": None, "virtual_ms": 2_592_000_000, "seconds": 300.0}
    assert manifest["hermetic"] == {
        "environment": "GUARDED",
        "agent": "OPEN",
        "replay_every": 100,
        "allow_degraded": False,
    }
    assert (manifest["seed"], manifest["stream"], manifest["retries"]) == (0, "release", 2)


def test_a_level_that_cannot_be_had_here_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "obstacle", lambda: "bwrap: No permissions to create a new namespace")
    Path("level_agent.py").write_text(AGENT)
    write_suite([world()], hermetic="{environment: confined}")
    with pytest.raises(UsageError, match="level confined cannot be had here: bwrap: No permissions to create"):
        launch.run(request(releases=("level_agent:run",)), IN_PROCESS, out=Path("c"))
    assert not Path("c").exists()
    write_suite([world()], hermetic="{environment: confined, allow_degraded: true}")
    assert (
        launch.run(request(releases=("level_agent:run",)), IN_PROCESS, out=Path("c")).manifest["hermetic"][
            "environment"
        ]
        == "CONFINED"
    )


def test_a_level_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="--hermetic: found 'strict', expected declared, guarded, confined"):
        launch.run(request(suite="desk", releases=("incumbent",), hermetic="strict"), IN_PROCESS, out=Path("c"))


def test_a_scripted_release_needs_an_oracle() -> None:
    write_suite([world()])
    with pytest.raises(UsageError, match="task t1 has no oracle"):
        launch.run(request(releases=("incumbent",)), IN_PROCESS, out=Path("c"))
    assert not Path("c").exists()


def test_an_agent_that_cannot_be_had_is_found_before_anything_is_made() -> None:
    write_suite([world()])
    with pytest.raises(InvalidFile, match="no module nowhere"):
        launch.run(request(releases=("mine=nowhere:run",)), IN_PROCESS, out=Path("c"))
    assert not Path("c").exists()


def test_an_environment_that_cannot_be_had_is_found_before_anything_is_made() -> None:
    Path("agent_here.py").write_text(AGENT)
    write_suite([world()], environment="no_such_env:build")
    with pytest.raises(InvalidFile, match="no module no_such_env"):
        launch.run(request(releases=("mine=agent_here:run",)), IN_PROCESS, out=Path("c"))
    assert not Path("c").exists()


def write_release(folder: str, name: str, prompt: str) -> str:
    """A release in a folder of its own, whose agent imports a module that stands beside it."""
    Path(folder).mkdir()
    Path(folder, f"{name}.py").write_text("from prompts import PROMPT\n" + AGENT.replace('"done"', "PROMPT"))
    Path(folder, "prompts.py").write_text(f"PROMPT = {prompt!r}\n")
    path = Path(folder, "release.yaml")
    path.write_text(f"name: {name}\nagent: {name}:run\n")
    return str(path)


def test_releases_whose_modules_share_a_name_are_refused_rather_than_mixed_up() -> None:
    """One process can load one module of a name: the second release would run with the first one's code."""
    write_suite([world()])
    releases = tuple(write_release(folder, f"agent_{folder}", f"prompt of {folder}") for folder in ("v1", "v2"))
    with pytest.raises(InvalidFile, match=r"module prompts of .*v2/prompts.py cannot be used beside the one of .*v1"):
        launch.run(request(releases=releases), IN_PROCESS, out=Path("c"))
    assert not Path("c").exists()


def test_the_code_of_an_environment_is_among_what_must_not_change() -> None:
    Path("own_env.py").write_text("from passhat.workers.desk import Desk\n\ndef build():\n    return Desk()\n")
    Path("own_agent.py").write_text(AGENT)
    write_suite([world()], environment="own_env:build")
    campaign = launch.run(request(releases=("own_agent:run",)), IN_PROCESS, out=Path("c"))
    Path("own_env.py").write_text("from passhat.workers.desk import Desk\n\ndef build():\n    return Desk()  # new\n")
    with pytest.raises(NotAcceptable, match=r"suite\.code"):
        launch.resume(campaign, IN_PROCESS)


@pytest.mark.parametrize("more", [{"seed": -1}, {"seed": 1 << 63}, {"runs": 10**20}])
def test_numbers_beyond_what_a_plan_can_hold_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected at least"):
        launch.run(request(**more), IN_PROCESS, out=Path("c"))
