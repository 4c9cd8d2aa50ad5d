"""A campaign on shared storage: its traces elsewhere, its folder moved, continued where paths are not the same."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from passhat.runner import launch
from passhat.runner.errors import NotAcceptable, UsageError
from passhat.runner.report import load_account, summarise
from passhat.runner.request import Request
from passhat.runner.show import run_document, show
from passhat.runner.store import Campaign

IN_PROCESS = launch.Place(workers=0)
AGENT = """
from passhat.workers.agent import Final

def run(task, tools, ctx):
    return Final("COMPLETED", f"seed {ctx.seed}") if ctx.seed % 3 else Final("REFUSED", "no")
"""
TASK = {"request": "Do it.", "contract": {"outcomes": ["COMPLETED"]}, "world": {"today": "2026-06-01", "tables": {}}}


def begin(project: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Campaign:
    """A campaign that was begun in a project's folder, and interrupted after its first frames."""
    project.mkdir()
    (project / "shared_agent.py").write_text(AGENT)
    (project / "tasks.jsonl").write_text("".join(json.dumps({"id": f"t{i}", **TASK}) + "\n" for i in range(12)))
    (project / "suite.yaml").write_text('name: s\nversion: "1"\nenvironment: desk\ntasks: tasks.jsonl\nruns: 4\n')
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("shared_agent", None)
    monkeypatch.chdir(project)
    request = Request(suite="suite.yaml", releases=("shared_agent:run",), folder=str(project), **more)
    campaign = launch.run(request, IN_PROCESS, out=project / "c")
    log = campaign.log_path.read_bytes()
    campaign.log_path.write_bytes(log[: len(log) // 2])  # as a crash would leave it
    return Campaign(campaign.folder)


def traces_of(campaign: Campaign) -> list[str]:
    """Return what the trace of each failed run says its agent said."""
    account, _ = load_account(campaign)
    runs = [run_document(campaign, account, 0, task, run) for task in range(12) for run in range(4)]
    failed = [document for document in runs if document["status"] == "fail"]
    assert failed
    return [document["trace"]["final"]["message"] for document in failed]


def test_a_campaign_that_was_moved_is_resumed_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = summarise(begun := begin(tmp_path / "project", monkeypatch))
    assert whole["releases"][0]["counts"]["missing"] > 0
    shutil.move(begun.folder, tmp_path / "moved")
    campaign = launch.resume(Campaign(tmp_path / "moved"), IN_PROCESS)
    counts = summarise(campaign)["releases"][0]["counts"]
    assert (counts["missing"], counts["duplicates"]) == (0, 0)
    assert set(traces_of(campaign)) == {"no"}
    assert not (tmp_path / "project/c").exists()


def test_on_a_machine_without_the_first_folder_the_current_one_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = begin(tmp_path / "project", monkeypatch)
    shutil.move(begun.folder, tmp_path / "shared")
    shutil.move(tmp_path / "project", tmp_path / "checkout")
    sys.modules.pop("shared_agent", None)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    with pytest.raises(UsageError, match=r"suite\.yaml: no such suite file"):
        launch.resume(Campaign(tmp_path / "shared"), IN_PROCESS)
    monkeypatch.chdir(tmp_path / "checkout")
    said = f"begun in {tmp_path / 'project'} (No such file or directory): suite and releases are looked for in "
    assert capsys.readouterr().err == f"{said}{tmp_path}\n"
    campaign = launch.resume(Campaign(tmp_path / "shared"), IN_PROCESS)
    assert summarise(campaign)["releases"][0]["counts"]["missing"] == 0
    assert Path.cwd() == tmp_path / "checkout"
    assert f"{said}{tmp_path / 'checkout'}\n" in capsys.readouterr().err


def test_another_machines_other_agent_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = begin(tmp_path / "project", monkeypatch)
    shutil.move(begun.folder, tmp_path / "shared")
    shutil.move(tmp_path / "project", tmp_path / "checkout")
    (tmp_path / "checkout/shared_agent.py").write_text(f"{AGENT}# newer\n")
    sys.modules.pop("shared_agent", None)
    monkeypatch.chdir(tmp_path / "checkout")
    with pytest.raises(NotAcceptable, match=r"releases\.shared_agent:run\.code"):
        launch.resume(Campaign(tmp_path / "shared"), IN_PROCESS)


@pytest.mark.parametrize("traces", ["../storage", "file://{}/storage/"])
def test_traces_lie_where_they_were_asked_for_and_are_found_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traces: str
) -> None:
    begun = begin(tmp_path / "project", monkeypatch, traces=traces.format(tmp_path))
    assert begun.manifest["traces"].removeprefix("file://") == str(tmp_path / "storage")
    assert [path.name for path in (tmp_path / "storage").iterdir()] == [begun.id]
    assert not (begun.folder / "traces").exists()
    shutil.move(begun.folder, tmp_path / "moved")
    campaign = launch.resume(Campaign(tmp_path / "moved"), IN_PROCESS)
    assert set(traces_of(campaign)) == {"no"}
    failed = show(f"{campaign.folder}/shared_agent:run")["failures"][0]["runs"][0]
    assert show(f"{campaign.folder}/shared_agent:run/{failed}")["trace"]["final"]["message"] == "no"
    (tmp_path / "storage" / begun.id).rename(campaign.folder / "traces")  # somebody brings them along
    assert set(traces_of(Campaign(campaign.folder))) == {"no"}


def test_traces_of_one_campaign_stay_in_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = begin(tmp_path / "project", monkeypatch, traces="here")
    request = Request(**{**begun.manifest["request"], "releases": ("shared_agent:run",), "traces": "there"})
    with pytest.raises(NotAcceptable, match=r"traces: '.*/here' then, '.*/there' now"):
        launch.run(request, IN_PROCESS, out=begun.folder, resume=True)


def test_storage_that_cannot_be_had_is_refused_before_anything_is_made() -> None:
    request = Request(suite="desk", releases=("incumbent",), tasks=1, traces="nix://bucket/traces")
    with pytest.raises(UsageError, match=r"--traces nix://bucket/traces: Protocol not known"):
        launch.run(request, IN_PROCESS, out=Path("c"))
    assert not Path("c").exists()


def test_a_folder_to_copy_that_is_not_there_is_refused_before_anything_starts() -> None:
    request = Request(suite="desk", releases=("incumbent",), tasks=1)
    for place, told in [
        (launch.Place(0, working_dir=Path.cwd()), "leave --address and --working-dir out"),
        (launch.Place(1, working_dir=Path("nowhere")), "--working-dir nowhere: no such folder"),
    ]:
        with pytest.raises(UsageError, match=told):
            launch.run(request, place, out=Path("c"))
    assert not Path("c").exists()
