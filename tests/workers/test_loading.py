"""A worker that has other code than the campaign was begun with does no run of it."""

import os
import sys
from pathlib import Path

import pytest

from passhat.workers.desk_tasks import DeskTasks
from passhat.workers.host import Host
from passhat.workers.loading import WorkerError, check_code, file_digest
from passhat.workers.order import AgentSpec, Limits, WorkOrder


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "loaded_package").mkdir()
    (tmp_path / "loaded_package/__init__.py").write_text("")
    path = tmp_path / "loaded_package/agent.py"
    path.write_text("raise RuntimeError('looking at it must not run it')\n")
    return path


def test_code_is_compared_without_being_run(agent: Path) -> None:
    check_code({"loaded_package.agent:run": file_digest(str(agent))})
    before = file_digest(str(agent))
    agent.write_text("raise RuntimeError('newer')\n")
    with pytest.raises(WorkerError) as refused:
        check_code({"loaded_package.agent:run": before})
    assert str(refused.value) == f"loaded_package.agent:run: {agent} is not what the campaign was begun with"


def test_what_is_not_here_is_left_to_whoever_loads_it(agent: Path) -> None:
    check_code({"no_such_package.agent:run": "sha256:0", "loaded_package.none:run": "sha256:0", "sys:exit": "sha256:0"})


def test_a_host_checks_the_code_of_its_order_first(agent: Path) -> None:
    order = WorkOrder(
        "desk",
        (AgentSpec("A", "loaded_package.agent:run"),),
        DeskTasks(1, 1),
        1,
        0,
        "release",
        Limits(),
        code={"loaded_package.agent:run": "sha256:0"},
        sys_path=(os.fspath(agent.parents[1]),),
    )
    with pytest.raises(WorkerError, match="is not what the campaign was begun with"):
        Host(order)
